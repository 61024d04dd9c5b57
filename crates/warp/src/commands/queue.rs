//! `warp queue`: who waits for GPUs, in the order they are served, and for what.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ListParams;
use serde::Serialize;
use warp_api::workload::{EstimatedStart, Priority};
use warp_api::{GPUWorkload, Phase, Tenant, label, reason};
use warp_operator::Settings;
use warp_operator::foresight::{Cluster, QueuedJob, Waiter, everybody, jobs_without_place};

use crate::cluster::{self, Connection, Target, live, operator};
use crate::output::{self, Table};
use crate::workload;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Every namespace
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// How to print the result
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Table,
    Wide,
    Json,
}

/// One workload of the queue.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    /// Its place in line, from 1; none for what is not in line now.
    position: Option<usize>,
    namespace: String,
    name: String,
    priority: Priority,
    gpus: i32,
    /// What it asks for, in words.
    ask: String,
    waiting_since: Option<String>,
    #[serde(skip)]
    since: Option<Timestamp>,
    /// When it is expected to start, where anybody can tell.
    estimated_start: Option<EstimatedStart>,
    /// What it waits for, in words.
    waiting_for: Option<String>,
    reason: String,
    message: String,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(queue(args))
}

async fn queue(args: Args) -> anyhow::Result<ExitCode> {
    let connection = args.target.connect().await?;
    let (workloads, everywhere) = workloads(&connection).await?;
    let settings = operator::settings(&connection.client).await;
    let jobs = jobs(&connection, everywhere).await?;
    let within = (!everywhere).then_some(connection.namespace.as_str());
    let (queued, _) = cluster::queued::all(&connection.client, &jobs, within).await?;
    let cluster = Cluster {
        learnt: operator::learnt(&connection.client, &settings).await,
        jobs,
        queued,
        // Who may not read them sees Jobs of every class among the usual ones.
        priorities: live::everywhere(&connection.client)
            .await
            .unwrap_or_default(),
        workloads,
        ..Cluster::default()
    };
    if !everywhere {
        output::note(&format!(
            "you may read namespace {} only: places in line are counted among its workloads",
            connection.namespace
        ));
    }
    let now = Timestamp::now();
    let mut entries = entries(&cluster, &settings, now);
    if !args.all_namespaces {
        entries.retain(|entry| entry.namespace == connection.namespace);
    }
    if args.output == Format::Json {
        output::line(&serde_json::to_string_pretty(&entries)?);
        return Ok(ExitCode::SUCCESS);
    }
    if entries.is_empty() {
        let place = if args.all_namespaces {
            ""
        } else {
            " in this namespace"
        };
        output::note(&format!("nothing waits{place}"));
        return Ok(ExitCode::SUCCESS);
    }
    output::text(&table(&args, &entries, now).render(true));
    // Who may not read tenants is shown the queue alone.
    let tenants = live::everywhere::<Tenant>(&connection.client).await;
    let tenants: Vec<Tenant> = tenants
        .unwrap_or_default()
        .iter()
        .map(|tenant| Tenant::clone(tenant))
        .collect();
    if let Some(bars) = super::tenant::bars(&tenants) {
        output::line("");
        output::text(&bars.render(true));
    }
    Ok(ExitCode::SUCCESS)
}

/// Every workload that may be read, and whether those are all.
async fn workloads(connection: &Connection) -> anyhow::Result<(Vec<Arc<GPUWorkload>>, bool)> {
    match live::everywhere(&connection.client).await {
        Ok(found) => Ok((found, true)),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let every = ListParams::default();
            let (client, namespace) = (&connection.client, &connection.namespace);
            let own = live::in_namespace(client, namespace, &every).await;
            let own = own.map_err(cluster::told);
            Ok((own.context("failed to list workloads")?, false))
        }
        Err(error) => Err(cluster::told(error)).context("failed to list workloads"),
    }
}

async fn jobs(
    connection: &Connection,
    everywhere: bool,
) -> anyhow::Result<Vec<Arc<k8s_openapi::api::batch::v1::Job>>> {
    let found = if everywhere {
        live::everywhere(&connection.client).await
    } else {
        let own = ListParams::default();
        live::in_namespace(&connection.client, &connection.namespace, &own).await
    };
    match found {
        Ok(found) => Ok(found),
        // Their phases tell nearly as much.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Vec::new()),
        Err(error) => Err(cluster::told(error)).context("failed to list jobs"),
    }
}

/// Those in line, in order, then those that wait for something else.
fn entries(cluster: &Cluster, settings: &Settings, now: Timestamp) -> Vec<Entry> {
    let line = everybody(cluster, settings, now);
    let mut entries: Vec<Entry> = line
        .iter()
        .enumerate()
        .map(|(at, waiter)| match waiter {
            Waiter::Workload(workload) => entry(cluster, workload, Some(at + 1)),
            Waiter::Job(job) => job_entry(job, Some(at + 1)),
        })
        .collect();
    let in_line = |workload: &GPUWorkload| {
        let mut line = line.iter();
        line.any(|one| matches!(one, Waiter::Workload(one) if one.uid() == workload.uid()))
    };
    let mut others: Vec<&Arc<GPUWorkload>> = cluster
        .workloads
        .iter()
        .filter(|workload| workload::phase(workload) == Phase::Pending && !in_line(workload))
        .collect();
    others.sort_by_key(|workload| (workload.namespace(), workload.name_any()));
    entries.extend(
        others
            .into_iter()
            .map(|workload| entry(cluster, workload, None)),
    );
    let mut jobs = jobs_without_place(cluster);
    let placed = |job: &QueuedJob| {
        let mut line = line.iter();
        line.any(|one| matches!(one, Waiter::Job(one) if one.job.uid() == job.job.uid()))
    };
    jobs.retain(|job| !placed(job));
    jobs.sort_by_key(|job| (job.job.namespace(), job.job.name_any()));
    entries.extend(jobs.iter().map(|job| job_entry(job, None)));
    entries
}

/// A queued Job, in its annotations' words.
fn job_entry(queued: &QueuedJob, position: Option<usize>) -> Entry {
    let job = &queued.job;
    let said = |name: &str| job.annotations().get(name).cloned();
    let since = job.creation_timestamp().map(|time| time.0);
    Entry {
        position,
        namespace: job.namespace().unwrap_or_default(),
        name: job.title(),
        priority: queued.priority,
        gpus: i32::try_from(queued.gpus).unwrap_or(i32::MAX),
        ask: queued.ask.clone(),
        waiting_since: since.map(|time| time.to_string()),
        since,
        estimated_start: job.estimated_start().filter(|_| position.is_some()),
        waiting_for: said(label::WAITING_FOR),
        reason: said(label::QUEUE_REASON).unwrap_or_else(|| reason::QUEUED.to_owned()),
        message: said(label::WAITING_FOR).unwrap_or_default(),
    }
}

fn entry(cluster: &Cluster, workload: &GPUWorkload, position: Option<usize>) -> Entry {
    let since = workload::waits_since(workload);
    let said = workload::said(workload);
    let spec = &workload.spec;
    let status = workload.status.as_ref().filter(|_| position.is_some());
    let suspended = spec.suspend.then_some(reason::SUSPENDED);
    Entry {
        position,
        namespace: workload.namespace().unwrap_or_default(),
        name: workload.name_any(),
        priority: cluster.priority_of_workload(workload),
        gpus: spec.total_gpus(),
        ask: spec.describe_ask(),
        waiting_since: since.map(|time| time.to_string()),
        since,
        estimated_start: status.and_then(|status| status.estimated_start.clone()),
        waiting_for: status.and_then(|status| status.waiting_for.clone()),
        reason: suspended
            .or(said.map(|(reason, _)| reason))
            .unwrap_or(reason::QUEUED)
            .to_owned(),
        message: said.map_or_else(String::new, |(_, message)| message.to_owned()),
    }
}

fn table(args: &Args, entries: &[Entry], now: Timestamp) -> Table {
    let wide = args.output == Format::Wide;
    let mut header = vec!["POSITION"];
    header.extend(args.all_namespaces.then_some("NAMESPACE"));
    header.extend(["NAME", "PRIORITY", "GPUS", "WAITING", "START", "REASON"]);
    header.extend(wide.then_some("MESSAGE"));
    let mut table = Table::new(header);
    for entry in entries {
        let position = entry
            .position
            .map_or_else(|| "-".to_owned(), |at| at.to_string());
        let mut row = vec![position];
        row.extend(args.all_namespaces.then(|| entry.namespace.clone()));
        let priority = match entry.priority {
            Priority::Low => "low",
            Priority::Normal => "normal",
            Priority::High => "high",
        };
        row.extend([
            entry.name.clone(),
            priority.to_owned(),
            entry.ask.clone(),
            entry.since.map_or_else(String::new, workload::since),
            entry
                .estimated_start
                .as_ref()
                .map_or_else(|| "-".to_owned(), |start| workload::start(start, now)),
            entry.reason.clone(),
        ]);
        row.extend(wide.then(|| entry.message.clone()));
        table.row(row);
    }
    table
}
