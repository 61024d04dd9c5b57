//! Nobody reaches further than their namespace through Warp.
//!
//! A real control plane judges: its RBAC says who may do what, and a neighbour with every right in
//! a namespace of their own tries to see, stop, starve or imitate the work of another.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use warp_testkit::audit::service_account;
use warp_testkit::{Behaviour, Cluster, NodeShape, canary, wait_for};

use super::Used;
use super::hostile;
use super::operator::Operator;
use super::role;
use super::world::{
    ACCOUNT, DEADLINE, SYSTEM, Scene, World, message, reason, retries, spec, with,
    workload_resource,
};

/// In the name of a workload of the victim: nobody else may ever read it.
const HIDDEN_NAME: &str = "canary-hidden-project";
/// In texts the neighbour writes: nobody else may ever read them.
const FORGED: &str = "canary-forged-words";
/// A secret value, a password of a registry and the value of an environment variable.
const SECRETS: [&str; 3] = [
    "canary-secret-value",
    "canary-registry-password",
    "canary-environment-value",
];

/// What the shipped roles must not allow, as verb, group, resource, subresource.
const FORBIDDEN: &[(&str, &str, &str, &str)] = &[
    ("get", "", "secrets", ""),
    ("list", "", "secrets", ""),
    ("watch", "", "secrets", ""),
    ("update", "", "secrets", ""),
    ("patch", "", "secrets", ""),
    ("delete", "", "secrets", ""),
    ("get", "", "configmaps", ""),
    ("create", "", "pods", ""),
    ("delete", "", "pods", ""),
    ("create", "", "pods", "exec"),
    ("get", "", "pods", "log"),
    ("patch", "", "nodes", ""),
    ("update", "", "nodes", ""),
    ("create", "", "serviceaccounts", "token"),
    ("impersonate", "", "users", ""),
    ("impersonate", "", "serviceaccounts", ""),
    ("escalate", "rbac.authorization.k8s.io", "clusterroles", ""),
    ("bind", "rbac.authorization.k8s.io", "clusterroles", ""),
    ("create", "rbac.authorization.k8s.io", "rolebindings", ""),
    ("update", "gpu.warp.dev", "gpuworkloads", ""),
    ("create", "gpu.warp.dev", "gpuworkloads", ""),
    (
        "update",
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "",
    ),
];

/// What of it the operator may do in its own namespace: the books of fake clouds and the credentials of real ones are
/// kept there.
const AT_HOME: &[(&str, &str)] = &[("get", "configmaps"), ("get", "secrets")];

pub(super) async fn neighbours() -> Result<Used> {
    let cluster = Cluster::real()
        .audited()
        .nodes(NodeShape::h100(4), 1)
        .start()
        .await?;
    let world = World::install(cluster, &[]).await?;
    let operator = world.operator(&["--leader-elect", "--log-format=json"])?;
    let team = world.scene("team").await?;
    let rival = world.scene("rival").await?;
    let mallory = neighbour(&world, &rival.namespace).await?;
    let outcome = async {
        the_role_is_no_key(&world, &team.namespace).await?;
        a_neighbour_may_ask_for_nothing(&mallory, &team).await?;
        imitations_change_nothing(&mallory, &team, &rival).await?;
        no_reference_leaves_its_namespace(&mallory, &team, &rival).await?;
        hostile_specs_stand_still(&mallory, &team, &rival).await?;
        refused_pods_hold_no_gpus(&world, &team).await?;
        priority_can_be_reserved(&world, &mallory, &rival.namespace).await?;
        secrets_stay_where_they_are(&team, &operator).await
    };
    outcome.await.with_context(|| operator.log_tail())?;
    ensure!(
        !operator.log().contains(FORGED),
        "words of a stranger are in the log"
    );
    role::used(&world).await
}

/// Somebody with every right in one namespace and none elsewhere.
async fn neighbour(world: &World, namespace: &str) -> Result<Client> {
    let subject = json!([{"kind": "ServiceAccount", "name": "mallory", "namespace": namespace}]);
    let rights = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "mallory", "namespace": namespace}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
         "metadata": {"name": "everything", "namespace": namespace},
         "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
         "metadata": {"name": "mallory", "namespace": namespace},
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "everything"},
         "subjects": subject},
    ]});
    world
        .cluster
        .kubectl()
        .run_with(&["apply", "-f", "-"], &rights.to_string())
        .await?;
    world.cluster.client_as(namespace, "mallory").await
}

/// The operator's account may not read Secrets of others, run anything but Jobs, or give itself rights.
async fn the_role_is_no_key(world: &World, namespace: &str) -> Result<()> {
    let reviews: Api<SubjectAccessReview> = Api::all(world.client.clone());
    let account = service_account(SYSTEM, ACCOUNT);
    for (verb, group, resource, subresource) in FORBIDDEN {
        for place in ["", namespace, SYSTEM, "kube-system"] {
            if place == SYSTEM && AT_HOME.contains(&(verb, resource)) {
                continue;
            }
            let review = serde_json::from_value(json!({"spec": {
                "user": account,
                "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{SYSTEM}"), "system:authenticated"],
                "resourceAttributes": {"verb": verb, "group": group, "resource": resource,
                    "subresource": subresource, "namespace": place},
            }}))?;
            let answer = reviews.create(&PostParams::default(), &review).await?;
            ensure!(
                !answer.status.is_some_and(|status| status.allowed),
                "the operator may {verb} {resource}/{subresource} of '{group}' in '{place}'"
            );
        }
    }
    // The question itself is one that can be answered with yes.
    let review = serde_json::from_value(json!({"spec": {"user": account,
        "resourceAttributes": {"verb": "create", "group": "batch", "resource": "jobs", "namespace": namespace}}}))?;
    let answer = reviews.create(&PostParams::default(), &review).await?;
    ensure!(answer.status.is_some_and(|status| status.allowed));
    Ok(())
}

async fn a_neighbour_may_ask_for_nothing(mallory: &Client, team: &Scene<'_>) -> Result<()> {
    let theirs: Api<DynamicObject> =
        Api::namespaced_with(mallory.clone(), &team.namespace, &workload_resource());
    let patch = json!({"spec": {"suspend": true}});
    let forbidden = |answer: Result<(), kube::Error>| match answer {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
        other => bail!("not forbidden: {other:?}"),
    };
    forbidden(theirs.list(&ListParams::default()).await.map(drop))?;
    forbidden(
        theirs
            .patch(HIDDEN_NAME, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(drop),
    )
}

/// Jobs, pods and Events that look like the victim's own, in the neighbour's namespace: the victim
/// is placed, fails, is tried again and ends as if they were not there.
async fn imitations_change_nothing(
    mallory: &Client,
    team: &Scene<'_>,
    rival: &Scene<'_>,
) -> Result<()> {
    let held = team
        .submit(
            HIDDEN_NAME,
            with(
                spec(2, &Behaviour::hang()),
                json!({"retryPolicy": {"maxRetries": 1}}),
            ),
        )
        .await?;
    team.until_phase(HIDDEN_NAME, "Running").await?;
    let uid = held.uid().context("a workload without uid")?;
    let job = team.jobs_of(HIDDEN_NAME).await?.remove(0);
    forge(mallory, &rival.namespace, &uid, &job).await?;
    // Two GPUs are free, and a Job that is nobody's promises them to itself.
    team.canary("beside-the-forgery").await?;
    team.release(HIDDEN_NAME, &Behaviour::exit(3)).await?;
    let tried = team
        .until(HIDDEN_NAME, "running again", |object| {
            retries(object) == 1 && reason(object) == "Running"
        })
        .await?;
    ensure!(
        !serde_json::to_string(&tried)?.contains(FORGED),
        "{tried:?}"
    );
    // What the neighbour may read says nothing about the victim's work, not even why theirs waits.
    let own: Api<DynamicObject> =
        Api::namespaced_with(mallory.clone(), &rival.namespace, &workload_resource());
    rival
        .submit("waits", spec(4, &Behaviour::succeed()))
        .await?;
    rival.until_reason("waits", "WaitingForCapacity").await?;
    let mut shown = serde_json::to_string(&own.list(&ListParams::default()).await?)?;
    let events: Api<Event> = Api::namespaced(mallory.clone(), &rival.namespace);
    for event in events.list(&ListParams::default()).await? {
        // Those about the imitations repeat what their author wrote.
        if event.involved_object.kind.as_deref() == Some("GPUWorkload") {
            shown += &serde_json::to_string(&event)?;
        }
    }
    ensure!(!shown.contains(HIDDEN_NAME), "{shown}");
    ensure!(
        !shown.contains(&uid) && !shown.contains(&team.namespace),
        "{shown}"
    );
    team.release(HIDDEN_NAME, &Behaviour::succeed()).await?;
    team.until_phase(HIDDEN_NAME, "Succeeded").await?;
    rival.until_phase("waits", "Succeeded").await?;
    Ok(())
}

/// Everything one can write in one's own namespace that bears the marks of another's workload.
async fn forge(mallory: &Client, namespace: &str, uid: &str, job: &Job) -> Result<()> {
    let marks = |attempt: &str| {
        json!({
            "gpu.warp.dev/controller": "warp-operator", "gpu.warp.dev/workload": HIDDEN_NAME,
            "gpu.warp.dev/workload-uid": uid, "gpu.warp.dev/attempt": attempt,
        })
    };
    let node = job
        .annotations()
        .get("gpu.warp.dev/node")
        .context("a pin")?;
    let pinned = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}}});
    let container =
        json!([{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]);
    let jobs: Api<Job> = Api::namespaced(mallory.clone(), namespace);
    for attempt in ["0", "1"] {
        let forged = json!({
            "metadata": {"name": format!("{}-{attempt}", job.name_any()), "labels": marks(attempt),
                "annotations": {"gpu.warp.dev/node": node, "gpu.warp.dev/placement": FORGED}},
            "spec": {"suspend": true, "backoffLimit": 0, "template": {
                "metadata": {"labels": marks(attempt)},
                "spec": {"restartPolicy": "Never", "affinity": pinned, "containers": container}}},
        });
        let made = jobs
            .create(&PostParams::default(), &serde_json::from_value(forged)?)
            .await?;
        let over = json!({"status": {"conditions": [
            {"type": "FailureTarget", "status": "True", "reason": FORGED, "message": FORGED}]}});
        jobs.patch_status(
            &made.name_any(),
            &PatchParams::default(),
            &Patch::Merge(over),
        )
        .await?;
    }
    let pods: Api<Pod> = Api::namespaced(mallory.clone(), namespace);
    let pod = json!({"metadata": {"name": "imitation", "labels": marks("0")},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "c", "image": "i"}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?;
    let events: Api<Event> = Api::namespaced(mallory.clone(), namespace);
    let event = json!({"metadata": {"name": "imitation"}, "reason": "FailedCreate", "message": FORGED, "type": "Warning",
        "involvedObject": {"apiVersion": "batch/v1", "kind": "Job", "namespace": namespace,
            "name": job.name_any(), "uid": job.uid()}});
    events
        .create(&PostParams::default(), &serde_json::from_value(event)?)
        .await?;
    Ok(())
}

/// Names, owners, labels and claims written into a workload mean its own namespace or nothing.
async fn no_reference_leaves_its_namespace(
    mallory: &Client,
    team: &Scene<'_>,
    rival: &Scene<'_>,
) -> Result<()> {
    let victim = team
        .submit("referred-to", spec(1, &Behaviour::hang()))
        .await?;
    team.until_phase("referred-to", "Running").await?;
    let own: Api<DynamicObject> =
        Api::namespaced_with(mallory.clone(), &rival.namespace, &workload_resource());
    let create = async |object: Value| {
        own.create(&PostParams::default(), &serde_json::from_value(object)?)
            .await
            .map_err(anyhow::Error::from)
    };
    let kind = json!({"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload"});
    // An owner in another namespace is nobody: whatever becomes of the orphan, the owner stays.
    create(with(kind.clone(), json!({
        "metadata": {"name": "adopted", "ownerReferences": [{"apiVersion": "gpu.warp.dev/v1alpha1",
            "kind": "GPUWorkload", "name": "referred-to", "uid": victim.uid(), "controller": true, "blockOwnerDeletion": true}]},
        "spec": spec(1, &Behaviour::succeed())})))
    .await?;
    // Marks in a template are replaced by the workload's own.
    let marks = json!({"gpu.warp.dev/workload": "referred-to", "gpu.warp.dev/workload-uid": victim.uid(), "gpu.warp.dev/attempt": "7"});
    let template = json!({"metadata": {"labels": marks}, "spec": {"containers": [
        {"name": "gpu-workload", "image": "i", "env": Behaviour::succeed().env()}]}});
    create(with(
        kind.clone(),
        json!({"metadata": {"name": "marked", "labels": marks},
        "spec": {"modelName": "m", "gpuCount": 1, "podTemplate": template}}),
    ))
    .await?;
    rival.until_phase("marked", "Succeeded").await?;
    for pod in rival.pods_of("marked").await? {
        ensure!(pod.labels().get("gpu.warp.dev/workload-uid") != victim.uid().as_ref());
    }
    // A claim is a name in the workload's namespace, never a path.
    create(with(kind, json!({"metadata": {"name": "climbs"}, "spec": with(spec(1, &Behaviour::succeed()),
        json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": format!("../{}/data", team.namespace)}}]}))})))
    .await?;
    let refused = rival.until_reason("climbs", "VolumeNotReady").await?;
    ensure!(
        message(&refused).contains("not found"),
        "{}",
        message(&refused)
    );
    let seen = team.get("referred-to").await?;
    ensure!(
        reason(&seen) == "Running" && retries(&seen) == 0,
        "{seen:?}"
    );
    rival.delete("climbs").await?;
    team.delete("referred-to").await?;
    wait_for(
        &team.workloads(),
        "referred-to",
        "gone",
        DEADLINE,
        |object| object.is_none(),
    )
    .await?;
    Ok(())
}

/// What climbs, injects or exceeds is refused by the API server or waits with its reason, and the
/// GPUs it asked for are there for others.
async fn hostile_specs_stand_still(
    mallory: &Client,
    team: &Scene<'_>,
    rival: &Scene<'_>,
) -> Result<()> {
    let own: Api<DynamicObject> =
        Api::namespaced_with(mallory.clone(), &rival.namespace, &workload_resource());
    let mut made = Vec::new();
    for (name, spec) in hostile::specs() {
        let object = json!({"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
            "metadata": {"name": name}, "spec": spec});
        let answer = own
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await;
        match answer {
            Ok(_) => made.push(name),
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {}
            Err(error) => bail!("{name}: {error}"),
        }
    }
    for name in &made {
        rival
            .until(name, "standing still", |object| {
                hostile::STANDS_STILL.contains(&reason(object))
            })
            .await?;
    }
    team.canary("beside-the-hostile").await?;
    for name in &made {
        rival.delete(name).await?;
    }
    Ok(())
}

/// A namespace without quota for GPUs cannot keep them from others by asking for them, and one that
/// forbids host mounts forbids them through Warp too.
async fn refused_pods_hold_no_gpus(world: &World, team: &Scene<'_>) -> Result<()> {
    let poor = world.scene("poor").await?;
    let kubectl = world.cluster.kubectl();
    let quota = "--hard=requests.nvidia.com/gpu=0";
    kubectl
        .run(&["-n", &poor.namespace, "create", "quota", "none", quota])
        .await?;
    for number in 0..3 {
        let name = format!("greedy-{number}");
        poor.submit(&name, spec(4, &Behaviour::hang())).await?;
        poor.until_reason(&name, "QuotaExceeded").await?;
    }
    team.canary("beside-the-greedy").await?;
    for number in 0..3 {
        poor.delete(&format!("greedy-{number}")).await?;
    }
    let strict = world.scene("strict").await?;
    let level = "pod-security.kubernetes.io/enforce=baseline";
    kubectl
        .run(&["label", "namespace", &strict.namespace, level])
        .await?;
    let host =
        json!({"volumes": [{"name": "host", "mountPath": "/host", "hostPath": {"path": "/"}}]});
    strict
        .submit("mounts", with(spec(1, &Behaviour::succeed()), host))
        .await?;
    let refused = strict.until_reason("mounts", "PodsRefused").await?;
    ensure!(
        message(&refused).contains("hostPath"),
        "{}",
        message(&refused)
    );
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), &strict.namespace);
    ensure!(pods.list(&ListParams::default()).await?.items.is_empty());
    Ok(())
}

/// Priority is a field anybody may write; a tenant says which its namespaces may ask for.
async fn priority_can_be_reserved(world: &World, mallory: &Client, namespace: &str) -> Result<()> {
    let tenant = json!({"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "modest"},
        "spec": {"namespaces": {"names": [namespace]}, "priorities": ["low", "normal"]}});
    let kubectl = world.cluster.kubectl();
    kubectl
        .run_with(&["apply", "-f", "-"], &tenant.to_string())
        .await?;
    let scene = world.scene_in(namespace);
    let own: Api<DynamicObject> =
        Api::namespaced_with(mallory.clone(), namespace, &workload_resource());
    let pushy = json!({"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "metadata": {"name": "pushy"},
        "spec": with(spec(1, &Behaviour::succeed()), json!({"priority": "high"}))});
    own.create(&PostParams::default(), &serde_json::from_value(pushy)?)
        .await?;
    scene.until_reason("pushy", "TenantForbids").await?;
    scene.delete("pushy").await?;
    kubectl.run(&["delete", "tenant", "modest"]).await?;
    Ok(())
}

/// Values of Secrets, registry passwords and environments are in no log, Event, status or metric.
async fn secrets_stay_where_they_are(team: &Scene<'_>, operator: &Operator) -> Result<()> {
    let [value, password, variable] = SECRETS;
    let client = team.world.client.clone();
    let secrets: Api<k8s_openapi::api::core::v1::Secret> =
        Api::namespaced(client.clone(), &team.namespace);
    let registry = json!({"auths": {"registry.example": {"username": "u", "password": password}}});
    for secret in [
        json!({"metadata": {"name": "key"}, "stringData": {"token": value}}),
        json!({"metadata": {"name": "pull"}, "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": registry.to_string()}}),
    ] {
        secrets
            .create(&PostParams::default(), &serde_json::from_value(secret)?)
            .await?;
    }
    let mut env = Behaviour::exit(9)
        .env()
        .as_array()
        .cloned()
        .unwrap_or_default();
    env.push(json!({"name": "PASSWORD", "value": variable}));
    env.push(
        json!({"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "key", "key": "token"}}}),
    );
    let template = json!({"spec": {"imagePullSecrets": [{"name": "pull"}], "containers": [
        {"name": "gpu-workload", "image": "registry.example/a:1", "args": ["--password", variable], "env": env}]}});
    let spec = json!({"modelName": "m", "gpuCount": 1, "podTemplate": template,
        "retryPolicy": {"maxRetries": 1, "backoffSeconds": 1}});
    team.submit("keeps-quiet", spec.clone()).await?;
    // One that cannot be made says so with the server's own words, which may quote the spec.
    let broken = with(
        spec,
        json!({"podTemplate": {"spec": {"containers": [
        {"name": "Not A Name", "image": "i", "env": [{"name": "=bad", "value": variable}]}]}}}),
    );
    team.submit("cannot-be-made", broken).await?;
    let failed = team.until_phase("keeps-quiet", "Failed").await?;
    let rejected = team.until_reason("cannot-be-made", "JobRejected").await?;
    let events: Api<Event> = Api::namespaced(client, &team.namespace);
    let events = serde_json::to_string(&events.list(&ListParams::default()).await?)?;
    ensure!(events.contains("keeps-quiet"), "no event was published");
    let outputs = [
        ("status", failed.data["status"].to_string()),
        ("status", rejected.data["status"].to_string()),
        ("events", events),
        ("log", operator.log()),
        ("metrics", operator.metrics().await?),
    ];
    for (place, text) in outputs {
        ensure!(!text.is_empty(), "{place} is empty");
        let found = canary::found(text.as_bytes(), SECRETS);
        ensure!(found.is_none(), "{found:?} is in the {place}: {text}");
    }
    Ok(())
}
