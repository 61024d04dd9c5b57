//! What inference services go through.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use warp_testkit::fault::world::World;

use super::{delete, for_long, submit, until_phase, until_reason, workload};

fn service(spec: Value) -> Value {
    let mut manifest = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": "default"},
        "spec": {"model": {"source": "demo/tiny"}, "engine": {"type": "simulated"}},
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        manifest["spec"][field] = value.clone();
    }
    manifest
}

async fn gone(world: &World) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    for pod in pods.list(&ListParams::default()).await? {
        world
            .wait(&pods, &pod.name_any(), "gone", |pod| pod.is_none())
            .await?;
    }
    Ok(())
}

pub(super) async fn is_served_and_deleted(world: &World) -> Result<()> {
    let it = service(json!({"replicas": 2}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    delete(world, &it).await?;
    Box::pin(gone(world)).await
}

/// A copy of two pods that are placed together, each on a node of its own.
pub(super) async fn is_served_over_two_nodes_and_deleted(world: &World) -> Result<()> {
    let it = service(json!({"parallelism": {"pipeline": 2}}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    delete(world, &it).await?;
    Box::pin(gone(world)).await
}

/// Both GPUs are in use: only a copy that goes makes room for one that comes.
pub(super) async fn is_changed_without_a_spare_gpu(world: &World) -> Result<()> {
    let it = service(json!({"replicas": 2}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    let change = json!({"spec": {"engine": {"args": {"max-num-seqs": "8"}}}});
    let changed = world.patch(&it, change).await?;
    world
        .until(&it, "the new spec is served", |object| {
            object.is_some_and(|object| {
                object["status"]["phase"] == "Ready"
                    && object["status"]["observedGeneration"].as_i64()
                        == changed.metadata.generation
                    && object["status"]["updatedReplicas"] == 2
            })
        })
        .await
}

/// A spec that cannot be started is replaced by one that can while it is still unhealthy.
pub(super) async fn is_corrected_while_it_is_wrong(world: &World) -> Result<()> {
    let it = service(json!({"gpuCount": 9}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Pending").await?;
    world
        .patch(&it, json!({"spec": {"engine": {"args": {"no-such": "1"}}}}))
        .await?;
    until_phase(world, &it, "Refused").await?;
    world
        .patch(
            &it,
            json!({"spec": {"gpuCount": 1, "engine": {"args": null}}}),
        )
        .await?;
    until_phase(world, &it, "Ready").await
}

/// One ledger for serving and batch: what a copy holds is not given to a workload.
pub(super) async fn keeps_its_gpus_from_workloads(world: &World) -> Result<()> {
    let it = service(json!({"gpuCount": 2}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    let waits = workload("w", json!({}));
    submit(world, &waits).await?;
    until_reason(world, &waits, "WaitingForCapacity").await?;
    delete(world, &it).await?;
    until_phase(world, &waits, "Running").await
}

/// A copy that finds no GPU takes that of work of lower priority, which goes on afterwards.
pub(super) async fn takes_the_place_of_low_work_by_copies(world: &World) -> Result<()> {
    let low = workload("low", json!({"priority": "low", "podTemplate": for_long()}));
    submit(world, &low).await?;
    until_phase(world, &low, "Running").await?;
    // Longer than the least time it may run.
    world.pass(Duration::from_mins(2)).await;
    let it = service(json!({"replicas": 2}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    until_phase(world, &low, "Pending").await?;
    delete(world, &it).await?;
    until_phase(world, &low, "Running").await
}

/// Work of higher priority takes the copy beyond the least, and no other; a copy comes back when it has ended.
pub(super) async fn gives_up_a_copy_beyond_its_floor(world: &World) -> Result<()> {
    let scaling = json!({"min": 1, "max": 2, "target": 10});
    let it = service(json!({"replicas": 2, "priority": "low", "scaling": scaling}));
    world.create(it.clone()).await?;
    until_phase(world, &it, "Ready").await?;
    world.pass(Duration::from_mins(2)).await;
    let first = workload(
        "first",
        json!({"priority": "high", "podTemplate": for_long()}),
    );
    submit(world, &first).await?;
    until_phase(world, &first, "Running").await?;
    let second = workload(
        "second",
        json!({"priority": "high", "podTemplate": for_long()}),
    );
    submit(world, &second).await?;
    until_reason(world, &second, "WaitingForCapacity").await?;
    until_phase(world, &it, "Degraded").await?;
    delete(world, &second).await?;
    delete(world, &first).await?;
    until_phase(world, &it, "Ready").await
}
