//! Whether the machine of an attempt is to go, and why. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use warp_api::gpurequest::{RequestAttempt, RequestPhase};
use warp_api::{GPURequest, GPURequestStatus, reason};
use warp_cloud::{Decimal, Machine, State};

use super::choose::later;
use super::observe::Open;
use super::together::Company;
use super::wanted::Wanted;
use super::{costs, joining, notice};
use crate::ledger;

/// A machine that does not run this long after it was bought is given back.
const BOOT_LIMIT: SignedDuration = SignedDuration::from_mins(20);
/// And one whose node is not ready this long after it was bought.
const JOIN_LIMIT: SignedDuration = SignedDuration::from_mins(30);
/// And one whose node was ready, and has not been for this long: nobody can use it, and it costs money.
const GONE_LIMIT: SignedDuration = SignedDuration::from_mins(15);
/// The money lasts at least this much longer than the machine, in seconds, or a tenth of its time.
const MARGIN: i64 = 120;

/// Decides whether the machine is to go, and when it goes at the latest. `stopped`: a budget wants it to; `container`: its
/// pod does.
#[expect(clippy::too_many_arguments, reason = "one pass over one machine")]
pub(super) fn limits(
    attempt: &mut RequestAttempt,
    status: &mut GPURequestStatus,
    wanted: &Wanted,
    open: &Open,
    machine: Option<&Machine>,
    request: &GPURequest,
    stopped: bool,
    container: Option<&'static str>,
    company: Option<&Company<'_>>,
    newest: bool,
    now: Timestamp,
) {
    if newest && (attempt.billed_from.is_some() || attempt.is_container()) {
        status.terminates_at = ends(attempt, status, wanted).map(|(at, _)| Time(at));
    }
    let ready = open.node.as_deref().is_some_and(is_ready);
    if !newest {
        // What is said of idleness is of the machine that takes its place.
    } else if open.used
        || !(ready || attempt.unready_since.is_some())
        || company.is_some_and(|them| them.waits(status))
    {
        status.idle_since = None;
    } else if status.idle_since.is_none() {
        status.idle_since = Some(Time(now));
    }
    if attempt.ending.is_some() {
        return;
    }
    let idle = wanted
        .idle
        .zip(status.idle_since.as_ref())
        .filter(|_| newest);
    let due = ends(attempt, status, wanted);
    let bought = attempt.billed_from.as_ref().map(|from| from.0);
    let state = machine.map(|machine| machine.state);
    let broken = open.node.as_deref().and_then(joining::test_failure);
    let over = matches!(
        state,
        Some(State::Preempted | State::Stopped | State::Terminating | State::Gone)
    );
    let ending = if request.meta().deletion_timestamp.is_some() && !is_lent(open) {
        Some(reason::DELETED)
    } else if container.is_some() {
        container
    // Nobody here has ended it: one that the cloud may take back it has taken back, with a word or without.
    } else if (attempt.spot && over) || notice::is_over(attempt, open, now) {
        Some(reason::SPOT_INTERRUPTED)
    } else if matches!(
        state,
        // One on demand that is off has powered itself off, or somebody else has.
        Some(State::Failed | State::Gone | State::Terminating | State::Preempted | State::Stopped)
    ) {
        Some(reason::MACHINE_LOST)
    } else if let Some((_, why)) = due.filter(|(at, _)| *at <= now) {
        Some(why)
    } else if stopped {
        Some(reason::BUDGET_REACHED)
    } else if !open.used && company.is_some_and(|them| them.is_given_up(status, now)) {
        Some(reason::NOT_ALL_RENTED)
    } else if let Some(words) = too_dear(attempt) {
        attempt.reason = Some(words);
        Some(reason::PRICE_ABOVE_LIMIT)
    } else if idle.is_some_and(|(limit, since)| later(since.0, limit) <= now) {
        Some(reason::IDLE_TIMEOUT)
    } else if broken.is_some() {
        attempt.reason = broken;
        Some(reason::GPU_TEST_FAILED)
    } else if gives_up_at(attempt).is_some_and(|at| at <= now) {
        let words = "its node was ready and did not come back";
        attempt.reason = Some(words.to_owned());
        Some(reason::MACHINE_LOST)
    } else if ready && !attempt.is_container() {
        None
    } else if state == Some(State::Pending) && bought.is_some_and(|at| later(at, BOOT_LIMIT) <= now)
    {
        Some(reason::NEVER_RAN)
    } else if status.phase != RequestPhase::Ready
        && !attempt.is_container()
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

/// Notes since when a node that was ready is not. A container has none of its own.
pub(super) fn note_readiness(attempt: &mut RequestAttempt, open: &Open, now: Timestamp) {
    let ready = open.node.as_deref().is_some_and(is_ready);
    if ready || attempt.ready_at.is_none() || attempt.is_container() {
        attempt.unready_since = None;
    } else if attempt.unready_since.is_none() {
        attempt.unready_since = Some(Time(now));
    }
}

/// When a machine is given back whose node does not come back.
pub(super) fn gives_up_at(attempt: &RequestAttempt) -> Option<Timestamp> {
    let since = attempt.unready_since.as_ref()?;
    Some(later(since.0, GONE_LIMIT))
}

/// Whether a machine whose request goes is kept until those who use it are done: the workload it was rented for is gone,
/// and what it left to others of its tenant is not taken from under them.
pub(super) fn is_lent(open: &Open) -> bool {
    open.ownerless && open.used
}

/// What speaks against a machine that costs more than was agreed when it was bought.
fn too_dear(attempt: &RequestAttempt) -> Option<String> {
    let billed: Decimal = attempt.billed_price.as_ref()?.parse().ok()?;
    let agreed: Decimal = attempt.price_limit.parse().ok()?;
    (billed > agreed)
        .then(|| format!("the cloud bills {billed} an hour where at most {agreed} was agreed"))
}

/// When the machine must go for its time or its money, and which of them it is.
pub(super) fn ends(
    attempt: &RequestAttempt,
    status: &GPURequestStatus,
    wanted: &Wanted,
) -> Option<(Timestamp, &'static str)> {
    let first = status.first_billed();
    let first = first.or(attempt.billed_from.as_ref());
    let lifetime = (wanted.lifetime.zip(first))
        .map(|(time, first)| (later(first.0, time), reason::MAX_LIFETIME));
    let Some(from) = attempt.billed_from.as_ref().map(|from| from.0) else {
        // A container's node that waits for its pod buys nothing when the time of its request is over.
        return lifetime.filter(|_| attempt.is_container());
    };
    let price = costs::price(attempt);
    let money = wanted
        .max_total
        .filter(|_| price > Decimal::ZERO)
        .map(|most| {
            // One that is taken back goes on costing for as long as it may take.
            let until = |other: &RequestAttempt| {
                let noticed = other.noticed_at.as_ref();
                noticed.map_or(from, |at| from.max(later(at.0, notice::LIMIT)))
            };
            let own = |known: &RequestAttempt| known.number == attempt.number;
            let spent = costs::of_request(status, own, until);
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

/// Whether work can be placed on a node: it says so itself, and its GPUs were tested where they are.
pub(super) fn is_ready(node: &Node) -> bool {
    !joining::is_starting(node) && ledger::is_ready(node)
}
