//! What the benches of the operator share: a prepared cluster, the operator as a process, and what both cost.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use warp_api::{GPUWorkload, crd};
use warp_testkit::{Cluster, until, wait_for};

pub(crate) const DEADLINE: Duration = Duration::from_mins(5);
/// The namespace the operator serves; raw clients work elsewhere.
pub(crate) const SERVED: &str = "served";
pub(crate) const RAW: &str = "raw";

/// A size of the bench, or what the environment says instead.
pub(crate) fn number(name: &str, default: usize) -> Result<usize> {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{name} is not a number")),
        Err(_) => Ok(default),
    }
}

/// One line of the table; what is not finite is no ratio.
pub(crate) fn row(figure: &str, ours: &str, theirs: &str, ratio: f64) {
    let ratio = if ratio.is_finite() {
        format!("{ratio:.2}")
    } else {
        "–".to_owned()
    };
    println!("| {figure} | {ours} | {theirs} | {ratio} |");
}

pub(crate) fn percentile(sorted: &[Duration], share: usize) -> Duration {
    let at = (sorted.len() * share / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or_default()
}

pub(crate) fn mib(kib: u64) -> String {
    format!("{:.1} MiB", kib as f64 / 1024.0)
}

/// Installs the CRD and makes both namespaces.
pub(crate) async fn prepared(cluster: &Cluster) -> Result<Client> {
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
    // What is established is not served in the same moment.
    let workloads = Api::<GPUWorkload>::all(client.clone());
    until("workloads are served", DEADLINE, async || {
        Ok(workloads.list_metadata(&ListParams::default()).await.ok())
    })
    .await?;
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
pub(crate) struct Operator {
    process: Child,
    metrics: String,
}

impl Operator {
    pub(crate) fn start(cluster: &Cluster, flags: &[&str]) -> Result<Self> {
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
            .args(flags)
            .env("WARP_LOG", "warn")
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("failed to start {binary}"))?;
        Ok(Self {
            process,
            metrics: address,
        })
    }

    /// Its own count of its writes, by resource.
    pub(crate) async fn written(&self) -> Result<Vec<(String, f64)>> {
        let mut stream = self.connected().await?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        let lines = text.lines().filter_map(|line| {
            let rest = line.strip_prefix("warp_operator_writes_total{")?;
            let (labels, value) = rest.split_once("} ")?;
            let resource = labels.split("resource=\"").nth(1)?.split('"').next()?;
            Some((resource.to_owned(), value.trim().parse().ok()?))
        });
        Ok(lines.collect())
    }

    /// It may still be starting.
    async fn connected(&self) -> Result<tokio::net::TcpStream> {
        let started = Instant::now();
        loop {
            match tokio::net::TcpStream::connect(&self.metrics).await {
                Ok(stream) => return Ok(stream),
                Err(error) if started.elapsed() > DEADLINE => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Processor time it has used.
    pub(crate) fn processor(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        // The name, in brackets, may hold blanks; the times are the 12th and 13th field after it, in hundredths.
        let after = stat.rsplit_once(')').context("no name in stat")?.1;
        let fields: Vec<&str> = after.split_whitespace().collect();
        let ticks =
            |at: usize| -> Result<u64> { Ok(fields.get(at).context("a short stat")?.parse()?) };
        Ok(Duration::from_millis(10 * (ticks(11)? + ticks(12)?)))
    }

    /// Resident memory in KiB.
    pub(crate) fn resident(&self) -> Result<u64> {
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
pub(crate) fn resident(process: &str) -> Result<u64> {
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
