//! `warp offers`: what clouds rent out, at which price.

use std::process::ExitCode;

use anyhow::Context;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use warp_api::CloudProvider;
use warp_api::cloudprovider::{CircuitState, CloudOffer};
use warp_cloud::{Decimal, in_region};

use crate::cluster::{self, Target, told};
use crate::output::{self, Table};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only this model, such as H100
    gpu: Option<String>,
    #[command(flatten)]
    target: Target,
    /// Only machines with at least this many GPUs
    #[arg(long, value_name = "GPUS", default_value_t = 1)]
    count: u32,
    /// Only this region or area, such as us-west-1 or us-west
    #[arg(long)]
    region: Option<String>,
    /// Only this CloudProvider
    #[arg(long)]
    provider: Option<String>,
    /// Only what costs at most this many dollars an hour
    #[arg(long, value_name = "DOLLARS")]
    max_price: Option<Decimal>,
    /// Only what is sold as spot, by its spot price
    #[arg(long)]
    spot: bool,
    /// One row for each model and size: the cheapest, and how many there are
    #[arg(long, conflicts_with = "rejected")]
    group: bool,
    /// What is left out by the other conditions instead, and why
    #[arg(long)]
    rejected: bool,
    /// Rows that are shown; 0 shows all
    #[arg(long, default_value_t = 20)]
    limit: usize,
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

/// How a result is printed.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Json,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(offers(args))
}

/// One offer with where it comes from.
struct Row {
    provider: String,
    offer: CloudOffer,
    price: Decimal,
    checked: Option<jiff::Timestamp>,
    /// Where the price is from.
    source: &'static str,
    /// Why nothing is rented from this provider, if nothing is.
    closed: Option<String>,
}

async fn offers(args: Args) -> anyhow::Result<ExitCode> {
    let models = models(args.gpu.as_deref())?;
    let connection = args.target.connect().await?;
    let providers = all(&connection.client).await?;
    if providers.is_empty() {
        output::note(
            "there is no CloudProvider; `warp up --demo` brings one, and deploy/examples/cloud.yaml shows how to make one",
        );
        return Ok(ExitCode::FAILURE);
    }
    for provider in &providers {
        trouble(provider);
    }
    let mut rows: Vec<Row> = providers.iter().flat_map(rows).collect();
    let known = rows.len();
    let of_model = |row: &Row| {
        let models = models.as_ref();
        models.is_none_or(|models| models.contains(&row.offer.gpu.as_str()))
    };
    rows.retain(|row| of_model(row) && objection(&args, row).is_some() == args.rejected);
    if args.spot {
        for row in &mut rows {
            row.price = decimal(row.offer.spot_price.as_deref()).unwrap_or(row.price);
        }
    }
    rows.sort_by(|one, other| {
        let key = |row: &Row| (row.price, row.offer.gpu.clone(), row.offer.region.clone());
        key(one).cmp(&key(other))
    });
    if args.group {
        return grouped(&args, &rows);
    }
    let fitting = rows.len();
    if args.limit > 0 {
        rows.truncate(args.limit);
    }
    match args.output {
        Format::Json => {
            let all = rows.iter().map(|row| {
                let mut it = described(row);
                let why = objection(&args, row);
                it["rejected"] = json!(why.filter(|_| args.rejected));
                it
            });
            let all: Vec<Value> = all.collect();
            output::result(&serde_json::to_string_pretty(&all)?);
        }
        Format::Table => {
            let why = |row: &Row| objection(&args, row);
            let table = if args.rejected {
                refused(&rows, why)
            } else {
                table(&rows)
            };
            output::text(&table.render(true));
            if rows.len() < fitting {
                let more = fitting - rows.len();
                output::note(&format!(
                    "{more} dearer ones are not shown; --limit 0 shows all"
                ));
            }
        }
    }
    if rows.is_empty() {
        output::note(&format!(
            "none of {known} offers is like that; leave out a condition"
        ));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The catalogue's names of a model somebody wrote.
pub(crate) fn models(gpu: Option<&str>) -> anyhow::Result<Option<Vec<&'static str>>> {
    let Some(gpu) = gpu else {
        return Ok(None);
    };
    let found = warp_core::gpu::named(gpu);
    if found.is_empty() {
        anyhow::bail!(
            "\"{gpu}\" is no GPU of the catalogue; write it as its vendor does, such as H100 or \"RTX 4090\""
        );
    }
    Ok(Some(found.iter().map(|model| model.name).collect()))
}

/// Every CloudProvider, by name.
pub(crate) async fn all(client: &kube::Client) -> anyhow::Result<Vec<CloudProvider>> {
    let api: Api<CloudProvider> = Api::all(client.clone());
    let list = api
        .list(&kube::api::ListParams::default())
        .await
        .map_err(told)
        .context("failed to list CloudProviders")?;
    Ok(list.items)
}

/// Says what is wrong with a provider, if anything is.
fn trouble(provider: &CloudProvider) {
    let status = provider.status.as_ref();
    let conditions = status.map(|status| status.conditions.as_slice());
    let ready = warp_api::condition::find(conditions.unwrap_or_default(), "Ready");
    match ready {
        Some(ready) if ready.status == "True" => {}
        Some(ready) => output::note(&format!(
            "{}: {} ({})",
            provider.name_any(),
            ready.message,
            ready.reason
        )),
        None => output::note(&format!("{}: not asked yet", provider.name_any())),
    }
}

/// Why nothing is rented from a provider at the moment.
pub(crate) fn closed(provider: &CloudProvider) -> Option<String> {
    if !provider.spec.enabled {
        return Some("spec.enabled is false".to_owned());
    }
    let circuit = provider.status.as_ref()?.circuit.as_ref()?;
    let last = circuit.last_failure.as_deref().unwrap_or_default();
    (circuit.state == CircuitState::Open).then(|| {
        format!(
            "its last {} machines came to nothing ({last})",
            circuit.failures
        )
    })
}

fn rows(provider: &CloudProvider) -> Vec<Row> {
    let Some(status) = &provider.status else {
        return Vec::new();
    };
    let checked = status.offers_checked_at.as_ref().map(|at| at.0);
    let each = status.offers.iter().filter_map(|offer| {
        Some(Row {
            provider: provider.name_any(),
            price: decimal(Some(&offer.price))?,
            offer: offer.clone(),
            checked,
            source: source(provider.spec.kind.as_str()),
            closed: closed(provider),
        })
    });
    each.collect()
}

pub(crate) fn decimal(text: Option<&str>) -> Option<Decimal> {
    text?.parse().ok()
}

/// What speaks against an offer, if anything does.
fn objection(args: &Args, row: &Row) -> Option<String> {
    let offer = &row.offer;
    if offer.gpus < args.count {
        return Some(format!("fewer than {} GPUs", args.count));
    }
    let elsewhere = |region: &String| !in_region(&offer.region, region);
    if args.region.as_ref().is_some_and(elsewhere) {
        return Some("another region".to_owned());
    }
    if args
        .provider
        .as_ref()
        .is_some_and(|name| *name != row.provider)
    {
        return Some("another provider".to_owned());
    }
    let spot = decimal(offer.spot_price.as_deref());
    let price = match (args.spot, spot) {
        (true, None) => return Some("not sold as spot".to_owned()),
        (true, Some(spot)) => spot,
        (false, _) => decimal(Some(&offer.price)).unwrap_or(row.price),
    };
    if let Some(most) = args.max_price.filter(|most| price > *most) {
        return Some(format!("{} dearer than {most}", price - most));
    }
    // Said of what would do otherwise: it is shown, and cannot be had at the moment.
    let sold_out = (offer.availability == "none").then(|| "sold out".to_owned());
    sold_out
        .or_else(|| row.closed.clone())
        .filter(|_| args.rejected)
}

/// Where a provider's prices are from.
fn source(kind: &str) -> &'static str {
    match kind {
        "paperspace" => "its list of 2025-09",
        "fake" => "a list of 2026-08",
        "azure" => "its public list",
        "gcp" => "its billing catalogue",
        _ => "its API",
    }
}

/// The cheapest of each model and size.
fn grouped(args: &Args, rows: &[Row]) -> anyhow::Result<ExitCode> {
    let mut groups: Vec<(&Row, usize)> = Vec::new();
    for row in rows {
        let same = |(known, _): &&mut (&Row, usize)| {
            (&known.offer.gpu, known.offer.gpus) == (&row.offer.gpu, row.offer.gpus)
        };
        match groups.iter_mut().find(same) {
            Some((_, count)) => *count += 1,
            None => groups.push((row, 1)),
        }
    }
    if args.output == Format::Json {
        let all = groups.iter().map(|(row, count)| {
            let mut it = described(row);
            it["offers"] = json!(count);
            it
        });
        let all: Vec<Value> = all.collect();
        output::result(&serde_json::to_string_pretty(&all)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new([
        "GPU", "GPUS", "FROM/H", "PROVIDER", "REGION", "OFFERS", "SOURCE", "AGE",
    ]);
    for (row, count) in groups {
        table.row([
            row.offer.gpu.clone(),
            row.offer.gpus.to_string(),
            row.price.to_string(),
            row.provider.clone(),
            row.offer.region.clone(),
            count.to_string(),
            row.source.to_owned(),
            age(row.checked),
        ]);
    }
    output::text(&table.render(true));
    Ok(ExitCode::SUCCESS)
}

/// What does not do, and why.
fn refused(rows: &[Row], why: impl Fn(&Row) -> Option<String>) -> Table {
    let mut table = Table::new([
        "GPU", "GPUS", "PRICE/H", "PROVIDER", "REGION", "TYPE", "WHY NOT",
    ]);
    for row in rows {
        let offer = &row.offer;
        table.row([
            offer.gpu.clone(),
            offer.gpus.to_string(),
            offer.price.clone(),
            row.provider.clone(),
            offer.region.clone(),
            offer.instance_type.clone(),
            why(row).unwrap_or_default(),
        ]);
    }
    table
}

/// How long ago, in the largest unit that fits.
pub(crate) fn age(at: Option<jiff::Timestamp>) -> String {
    let Some(at) = at else {
        return "-".to_owned();
    };
    let seconds = jiff::Timestamp::now().duration_since(at).as_secs().max(0);
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new([
        "GPU",
        "GPUS",
        "PRICE/H",
        "SPOT/H",
        "PROVIDER",
        "REGION",
        "TYPE",
        "AVAILABLE",
        "AGE",
    ]);
    for row in rows {
        let offer = &row.offer;
        table.row([
            offer.gpu.clone(),
            offer.gpus.to_string(),
            offer.price.clone(),
            offer.spot_price.clone().unwrap_or_else(|| "-".to_owned()),
            row.provider.clone(),
            offer.region.clone(),
            offer.instance_type.clone(),
            offer.availability.clone(),
            age(row.checked),
        ]);
    }
    table
}

fn described(row: &Row) -> Value {
    let mut value = serde_json::to_value(&row.offer).unwrap_or_default();
    value["provider"] = json!(row.provider);
    value["checkedAt"] = json!(row.checked);
    value["source"] = json!(row.source);
    value["closed"] = json!(row.closed);
    value
}
