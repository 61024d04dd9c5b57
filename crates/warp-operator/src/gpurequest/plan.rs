//! One pass over a request: follow the machine of the attempt that is open, or begin the next attempt. Pure and total.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use warp_api::cloudprovider::BootstrapType;
use warp_api::gpurequest::{RequestAttempt, RequestPhase};
use warp_api::{GPURequest, GPURequestStatus, reason};
use warp_cloud::{Decimal, machine_name};
use warp_runtime::plan::Plan;

use super::choose::{Candidate, Choice, Market, choose, later};
use super::observe::Seen;
use super::say::{self, Said};
use super::together::Company;
use super::wanted::Wanted;
use super::{FINALIZER, costs, drive, money as purse};
use crate::budget::Purse;

/// Machines that may come to nothing in a row before a request is given up.
const MOST_MACHINES: usize = 5;
/// A machine whose node was ready this long, or a container that ran so long, was of use, however it ended.
const OF_USE: jiff::SignedDuration = jiff::SignedDuration::from_mins(10);
/// Refused attempts that are remembered.
const REMEMBERED: usize = 16;

/// Attempts that were bought and are over of which more is known than what they cost together.
const KEPT: usize = 32;

/// Endings after which nothing more is rented.
const FINAL: [&str; 5] = [
    reason::IDLE_TIMEOUT,
    reason::MAX_LIFETIME,
    reason::MAX_TOTAL_PRICE,
    reason::BUDGET_REACHED,
    reason::DELETED,
];

/// Whether nothing more is rented after such an ending.
pub(super) fn is_final(ending: &str) -> bool {
    FINAL.contains(&ending) || ending == reason::NOT_ALL_RENTED
}

fn is_open(attempt: &RequestAttempt) -> bool {
    attempt.outcome.is_none()
}

pub(super) fn plan(request: &GPURequest, seen: &Seen, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let going = request.meta().deletion_timestamp.is_some();
    let held = request.finalizers().iter().any(|name| name == FINALIZER);
    let before = request.status.clone().unwrap_or_default();
    let mut status = before.clone();
    let company = Company::of(request, &seen.requests);
    if let Some(company) = company.filter(|_| !going && !status.phase.is_final()) {
        company.keep_time(request, &mut status, now);
        if let Some(until) = status.together_until.as_ref().filter(|at| at.0 > now) {
            plan.look_again(until.0);
        }
    }
    if status.attempts.iter().any(is_open) {
        let mut said = drive::drive(&mut plan, &mut status, request, seen, now);
        if let Some(replaced) = replace(&mut plan, &mut status, request, seen, now) {
            said = replaced;
        }
        say::write(&mut plan, request, status, said, now);
        return plan;
    }
    if going {
        "nothing is rented".clone_into(&mut plan.why);
        plan.remove_finalizer(request, FINALIZER);
        return plan;
    }
    if status.phase.is_final() {
        return plan;
    }
    if !held {
        "a request goes only when its machine is gone".clone_into(&mut plan.why);
        plan.add_finalizer(request, FINALIZER);
        return plan;
    }
    // Whose money it is comes with the first lists.
    if matches!(seen.purse, Purse::NotYet) {
        plan.look_again(later(now, jiff::SignedDuration::from_secs(1)));
        return plan;
    }
    let said = next(&mut plan, &mut status, request, seen, now);
    say::write(&mut plan, request, status, said, now);
    plan
}

/// Begins the attempt that takes the place of one whose machine is taken back. Only then there are two.
fn replace(
    plan: &mut Plan,
    status: &mut GPURequestStatus,
    request: &GPURequest,
    seen: &Seen,
    now: Timestamp,
) -> Option<Said> {
    let mut open = status
        .attempts
        .iter()
        .filter(|attempt| is_open(attempt))
        .peekable();
    open.peek()?;
    let going = request.meta().deletion_timestamp.is_some();
    // Written down by a pass before: the notice is a fact, and so is what it begins.
    let known = request.status.iter().flat_map(|before| &before.attempts);
    let noticed: Vec<u32> = known
        .filter(|attempt| attempt.noticed_at.is_some())
        .map(|attempt| attempt.number)
        .collect();
    let taken = |attempt: &RequestAttempt| {
        let lost = [None, Some(reason::SPOT_INTERRUPTED)];
        noticed.contains(&attempt.number) && lost.contains(&attempt.ending.as_deref())
    };
    if going || matches!(seen.purse, Purse::NotYet) || !open.all(taken) {
        return None;
    }
    let mut after = status.clone();
    let said = next(plan, &mut after, request, seen, now);
    // The wait for a spot machine begins with the notice, not with the end of the machine.
    status
        .spot_wanted_since
        .clone_from(&after.spot_wanted_since);
    if after.attempt_count == status.attempt_count {
        return None;
    }
    *status = after;
    Some(said)
}

/// Begins the next attempt, or says why there is none.
pub(super) fn next(
    plan: &mut Plan,
    status: &mut GPURequestStatus,
    request: &GPURequest,
    seen: &Seen,
    now: Timestamp,
) -> Said {
    forget_machine(status);
    let last = status.attempts.last().and_then(|last| last.outcome.clone());
    if let Some(ending) = FINAL
        .iter()
        .find(|ending| last.as_deref() == Some(**ending))
    {
        let text = format!(
            "given back ({ending}) after {} dollars",
            status.spent.clone().unwrap_or_else(|| "0".to_owned())
        );
        return Said::new(RequestPhase::Ended, "False", ending, text);
    }
    if in_vain(&status.attempts) >= MOST_MACHINES {
        let text = format!(
            "{MOST_MACHINES} machines in a row came to nothing, the last with {}: look at status.attempts, then make a new request",
            last.unwrap_or_default()
        );
        return Said::new(
            RequestPhase::Failed,
            "False",
            reason::ATTEMPTS_EXHAUSTED,
            text,
        );
    }
    let company = Company::of(request, &seen.requests);
    if let Some(company) = &company {
        let pending = |reason, text| Said::new(RequestPhase::Pending, "False", reason, text);
        if company.is_hopeless(status, now) {
            status.together_until = None;
            let text = company.failure();
            return Said::new(RequestPhase::Failed, "False", reason::NOT_ALL_RENTED, text);
        }
        if let Some(problem) = company.problem() {
            return pending(reason::INVALID_SPEC, problem);
        }
        if let Some(text) = company.unmade() {
            return pending(reason::WAITING_FOR_OTHERS, text);
        }
    }
    let wanted = match Wanted::of(&request.spec) {
        Ok(wanted) => Wanted {
            unfit: seen.unfit.clone(),
            ..wanted
        },
        Err(problem) => {
            return Said::new(
                RequestPhase::Pending,
                "False",
                reason::INVALID_SPEC,
                problem,
            );
        }
    };
    if let Some(over) = over(&wanted, status, now) {
        return over;
    }
    let Some(mark) = &seen.mark else {
        plan.look_again(later(now, jiff::SignedDuration::from_secs(1)));
        let text = "the cluster's identity is not known yet".to_owned();
        return Said::new(RequestPhase::Pending, "False", reason::NO_PROVIDER, text);
    };
    if wanted.spot.is_some() && status.spot_wanted_since.is_none() {
        status.spot_wanted_since = Some(Time(now));
    }
    let spent = costs::of_request(status, |_| false, |_| now);
    let spot_since = status
        .spot_wanted_since
        .as_ref()
        .map_or(now, |since| since.0);
    let together = company
        .as_ref()
        .map_or(0, |company| company.unreserved().count());
    // Those it belongs together with are one purchase: none of them stands in the way of another.
    let strangers: Vec<_> = match &company {
        None => seen.requests.clone(),
        Some(company) => {
            let others = seen.requests.iter().filter(|other| !company.has(other));
            others.cloned().collect()
        }
    };
    let market = Market {
        providers: &seen.providers,
        requests: &seen.requests,
        strangers: &strangers,
        together: u32::try_from(together).unwrap_or(u32::MAX),
        attempts: &status.attempts,
        spent,
        spot_since,
        now,
    };
    match choose(&wanted, &market) {
        Choice::Wait {
            reason,
            message,
            until,
        } => {
            status.next_attempt_time = until.map(Time);
            if let Some(until) = until {
                plan.look_again(until);
            }
            Said::new(RequestPhase::Pending, "False", reason, message)
        }
        Choice::Buy(candidate) => {
            let tenant = purse::payer(plan, request, &wanted, status, &candidate, seen, now);
            let tenant = match tenant {
                Ok(tenant) => tenant,
                Err(held) => return held,
            };
            let uid = request.uid().unwrap_or_default();
            let number = status.attempt_count + 1;
            let machine = machine_name(mark, &uid, number);
            let said = begin(
                status,
                *candidate,
                tenant,
                (number, machine),
                &seen.process,
                now,
            );
            if let Some(attempt) = status.attempts.last_mut() {
                attempt.user.clone_from(&seen.creator);
            }
            said
        }
    }
}

/// How many machines came to nothing since the last one that was of use. What the cloud took back did its work until
/// then, and says nothing of the next one.
fn in_vain(attempts: &[RequestAttempt]) -> usize {
    let is = |attempt: &RequestAttempt, how: &str| {
        [&attempt.ending, &attempt.outcome]
            .into_iter()
            .any(|said| said.as_deref() == Some(how))
    };
    let served = |attempt: &RequestAttempt| {
        let times = attempt.ready_at.as_ref().zip(attempt.ended_at.as_ref());
        times.is_some_and(|(ready, ended)| later(ready.0, OF_USE) <= ended.0)
    };
    let bought = attempts
        .iter()
        .rev()
        .filter(|one| one.instance_id.is_some());
    let useful = [reason::SPOT_INTERRUPTED, reason::POD_ENDED];
    let kept = bought.filter(|attempt| useful.iter().all(|how| !is(attempt, how)));
    kept.take_while(|attempt| !served(attempt)).count()
}

/// The end of a request that may have no more machines: its time is over.
fn over(wanted: &Wanted, status: &GPURequestStatus, now: Timestamp) -> Option<Said> {
    let first = status.first_billed()?;
    let lifetime = wanted.lifetime?;
    (later(first.0, lifetime) <= now).then(|| {
        let text = "its maxLifetime is over".to_owned();
        Said::new(RequestPhase::Ended, "False", reason::MAX_LIFETIME, text)
    })
}

/// Writes the intent: what is to be bought, where, under which name and up to which price.
fn begin(
    status: &mut GPURequestStatus,
    candidate: Candidate,
    tenant: Option<String>,
    (number, machine): (u32, String),
    process: &str,
    now: Timestamp,
) -> Said {
    let Candidate {
        provider,
        offer,
        spot,
        price,
        limit,
        bootstrap,
    } = candidate;
    let gpu = format!("{} x {}", offer.gpus, offer.gpu);
    let text = format!(
        "renting {gpu} from {provider} in {} for {}{} an hour",
        offer.region,
        money(price),
        if spot { " (spot)" } else { "" }
    );
    status.attempt_count = number;
    status.next_attempt_time = None;
    status.provider = Some(provider.clone());
    status.price_per_hour = Some(money(price));
    status.gpu = Some(gpu);
    status.attempts.push(RequestAttempt {
        number,
        machine,
        provider,
        gpu: offer.gpu,
        gpus: offer.gpus,
        region: offer.region,
        instance_type: offer.instance_type,
        spot,
        price: money(price),
        price_limit: money(limit),
        tenant,
        user: None,
        intended_at: Time(now),
        caller: Some(process.to_owned()),
        called_since: Some(Time(now)),
        instance_id: None,
        billed_from: None,
        billed_until: None,
        billed_price: None,
        bootstrap: (bootstrap != BootstrapType::None).then_some(bootstrap),
        pod: None,
        certificate_request: None,
        certificate_approved_at: None,
        ignored_certificates: Vec::new(),
        token_revoked_at: None,
        ready_at: None,
        unready_since: None,
        noticed_at: None,
        ending: None,
        ending_since: None,
        outcome: None,
        reason: None,
        ended_at: None,
        cost: None,
    });
    trim(&mut status.attempts);
    costs::fold(status, KEPT);
    Said::new(
        RequestPhase::Provisioning,
        "False",
        reason::PROVISIONING,
        text,
    )
}

/// Forgets the oldest refusals.
fn trim(attempts: &mut Vec<RequestAttempt>) {
    let free =
        |attempt: &RequestAttempt| attempt.instance_id.is_none() && attempt.outcome.is_some();
    while attempts.iter().filter(|attempt| free(attempt)).count() > REMEMBERED {
        if let Some(oldest) = attempts.iter().position(free) {
            attempts.remove(oldest);
        }
    }
}

/// There is no machine: what the last one was called stays in its attempt.
fn forget_machine(status: &mut GPURequestStatus) {
    status.instance_id = None;
    status.node_name = None;
    status.public_ip = None;
    status.private_ip = None;
    status.idle_since = None;
    status.terminates_at = None;
}

/// Dollars with at least two decimals.
pub(super) fn money(amount: Decimal) -> String {
    let mut amount = amount.normalize();
    if amount.scale() < 2 {
        amount.rescale(2);
    }
    amount.to_string()
}
