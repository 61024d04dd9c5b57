//! When work that waits is told to start.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use warp_testkit::{Behaviour, NodeShape, until};

use super::world::{DEADLINE, SYSTEM, World, reason, spec, text, with};

/// One GPU of a model no other scenario asks for: to be waited for.
pub(super) fn waited_for() -> NodeShape {
    NodeShape::nvidia("p40", "Tesla-P40", 23_040, "pascal", 1)
}

/// How long the one that is waited for may run: long enough to be told of, short enough to see it come true.
const LONGEST: SignedDuration = SignedDuration::from_secs(45);

fn time(object: &DynamicObject, pointer: &str) -> Result<Timestamp> {
    let found = text(object, pointer);
    found
        .parse()
        .with_context(|| format!("{pointer} is '{found}'"))
}

pub(super) async fn who_waits_is_told_when_it_starts_and_that_comes_true(
    world: &World,
) -> Result<()> {
    let scene = world.scene("estimate").await?;
    let ask = |more: Value| {
        let gpu = json!({"gpu": {"models": ["P40"]}, "retryPolicy": {"maxRetries": 0}});
        with(with(spec(1, &Behaviour::hang()), gpu), more)
    };
    let limit = format!("{}s", LONGEST.as_secs());
    scene
        .submit("holds", ask(json!({"maxRuntime": limit})))
        .await?;
    scene.until_phase("holds", "Running").await?;
    scene.submit("waits", ask(json!({}))).await?;
    let told = scene
        .until("waits", "told when it starts", |object| {
            object.data["status"]["estimatedStart"].is_object()
        })
        .await?;
    let job = scene.jobs_of("holds").await?.remove(0);
    let begun = job.status.and_then(|status| status.start_time);
    // What it may run is counted from there, and it would never end by itself.
    let end = begun.context("its Job has begun")?.0 + LONGEST;
    let band = ["earliest", "at", "latest"];
    let band: Result<Vec<Timestamp>> = band
        .iter()
        .map(|name| time(&told, &format!("/status/estimatedStart/{name}")))
        .collect();
    let band = band?;
    ensure!(band.is_sorted(), "{band:?}");
    ensure!(
        band[0] <= end && end <= band[2],
        "{end} is not in the band {band:?}"
    );
    let words = text(&told, "/status/waitingFor");
    ensure!(words.starts_with("1 nvidia P40 GPU"), "{words}");
    let started = scene.until_phase("waits", "Running").await?;
    ensure!(time(&started, "/status/lastScheduleTime")? >= end);
    let left = &started.data["status"];
    ensure!(left.get("estimatedStart").is_none() && left.get("waitingFor").is_none());
    ensure!(reason(&scene.get("holds").await?) == "MaxRuntimeExceeded");
    scene.release("waits", &Behaviour::succeed()).await?;
    scene.until_phase("waits", "Succeeded").await?;
    // What it taught outlives the operator.
    let kept: Api<ConfigMap> = Api::namespaced(world.client.clone(), SYSTEM);
    let own = format!("\"namespace\":\"{}\"", scene.namespace);
    until("its run time is kept", DEADLINE, || async {
        let kept = kept.get_opt("warp-durations").await?;
        let texts = kept.and_then(|kept| kept.data).unwrap_or_default();
        Ok(texts.values().any(|text| text.contains(&own)).then_some(()))
    })
    .await
}
