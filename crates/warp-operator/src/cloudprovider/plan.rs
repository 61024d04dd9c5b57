//! What a provider's status should say, when its account is asked again, and which machines are ended. Pure and total.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use warp_api::cloudprovider::{CircuitState, CloudMachine, CloudOffer};
use warp_api::{CloudProvider, CloudProviderStatus, condition, reason};
use warp_cloud::{Availability, Class, Decimal, Offer, in_region};
use warp_runtime::cache::Key;
use warp_runtime::plan::{Call, Plan, What, about};
use warp_runtime::reconcile::Reconcile;

use super::observe::Seen;
use super::{CloudProviders, FINALIZER, circuit, sweep};

/// Offers a status holds: the cheapest.
const OFFERS: usize = 300;
/// Kinds of machines a status holds of one model, size and region.
const SAME_PLACE: usize = 4;
/// Machines a message names before it counts the rest.
const NAMED: usize = 3;
/// How long a cloud gets to end a machine of nobody before it is told again.
const RETELL: SignedDuration = SignedDuration::from_mins(1);
/// How long a list holds that requests know better than.
const REFRESH: SignedDuration = SignedDuration::from_secs(10);
/// A cloud that does not answer is told of when what was seen of it is so many times as old as it usually gets: one lost
/// answer says nothing, and two processes that hear different ones would correct each other.
const TRUSTED: i32 = 2;
/// How often "checked at" is renewed although nothing else changed.
const RENEW: SignedDuration = SignedDuration::from_mins(30);

pub(super) fn plan(provider: &CloudProvider, seen: &Seen, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let going = provider.meta().deletion_timestamp.as_ref();
    let held = provider.finalizers().iter().any(|name| name == FINALIZER);
    if going.is_none() && !held {
        "a provider goes only when its machines are gone".clone_into(&mut plan.why);
        plan.add_finalizer(provider, FINALIZER);
        return plan;
    }
    let before = provider.status.clone().unwrap_or_default();
    let after = status(provider, &before, seen, now);
    // Said before it is let go: a list from before the deletion does not count.
    if let Some(since) = going
        && held
        && needed_by(provider, &after, seen).is_empty()
        && (never_open(&before, seen)
            || (seen.sight.asked.is_some_and(|asked| asked >= since.0)
                && seen.sight.failed.is_none()))
    {
        "the cloud has no machine of ours".clone_into(&mut plan.why);
        plan.remove_finalizer(provider, FINALIZER);
        return plan;
    }
    plan.why = after
        .message
        .clone()
        .unwrap_or_else(|| "the provider is up to date".to_owned());
    write(&mut plan, provider, &before, &after);
    call(&mut plan, provider, &after, seen, now);
    plan
}

/// Whether the cloud has never let us in, so that nothing can have been bought there.
fn never_open(before: &CloudProviderStatus, seen: &Seen) -> bool {
    before.offers_checked_at.is_none() && seen.listed.is_none() && seen.sight.failed.is_some()
}

fn write(
    plan: &mut Plan,
    provider: &CloudProvider,
    before: &CloudProviderStatus,
    after: &CloudProviderStatus,
) {
    plan.own_status(
        provider,
        CloudProviders::MANAGER,
        provider.status.as_ref().map(own).unwrap_or_default(),
        own(after),
    );
    let ready = |status: &CloudProviderStatus| {
        let found = condition::find(&status.conditions, condition::READY);
        found.map(|ready| (ready.reason.clone(), ready.status.clone()))
    };
    let (was, is) = (ready(before), ready(after));
    if was != is
        && let Some((reason, status)) = is
    {
        let message = after.message.clone().unwrap_or_default();
        plan.note(about(provider), status != "True", &reason, message);
    }
}

/// The part of a status that is ours: conditions of other writers stay theirs.
fn own(status: &CloudProviderStatus) -> Value {
    let mut status = status.clone();
    status
        .conditions
        .retain(|found| found.type_ == condition::READY);
    serde_json::to_value(status).unwrap_or_default()
}

/// Asks the account again when its answer is old, and ends machines that have belonged to nobody for long enough.
fn call(
    plan: &mut Plan,
    provider: &CloudProvider,
    after: &CloudProviderStatus,
    seen: &Seen,
    now: Timestamp,
) {
    let name = provider.name_any();
    let mut calls = |name: String, what: What| {
        plan.calls.push(Call {
            outside: seen.outside,
            for_key: Key::of(provider),
            name,
            what,
        });
    };
    for machine in &after.machines {
        let due = sweep::ends_at(machine).is_some_and(|at| at <= now);
        let told = seen.told.get(&machine.id);
        let waits = told.is_some_and(|told| now.duration_since(*told) < RETELL);
        if due && !waits && machine.state != "terminating" {
            calls(format!("{name}/{}", machine.id), What::Remove);
        }
    }
    let max_age = if sweep::is_behind(&name, seen) {
        REFRESH
    } else {
        SignedDuration::try_from(seen.sight.max_age).unwrap_or_default()
    };
    let due = seen
        .sight
        .asked
        .map_or(now, |asked| asked.saturating_add(max_age).unwrap_or(now));
    let refused = seen.sight.failed.as_ref().map(|(_, until)| *until);
    let due = refused.map_or(due, |until| due.max(until));
    // A deletion waits for an answer, not for the next round.
    let going = provider.meta().deletion_timestamp.as_ref();
    let outdated = going.is_some_and(|since| seen.sight.asked.is_none_or(|asked| asked < since.0));
    if seen.sight.busy {
        return;
    }
    if due <= now || (outdated && refused.is_none_or(|until| until <= now)) {
        calls(name, What::LookUp);
    } else {
        plan.look_again(due);
    }
    // Its state follows the clock.
    let until = after
        .circuit
        .iter()
        .filter_map(|circuit| circuit.until.as_ref());
    for until in until.filter(|until| until.0 > now) {
        plan.look_again(until.0);
    }
    for at in after.machines.iter().filter_map(sweep::ends_at) {
        if at > now {
            plan.look_again(at);
        }
    }
}

fn status(
    provider: &CloudProvider,
    before: &CloudProviderStatus,
    seen: &Seen,
    now: Timestamp,
) -> CloudProviderStatus {
    let generation = provider.meta().generation.unwrap_or_default();
    let mut after = before.clone();
    after.observed_generation = Some(generation);
    if let (Some(listed), Some(mark)) = (&seen.listed, &seen.mark) {
        after.offers = offers(provider, &listed.offers);
        let asked = seen.sight.asked.unwrap_or(now);
        after.machines = sweep::machines(
            &listed.machines,
            &seen.requests,
            &provider.name_any(),
            mark,
            &before.machines,
            (asked, now),
        );
        let checked = seen.sight.asked.unwrap_or(now);
        let renew = before.offers_checked_at.as_ref().is_none_or(|at| {
            after.offers != before.offers || checked.duration_since(at.0) >= RENEW
        });
        if renew {
            after.offers_checked_at = Some(Time(checked));
        }
    }
    if let Some(count) = seen.interruptions {
        after.interruptions_this_month = count;
    }
    let (name, known) = (provider.name_any(), before.circuit.as_ref());
    after.circuit = circuit::next(known, &seen.requests, &name, now);
    after.offer_count = i64::try_from(after.offers.len()).unwrap_or(i64::MAX);
    after.machine_count = i64::try_from(after.machines.len()).unwrap_or(i64::MAX);
    after.price_per_hour = (!after.machines.is_empty()).then(|| per_hour(&after.machines));
    let ready = ready(provider, &after, seen, now);
    after.message = (!ready.message.is_empty()).then(|| ready.message.clone());
    after.conditions = condition::next(&before.conditions, &[ready], generation, now);
    after
}

/// What the machines cost an hour together, as far as the cloud says.
fn per_hour(machines: &[CloudMachine]) -> String {
    let prices = machines.iter().filter_map(|machine| machine.price.as_ref());
    let sum: Decimal = prices
        .filter_map(|price| price.parse::<Decimal>().ok())
        .sum();
    sum.round_dp(2).normalize().to_string()
}

/// The cheapest few of each model, size and region that make sense and are in a region of the spec, cheapest first. One
/// kind of machine may be sold out where another with the same GPUs is not. Where not all find room, none is left out
/// for the second of another place.
fn offers(provider: &CloudProvider, all: &[Offer]) -> Vec<CloudOffer> {
    let wanted = &provider.spec.regions;
    let mut places: BTreeMap<(&str, u32, &str), Vec<&Offer>> = BTreeMap::new();
    for offer in all {
        let here = wanted.is_empty() || wanted.iter().any(|name| in_region(&offer.region, name));
        if here && offer.nonsense().is_none() {
            let place = (offer.gpu.as_str(), offer.gpus, offer.region.as_str());
            places.entry(place).or_default().push(offer);
        }
    }
    let mut ranked: Vec<(usize, &Offer)> = Vec::new();
    for offers in places.values_mut() {
        offers.sort_by_key(|offer| (offer.availability == Availability::None, offer.price));
        let spots = offers.iter().enumerate().skip(SAME_PLACE);
        let spots = spots.filter(|(_, offer)| offer.availability != Availability::None);
        let cheapest = spots.min_by_key(|(_, offer)| offer.spot_price.unwrap_or(Decimal::MAX));
        let cheapest = cheapest.map(|(at, _)| at);
        // Cheap as spot is another thing than cheap on demand.
        let best = offers.iter().filter_map(|offer| offer.spot_price).min();
        if let Some(at) = cheapest.filter(|at| offers[*at].spot_price == best) {
            offers.swap(at, SAME_PLACE - 1);
        }
        offers.truncate(SAME_PLACE);
        ranked.extend(offers.iter().copied().enumerate());
    }
    ranked.sort_by(|one, other| {
        let rank = |(place, offer): &(usize, &Offer)| (*place, offer.price);
        rank(one).cmp(&rank(other))
    });
    ranked.truncate(OFFERS);
    let mut best: Vec<&Offer> = ranked.into_iter().map(|(_, offer)| offer).collect();
    best.sort_by(|one, other| {
        let rank = |offer: &Offer| (offer.price, offer.gpu.clone(), offer.instance_type.clone());
        rank(one).cmp(&rank(other))
    });
    best.into_iter().map(told).collect()
}

fn told(offer: &Offer) -> CloudOffer {
    let availability = serde_json::to_value(offer.availability).unwrap_or_default();
    CloudOffer {
        gpu: offer.gpu.clone(),
        gpus: offer.gpus,
        region: offer.region.clone(),
        instance_type: offer.instance_type.clone(),
        price: money(offer.price),
        spot_price: offer.spot_price.map(money),
        availability: availability.as_str().unwrap_or_default().to_owned(),
    }
}

/// Dollars with at least two decimals.
fn money(amount: Decimal) -> String {
    let mut amount = amount.normalize();
    if amount.scale() < 2 {
        amount.rescale(2);
    }
    amount.to_string()
}

/// What keeps a provider from going: machines of ours, and requests with an attempt that is not over.
fn needed_by(provider: &CloudProvider, after: &CloudProviderStatus, seen: &Seen) -> Vec<String> {
    let name = provider.name_any();
    let mut all: Vec<String> = after
        .machines
        .iter()
        .map(|machine| match &machine.request {
            Some(request) => format!("machine {} of GPURequest {request}", machine.name),
            None => format!("machine {} of nobody", machine.name),
        })
        .collect();
    for request in &seen.requests {
        let attempts = request.status.iter().flat_map(|status| &status.attempts);
        let open = attempts.filter(|attempt| attempt.provider == name && attempt.outcome.is_none());
        for attempt in open {
            let owner = format!(
                "machine {} of GPURequest {}/{}",
                attempt.machine,
                request.namespace().unwrap_or_default(),
                request.name_any()
            );
            if !all.contains(&owner) {
                all.push(owner);
            }
        }
    }
    all
}

/// Whether what was last seen of an account is new enough to be told without another answer.
fn is_trusted(seen: &Seen, now: Timestamp) -> bool {
    let age = SignedDuration::try_from(seen.sight.max_age).unwrap_or_default();
    let asked = seen.sight.asked.filter(|_| seen.listed.is_some());
    asked.is_some_and(|asked| now.duration_since(asked) < age * TRUSTED)
}

fn ready(
    provider: &CloudProvider,
    after: &CloudProviderStatus,
    seen: &Seen,
    now: Timestamp,
) -> condition::State {
    let state = |status: &'static str, reason: &'static str, message: String| condition::State {
        kind: condition::READY,
        status,
        reason,
        message,
    };
    if let Some((error, _)) = &seen.sight.failed {
        let class = error.message.split(':').next().and_then(Class::of);
        let (reason, next) = match class {
            Some(Class::BadCredentials) => (
                reason::BAD_CREDENTIALS,
                "the cloud takes the account again by itself when its key is valid",
            ),
            Some(Class::NoBalance) => (reason::NO_BALANCE, "pay the account's bill"),
            Some(Class::Refused) => (reason::CLOUD_REFUSED, "correct the spec"),
            _ => (reason::CLOUD_UNREACHABLE, "it is asked again by itself"),
        };
        if reason != reason::CLOUD_UNREACHABLE || !is_trusted(seen, now) {
            return state("False", reason, format!("{}; {next}", error.message));
        }
    }
    if provider.meta().deletion_timestamp.is_some() {
        let needed = needed_by(provider, after, seen);
        if !needed.is_empty() {
            let text = format!(
                "it goes when nothing of it is rented: {}; delete those GPURequests",
                listed(needed)
            );
            return state("False", reason::MACHINES_EXIST, text);
        }
    }
    if let Some(Err(problem)) = provider
        .spec
        .limits
        .as_ref()
        .and_then(|limits| limits.price_per_hour.as_ref())
        .map(warp_api::price::Price::decimal)
    {
        let text = format!("spec.limits.pricePerHour: {problem}; correct it");
        return state("False", reason::INVALID_SPEC, text);
    }
    if seen.listed.is_none() && after.offers_checked_at.is_none() {
        return state(
            "Unknown",
            reason::NOT_ASKED,
            "the cloud is being asked".to_owned(),
        );
    }
    if !provider.spec.enabled {
        let text = "spec.enabled is false: nothing new is rented here".to_owned();
        return state("False", reason::DISABLED, text);
    }
    if after.offers.is_empty() {
        let text = "the cloud offers nothing in spec.regions: widen them".to_owned();
        return state("False", reason::NO_OFFER, text);
    }
    let circuit = after.circuit.as_ref();
    let left_alone = circuit.filter(|circuit| circuit.state == CircuitState::Open);
    let text = match left_alone {
        None => format!("{} offers", after.offers.len()),
        Some(circuit) => format!(
            "{} offers, and nothing is rented until {:.0}: the last {} machines came to nothing ({})",
            after.offers.len(),
            circuit
                .until
                .as_ref()
                .map_or(Timestamp::MAX, |until| until.0),
            circuit.failures,
            circuit.last_failure.as_deref().unwrap_or_default()
        ),
    };
    state("True", reason::OFFERS_KNOWN, text)
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
