//! What a service says of itself, and tells those who look at Events. Pure.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{Resource, ResourceExt};
use warp_api::inferenceservice::ServicePhase;
use warp_api::{InferenceService, InferenceServiceStatus, condition, label, reason};
use warp_core::rollout::Strategy;
use warp_runtime::plan::{Plan, about};

use super::adapters;
use super::assess::{self, Numbers, Standing, View};
use super::autoscaler;
use super::figures;
use super::group::{self, Tended};
use super::objects;
use super::observe::Seen;
use super::pools::{self, Pool};
use super::wanted::{Refusal, Wanted};
use super::weights;

/// Addresses a status shows.
const SHOWN: usize = 8;

pub(super) fn accepted(
    service: &InferenceService,
    seen: &Seen,
    wanted: &Wanted,
    tended: &Tended,
    before: &InferenceServiceStatus,
    now: Timestamp,
) -> InferenceServiceStatus {
    let name = service.name_any();
    let spans = wanted.nodes > 1;
    let current = |found: &Deployment| {
        let mut pools = wanted.pools.iter();
        pools.any(|one| {
            let pool = one.pool.name.as_deref();
            let own = pools::deployment_name(&name, pool) == found.name_any();
            one.is_current && own && !spans
        })
    };
    let mut numbers = numbers(service, seen, wanted.copies.wanted, current);
    // What goes with this pass answers nobody for long, and copies that span nodes are not of a spec whose copies do not.
    numbers.ready -= tended.ready;
    numbers.updated -= tended.updated;
    if !spans && is_of_groups(seen) {
        numbers.updated = 0;
    }
    let copies = i32::try_from(wanted.copies.wanted).unwrap_or(i32::MAX);
    let mut standing = assess::assess(&View {
        service,
        wanted: copies,
        numbers,
        pods: &seen.pods,
        workers: &seen.workers,
        waiting: &seen.waiting,
        pools: &wanted.pools,
    });
    let accelerators = pools::status(service, seen, &wanted.pools, &wanted.given);
    let serving = accelerators.iter().filter(|pool| pool.ready_replicas > 0);
    let serving = serving.map(|pool| format!("{} on {}", pool.ready_replicas, pool.name));
    let serving: Vec<String> = serving.collect();
    if !serving.is_empty() {
        standing.message = format!("{} ({})", standing.message, serving.join(", "));
    }
    if let Some(told) = weights::stale(service, seen) {
        standing.message = format!("{}; {told}", standing.message);
    }
    let yes = condition::State {
        kind: condition::ACCEPTED,
        status: "True",
        reason: reason::SPEC_ACCEPTED,
        message: wanted.scaled.clone().unwrap_or_default(),
    };
    let since = wanted.copies.too_many_since;
    let since = since.and_then(|second| Timestamp::from_second(second).ok());
    let load = figures::load(seen);
    let alone = service.spec.accelerators.is_empty();
    InferenceServiceStatus {
        replicas: copies,
        cost: figures::cost(service, seen, load.as_ref()),
        cache: figures::cache(service, seen, before.cache.as_ref()),
        adapters: adapters::status(service, seen),
        gpus_per_replica: alone.then(|| service.spec.gpus_per_replica()),
        nodes_per_replica: i32::try_from(wanted.nodes).ok().filter(|nodes| *nodes > 1),
        too_many_since: since.map(Time),
        rollout: Some(how(wanted)),
        accelerators,
        no_room_since: wanted.no_room_since.map(Time),
        load,
        ..common(service, seen, &standing, numbers, yes, before, now)
    }
}

/// How copies are replaced by those of a new spec.
fn how(wanted: &Wanted) -> String {
    if wanted.nodes > 1 {
        return format!(
            "one at a time, in place: a copy spans {} nodes and goes as a whole",
            wanted.nodes
        );
    }
    let pools = wanted.pools.iter().zip(&wanted.given);
    let pools = pools.filter(|(one, given)| one.pool.name.is_none() || given.copies > 0);
    let told = pools.map(|(one, given)| {
        let Strategy {
            max_surge,
            max_unavailable,
        } = given.strategy;
        let how = if max_surge > 0 {
            format!("{max_surge} at a time, each beside the copy it replaces")
        } else {
            format!("{max_unavailable} at a time, in place: no GPU is free for a copy more")
        };
        match &one.pool.name {
            Some(name) => format!("{name}: {how}"),
            None => how,
        }
    });
    let told: Vec<String> = told.collect();
    told.join("; ")
}

/// Whether its copies are groups.
fn is_of_groups(seen: &Seen) -> bool {
    pools::deployments(seen).next().is_none() && !seen.sets.is_empty()
}

/// What its Deployments count, or its groups.
fn numbers(
    service: &InferenceService,
    seen: &Seen,
    wanted: u32,
    current: impl Fn(&Deployment) -> bool,
) -> Numbers {
    if is_of_groups(seen) {
        return group::numbers(service, seen, wanted);
    }
    pools::numbers(seen, current)
}

/// A spec that cannot be carried out changes nothing that runs.
pub(super) fn refused(
    service: &InferenceService,
    seen: &Seen,
    refusal: &Refusal,
    before: &InferenceServiceStatus,
    now: Timestamp,
) -> InferenceServiceStatus {
    let copies = group::current(seen).unwrap_or(0);
    let pools = pools::of(service);
    let is_of = |pool: &Pool| {
        let found = pools::rendering(seen, &service.name_any(), pool.name.as_deref());
        found.is_some_and(|found| objects::is_of(&found, &pool.service.spec))
    };
    // What is there may be of the spec as it is: then something else is in the way.
    let numbers = numbers(service, seen, copies, |found| {
        let mut pools = pools.iter();
        pools.any(|pool| pool.name.as_deref() == pools::said(found) && is_of(pool))
    });
    let numbers = Numbers {
        updated: if pools.iter().any(is_of) {
            numbers.updated
        } else {
            0
        },
        ..numbers
    };
    let still = match numbers.ready {
        0 => String::new(),
        ready if numbers.updated >= ready => format!("; {ready} copies still answer"),
        ready => format!("; {ready} copies of an earlier spec still answer"),
    };
    let standing = Standing {
        phase: if refusal.waits {
            ServicePhase::Pending
        } else {
            ServicePhase::Refused
        },
        reason: refusal.reason,
        message: format!("{}{still}", refusal.message),
    };
    // A model that is being fetched is no fault of the spec.
    let good = refusal.reason == reason::WAITING_FOR_MODEL;
    let no = condition::State {
        kind: condition::ACCEPTED,
        status: if good { "True" } else { "False" },
        reason: if good {
            reason::SPEC_ACCEPTED
        } else {
            refusal.reason
        },
        message: if good {
            String::new()
        } else {
            standing.message.clone()
        },
    };
    InferenceServiceStatus {
        replicas: numbers.total,
        groups: before.groups.clone(),
        accelerators: before.accelerators.clone(),
        nodes_per_replica: before.nodes_per_replica,
        ..common(service, seen, &standing, numbers, no, before, now)
    }
}

/// What every status says.
fn common(
    service: &InferenceService,
    seen: &Seen,
    standing: &Standing,
    numbers: Numbers,
    accepted: condition::State,
    before: &InferenceServiceStatus,
    now: Timestamp,
) -> InferenceServiceStatus {
    let generation = service.meta().generation.unwrap_or_default();
    let is_ready = standing.phase == ServicePhase::Ready;
    let ready = condition::State {
        kind: condition::READY,
        status: if is_ready { "True" } else { "False" },
        reason: standing.reason,
        message: standing.message.clone(),
    };
    let handed_over = autoscaler::told(service, seen);
    let states: Vec<condition::State> = [ready, accepted].into_iter().chain(handed_over).collect();
    let name = service.name_any();
    let url = format!(
        "http://{name}.{}.svc:{}/v1",
        service.namespace().unwrap_or_default(),
        service.spec.port
    );
    InferenceServiceStatus {
        observed_generation: Some(generation),
        phase: Some(standing.phase),
        message: Some(standing.message.clone()),
        ready_replicas: numbers.ready,
        updated_replicas: numbers.updated,
        selector: Some(format!("{}={name}", label::INFERENCE_SERVICE)),
        url: Some(url),
        model_name: Some(service.spec.model.served_name().to_owned()),
        addresses: addresses(service, seen),
        timeline: assess::timeline(&seen.pods),
        conditions: conditions(before, &states, generation, now),
        ..InferenceServiceStatus::default()
    }
}

/// What holds of these, and what others said. An autoscaler that is named no more is spoken of no more.
fn conditions(
    before: &InferenceServiceStatus,
    states: &[condition::State],
    generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    let mut known = before.conditions.clone();
    let is_said = |kind: &str| states.iter().any(|state| state.kind == kind);
    known.retain(|found| found.type_ != condition::HANDED_OVER || is_said(&found.type_));
    condition::next(&known, states, generation, now)
}

fn addresses(service: &InferenceService, seen: &Seen) -> Vec<String> {
    let ready = seen.pods.iter().filter(|pod| assess::is_ready(pod));
    let mut addresses: Vec<String> = ready
        .filter_map(|pod| {
            let ip = pod.status.as_ref()?.pod_ip.clone()?;
            let host = if ip.contains(':') {
                format!("[{ip}]")
            } else {
                ip
            };
            Some(format!("http://{host}:{}/v1", service.spec.port))
        })
        .collect();
    addresses.sort();
    // The API takes no address twice, and simulated nodes give the same to pods of theirs.
    addresses.dedup();
    addresses.truncate(SHOWN);
    addresses
}

/// Tells what changed for those who look at Events.
pub(super) fn events(
    plan: &mut Plan,
    service: &InferenceService,
    before: &InferenceServiceStatus,
    after: &InferenceServiceStatus,
) {
    let ready = |status: &InferenceServiceStatus| {
        let found = condition::find(&status.conditions, condition::READY);
        found.map(|ready| ready.reason.clone())
    };
    let (was, is) = (ready(before), ready(after));
    if let Some(reason) = is.filter(|is| was.as_ref() != Some(is)) {
        let well = [
            reason::SERVING,
            reason::STARTING,
            reason::UPDATING,
            reason::STOPPED,
            reason::WAITING_FOR_MODEL,
        ];
        let warning = !well.contains(&reason.as_str());
        let message = after.message.clone().unwrap_or_default();
        plan.note(about(service), warning, &reason, message);
    }
    if before.replicas != after.replicas
        && before.replicas > 0
        && service.spec.scaling.is_some()
        && let Some(told) = condition::find(&after.conditions, condition::ACCEPTED)
    {
        plan.note(about(service), false, "Scaled", told.message.clone());
    }
}
