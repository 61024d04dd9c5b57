//! Nodes that are lost: the second attempt starts only when the first can run no more.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use warp_testkit::{Behaviour, Cluster, Engine, NodeShape, wait_for};

use super::Used;
use super::role;
use super::world::{DEADLINE, Scene, World, phase, retries, spec, text, with};

pub(super) async fn lost_nodes(engine: Engine) -> Result<Used> {
    let doomed = |name: &str| {
        let product = "NVIDIA-H100-80GB-HBM3";
        NodeShape::nvidia(name, product, 81_559, "hopper", 1).in_group(name)
    };
    let cluster = Cluster::on(engine)
        .audited()
        .quick_node_loss()
        .nodes(doomed("deleted"), 1)
        .nodes(doomed("shut"), 1)
        .nodes(doomed("returns"), 1)
        .start()
        .await?;
    let world = World::install(cluster, &[]).await?;
    let operator = world.operator(&[])?;
    let scene = world.scene("loss").await?;
    // Three GPUs, three workloads: each of the doomed nodes carries one.
    let names = ["one", "two", "three"];
    let work = with(
        spec(1, &Behaviour::hang()),
        // The spare node is the emptiest, so that a second attempt can be told from the first.
        json!({"retryPolicy": {"maxRetries": 3}, "schedulingStrategy": "leastLoaded"}),
    );
    for name in names {
        scene.submit(name, work.clone()).await?;
    }
    let mut victims = Vec::new();
    for name in names {
        let object = scene.until_phase(name, "Running").await?;
        victims.push((name, text(&object, "/status/assignedNode").to_owned()));
    }
    world.cluster.add_nodes(&NodeShape::h100(8), 0, 1).await?;
    for group in ["deleted", "shut", "returns"] {
        world.cluster.lose(group);
    }
    for (name, _) in &victims {
        let object = scene
            .until_reason(name, "NodeLost")
            .await
            .with_context(|| operator.log_tail())?;
        ensure!(
            !text(&object, "/status/deadline").is_empty(),
            "a wait without a deadline: {:?}",
            object.data["status"]
        );
    }
    // Nobody knows whether the containers still run, so nothing is started in their place.
    scene.canary("canary").await?;
    for (name, _) in &victims {
        ensure!(scene.jobs_of(name).await?.len() == 1, "{name} runs twice");
    }
    for (name, node) in &victims {
        // Evicted, and nobody there to carry it out.
        let pod = scene.pods_of(name).await?.remove(0).name_any();
        wait_for(&scene.pods(), &pod, "evicted", DEADLINE, |pod| {
            pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())
        })
        .await?;
        prove_gone(&world, node).await?;
        second_attempt(&scene, name).await?;
    }
    role::used(&world).await
}

/// The three ways a cluster learns that what ran on a lost node runs no more.
async fn prove_gone(world: &World, node: &str) -> Result<()> {
    match node {
        "deleted-0" => world.cluster.delete_node(node).await,
        "shut-0" => {
            let nodes = Api::<Node>::all(world.client.clone());
            let mut taints = nodes
                .get(node)
                .await?
                .spec
                .and_then(|spec| spec.taints)
                .unwrap_or_default();
            taints.push(serde_json::from_value(json!({
                "key": "node.kubernetes.io/out-of-service",
                "value": "nodeshutdown", "effect": "NoExecute",
            }))?);
            let patch = json!({"spec": {"taints": taints}});
            nodes
                .patch(node, &PatchParams::default(), &Patch::Merge(patch))
                .await?;
            Ok(())
        }
        _ => world.cluster.recover("returns"),
    }
}

async fn second_attempt(scene: &Scene<'_>, name: &str) -> Result<()> {
    let object = scene
        .until(name, "in its second attempt", |object| {
            phase(object) == "Running" && text(object, "/status/assignedNode") == "h100-0"
        })
        .await?;
    // Counted apart, and said: the node did it, not the workload.
    ensure!(
        retries(&object) == 0 && object.data["status"]["disruptions"] == 1,
        "{name}: {:?}",
        object.data["status"]
    );
    let jobs = scene.jobs_of(name).await?;
    let current = text(&object, "/status/jobName");
    ensure!(jobs.iter().any(|job| job.name_any() == current));
    scene.release(name, &Behaviour::succeed()).await?;
    scene.until_phase(name, "Succeeded").await?;
    Ok(())
}
