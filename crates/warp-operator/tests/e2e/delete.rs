//! Deleting at any moment leaves nothing behind.

use anyhow::Result;
use serde_json::{Value, json};
use warp_testkit::Behaviour;
use warp_testkit::behaviour::Kind;

use super::world::{World, phase, reason, spec, with};

/// A workload that comes to a phase and stays there, and how that is seen.
pub(super) struct Held {
    pub(super) name: &'static str,
    pub(super) spec: Value,
    pub(super) phase: &'static str,
    pub(super) reason: Option<&'static str>,
}

/// One workload for every phase an attempt can be in.
pub(super) fn every_phase() -> Vec<Held> {
    let slow = json!({"retryPolicy": {"maxRetries": 3, "backoffSeconds": 300}});
    let once = json!({"retryPolicy": {"maxRetries": 0}});
    let nobody = json!({"gpu": {"models": ["B200"]}});
    let absent = json!({"volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "absent"}},
    ]});
    let held = |name, spec, phase, reason| Held {
        name,
        spec,
        phase,
        reason,
    };
    let hang = || spec(1, &Behaviour::hang());
    vec![
        held(
            "pending",
            with(hang(), nobody),
            "Pending",
            Some("NoSuchGpu"),
        ),
        held("scheduling", with(hang(), absent), "Scheduling", None),
        held(
            "scheduled",
            spec(1, &Behaviour::new(Kind::Stuck)),
            "Scheduled",
            None,
        ),
        held("running", hang(), "Running", None),
        held(
            "backoff",
            with(spec(1, &Behaviour::exit(1)), slow),
            "Pending",
            Some("RetryBackoff"),
        ),
        held(
            "succeeded",
            spec(1, &Behaviour::succeed()),
            "Succeeded",
            None,
        ),
        held(
            "failed",
            with(spec(1, &Behaviour::exit(1)), once),
            "Failed",
            None,
        ),
    ]
}

pub(super) async fn nothing_is_left_in_any_phase(world: &World) -> Result<()> {
    let scene = world.scene("delete").await?;
    let all = every_phase();
    for held in &all {
        scene.submit(held.name, held.spec.clone()).await?;
    }
    for held in &all {
        scene
            .until(held.name, held.name, |object| {
                phase(object) == held.phase && held.reason.is_none_or(|r| reason(object) == r)
            })
            .await?;
    }
    for held in &all {
        scene.delete(held.name).await?;
    }
    // And one that the operator has had no time to look at.
    scene.submit("fresh", spec(1, &Behaviour::hang())).await?;
    scene.delete("fresh").await?;
    scene.until_empty().await?;
    // What the operator did late, it did before the end of this one.
    scene.canary("canary").await?;
    scene.delete("canary").await?;
    scene.until_empty().await
}
