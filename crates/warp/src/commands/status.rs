//! `warp status`: what runs, in a few lines.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use serde_json::{Value, json};
use warp_api::kinds::{KINDS, KindEntry};
use warp_api::{GROUP, VERSION};
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
    /// Kinds of the table that could be asked for, in its order, each with how many are in which state.
    kinds: Vec<(&'static KindEntry, BTreeMap<String, usize>)>,
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
        let mut whole = json!({"instance": note, "nodes": {"all": counts.nodes, "ready": counts.ready},
            "gpus": gpus, "tokensPerSecond": counts.pace, "pods": counts.pods});
        for (entry, states) in counts.kinds {
            whole[entry.noun] = json!(states);
        }
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
    for (entry, states) in &counts.kinds {
        let pace = counts.pace.filter(|_| entry.kind == "InferenceService");
        let pace = pace.map_or(String::new(), |pace| format!("; {pace} tokens a second"));
        // That no workload runs is worth a line; what is not used at all is not.
        if !states.is_empty() || entry.kind == "GPUWorkload" {
            let noun = entry.noun;
            output::line(&format!("{noun:<10} {}{pace}", listed(states)));
        }
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
    for entry in KINDS {
        if let Some(found) = objects(client, entry).await? {
            let states = counts_of(found.iter().map(|object| state(&object.data["status"])));
            let paces = found
                .iter()
                .filter_map(|object| object.data["status"]["load"]["tokensPerSecond"].as_i64());
            let paces = counts.pace.into_iter().chain(paces);
            counts.pace = paces.reduce(i64::saturating_add);
            counts.kinds.push((entry, states));
        }
    }
    Ok(counts)
}

/// Every object of a kind; nothing where the cluster has no such kind, or a user may not list it: the rest
/// is still worth showing.
async fn objects(
    client: &kube::Client,
    entry: &KindEntry,
) -> anyhow::Result<Option<Vec<DynamicObject>>> {
    let kind = GroupVersionKind::gvk(GROUP, VERSION, entry.kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, entry.plural);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    match api.list(&ListParams::default()).await {
        Ok(found) => Ok(Some(found.items)),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.code == 403 => Ok(None),
        Err(error) => Err(error).with_context(|| format!("failed to list {}", entry.noun)),
    }
}

/// What an object is in one word: its phase, else whether it is ready, and if not why.
fn state(status: &Value) -> String {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    let word = match (status["phase"].as_str(), ready) {
        (Some(phase), _) => Some(phase),
        (None, Some(ready)) if ready["status"] == "True" => Some("Ready"),
        (None, ready) => ready.and_then(|ready| ready["reason"].as_str()),
    };
    word.unwrap_or("Pending").to_owned()
}

fn counts_of(states: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for state in states {
        *counts.entry(state).or_default() += 1;
    }
    counts
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
