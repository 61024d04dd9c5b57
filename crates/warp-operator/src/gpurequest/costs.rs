//! What machines cost, and the ledger: one ConfigMap a tenant and month in the operator's namespace, several for containers,
//! one entry per machine. An entry is written before its attempt is over, so no crash loses it, and writing it twice changes
//! nothing. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::json;
use warp_api::gpurequest::{EarlierAttempts, RequestAttempt};
use warp_api::{GPURequest, GPURequestStatus};
use warp_cloud::Decimal;
use warp_runtime::plan::{Action, Encoding, Kind, Plan};

use super::{Ledger, costs_key};
use crate::workload::tenant_of;

/// On the ConfigMaps of the ledger.
pub(crate) const LABEL: &str = "gpu.warp.dev/costs";

/// How many objects the containers of a tenant and month are spread over: every pod is one, and an object has room for about
/// two thousand.
const PARTS: u64 = 64;

/// Which of those a machine is entered in; none for one that is no container.
fn part(request: &GPURequest, attempt: &RequestAttempt) -> Option<u64> {
    let namespace = request.namespace().unwrap_or_default();
    let name = format!("{namespace}/{}/{}", request.name_any(), attempt.number);
    let sum = name.bytes().fold(0u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(byte))
    });
    attempt.is_container().then_some(sum % PARTS)
}

/// Dollars for `price` an hour from `from` to `until`, billed by the second, to the hundredth of a cent.
pub(super) fn cost(price: Decimal, from: Timestamp, until: Timestamp) -> Decimal {
    let seconds = until.duration_since(from).as_secs().max(0);
    (price * Decimal::from(seconds) / Decimal::from(3600)).round_dp(4)
}

/// What an hour of an attempt's machine costs: as billed, else as agreed.
pub(super) fn price(attempt: &RequestAttempt) -> Decimal {
    let text = attempt.billed_price.as_ref().unwrap_or(&attempt.price);
    text.parse().unwrap_or_default()
}

/// What an attempt has cost until `now`.
pub(crate) fn of_attempt(attempt: &RequestAttempt, now: Timestamp) -> Decimal {
    if let Some(cost) = attempt.cost.as_ref().and_then(|cost| cost.parse().ok()) {
        return cost;
    }
    let Some(from) = &attempt.billed_from else {
        return Decimal::ZERO;
    };
    let until = attempt.billed_until.as_ref().map_or(now, |until| until.0);
    cost(price(attempt), from.0, until)
}

/// What a request's attempts have cost, each until its time, without those that are left out.
pub(super) fn of_request(
    status: &GPURequestStatus,
    left_out: impl Fn(&RequestAttempt) -> bool,
    until: impl Fn(&RequestAttempt) -> Timestamp,
) -> Decimal {
    let kept = status.attempts.iter().filter(|attempt| !left_out(attempt));
    let kept: Decimal = kept
        .map(|attempt| of_attempt(attempt, until(attempt)))
        .sum();
    kept + of_earlier(status)
}

/// What the attempts of one provider cost that are kept no longer.
pub(crate) fn of_provider(earlier: &EarlierAttempts) -> Decimal {
    earlier.spent.parse().unwrap_or_default()
}

/// What all attempts cost that are kept no longer.
fn of_earlier(status: &GPURequestStatus) -> Decimal {
    status.earlier.iter().map(of_provider).sum()
}

/// Adds the oldest attempt that is over and was bought to what is kept in sum, while there are more than `most` of them.
pub(super) fn fold(status: &mut GPURequestStatus, most: usize) {
    let over = |attempt: &RequestAttempt| attempt.outcome.is_some() && attempt.cost.is_some();
    while status
        .attempts
        .iter()
        .filter(|attempt| over(attempt))
        .count()
        > most
    {
        let Some(at) = status.attempts.iter().position(over) else {
            return;
        };
        let Some(from) = status.attempts[at].billed_from.clone() else {
            return;
        };
        let gone = status.attempts.remove(at);
        let cost = gone.cost.and_then(|cost| cost.parse().ok());
        let cost: Decimal = cost.unwrap_or_default();
        let mut earlier = status.earlier.iter_mut();
        match earlier.find(|known| known.provider == gone.provider) {
            Some(known) => {
                known.count += 1;
                known.spent = (of_provider(known) + cost).to_string();
                known.billed_from = Time(known.billed_from.0.min(from.0));
            }
            None => status.earlier.push(EarlierAttempts {
                provider: gone.provider,
                count: 1,
                spent: cost.to_string(),
                billed_from: from,
            }),
        }
    }
}

/// Writes an attempt's entry, as far as it is known.
pub(super) fn enter(plan: &mut Plan, home: &str, request: &GPURequest, attempt: &RequestAttempt) {
    let Some(from) = &attempt.billed_from else {
        return;
    };
    let until = attempt.billed_until.as_ref().map(|until| until.0);
    let entry = json!({
        "namespace": request.namespace().unwrap_or_default(),
        "request": request.name_any(),
        // Rented for a workload, it is on that workload's bill.
        "workload": tenant_of(request).map(|(workload, _)| workload.name.to_string()),
        "uid": request.meta().uid,
        "tenant": attempt.tenant,
        "user": attempt.user,
        "provider": attempt.provider,
        "machine": attempt.machine,
        "instanceId": attempt.instance_id,
        "gpu": attempt.gpu,
        "gpus": attempt.gpus,
        "region": attempt.region,
        "spot": attempt.spot,
        "pricePerHour": price(attempt).normalize().to_string(),
        "from": from.0,
        "until": until,
        "ending": attempt.ending,
        "endingSince": attempt.ending_since.as_ref().map(|since| since.0),
        "cost": until.map(|until| cost(price(attempt), from.0, until).to_string()),
    });
    let month = from.0.strftime("%Y-%m").to_string();
    let key = costs_key(
        home,
        &month,
        attempt.tenant.as_deref(),
        part(request, attempt),
    );
    plan.create_or_find(&Ledger {
        metadata: ObjectMeta {
            name: Some(key.name.to_string()),
            namespace: Some(home.to_owned()),
            labels: Some([(LABEL.to_owned(), month)].into()),
            ..ObjectMeta::default()
        },
        ..Ledger::default()
    });
    plan.push(Action::Patch {
        kind: Kind::of::<ConfigMap>(),
        key,
        sub: None,
        encoding: Encoding::Merge,
        patch: json!({"data": {attempt.machine.clone(): entry.to_string()}}),
    });
}
