//! What Jobs of others go through in the queue.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use warp_testkit::fault::world::World;

use super::{delete, submit, until_phase, workload};

/// A Job in the queue: so many pods of so many GPUs, each of which runs for that long.
fn job(name: &str, pods: u32, gpus: u32, runs: &str, priority: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": name, "namespace": "default",
            "labels": {"gpu.warp.dev/queue": "true"},
            "annotations": {"gpu.warp.dev/priority": priority},
        },
        "spec": {
            "suspend": true, "parallelism": pods, "completions": pods, "backoffLimit": 0,
            "template": {
                "metadata": {"annotations": {"sim.gpu.warp.dev/run-time": runs}},
                "spec": {"restartPolicy": "Never", "containers": [{
                    "name": "main", "image": "i:1",
                    "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}},
                }]},
            },
        },
    })
}

async fn until_reason(world: &World, job: &Value, reason: &str) -> Result<()> {
    world
        .until(job, reason, |object| {
            object.is_some_and(|object| {
                object["metadata"]["annotations"]["gpu.warp.dev/queue-reason"] == reason
            })
        })
        .await
}

async fn until_complete(world: &World, job: &Value) -> Result<()> {
    world
        .until(job, "complete", |object| {
            let conditions = object.map(|object| object["status"]["conditions"].clone());
            let conditions = conditions.as_ref().and_then(Value::as_array).cloned();
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|found| found["type"] == "Complete" && found["status"] == "True")
        })
        .await
}

/// One after the other, a workload between them.
pub(super) async fn waits_its_turn_among_workloads(world: &World) -> Result<()> {
    let first = job("first", 1, 4, "10m", "normal");
    submit(world, &first).await?;
    until_reason(world, &first, "Placed").await?;
    let it = workload("w", json!({"gpuCount": 4}));
    submit(world, &it).await?;
    until_phase(world, &it, "Pending").await?;
    world.pass(Duration::from_secs(2)).await;
    let last = job("last", 1, 4, "1m", "normal");
    submit(world, &last).await?;
    until_complete(world, &first).await?;
    until_phase(world, &it, "Succeeded").await?;
    until_complete(world, &last).await
}

pub(super) async fn starts_its_pods_together(world: &World) -> Result<()> {
    let it = job("wide", 2, 3, "5m", "normal");
    submit(world, &it).await?;
    until_complete(world, &it).await
}

pub(super) async fn makes_room_and_runs_again(world: &World) -> Result<()> {
    let low = job("low", 1, 4, "15m", "low");
    submit(world, &low).await?;
    until_reason(world, &low, "Placed").await?;
    // Longer than the least time it may run.
    world.pass(Duration::from_mins(3)).await;
    let it = workload("w", json!({"gpuCount": 2, "priority": "high"}));
    submit(world, &it).await?;
    until_phase(world, &it, "Succeeded").await?;
    until_complete(world, &low).await
}

pub(super) async fn goes_while_it_waits(world: &World) -> Result<()> {
    let first = job("first", 1, 4, "10m", "normal");
    submit(world, &first).await?;
    until_reason(world, &first, "Placed").await?;
    let it = job("gone", 1, 4, "1m", "normal");
    submit(world, &it).await?;
    until_reason(world, &it, "WaitingForCapacity").await?;
    delete(world, &it).await?;
    until_complete(world, &first).await
}
