//! The controllers in front of the embedded API server, in this process and in virtual time.

use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use warp_apiserver::{ApiServer, Options as ServerOptions};
use warp_local::controllers::{Clock, Options, PROVISIONER, run};
use warp_testkit::until;

/// Virtual seconds: an hour of waiting costs nothing.
const VIRTUAL_LIMIT: Duration = Duration::from_mins(10);

struct World {
    client: Client,
    shutdown: CancellationToken,
}

impl World {
    async fn new() -> Result<Self> {
        Self::with(Options::default()).await
    }

    async fn with(options: Options) -> Result<Self> {
        let clock = Clock::tokio(Timestamp::from_second(1_800_000_000)?);
        let server = ApiServer::start(ServerOptions {
            clock: clock.clone(),
            ..ServerOptions::ephemeral()?
        })
        .await?;
        let client = server.client("default");
        let shutdown = CancellationToken::new();
        let options = Options {
            root_ca: Some("PEM".to_owned()),
            ..options
        };
        tokio::spawn(run(client.clone(), clock, options, shutdown.clone()));
        let world = Self { client, shutdown };
        world
            .gone_or(
                &Api::<ServiceAccount>::namespaced(world.client.clone(), "default"),
                "default",
                |found| found.is_some(),
            )
            .await?;
        Ok(world)
    }

    async fn create<K>(&self, api: &Api<K>, object: Value) -> Result<K>
    where
        K: Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
    {
        Ok(api
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await?)
    }

    async fn gone_or<K>(
        &self,
        api: &Api<K>,
        name: &str,
        holds: impl Fn(Option<&K>) -> bool,
    ) -> Result<()>
    where
        K: Clone + DeserializeOwned + std::fmt::Debug,
    {
        until(name, VIRTUAL_LIMIT, || async {
            Ok(holds(api.get_opt(name).await?.as_ref()).then_some(()))
        })
        .await
    }

    async fn node(&self, name: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        self.create(&nodes, json!({ "metadata": { "name": name } }))
            .await?;
        let status = json!({ "status": {
            "allocatable": { "cpu": "8", "memory": "16Gi", "pods": "110" },
            "conditions": [{ "type": "Ready", "status": "True" }]
        } });
        nodes
            .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(())
    }

    /// Waits for `count` bound pods, and says what became of them.
    async fn play(&self, namespace: &str, count: usize, phase: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let bound = until("pods are bound", VIRTUAL_LIMIT, || async {
            let all = pods.list(&ListParams::default()).await?.items;
            let bound: Vec<_> = all
                .into_iter()
                .filter(|pod| {
                    pod.spec
                        .as_ref()
                        .is_some_and(|spec| spec.node_name.is_some())
                })
                .collect();
            Ok((bound.len() == count).then_some(bound))
        })
        .await?;
        for pod in bound {
            let ready = if phase == "Running" { "True" } else { "False" };
            let status = json!({ "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": "2027-01-15T08:00:00Z" }] } });
            pods.patch_status(
                &pod.name_any(),
                &PatchParams::default(),
                &Patch::Merge(status),
            )
            .await?;
        }
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn template() -> Value {
    json!({ "metadata": { "labels": { "app": "a" } }, "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i:1" }] } })
}

#[tokio::test(start_paused = true)]
async fn a_job_runs_ends_and_goes_when_its_hour_is_over() -> Result<()> {
    let world = World::new().await?;
    world.node("n").await?;
    let jobs: Api<Job> = Api::namespaced(world.client.clone(), "default");
    let spec = json!({ "completions": 2, "parallelism": 2, "template": template(), "ttlSecondsAfterFinished": 3600 });
    world
        .create(&jobs, json!({ "metadata": { "name": "j" }, "spec": spec }))
        .await?;
    world.play("default", 2, "Succeeded").await?;
    world
        .gone_or(&jobs, "j", |job| {
            let status = job.and_then(|job| job.status.clone()).unwrap_or_default();
            status.succeeded == Some(2) && status.completion_time.is_some()
        })
        .await?;
    tokio::time::sleep(Duration::from_hours(1)).await;
    world.gone_or(&jobs, "j", |job| job.is_none()).await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    until("pods are gone", VIRTUAL_LIMIT, || async {
        Ok(pods
            .list(&ListParams::default())
            .await?
            .items
            .is_empty()
            .then_some(()))
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_deployment_rolls_and_a_namespace_ends_with_it() -> Result<()> {
    let world = World::new().await?;
    world.node("n").await?;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    world
        .create(&namespaces, json!({ "metadata": { "name": "team" } }))
        .await?;
    let configs: Api<ConfigMap> = Api::namespaced(world.client.clone(), "team");
    world
        .gone_or(&configs, "kube-root-ca.crt", |found| found.is_some())
        .await?;
    let deployments: Api<Deployment> = Api::namespaced(world.client.clone(), "team");
    let mut template = template();
    template["spec"]["restartPolicy"] = json!("Always");
    let spec = json!({ "replicas": 2, "selector": { "matchLabels": { "app": "a" } }, "template": template });
    world
        .create(
            &deployments,
            json!({ "metadata": { "name": "d" }, "spec": spec }),
        )
        .await?;
    world.play("team", 2, "Running").await?;
    world
        .gone_or(&deployments, "d", |found| {
            let status = found
                .and_then(|found| found.status.clone())
                .unwrap_or_default();
            let revision = found
                .and_then(|found| found.annotations().get("deployment.kubernetes.io/revision"));
            status.available_replicas == Some(2) && revision.is_some_and(|revision| revision == "1")
        })
        .await?;
    namespaces.delete("team", &DeleteParams::default()).await?;
    // Nobody plays the kubelet here: the pods are ended by hand, as one would do it.
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "team");
    until("pods are ending", VIRTUAL_LIMIT, || async {
        let all = pods.list(&ListParams::default()).await?.items;
        for pod in all
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_some())
        {
            pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0))
                .await?;
        }
        Ok(all.is_empty().then_some(()))
    })
    .await?;
    world
        .gone_or(&namespaces, "team", |found| found.is_none())
        .await
}

#[tokio::test(start_paused = true)]
async fn a_new_custom_kind_is_collected_too() -> Result<()> {
    let world = World::new().await?;
    let definitions: Api<DynamicObject> = Api::all_with(
        world.client.clone(),
        &ApiResource::from_gvk(&GroupVersionKind::gvk(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
        )),
    );
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "plural": "widgets", "kind": "Widget" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }]
        }
    });
    world.create(&definitions, definition).await?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Widget"));
    let widgets: Api<DynamicObject> =
        Api::namespaced_with(world.client.clone(), "default", &resource);
    until("widgets are served", VIRTUAL_LIMIT, || async {
        Ok(widgets.list(&ListParams::default()).await.ok())
    })
    .await?;
    let owner = world.create(&widgets, json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "owner" } })).await?;
    let reference = json!([{ "apiVersion": "example.com/v1", "kind": "Widget", "name": "owner", "uid": owner.uid() }]);
    let child = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "child", "ownerReferences": reference } });
    world.create(&widgets, child).await?;
    let configs: Api<ConfigMap> = Api::namespaced(world.client.clone(), "default");
    world
        .create(
            &configs,
            json!({ "metadata": { "name": "child", "ownerReferences": reference } }),
        )
        .await?;
    widgets.delete("owner", &DeleteParams::background()).await?;
    world
        .gone_or(&widgets, "child", |found| found.is_none())
        .await?;
    world
        .gone_or(&configs, "child", |found| found.is_none())
        .await
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_silent_node_are_evicted_and_replaced_elsewhere() -> Result<()> {
    let world = World::new().await?;
    world.node("lost").await?;
    let jobs: Api<Job> = Api::namespaced(world.client.clone(), "default");
    world
        .create(
            &jobs,
            json!({ "metadata": { "name": "j" }, "spec": { "template": template() } }),
        )
        .await?;
    world.play("default", 1, "Running").await?;
    world.node("kept").await?;
    let nodes: Api<Node> = Api::all(world.client.clone());
    // Only one of them keeps giving signs of life.
    for beat in 0..40 {
        let at = Timestamp::from_second(1_800_000_000 + beat * 10)?;
        let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": at }] } });
        nodes
            .patch_status("kept", &PatchParams::default(), &Patch::Strategic(status))
            .await?;
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    let lost = nodes.get("lost").await?;
    let ready = lost
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    assert!(
        ready
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "Unknown"),
        "{ready:?}"
    );
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    until(
        "a pod runs on the node that is left",
        VIRTUAL_LIMIT,
        || async {
            let all = pods.list(&ListParams::default()).await?.items;
            let moved = all.iter().any(|pod| {
                pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some("kept")
            });
            Ok(moved.then_some(()))
        },
    )
    .await
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_deleted_while_a_pod_uses_it_keeps_its_data_until_the_pod_ends()
-> Result<()> {
    let folder = tempfile::tempdir()?;
    let world = World::with(Options {
        volumes: Some(folder.path().to_owned()),
        ..Options::default()
    })
    .await?;
    world.node("n").await?;
    let classes: Api<StorageClass> = Api::all(world.client.clone());
    world
        .create(
            &classes,
            json!({ "metadata": { "name": "local" }, "provisioner": PROVISIONER }),
        )
        .await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.client.clone(), "default");
    let spec = json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "local", "resources": { "requests": { "storage": "1Gi" } } });
    world
        .create(
            &claims,
            json!({ "metadata": { "name": "data" }, "spec": spec }),
        )
        .await?;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    let mut spec = template()["spec"].clone();
    spec["volumes"] = volumes;
    world
        .create(&pods, json!({ "metadata": { "name": "p" }, "spec": spec }))
        .await?;
    world.play("default", 1, "Running").await?;
    let claim = claims.get("data").await?;
    let volume = claim
        .spec
        .and_then(|spec| spec.volume_name)
        .unwrap_or_default();
    let directory = folder.path().join(&volume);
    std::fs::create_dir_all(&directory)?;
    std::fs::write(directory.join("checkpoint"), "42")?;
    claims.delete("data", &DeleteParams::default()).await?;
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert!(directory.join("checkpoint").exists());
    assert!(
        claims.get_opt("data").await?.is_some(),
        "a pod still uses it"
    );
    pods.delete("p", &DeleteParams::default().grace_period(0))
        .await?;
    world
        .gone_or(&claims, "data", |found| found.is_none())
        .await?;
    let all: Api<PersistentVolume> = Api::all(world.client.clone());
    world
        .gone_or(&all, &volume, |found| found.is_none())
        .await?;
    assert!(!directory.exists(), "the data went with the claim");
    Ok(())
}
