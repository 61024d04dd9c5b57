//! Work that waits is shown to whoever adds nodes, and has the node that was added for it.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use warp_testkit::{Behaviour, NodeShape, until};

use super::world::{DEADLINE, World, message, phase, spec, text, with};

/// A node of a model that nobody has before it is added.
fn added() -> NodeShape {
    NodeShape::cpu()
        .named("bought")
        .resource("amd.com/gpu", "2")
        .label("amd.com/gpu.product-name", "AMD_Instinct_MI250X")
}

/// The pods that stand in for a workload.
async fn standing(world: &World, namespace: &str, name: &str) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), namespace);
    let label = format!("gpu.warp.dev/stands-in-for={name}");
    Ok(pods
        .list(&ListParams::default().labels(&label))
        .await?
        .items)
}

fn is_marked(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let mut marks = conditions
        .flatten()
        .filter(|one| one.type_ == "PodScheduled");
    marks.any(|one| one.status == "False" && one.reason.as_deref() == Some("Unschedulable"))
}

pub(super) async fn who_waits_is_shown_and_has_the_node_that_was_bought_for_it(
    world: &World,
) -> Result<()> {
    let scene = world.scene("autoscale").await?;
    let work = |more: Value| {
        let there = json!({"gpu": {"models": ["MI250X"]}});
        with(with(spec(2, &Behaviour::hang()), there), more)
    };
    let shown = work(json!({"whenPending": "ungate", "replicas": 2}));
    scene.submit("shown", shown).await?;
    let object = scene
        .until("shown", "shown", |object| {
            !text(object, "/status/shown/jobName").is_empty()
        })
        .await?;
    ensure!(
        message(&object).contains("autoscaler"),
        "{}",
        message(&object)
    );
    let job = text(&object, "/status/shown/jobName").to_owned();
    let namespace = scene.namespace.clone();
    until("two pods are marked", DEADLINE, || async {
        let pods = standing(world, &namespace, "shown").await?;
        Ok((pods.len() == 2 && pods.iter().all(is_marked)).then_some(()))
    })
    .await?;
    let pods = standing(world, &namespace, "shown").await?;
    let pod = serde_json::to_value(&pods[0].spec)?;
    ensure!(pod["schedulerName"] == "gpu.warp.dev/never", "{pod}");
    ensure!(pod["containers"][0]["resources"]["requests"]["amd.com/gpu"] == "2");
    // Room of other kinds would not help it.
    let affinity = pod["affinity"]["nodeAffinity"].to_string();
    ensure!(
        affinity.contains("NotIn") && affinity.contains("MI300X"),
        "{affinity}"
    );

    // Somebody who is before it in line, and was not shown.
    scene
        .submit("urgent", work(json!({"priority": "high"})))
        .await?;
    scene.until_reason("urgent", "NoSuchGpu").await?;
    world.cluster.add_nodes(&added(), 0, 1).await?;
    // One node is not enough for both members, and is nobody else's.
    scene.until_reason("urgent", "WaitingForCapacity").await?;
    world.cluster.add_nodes(&added(), 1, 1).await?;
    scene.until_phase("shown", "Running").await?;
    ensure!(phase(&scene.get("urgent").await?) == "Pending");

    let jobs: Api<Job> = Api::namespaced(world.client.clone(), &namespace);
    until("nothing stands in for it", DEADLINE, || async {
        let gone = jobs.get_opt(&job).await?.is_none();
        let pods = standing(world, &namespace, "shown").await?;
        Ok((gone && pods.is_empty()).then_some(()))
    })
    .await?;
    // No pod that stood in was ever bound: whoever binds says so.
    let events: Api<Event> = Api::namespaced(world.client.clone(), &namespace);
    for event in events.list(&ListParams::default()).await? {
        let name = event.involved_object.name.as_deref().unwrap_or_default();
        let bound = event.reason.as_deref() == Some("Scheduled") && name.starts_with(&job);
        ensure!(!bound, "{name} was bound: {:?}", event.message);
    }
    let own = scene.pods_of("shown").await?;
    let own = own.first().context("no pod")?;
    ensure!(own.labels().get("gpu.warp.dev/stands-in-for").is_none());
    Ok(())
}
