//! Start times in a queue where hours pass: told once, not again while nothing happens, and taken back in the end.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use warp_testkit::Faults;
use warp_testkit::fault::world::{Setup, World, virtual_time};

use crate::faults::{HOME, keeper};

/// One machine that one of them fills.
const FLEET: &str = "
defaults: {pullTime: 1s, runTime: 60s}
pools:
- {name: only, count: 1, gpu: L4, gpus: 4}
";

fn workload(name: &str, runs: &str, longest: Option<&str>) -> Value {
    let mut manifest = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "modelName": "m", "gpuCount": 4,
            "podTemplate": {
                "metadata": {"annotations": {"sim.gpu.warp.dev/run-time": runs}},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "gpu-workload", "image": "i:1"}]},
            },
        },
    });
    if let Some(longest) = longest {
        manifest["spec"]["maxRuntime"] = json!(longest);
    }
    manifest
}

async fn until_phase(world: &World, it: &Value, phase: &str) -> Result<Value> {
    world
        .until(it, phase, |object| {
            object.is_some_and(|object| object["status"]["phase"] == phase)
        })
        .await?;
    status(world, it).await
}

async fn status(world: &World, it: &Value) -> Result<Value> {
    let name = it["metadata"]["name"].as_str().unwrap_or_default();
    Ok(world.api_of(it)?.get(name).await?.data["status"].clone())
}

fn time(status: &Value, pointer: &str) -> Result<Timestamp> {
    let text = status.pointer(pointer).and_then(Value::as_str);
    Ok(text.with_context(|| format!("no {pointer}"))?.parse()?)
}

fn writes(world: &World) -> usize {
    let records = world.faults.records();
    records.iter().filter(|record| record.write > 0).count()
}

async fn hours_pass() -> Result<()> {
    let setup = Setup {
        fleet: FLEET.to_owned(),
        part: Some(keeper()),
        ..Setup::default()
    };
    let world = World::start(&setup, Faults::none()).await?;
    world
        .create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}}))
        .await?;
    let holds = workload("holds", "forever", Some("2h"));
    world.create(holds.clone()).await?;
    let running = until_phase(&world, &holds, "Running").await?;
    let end = time(&running, "/lastScheduleTime")? + SignedDuration::from_hours(2);
    let waits = workload("waits", "60s", None);
    world.create(waits.clone()).await?;
    world
        .until(&waits, "told when it starts", |object| {
            object.is_some_and(|object| object["status"]["estimatedStart"].is_object())
        })
        .await?;
    let told = status(&world, &waits).await?;
    let earliest = time(&told, "/estimatedStart/earliest")?;
    let latest = time(&told, "/estimatedStart/latest")?;
    ensure!(
        earliest < end && end <= latest && latest < end + SignedDuration::from_secs(5),
        "{earliest} to {latest}, and it ends at {end}"
    );
    ensure!(
        told["waitingFor"]
            == "4 nvidia GPUs on one node; nobody is ahead, holds is expected to end first",
        "{told}"
    );
    let before = writes(&world);
    world.pass(Duration::from_mins(30)).await;
    ensure!(
        writes(&world) == before,
        "{} writes while nothing happened",
        writes(&world) - before
    );
    ensure!(status(&world, &waits).await? == told);
    let done = until_phase(&world, &waits, "Succeeded").await?;
    ensure!(time(&done, "/lastScheduleTime")? >= end);
    ensure!(done.get("estimatedStart").is_none() && done.get("waitingFor").is_none());
    let kept = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "warp-durations", "namespace": HOME},
    });
    world
        .until(&kept, "what both taught", |object| {
            let text = object.and_then(|object| object["data"]["runs.json"].as_str());
            let runs = text.and_then(|text| serde_json::from_str::<Value>(text).ok());
            let seconds = runs.map(|runs| runs["kinds"][0]["seconds"].clone());
            seconds.is_some_and(|seconds| {
                seconds.as_array().is_some_and(|all| all.len() == 2)
                    && seconds[0].as_u64().is_some_and(|first| first >= 7200)
            })
        })
        .await
}

#[test]
fn a_start_is_told_once_while_nothing_happens_and_what_ends_is_learnt() {
    virtual_time(hours_pass()).expect("the run ends");
}
