//! What the operator keeps of how long work has run.

use anyhow::Result;
use serde_json::json;
use warp_testkit::fault::world::World;

use super::{submitted, until_phase};
use crate::faults::HOME;

/// How long it ran, and when it ended, are times like any other.
pub(super) const KEPT: &[&str] = &["/data"];

pub(super) async fn are_learnt_from_what_ends(world: &World) -> Result<()> {
    let home = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}});
    world.create(home).await?;
    let it = submitted(world, json!({})).await?;
    until_phase(world, &it, "Succeeded").await?;
    let kept = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "warp-durations", "namespace": HOME},
    });
    world
        .until(&kept, "what it taught", |object| {
            let text = object.and_then(|object| object["data"]["runs.json"].as_str());
            text.is_some_and(|text| text.matches("\"seconds\"").count() == 1)
        })
        .await
}
