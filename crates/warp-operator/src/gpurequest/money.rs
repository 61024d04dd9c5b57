//! A request among its tenant's money: its machines as budgets count them, whether the next one may be bought, and
//! whether a budget has one given back. Pure.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use warp_api::gpurequest::{RequestAttempt, RequestPhase};
use warp_api::{GPURequest, GPURequestStatus, condition, reason};
use warp_cloud::Decimal;
use warp_runtime::plan::Plan;

use super::choose::{Candidate, later};
use super::observe::Seen;
use super::say::Said;
use super::together::Company;
use super::wanted::Wanted;
use super::{costs, ending};
use crate::budget::{self, Course, Limits, Machine, Owner, Purchase, Purse};

/// How often it is looked whether tenants and ledgers are known.
const LOOK: SignedDuration = SignedDuration::from_secs(1);

/// The machines of a request. Those of attempts that name no tenant are `owner`'s.
pub(crate) fn machines(request: &GPURequest, owner: Option<&str>, now: Timestamp) -> Vec<Machine> {
    let wanted = Wanted::limits_of(&request.spec);
    let status = request.status.clone().unwrap_or_default();
    let each = status.attempts.iter().filter_map(|attempt| {
        let tenant = attempt.tenant.as_deref().or(owner)?;
        Some(Machine {
            name: attempt.machine.clone(),
            tenant: tenant.to_owned(),
            price: dearest(attempt),
            course: course(attempt, &status, &wanted, now)?,
        })
    });
    each.collect()
}

/// What an hour may cost: as billed. A cloud that does not say what it bills takes its list price for a machine that is
/// there on demand; before that, and for one whose price moves, it is as much as was agreed to.
fn dearest(attempt: &RequestAttempt) -> Decimal {
    let open = attempt.outcome.is_none() && attempt.billed_price.is_none();
    if open && (attempt.spot || attempt.billed_from.is_none()) {
        return attempt.price_limit.parse().unwrap_or_default();
    }
    costs::price(attempt)
}

fn course(
    attempt: &RequestAttempt,
    status: &GPURequestStatus,
    wanted: &Wanted,
    now: Timestamp,
) -> Option<Course> {
    let Some(from) = attempt.billed_from.as_ref().map(|from| from.0) else {
        // Refused, or never bought.
        let open = attempt.outcome.is_none();
        return open.then(|| Course::Intended {
            // What waits for a pod is bought now at the earliest.
            since: attempt.sought_since().map_or(now, |since| since.0),
            going: attempt.ending.is_some(),
            lasts: lasts(wanted, status, dearest(attempt), now),
        });
    };
    let until = attempt.billed_until.as_ref().or(attempt.ended_at.as_ref());
    if let Some(until) = until {
        return Some(Course::Over {
            from,
            until: until.0,
        });
    }
    Some(Course::Runs {
        from,
        ends: ending::ends(attempt, status, wanted).map(|(at, _)| at),
        idle: status.idle_since.is_some(),
        going: attempt.ending.is_some(),
    })
}

/// How long a machine at this price is kept at most when it is bought now; none when nothing says.
fn lasts(
    wanted: &Wanted,
    status: &GPURequestStatus,
    price: Decimal,
    now: Timestamp,
) -> Option<SignedDuration> {
    let first = status.first_billed();
    let lifetime = wanted.lifetime.map(|lifetime| {
        first.map_or(lifetime, |first| {
            later(first.0, lifetime).duration_since(now)
        })
    });
    let spent = costs::of_request(status, |_| false, |_| now);
    let money = wanted.max_total.filter(|_| price > Decimal::ZERO);
    let money = money.map(|most| {
        let seconds = ((most - spent) * Decimal::from(3600) / price).ceil();
        SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX / 4).max(0))
    });
    lifetime.into_iter().chain(money).min()
}

/// What of a request decides what is spent or reserved.
pub(super) fn facts(request: Option<&GPURequest>) -> Option<Vec<[Option<String>; 5]>> {
    let status = request?.status.as_ref()?;
    let each = status.attempts.iter().map(|attempt| {
        [
            Some(attempt.machine.clone()),
            attempt.billed_price.clone(),
            attempt.billed_from.as_ref().map(|from| from.0.to_string()),
            attempt.ending.clone(),
            attempt.outcome.clone(),
        ]
    });
    Some(each.collect())
}

/// Whether a budget keeps a request from buying.
pub(super) fn is_held(request: &GPURequest) -> bool {
    let conditions = request.status.iter().flat_map(|status| &status.conditions);
    conditions
        .filter(|said| said.type_ == condition::READY)
        .any(|said| [reason::BUDGET_REACHED, reason::INVALID_BUDGET].contains(&&*said.reason))
}

/// The tenant that pays for a purchase, none where nobody does; or why it may not be made.
pub(super) fn payer(
    plan: &mut Plan,
    request: &GPURequest,
    wanted: &Wanted,
    status: &mut GPURequestStatus,
    candidate: &Candidate,
    seen: &Seen,
    now: Timestamp,
) -> Result<Option<String>, Said> {
    let pending = |reason, text| Said::new(RequestPhase::Pending, "False", reason, text);
    let accounts = match &seen.purse {
        Purse::Nobodys | Purse::NotYet => return Ok(None),
        Purse::Unknown(why) => {
            plan.look_again(later(now, LOOK));
            let text = format!("nothing is bought before budgets are known: {why}");
            return Err(pending(reason::BUDGET_REACHED, text));
        }
        Purse::Of(accounts) => accounts,
    };
    let namespace = request.namespace().unwrap_or_default();
    let tenant = match accounts.owner(&namespace) {
        Owner::Nobody => return Ok(None),
        Owner::Tenant(name) => name,
        Owner::Contested(names) => {
            let pays = names.iter().any(|name| !accounts.payers(name).is_empty());
            if !pays {
                return Ok(None);
            }
            let text = format!(
                "namespace {namespace} is claimed by the tenants {}: nothing is bought until only one does",
                names.join(" and ")
            );
            return Err(pending(reason::INVALID_BUDGET, text));
        }
    };
    let mut purchases = vec![Purchase {
        price: candidate.limit,
        lasts: lasts(wanted, status, candidate.limit, now),
    }];
    // All that belong together must be within the budget before the first of them is bought.
    let company = Company::of(request, &seen.requests);
    let others = company.iter().flat_map(Company::unreserved);
    purchases.extend(others.map(|other| unreserved(other, candidate, now)));
    for payer in accounts.payers(&tenant) {
        let name = payer.name_any();
        let read = payer.spec.budget.as_ref().map(Limits::of);
        let limits = match read {
            None => continue,
            Some(Ok(limits)) => limits,
            Some(Err(problem)) => {
                let text = format!("tenant {name}: {problem}");
                return Err(pending(reason::INVALID_BUDGET, text));
            }
        };
        let machines = accounts.machines(&name);
        if let Err(refusal) = budget::allows(&name, &limits, &machines, &purchases, now) {
            status.next_attempt_time = refusal
                .until
                .map(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time);
            if let Some(until) = refusal.until {
                plan.look_again(until);
            }
            return Err(pending(reason::BUDGET_REACHED, refusal.message));
        }
    }
    Ok(Some(tenant))
}

/// What the machine of another request may cost that is bought together with this candidate.
fn unreserved(other: &GPURequest, candidate: &Candidate, now: Timestamp) -> Purchase {
    let wanted = Wanted::limits_of(&other.spec);
    let gpus = Decimal::from(candidate.offer.gpus.max(1));
    let alike = candidate.limit * Decimal::from(wanted.gpus) / gpus;
    let price = wanted.max_price.unwrap_or(alike);
    let status = other.status.clone().unwrap_or_default();
    Purchase {
        price,
        lasts: lasts(&wanted, &status, price, now),
    }
}

/// Whether a budget has the machine of an attempt given back; looks again when it might.
pub(super) fn is_stopped(
    plan: &mut Plan,
    attempt: &RequestAttempt,
    seen: &Seen,
    now: Timestamp,
) -> bool {
    let (Purse::Of(accounts), Some(tenant)) = (&seen.purse, &attempt.tenant) else {
        return false;
    };
    for payer in accounts.payers(tenant) {
        let read = payer.spec.budget.as_ref().map(Limits::of);
        let Some(Ok(limits)) = read else { continue };
        let machines = accounts.machines(&payer.name_any());
        let (stopped, again) = budget::stops(&limits, &machines, now);
        if stopped.contains(&attempt.machine) {
            return true;
        }
        if let Some(again) = again {
            plan.look_again(again);
        }
    }
    false
}
