//! Follows the machine of one open attempt: what is known of it becomes facts of the attempt, facts decide whether it
//! is to go, and the runtime's rules for things outside decide the next call. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use warp_api::gpurequest::{RequestAttempt, RequestPhase};
use warp_api::{GPURequest, GPURequestStatus, reason};
use warp_cloud::{Availability, Decimal, Launch, Machine, Offer, State};
use warp_runtime::cache::Key;
use warp_runtime::outside::{Recorded, Step, absent, present};
use warp_runtime::plan::{Call, Plan, Removal, What, as_json};

use super::choose::later;
use super::observe::{Open, Seen};
use super::plan::money;
use super::say::Said;
use super::wanted::Wanted;
use super::{costs, money as purse, outside_name};
use crate::cloudprovider::calls::Answer;

/// A machine that does not run this long after it was bought is given back.
const BOOT_LIMIT: SignedDuration = SignedDuration::from_mins(20);
/// And one whose node is not ready this long after it was bought.
const JOIN_LIMIT: SignedDuration = SignedDuration::from_mins(30);
/// How often a machine that starts is asked for.
const BOOT_LOOK: SignedDuration = SignedDuration::from_secs(3);
/// How often a cloud is told to end a machine that it still has.
const PACE: SignedDuration = SignedDuration::from_secs(3);
/// How often it is looked whether a node has joined.
const JOIN_LOOK: SignedDuration = SignedDuration::from_secs(1);
/// How much longer than `maxLifetime` a cloud that ends machines by itself lets one run.
const LIFETIME_SLACK: SignedDuration = SignedDuration::from_mins(10);
/// The money lasts at least this much longer than the machine, in seconds, or a tenth of its time.
const MARGIN: i64 = 120;

/// See the module. What the request says after this pass.
pub(super) fn drive(
    plan: &mut Plan,
    status: &mut GPURequestStatus,
    request: &GPURequest,
    seen: &Seen,
    now: Timestamp,
) -> Said {
    let Some(open) = &seen.open else {
        let text = "its CloudProvider is of a type this version does not know".to_owned();
        return Said::new(status.phase, "False", reason::NO_PROVIDER, text);
    };
    let Some(at) = status
        .attempts
        .iter()
        .rposition(|known| known.outcome.is_none())
    else {
        return Said::new(status.phase, "False", reason::PROVISIONING, String::new());
    };
    let mut attempt = status.attempts[at].clone();
    let answer = answer(&attempt, open);
    let machine = match &answer {
        Some(Answer::Machine(machine)) => Some(machine),
        _ => None,
    };
    learn(&mut attempt, status, machine, now);
    let wanted = Wanted::of(&request.spec).ok();
    let stopped = purse::is_stopped(plan, &attempt, seen, now);
    limits(
        &mut attempt,
        status,
        wanted.as_ref(),
        open,
        machine,
        request,
        stopped,
        now,
    );
    let said = match answer {
        Some(Answer::Refused { class, words }) => {
            attempt.outcome = Some(attempt.ending.clone().unwrap_or(class.as_str().to_owned()));
            attempt.reason = Some(words.clone());
            attempt.ended_at = Some(Time(now));
            let text = format!("{} refused: {words}", attempt.provider);
            Said::new(RequestPhase::Pending, "False", reason::RETRYING, text)
        }
        _ => step(
            plan,
            status,
            &mut attempt,
            machine,
            request,
            seen,
            open,
            now,
        ),
    };
    let known = &status.attempts[at];
    if known.billed_from.is_none() && attempt.billed_from.is_some() && attempt.outcome.is_none() {
        costs::enter(plan, &seen.home, request, &attempt);
    }
    status.attempts[at] = attempt;
    said
}

/// What the cloud said last, if it was asked after the attempt was written.
fn answer(attempt: &RequestAttempt, open: &Open) -> Option<Answer> {
    open.sight
        .asked
        .filter(|asked| *asked >= attempt.intended_at.0)?;
    serde_json::from_value(open.sight.there.clone()?).ok()
}

/// Takes what the cloud says of the machine into the attempt and the status.
fn learn(
    attempt: &mut RequestAttempt,
    status: &mut GPURequestStatus,
    machine: Option<&Machine>,
    now: Timestamp,
) {
    let Some(machine) = machine else {
        return;
    };
    if attempt.instance_id.is_none() {
        attempt.instance_id = Some(machine.id.clone());
    }
    if attempt.billed_from.is_none() {
        attempt.billed_from = Some(Time(machine.started.unwrap_or(now)));
    }
    if let Some(price) = machine.price {
        attempt.billed_price = Some(money(price));
    }
    if machine.state == State::Gone && attempt.billed_until.is_none() {
        attempt.billed_until = Some(Time(machine.ended.unwrap_or(now)));
    }
    status.instance_id = Some(machine.id.clone());
    status.node_name = Some(attempt.machine.clone());
    status.public_ip.clone_from(&machine.public_ip);
    status.private_ip.clone_from(&machine.private_ip);
    status.price_per_hour = Some(money(costs::price(attempt)));
}

/// Decides whether the machine is to go, and when it goes at the latest. `stopped`: a budget wants it to.
#[expect(clippy::too_many_arguments, reason = "one pass over one machine")]
fn limits(
    attempt: &mut RequestAttempt,
    status: &mut GPURequestStatus,
    wanted: Option<&Wanted>,
    open: &Open,
    machine: Option<&Machine>,
    request: &GPURequest,
    stopped: bool,
    now: Timestamp,
) {
    if let (Some(wanted), Some(_)) = (wanted, &attempt.billed_from) {
        status.terminates_at = ends(attempt, status, wanted).map(|(at, _)| Time(at));
    }
    let ready = open.node.as_deref().is_some_and(is_ready);
    if open.used || !ready {
        status.idle_since = None;
    } else if status.idle_since.is_none() {
        status.idle_since = Some(Time(now));
    }
    if attempt.ending.is_some() {
        return;
    }
    let idle = wanted
        .and_then(|wanted| wanted.idle)
        .zip(status.idle_since.as_ref());
    let due = wanted.and_then(|wanted| ends(attempt, status, wanted));
    let bought = attempt.billed_from.as_ref().map(|from| from.0);
    let state = machine.map(|machine| machine.state);
    let ending = if request.meta().deletion_timestamp.is_some() {
        Some(reason::DELETED)
    } else if matches!(state, Some(State::Preempted | State::Stopped)) {
        Some(reason::SPOT_INTERRUPTED)
    } else if matches!(
        state,
        Some(State::Failed | State::Gone | State::Terminating)
    ) {
        Some(reason::MACHINE_LOST)
    } else if let Some((_, why)) = due.filter(|(at, _)| *at <= now) {
        Some(why)
    } else if stopped {
        Some(reason::BUDGET_REACHED)
    } else if idle.is_some_and(|(limit, since)| later(since.0, limit) <= now) {
        Some(reason::IDLE_TIMEOUT)
    } else if ready {
        None
    } else if state == Some(State::Pending) && bought.is_some_and(|at| later(at, BOOT_LIMIT) <= now)
    {
        Some(reason::NEVER_RAN)
    } else if status.phase != RequestPhase::Ready
        && bought.is_some_and(|at| later(at, JOIN_LIMIT) <= now)
    {
        Some(reason::NEVER_JOINED)
    } else {
        None
    };
    if let Some(ending) = ending {
        attempt.ending = Some(ending.to_owned());
        attempt.ending_since = Some(Time(now));
    }
}

/// When the machine must go for its time or its money, and which of them it is.
pub(super) fn ends(
    attempt: &RequestAttempt,
    status: &GPURequestStatus,
    wanted: &Wanted,
) -> Option<(Timestamp, &'static str)> {
    let from = attempt.billed_from.as_ref()?.0;
    let first = status
        .attempts
        .iter()
        .find_map(|known| known.billed_from.as_ref());
    let first = first.map_or(from, |first| first.0);
    let lifetime = wanted
        .lifetime
        .map(|time| (later(first, time), reason::MAX_LIFETIME));
    let price = costs::price(attempt);
    let money = wanted
        .max_total
        .filter(|_| price > Decimal::ZERO)
        .map(|most| {
            let others = status
                .attempts
                .iter()
                .filter(|known| known.number != attempt.number);
            let spent: Decimal = others.map(|other| costs::of_attempt(other, from)).sum();
            let seconds = ((most - spent) * Decimal::from(3600) / price).floor();
            let seconds = i64::try_from(seconds).unwrap_or(i64::MAX / 4).max(0);
            let lasting = seconds - MARGIN.min(seconds / 10);
            (
                later(from, SignedDuration::from_secs(lasting)),
                reason::MAX_TOTAL_PRICE,
            )
        });
    lifetime.into_iter().chain(money).min()
}

fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|known| known.type_ == "Ready" && known.status == "True")
}

/// The next call or the end of the attempt, and what to say of it.
#[expect(clippy::too_many_arguments, reason = "one pass over one machine")]
fn step(
    plan: &mut Plan,
    status: &mut GPURequestStatus,
    attempt: &mut RequestAttempt,
    machine: Option<&Machine>,
    request: &GPURequest,
    seen: &Seen,
    open: &Open,
    now: Timestamp,
) -> Said {
    let intended = attempt.intended_at.0;
    let recorded = match attempt.instance_id {
        Some(_) => Recorded::Made(intended),
        None => Recorded::Intended(intended),
    };
    let gone = machine.is_some_and(|machine| machine.state == State::Gone);
    let mut sight = open.sight.clone();
    if gone {
        sight.there = None;
    }
    // Until then the cloud may not show what it has: it may have been bought long after it was intended.
    let bought = attempt.billed_from.as_ref().map_or(intended, |from| from.0);
    let settle = SignedDuration::try_from(open.settle).unwrap_or_default();
    let shown_from = later(intended.max(bought), settle);
    let ending = attempt.ending.clone();
    let next = if ending.is_some() {
        absent(recorded, &sight, now)
    } else {
        present(recorded, &sight, now)
    };
    let paced = sight.last_remove.map_or(now, |sent| later(sent, PACE));
    let hidden = matches!(recorded, Recorded::Made(_)) && !gone && now < shown_from;
    let call = |what| Call {
        outside: open.kind.as_str(),
        for_key: Key::of(request),
        name: outside_name(&attempt.provider, &attempt.machine),
        what,
    };
    match next {
        Step::LookUp => plan.calls.push(call(What::LookUp)),
        Step::Make => plan
            .calls
            .push(call(What::Make(as_json(&launch(attempt, request))))),
        // Asked a moment ago: a cloud takes its time.
        Step::Remove if paced > now => plan.look_again(paced),
        Step::Remove => plan.calls.push(call(What::Remove)),
        Step::Wait(Some(until)) => plan.look_again(until),
        Step::Wait(None) | Step::RecordIntent | Step::RecordResult(_) => {}
        Step::Settled => watch(plan, &call, status, machine, open, now),
        // Bought a moment ago: it is ended by its id although no list shows it, and looked for again.
        Step::ConfirmedGone if hidden => {
            let asked = attempt.ending_since.as_ref().map(|since| since.0);
            if sight.asked < asked {
                plan.calls.push(call(What::Remove));
            } else {
                plan.look_again(shown_from);
            }
        }
        Step::Lost if hidden => plan.look_again(later(now, BOOT_LOOK)),
        Step::ConfirmedGone => {
            let outcome = ending.clone().unwrap_or_default();
            close(plan, status, attempt, request, seen, open, &outcome, now);
        }
        Step::Lost => close(
            plan,
            status,
            attempt,
            request,
            seen,
            open,
            reason::MACHINE_LOST,
            now,
        ),
    }
    say(status, attempt, machine, open)
}

/// What to ask the cloud for.
fn launch(attempt: &RequestAttempt, request: &GPURequest) -> Launch {
    let price = attempt.price.parse().unwrap_or_default();
    let meta = request.meta();
    Launch {
        name: attempt.machine.clone(),
        offer: Offer {
            gpu: attempt.gpu.clone(),
            gpus: attempt.gpus,
            region: attempt.region.clone(),
            instance_type: attempt.instance_type.clone(),
            price,
            spot_price: attempt.spot.then_some(price),
            availability: Availability::Unknown,
        },
        spot: attempt.spot,
        max_price: attempt.price_limit.parse().unwrap_or_default(),
        owner: format!(
            "{}/{}",
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default()
        ),
        lifetime_seconds: lifetime_seconds(request),
    }
}

/// When the cloud itself may end the machine: somewhat later than this operator would.
fn lifetime_seconds(request: &GPURequest) -> Option<u64> {
    let lifetime = Wanted::of(&request.spec).ok()?.lifetime?;
    u64::try_from((lifetime + LIFETIME_SLACK).as_secs()).ok()
}

/// When a machine that is as it should be is looked at again.
fn watch(
    plan: &mut Plan,
    call: &impl Fn(What) -> Call,
    status: &GPURequestStatus,
    machine: Option<&Machine>,
    open: &Open,
    now: Timestamp,
) {
    let asked = open.sight.asked.unwrap_or(now);
    let age = SignedDuration::try_from(open.sight.max_age).unwrap_or_default();
    // Older than the age by a moment: only then it is asked for again.
    plan.look_again(later(asked, age + SignedDuration::from_millis(1)));
    let starts = machine.is_none_or(|machine| machine.state == State::Pending);
    if starts {
        let due = later(asked, BOOT_LOOK);
        if due <= now {
            plan.calls.push(call(What::LookUp));
        } else {
            plan.look_again(due);
        }
    } else if !open.node.as_deref().is_some_and(is_ready) {
        plan.look_again(later(now, JOIN_LOOK));
    }
    for at in status.terminates_at.iter().filter(|at| at.0 > now) {
        plan.look_again(at.0);
    }
}

/// Ends the attempt: what it cost is written down and its node is taken away before the attempt says that it is over.
#[expect(clippy::too_many_arguments, reason = "one pass over one machine")]
fn close(
    plan: &mut Plan,
    status: &mut GPURequestStatus,
    attempt: &mut RequestAttempt,
    request: &GPURequest,
    seen: &Seen,
    open: &Open,
    outcome: &str,
    now: Timestamp,
) {
    if attempt.billed_from.is_some() {
        if attempt.billed_until.is_none() {
            // Recorded first: repeated after a crash, the next pass writes the same cost.
            attempt.billed_until = Some(Time(now));
            return;
        }
        // Known by the pass before: the number in the ledger is the one in the status.
        let known = request.status.iter().flat_map(|before| &before.attempts);
        let known = known
            .into_iter()
            .find(|known| known.number == attempt.number);
        if known.is_none_or(|known| known.billed_until.is_none()) {
            return;
        }
        costs::enter(plan, &seen.home, request, attempt);
        attempt.cost = Some(costs::of_attempt(attempt, now).to_string());
    }
    if let Some(node) = &open.node {
        plan.delete(&**node, Removal::default(), None);
    }
    attempt.outcome = Some(outcome.to_owned());
    attempt.ended_at = Some(Time(now));
    let others = status
        .attempts
        .iter()
        .filter(|known| known.number != attempt.number);
    let spent: Decimal = others
        .chain(std::iter::once(&*attempt))
        .map(|known| costs::of_attempt(known, now))
        .sum();
    status.spent = Some(spent.to_string());
}

fn say(
    status: &GPURequestStatus,
    attempt: &RequestAttempt,
    machine: Option<&Machine>,
    open: &Open,
) -> Said {
    let name = &attempt.machine;
    let trouble = open
        .sight
        .failed
        .as_ref()
        .map(|(error, _)| error.message.clone());
    let gpu = status.gpu.clone().unwrap_or_default();
    let price = status.price_per_hour.clone().unwrap_or_default();
    if let Some(outcome) = &attempt.outcome {
        let text = format!("{name} is gone ({outcome})");
        return Said::new(
            RequestPhase::Terminating,
            "False",
            reason::TERMINATING,
            text,
        );
    }
    if let Some(ending) = &attempt.ending {
        let (reason, text) = if let Some(trouble) = trouble {
            let text = format!(
                "{name} may still cost money: it cannot be ended ({ending}): {trouble}; look after CloudProvider {}",
                attempt.provider
            );
            (reason::TERMINATION_STUCK, text)
        } else {
            let text = format!("giving {name} back ({ending})");
            (reason::TERMINATING, text)
        };
        return Said::new(RequestPhase::Terminating, "False", reason, text);
    }
    if attempt.instance_id.is_none() {
        let said = trouble
            .map(|trouble| format!(": {trouble}"))
            .unwrap_or_default();
        let text = format!(
            "renting {gpu} from {} in {} for {} an hour{said}",
            attempt.provider, attempt.region, attempt.price
        );
        return Said::new(
            RequestPhase::Provisioning,
            "False",
            reason::PROVISIONING,
            text,
        );
    }
    let joined = open.node.as_deref().is_some_and(is_ready);
    match machine.map(|machine| machine.state) {
        _ if joined => {
            let text = format!("{gpu} on node {name} for {price} an hour");
            Said::new(RequestPhase::Ready, "True", reason::NODE_READY, text)
        }
        // Nothing is known of it since this process began: it is as it was.
        None if status.phase != RequestPhase::Provisioning => {
            let text = status.message.clone().unwrap_or_default();
            let known = match status.phase {
                RequestPhase::Ready => reason::NODE_NOT_READY,
                RequestPhase::Joining => reason::JOINING,
                _ => reason::BOOTING,
            };
            Said::new(status.phase, "False", known, text)
        }
        None | Some(State::Pending) => {
            let text = format!("{name} starts, for {price} an hour");
            Said::new(RequestPhase::Booting, "False", reason::BOOTING, text)
        }
        Some(_) if status.phase == RequestPhase::Ready => {
            let text =
                format!("node {name} was ready and is not; the machine costs {price} an hour");
            Said::new(RequestPhase::Ready, "False", reason::NODE_NOT_READY, text)
        }
        Some(_) => {
            let text = format!("{name} runs and its node is not ready yet, for {price} an hour");
            Said::new(RequestPhase::Joining, "False", reason::JOINING, text)
        }
    }
}
