//! Kueue's baseline, KAI's scale shapes and a long quiet line, on a real control plane with simulated nodes: `bench/batch/run` builds what
//! this needs and prints the table. Where a raw client stands beside it, it makes the same writes in the same run.
//!
//! `WARP_BINARY` is the operator under test; `WARP_BENCH_NODES`, `WARP_BENCH_PENDING`, `WARP_BENCH_GANG` and
//! `WARP_BENCH_QUIET` (seconds) change the sizes, `WARP_BENCH_SHARE` (percent) that of Kueue's baseline.
#![allow(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

mod cohorts;
mod fill;
mod gang;
mod line;
#[allow(dead_code, reason = "each bench uses a part of it")]
#[path = "../rig/rig.rs"]
mod rig;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use rig::{Operator, number, prepared, row};
use serde_json::{Value, json};
use warp_api::GPUWorkload;
use warp_testkit::{Behaviour, Cluster, NodeShape};

/// Requests in flight while objects are made, the same for both sides.
const PARALLEL: usize = 16;
const GPUS: u32 = 8;
/// One figure is given up after this.
const LIMIT: Duration = Duration::from_mins(30);

fn main() -> Result<()> {
    // `cargo test --benches` and clippy only want it to build.
    if std::env::args().any(|argument| argument == "--test") {
        return Ok(());
    }
    tokio::runtime::Runtime::new()?.block_on(measure())
}

async fn measure() -> Result<()> {
    let nodes = number("WARP_BENCH_NODES", 500)?;
    let pending = number("WARP_BENCH_PENDING", 10_000)?;
    let members = number("WARP_BENCH_GANG", 512)?;
    let jobs = nodes * GPUS as usize;
    println!("| figure | operator | raw client | ratio |");
    println!("|---|---|---|---|");
    // WARP_BENCH_ONLY=cohorts|shapes runs one half.
    let only = std::env::var("WARP_BENCH_ONLY").unwrap_or_default();
    if only != "shapes" {
        Box::pin(cohorts::compared()).await?;
    }
    if only == "cohorts" {
        return Ok(());
    }
    let filled = {
        let (cluster, client) = fleet(nodes).await?;
        // Nobody is safe from eviction for having just begun: the fill is minutes old at most.
        let operator = Operator::start(&cluster, &["--min-run-time", "1s"])?;
        let filled = Box::pin(fill::ours(&client, &operator, jobs)).await?;
        Box::pin(line::refused(&client)).await?;
        Box::pin(line::reclaimed(&client)).await?;
        Box::pin(line::quiet(&client, &operator, pending)).await?;
        filled
    };
    {
        let (_cluster, client) = fleet(nodes).await?;
        let raw = Box::pin(fill::raw(&client, &filled, jobs, nodes)).await?;
        timed(
            &format!("{jobs} single-GPU jobs to bound pods on {nodes} nodes"),
            filled.took,
            raw,
        );
    }
    let placed = {
        let (cluster, client) = fleet(members).await?;
        let _operator = Operator::start(&cluster, &[])?;
        Box::pin(gang::ours(&client, members)).await?
    };
    let (_cluster, client) = fleet(members).await?;
    let raw = Box::pin(gang::raw(&client, &placed, members)).await?;
    timed(
        &format!("a gang of {members} pods on {members} nodes, bound"),
        placed.took,
        raw,
    );
    Ok(())
}

/// A cluster with this many idle nodes, the CRD and both namespaces.
async fn fleet(nodes: usize) -> Result<(Cluster, Client)> {
    let shape = shape();
    let cluster = Cluster::real().nodes(shape, nodes).start().await?;
    let client = prepared(&cluster).await?;
    Ok((cluster, client))
}

fn shape() -> NodeShape {
    NodeShape::h100(GPUS)
}

fn timed(figure: &str, ours: Duration, theirs: Duration) {
    row(
        figure,
        &format!("{:.1} s", ours.as_secs_f64()),
        &format!("{:.1} s", theirs.as_secs_f64()),
        ours.as_secs_f64() / theirs.as_secs_f64(),
    );
}

/// A workload whose pods run until they are ended.
fn workload(name: &str, gpus: u32, more: &Value) -> Result<GPUWorkload> {
    let mut spec = json!({
        "modelName": "bench", "gpuCount": gpus, "image": "image:1", "priority": "low",
        "command": ["python", "train.py"], "args": ["--epochs", "3"],
        "env": Behaviour::hang().env(),
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    Ok(serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "metadata": {"name": name}, "spec": spec,
    }))?)
}

/// Waits until so many pods of the namespace are bound.
async fn bound(client: &Client, namespace: &str, count: usize) -> Result<()> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let mut events = std::pin::pin!(watcher(pods, watcher::Config::default()).applied_objects());
    let mut seen = BTreeSet::new();
    let began = Instant::now();
    while seen.len() < count {
        let left = LIMIT.saturating_sub(began.elapsed());
        let next = tokio::time::timeout(left, events.try_next()).await;
        let next = next.with_context(|| format!("{} of {count} pods are bound", seen.len()))?;
        let pod = next?.context("the watch ended")?;
        if pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_some())
        {
            seen.insert(pod.name_any());
        }
    }
    Ok(())
}
