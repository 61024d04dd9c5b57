//! What a tenant's status should say. Pure and total.

mod money;
mod standing;
mod unknown;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Namespace;
use kube::core::{Selector, SelectorExt};
use kube::{Resource, ResourceExt};
use serde_json::Value;
use warp_api::tenant::{TenantGpus, TenantNamespaces};
use warp_api::{Tenant, TenantStatus, condition, reason};
use warp_core::tenancy::GPU;
use warp_runtime::driver::later;
use warp_runtime::plan::{Plan, about};

use super::isolation::{self, Namespaces};
use super::observe::{Seen, Usage};
use super::{NAME, Tenants};
use crate::budget::Purse;
use warp_runtime::reconcile::Reconcile;

/// Namespaces a message names before it counts the rest.
const NAMED: usize = 3;
/// Conditions this controller sets.
const OWN_CONDITIONS: [&str; 3] = [
    condition::READY,
    condition::WITHIN_BUDGET,
    condition::ISOLATED,
];
/// How often it is looked whether what was spent is known.
const NOT_YET: SignedDuration = SignedDuration::from_secs(1);

pub(super) fn plan(tenant: &Tenant, seen: &Seen, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    // The garbage collector ends it; what it said last may stay.
    if tenant.meta().deletion_timestamp.is_some() {
        return plan;
    }
    if matches!(seen.purse, Purse::NotYet) {
        plan.look_again(later(now, NOT_YET));
        return plan;
    }
    let before = tenant.status.clone().unwrap_or_default();
    // What is made comes after what is said: a refused child must not keep the status from being told.
    let mut made = Plan::default();
    let after = status(&mut plan, &mut made, tenant, &before, seen, now);
    let said = |status: &TenantStatus, kind: &str| {
        let found = condition::find(&status.conditions, kind);
        found.map(|said| (said.reason.clone(), said.message.clone()))
    };
    plan.why = after
        .message
        .clone()
        .unwrap_or_else(|| format!("{NAME} is up to date"));
    plan.own_status(
        tenant,
        Tenants::MANAGER,
        tenant.status.as_ref().map(own).unwrap_or_default(),
        own(&after),
    );
    let (was, is) = (
        said(&before, condition::READY),
        said(&after, condition::READY),
    );
    if was != is
        && let Some((reason, message)) = is
        && reason != reason::NAMESPACES_FOUND
    {
        plan.note(about(tenant), true, &reason, message);
    }
    // Its figures move all the time; people hear when it means something else.
    let was = said(&before, condition::WITHIN_BUDGET).map(|(reason, _)| reason);
    let is = said(&after, condition::WITHIN_BUDGET);
    if let Some((reason, message)) = is
        && was.as_ref() != Some(&reason)
        && reason != reason::BUDGET_KEPT
        && reason != reason::NOT_ASKED
    {
        plan.note(about(tenant), true, &reason, message);
    }
    plan.actions.extend(made.actions);
    plan
}

/// The part of a status that is ours: conditions of other writers stay theirs.
fn own(status: &TenantStatus) -> Value {
    let mut status = status.clone();
    status
        .conditions
        .retain(|found| OWN_CONDITIONS.contains(&&*found.type_));
    serde_json::to_value(status).unwrap_or_default()
}

fn status(
    plan: &mut Plan,
    made: &mut Plan,
    tenant: &Tenant,
    before: &TenantStatus,
    seen: &Seen,
    now: Timestamp,
) -> TenantStatus {
    let generation = tenant.meta().generation.unwrap_or_default();
    let claims = claims(&tenant.spec.namespaces, &seen.namespaces);
    let (namespaces, ready) = match &claims {
        Err(problem) => (
            BTreeSet::new(),
            unready(reason::INVALID_SELECTOR, problem.clone()),
        ),
        Ok(claimed) => judge(tenant, claimed, seen),
    };
    let gpus = gpus(&namespaces, &seen.usage);
    let (quota, problem) = standing::of(tenant, seen);
    let ready = match problem.filter(|_| ready.status == "True") {
        Some(problem) => unready(reason::INVALID_PARENT, problem),
        None => ready,
    };
    let unknown = unknown::of(tenant, &seen.gpus, &seen.models);
    let ready = match unknown.filter(|_| ready.status == "True") {
        Some(problem) => unready(reason::UNKNOWN_GPU, problem),
        None => ready,
    };
    let money = money::of(plan, tenant, before.budget.as_ref(), &seen.purse, now);
    let (budget, within) = money.map_or((None, None), |(figures, state)| (figures, Some(state)));
    // A selector that cannot be read says nothing about what is to be taken back.
    let isolated = claims.as_ref().ok().and_then(|claimed| {
        let own = &namespaces;
        isolation::plan(made, tenant, &Namespaces { own, claimed }, seen)
    });
    let mut old = before.conditions.clone();
    let holds = [within.is_some(), isolated.is_some() || claims.is_err()];
    for (kind, _) in [condition::WITHIN_BUDGET, condition::ISOLATED]
        .into_iter()
        .zip(holds)
        .filter(|(_, holds)| !holds)
    {
        old.retain(|found| found.type_ != kind);
    }
    let message = (ready.status != "True").then(|| ready.message.clone());
    let states: Vec<condition::State> = std::iter::once(ready)
        .chain(within)
        .chain(isolated)
        .collect();
    let total = |of: fn(&TenantGpus) -> i64| gpus.iter().map(of).sum();
    TenantStatus {
        observed_generation: Some(generation),
        namespace_count: i64::try_from(namespaces.len()).unwrap_or(i64::MAX),
        namespaces: namespaces.into_iter().collect(),
        gpus_in_use: total(|gpus| gpus.in_use),
        gpus_waiting: total(|gpus| gpus.waiting),
        gpus,
        quota,
        budget,
        message,
        conditions: condition::next(&old, &states, generation, now),
    }
}

/// The namespaces a tenant has for itself, and whether that is well.
fn judge(
    tenant: &Tenant,
    claimed: &BTreeSet<String>,
    seen: &Seen,
) -> (BTreeSet<String>, condition::State) {
    let mut contested: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for other in &seen.tenants {
        if other.uid() == tenant.uid() || other.meta().deletion_timestamp.is_some() {
            continue;
        }
        // A selector of theirs that cannot be read claims nothing, and they say so.
        let theirs = claims(&other.spec.namespaces, &seen.namespaces).unwrap_or_default();
        for name in theirs.intersection(claimed) {
            contested
                .entry(name.clone())
                .or_default()
                .insert(other.name_any());
        }
    }
    let alone = |name: &&String| !contested.contains_key(*name);
    let namespaces: BTreeSet<String> = claimed.iter().filter(alone).cloned().collect();
    let ready = if !contested.is_empty() {
        let each = contested.iter().map(|(name, others)| {
            let others: Vec<&str> = others.iter().map(String::as_str).collect();
            format!("{name} (also claimed by {})", others.join(", "))
        });
        let text = format!(
            "a namespace belongs to one tenant at most: {}; take it out of all but one",
            listed(each.collect())
        );
        unready(reason::NAMESPACE_CONTESTED, text)
    } else if namespaces.is_empty() {
        let text =
            "no namespace of spec.namespaces exists: create one, or correct names or selector";
        unready(reason::NO_NAMESPACE, text.to_owned())
    } else {
        condition::State {
            kind: condition::READY,
            status: "True",
            reason: reason::NAMESPACES_FOUND,
            message: listed(namespaces.iter().cloned().collect()),
        }
    };
    (namespaces, ready)
}

fn unready(reason: &'static str, message: String) -> condition::State {
    condition::State {
        kind: condition::READY,
        status: "False",
        reason,
        message,
    }
}

/// `a, b, c and 4 more`.
fn listed(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let text = names.join(", ");
    if more == 0 {
        text
    } else {
        format!("{text} and {more} more")
    }
}

/// The namespaces of those that exist which a tenant names or selects.
pub(crate) fn claims(
    wanted: &TenantNamespaces,
    namespaces: &[std::sync::Arc<Namespace>],
) -> Result<BTreeSet<String>, String> {
    let selector = match &wanted.selector {
        Some(selector) => Some(Selector::try_from(selector.clone()).map_err(|error| {
            format!("spec.namespaces.selector cannot be read: {error}; correct it")
        })?),
        None => None,
    };
    let claimed = namespaces.iter().filter(|namespace| {
        let name = namespace.name_any();
        let selected = selector
            .as_ref()
            .is_some_and(|selector| selector.matches(namespace.labels()));
        selected || wanted.names.contains(&name)
    });
    Ok(claimed.map(|namespace| namespace.name_any()).collect())
}

fn gpus(namespaces: &BTreeSet<String>, usage: &BTreeMap<String, Usage>) -> Vec<TenantGpus> {
    let mut by_model: BTreeMap<&str, TenantGpus> = BTreeMap::new();
    for used in namespaces.iter().filter_map(|name| usage.get(name)) {
        for (model, count) in &used.in_use {
            by_model.entry(model).or_default().in_use += count;
        }
        for (model, count) in &used.waiting {
            by_model.entry(model).or_default().waiting += count;
        }
    }
    // Parts of GPUs add up, and what is left over counts as one more.
    let whole = |milli: i64| milli.div_euclid(GPU) + i64::from(milli.rem_euclid(GPU) > 0);
    let each = by_model.into_iter().map(|(model, gpus)| TenantGpus {
        model: model.to_owned(),
        in_use: whole(gpus.in_use),
        waiting: whole(gpus.waiting),
    });
    each.collect()
}
