//! Figures of the operator against a real API server, each beside a raw client that does the same
//! writes in the same run: `bench/operator/run` builds what this needs and prints the table.
//!
//! `WARP_BINARY` is the operator under test; `WARP_BENCH_FINISHED` and `WARP_BENCH_ROUNDS` change
//! the sizes.
#![allow(clippy::print_stdout, clippy::cast_possible_truncation)]

mod figures;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::Value;
use warp_api::crd;
use warp_testkit::{Cluster, NodeShape, wait_for};

const DEADLINE: Duration = Duration::from_mins(5);
/// The namespace the operator serves; raw clients work elsewhere.
const SERVED: &str = "served";
const RAW: &str = "raw";

fn main() -> Result<()> {
    // `cargo test --benches` and clippy only want it to build.
    if std::env::args().any(|argument| argument == "--test") {
        return Ok(());
    }
    tokio::runtime::Runtime::new()?.block_on(measure())
}

async fn measure() -> Result<()> {
    let rounds = number("WARP_BENCH_ROUNDS", 200)?;
    let finished = number("WARP_BENCH_FINISHED", 10_000)?;
    println!("| figure | operator | raw client | ratio |");
    println!("|---|---|---|---|");
    {
        let cluster = Cluster::real().api_server_only().start().await?;
        let client = prepared(&cluster).await?;
        let operator = Operator::start(&cluster)?;
        Box::pin(figures::latency(&client, rounds)).await?;
        Box::pin(figures::memory(&client, &operator, finished)).await?;
    }
    let cluster = Cluster::real()
        .nodes(NodeShape::h100(8), 10)
        .start()
        .await?;
    let client = prepared(&cluster).await?;
    let operator = Operator::start(&cluster)?;
    Box::pin(figures::writes(&client, &operator, 50)).await
}

fn number(name: &str, default: usize) -> Result<usize> {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{name} is not a number")),
        Err(_) => Ok(default),
    }
}

/// Installs the CRD and makes both namespaces.
async fn prepared(cluster: &Cluster) -> Result<Client> {
    let client = cluster.client().await?;
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    let definition = crd::gpu_workload();
    let name = definition["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let manager = PatchParams::apply("bench");
    crds.patch(&name, &manager, &Patch::Apply(&definition))
        .await?;
    wait_for(&crds, &name, "established", DEADLINE, |crd| {
        crd.is_some_and(established)
    })
    .await?;
    let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(client.clone());
    for name in [SERVED, RAW] {
        let body: Value = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        namespaces
            .patch(name, &manager, &Patch::Apply(&body))
            .await?;
    }
    Ok(client)
}

fn established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|found| found.type_ == "Established" && found.status == "True")
}

/// The operator as a process of its own, ended with this value.
struct Operator {
    process: Child,
    metrics: String,
}

impl Operator {
    fn start(cluster: &Cluster) -> Result<Self> {
        let binary =
            std::env::var("WARP_BINARY").context("WARP_BINARY names the operator to measure")?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let address = format!("127.0.0.1:{port}");
        let process = Command::new(&binary)
            .args([
                "operator",
                "--namespace",
                SERVED,
                "--metrics-addr",
                &address,
                "--kubeconfig",
            ])
            .arg(cluster.kubeconfig())
            .env("WARP_LOG", "warn")
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("failed to start {binary}"))?;
        Ok(Self {
            process,
            metrics: address,
        })
    }

    /// Resident memory in KiB.
    fn resident(&self) -> Result<u64> {
        resident(&self.process.id().to_string())
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Resident memory of a process in KiB.
fn resident(process: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    line.trim()
        .trim_end_matches("kB")
        .trim()
        .parse()
        .context("VmRSS is not a number")
}
