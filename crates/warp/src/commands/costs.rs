//! `warp costs`: what rented machines have cost, from the ledger the operator keeps, and what work has used of the cluster's
//! own.

mod advice;
mod owned;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::Context;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::ListParams;
use serde::{Deserialize, Serialize};
use warp_cloud::Decimal;

use super::{install, offers, rent};
use crate::cluster::{self, Target, told};
use crate::output::{self, Table};

/// On the ConfigMaps of the ledger the operator keeps.
pub(crate) const LEDGER: &str = "gpu.warp.dev/costs";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Add up by this
    #[arg(long, value_enum, default_value = "machine")]
    by: By,
    /// Count the cluster's own machines too: what workloads the API still knows have used, at the price of a GPU-hour
    #[arg(long, conflicts_with = "advice")]
    owned: bool,
    /// Namespace of the operator, which keeps the ledger
    #[arg(long, default_value = install::NAMESPACE, value_name = "NAME")]
    operator_namespace: String,
    /// Say what would cost less instead, with the arithmetic
    #[arg(long, conflicts_with = "by")]
    advice: bool,
    #[arg(short, long, value_enum, default_value = "table")]
    output: Form,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Machine,
    Request,
    Workload,
    Namespace,
    Tenant,
    User,
    Provider,
    #[value(alias = "type")]
    Gpu,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Table,
    Json,
    Csv,
}

/// One machine in the ledger.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    namespace: String,
    request: String,
    #[serde(default)]
    workload: Option<String>,
    #[serde(default)]
    tenant: Option<String>,
    #[serde(default)]
    user: Option<String>,
    provider: String,
    machine: String,
    gpu: String,
    gpus: u32,
    #[serde(default)]
    region: String,
    #[serde(default)]
    spot: bool,
    price_per_hour: Decimal,
    from: Timestamp,
    until: Option<Timestamp>,
    cost: Option<Decimal>,
}

impl Entry {
    fn seconds(&self, now: Timestamp) -> i64 {
        let until = self.until.unwrap_or(now);
        until.duration_since(self.from).as_secs().max(0)
    }

    fn cost(&self, now: Timestamp) -> Decimal {
        self.cost.unwrap_or_else(|| {
            let seconds = Decimal::from(self.seconds(now));
            (self.price_per_hour * seconds / Decimal::from(3600)).round_dp(4)
        })
    }

    fn name(&self, by: By) -> String {
        match by {
            By::Machine => self.machine.clone(),
            By::Request => format!("{}/{}", self.namespace, self.request),
            // One that people rented themselves is on no workload's bill.
            By::Workload => match &self.workload {
                Some(workload) => format!("{}/{workload}", self.namespace),
                None => "-".to_owned(),
            },
            By::Namespace => self.namespace.clone(),
            By::Tenant => self.tenant.clone().unwrap_or_else(|| "-".to_owned()),
            By::User => self.user.clone().unwrap_or_else(|| "-".to_owned()),
            By::Provider => self.provider.clone(),
            By::Gpu => self.gpu.clone(),
        }
    }

    fn line(&self, by: By, now: Timestamp) -> Line {
        let until = self.until.unwrap_or(now);
        Line {
            name: self.name(by),
            machine: self.machine.clone(),
            running: self.until.is_none(),
            gpu_hours: (hours(self.from, until) * Decimal::from(self.gpus)).round_dp(3),
            cost: self.cost(now),
        }
    }
}

/// Hours from one time to another.
fn hours(from: Timestamp, until: Timestamp) -> Decimal {
    let seconds = until.duration_since(from).as_secs().max(0);
    Decimal::from(seconds) / Decimal::from(3600)
}

/// One entry of a bill, under the name it is added up by.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    name: String,
    machine: String,
    running: bool,
    gpu_hours: Decimal,
    cost: Decimal,
}

/// What one name of the chosen kind has cost.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Sum {
    name: String,
    machines: u32,
    running: u32,
    gpu_hours: Decimal,
    cost: Decimal,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(costs(args))
}

async fn costs(args: Args) -> anyhow::Result<ExitCode> {
    let connection = args.target.connect().await?;
    let api: Api<ConfigMap> = Api::namespaced(connection.client.clone(), &args.operator_namespace);
    let books = api
        .list(&ListParams::default().labels(LEDGER))
        .await
        .map_err(told)
        .with_context(|| format!("failed to read the ledger in {}", args.operator_namespace))?;
    let now = Timestamp::now();
    let texts = books.items.iter().filter_map(|book| book.data.as_ref());
    let entries: Vec<Entry> = texts
        .flat_map(BTreeMap::values)
        .filter_map(|text| serde_json::from_str(text).ok())
        .collect();
    if args.advice {
        let requests = rent::all(&connection.client).await?;
        let providers = offers::all(&connection.client).await?;
        let said = advice::all(&entries, &requests, &providers, now);
        match args.output {
            Form::Json => output::result(&serde_json::to_string_pretty(&said)?),
            _ if said.is_empty() => output::note("nothing would cost less"),
            _ => said.iter().for_each(|advice| output::line(&advice.text)),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines: Vec<Line> = entries
        .iter()
        .map(|entry| entry.line(args.by, now))
        .collect();
    if args.owned {
        let rented: BTreeSet<String> = entries.iter().map(|entry| entry.machine.clone()).collect();
        let used = owned::read(&connection.client, &args.operator_namespace, &rented).await?;
        lines.extend(used.iter().map(|usage| usage.line(args.by, now)));
        let unpriced = used.iter().filter(|usage| !usage.is_priced());
        let unpriced: Decimal = unpriced.map(|usage| usage.gpu_hours(now)).sum();
        if !unpriced.is_zero() {
            output::note(&format!(
                "{} GPU-hours have no price: label their nodes with gpu.warp.dev/gpu-hour-price, or name the model in ConfigMap {}/{}",
                unpriced.round_dp(2),
                args.operator_namespace,
                owned::PRICES
            ));
        }
    }
    let sums = sums(lines);
    match args.output {
        Form::Json => output::result(&serde_json::to_string_pretty(&sums)?),
        Form::Csv => {
            output::line("name,machines,running,gpuHours,cost");
            for sum in &sums {
                output::line(&format!(
                    "{},{},{},{},{}",
                    quoted(&sum.name),
                    sum.machines,
                    sum.running,
                    sum.gpu_hours,
                    sum.cost
                ));
            }
        }
        Form::Table if sums.is_empty() && args.owned => output::note("nothing was used"),
        Form::Table if sums.is_empty() => output::note("nothing was rented"),
        Form::Table => output::text(&table(&sums, args.by).render(true)),
    }
    Ok(ExitCode::SUCCESS)
}

/// A field of CSV: in quotes where it would be taken for several.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn sums(lines: Vec<Line>) -> Vec<Sum> {
    let mut all: BTreeMap<String, (Sum, BTreeMap<String, bool>)> = BTreeMap::new();
    for line in lines {
        let (sum, machines) = all.entry(line.name.clone()).or_default();
        sum.name = line.name;
        sum.gpu_hours += line.gpu_hours;
        sum.cost += line.cost;
        *machines.entry(line.machine).or_default() |= line.running;
    }
    let count = |machines: usize| u32::try_from(machines).unwrap_or(u32::MAX);
    let summed = all.into_values().map(|(mut sum, machines)| {
        sum.machines = count(machines.len());
        sum.running = count(machines.values().filter(|running| **running).count());
        sum
    });
    let mut all: Vec<Sum> = summed.collect();
    all.sort_by(|one, other| (other.cost, &one.name).cmp(&(one.cost, &other.name)));
    all
}

fn table(sums: &[Sum], by: By) -> Table {
    let head = match by {
        By::Machine => "MACHINE",
        By::Request => "REQUEST",
        By::Workload => "WORKLOAD",
        By::Namespace => "NAMESPACE",
        By::Tenant => "TENANT",
        By::User => "USER",
        By::Provider => "PROVIDER",
        By::Gpu => "GPU",
    };
    let mut table = Table::new([head, "MACHINES", "RUNNING", "GPU-HOURS", "DOLLARS"]);
    for sum in sums {
        table.row([
            sum.name.clone(),
            sum.machines.to_string(),
            sum.running.to_string(),
            sum.gpu_hours.round_dp(2).to_string(),
            sum.cost.round_dp(2).to_string(),
        ]);
    }
    let total: Decimal = sums.iter().map(|sum| sum.cost).sum();
    if sums.len() > 1 {
        output::note(&format!("{} dollars in all", total.round_dp(2)));
    }
    table
}
