//! Follows the machine of every open attempt, of which there are two only while one is taken back: what is known of it becomes facts of the attempt, facts decide whether it
//! is to go, and the runtime's rules for things outside decide the next call. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use warp_api::gpurequest::{RequestAttempt, RequestPhase};
use warp_api::{GPURequest, GPURequestStatus, reason};
use warp_cloud::{Availability, Class, Launch, Machine, Offer, State};
use warp_runtime::cache::Key;
use warp_runtime::outside::{Recorded, Step, absent, present};
use warp_runtime::plan::{self, Call, Plan, Premise, Removal, What, as_json};

use super::choose::later;
use super::ending::{is_lent, is_ready, limits, note_readiness};
use super::observe::{Open, Seen};
use super::plan::money;
use super::pod_status::End;
use super::say::Said;
use super::together::Company;
use super::told::say;
use super::wanted::Wanted;
use super::{caller, container, costs, joining, money as purse, notice, outside_name};
use crate::cloudprovider::calls::Answer;

/// How often a machine that starts is asked for.
const BOOT_LOOK: SignedDuration = SignedDuration::from_secs(3);
/// How often a cloud is told to end a machine that it still has.
const PACE: SignedDuration = SignedDuration::from_secs(3);
/// How often it is looked whether a node has joined.
const JOIN_LOOK: SignedDuration = SignedDuration::from_secs(1);
/// How much longer than `maxLifetime` a cloud that ends machines by itself lets one run.
const LIFETIME_SLACK: SignedDuration = SignedDuration::from_mins(10);

/// See the module: every open attempt, the newest last, which has the last word. What the request says after this pass.
pub(super) fn drive(
    plan: &mut Plan,
    status: &mut GPURequestStatus,
    request: &GPURequest,
    seen: &Seen,
    now: Timestamp,
) -> Said {
    let open = |attempt: &&RequestAttempt| attempt.outcome.is_none();
    let numbers: Vec<u32> = status
        .attempts
        .iter()
        .filter(open)
        .map(|one| one.number)
        .collect();
    let newest = numbers.last().copied();
    let mut said = None;
    for number in numbers {
        let one = follow(
            plan,
            status,
            request,
            seen,
            (number, newest == Some(number)),
            now,
        );
        // One that is taken back has the last word when nothing took its place.
        said = one.or(said);
    }
    said.unwrap_or_else(|| {
        let text = "its CloudProvider is of a type this version does not know".to_owned();
        Said::new(status.phase, "False", reason::NO_PROVIDER, text)
    })
}

/// Follows one open attempt.
fn follow(
    plan: &mut Plan,
    status: &mut GPURequestStatus,
    request: &GPURequest,
    seen: &Seen,
    (number, newest): (u32, bool),
    now: Timestamp,
) -> Option<Said> {
    let open = seen.open.iter().find(|open| open.number == number)?;
    let at = status
        .attempts
        .iter()
        .position(|known| known.number == number)?;
    let mut attempt = status.attempts[at].clone();
    let answer = answer(&attempt, open);
    let machine = match &answer {
        Some(Answer::Machine(machine)) => Some(machine),
        _ => None,
    };
    learn(&mut attempt, machine, now);
    if newest {
        show(&attempt, status, machine);
    }
    // The node of a container is ready before anything is bought.
    let ready = if attempt.is_container() {
        machine.is_some_and(|machine| matches!(machine.state, State::Running | State::Degraded))
    } else {
        open.node.as_deref().is_some_and(is_ready)
    };
    if attempt.ready_at.is_none() && ready {
        attempt.ready_at = Some(Time(now));
        // One that is taken back later is waited for anew.
        status.spot_wanted_since = None;
    }
    note_readiness(&mut attempt, open, now);
    if attempt.is_container() {
        container::bind(&mut attempt, open, seen, now);
        if newest {
            status.node_name = Some(attempt.machine.clone());
        }
    }
    notice::learn(&mut attempt, open, machine, now);
    let wanted = Wanted::limits_of(&request.spec);
    let stopped = purse::is_stopped(plan, &attempt, seen, now);
    let over = container::ending(&attempt, open, machine, seen);
    let company = Company::of(request, &seen.requests);
    limits(
        &mut attempt,
        status,
        &wanted,
        open,
        machine,
        request,
        stopped,
        over,
        company.as_ref(),
        newest,
        now,
    );
    joining::follow(plan, &mut attempt, request, open, now);
    if attempt.is_container() {
        container::keep(plan, &attempt, request, open, now);
        container::tell(plan, &attempt, open, machine, now);
        container::clear(plan, &attempt, open);
        if let Some(at) = status.terminates_at.as_ref().filter(|at| at.0 > now) {
            plan.look_again(at.0);
        }
    }
    notice::drain(plan, &status.attempts[at], open, now);
    let said = if attempt.pod == status.attempts[at].pod {
        let answer = answer.as_ref();
        go_on(plan, status, &mut attempt, answer, request, seen, open, now)
    } else {
        // Which pod it is has to be known before anything is asked for.
        say(status, &attempt, machine, open)
    };
    let said = match attempt.ending {
        None if request.meta().deletion_timestamp.is_some() && is_lent(open) => {
            said.and("the workload it was rented for is gone: it is given back when those that use it are done")
        }
        _ => said,
    };
    let said = match Wanted::differs(&request.spec, &attempt) {
        Some(more) if said.is_ready() => said.and(&more),
        _ => said,
    };
    let known = &status.attempts[at];
    if known.billed_from.is_none() && attempt.billed_from.is_some() && attempt.outcome.is_none() {
        costs::enter(plan, &seen.home, request, &attempt);
    }
    status.attempts[at] = attempt;
    Some(said)
}

/// The next step of an attempt, by what the cloud said last.
#[expect(clippy::too_many_arguments, reason = "one pass over one machine")]
fn go_on(
    plan: &mut Plan,
    status: &mut GPURequestStatus,
    attempt: &mut RequestAttempt,
    answer: Option<&Answer>,
    request: &GPURequest,
    seen: &Seen,
    open: &Open,
    now: Timestamp,
) -> Said {
    let machine = match answer {
        Some(Answer::Machine(machine)) => Some(machine),
        _ => None,
    };
    match answer {
        Some(Answer::Refused { class, words }) if attempt.is_container() => {
            refused(plan, attempt, request, open, (*class, words), now)
        }
        None if attempt.is_container() && attempt.pod.is_none() => {
            if attempt.ending.is_some() {
                let outcome = attempt.ending.clone().unwrap_or_default();
                close(plan, status, attempt, request, seen, open, &outcome, now);
                say(status, attempt, machine, open)
            } else {
                container::waits(status, attempt, open)
            }
        }
        Some(Answer::Refused { class, words }) => {
            if joining::revoked(plan, attempt, request, open, now) {
                attempt.outcome = Some(attempt.ending.clone().unwrap_or(class.as_str().to_owned()));
                attempt.reason = Some(words.clone());
                attempt.ended_at = Some(Time(now));
            }
            let text = format!("{} refused: {words}", attempt.provider);
            Said::new(RequestPhase::Pending, "False", reason::RETRYING, text)
        }
        _ => step(plan, status, attempt, machine, request, seen, open, now),
    }
}

/// The end of a container that the cloud does not sell, or not for this pod.
fn refused(
    plan: &mut Plan,
    attempt: &mut RequestAttempt,
    request: &GPURequest,
    open: &Open,
    (class, words): (Class, &str),
    now: Timestamp,
) -> Said {
    let text = format!("{} refused: {words}", attempt.provider);
    // Asked again for this pod it would be refused again; anything else another offer may have.
    let (outcome, end) = match class {
        Class::Refused => (reason::CONTAINER_REFUSED, End::Refused(words)),
        _ => (class.as_str(), End::Lost(&text)),
    };
    if container::let_go(plan, attempt, request, open, &end, now) {
        if let Some(node) = &open.node {
            plan.delete(&**node, Removal::default(), None);
        }
        // That its pod is over by then follows from the refusal.
        let ending = attempt.ending.clone();
        let ending = ending.filter(|ending| ending != reason::POD_ENDED);
        attempt.outcome = Some(ending.unwrap_or(outcome.to_owned()));
        attempt.reason = Some(words.to_owned());
        attempt.ended_at = Some(Time(now));
    }
    Said::new(RequestPhase::Pending, "False", reason::RETRYING, text)
}

/// What the cloud said last, if it was asked after the attempt was written.
fn answer(attempt: &RequestAttempt, open: &Open) -> Option<Answer> {
    let since = attempt.sought_since()?.0;
    open.sight.asked.filter(|asked| *asked >= since)?;
    serde_json::from_value(open.sight.there.clone()?).ok()
}

/// Takes what the cloud says of the machine into the attempt.
fn learn(attempt: &mut RequestAttempt, machine: Option<&Machine>, now: Timestamp) {
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
}

/// Takes the newest machine into the status.
fn show(attempt: &RequestAttempt, status: &mut GPURequestStatus, machine: Option<&Machine>) {
    let Some(machine) = machine else {
        return;
    };
    status.instance_id = Some(machine.id.clone());
    status.node_name = Some(attempt.machine.clone());
    status.public_ip.clone_from(&machine.public_ip);
    status.private_ip.clone_from(&machine.private_ip);
    status.price_per_hour = Some(money(costs::price(attempt)));
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
    let intended = attempt.sought_since().unwrap_or(&attempt.intended_at).0;
    let recorded = match attempt.instance_id {
        Some(_) => Recorded::Made(intended),
        None => Recorded::Intended(intended),
    };
    if let Some(text) = caller::claim(plan, attempt, seen, open, now) {
        return Said::new(
            RequestPhase::Provisioning,
            "False",
            reason::PROVISIONING,
            text,
        );
    }
    let gone = machine.is_some_and(|machine| machine.state == State::Gone);
    let mut sight = open.sight.clone();
    sight.last_make = sight.last_make.max(caller::taken_over(attempt));
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
    let company = Company::of(request, &seen.requests);
    if let Some(text) = company.and_then(|company| company.hold())
        && matches!(next, Step::Make)
    {
        return Said::new(
            RequestPhase::Provisioning,
            "False",
            reason::WAITING_FOR_OTHERS,
            text,
        );
    }
    match next {
        Step::LookUp => plan.calls.push(call(What::LookUp)),
        Step::Make => {
            // A watch that is behind may hide that another process buys it by now.
            plan.premises
                .push(Premise::Unchanged(plan::Seen::of(request)));
            let launch = as_json(&launch(attempt, request));
            plan.calls.push(call(What::Make(launch)));
        }
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
        Step::Lost => {
            let outcome = if attempt.spot {
                reason::SPOT_INTERRUPTED
            } else {
                reason::MACHINE_LOST
            };
            close(plan, status, attempt, request, seen, open, outcome, now);
        }
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
        image: request.spec.image.clone(),
        user_data: request.spec.user_data.clone(),
        // It has a token in it: whoever asks the cloud puts it in.
        join: None,
        container: None,
    }
}

/// When the cloud itself may end the machine: somewhat later than this operator would.
fn lifetime_seconds(request: &GPURequest) -> Option<u64> {
    let lifetime = Wanted::limits_of(&request.spec).lifetime?;
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
    if !joining::revoked(plan, attempt, request, open, now) {
        return;
    }
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
        // Once: a plan that writes makes no calls, and what is still to be looked up would never be.
        if known.is_none_or(|known| known.cost.is_none()) {
            costs::enter(plan, &seen.home, request, attempt);
            attempt.cost = Some(costs::of_attempt(attempt, now).to_string());
        }
    }
    let why = format!("{} is gone ({outcome})", attempt.machine);
    if !container::let_go(plan, attempt, request, open, &End::Lost(&why), now) {
        return;
    }
    if let Some(node) = &open.node {
        plan.delete(&**node, Removal::default(), None);
    }
    attempt.outcome = Some(outcome.to_owned());
    attempt.ended_at = Some(Time(now));
    let own = |known: &RequestAttempt| known.number == attempt.number;
    let others = costs::of_request(status, own, |_| now);
    let spent = others + costs::of_attempt(attempt, now);
    status.spent = Some(spent.to_string());
}
