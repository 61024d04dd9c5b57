//! Shares and parts of GPUs, with the labels and resources each vendor's plugin shows.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use warp_testkit::{Behaviour, NodeShape};

use super::world::{World, condition, message, phase, spec, text, with};

/// GPUs cut into MIG profiles, each under its own name.
fn mig() -> NodeShape {
    NodeShape::nvidia("mig", "NVIDIA-H100-80GB-HBM3", 81_559, "hopper", 0)
        .label("nvidia.com/mig.strategy", "mixed")
        .resource("nvidia.com/mig-1g.10gb", "7")
}

/// One GPU that four pods take turns on, under the name the plugin renames it to.
fn sliced() -> NodeShape {
    NodeShape::cpu()
        .named("sliced")
        .resource("nvidia.com/gpu.shared", "4")
        .label("nvidia.com/gpu.product", "NVIDIA-GeForce-RTX-4090")
        .label("nvidia.com/gpu.memory", "24564")
        .label("nvidia.com/gpu.count", "1")
        .label("nvidia.com/gpu.replicas", "4")
        .label("nvidia.com/gpu.sharing-strategy", "time-slicing")
}

/// One GPU whose memory and cores pods ask for by amount.
fn by_amount(name: &str, product: &str) -> NodeShape {
    NodeShape::nvidia(name, product, 24_576, "ampere", 10)
        .resource("nvidia.com/gpumem", "24576")
        .resource("nvidia.com/gpucores", "100")
        .label("nvidia.com/gpu.count", "1")
}

/// Every MI300X of the node in CPX mode: eight parts of each come under the usual name.
fn cpx() -> NodeShape {
    NodeShape::mi300x(16)
        .named("cpx")
        .label("amd.com/gpu.compute-memory-partition", "cpx_nps4")
}

fn tiles() -> NodeShape {
    NodeShape::cpu()
        .named("tiles")
        .resource("gpu.intel.com/i915", "10")
        .resource("gpu.intel.com/tiles", "2")
        .label("gpu.intel.com/product", "Max_1550")
        .label("gpu.intel.com/device.count", "1")
}

/// The nodes of this file.
pub(super) fn nodes() -> [NodeShape; 6] {
    [
        mig(),
        sliced(),
        by_amount("amount", "NVIDIA-GeForce-RTX-5090"),
        by_amount("filled", "NVIDIA-GeForce-RTX-3090"),
        cpx(),
        tiles(),
    ]
}

/// A spec for this part of a GPU instead of a whole one of the usual model.
fn part(behaviour: &Behaviour, gpu: Value) -> Value {
    let mut base = spec(1, behaviour);
    base["gpu"] = gpu;
    base
}

pub(super) async fn each_vendors_parts_are_given_as_asked(world: &World) -> Result<()> {
    let scene = world.scene("parts").await?;
    let cases = [
        (
            "mig",
            json!({"partition": "1g.10gb"}),
            json!({"nvidia.com/mig-1g.10gb": "1"}),
            "isolation hardware",
        ),
        (
            "sliced",
            json!({"sharing": "shared"}),
            json!({"nvidia.com/gpu.shared": "1"}),
            "time slicing, isolation none",
        ),
        (
            "amount",
            json!({"fraction": "0.5", "models": ["RTX-5090"]}),
            json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "12288", "nvidia.com/gpucores": "50"}),
            "isolation software",
        ),
        (
            "cpx",
            json!({"partition": "CPX"}),
            json!({"amd.com/gpu": "1"}),
            "cpx_nps4 partition, isolation hardware",
        ),
        (
            "tiles",
            json!({"partition": "tile"}),
            json!({"gpu.intel.com/tiles": "1", "gpu.intel.com/i915": "1"}),
            "tile partition",
        ),
    ];
    for (name, gpu, ..) in &cases {
        let it = part(&Behaviour::succeed(), gpu.clone());
        scene.submit(name, it).await?;
    }
    for (name, _, limits, says) in &cases {
        let object = scene.until_phase(name, "Succeeded").await?;
        ensure!(
            text(&object, "/status/assignedNode") == format!("{name}-0"),
            "{name}"
        );
        let told = condition(&object, "Placed", "message");
        ensure!(told.contains(says), "{name}: {told}");
        let pod = scene.pods_of(name).await?.remove(0);
        let container = serde_json::to_value(&pod.spec.context("no spec")?.containers[0])?;
        ensure!(
            container["resources"]["limits"] == *limits,
            "{name}: {container}"
        );
    }
    Ok(())
}

pub(super) async fn what_no_node_offers_is_told_with_what_is_offered(world: &World) -> Result<()> {
    let scene = world.scene("unoffered").await?;
    for (name, gpu, says) in [
        (
            "profile",
            json!({"partition": "2g.20gb"}),
            "no node offers MIG profile 2g.20gb; ",
        ),
        (
            "whole",
            json!({"models": ["RTX-4090"]}),
            "no node has 1 nvidia RTX-4090 GPU",
        ),
        (
            "unenforced",
            json!({"models": ["RTX-4090"], "fraction": "0.25"}),
            "with spec.gpu.isolation: none it could run on 1 node",
        ),
    ] {
        scene.submit(name, part(&Behaviour::succeed(), gpu)).await?;
        let object = scene.until_reason(name, "NoSuchGpu").await?;
        ensure!(message(&object).contains(says), "{}", message(&object));
    }
    // Asked for, it is given.
    let lax = json!({"gpu": {"isolation": "none"}});
    scene.change("unenforced", lax).await?;
    scene.until_phase("unenforced", "Succeeded").await?;
    Ok(())
}

pub(super) async fn a_gpu_is_shared_until_it_is_full(world: &World) -> Result<()> {
    let scene = world.scene("full").await?;
    let third = || {
        part(
            &Behaviour::hang(),
            json!({"models": ["RTX-3090"], "fraction": "0.4"}),
        )
    };
    for name in ["one", "two"] {
        scene.submit(name, third()).await?;
        scene.until_phase(name, "Running").await?;
    }
    scene.submit("three", third()).await?;
    let waits = scene.until_reason("three", "WaitingForCapacity").await?;
    ensure!(phase(&waits) == "Pending");
    scene.release("one", &Behaviour::succeed()).await?;
    scene.until_phase("three", "Running").await?;
    for name in ["two", "three"] {
        scene.release(name, &Behaviour::succeed()).await?;
        scene.until_phase(name, "Succeeded").await?;
    }
    let never = with(third(), json!({"gpu": {"minMemory": "20Gi"}}));
    scene.submit("never", never).await?;
    scene.until_reason("never", "NoSuchGpu").await?;
    Ok(())
}
