//! `warp machines`: what the clouds say runs, beside what the requests believe.

use std::collections::BTreeMap;
use std::process::ExitCode;

use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;
use warp_api::gpurequest::RequestAttempt;
use warp_api::{CloudProvider, GPURequest};
use warp_cloud::Decimal;

use super::offers::{self, Format, decimal};
use super::rent;
use crate::cluster::{self, Target};
use crate::output::{self, Table};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

/// One machine from both sides.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    machine: String,
    provider: String,
    id: Option<String>,
    gpu: Option<String>,
    /// What the cloud says of it; absent when the cloud does not list it.
    cloud: Option<String>,
    /// What its request believes; absent when it belongs to none.
    believed: Option<String>,
    request: Option<String>,
    price_per_hour: Option<String>,
    since: Option<Timestamp>,
    cost: Option<Decimal>,
    /// Cloud and request disagree.
    attention: Option<&'static str>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(machines(args))
}

async fn machines(args: Args) -> anyhow::Result<ExitCode> {
    let connection = args.target.connect().await?;
    let providers = offers::all(&connection.client).await?;
    let requests = rent::all(&connection.client).await?;
    let rows = rows(&providers, &requests, Timestamp::now());
    match args.output {
        Format::Json => output::result(&serde_json::to_string_pretty(&rows)?),
        Format::Table if rows.is_empty() => output::note("no machine is rented"),
        Format::Table => output::text(&table(&rows).render(true)),
    }
    Ok(ExitCode::SUCCESS)
}

fn rows(providers: &[CloudProvider], requests: &[GPURequest], now: Timestamp) -> Vec<Row> {
    let mut all: BTreeMap<(String, String), Row> = BTreeMap::new();
    for request in requests {
        let Some(status) = &request.status else {
            continue;
        };
        for attempt in status
            .attempts
            .iter()
            .filter(|attempt| attempt.outcome.is_none())
        {
            let key = (attempt.provider.clone(), attempt.machine.clone());
            all.insert(key, believed(request, attempt, status.phase.as_str(), now));
        }
    }
    for provider in providers {
        let machines = provider.status.iter().flat_map(|status| &status.machines);
        for machine in machines {
            let key = (provider.name_any(), machine.name.clone());
            // It was somebody's when the cloud was last asked and is nobody's now: it ended in between.
            if machine.unowned_since.is_none() && !all.contains_key(&key) {
                continue;
            }
            let row = all.entry(key).or_insert_with(|| Row {
                machine: machine.name.clone(),
                provider: provider.name_any(),
                since: machine.unowned_since.as_ref().map(|since| since.0),
                attention: Some("belongs to no request: it is ended"),
                ..Row::default()
            });
            row.cloud = Some(machine.state.clone());
            row.id = Some(machine.id.clone());
            if row.price_per_hour.is_none() {
                row.price_per_hour.clone_from(&machine.price);
            }
        }
    }
    all.into_values().collect()
}

/// Machines that are rented or still being ended, in words; none where nothing is.
pub(crate) async fn left(client: &kube::Client) -> anyhow::Result<Option<String>> {
    let providers = offers::all(client).await?;
    let requests = rent::all(client).await?;
    Ok(words(&providers, &requests))
}

/// Machines named before the rest is counted.
const NAMED: usize = 5;

fn words(providers: &[CloudProvider], requests: &[GPURequest]) -> Option<String> {
    let attempts = requests.iter().flat_map(|request| {
        let attempts = request.status.iter().flat_map(|status| &status.attempts);
        attempts.map(move |attempt| (request, attempt))
    });
    // What the cloud may have been asked for may be there, whoever saw it.
    let open = attempts
        .filter(|(_, attempt)| attempt.outcome.is_none() && attempt.sought_since().is_some());
    let mut all: Vec<String> = open
        .map(|(request, attempt)| {
            let going = attempt.ending.is_some() || request.metadata.deletion_timestamp.is_some();
            let how = if going { "being ended" } else { "rented" };
            format!("{} at {} ({how})", attempt.machine, attempt.provider)
        })
        .collect();
    let unowned = providers.iter().flat_map(|provider| {
        let machines = provider.status.iter().flat_map(|status| &status.machines);
        let unowned = machines.filter(|machine| machine.unowned_since.is_some());
        unowned.map(|machine| format!("{} at {} (nobody's)", machine.name, provider.name_any()))
    });
    all.extend(unowned);
    let count = all.len();
    if count == 0 {
        return None;
    }
    all.truncate(NAMED);
    if count > NAMED {
        all.push(format!("{} more", count - NAMED));
    }
    Some(format!(
        "{count} {} of clouds may still be there and cost money: {}",
        if count == 1 { "machine" } else { "machines" },
        all.join(", ")
    ))
}

fn believed(request: &GPURequest, attempt: &RequestAttempt, phase: &str, now: Timestamp) -> Row {
    let price = attempt
        .billed_price
        .clone()
        .unwrap_or_else(|| attempt.price.clone());
    let since = attempt.billed_from.as_ref().map(|from| from.0);
    let cost = since.zip(decimal(Some(&price))).map(|(since, price)| {
        let seconds = now.duration_since(since).as_secs().max(0);
        (price * Decimal::from(seconds) / Decimal::from(3600)).round_dp(2)
    });
    Row {
        machine: attempt.machine.clone(),
        provider: attempt.provider.clone(),
        id: attempt.instance_id.clone(),
        gpu: Some(format!("{} x {}", attempt.gpus, attempt.gpu)),
        cloud: None,
        believed: Some(if attempt.is_container() && since.is_none() {
            format!("{phase}, nothing bought")
        } else {
            phase.to_owned()
        }),
        request: Some(format!(
            "{}/{}",
            request.namespace().unwrap_or_default(),
            request.name_any()
        )),
        price_per_hour: Some(price),
        since,
        cost,
        attention: None,
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new([
        "MACHINE",
        "PROVIDER",
        "GPU",
        "CLOUD-SAYS",
        "REQUEST",
        "PHASE",
        "PRICE/H",
        "COST",
        "AGE",
    ]);
    let or_dash = |text: Option<&String>| text.cloned().unwrap_or_else(|| "-".to_owned());
    for row in rows {
        table.row([
            row.machine.clone(),
            row.provider.clone(),
            or_dash(row.gpu.as_ref()),
            // The account is listed every two minutes: a machine may be younger than that.
            row.cloud
                .clone()
                .unwrap_or_else(|| "not listed yet".to_owned()),
            or_dash(row.request.as_ref()),
            or_dash(row.believed.as_ref()),
            or_dash(row.price_per_hour.as_ref()),
            row.cost
                .map_or_else(|| "-".to_owned(), |cost| cost.to_string()),
            offers::age(row.since),
        ]);
        if let Some(attention) = row.attention {
            output::note(&format!("{} {attention}", row.machine));
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(name: &str, attempt: &serde_json::Value) -> GPURequest {
        let mut whole = json!({"number": 1, "machine": name, "provider": "fake", "gpu": "L4", "gpus": 1,
            "region": "r", "instanceType": "t", "price": "1", "priceLimit": "1", "intendedAt": "2026-11-16T12:00:00Z"});
        for (key, value) in attempt.as_object().into_iter().flatten() {
            whole[key] = value.clone();
        }
        serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"gpuType": "L4", "gpuCount": 1},
            "status": {"phase": "Ready", "attempts": [whole]},
        }))
        .expect("a request")
    }

    #[test]
    fn what_is_rented_or_still_being_ended_is_named_and_what_is_over_is_not() {
        let over = request("over", &json!({"outcome": "Deleted"}));
        let container = request("unbought", &json!({"bootstrap": "container"}));
        assert_eq!(words(&[], &[over.clone(), container.clone()]), None);
        let ending = request("going", &json!({"ending": "Deleted", "instanceId": "7"}));
        let mut deleted = request("deleted", &json!({}));
        deleted.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-11-16T12:00:00Z")).ok();
        let runs = request("runs", &json!({}));
        assert_eq!(
            words(&[], &[over, container, ending, deleted, runs]).as_deref(),
            Some(
                "3 machines of clouds may still be there and cost money: going at fake (being ended), deleted at fake (being ended), runs at fake (rented)"
            )
        );
    }

    #[test]
    fn a_machine_that_ended_since_the_cloud_was_asked_is_not_shown_and_one_of_nobody_is() {
        let provider: CloudProvider = serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "CloudProvider", "metadata": {"name": "fake"},
            "spec": {"type": "fake"},
            "status": {"machines": [
                {"id": "1", "name": "ended", "state": "running", "request": "default/a"},
                {"id": "2", "name": "leaked", "state": "running", "unownedSince": "2026-11-16T12:00:00Z"},
            ]},
        }))
        .expect("a provider");
        let rows = rows(&[provider], &[], Timestamp::UNIX_EPOCH);
        let names: Vec<&str> = rows.iter().map(|row| row.machine.as_str()).collect();
        assert_eq!(names, ["leaked"]);
    }
}
