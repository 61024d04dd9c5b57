//! A service is served, changed and deleted, and what its copies hold is not given away.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use warp_testkit::{Behaviour, NodeShape, wait_for, wait_gone};

use super::world::{DEADLINE, World, phase, reason, spec, text, with};

fn services(world: &World, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("gpu.warp.dev", "v1alpha1", "InferenceService");
    let resource = ApiResource::from_gvk_with_plural(&kind, "inferenceservices");
    Api::namespaced_with(world.client.clone(), namespace, &resource)
}

fn manifest(name: &str, more: &Value) -> Result<DynamicObject> {
    let mut spec = json!({
        "model": {"source": "demo/tiny"},
        "engine": {"type": "simulated", "env": Behaviour::hang().env()},
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    Ok(serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "InferenceService",
        "metadata": {"name": name}, "spec": spec,
    }))?)
}

async fn until(
    api: &Api<DynamicObject>,
    name: &str,
    what: &str,
    holds: impl Fn(&DynamicObject) -> bool + Send + Sync,
) -> Result<DynamicObject> {
    let seen = wait_for(api, name, what, DEADLINE, |object| {
        object.is_some_and(&holds)
    })
    .await?;
    seen.context("a service that was there is missing")
}

pub(super) async fn a_service_is_served_changed_and_deleted(world: &World) -> Result<()> {
    let scene = world.scene("serve").await?;
    let api = services(world, &scene.namespace);
    // Of a model of which there is plenty: others count on the rest being theirs.
    let asked = json!({"gpuCount": 2, "replicas": 2, "gpu": {"models": ["H100"]}});
    let made = manifest("chat", &asked)?;
    api.create(&PostParams::default(), &made).await?;
    let ready = until(&api, "chat", "ready", |object| phase(object) == "Ready").await?;
    ensure!(
        ready.data["status"]["readyReplicas"] == 2,
        "{:?}",
        ready.data
    );
    let steps = ready.data["status"]["timeline"].as_array().cloned();
    ensure!(
        steps.is_some_and(|steps| steps.len() == 4),
        "{:?}",
        ready.data
    );
    let change = json!({"spec": {"engine": {"args": {"max-num-seqs": "8"}}}});
    let changed = api
        .patch("chat", &PatchParams::default(), &Patch::Merge(change))
        .await?;
    let served = until(&api, "chat", "the new spec served", |object| {
        let status = &object.data["status"];
        phase(object) == "Ready"
            && status["observedGeneration"].as_i64() == changed.metadata.generation
            && status["updatedReplicas"] == 2
    })
    .await?;
    ensure!(served.data["status"]["readyReplicas"] == 2);
    let table = world
        .cluster
        .kubectl()
        .run(&["-n", &scene.namespace, "get", "isvc", "chat"])
        .await?;
    ensure!(
        table.contains("demo/tiny") && table.contains("Ready"),
        "{table}"
    );
    api.delete("chat", &DeleteParams::default()).await?;
    wait_gone(&api, "chat", DEADLINE).await?;
    scene.until_empty().await
}

pub(super) async fn a_service_that_cannot_be_says_why(world: &World) -> Result<()> {
    let scene = world.scene("serve-bad").await?;
    let api = services(world, &scene.namespace);
    let wrong = json!({"engine": {"type": "vllm", "args": {"max-modl-len": "1"}}});
    let made = manifest("wrong", &wrong)?;
    api.create(&PostParams::default(), &made).await?;
    let seen = until(&api, "wrong", "refused", |object| {
        phase(object) == "Refused"
    })
    .await?;
    let message = seen.data["status"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("did you mean max-model-len?"), "{message}");
    for (name, spec, part) in [
        (
            "zero",
            json!({"scaling": {"min": 0, "max": 2, "target": 1}}),
            "gateway",
        ),
        (
            "split",
            json!({"gpuCount": 3, "parallelism": {"tensor": 2}}),
            "tensor × pipeline × data",
        ),
        (
            "custom",
            json!({"engine": {"type": "custom"}}),
            "engine.image",
        ),
    ] {
        let refused = api
            .create(&PostParams::default(), &manifest(name, &spec)?)
            .await;
        let text = refused
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        ensure!(text.contains(part), "{name}: {text}");
    }
    api.delete("wrong", &DeleteParams::default()).await?;
    Ok(())
}

/// Two GPUs of a model no other scenario asks for: for copies and workloads in one line.
pub(super) fn contested() -> NodeShape {
    NodeShape::nvidia("l40", "NVIDIA-L40", 46_068, "ada-lovelace", 2)
}

pub(super) async fn copies_and_workloads_wait_in_one_line(world: &World) -> Result<()> {
    let scene = world.scene("serve-line").await?;
    let api = services(world, &scene.namespace);
    let model = json!({"gpu": {"models": ["L40"]}});
    let work = |more: Value| with(with(spec(1, &Behaviour::hang()), model.clone()), more);
    scene
        .submit("goes", work(json!({"priority": "low"})))
        .await?;
    scene.until_phase("goes", "Running").await?;
    // One copy has a GPU of its own, the other takes that of work of lower priority.
    // An engine drains: it does not end in the moment it is asked to, and who follows it is there by then.
    let drains = Behaviour::hang().stop_after(Duration::from_secs(2)).env();
    let engine = json!({"type": "simulated", "env": drains});
    let asked = with(json!({"replicas": 2, "engine": engine}), model.clone());
    let made = manifest("chat", &asked)?;
    api.create(&PostParams::default(), &made).await?;
    until(&api, "chat", "ready", |object| phase(object) == "Ready").await?;
    let taken = scene.until_phase("goes", "Pending").await?;
    ensure!(
        taken.data["status"]["disruptions"] == 1,
        "{:?}",
        taken.data["status"]
    );
    let label = ListParams::default().labels("gpu.warp.dev/inference-service=chat");
    for pod in scene.pods().list(&label).await? {
        let why = pod.annotations().get("gpu.warp.dev/placement");
        ensure!(why.is_some(), "{:?}", pod.metadata.annotations);
        let gates = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.scheduling_gates.as_ref());
        ensure!(gates.is_none_or(Vec::is_empty), "{gates:?}");
    }
    // Workloads do not take what is served, whatever their priority; a third copy waits and says why.
    scene
        .submit("urgent", work(json!({"priority": "high"})))
        .await?;
    scene.until_reason("urgent", "WaitingForCapacity").await?;
    let more = json!({"spec": {"replicas": 3}});
    api.patch("chat", &PatchParams::default(), &Patch::Merge(more))
        .await?;
    let waits = until(&api, "chat", "a copy that waits", |object| {
        reason(object) == "WaitingForCapacity"
    })
    .await?;
    let message = text(&waits, "/status/message");
    ensure!(
        message.contains("2 of 3 copies answer; copy 3 of 3 waits for 1 nvidia L40 GPU: "),
        "{message}"
    );
    // A changed spec is served by the GPUs there are.
    let change = json!({"spec": {"replicas": 2, "engine": {"args": {"max-num-seqs": "8"}}}});
    let changed = api
        .patch("chat", &PatchParams::default(), &Patch::Merge(change))
        .await?;
    until(&api, "chat", "the new spec served", |object| {
        let status = &object.data["status"];
        phase(object) == "Ready"
            && status["observedGeneration"].as_i64() == changed.metadata.generation
            && status["updatedReplicas"] == 2
    })
    .await?;
    ensure!(phase(&scene.get("urgent").await?) == "Pending");
    api.delete("chat", &DeleteParams::default()).await?;
    for name in ["urgent", "goes"] {
        scene.until_phase(name, "Running").await?;
        scene.delete(name).await?;
    }
    Ok(())
}

/// One GPU each, of a model no other scenario asks for: a copy of two spans both.
pub(super) fn spanned() -> NodeShape {
    NodeShape::nvidia("rtx3090", "NVIDIA-GeForce-RTX-3090", 24_576, "ampere", 1)
}

pub(super) async fn a_copy_that_spans_nodes_is_placed_and_started_again_as_a_whole(
    world: &World,
) -> Result<()> {
    let scene = world.scene("serve-span").await?;
    let api = services(world, &scene.namespace);
    let pods = scene.pods();
    let asked = json!({"gpu": {"models": ["RTX-3090"]}, "parallelism": {"pipeline": 2}});
    let made = manifest("large", &asked)?;
    api.create(&PostParams::default(), &made).await?;
    // The leader's answer may be heard of before its worker's node is.
    let ready = until(&api, "large", "ready on two nodes", |object| {
        let nodes = object.data["status"]["groups"][0]["nodes"].as_array();
        phase(object) == "Ready" && nodes.is_some_and(|nodes| nodes.len() == 2)
    })
    .await?;
    let status = &ready.data["status"];
    ensure!(status["nodesPerReplica"] == 2, "{status}");
    let nodes = status["groups"][0]["nodes"].as_array().cloned();
    let nodes = nodes.unwrap_or_default();
    ensure!(nodes.len() == 2 && nodes[0] != nodes[1], "{status}");
    // No node is left: neither pod of a second copy gets one.
    let scale = |copies: u32| Patch::Merge(json!({"spec": {"replicas": copies}}));
    let params = PatchParams::default();
    api.patch("large", &params, &scale(2)).await?;
    until(&api, "large", "a copy that waits", |object| {
        reason(object) == "WaitingForCapacity"
    })
    .await?;
    let second = ListParams::default().labels("gpu.warp.dev/serving-copy=1");
    for pod in pods.list(&second).await? {
        let spec = pod.spec.as_ref();
        let gates = spec.and_then(|spec| spec.scheduling_gates.as_ref());
        ensure!(gates.is_some_and(|gates| !gates.is_empty()), "{gates:?}");
    }
    api.patch("large", &params, &scale(1)).await?;
    wait_gone(&pods, "large-1-0", DEADLINE).await?;
    // One of it is lost: the other is started again with the one that takes its place.
    let leader = pods.get("large-0-0").await?.uid();
    pods.delete("large-0-w-1", &DeleteParams::default()).await?;
    let again = until(&api, "large", "started again", |object| {
        phase(object) == "Ready" && object.data["status"]["groups"][0]["restarts"] == 1
    })
    .await?;
    ensure!(
        pods.get("large-0-0").await?.uid() != leader,
        "{:?}",
        again.data["status"]
    );
    // On one node it is a Deployment, and back.
    for (parallelism, kept) in [
        (json!(null), "Deployment"),
        (json!({"pipeline": 2}), "sets"),
    ] {
        let change = json!({"spec": {"parallelism": parallelism}});
        let changed = api.patch("large", &params, &Patch::Merge(change)).await?;
        until(&api, "large", &format!("served by {kept}"), |object| {
            let status = &object.data["status"];
            phase(object) == "Ready"
                && status["observedGeneration"].as_i64() == changed.metadata.generation
                && status["updatedReplicas"] == 1
        })
        .await?;
    }
    api.delete("large", &DeleteParams::default()).await?;
    wait_gone(&api, "large", DEADLINE).await?;
    scene.until_empty().await
}
