//! What a service does and costs, in figures: from what its engines reported and what its nodes cost. Pure. What is not
//! known is left out, never nought.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use warp_api::inferenceservice::{CacheSize, ServiceCost, ServiceLoad};
use warp_api::{InferenceService, label};

use super::observe::Seen;
use super::pools;
use crate::ledger::node_of;

const MILLION: u128 = 1_000_000;

pub(super) fn load(seen: &Seen) -> Option<ServiceLoad> {
    let heard = seen.heard?;
    let load = heard.load;
    Some(ServiceLoad {
        copies: i32::try_from(load.copies).unwrap_or(i32::MAX),
        running: signed(load.running),
        waiting: signed(load.waiting),
        cache_percent: signed(load.cache_percent / u64::from(load.copies.max(1))),
        // To two digits: a status is not written for every breath of the engines.
        tokens_per_second: heard.tokens_per_second.map(two_digits).map(signed),
        first_token_ms: load.first_token_ms.map(two_digits).map(signed),
        between_tokens_ms: load.between_tokens_ms.map(two_digits).map(signed),
    })
}

/// What all copies that have a node cost, if every one of those nodes has a price.
pub(super) fn cost(
    service: &InferenceService,
    seen: &Seen,
    load: Option<&ServiceLoad>,
) -> Option<ServiceCost> {
    let pools = pools::of(service);
    let held = seen.pods.iter().filter_map(|pod| {
        let mut pools = pools.iter();
        let pool = pools.find(|pool| pool.name.as_deref() == pools::said(&**pod))?;
        let gpus = u64::try_from(pool.service.spec.gpus_per_replica()).ok()?;
        Some((held_node(pod)?, gpus)).filter(|_| gpus > 0)
    });
    let held: Vec<(&str, u64)> = held.collect();
    if held.is_empty() {
        return None;
    }
    let mut hourly: u128 = 0;
    for (node, gpus) in held {
        hourly += u128::from(*seen.prices.get(node)?) * u128::from(gpus);
    }
    let pace = load.and_then(|load| load.tokens_per_second);
    let pace = pace.and_then(|pace| u128::try_from(pace).ok());
    Some(ServiceCost {
        per_hour: money(hourly),
        per_million_tokens: pace
            .filter(|pace| *pace > 0)
            .map(|pace| money(hourly * MILLION / (pace * 3600))),
    })
}

/// How much an engine's cache holds; what was heard last, while nobody answers.
pub(super) fn cache(
    service: &InferenceService,
    seen: &Seen,
    before: Option<&CacheSize>,
) -> Option<CacheSize> {
    let Some(tokens) = seen.heard.and_then(|heard| heard.cache_tokens) else {
        return before.cloned();
    };
    let estimated = service.annotations().get(label::ESTIMATED_CACHE);
    let estimated = estimated.and_then(|text| text.parse::<u64>().ok());
    let estimated = estimated.filter(|tokens| *tokens > 0);
    Some(CacheSize {
        tokens: signed(tokens),
        estimated_tokens: estimated.map(signed),
        percent_of_estimate: estimated.map(|of| signed(tokens.saturating_mul(100) / of)),
    })
}

/// The node a pod keeps GPUs on.
fn held_node(pod: &Arc<Pod>) -> Option<&str> {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let over = matches!(phase, Some("Succeeded" | "Failed"));
    node_of(pod).filter(|_| !over && pod.meta().deletion_timestamp.is_none())
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// 1234 becomes 1200, 7 stays 7.
fn two_digits(number: u64) -> u64 {
    let digits = number.checked_ilog10().unwrap_or(0);
    let unit = 10_u64.pow(digits.saturating_sub(1));
    number / unit * unit
}

/// Millionths as a decimal: two places, and more where it is less than a cent.
fn money(millionths: u128) -> String {
    let (whole, rest) = (millionths / MILLION, millionths % MILLION);
    if millionths > 0 && millionths < 10_000 {
        return format!("{whole}.{rest:06}");
    }
    // Half a cent and more is a cent.
    let cents = (millionths + 5_000) / 10_000;
    format!("{}.{:02}", cents / 100, cents % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_rounded_as_people_read_them() {
        for (number, rounded) in [(0, 0), (7, 7), (42, 42), (123, 120), (98_765, 98_000)] {
            assert_eq!(two_digits(number), rounded);
        }
        for (millionths, text) in [
            (0, "0.00"),
            (2_490_000, "2.49"),
            (19_919_999, "19.92"),
            (1_234, "0.001234"),
        ] {
            assert_eq!(money(millionths), text);
        }
    }
}
