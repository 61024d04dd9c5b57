//! What would have cost less, with the arithmetic: machines nobody uses, and machines that are also sold as spot. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde::Serialize;
use warp_api::{CloudProvider, GPURequest};
use warp_cloud::Decimal;

use super::Entry;

/// Nobody leaves a machine unused for this long on purpose.
const IDLE: SignedDuration = SignedDuration::from_hours(1);

/// One thing to do, with what it is worth.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Advice {
    what: &'static str,
    pub(super) text: String,
    dollars: Decimal,
}

/// Everything there is to say, what is worth most first.
pub(super) fn all(
    entries: &[Entry],
    requests: &[GPURequest],
    providers: &[CloudProvider],
    now: Timestamp,
) -> Vec<Advice> {
    let mut all: Vec<Advice> = [idle(requests, now), spot(entries, providers, now)]
        .into_iter()
        .flatten()
        .collect();
    all.sort_by_key(|advice| std::cmp::Reverse(advice.dollars));
    all
}

/// Machines nobody uses and that nothing gives back.
fn idle(requests: &[GPURequest], now: Timestamp) -> Option<Advice> {
    let unused = requests.iter().filter_map(|request| {
        let status = request.status.as_ref()?;
        let since = status.idle_since.as_ref()?.0;
        let long = now.duration_since(since) >= IDLE && request.spec.idle_timeout.is_none();
        // A node that waits for a pod costs nothing.
        let mut open = status.attempts.iter().filter(|one| one.outcome.is_none());
        let free = open.any(|one| one.is_container() && one.billed_from.is_none());
        let price: Decimal = status.price_per_hour.as_ref()?.parse().ok()?;
        let namespace = request.namespace().unwrap_or_default();
        (long && !free).then(|| (format!("{namespace}/{}", request.name_any()), price))
    });
    let unused: Vec<(String, Decimal)> = unused.collect();
    if unused.is_empty() {
        return None;
    }
    let hourly: Decimal = unused.iter().map(|(_, price)| price).sum();
    let day = (hourly * Decimal::from(24)).round_dp(2);
    let prices: Vec<String> = unused.iter().map(|(_, price)| price.to_string()).collect();
    let names: Vec<&str> = unused.iter().map(|(name, _)| name.as_str()).collect();
    let text = format!(
        "{} idle for more than an hour: {day} dollars a day (({}) x 24); delete {}, or set idleTimeout",
        counted(unused.len()),
        prices.join(" + "),
        names.join(", ")
    );
    Some(Advice {
        what: "idle",
        text,
        dollars: day,
    })
}

/// What was rented on demand although the same is sold as spot.
fn spot(entries: &[Entry], providers: &[CloudProvider], now: Timestamp) -> Option<Advice> {
    let mut prices: BTreeMap<(String, &str, u32, &str), Decimal> = BTreeMap::new();
    for provider in providers {
        for offer in provider.status.iter().flat_map(|status| &status.offers) {
            let price = offer
                .spot_price
                .as_ref()
                .and_then(|price| price.parse().ok());
            if let Some(price) = price {
                let place = (provider.name_any(), &*offer.gpu, offer.gpus, &*offer.region);
                prices.insert(place, price);
            }
        }
    }
    let (mut paid, mut less, mut machines) = (Decimal::ZERO, Decimal::ZERO, 0);
    for entry in entries.iter().filter(|entry| !entry.spot) {
        let place = (
            entry.provider.clone(),
            &*entry.gpu,
            entry.gpus,
            &*entry.region,
        );
        let Some(spot) = prices
            .get(&place)
            .filter(|spot| **spot < entry.price_per_hour)
        else {
            continue;
        };
        let hours = Decimal::from(entry.seconds(now)) / Decimal::from(3600);
        paid += entry.cost(now);
        less += (*spot * hours).round_dp(4);
        machines += 1;
    }
    let saved = (paid - less).round_dp(2);
    if machines == 0 || saved <= Decimal::ZERO {
        return None;
    }
    let share = (saved * Decimal::from(100) / paid).round();
    let text = format!(
        "spot would have saved {share} %: {saved} of {} dollars ({} on demand; {} at the spot prices of now)",
        paid.round_dp(2),
        counted(machines),
        less.round_dp(2)
    );
    Some(Advice {
        what: "spot",
        text,
        dollars: saved,
    })
}

fn counted(machines: usize) -> String {
    match machines {
        1 => "1 machine".to_owned(),
        more => format!("{more} machines"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "`json!` at the call reads best by value"
    )]
    fn request(name: &str, price: &str, idle_since: &str, spec: Value) -> GPURequest {
        serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
            "metadata": {"name": name, "namespace": "default"}, "spec": spec,
            "status": {"phase": "Ready", "pricePerHour": price, "idleSince": idle_since},
        }))
        .expect("a request")
    }

    #[test]
    fn machines_nobody_uses_are_told_with_what_a_day_of_them_costs() {
        let plain = json!({"gpuType": "H100"});
        let requests = [
            request("a", "2.90", "2026-11-16T10:00:00Z", plain.clone()),
            request("b", "1.10", "2026-11-16T09:00:00Z", plain.clone()),
            request("busy-lately", "9", "2026-11-16T11:30:00Z", plain),
            request(
                "ends-itself",
                "9",
                "2026-11-16T09:00:00Z",
                json!({"gpuType": "H100", "idleTimeout": "8h"}),
            ),
        ];
        let said = all(&[], &requests, &[], at("2026-11-16T12:00:00Z"));
        assert_eq!(said.len(), 1);
        assert_eq!(
            said[0].text,
            "2 machines idle for more than an hour: 96.00 dollars a day ((2.90 + 1.10) x 24); delete default/a, default/b, or set idleTimeout"
        );
    }

    #[test]
    fn what_spot_would_have_saved_is_told_with_what_was_paid() {
        let entry = |spot: bool, region: &str| -> Entry {
            serde_json::from_value(json!({
                "namespace": "default", "request": "a", "provider": "fake", "machine": "m", "gpu": "H100-80GB",
                "gpus": 1, "region": region, "spot": spot, "pricePerHour": "3.00",
                "from": "2026-11-16T10:00:00Z", "until": "2026-11-16T12:00:00Z", "cost": "6.00",
            }))
            .expect("an entry")
        };
        let provider: CloudProvider = serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "CloudProvider", "metadata": {"name": "fake"},
            "spec": {"type": "fake"},
            "status": {"offers": [{"gpu": "H100-80GB", "gpus": 1, "region": "here", "instanceType": "t",
                "price": "3.00", "spotPrice": "1.20", "availability": "high"}]},
        }))
        .expect("a provider");
        let entries = [
            entry(false, "here"),
            entry(true, "here"),
            entry(false, "elsewhere"),
        ];
        let said = all(&entries, &[], &[provider], at("2026-11-16T13:00:00Z"));
        assert_eq!(
            said[0].text,
            "spot would have saved 60 %: 3.60 of 6.00 dollars (1 machine on demand; 2.40 at the spot prices of now)"
        );
        assert!(all(&entries, &[], &[], at("2026-11-16T13:00:00Z")).is_empty());
    }
}
