//! What gangs go through. Three members of three GPUs need both machines of four and leave one GPU on each.

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use warp_testkit::fault::world::World;

use super::{annotate_node, behaves, delete, until_phase, until_reason, workload};

/// A gang of two that needs both large machines.
async fn gang(world: &World, spec: Value) -> Result<Value> {
    let mut it = workload("g", json!({"replicas": 2, "gpuCount": 3}));
    for (field, value) in spec.as_object().into_iter().flatten() {
        it["spec"][field] = value.clone();
    }
    world.create(it.clone()).await?;
    Ok(it)
}

/// The pods of a rank, any attempt.
async fn members(world: &World, rank: &str) -> Result<Vec<Value>> {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    let of = format!("batch.kubernetes.io/job-completion-index={rank}");
    let found = pods.list(&ListParams::default().labels(&of)).await?;
    let named = found.iter().map(|pod| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod.name_any(), "namespace": "default"}})
    });
    Ok(named.collect())
}

pub(super) async fn starts_together_and_ends(world: &World) -> Result<()> {
    let it = gang(world, json!({})).await?;
    until_phase(world, &it, "Succeeded").await
}

pub(super) async fn is_tried_again_when_a_member_fails(world: &World) -> Result<()> {
    let it = gang(
        world,
        json!({"podTemplate": behaves(json!({"run-time": "15m"}))}),
    )
    .await?;
    until_phase(world, &it, "Running").await?;
    for pod in members(world, "1").await? {
        let fails = json!({"metadata": {"annotations": {
            "sim.gpu.warp.dev/exit-code": "7", "sim.gpu.warp.dev/run-time": "1s"}}});
        world.patch(&pod, fails).await?;
    }
    world
        .until(&it, "running once more", |object| {
            object.is_some_and(|object| {
                object["status"]["retryCount"] == 1 && object["status"]["phase"] == "Running"
            })
        })
        .await?;
    until_phase(world, &it, "Succeeded").await
}

pub(super) async fn is_suspended_as_it_starts_and_resumed(world: &World) -> Result<()> {
    let it = gang(
        world,
        json!({"podTemplate": behaves(json!({"pull-time": "5m", "run-time": "15m"}))}),
    )
    .await?;
    world
        .until(&it, "placed", |object| {
            object.is_some_and(|object| object["status"]["assignedNodes"].is_array())
        })
        .await?;
    world.patch(&it, json!({"spec": {"suspend": true}})).await?;
    until_reason(world, &it, "Suspended").await?;
    world
        .patch(&it, json!({"spec": {"suspend": false}}))
        .await?;
    until_phase(world, &it, "Succeeded").await
}

/// One member's machine is lost: the gang goes elsewhere whole, when there is room.
pub(super) async fn loses_a_node_of_one_member(world: &World) -> Result<()> {
    let it = gang(
        world,
        json!({"gpuCount": 2, "schedulingStrategy": "bestFit",
            "podTemplate": behaves(json!({"run-time": "20m"}))}),
    )
    .await?;
    until_phase(world, &it, "Running").await?;
    let object = world.api_of(&it)?.get("g").await?;
    let nodes = object.data["status"]["assignedNodes"].as_array();
    let node = nodes.and_then(|nodes| nodes[0]["name"].as_str());
    let node = node.unwrap_or_default().to_owned();
    annotate_node(world, &node, "node-lost", "true").await?;
    world
        .until(&it, "running elsewhere", |object| {
            object.is_some_and(|object| {
                object["status"]["disruptions"] == 1 && object["status"]["phase"] == "Running"
            })
        })
        .await?;
    annotate_node(world, &node, "node-lost", "false").await?;
    until_phase(world, &it, "Succeeded").await
}

/// A gang that is too large waits whole, and another may have the room.
pub(super) async fn waits_whole_until_there_is_room(world: &World) -> Result<()> {
    let first = workload(
        "w",
        json!({"gpuCount": 4, "podTemplate": behaves(json!({"run-time": "15m"}))}),
    );
    world.create(first.clone()).await?;
    until_phase(world, &first, "Running").await?;
    let it = gang(world, json!({})).await?;
    until_reason(world, &it, "WaitingForCapacity").await?;
    delete(world, &first).await?;
    until_phase(world, &it, "Succeeded").await
}

/// One that is elastic starts with the members there is room for.
pub(super) async fn starts_with_fewer_instead_of_waiting(world: &World) -> Result<()> {
    let first = workload(
        "w",
        json!({"gpuCount": 4, "podTemplate": behaves(json!({"run-time": "2h"}))}),
    );
    world.create(first.clone()).await?;
    until_phase(world, &first, "Running").await?;
    let it = gang(world, json!({"minReplicas": 1})).await?;
    world
        .until(&it, "one member runs", |object| {
            object.is_some_and(|object| object["status"]["ready"] == "1/1")
        })
        .await?;
    until_phase(world, &it, "Succeeded").await?;
    delete(world, &first).await
}

/// The machine of one member is lost, and there is no other: the rest of an elastic gang goes on without it.
pub(super) async fn goes_on_with_fewer_when_a_node_is_lost(world: &World) -> Result<()> {
    let it = gang(
        world,
        json!({"minReplicas": 1, "podTemplate": behaves(json!({"run-time": "20m"}))}),
    )
    .await?;
    world
        .until(&it, "both members run", |object| {
            object.is_some_and(|object| object["status"]["ready"] == "2/2")
        })
        .await?;
    let object = world.api_of(&it)?.get("g").await?;
    let nodes = object.data["status"]["assignedNodes"].as_array();
    let node = nodes.and_then(|nodes| nodes[0]["name"].as_str());
    let node = node.unwrap_or_default().to_owned();
    annotate_node(world, &node, "node-lost", "true").await?;
    world
        .until(&it, "running with one", |object| {
            object.is_some_and(|object| {
                object["status"]["disruptions"] == 1 && object["status"]["ready"] == "1/1"
            })
        })
        .await?;
    annotate_node(world, &node, "node-lost", "false").await?;
    until_phase(world, &it, "Succeeded").await
}

pub(super) async fn is_deleted_as_it_starts(world: &World) -> Result<()> {
    let it = gang(
        world,
        json!({"podTemplate": behaves(json!({"run-time": "forever"}))}),
    )
    .await?;
    world
        .until(&it, "placed", |object| {
            object.is_some_and(|object| object["status"]["assignedNodes"].is_array())
        })
        .await?;
    delete(world, &it).await
}
