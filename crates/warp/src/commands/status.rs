//! `warp status`: what runs, in a few lines.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use warp_api::inferenceservice::ServicePhase;
use warp_api::{GPUWorkload, InferenceService};
use warp_core::gpu::Vendor;

use super::up::instance::{Instance, Note};
use crate::cluster::{self, Target};
use crate::output;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Json,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let instance = Instance::at(args.target.data.clone())?;
    let note = instance.running()?;
    let mut target = args.target.clone();
    if target.kubeconfig.is_none() && target.data.is_none() && note.is_some() {
        target.data = Some(instance.folder.clone());
    }
    // Only who has not named an instance can mean another cluster.
    let asked = args.target.data.is_none()
        && (args.target.kubeconfig.is_some() || std::env::var_os("KUBECONFIG").is_some());
    if note.is_none() && !asked {
        output::line(&format!(
            "no Warp runs with the data of {}; start one with `warp up`",
            instance.folder.display()
        ));
        if let Some(error) = instance.last_error() {
            output::line(&format!("the last one ended with: {error}"));
        }
        return Ok(ExitCode::FAILURE);
    }
    cluster::block_on(show(args.output, target, note))
}

/// Counts of one cluster.
#[derive(Default)]
struct Counts {
    nodes: usize,
    ready: usize,
    /// Resource → held and allocatable.
    gpus: BTreeMap<String, (u64, u64)>,
    workloads: BTreeMap<String, usize>,
    services: BTreeMap<String, usize>,
    /// Tokens a second of the services that say so.
    pace: Option<i64>,
    pods: BTreeMap<String, usize>,
}

async fn show(format: Format, target: Target, note: Option<Note>) -> anyhow::Result<ExitCode> {
    let connection = target.connect().await?;
    let counts = count(&connection.client).await?;
    if format == Format::Json {
        let gpus: BTreeMap<&String, Value> = counts
            .gpus
            .iter()
            .map(|(resource, (held, all))| (resource, json!({"held": held, "allocatable": all})))
            .collect();
        let whole = json!({"instance": note, "nodes": {"all": counts.nodes, "ready": counts.ready},
            "gpus": gpus, "workloads": counts.workloads, "services": counts.services,
            "tokensPerSecond": counts.pace, "pods": counts.pods});
        output::line(&serde_json::to_string_pretty(&whole)?);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(note) = note {
        let up = jiff::Timestamp::now().duration_since(note.started);
        output::line(&format!(
            "Warp {} at {}, up for {:#}, process {}",
            note.version,
            note.server,
            jiff::SignedDuration::from_secs(up.as_secs()),
            note.pid
        ));
        if let Some(metrics) = &note.metrics {
            output::line(&format!(
                "metrics    {metrics}, /healthz and /readyz beside it"
            ));
        }
    }
    output::line(&format!(
        "nodes      {} ready of {}",
        counts.ready, counts.nodes
    ));
    for (resource, (held, all)) in &counts.gpus {
        output::line(&format!("GPUs       {held} of {all} {resource} in use"));
    }
    output::line(&format!("workloads  {}", listed(&counts.workloads)));
    if !counts.services.is_empty() {
        let pace = counts
            .pace
            .map_or(String::new(), |pace| format!("; {pace} tokens a second"));
        output::line(&format!("services   {}{pace}", listed(&counts.services)));
    }
    output::line(&format!("pods       {}", listed(&counts.pods)));
    Ok(ExitCode::SUCCESS)
}

fn listed(counts: &BTreeMap<String, usize>) -> String {
    if counts.is_empty() {
        return "none".to_owned();
    }
    let parts: Vec<String> = counts
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    parts.join(", ")
}

async fn count(client: &kube::Client) -> anyhow::Result<Counts> {
    let mut counts = Counts::default();
    let all = ListParams::default();
    let nodes: Api<Node> = Api::all(client.clone());
    for node in nodes.list(&all).await.context("failed to list nodes")? {
        let status = node.status.unwrap_or_default();
        counts.nodes += 1;
        let ready = status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        counts.ready += usize::from(ready);
        for (resource, quantity) in status.allocatable.iter().flatten() {
            if Vendor::of_resource(resource).is_some() {
                counts.gpus.entry(resource.clone()).or_default().1 +=
                    quantity.0.parse::<u64>().unwrap_or_default();
            }
        }
    }
    let pods: Api<Pod> = Api::all(client.clone());
    for pod in pods.list(&all).await.context("failed to list pods")? {
        count_pod(&mut counts, &pod);
    }
    let workloads: Api<GPUWorkload> = Api::all(client.clone());
    match workloads.list(&all).await {
        Ok(found) => {
            for workload in found {
                let status = workload
                    .status
                    .map(|status| serde_json::to_value(status).unwrap_or_default());
                let phase = status
                    .as_ref()
                    .and_then(|status| status["phase"].as_str())
                    .unwrap_or("Pending");
                *counts.workloads.entry(phase.to_owned()).or_default() += 1;
            }
        }
        // A cluster without our kinds is still worth showing.
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => return Err(error).context("failed to list workloads"),
    }
    count_services(client, &mut counts).await?;
    Ok(counts)
}

async fn count_services(client: &kube::Client, counts: &mut Counts) -> anyhow::Result<()> {
    let services: Api<InferenceService> = Api::all(client.clone());
    let found = match services.list(&ListParams::default()).await {
        Ok(found) => found,
        // Nor is one whose kinds, or whose rights, are of before there were services.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.code == 403 => {
            return Ok(());
        }
        Err(error) => return Err(error).context("failed to list services"),
    };
    for service in found {
        let status = service.status.unwrap_or_default();
        let phase = status.phase.unwrap_or(ServicePhase::Pending);
        *counts.services.entry(format!("{phase:?}")).or_default() += 1;
        let pace = status.load.and_then(|load| load.tokens_per_second);
        counts.pace = counts
            .pace
            .into_iter()
            .chain(pace)
            .reduce(i64::saturating_add);
    }
    Ok(())
}

fn count_pod(counts: &mut Counts, pod: &Pod) {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.clone())
        .unwrap_or_else(|| "Pending".to_owned());
    let over = matches!(phase.as_str(), "Succeeded" | "Failed");
    *counts.pods.entry(phase).or_default() += 1;
    let Some(spec) = pod
        .spec
        .as_ref()
        .filter(|spec| !over && spec.node_name.is_some())
    else {
        return;
    };
    for container in &spec.containers {
        let limits = container
            .resources
            .as_ref()
            .and_then(|resources| resources.limits.as_ref());
        for (resource, quantity) in limits.into_iter().flatten() {
            if Vendor::of_resource(resource).is_some() {
                counts.gpus.entry(resource.clone()).or_default().0 +=
                    quantity.0.parse::<u64>().unwrap_or_default();
            }
        }
    }
}
