//! `warp why`: one sentence about a workload, what it rests on, and what to do next.
//!
//! What waits is asked about on a snapshot read with the user's own rights, by the scheduler's own
//! functions; what runs or has ended is told from its Jobs, pods and Events.

mod change;
mod help;
pub(crate) mod job;
mod service;
mod tell;

use std::process::ExitCode;

use jiff::Timestamp;
use serde::Serialize;
use warp_api::Phase;
use warp_api::workload::EstimatedStart;
use warp_operator::foresight::{Look, look};

use crate::cluster::live::Live;
use crate::cluster::{self, Connection, Target};
use crate::output::{self, Table};
use crate::workload::{self, Parts};

pub(crate) use change::steps as change_steps;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The workload, queued work of others as job/NAME, jobset/NAME, pytorchjob/NAME, mpijob/NAME or rayjob/NAME, or an
    /// InferenceService as isvc/NAME
    name: String,
    #[command(flatten)]
    target: Target,
    /// How to print the result
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Json,
}

/// The answer.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Why {
    workload: String,
    namespace: String,
    phase: Phase,
    reason: String,
    /// One sentence.
    sentence: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    evidence: Vec<Evidence>,
    /// When the operator expects it to start, as its status has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    estimated_start: Option<EstimatedStart>,
    /// The same in words, with what it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<String>,
    /// Those served before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ahead: Vec<Ahead>,
    /// Who holds what it waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    held_by: Vec<String>,
    /// What to do next, the smallest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    next: Vec<Step>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// One fact, and what it is about.
#[derive(Debug, Serialize)]
struct Evidence {
    what: String,
    detail: String,
}

#[derive(Debug, Serialize)]
struct Ahead {
    position: usize,
    namespace: String,
    name: String,
    gpus: i32,
    outlook: String,
}

/// Something to do, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Step {
    pub(crate) what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
}

impl Step {
    pub(crate) fn new(what: impl Into<String>, command: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            command: Some(command.into()),
        }
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(why(args))
}

async fn why(args: Args) -> anyhow::Result<ExitCode> {
    let connection = args.target.connect().await?;
    if let Some(found) = service::find(&connection, &args.name).await? {
        return service::show(&found, &args.target, args.output == Format::Json);
    }
    if let Some(job) = job::find(&connection, &args.name).await? {
        let told = job::tell(&connection, &job, &args.target).await?;
        return show(&told, args.output);
    }
    let found = workload::find(&connection, &args.name).await?;
    let parts = Parts::read(&connection, &found).await?;
    let mut notes: Vec<String> = Vec::new();
    if !parts.hidden.is_empty() {
        notes.push(format!(
            "you may not list {} in namespace {}: the answer does without them",
            parts.hidden.join(", "),
            connection.namespace
        ));
    }
    let waits = workload::phase(&found) == Phase::Pending && !found.spec.suspend;
    let looked = if waits {
        ahead(&connection, &found, &mut notes).await?
    } else {
        None
    };
    let mut told = tell::tell(
        &found,
        &parts,
        looked.as_ref(),
        &args.target,
        Timestamp::now(),
    );
    told.notes = notes;
    show(&told, args.output)
}

fn show(told: &Why, format: Format) -> anyhow::Result<ExitCode> {
    match format {
        Format::Json => output::line(&serde_json::to_string_pretty(told)?),
        Format::Text => print(told),
    }
    Ok(ExitCode::SUCCESS)
}

/// What the scheduler would do with it now. Who may not read the whole cluster is told what the operator
/// said last instead.
async fn ahead(
    connection: &Connection,
    found: &warp_api::GPUWorkload,
    notes: &mut Vec<String>,
) -> anyhow::Result<Option<Look>> {
    let live = match Live::read(&connection.client).await {
        Ok(live) => live,
        Err(error) => {
            notes.push(format!(
                "only what the operator said last is shown: {}",
                output::words(&error)
            ));
            return Ok(None);
        }
    };
    notes.extend(live.caveat());
    Ok(look(&live.cluster, found, &live.settings, Timestamp::now()).ok())
}

fn print(told: &Why) {
    output::line(&told.sentence);
    if !told.evidence.is_empty() {
        let mut table = Table::new(["EVIDENCE", ""]);
        for fact in &told.evidence {
            table.row([fact.what.clone(), fact.detail.clone()]);
        }
        output::line("");
        output::text(&table.render(true));
    }
    if let Some(expected) = &told.expected {
        output::line(&format!("\n{expected}"));
    }
    if !told.ahead.is_empty() {
        let mut table = Table::new(["AHEAD", "NAMESPACE", "NAME", "GPUS", "OUTLOOK"]);
        for one in &told.ahead {
            table.row([
                one.position.to_string(),
                one.namespace.clone(),
                one.name.clone(),
                one.gpus.to_string(),
                one.outlook.clone(),
            ]);
        }
        output::line("");
        output::text(&table.render(true));
    }
    if !told.held_by.is_empty() {
        output::line(&format!("\nHeld by {}.", told.held_by.join(", ")));
    }
    if !told.next.is_empty() {
        output::line("\nNext:");
        for step in &told.next {
            match &step.command {
                Some(command) => output::line(&format!("  {}\n    {command}", step.what)),
                None => output::line(&format!("  {}", step.what)),
            }
        }
    }
    for note in &told.notes {
        output::note(&format!("note: {note}"));
    }
}
