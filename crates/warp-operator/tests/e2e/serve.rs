//! A service is served, changed and deleted, and what its copies hold is not given away.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Node;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use warp_testkit::{Behaviour, NodeShape, wait_for, wait_gone};

use super::others;
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

const KEDA: (&str, &str) = ("keda.sh", "v1alpha1");
const SCALED_OBJECT: (&str, &str) = ("ScaledObject", "scaledobjects");

/// KEDA's kind; nothing acts on it.
pub(super) async fn install_keda(world: &World) -> Result<()> {
    others::install_kind(world, KEDA, SCALED_OBJECT).await
}

pub(super) async fn an_autoscaler_of_others_is_told_and_its_number_carried_out(
    world: &World,
) -> Result<()> {
    let scene = world.scene("serve-scaled").await?;
    let api = services(world, &scene.namespace);
    let hpas: Api<HorizontalPodAutoscaler> =
        Api::namespaced(world.client.clone(), &scene.namespace);
    let kind = GroupVersionKind::gvk(KEDA.0, KEDA.1, SCALED_OBJECT.0);
    let kind = ApiResource::from_gvk_with_plural(&kind, SCALED_OBJECT.1);
    let scaled: Api<DynamicObject> =
        Api::namespaced_with(world.client.clone(), &scene.namespace, &kind);
    let change = async |scaling: Value| {
        let patch = Patch::Merge(json!({"spec": {"scaling": scaling}}));
        api.patch("chat", &PatchParams::default(), &patch).await
    };
    // Without GPUs: the number is what counts here.
    let asked = json!({
        "gpuCount": 0, "replicas": 1, "scaling": {"by": "hpa", "min": 1, "max": 3, "target": 8},
    });
    api.create(&PostParams::default(), &manifest("chat", &asked)?)
        .await?;
    let most = |hpa: &HorizontalPodAutoscaler| hpa.spec.as_ref().map(|spec| spec.max_replicas);
    wait_for(&hpas, "chat", "told", DEADLINE, |hpa| {
        hpa.and_then(most) == Some(3)
    })
    .await?;
    change(json!({"max": 4})).await?;
    wait_for(&hpas, "chat", "told the change", DEADLINE, |hpa| {
        hpa.and_then(most) == Some(4)
    })
    .await?;
    // What an autoscaler does.
    let scale = Patch::Merge(json!({"spec": {"replicas": 2}}));
    api.patch_scale("chat", &PatchParams::default(), &scale)
        .await?;
    until(&api, "chat", "two copies wanted", |object| {
        object.data["status"]["replicas"] == 2
    })
    .await?;
    let prometheus = "http://prometheus.monitoring:9090";
    change(json!({"by": "keda", "prometheus": prometheus})).await?;
    wait_gone(&hpas, "chat", DEADLINE).await?;
    let told = |most: i32| {
        move |object: Option<&DynamicObject>| {
            object.is_some_and(|object| object.data["spec"]["maxReplicaCount"] == most)
        }
    };
    wait_for(&scaled, "chat", "told", DEADLINE, told(4)).await?;
    change(json!({"max": 5})).await?;
    wait_for(&scaled, "chat", "told the change", DEADLINE, told(5)).await?;
    change(json!({"by": "warp", "prometheus": null})).await?;
    wait_gone(&scaled, "chat", DEADLINE).await?;
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
    let before = api.get("large").await?;
    let before = before.data["status"]["groups"][0]["restarts"].as_i64();
    pods.delete("large-0-w-1", &DeleteParams::default()).await?;
    wait_for(&pods, "large-0-0", "another leader", DEADLINE, |pod| {
        pod.is_some_and(|pod| pod.uid() != leader)
    })
    .await?;
    until(&api, "large", "started again", |object| {
        let restarts = object.data["status"]["groups"][0]["restarts"].as_i64();
        phase(object) == "Ready" && restarts > before
    })
    .await?;
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

/// One GPU each: a model no other scenario asks for, and one whose label comes later.
pub(super) fn labelled_later() -> [NodeShape; 2] {
    [
        NodeShape::nvidia("h800", "NVIDIA-H800", 81_559, "hopper", 1),
        NodeShape::nvidia("late", "Prototype-7", 81_559, "hopper", 1),
    ]
}

pub(super) async fn a_node_labelled_later_serves_and_one_that_is_closed_serves_on(
    world: &World,
) -> Result<()> {
    let scene = world.scene("serve-late").await?;
    let api = services(world, &scene.namespace);
    let nodes: Api<Node> = Api::all(world.client.clone());
    let params = PatchParams::default();
    let asked = json!({"replicas": 2, "gpu": {"models": ["H800"]}});
    api.create(&PostParams::default(), &manifest("chat", &asked)?)
        .await?;
    until(&api, "chat", "one copy, and one that waits", |object| {
        object.data["status"]["readyReplicas"] == 1 && reason(object) == "WaitingForCapacity"
    })
    .await?;
    let label = json!({"metadata": {"labels": {"nvidia.com/gpu.product": "NVIDIA-H800-NVL"}}});
    nodes.patch("late-0", &params, &Patch::Merge(label)).await?;
    until(&api, "chat", "both copies", |object| {
        phase(object) == "Ready" && object.data["status"]["readyReplicas"] == 2
    })
    .await?;
    let close = |closed: bool| Patch::Merge(json!({"spec": {"unschedulable": closed}}));
    for name in ["h800-0", "late-0"] {
        nodes.patch(name, &params, &close(true)).await?;
    }
    // What is served is not refused for that, and stops when it is told to.
    let note = json!({"metadata": {"annotations": {"example.com/note": "looked at again"}}});
    api.patch("chat", &params, &Patch::Merge(note)).await?;
    let stop = json!({"spec": {"replicas": 0}});
    let stopped = api.patch("chat", &params, &Patch::Merge(stop)).await?;
    let seen = until(&api, "chat", "stopped", |object| {
        let status = &object.data["status"];
        let seen = status["observedGeneration"].as_i64() == stopped.metadata.generation;
        seen && phase(object) == "Stopped"
    })
    .await?;
    ensure!(reason(&seen) == "Stopped", "{:?}", seen.data["status"]);
    for name in ["h800-0", "late-0"] {
        nodes.patch(name, &params, &close(false)).await?;
    }
    api.delete("chat", &DeleteParams::default()).await?;
    wait_gone(&api, "chat", DEADLINE).await?;
    scene.until_empty().await
}

/// One GPU of one vendor and two of another, of models no other scenario asks for.
pub(super) fn two_vendors() -> [NodeShape; 2] {
    [
        NodeShape::cpu()
            .named("mi210")
            .resource("amd.com/gpu", "1")
            .label("amd.com/gpu.product-name", "AMD_Instinct_MI210"),
        NodeShape::nvidia("gh200", "NVIDIA-GH200-480GB", 97_871, "hopper", 2),
    ]
}

pub(super) async fn a_service_on_two_vendors_prefers_the_first_and_falls_over(
    world: &World,
) -> Result<()> {
    let scene = world.scene("serve-mixed").await?;
    let api = services(world, &scene.namespace);
    let asked = json!({"accelerators": [
        {"name": "amd", "gpu": {"models": ["MI210"]}},
        {"name": "nvidia", "gpu": {"models": ["GH200"]}, "gpuCount": 2},
    ]});
    api.create(&PostParams::default(), &manifest("mixed", &asked)?)
        .await?;
    let served = |amd: i64, nvidia: i64| {
        move |object: &DynamicObject| {
            let pools = &object.data["status"]["accelerators"];
            phase(object) == "Ready"
                && pools[0]["readyReplicas"] == amd
                && pools[1]["readyReplicas"] == nvidia
        }
    };
    until(&api, "mixed", "a copy on the first", served(1, 0)).await?;
    let scale = |copies: u32| Patch::Merge(json!({"spec": {"replicas": copies}}));
    let params = PatchParams::default();
    api.patch("mixed", &params, &scale(2)).await?;
    let both = until(&api, "mixed", "one on each", served(1, 1)).await?;
    ensure!(
        text(&both, "/status/message") == "2 of 2 copies answer (1 on amd, 1 on nvidia)",
        "{:?}",
        both.data["status"]
    );
    let label = ListParams::default().labels("gpu.warp.dev/inference-service=mixed");
    let pods = scene.pods().list(&label).await?;
    let mut places: Vec<String> = pods
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
        .collect();
    places.sort();
    ensure!(places == ["gh200-0", "mi210-0"], "{places:?}");
    // A third waits, and says for what; with one fewer again the first pool keeps its copy.
    api.patch("mixed", &params, &scale(3)).await?;
    let waits = until(&api, "mixed", "a copy that waits", |object| {
        reason(object) == "WaitingForCapacity"
    })
    .await?;
    let message = text(&waits, "/status/message");
    ensure!(
        message.contains("copy 3 of 3 waits for 1 amd MI210 GPU"),
        "{message}"
    );
    api.patch("mixed", &params, &scale(1)).await?;
    until(&api, "mixed", "the first alone", served(1, 0)).await?;
    let clash = json!({"gpuCount": 2, "accelerators": asked["accelerators"]});
    let refused = api
        .create(&PostParams::default(), &manifest("clash", &clash)?)
        .await;
    let told = refused.err().map(|error| error.to_string());
    ensure!(
        told.as_ref()
            .is_some_and(|told| told.contains("given in each of them")),
        "{told:?}"
    );
    // Without pools again: what serves goes when the other does.
    let plain = json!({"spec": {"accelerators": null, "gpu": {"models": ["GH200"]}}});
    let changed = api.patch("mixed", &params, &Patch::Merge(plain)).await?;
    until(&api, "mixed", "served by one Deployment", |object| {
        let status = &object.data["status"];
        phase(object) == "Ready"
            && status["observedGeneration"].as_i64() == changed.metadata.generation
            && status["updatedReplicas"] == 1
    })
    .await?;
    api.delete("mixed", &DeleteParams::default()).await?;
    wait_gone(&api, "mixed", DEADLINE).await?;
    scene.until_empty().await
}
