//! Workloads that are stopped: by their user, by their deadline, by their age.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use warp_testkit::{Behaviour, NodeShape, wait_gone};

use super::world::{DEADLINE, World, condition, message, phase, retries, spec, with};

pub(super) async fn a_suspended_workload_gives_its_gpus_back_and_resumes(
    world: &World,
) -> Result<()> {
    let scene = world.scene("suspend").await?;
    scene
        .submit("pausable", spec(2, &Behaviour::hang()))
        .await?;
    scene.until_phase("pausable", "Running").await?;
    let pod = scene.live_pod("pausable").await?;
    scene.change("pausable", json!({"suspend": true})).await?;
    let object = scene.until_reason("pausable", "Suspended").await?;
    ensure!(phase(&object) == "Pending");
    wait_gone::<Pod>(&scene.pods(), &pod.name_any(), DEADLINE).await?;

    scene.change("pausable", json!({"suspend": false})).await?;
    let object = scene.until_phase("pausable", "Running").await?;
    ensure!(retries(&object) == 0, "suspending used a retry");

    // Once more: what is told twice is one Event with a count. While nothing of it runs, all of it may change.
    scene.change("pausable", json!({"suspend": true})).await?;
    scene.until_reason("pausable", "Suspended").await?;
    scene.change("pausable", json!({"gpuCount": 1})).await?;
    scene.change("pausable", json!({"suspend": false})).await?;
    scene.until_phase("pausable", "Running").await?;
    let pod = serde_json::to_value(scene.live_pod("pausable").await?)?;
    let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
    ensure!(*limits == json!({"nvidia.com/gpu": "1"}), "{limits}");
    scene.release("pausable", &Behaviour::succeed()).await?;
    scene.until_phase("pausable", "Succeeded").await?;

    // Suspended from the start: nothing is made.
    let held = with(spec(1, &Behaviour::succeed()), json!({"suspend": true}));
    scene.submit("held", held).await?;
    scene.until_reason("held", "Suspended").await?;
    scene.canary("canary").await?;
    ensure!(scene.jobs_of("held").await?.is_empty());
    Ok(())
}

pub(super) async fn a_workload_that_runs_too_long_fails_for_good(world: &World) -> Result<()> {
    let scene = world.scene("long").await?;
    scene
        .submit(
            "endless",
            with(spec(1, &Behaviour::hang()), json!({"maxRuntime": "2s"})),
        )
        .await?;
    let object = scene.until_phase("endless", "Failed").await?;
    ensure!(
        condition(&object, "Succeeded", "reason") == "MaxRuntimeExceeded",
        "{:?}",
        object.data["status"]
    );
    ensure!(retries(&object) == 0, "a deadline is not tried again");
    for pod in scene.pods_of("endless").await? {
        wait_gone::<Pod>(&scene.pods(), &pod.name_any(), DEADLINE).await?;
    }
    Ok(())
}

/// A pod without grace is gone the moment its Job's deadline takes it, and cannot say so. Whether the operator looks
/// before or after is a matter of luck, so there are several.
pub(super) async fn a_deadline_is_final_also_when_pods_vanish_at_once(world: &World) -> Result<()> {
    let scene = world.scene("vanish").await?;
    let behaviour = Behaviour::hang().annotations();
    let work = json!({
        "modelName": "scenario", "gpuCount": 1, "gpu": {"models": ["H100"]},
        "maxRuntime": "2s",
        // Enough to be tried again, if it were.
        "retryPolicy": {"maxRetries": 3, "backoffSeconds": 1},
        "podTemplate": {
            "metadata": {"annotations": behaviour},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "image:1"}],
            },
        },
    });
    let names: Vec<String> = (0..10).map(|number| format!("brief-{number}")).collect();
    for name in &names {
        scene.submit(name, work.clone()).await?;
    }
    for name in &names {
        let object = scene.until_phase(name, "Failed").await?;
        ensure!(
            condition(&object, "Succeeded", "reason") == "MaxRuntimeExceeded",
            "{:?}",
            object.data["status"]
        );
        ensure!(retries(&object) == 0, "{name} was tried again");
    }
    Ok(())
}

pub(super) async fn a_finished_workload_goes_after_its_ttl(world: &World) -> Result<()> {
    let scene = world.scene("ttl").await?;
    let short = json!({"ttlSecondsAfterFinished": 1, "retryPolicy": {"maxRetries": 0}});
    for (name, behaviour) in [("good", Behaviour::succeed()), ("bad", Behaviour::exit(1))] {
        scene
            .submit(name, with(spec(1, &behaviour), short.clone()))
            .await?;
    }
    for name in ["good", "bad"] {
        wait_gone(&scene.workloads(), name, DEADLINE).await?;
    }
    scene.until_empty().await
}

/// A node of a model no other scenario asks for: whoever runs there saves its work.
pub(super) fn saving() -> NodeShape {
    NodeShape::nvidia("l20", "NVIDIA-L20", 46_068, "ada-lovelace", 1)
}

/// The environment of a pod's container.
fn env<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut env = containers.flat_map(|container| container.env.iter().flatten());
    env.find(|one| one.name == name)?.value.as_deref()
}

pub(super) async fn saved_work_is_known_and_resumed(world: &World) -> Result<()> {
    let scene = world.scene("saved").await?;
    let saves = json!({
        "gpu": {"models": ["L20"]}, "priority": "low", "retryPolicy": {"maxRetries": 0},
        "checkpoint": {"signal": "SIGUSR1", "gracePeriod": "45s", "annotation": "example.com/saved-at"},
    });
    let it = with(spec(1, &Behaviour::hang()), saves);
    scene.submit("saves", it).await?;
    scene.until_phase("saves", "Running").await?;
    let pod = scene.live_pod("saves").await?;
    let grace = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    ensure!(grace == Some(45), "{grace:?}");
    ensure!(env(&pod, "ATTEMPT") == Some("0") && env(&pod, "RESUME").is_none());
    // A cluster may not know of signals; then that is said.
    let object = scene.get("saves").await?;
    let lifecycle = pod.spec.as_ref().map(|spec| &spec.containers[0].lifecycle);
    let signal = lifecycle.and_then(|lifecycle| lifecycle.as_ref()?.stop_signal.clone());
    let said = message(&object).contains("instead of SIGUSR1");
    ensure!(
        signal.as_deref() == Some("SIGUSR1") || said,
        "{signal:?}: {}",
        message(&object)
    );
    // What the pod says of itself.
    let note =
        json!({"metadata": {"annotations": {"example.com/saved-at": "2026-01-31T12:00:00Z"}}});
    scene
        .pods()
        .patch(
            &pod.name_any(),
            &PatchParams::default(),
            &Patch::Merge(&note),
        )
        .await?;
    scene
        .until("saves", "known to have saved its work", |object| {
            let last = &object.data["status"]["lastCheckpoint"];
            last["time"] == "2026-01-31T12:00:00Z" && last["by"] == "annotation"
        })
        .await?;
    let urgent = json!({"gpu": {"models": ["L20"]}, "priority": "high"});
    scene
        .submit("urgent", with(spec(1, &Behaviour::hang()), urgent))
        .await?;
    scene.until_phase("urgent", "Running").await?;
    scene
        .until("saves", "taken off its node", |object| {
            object.data["status"]["disruptions"] == 1 && phase(object) == "Pending"
        })
        .await?;
    scene.release("urgent", &Behaviour::succeed()).await?;
    scene.until_phase("saves", "Running").await?;
    let pod = scene.live_pod("saves").await?;
    ensure!(env(&pod, "ATTEMPT") == Some("1") && env(&pod, "RESUME") == Some("1"));
    scene.release("saves", &Behaviour::succeed()).await?;
    scene.until_phase("saves", "Succeeded").await?;
    Ok(())
}
