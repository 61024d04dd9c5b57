//! `warp plan`: what would become of a workload on the live cluster, before anything is changed.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use warp_api::GPUWorkload;
use warp_operator::foresight::{Group, Look, Outlook, Preempting, Queued, look, outlook_of_job};

use super::why::{Step, change_steps};
use crate::cluster::live::Live;
use crate::cluster::{self, Connection, Manifest, Target};
use crate::output::{self, Table};
use crate::workload::{self, dollars};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A workload of the cluster, or queued work of others as job/NAME, jobset/NAME, pytorchjob/NAME and so on
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    name: Option<String>,
    /// A manifest that is not applied yet; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
    /// How to print the result; the exit code is 1 when it would not start now
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Json,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(plan(args))
}

async fn plan(args: Args) -> anyhow::Result<ExitCode> {
    let asked = match (&args.file, &args.name) {
        (Some(file), _) => read(file)?,
        (None, Some(_)) => Vec::new(),
        (None, None) => bail!("name a workload, or a manifest with -f"),
    };
    let connection = args.target.connect().await?;
    if let Some(name) = args.name.as_deref().filter(|name| name.contains('/'))
        && let Some(job) = super::why::job::find(&connection, name).await?
    {
        return of_others(&connection, &job, args.output).await;
    }
    let mut wanted = Vec::new();
    for object in asked {
        wanted.push(as_made(&connection, &object).await?);
    }
    if let Some(name) = &args.name {
        wanted.push(workload::find(&connection, name).await?);
    }
    let live = Live::read(&connection.client).await?;
    if let Some(caveat) = live.caveat() {
        output::note(&format!("note: {caveat}"));
    }
    let mut code = ExitCode::SUCCESS;
    for (at, one) in wanted.iter().enumerate() {
        let seen = foresee(&live, one)?;
        if !matches!(seen.outlook, Outlook::Starts(_)) {
            code = ExitCode::FAILURE;
        }
        match args.output {
            Format::Json => output::line(&serde_json::to_string_pretty(&as_json(one, &seen))?),
            Format::Text => {
                if at > 0 {
                    output::line("");
                }
                output::text(&text(one, &seen, &args.target));
            }
        }
    }
    Ok(code)
}

/// What the scheduler would do with queued work of others now.
async fn of_others(
    connection: &Connection,
    job: &Queued,
    format: Format,
) -> anyhow::Result<ExitCode> {
    let live = Live::read(&connection.client).await?;
    if let Some(caveat) = live.caveat() {
        output::note(&format!("note: {caveat}"));
    }
    let title = job.title();
    let outlook = outlook_of_job(&live.cluster, job, &live.settings, Timestamp::now());
    let Some(outlook) = outlook else {
        bail!("{title} does not wait for a place; `warp why {title}` says how it stands");
    };
    let (starts, said) = match &outlook {
        Outlook::Starts(start) => (
            true,
            format!("starts now on {}: {}", start.places(), start.why),
        ),
        Outlook::Waits { message, .. } => (false, format!("waits: {message}")),
        Outlook::Invalid(problem) => (false, format!("cannot be placed as it is: {problem}")),
    };
    match format {
        Format::Json => {
            let nodes = match &outlook {
                Outlook::Starts(start) => start.nodes.clone(),
                _ => Vec::new(),
            };
            let told = json!({"name": title, "startsNow": starts, "nodes": nodes, "message": said});
            output::line(&serde_json::to_string_pretty(&told)?);
        }
        Format::Text => output::line(&format!("{title} {said}")),
    }
    Ok(if starts {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What the scheduler would do with a workload.
pub(crate) fn foresee(live: &Live, workload: &GPUWorkload) -> anyhow::Result<Look> {
    let name = workload.name_any();
    if workload::phase(workload).is_final() {
        bail!("workload {name} has ended; `warp retry {name}` runs it again");
    }
    let now = Timestamp::now();
    look(&live.cluster, workload, &live.settings, now)
        .map_err(|problem| anyhow::anyhow!("workload {name} cannot be placed as it is: {problem}"))
}

/// The workloads of a file; anything else in it is passed over.
pub(crate) fn read(file: &PathBuf) -> anyhow::Result<Vec<Value>> {
    let mut found = Vec::new();
    for manifest in Manifest::read(std::slice::from_ref(file))? {
        let manifest = manifest?;
        if manifest.field("/kind") == Some("GPUWorkload") {
            found.push(manifest.object);
        } else {
            output::note(&format!(
                "a {} in {} is passed over: only GPUWorkloads are planned",
                manifest.field("/kind").unwrap_or("nameless kind"),
                manifest.source
            ));
        }
    }
    if found.is_empty() {
        bail!("no GPUWorkload in {}", file.display());
    }
    Ok(found)
}

/// The workload the API server would make of a manifest, defaults and rules included; nothing is kept.
pub(crate) async fn as_made(
    connection: &Connection,
    object: &Value,
) -> anyhow::Result<GPUWorkload> {
    let own = object
        .pointer("/metadata/namespace")
        .and_then(Value::as_str);
    let namespace = own.unwrap_or(&connection.namespace).to_owned();
    let mut object = object.clone();
    let meta = object.get_mut("metadata").and_then(Value::as_object_mut);
    let meta = meta.context("the workload has no metadata")?;
    let begin = meta.remove("generateName");
    if let (None, Some(begin)) = (meta.get("name"), begin) {
        meta.insert(
            "name".to_owned(),
            json!(format!("{}x", begin.as_str().unwrap_or_default())),
        );
    }
    let name = meta.get("name").and_then(Value::as_str);
    let name = name
        .context("the workload has no metadata.name")?
        .to_owned();
    let path = format!(
        "/apis/gpu.warp.dev/v1alpha1/namespaces/{}/gpuworkloads/{}?dryRun=All&fieldManager=warp&fieldValidation=Strict&force=true",
        cluster::encode(&namespace),
        cluster::encode(&name)
    );
    let request = http::Request::patch(path)
        .header("Content-Type", "application/apply-patch+yaml")
        .header("Accept", "application/json")
        .body(serde_json::to_vec(&object)?)?;
    connection
        .client
        .request(request)
        .await
        .map_err(cluster::told)
        .with_context(|| format!("the API server would refuse workload {name}"))
}

/// The plan for people.
pub(crate) fn text(workload: &GPUWorkload, seen: &Look, target: &Target) -> String {
    let mut text = groups(&seen.groups).render(true);
    let name = workload.name_any();
    text.push('\n');
    let sentence = match &seen.outlook {
        Outlook::Starts(start) => {
            let price = start.price_micros.map_or_else(String::new, |micros| {
                let gpus = u64::try_from(workload.spec.total_gpus()).unwrap_or_default();
                format!(", {} an hour", dollars(micros.saturating_mul(gpus)))
            });
            format!(
                "{name} would start now on {} with {}{price}.\n",
                start.places(),
                seen.ask
            )
        }
        Outlook::Waits { message, .. } => {
            let message = message
                .split("; to be placed now: ")
                .next()
                .unwrap_or(message);
            format!("{name} would wait for {}: {message}.\n", seen.ask)
        }
        Outlook::Invalid(problem) => format!("{name} cannot be placed as it is: {problem}.\n"),
    };
    text.push_str(&sentence);
    if let Some(preempts) = &seen.preempts {
        text.extend([format!("It {}.\n", taking(preempts))]);
    }
    if let Some(rent) = &seen.rent {
        text.extend([format!("Renting: {}.\n", rent.message)]);
    }
    if !seen.ahead.is_empty() {
        text.extend([format!(
            "{} ahead of it: {}.\n",
            seen.ahead.len(),
            names(seen)
        )]);
    }
    let steps = change_steps(workload, &seen.changes, &target.flags());
    if !steps.is_empty() {
        text.extend([format!("To start it now: {}.\n", offers(&steps))]);
    }
    text
}

/// Whose place a workload may take later, in words.
pub(crate) fn taking(preempts: &Preempting) -> String {
    let mut whose: Vec<String> = preempts.whose.iter().take(5).cloned().collect();
    if preempts.whose.len() > whose.len() {
        whose.push(format!("{} more", preempts.whose.len() - whose.len()));
    }
    format!(
        "may take the place of {} from {:.0} on: work runs for {} before it has to go (--min-run-time of the operator)",
        whose.join(", "),
        preempts.at,
        workload::span(preempts.min_run)
    )
}

fn names(seen: &Look) -> String {
    let mut names: Vec<String> = seen
        .ahead
        .iter()
        .take(5)
        .map(|one| {
            let gpus = one.workload.spec.total_gpus();
            format!("{} ({gpus} GPUs)", one.workload.name_any())
        })
        .collect();
    if seen.ahead.len() > names.len() {
        names.push(format!("{} more", seen.ahead.len() - names.len()));
    }
    names.join(", ")
}

fn offers(steps: &[Step]) -> String {
    let words: Vec<&str> = steps
        .iter()
        .take(4)
        .map(|step| step.what.as_str())
        .collect();
    words.join(", or ")
}

/// Candidate places, the chosen one marked, every other with its reason.
fn groups(groups: &[Group]) -> Table {
    let mut table = Table::new([
        "",
        "PROVIDER",
        "GPU",
        "NODES",
        "FIT",
        "IDLE GPUS",
        "$/GPU-HOUR",
        "WHY NOT",
    ]);
    for group in groups {
        let price = match group.price_micros {
            None => "-".to_owned(),
            Some((low, high)) if low == high => dollars(low),
            Some((low, high)) => format!("{}-{}", dollars(low), dollars(high)),
        };
        let reasons: Vec<String> = group
            .reasons
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        table.row([
            if group.chosen { "*" } else { "" }.to_owned(),
            group.provider.clone(),
            group.gpu.clone(),
            group.nodes.to_string(),
            group.fitting.to_string(),
            format!("{}/{}", group.idle, group.gpus),
            price,
            reasons.join(", "),
        ]);
    }
    table
}

fn as_json(workload: &GPUWorkload, seen: &Look) -> Value {
    let outlook = match &seen.outlook {
        Outlook::Starts(start) => {
            json!({"starts": {"node": start.nodes.first(), "nodes": start.nodes, "provider": start.provider,
            "gpuHourPriceMicros": start.price_micros, "strategy": start.strategy, "why": start.why}})
        }
        Outlook::Waits { reason, message } => {
            json!({"waits": {"reason": reason, "message": message}})
        }
        Outlook::Invalid(problem) => json!({"invalid": problem}),
    };
    let groups: Vec<Value> = seen
        .groups
        .iter()
        .map(|group| {
            json!({"provider": group.provider, "gpu": group.gpu, "nodes": group.nodes, "fitting": group.fitting,
                "idle": group.idle, "gpus": group.gpus, "chosen": group.chosen,
                "reasons": group.reasons.iter().map(|(reason, nodes)| json!({"reason": reason, "nodes": nodes})).collect::<Vec<_>>()})
        })
        .collect();
    let changes: Vec<Vec<String>> = seen
        .changes
        .iter()
        .map(|set| set.iter().map(ToString::to_string).collect())
        .collect();
    let ahead: Vec<String> = seen
        .ahead
        .iter()
        .map(|one| one.workload.name_any())
        .collect();
    let mut told = json!({"workload": workload.name_any(), "namespace": workload.namespace(), "ask": seen.ask,
        "outlook": outlook, "groups": groups, "ahead": ahead, "changes": changes});
    if let Some(preempts) = &seen.preempts {
        told["preempts"] = json!({"at": preempts.at.to_string(), "workloads": preempts.whose});
    }
    if let Some(rent) = &seen.rent {
        let at = rent.at.map(|at| at.to_string());
        told["rent"] = json!({"message": rent.message, "reason": rent.reason, "at": at,
            "pricePerHour": rent.price_per_hour});
    }
    told
}
