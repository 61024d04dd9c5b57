//! How the local engine carries a large simulated fleet: nodes registered, pods created, scheduled and Running, then the
//! cost of idle leases, then the same smaller load on both this engine and a real control plane with KWOK nodes.
//! `cargo run --release -p warp-local --example scale -- NODES PODS IDLE BESIDE_NODES BESIDE_PODS` prints one figure a
//! line; 0 leaves a part out. `bench/engine/README.md` has recorded figures.
#![allow(clippy::print_stdout, reason = "an example prints its figures")]

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::{Api, ListParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use warp_apiserver::{ApiServer, Options};
use warp_local::controllers;
use warp_local::node::fleet::Fleet;
use warp_local::node::{Host, Simulated, host};
use warp_testkit::{Cluster, NodeShape};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn argument(index: usize, default: u32) -> u32 {
    std::env::args()
        .nth(index)
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Processor seconds this process has used.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks: f64 = after
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|word| word.parse::<f64>().ok())
        .sum();
    ticks / 100.0
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap_or("0");
    line.trim()
        .split(' ')
        .next()
        .and_then(|kib| kib.parse::<u64>().ok())
        .unwrap_or_default()
        / 1024
}

async fn start(nodes: u32, stop: &CancellationToken) -> Result<kube::Client, Failure> {
    let server = ApiServer::start(Options::ephemeral()?).await?;
    let client = server.client("default");
    let fleet = Fleet::uniform(nodes, "A100-80GB", 8)?;
    tokio::spawn(controllers::run(
        client.clone(),
        server.clock().clone(),
        controllers::Options::default(),
        stop.clone(),
    ));
    let host = Host {
        client: client.clone(),
        clock: server.clock().clone(),
        options: host::Options::for_fleet(fleet.nodes.len()),
        runtime: Arc::new(Simulated::new(fleet.defaults)),
        shapes: fleet.nodes,
        reports: None,
    };
    tokio::spawn(host.run(stop.clone()));
    Ok(client)
}

/// Waits until every node is there and pods can be created.
async fn settled(client: &kube::Client, nodes: u32) -> Result<(), Failure> {
    let (accounts, all): (Api<ServiceAccount>, Api<Node>) = (
        Api::default_namespaced(client.clone()),
        Api::all(client.clone()),
    );
    loop {
        let there = all.list_metadata(&ListParams::default()).await?.items.len();
        if there >= nodes as usize && accounts.get_opt("default").await?.is_some() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Waits until `count` pods run. From a watch: listing everything again and again would be measured too.
async fn all_run(pods: Api<PartialObjectMeta<Pod>>, count: usize) -> Result<(), watcher::Error> {
    let running = watcher::Config::default().fields("status.phase=Running");
    let mut events = pin!(watcher(pods, running).applied_objects());
    let mut seen = BTreeSet::new();
    while seen.len() < count
        && let Some(pod) = events.try_next().await?
    {
        seen.extend(pod.metadata.uid);
    }
    Ok(())
}

async fn create(pods: &Api<Pod>, number: u32) -> Result<(), Failure> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": format!("p-{number}")},
        "spec": {"containers": [{"name": "c", "image": "example/train:1",
            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}}}]}}))?;
    pods.create(&PostParams::default(), &pod).await?;
    Ok(())
}

/// Creates pods and waits until all of them run; the seconds that took.
async fn pods_run(client: &kube::Client, count: u32) -> Result<f64, Failure> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let counted = tokio::spawn(all_run(
        Api::namespaced(client.clone(), "default"),
        count as usize,
    ));
    let began = Instant::now();
    stream::iter(0..count)
        .map(|number| create(&pods, number))
        .buffer_unordered(32)
        .try_collect::<Vec<()>>()
        .await?;
    println!(
        "pods created: {count} in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    counted.await??;
    let seconds = began.elapsed().as_secs_f64();
    println!("pods Running: {count} after {seconds:.1} s");
    Ok(seconds)
}

async fn large(nodes: u32, pods: u32) -> Result<(), Failure> {
    let stop = CancellationToken::new();
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let client = start(nodes, &stop).await?;
    settled(&client, nodes).await?;
    println!(
        "nodes registered: {nodes} after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    pods_run(&client, pods).await?;
    println!("processor time: {:.1} s", cpu_seconds() - cpu);
    println!("most memory: {} MiB", resident_mib());
    stop.cancel();
    Ok(())
}

async fn idle(nodes: u32) -> Result<(), Failure> {
    let stop = CancellationToken::new();
    let client = start(nodes, &stop).await?;
    settled(&client, nodes).await?;
    // Two rounds of renewals after the first.
    tokio::time::sleep(Duration::from_secs(30)).await;
    let (began, cpu) = (Instant::now(), cpu_seconds());
    tokio::time::sleep(Duration::from_secs(60)).await;
    let share = 100.0 * (cpu_seconds() - cpu) / began.elapsed().as_secs_f64();
    println!("idle nodes: {nodes}, {share:.1} % of one core");
    stop.cancel();
    Ok(())
}

/// The same load on this engine and on a real control plane with KWOK nodes.
async fn beside(nodes: u32, pods: u32) -> Result<(), Failure> {
    println!("embedded engine, {nodes} nodes:");
    let stop = CancellationToken::new();
    let client = start(nodes, &stop).await?;
    settled(&client, nodes).await?;
    let ours = pods_run(&client, pods).await?;
    stop.cancel();
    println!("kube-apiserver, kube-controller-manager, kube-scheduler, KWOK, {nodes} nodes:");
    let cluster = Cluster::real()
        .nodes(NodeShape::cpu(), nodes as usize)
        .start()
        .await?;
    let client = cluster.client().await?;
    settled(&client, nodes).await?;
    let theirs = pods_run(&client, pods).await?;
    println!("ratio: {:.1}", theirs / ours);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let (nodes, pods, idle_nodes) = (argument(1, 1000), argument(2, 20_000), argument(3, 5000));
    if nodes > 0 {
        large(nodes, pods).await?;
    }
    if idle_nodes > 0 {
        idle(idle_nodes).await?;
    }
    let (nodes, pods) = (argument(4, 50), argument(5, 1000));
    if nodes > 0 {
        beside(nodes, pods).await?;
    }
    Ok(())
}
