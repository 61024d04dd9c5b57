//! How long the embedded engine takes to schedule and start many pods on many simulated nodes.
//!
//! `cargo run --release -p warp-local --example scale -- 1000 20000` prints one line of figures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use warp_apiserver::{ApiServer, Options as ServerOptions};
use warp_local::controllers::{Clock, Options, run};
use warp_local::node::fleet::Fleet;
use warp_local::node::host::Options as HostOptions;
use warp_local::node::{Host, Simulated};

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u32>());
    let nodes = numbers
        .next()
        .unwrap_or(Ok(1000))
        .context("failed to read the number of nodes")?;
    let pods = numbers
        .next()
        .unwrap_or(Ok(20_000))
        .context("failed to read the number of pods")?;
    let server = ApiServer::start(ServerOptions::ephemeral()?).await?;
    let client = server.client("default");
    let stop = CancellationToken::new();
    let controllers = tokio::spawn(run(
        client.clone(),
        Clock::system(),
        Options::default(),
        stop.clone(),
    ));
    let fleet = Fleet::uniform(nodes, "L4", 1)?;
    let host = Host {
        client: client.clone(),
        clock: Clock::system(),
        options: HostOptions::for_fleet(fleet.nodes.len()),
        runtime: Arc::new(Simulated::new(fleet.defaults)),
        shapes: fleet.nodes,
        reports: None,
    };
    let started = Instant::now();
    let hosted = tokio::spawn(host.run(stop.clone()));
    let all_nodes: Api<Node> = Api::all(client.clone());
    while open_nodes(&all_nodes).await? < nodes as usize {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let ready = started.elapsed();
    let started = Instant::now();
    create(&client, pods).await?;
    let running = wait_running(&client, pods as usize).await?;
    let took = started.elapsed();
    report(nodes, running, ready, took);
    stop.cancel();
    controllers.await?;
    hosted.await??;
    Ok(())
}

/// Nodes that take pods.
async fn open_nodes(nodes: &Api<Node>) -> Result<usize> {
    let all = nodes.list(&ListParams::default()).await?.items;
    let open = |node: &&Node| {
        node.spec
            .as_ref()
            .and_then(|spec| spec.taints.as_ref())
            .is_none_or(Vec::is_empty)
    };
    Ok(all.iter().filter(open).count())
}

/// As many ReplicaSets of at most 1,000 pods as it takes.
async fn create(client: &kube::Client, pods: u32) -> Result<()> {
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), "default");
    let mut left = pods;
    let mut number = 0;
    while left > 0 {
        let size = left.min(1000);
        let name = format!("set-{number}");
        let container = json!({ "name": "c", "image": "i:1", "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } } });
        let set: ReplicaSet = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "replicas": size, "selector": { "matchLabels": { "set": name } },
                "template": { "metadata": { "labels": { "set": name } }, "spec": { "containers": [container] } }
            }
        }))?;
        sets.create(&PostParams::default(), &set).await?;
        left -= size;
        number += 1;
    }
    Ok(())
}

async fn wait_running(client: &kube::Client, wanted: usize) -> Result<usize> {
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), "default");
    loop {
        let all = sets.list(&ListParams::default()).await?.items;
        let ready: i32 = all
            .iter()
            .filter_map(|set| set.status.as_ref()?.ready_replicas)
            .sum();
        if usize::try_from(ready).unwrap_or(0) >= wanted {
            break;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let all = pods.list(&ListParams::default()).await?.items;
    let running = |pod: &&Pod| {
        pod.status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            == Some("Running")
    };
    Ok(all.iter().filter(running).count())
}

#[allow(
    clippy::print_stdout,
    reason = "the figures are what this program is for"
)]
fn report(nodes: u32, running: usize, ready: Duration, took: Duration) {
    let memory = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = memory
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap_or(" unknown")
        .trim()
        .to_owned();
    println!(
        "{nodes} nodes ready in {:.1} s; {running} pods running in {:.1} s ({:.0}/s); peak memory {peak}",
        ready.as_secs_f64(),
        took.as_secs_f64(),
        running as f64 / took.as_secs_f64(),
    );
}
