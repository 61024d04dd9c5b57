//! `warp snapshot`: the live fleet and queue as files `warp simulate` reads.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use jiff::Timestamp;
use kube::ResourceExt;
use warp_api::workload::{Priority, run_seconds};
use warp_api::{GPUWorkload, Phase};
use warp_core::schedule::Policy;
use warp_core::simulate::fleet::Scenario;
use warp_operator::foresight::Cluster;

use crate::cluster::live::Live;
use crate::cluster::{self, Target};
use crate::output;

/// A run of unknown length counts as this long.
const UNKNOWN_SECONDS: i64 = 3600;
const COMMENT: &str = "# A snapshot of a live cluster, for `warp simulate fleet -f`. What runs comes first, pinned to its node:\n# take an entry away to see what its end would change.\n";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// File for the fleet, what runs and what waits [default: standard output, as `-` is]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// File for the workloads as a job list, for `warp simulate queue --jobs`
    #[arg(long, value_name = "FILE")]
    jobs: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(snapshot(args))
}

async fn snapshot(args: Args) -> anyhow::Result<ExitCode> {
    let connection = args.target.connect().await?;
    let live = Live::read(&connection.client).await?;
    let now = Timestamp::now();
    let scenario = live.cluster.scenario(&live.settings, now);
    let yaml = serde_saphyr::to_string(&scenario).context("failed to write YAML")?;
    let text = format!("{COMMENT}{yaml}");
    let file = args.output.as_ref().filter(|file| file.as_os_str() != "-");
    match file {
        None => output::result(&text),
        Some(file) => write(file, &text)?,
    }
    for doubt in live.caveat().into_iter().chain(moved(&scenario)) {
        output::note(&format!("warning: {doubt}"));
    }
    if let Some(file) = file {
        let waiting = scenario.requests.iter().filter(|one| one.priority < 1000);
        let waiting = waiting.count();
        output::note(&format!(
            "{} nodes, {} running and {waiting} waiting in {file}; `warp simulate fleet -f {file}` says where they would go",
            scenario.nodes.len(),
            scenario.requests.len() - waiting,
            file = file.display(),
        ));
    }
    if let Some(file) = &args.jobs {
        let (list, unknown) = jobs(&live.cluster, now);
        write(file, &list)?;
        if unknown > 0 {
            output::note(&format!(
                "{unknown} workloads have no maxRuntime and nothing like them has finished: they count as {UNKNOWN_SECONDS} s; correct the column duration where you know better"
            ));
        }
        output::note(&format!(
            "`warp simulate queue --jobs {} --fleet {}` compares policies on it",
            file.display(),
            fleet(&scenario)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))
}

/// Read back, everything that runs must be where it is; what is not is told.
fn moved(scenario: &Scenario) -> Option<String> {
    let outcome = scenario.run(Policy::Warp, 42).ok()?;
    let lost: Vec<&str> = outcome
        .refused
        .iter()
        .map(|refused| &*refused.request)
        .filter(|name| {
            let entry = scenario.requests.iter().find(|entry| *entry.name == **name);
            entry.is_some_and(|entry| entry.constraints.node_name.is_some())
        })
        .collect();
    (!lost.is_empty()).then(|| {
        format!(
            "{} running pods hold more than their nodes offer and will be refused by the simulation: {}",
            lost.len(),
            lost.join(", ")
        )
    })
}

/// `40x8:A100,20x4:V100`, as `--fleet` takes it: ready nodes with GPUs.
fn fleet(scenario: &Scenario) -> String {
    let mut counts = std::collections::BTreeMap::<(String, u16), u32>::new();
    for node in scenario
        .nodes
        .iter()
        .filter(|node| node.ready && !node.unschedulable)
    {
        for pool in node.gpus.iter().filter(|pool| pool.count > 0) {
            let kind = if pool.model.is_empty() {
                &pool.vendor
            } else {
                &pool.model
            };
            *counts.entry((kind.to_string(), pool.count)).or_default() += 1;
        }
    }
    let parts: Vec<String> = counts
        .into_iter()
        .map(|((kind, gpus), nodes)| format!("{nodes}x{gpus}:{kind}"))
        .collect();
    parts.join(",")
}

/// Every workload as a row, and how many have a length nobody knows.
fn jobs(cluster: &Cluster, now: Timestamp) -> (String, usize) {
    let first = cluster
        .workloads
        .iter()
        .filter_map(|one| one.creation_timestamp())
        .map(|time| time.0)
        .min()
        .unwrap_or(now);
    let mut rows: Vec<(i64, String)> = Vec::new();
    let mut unknown = 0;
    for workload in &cluster.workloads {
        let created = workload.creation_timestamp().map_or(now, |time| time.0);
        let submit = created.duration_since(first).as_secs();
        let duration = ran(workload)
            .or_else(|| like(cluster, workload))
            .or_else(|| workload.spec.max_runtime.as_deref().and_then(run_seconds));
        let duration = duration.unwrap_or_else(|| {
            unknown += 1;
            UNKNOWN_SECONDS
        });
        let priority = match cluster.priority_of_workload(workload) {
            Priority::Low => -1,
            Priority::Normal => 0,
            Priority::High => 1,
        };
        let tenant = workload.namespace().unwrap_or_default();
        let model = workload.spec.model_name.replace(['"', '\n'], " ");
        rows.push((
            submit,
            format!(
                "{submit},{},{},{tenant},\"{model}\",{priority}\n",
                duration.max(1),
                workload.spec.total_gpus()
            ),
        ));
    }
    rows.sort();
    let mut text = "submit,duration,gpus,tenant,model,priority\n".to_owned();
    text.extend(rows.into_iter().map(|(_, row)| row));
    (text, unknown)
}

/// How long a finished workload ran.
fn ran(workload: &GPUWorkload) -> Option<i64> {
    let status = workload.status.as_ref()?;
    let over = status.phase.is_some_and(Phase::is_final);
    let (start, end) = (
        status.start_time.as_ref()?,
        status.completion_time.as_ref()?,
    );
    over.then(|| end.0.duration_since(start.0).as_secs())
}

/// How long finished workloads of the same model ran, on average.
fn like(cluster: &Cluster, workload: &GPUWorkload) -> Option<i64> {
    let same = cluster.workloads.iter().filter(|other| {
        other.spec.model_name == workload.spec.model_name
            && other.namespace() == workload.namespace()
    });
    let times: Vec<i64> = same.filter_map(|other| ran(other)).collect();
    let count = i64::try_from(times.len()).ok().filter(|count| *count > 0)?;
    Some(times.iter().sum::<i64>() / count)
}
