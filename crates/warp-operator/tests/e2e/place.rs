//! Where workloads go.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use warp_testkit::behaviour::Kind;
use warp_testkit::{Behaviour, NodeShape};

use super::run::{check_pinned, claim_on};
use super::world::{SYSTEM, World, condition, message, phase, reason, retries, spec, text, with};

/// A node of a model no other scenario asks for, with a price per GPU and hour.
pub(super) fn priced(name: &str, price: &str) -> NodeShape {
    NodeShape::nvidia(name, "NVIDIA-L40S", 46_068, "ada-lovelace", 4)
        .label("gpu.warp.dev/gpu-hour-price", price)
}

/// A node of another provider, with a model no other scenario asks for.
pub(super) fn docker() -> NodeShape {
    NodeShape::nvidia("docker", "Tesla-T4", 15_360, "turing", 2)
        .label("gpu.warp.dev/provider", "docker")
}

/// A node of its own provider, with a price and GPUs nobody else asks for.
pub(super) fn compared(provider: &str, price: &str) -> NodeShape {
    NodeShape::cpu()
        .named(provider)
        .resource("amd.com/gpu", "2")
        .label("amd.com/gpu.product-name", "AMD_Instinct_MI325X")
        .label("gpu.warp.dev/provider", provider)
        .label("gpu.warp.dev/gpu-hour-price", price)
}

fn node_of(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

pub(super) async fn a_gpu_model_asked_for_is_the_one_used(world: &World) -> Result<()> {
    let scene = world.scene("model").await?;
    let amd = json!({"gpu": {"models": ["MI300X"]}});
    scene
        .submit("amd", with(spec(4, &Behaviour::succeed()), amd))
        .await?;
    let memory = json!({"gpu": {"minMemory": "60Gi"}});
    scene
        .submit("big", with(spec(1, &Behaviour::succeed()), memory))
        .await?;
    scene.until_phase("amd", "Succeeded").await?;
    scene.until_phase("big", "Succeeded").await?;
    let pod = scene.pods_of("amd").await?.remove(0);
    ensure!(node_of(&pod) == "mi300x-0");
    let container = serde_json::to_value(&pod.spec.context("no spec")?.containers[0])?;
    ensure!(container["resources"]["limits"] == json!({"amd.com/gpu": "4"}));
    let pod = scene.pods_of("big").await?.remove(0);
    ensure!(node_of(&pod).starts_with("h100-"), "{}", node_of(&pod));
    Ok(())
}

/// Beside the operator, which runs on.
pub(super) async fn a_model_an_administrator_adds_is_known_at_once(world: &World) -> Result<()> {
    let scene = world.scene("added").await?;
    let asked = json!({"gpu": {"models": ["house-special"]}});
    let it = with(spec(1, &Behaviour::succeed()), asked);
    scene.submit("odd", it).await?;
    scene
        .until("odd", "waiting for a GPU nobody knows", |object| {
            reason(object) == "NoSuchGpu"
        })
        .await?;
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), SYSTEM);
    let added = serde_json::from_value(json!({
        "metadata": {"name": "warp-gpus"},
        "data": {
            "L40S": "{vendor: nvidia, memory: 48Gi, aliases: [house-special]}",
            "a-mistake": "vendor: nobody",
        },
    }))?;
    maps.create(&PostParams::default(), &added).await?;
    scene.until_phase("odd", "Succeeded").await?;
    let pod = scene.pods_of("odd").await?.remove(0);
    let node = node_of(&pod);
    let nodes: Api<Node> = Api::all(world.client.clone());
    let labels = nodes.get(node).await?.metadata.labels.unwrap_or_default();
    let product = labels.get("nvidia.com/gpu.product");
    ensure!(
        product.is_some_and(|name| name == "NVIDIA-L40S"),
        "on {node}"
    );
    maps.delete("warp-gpus", &DeleteParams::default()).await?;
    Ok(())
}

pub(super) async fn every_term_of_the_users_affinity_is_pinned(world: &World) -> Result<()> {
    let scene = world.scene("affinity").await?;
    let term = |node: &str| {
        json!({"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]},
        ]})
    };
    let template = json!({
        "modelName": "scenario", "gpuCount": 1,
        "podTemplate": {
            "metadata": {"labels": {"team": "research"}, "annotations": Behaviour::succeed().annotations()},
            "spec": {
                "containers": [{"name": "main", "image": "image:1"}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [term("h100-2"), term("h100-3")],
                }}},
            },
        },
    });
    scene.submit("terms", template).await?;
    let object = scene.until_phase("terms", "Succeeded").await?;
    let node = text(&object, "/status/assignedNode");
    ensure!(matches!(node, "h100-2" | "h100-3"), "placed on {node}");
    let pod = scene.pods_of("terms").await?.remove(0);
    ensure!(pod.labels().get("team").map(String::as_str) == Some("research"));
    check_pinned(&pod, node)
}

pub(super) async fn the_cheapest_node_is_chosen_when_asked(world: &World) -> Result<()> {
    let scene = world.scene("price").await?;
    let cheap = json!({"gpu": {"models": ["L40S"]}, "schedulingStrategy": "costOptimized"});
    for (name, gpus, node) in [("small", 2, "cheap-0"), ("whole", 4, "dear-0")] {
        scene
            .submit(name, with(spec(gpus, &Behaviour::hang()), cheap.clone()))
            .await?;
        let object = scene.until_phase(name, "Running").await?;
        let chosen = text(&object, "/status/assignedNode");
        ensure!(chosen == node, "{name} went to {chosen}");
    }
    Ok(())
}

pub(super) async fn providers_restrict_and_fall_back(world: &World) -> Result<()> {
    let scene = world.scene("provider").await?;
    let work = || spec(1, &Behaviour::succeed());
    let there = || with(work(), json!({"gpu": {"models": ["T4"]}}));
    let named = |name: &str, provider: &str| json!({"name": name, "annotations": {"gpu.warp.dev/provider": provider}});
    let labelled = json!({"name": "label", "labels": {"gpu.warp.dev/provider": "docker"}});
    scene.submit_with(labelled, there()).await?;
    scene
        .submit_with(named("annotation", "docker"), there())
        .await?;
    scene
        .submit_with(named("fallback", "firecracker,kubernetes"), work())
        .await?;
    scene
        .submit_with(named("nobody", "firecracker"), work())
        .await?;
    for name in ["label", "annotation"] {
        let object = scene.until_phase(name, "Succeeded").await?;
        ensure!(
            text(&object, "/status/assignedNode") == "docker-0",
            "{name}"
        );
    }
    let object = scene.until_phase("fallback", "Succeeded").await?;
    ensure!(text(&object, "/status/assignedNode") != "docker-0");
    let explained = condition(&object, "Placed", "message");
    ensure!(
        explained.contains("kubernetes"),
        "not explained: {explained}"
    );
    let object = scene.until_reason("nobody", "NoSuchProvider").await?;
    ensure!(
        message(&object).contains("firecracker"),
        "{}",
        message(&object)
    );
    ensure!(phase(&object) == "Pending");
    Ok(())
}

/// Beside the operator, which runs on.
pub(super) async fn providers_are_compared_and_limited_as_an_administrator_says(
    world: &World,
) -> Result<()> {
    let scene = world.scene("compared").await?;
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), SYSTEM);
    let rules = serde_json::from_value(json!({
        "metadata": {"name": "warp-providers"},
        "data": {"north": "{maxGpus: 1}", "south": "{startSeconds: 5}", "a-mistake": "{gpus: 1}"},
    }))?;
    maps.create(&PostParams::default(), &rules).await?;
    let any = |name: &str| json!({"name": name, "annotations": {"gpu.warp.dev/provider": "*"}});
    let it = || {
        let there = json!({"gpu": {"models": ["MI325X"]}});
        with(spec(1, &Behaviour::hang()), there)
    };
    for (name, node, words) in [
        ("first", "north-0", "of 2 providers: north with "),
        // North is cheaper and at its limit.
        (
            "second",
            "south-0",
            "limited to 1 GPUs at once, of which 1 are held",
        ),
    ] {
        scene.submit_with(any(name), it()).await?;
        let object = scene.until_phase(name, "Running").await?;
        let chosen = text(&object, "/status/assignedNode");
        let why = condition(&object, "Placed", "message");
        ensure!(chosen == node, "{name} went to {chosen}: {why}");
        ensure!(why.contains(words), "{name}: {why}");
        let provider = text(&object, "/status/recentAttempts/0/provider");
        ensure!(node.starts_with(provider), "{name}: {provider}");
        ensure!(!text(&object, "/status/recentAttempts/0/startedAt").is_empty());
    }
    maps.delete("warp-providers", &DeleteParams::default())
        .await?;
    Ok(())
}

pub(super) async fn waiting_costs_no_retry_and_priority_orders_it(world: &World) -> Result<()> {
    let scene = world.scene("queue").await?;
    let one = |priority: &str| {
        let more = json!({"gpu": {"models": ["A100-40GB"]}, "priority": priority});
        with(spec(1, &Behaviour::hang()), more)
    };
    let first = with(one("low"), json!({"preemptible": false}));
    scene.submit("first", first).await?;
    scene.until_phase("first", "Running").await?;
    for name in ["low", "normal", "high"] {
        scene.submit(name, one(name)).await?;
        let object = scene.until_reason(name, "WaitingForCapacity").await?;
        ensure!(phase(&object) == "Pending");
    }
    // It is told what would help: the cluster has other GPUs to offer.
    scene
        .until("low", "told the smallest change", |object| {
            message(object).contains("to be placed now: accept model")
        })
        .await?;
    let mut before = "first";
    for name in ["high", "normal", "low"] {
        scene.release(before, &Behaviour::succeed()).await?;
        let object = scene.until_phase(name, "Running").await?;
        ensure!(retries(&object) == 0, "waiting used a retry of {name}");
        for later in ["high", "normal", "low"]
            .iter()
            .skip_while(|n| **n != name)
            .skip(1)
        {
            let waits = scene.get(later).await?;
            ensure!(phase(&waits) == "Pending", "{later} went before its turn");
        }
        before = name;
    }
    scene.release("low", &Behaviour::succeed()).await?;
    scene.until_phase("low", "Succeeded").await?;
    Ok(())
}

/// A node of a model no other scenario asks for: to be emptied for wide work.
pub(super) fn emptied() -> NodeShape {
    NodeShape::nvidia("a30", "NVIDIA-A30", 24_576, "ampere", 2)
}

pub(super) async fn small_work_does_not_hold_wide_work_up(world: &World) -> Result<()> {
    let scene = world.scene("wide").await?;
    let ask = |gpus: u32, priority: &str| {
        // Nobody is evicted here: what runs is waited for.
        let more = json!({"gpu": {"models": ["A30"]}, "priority": priority, "preemptible": false});
        with(spec(gpus, &Behaviour::hang()), more)
    };
    for name in ["one", "two"] {
        scene.submit(name, ask(1, "low")).await?;
        scene.until_phase(name, "Running").await?;
    }
    scene.submit("wide", ask(2, "high")).await?;
    scene
        .until("wide", "told that a node is kept for it", |object| {
            message(object).contains("it is next: node a30-0 is kept for it")
        })
        .await?;
    scene.submit("small", ask(1, "low")).await?;
    scene.until_reason("small", "WaitingForCapacity").await?;
    scene.release("one", &Behaviour::succeed()).await?;
    // Its GPU is free, and small would fit.
    scene
        .until("small", "told who is before it", |object| {
            message(object).contains("1 kept for work that is before it in line")
        })
        .await?;
    scene.release("two", &Behaviour::succeed()).await?;
    scene.until_phase("wide", "Running").await?;
    ensure!(phase(&scene.get("small").await?) == "Pending");
    scene.release("wide", &Behaviour::succeed()).await?;
    scene.until_phase("small", "Running").await?;
    scene.release("small", &Behaviour::succeed()).await?;
    scene.until_phase("small", "Succeeded").await?;
    Ok(())
}

/// A node of a model no other scenario asks for: to be taken from work of lower priority.
pub(super) fn contested() -> NodeShape {
    NodeShape::nvidia("a2", "NVIDIA-A2", 15_356, "ampere", 2)
}

pub(super) async fn work_of_higher_priority_takes_the_place_of_low_work(
    world: &World,
) -> Result<()> {
    let scene = world.scene("preempt").await?;
    let ask = |gpus: u32, more: Value| {
        let model = json!({"gpu": {"models": ["A2"]}, "retryPolicy": {"maxRetries": 0}});
        with(with(spec(gpus, &Behaviour::hang()), model), more)
    };
    scene
        .submit(
            "stays",
            ask(1, json!({"priority": "low", "preemptible": false})),
        )
        .await?;
    scene
        .submit("goes", ask(1, json!({"priority": "low"})))
        .await?;
    for name in ["stays", "goes"] {
        scene.until_phase(name, "Running").await?;
    }
    scene
        .submit("urgent", ask(1, json!({"priority": "high"})))
        .await?;
    scene.until_phase("urgent", "Running").await?;
    let object = scene
        .until("goes", "taken off its node", |object| {
            object.data["status"]["disruptions"] == 1 && phase(object) == "Pending"
        })
        .await?;
    ensure!(retries(&object) == 0, "{:?}", object.data["status"]);
    ensure!(
        object.data["status"]["lostGpuSeconds"]
            .as_i64()
            .is_some_and(|lost| lost > 0),
        "{:?}",
        object.data["status"]
    );
    // Two GPUs cannot be had: one of them is held by work that does not let itself be evicted.
    scene
        .submit("wide", ask(2, json!({"priority": "high"})))
        .await?;
    scene.until_reason("wide", "WaitingForCapacity").await?;
    ensure!(phase(&scene.get("stays").await?) == "Running");
    // It goes on as soon as there is room, and nobody was evicted for work that would not have fitted.
    scene.change("wide", json!({"suspend": true})).await?;
    scene.release("urgent", &Behaviour::succeed()).await?;
    let object = scene.until_phase("goes", "Running").await?;
    ensure!(object.data["status"]["disruptions"] == 1);
    for name in ["stays", "goes"] {
        scene.release(name, &Behaviour::succeed()).await?;
        scene.until_phase(name, "Succeeded").await?;
    }
    Ok(())
}

/// A node of a model no other scenario asks for: for work of PriorityClasses.
pub(super) fn ranked() -> NodeShape {
    NodeShape::nvidia("h20", "NVIDIA-H20", 97_871, "hopper", 1)
}

async fn make_class(
    classes: &Api<PriorityClass>,
    name: &str,
    value: i32,
    policy: Option<&str>,
) -> Result<()> {
    let class = PriorityClass {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..Default::default()
        },
        value,
        preemption_policy: policy.map(str::to_owned),
        ..Default::default()
    };
    classes.create(&PostParams::default(), &class).await?;
    Ok(())
}

pub(super) async fn a_priority_class_decides_and_one_that_is_missing_is_said(
    world: &World,
) -> Result<()> {
    let scene = world.scene("ranked").await?;
    let ask = |more: Value| {
        let model = json!({"gpu": {"models": ["H20"]}});
        with(with(spec(1, &Behaviour::hang()), model), more)
    };
    scene
        .submit("goes", ask(json!({"priorityClassName": "batch-low"})))
        .await?;
    let object = scene.until_reason("goes", "InvalidSpec").await?;
    ensure!(
        message(&object).contains("PriorityClass batch-low does not exist"),
        "{}",
        message(&object)
    );
    let classes: Api<PriorityClass> = Api::all(world.client.clone());
    make_class(&classes, "batch-low", -100, None).await?;
    scene.until_phase("goes", "Running").await?;
    let pod = scene.live_pod("goes").await?;
    let class = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.priority_class_name.clone());
    ensure!(class.as_deref() == Some("batch-low"), "{class:?}");
    // One class evicts nobody, the other does.
    make_class(&classes, "batch-patient", 100, Some("Never")).await?;
    make_class(&classes, "batch-urgent", 100, None).await?;
    scene
        .submit(
            "patient",
            ask(json!({"priorityClassName": "batch-patient"})),
        )
        .await?;
    scene.until_reason("patient", "WaitingForCapacity").await?;
    ensure!(phase(&scene.get("goes").await?) == "Running");
    scene.change("patient", json!({"suspend": true})).await?;
    scene
        .submit("urgent", ask(json!({"priorityClassName": "batch-urgent"})))
        .await?;
    scene.until_phase("urgent", "Running").await?;
    scene
        .until("goes", "taken off its node", |object| {
            object.data["status"]["disruptions"] == 1
        })
        .await?;
    for name in ["goes", "patient", "urgent"] {
        scene.delete(name).await?;
    }
    for name in ["batch-low", "batch-patient", "batch-urgent"] {
        classes.delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}

/// A volume that can be used on one node only is something the cluster's scheduler knows and the
/// operator's ledger does not.
pub(super) async fn a_volume_is_followed_to_the_node_it_can_be_reached_from(
    world: &World,
) -> Result<()> {
    let scene = world.scene("reach").await?;
    // One of the two nodes carries something already, so this strategy would take the other.
    let model = json!({"gpu": {"models": ["L4"]}, "schedulingStrategy": "leastLoaded"});
    scene
        .submit(
            "filler",
            with(spec(2, &Behaviour::new(Kind::Hang)), model.clone()),
        )
        .await?;
    let filler = scene.until_phase("filler", "Running").await?;
    let loaded = text(&filler, "/status/assignedNode").to_owned();
    claim_on(world, &scene.namespace, "there", Some(&loaded)).await?;
    let volume = json!({"volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "there"}},
    ]});
    let work = with(with(spec(1, &Behaviour::succeed()), model), volume);
    scene.submit("picky", work).await?;
    let object = scene.until_phase("picky", "Succeeded").await?;
    ensure!(text(&object, "/status/assignedNode") == loaded);
    ensure!(retries(&object) == 0, "a place out of reach used a retry");
    ensure!(
        object.data.pointer("/status/refusedNodes").is_none(),
        "a node the volume cannot be reached from was tried: {:?}",
        object.data["status"]
    );
    Ok(())
}

/// A node of a model no other scenario asks for: to be closed by hand.
pub(super) fn closed() -> NodeShape {
    NodeShape::nvidia("a5000", "NVIDIA-RTX-A5000", 24_564, "ampere", 2)
}

/// A cordon and a taint are what people do to nodes: each is its own reason with its own advice, and none means that
/// the workload never fits.
pub(super) async fn nodes_closed_by_hand_are_said_and_used_once_open(world: &World) -> Result<()> {
    let scene = world.scene("closed").await?;
    let kubectl = world.cluster.kubectl();
    let taint = "maintenance=today:NoSchedule";
    let taken_off = format!("{taint}-");
    let tolerate = format!("tolerate {taint} in spec.podTemplate, or take the taint off a5000-0");
    let cases = [
        (
            "cordoned",
            ["cordon", "a5000-0"].as_slice(),
            ["uncordon", "a5000-0"].as_slice(),
            "NodesCordoned",
            "kubectl uncordon a5000-0",
        ),
        (
            "tainted",
            &["taint", "node", "a5000-0", taint],
            &["taint", "node", "a5000-0", &taken_off],
            "NodesTainted",
            tolerate.as_str(),
        ),
    ];
    for (name, close, open, why, advice) in cases {
        kubectl.run(close).await?;
        let model = json!({"gpu": {"models": ["A5000"]}});
        scene
            .submit(name, with(spec(1, &Behaviour::hang()), model))
            .await?;
        let object = scene.until_reason(name, why).await?;
        ensure!(phase(&object) == "Pending", "{:?}", object.data["status"]);
        let said = message(&object);
        ensure!(said.contains(advice), "{said}");
        // To tolerate a cordon would put work on a node that is about to go.
        ensure!(!said.contains("unschedulable"), "{said}");
        kubectl.run(open).await?;
        let object = scene.until_phase(name, "Running").await?;
        ensure!(text(&object, "/status/assignedNode") == "a5000-0");
        ensure!(retries(&object) == 0, "waiting used a retry of {name}");
        scene.release(name, &Behaviour::succeed()).await?;
        scene.until_phase(name, "Succeeded").await?;
    }
    Ok(())
}
