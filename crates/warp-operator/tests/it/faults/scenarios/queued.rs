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

/// A PyTorchJob whose controller is this script: it says that the object is suspended, makes and deletes its pods.
fn pytorch_job(name: &str, priority: &str) -> Value {
    let template = json!({
        "metadata": {"annotations": {"sim.gpu.warp.dev/run-time": "forever"}},
        "spec": {"restartPolicy": "Never", "containers": [{
            "name": "main", "image": "i:1", "resources": {"limits": {"nvidia.com/gpu": "2"}},
        }]},
    });
    json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": {
            "name": name, "namespace": "default",
            "labels": {"gpu.warp.dev/queue": "true"},
            "annotations": {"gpu.warp.dev/priority": priority},
        },
        "spec": {"runPolicy": {"suspend": true}, "pytorchReplicaSpecs": {
            "Master": {"replicas": 1, "template": template}, "Worker": {"replicas": 1, "template": template},
        }},
        "status": {"conditions": [{"type": "Suspended", "status": "True"}]},
    })
}

async fn install(world: &World) -> Result<()> {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "pytorchjobs.kubeflow.org"},
        "spec": {
            "group": "kubeflow.org", "scope": "Namespaced",
            "names": {
                "kind": "PyTorchJob", "plural": "pytorchjobs", "singular": "pytorchjob", "listKind": "PyTorchJobList",
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": any, "status": any}}},
            }],
        },
    });
    world.create(definition.clone()).await?;
    world
        .until(&definition, "established", |object| {
            let conditions = object.map(|object| object["status"]["conditions"].clone());
            let conditions = conditions.as_ref().and_then(Value::as_array).cloned();
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|found| found["type"] == "Established" && found["status"] == "True")
        })
        .await
}

/// Waits until it is resumed at its place, and makes its pods.
async fn makes_its_pods(world: &World, it: &Value, attempt: u32) -> Result<()> {
    world
        .until(it, "resumed", |object| {
            object.is_some_and(|object| object["spec"]["runPolicy"]["suspend"] == false)
        })
        .await?;
    world
        .patch(it, json!({"status": {"conditions": []}}))
        .await?;
    let name = it["metadata"]["name"].as_str().unwrap_or_default();
    let object = world.api_of(it)?.get(name).await?;
    for role in ["Master", "Worker"] {
        let mut pod = object.data["spec"]["pytorchReplicaSpecs"][role]["template"].clone();
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["namespace"] = json!("default");
        pod["metadata"]["name"] = json!(pod_name(name, role, attempt));
        world.create(pod.clone()).await?;
    }
    for role in ["Master", "Worker"] {
        let pod = pod_of(name, role, attempt);
        world
            .until(&pod, "running", |pod| {
                pod.is_some_and(|pod| pod["status"]["phase"] == "Running")
            })
            .await?;
    }
    Ok(())
}

fn pod_name(job: &str, role: &str, attempt: u32) -> String {
    format!("{job}-{}-{attempt}", role.to_lowercase())
}

fn pod_of(job: &str, role: &str, attempt: u32) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod_name(job, role, attempt), "namespace": "default"}})
}

async fn deletes_its_pods(world: &World, it: &Value, attempt: u32) -> Result<()> {
    let name = it["metadata"]["name"].as_str().unwrap_or_default();
    for role in ["Master", "Worker"] {
        delete(world, &pod_of(name, role, attempt)).await?;
    }
    Ok(())
}

/// A kind whose CRD comes when everything runs: placed, suspended for what is more urgent, and placed again.
pub(super) async fn of_another_kind_makes_room_and_runs_again(world: &World) -> Result<()> {
    install(world).await?;
    let low = pytorch_job("low", "low");
    world.create(low.clone()).await?;
    makes_its_pods(world, &low, 0).await?;
    world.pass(Duration::from_mins(3)).await;
    let it = workload("w", json!({"gpuCount": 2, "priority": "high"}));
    submit(world, &it).await?;
    world
        .until(&low, "suspended", |object| {
            object.is_some_and(|object| object["spec"]["runPolicy"]["suspend"] == true)
        })
        .await?;
    deletes_its_pods(world, &low, 0).await?;
    let suspended = json!([{"type": "Suspended", "status": "True"}]);
    world
        .patch(&low, json!({"status": {"conditions": suspended}}))
        .await?;
    until_phase(world, &it, "Succeeded").await?;
    makes_its_pods(world, &low, 1).await?;
    let ended = json!([{"type": "Succeeded", "status": "True"}]);
    world
        .patch(&low, json!({"status": {"conditions": ended}}))
        .await?;
    deletes_its_pods(world, &low, 1).await
}
