//! What happens in the worlds of the campaign: at least one scenario per controller of the engine, and the scheduler's.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::TryStreamExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PropagationPolicy};
use kube::runtime::{reflector, watcher};
use serde_json::{Value, json};
use warp_testkit::fault::campaign::{Scenario, Script};
use warp_testkit::fault::world::{Setup, VIRTUAL_LIMIT, World};

/// One node, so that nothing depends on which of two equal ones was looked at first.
const ONE: &str = "
defaults: {pullTime: 1s, runTime: 60s}
pools:
- {name: only, count: 1, cpu: 16, memory: 64Gi}
";
const TWO: &str = "
defaults: {pullTime: 1s, runTime: 60s}
pools:
- {name: first, count: 1, cpu: 16, memory: 64Gi, labels: {which: first}}
- {name: second, count: 1, cpu: 16, memory: 64Gi, labels: {which: second}}
";

/// A pod whose promise was not written is bound without one when its victims are quicker than the next attempt, as by
/// kube-scheduler.
const PROMISE: &str = "status/nominatedNodeName";

macro_rules! scenarios {
    ($($fleet:ident $name:ident $(loose $loose:expr)?),* $(,)?) => {
        vec![$(Scenario {
            name: concat!("engine ", stringify!($name)),
            setup: Setup { fleet: $fleet.to_owned(), ..Setup::default() },
            script: script(|world| Box::pin($name(world))),
            loose: &[$($loose)?],
        }),*]
    };
}

fn script<F>(script: F) -> Script
where
    F: for<'a> Fn(&'a World) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
{
    Arc::new(script)
}

pub(super) fn all() -> Vec<Scenario> {
    scenarios![
        ONE a_job_of_three_in_parallel,
        ONE a_job_with_indexes,
        ONE a_job_with_a_pod_failure_policy,
        ONE a_job_whose_pods_fail,
        ONE a_job_suspended_and_resumed,
        ONE a_job_past_its_deadline,
        ONE a_job_that_goes_after_its_ttl,
        ONE a_deployment_rolls,
        ONE a_deployment_recreates,
        ONE a_deployment_is_scaled,
        ONE a_replica_set_adopts_and_releases,
        ONE a_stateful_set_is_made_rolled_and_scaled,
        ONE dependents_go_in_the_background,
        ONE dependents_go_first,
        ONE dependents_are_orphaned,
        ONE a_namespace_is_deleted,
        ONE a_budget_is_counted,
        ONE a_quota_refuses_and_lets_in,
        ONE a_service_gets_its_endpoints,
        ONE a_claim_gets_its_volume,
        TWO a_node_is_lost_and_comes_back,
        ONE a_pod_waits_for_room,
        ONE a_pod_makes_way_for_a_more_important_one loose PROMISE,
        ONE pods_of_a_deleted_node_are_collected,
        ONE a_node_joins_and_takes_the_pod_that_waited,
    ]
}

fn named(api_version: &str, kind: &str, name: &str) -> Value {
    let mut manifest = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
    if !matches!(
        kind,
        "Namespace" | "Node" | "PersistentVolume" | "StorageClass"
    ) {
        manifest["metadata"]["namespace"] = json!("default");
    }
    manifest
}

fn template(restart: &str, behaviour: &Value) -> Value {
    let mut annotations = serde_json::Map::new();
    for (name, value) in behaviour.as_object().into_iter().flatten() {
        annotations.insert(format!("sim.gpu.warp.dev/{name}"), value.clone());
    }
    json!({
        "metadata": {"labels": {"app": "a"}, "annotations": annotations},
        "spec": {
            "restartPolicy": restart, "terminationGracePeriodSeconds": 5,
            "containers": [{"name": "c", "image": "i:1", "resources": {"requests": {"cpu": "1"}}}],
        },
    })
}

fn job(spec: &Value) -> Value {
    let mut job = named("batch/v1", "Job", "j");
    job["spec"] = json!({"template": template("Never", &json!({"run-time": "30s"}))});
    for (field, value) in spec.as_object().into_iter().flatten() {
        job["spec"][field] = value.clone();
    }
    job
}

fn deployment(spec: &Value) -> Value {
    let mut deployment = named("apps/v1", "Deployment", "d");
    deployment["spec"] = json!({
        "replicas": 3, "selector": {"matchLabels": {"app": "a"}}, "template": template("Always", &json!({})),
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        deployment["spec"][field] = value.clone();
    }
    deployment
}

fn condition(object: Option<&Value>, kind: &str) -> bool {
    object.is_some_and(|object| {
        object["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|found| found["type"] == kind && found["status"] == "True")
    })
}

async fn until_condition(world: &World, manifest: &Value, kind: &str) -> Result<()> {
    world
        .until(manifest, kind, |object| condition(object, kind))
        .await
}

async fn until_status(world: &World, manifest: &Value, wanted: Value) -> Result<()> {
    world
        .until(manifest, &wanted.to_string(), |object| {
            object.is_some_and(|object| {
                let fields = wanted.as_object().into_iter().flatten();
                fields.into_iter().all(|(name, value)| {
                    let have = &object["status"][name];
                    have == value || have.is_null() && *value == 0
                })
            })
        })
        .await
}

async fn delete(world: &World, manifest: &Value, policy: PropagationPolicy) -> Result<()> {
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    let params = DeleteParams {
        propagation_policy: Some(policy),
        ..DeleteParams::default()
    };
    world.api_of(manifest)?.delete(name, &params).await?;
    world
        .until(manifest, "gone", |object| object.is_none())
        .await
}

async fn until_pods(world: &World, what: &str, holds: impl Fn(&[Arc<Pod>]) -> bool) -> Result<()> {
    let pods: Api<Pod> = Api::all(world.client.clone());
    let (seen, writer) = reflector::store();
    let changes = reflector::reflector(writer, watcher(pods, watcher::Config::default()));
    let mut changes = std::pin::pin!(changes);
    let held = async {
        while let Some(change) = changes.try_next().await? {
            let whole = !matches!(change, watcher::Event::Init | watcher::Event::InitApply(_));
            if whole && holds(&seen.state()) {
                return Ok(());
            }
        }
        bail!("the watch of pods ended before {what}")
    };
    tokio::time::timeout(VIRTUAL_LIMIT, held)
        .await
        .with_context(|| format!("not true after {VIRTUAL_LIMIT:?}: {what}"))?
}

async fn finished(world: &World, manifest: Value, kind: &str) -> Result<()> {
    world.create(manifest.clone()).await?;
    until_condition(world, &manifest, kind).await
}

fn stateful_set(spec: &Value) -> Value {
    let mut set = named("apps/v1", "StatefulSet", "s");
    set["spec"] = json!({
        "replicas": 2, "serviceName": "s", "selector": {"matchLabels": {"app": "a"}},
        "template": template("Always", &json!({})),
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        set["spec"][field] = value.clone();
    }
    set
}

async fn a_stateful_set_is_made_rolled_and_scaled(world: &World) -> Result<()> {
    let set = stateful_set(&json!({}));
    world.create(set.clone()).await?;
    until_status(
        world,
        &set,
        json!({"readyReplicas": 2, "currentReplicas": 2}),
    )
    .await?;
    let other = json!({"spec": {"template": {"metadata": {"annotations": {"version": "two"}}}}});
    world.patch(&set, other).await?;
    let rolled = json!({"observedGeneration": 2, "updatedReplicas": 2, "currentReplicas": 2, "readyReplicas": 2});
    until_status(world, &set, rolled).await?;
    world.patch(&set, json!({"spec": {"replicas": 1}})).await?;
    until_status(
        world,
        &set,
        json!({"observedGeneration": 3, "replicas": 1, "readyReplicas": 1}),
    )
    .await
}

async fn a_job_of_three_in_parallel(world: &World) -> Result<()> {
    finished(
        world,
        job(&json!({"completions": 3, "parallelism": 2})),
        "Complete",
    )
    .await
}

async fn a_job_with_indexes(world: &World) -> Result<()> {
    finished(
        world,
        job(&json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed"})),
        "Complete",
    )
    .await
}

async fn a_job_with_a_pod_failure_policy(world: &World) -> Result<()> {
    let rule = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}});
    let spec = json!({
        "backoffLimit": 6, "podFailurePolicy": {"rules": [rule]},
        "template": template("Never", &json!({"run-time": "5s", "exit-code": "42"})),
    });
    finished(world, job(&spec), "Failed").await
}

async fn a_job_whose_pods_fail(world: &World) -> Result<()> {
    let spec = json!({"backoffLimit": 2, "template": template("Never", &json!({"run-time": "5s", "exit-code": "1"}))});
    finished(world, job(&spec), "Failed").await
}

async fn a_job_suspended_and_resumed(world: &World) -> Result<()> {
    let it = job(
        &json!({"parallelism": 2, "completions": 2, "template": template("Never", &json!({"run-time": "5m"}))}),
    );
    world.create(it.clone()).await?;
    until_status(world, &it, json!({"ready": 2})).await?;
    world.patch(&it, json!({"spec": {"suspend": true}})).await?;
    until_condition(world, &it, "Suspended").await?;
    until_pods(world, "no pods", <[_]>::is_empty).await?;
    world
        .patch(&it, json!({"spec": {"suspend": false}}))
        .await?;
    until_condition(world, &it, "Complete").await
}

async fn a_job_past_its_deadline(world: &World) -> Result<()> {
    let spec = json!({"activeDeadlineSeconds": 120, "template": template("Never", &json!({"run-time": "forever"}))});
    finished(world, job(&spec), "Failed").await
}

async fn a_job_that_goes_after_its_ttl(world: &World) -> Result<()> {
    let it = job(&json!({"ttlSecondsAfterFinished": 60}));
    world.create(it.clone()).await?;
    world.until(&it, "gone", |object| object.is_none()).await?;
    until_pods(world, "no pods", <[_]>::is_empty).await
}

async fn rolled(world: &World, it: &Value) -> Result<()> {
    world.create(it.clone()).await?;
    until_status(world, it, json!({"availableReplicas": 3})).await?;
    let image = json!([{"name": "c", "image": "i:2", "resources": {"requests": {"cpu": "1"}}}]);
    world
        .patch(
            it,
            json!({"spec": {"template": {"spec": {"containers": image}}}}),
        )
        .await?;
    until_status(
        world,
        it,
        json!({"observedGeneration": 2, "updatedReplicas": 3, "availableReplicas": 3, "replicas": 3}),
    )
    .await
}

async fn a_deployment_rolls(world: &World) -> Result<()> {
    rolled(world, &deployment(&json!({}))).await
}

async fn a_deployment_recreates(world: &World) -> Result<()> {
    rolled(
        world,
        &deployment(&json!({"strategy": {"type": "Recreate"}})),
    )
    .await
}

async fn a_deployment_is_scaled(world: &World) -> Result<()> {
    let it = deployment(&json!({}));
    world.create(it.clone()).await?;
    until_status(world, &it, json!({"availableReplicas": 3})).await?;
    world.patch(&it, json!({"spec": {"replicas": 5}})).await?;
    until_status(world, &it, json!({"availableReplicas": 5})).await?;
    world.patch(&it, json!({"spec": {"replicas": 1}})).await?;
    until_status(world, &it, json!({"availableReplicas": 1, "replicas": 1})).await
}

async fn a_replica_set_adopts_and_releases(world: &World) -> Result<()> {
    let mut pod = template("Always", &json!({}));
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!("stray");
    pod["metadata"]["namespace"] = json!("default");
    world.create(pod.clone()).await?;
    let mut it = named("apps/v1", "ReplicaSet", "r");
    it["spec"] = json!({"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": template("Always", &json!({}))});
    world.create(it.clone()).await?;
    until_status(world, &it, json!({"availableReplicas": 2})).await?;
    world
        .patch(&pod, json!({"metadata": {"labels": {"app": "b"}}}))
        .await?;
    until_pods(world, "one more", |pods| pods.len() == 3).await?;
    until_status(world, &it, json!({"availableReplicas": 2})).await
}

async fn a_family(world: &World) -> Result<Value> {
    let it = deployment(&json!({"replicas": 2}));
    world.create(it.clone()).await?;
    until_status(world, &it, json!({"availableReplicas": 2})).await?;
    Ok(it)
}

async fn dependents_go_in_the_background(world: &World) -> Result<()> {
    let it = a_family(world).await?;
    delete(world, &it, PropagationPolicy::Background).await?;
    until_pods(world, "no pods", <[_]>::is_empty).await
}

async fn dependents_go_first(world: &World) -> Result<()> {
    let it = a_family(world).await?;
    delete(world, &it, PropagationPolicy::Foreground).await
}

async fn dependents_are_orphaned(world: &World) -> Result<()> {
    let it = a_family(world).await?;
    delete(world, &it, PropagationPolicy::Orphan).await
}

async fn a_namespace_is_deleted(world: &World) -> Result<()> {
    let namespace = named("v1", "Namespace", "team");
    world.create(namespace.clone()).await?;
    world.ready("team").await?;
    let mut it = deployment(&json!({"replicas": 2}));
    it["metadata"]["namespace"] = json!("team");
    world.create(it.clone()).await?;
    let mut kept = named("v1", "ConfigMap", "c");
    kept["metadata"]["namespace"] = json!("team");
    kept["metadata"]["finalizers"] = json!(["example.com/hold"]);
    world.create(kept.clone()).await?;
    until_status(world, &it, json!({"availableReplicas": 2})).await?;
    world
        .api_of(&namespace)?
        .delete("team", &DeleteParams::default())
        .await?;
    world
        .until(&kept, "being deleted", |object| {
            object.is_some_and(|object| object["metadata"]["deletionTimestamp"].is_string())
        })
        .await?;
    world
        .patch(&kept, json!({"metadata": {"finalizers": null}}))
        .await?;
    world
        .until(&namespace, "gone", |object| object.is_none())
        .await
}

async fn a_budget_is_counted(world: &World) -> Result<()> {
    let it = a_family(world).await?;
    let mut budget = named("policy/v1", "PodDisruptionBudget", "b");
    budget["spec"] = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}});
    world.create(budget.clone()).await?;
    until_status(
        world,
        &budget,
        json!({"disruptionsAllowed": 1, "currentHealthy": 2}),
    )
    .await?;
    world.patch(&it, json!({"spec": {"replicas": 1}})).await?;
    until_status(
        world,
        &budget,
        json!({"disruptionsAllowed": 0, "currentHealthy": 1}),
    )
    .await
}

async fn a_quota_refuses_and_lets_in(world: &World) -> Result<()> {
    let mut quota = named("v1", "ResourceQuota", "q");
    quota["spec"] = json!({"hard": {"pods": "1"}});
    world.create(quota.clone()).await?;
    world
        .until(&quota, "counted", |quota| {
            quota.is_some_and(|quota| quota["status"]["used"]["pods"] == "0")
        })
        .await?;
    let it = job(&json!({"parallelism": 2, "completions": 2}));
    world.create(it.clone()).await?;
    until_status(world, &it, json!({"active": 1})).await?;
    world.pass(Duration::from_secs(10)).await;
    world
        .patch(&quota, json!({"spec": {"hard": {"pods": "5"}}}))
        .await?;
    until_condition(world, &it, "Complete").await
}

async fn a_service_gets_its_endpoints(world: &World) -> Result<()> {
    let mut service = named("v1", "Service", "s");
    service["spec"] = json!({"selector": {"app": "a"}, "ports": [{"port": 80}]});
    world.create(service.clone()).await?;
    let it = a_family(world).await?;
    world.patch(&it, json!({"spec": {"replicas": 1}})).await?;
    until_status(world, &it, json!({"availableReplicas": 1, "replicas": 1})).await
}

async fn a_claim_gets_its_volume(world: &World) -> Result<()> {
    let mut class = named("storage.k8s.io/v1", "StorageClass", "local");
    class["metadata"]["annotations"] =
        json!({"storageclass.kubernetes.io/is-default-class": "true"});
    class["provisioner"] = json!(warp_local::controllers::PROVISIONER);
    world.create(class).await?;
    let mut claim = named("v1", "PersistentVolumeClaim", "data");
    claim["spec"] =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    world.create(claim.clone()).await?;
    let mut it = job(&json!({}));
    it["spec"]["template"]["spec"]["volumes"] =
        json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    finished(world, it.clone(), "Complete").await?;
    delete(world, &it, PropagationPolicy::Background).await?;
    until_pods(world, "no pods", <[_]>::is_empty).await?;
    delete(world, &claim, PropagationPolicy::Background).await
}

async fn a_node_is_lost_and_comes_back(world: &World) -> Result<()> {
    let it = deployment(&json!({"replicas": 1}));
    world.create(it.clone()).await?;
    until_status(world, &it, json!({"availableReplicas": 1})).await?;
    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    let pod = pods.list(&ListParams::default()).await?.items.remove(0);
    let node = pod.spec.and_then(|spec| spec.node_name).unwrap_or_default();
    let node = named("v1", "Node", &node);
    world
        .patch(
            &node,
            json!({"metadata": {"annotations": {"sim.gpu.warp.dev/node-lost": "true"}}}),
        )
        .await?;
    until_pods(world, "a pod elsewhere", |pods| pods.len() == 2).await?;
    until_status(world, &it, json!({"availableReplicas": 1})).await?;
    world
        .patch(
            &node,
            json!({"metadata": {"annotations": {"sim.gpu.warp.dev/node-lost": "false"}}}),
        )
        .await?;
    until_pods(world, "the old pod gone", |pods| pods.len() == 1).await
}

fn pod(name: &str, cpu: &str, class: Option<&str>) -> Value {
    let mut pod = template("Never", &json!({"run-time": "5m"}));
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["namespace"] = json!("default");
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
    if let Some(class) = class {
        pod["spec"]["priorityClassName"] = json!(class);
    }
    pod
}

async fn until_phase(world: &World, pod: &Value, phase: &str) -> Result<()> {
    until_status(world, pod, json!({"phase": phase})).await
}

async fn a_pod_waits_for_room(world: &World) -> Result<()> {
    let (first, second) = (pod("first", "10", None), pod("second", "10", None));
    world.create(first.clone()).await?;
    until_phase(world, &first, "Running").await?;
    world.create(second.clone()).await?;
    until_phase(world, &second, "Succeeded").await
}

async fn a_pod_makes_way_for_a_more_important_one(world: &World) -> Result<()> {
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "urgent"}, "value": 1000,
    });
    let classes: Api<k8s_openapi::api::scheduling::v1::PriorityClass> =
        Api::all(world.client.clone());
    classes
        .create(
            &kube::api::PostParams::default(),
            &serde_json::from_value(class)?,
        )
        .await?;
    let (small, urgent) = (
        pod("small", "10", None),
        pod("urgent", "10", Some("urgent")),
    );
    world.create(small.clone()).await?;
    until_phase(world, &small, "Running").await?;
    world.create(urgent.clone()).await?;
    until_phase(world, &urgent, "Succeeded").await
}

async fn a_node_joins_and_takes_the_pod_that_waited(world: &World) -> Result<()> {
    let mut large = pod("large", "20", None);
    large["metadata"]["annotations"] = json!({"sim.gpu.warp.dev/run-time": "15m"});
    world.create(large.clone()).await?;
    world.join("defaults: {pullTime: 1s, runTime: 60s}\npools:\n- {name: late, count: 1, cpu: 32, memory: 64Gi}\n")?;
    until_phase(world, &large, "Succeeded").await
}

async fn pods_of_a_deleted_node_are_collected(world: &World) -> Result<()> {
    let it = job(&json!({"template": template("Never", &json!({"run-time": "10m"}))}));
    world.create(it.clone()).await?;
    until_status(world, &it, json!({"ready": 1})).await?;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(world.client.clone());
    let node = nodes
        .list(&ListParams::default())
        .await?
        .items
        .remove(0)
        .name_any();
    nodes.delete(&node, &DeleteParams::default()).await?;
    until_pods(world, "a pod that waits", |pods| {
        pods.len() == 1
            && pods[0]
                .spec
                .as_ref()
                .is_some_and(|spec| spec.node_name.is_none())
    })
    .await?;
    world.join("defaults: {pullTime: 1s, runTime: 60s}\npools:\n- {name: new, count: 1, cpu: 16, memory: 64Gi}\n")?;
    until_condition(world, &it, "Complete").await
}
