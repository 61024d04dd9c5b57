//! What machines cost, and the ledger: one ConfigMap a tenant and month in the operator's namespace, one entry per machine. An
//! entry is written before its attempt is over, so no crash loses it, and writing it twice changes nothing. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::json;
use warp_api::GPURequest;
use warp_api::gpurequest::RequestAttempt;
use warp_cloud::Decimal;
use warp_runtime::plan::{Action, Encoding, Kind, Plan};

use super::{Ledger, costs_key};
use crate::workload::tenant_of;

/// On the ConfigMaps of the ledger.
pub(crate) const LABEL: &str = "gpu.warp.dev/costs";

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
    let key = costs_key(home, &month, attempt.tenant.as_deref());
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
