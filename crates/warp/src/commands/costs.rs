//! `warp costs`: what rented machines have cost, from the ledger the operator keeps.

mod advice;

use std::collections::BTreeMap;
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

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Add up by this
    #[arg(long, value_enum, default_value = "machine")]
    by: By,
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
    Provider,
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
            By::Provider => self.provider.clone(),
            By::Gpu => self.gpu.clone(),
        }
    }
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
        .list(&ListParams::default().labels("gpu.warp.dev/costs"))
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
    let sums = sums(&entries, args.by, now);
    match args.output {
        Form::Json => output::result(&serde_json::to_string_pretty(&sums)?),
        Form::Csv => {
            output::line("name,machines,running,gpuHours,cost");
            for sum in &sums {
                output::line(&format!(
                    "{},{},{},{},{}",
                    sum.name, sum.machines, sum.running, sum.gpu_hours, sum.cost
                ));
            }
        }
        Form::Table if sums.is_empty() => output::note("nothing was rented"),
        Form::Table => output::text(&table(&sums, args.by).render(true)),
    }
    Ok(ExitCode::SUCCESS)
}

fn sums(entries: &[Entry], by: By, now: Timestamp) -> Vec<Sum> {
    let mut all: BTreeMap<String, Sum> = BTreeMap::new();
    for entry in entries {
        let name = entry.name(by);
        let sum = all.entry(name.clone()).or_default();
        sum.name = name;
        sum.machines += 1;
        sum.running += u32::from(entry.until.is_none());
        let hours = Decimal::from(entry.seconds(now)) / Decimal::from(3600);
        sum.gpu_hours += (hours * Decimal::from(entry.gpus)).round_dp(3);
        sum.cost += entry.cost(now);
    }
    let mut all: Vec<Sum> = all.into_values().collect();
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
