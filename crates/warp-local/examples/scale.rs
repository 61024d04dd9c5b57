//! How the local engine carries a large simulated fleet: nodes registered, pods created, scheduled and
//! Running, then the cost of idle leases. `cargo run --release -p warp-local --example scale -- NODES PODS IDLE`
//! prints one figure a line (bench/README.md says where they are recorded).
#![allow(clippy::print_stdout, reason = "an example prints its figures")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use warp_apiserver::{ApiServer, Options};
use warp_local::controllers;
use warp_local::node::fleet::Fleet;
use warp_local::node::{Host, Simulated, host};

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

async fn running(pods: &Api<Pod>) -> Result<usize, kube::Error> {
    let found = pods
        .list_metadata(&ListParams::default().fields("status.phase=Running"))
        .await?;
    Ok(found.items.len())
}

async fn pods_run(client: &kube::Client, count: u32) -> Result<(), Failure> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let began = Instant::now();
    let cpu = cpu_seconds();
    stream::iter(0..count)
        .map(|number| {
            let pods = pods.clone();
            async move {
                let pod: Pod = serde_json::from_value(json!({
                    "metadata": {"name": format!("p-{number}")},
                    "spec": {"containers": [{"name": "c", "image": "example/train:1",
                        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}}}]}}))?;
                pods.create(&PostParams::default(), &pod).await?;
                Ok::<(), Failure>(())
            }
        })
        .buffer_unordered(32)
        .try_collect::<Vec<()>>()
        .await?;
    println!(
        "pods created: {count} in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    loop {
        let ready = running(&pods).await?;
        if ready >= count as usize {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    println!(
        "pods Running: {count} after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    println!("processor time: {:.1} s", cpu_seconds() - cpu);
    println!("most memory: {} MiB", resident_mib());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let (nodes, pods, idle) = (argument(1, 1000), argument(2, 20_000), argument(3, 5000));
    let stop = CancellationToken::new();
    let client = start(nodes, &stop).await?;
    // The default service account appears a moment after the controllers start.
    tokio::time::sleep(Duration::from_secs(3)).await;
    println!("nodes: {nodes}");
    pods_run(&client, pods).await?;
    stop.cancel();
    drop(client);
    let stop = CancellationToken::new();
    let client = start(idle, &stop).await?;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let cpu = cpu_seconds();
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(40)).await;
    let share = 100.0 * (cpu_seconds() - cpu) / began.elapsed().as_secs_f64();
    println!("idle nodes: {idle}, {share:.1} % of one core");
    stop.cancel();
    drop(client);
    Ok(())
}
