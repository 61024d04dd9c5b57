//! What a service should have and say. Pure and total.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use warp_api::inferenceservice::{ScalingMetric, ServicePhase};
use warp_api::workload::{GpuAsk, run_seconds};
use warp_api::{InferenceService, InferenceServiceStatus, condition, label, reason};
use warp_core::rollout::{self, Room, Strategy};
use warp_core::scale::{self, Copies, Metric, Rules};
use warp_runtime::cache::Key;
use warp_runtime::driver::later;
use warp_runtime::plan::{Action, Kind, Plan, about, is_controlled_by};
use warp_runtime::reconcile::Reconcile;

use super::adapters;
use super::assess::{self, Numbers, Standing, View};
use super::copies::{self, rank};
use super::figures;
use super::group;
use super::objects::{self, Base};
use super::observe::Seen;
use super::unplaced;
use super::vendor::{self, NoGpu, Suitable};
use super::weights;
use super::{InferenceServices, NAME};

/// How often a service that scales, waits or changes is looked at without being told to.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(15);
/// How often engines are asked where nothing follows from it but what is told.
const ASK_AGAIN: SignedDuration = SignedDuration::from_mins(1);
/// How long GPUs must look free that no copy gets, until that is believed.
const SETTLED: SignedDuration = SignedDuration::from_secs(10);
/// Addresses a status shows.
const SHOWN: usize = 8;

/// A spec that cannot be carried out, or not now.
pub(super) struct Refusal {
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// It may become possible without a change of the spec.
    pub(super) waits: bool,
}

/// What is to be so.
struct Wanted {
    rendered: Value,
    /// The Deployment is made from the spec as it is: what it says of its copies is about this spec.
    is_current: bool,
    ask: Option<GpuAsk>,
    suitable: Option<Suitable>,
    copies: Copies,
    strategy: Strategy,
    no_room_since: Option<Timestamp>,
    scaled: Option<String>,
    /// Nodes a copy spans.
    nodes: u32,
}

pub(super) fn plan(service: &InferenceService, seen: &Seen, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    // Its children go with it.
    if service.meta().deletion_timestamp.is_some() {
        return plan;
    }
    let before = service.status.clone().unwrap_or_default();
    let wanted = wanted(service, seen, now);
    let after = match &wanted {
        Ok(wanted) => {
            children(&mut plan, service, seen, wanted);
            let groups = if wanted.nodes > 1 {
                group::tend(&mut plan, service, seen, wanted.copies.wanted, now)
            } else {
                Vec::new()
            };
            InferenceServiceStatus {
                groups,
                ..accepted(service, seen, wanted, &before, now)
            }
        }
        Err(refusal) => refused(service, seen, refusal, &before, now),
    };
    let wanted = after.replicas.max(0);
    let placed = i32::try_from(copies::placed(&seen.pods, false)).unwrap_or(i32::MAX);
    let after = InferenceServiceStatus {
        placed_replicas: before.placed_replicas.max(placed).min(wanted),
        refused_nodes: unplaced::left_out(seen, &before, now),
        ..after
    };
    let believed = after.no_room_since.as_ref();
    let believed = believed.map(|since| later(since.0, SETTLED));
    if let Some(at) = believed.filter(|at| *at > now) {
        plan.look_again(at);
    }
    unplaced::have_placed(&mut plan, seen, now);
    plan.why = after
        .message
        .clone()
        .unwrap_or_else(|| format!("{NAME} is up to date"));
    let waits =
        after.phase != Some(ServicePhase::Ready) && after.phase != Some(ServicePhase::Stopped);
    let unknown = seen.asks && after.adapters.iter().any(|adapter| !adapter.ready);
    if waits || unknown || service.spec.scaling.is_some() {
        plan.look_again(now.saturating_add(LOOK_AGAIN).unwrap_or(now));
    } else if seen.asks && after.ready_replicas > 0 {
        plan.look_again(now.saturating_add(ASK_AGAIN).unwrap_or(now));
    }
    plan.own_status(
        service,
        InferenceServices::MANAGER,
        service.status.as_ref().map(own).unwrap_or_default(),
        own(&after),
    );
    // After the status: what was not written is not told either.
    events(&mut plan, service, &before, &after);
    unplaced::give_back(&mut plan, service, seen);
    plan
}

/// The part of a status that is ours: conditions of other writers stay theirs.
fn own(status: &InferenceServiceStatus) -> Value {
    let mut status = status.clone();
    status
        .conditions
        .retain(|found| [condition::READY, condition::ACCEPTED].contains(&found.type_.as_str()));
    serde_json::to_value(status).unwrap_or_default()
}

fn wanted(service: &InferenceService, seen: &Seen, now: Timestamp) -> Result<Wanted, Refusal> {
    not_taken(service, seen)?;
    let invalid = |message: String| Refusal {
        reason: reason::INVALID_SPEC,
        message,
        waits: false,
    };
    let spec = &service.spec;
    let ask = spec.ask().map_err(|bad| invalid(bad.0))?;
    rank(service, seen.class).map_err(|message| Refusal {
        reason: reason::INVALID_SPEC,
        message,
        waits: true,
    })?;
    let stored = rendering(seen);
    let rendered = stored
        .as_ref()
        .filter(|stored| objects::is_of(stored, spec));
    let nodes = match (&ask, rendered) {
        (Some(_), Some(rendered)) => objects::nodes_of(rendered),
        (Some(ask), None) => group::span(spec, ask, &seen.nodes),
        (None, _) => 1,
    };
    if nodes > 1
        && let Some(message) = group::refusal(service)
    {
        return Err(invalid(message));
    }
    let suitable = match &ask {
        None => None,
        Some(ask) => Some(
            vendor::suitable(ask, nodes, spec.engine.kind, &seen.nodes).map_err(|no| match no {
                NoGpu::Unsupported(message) => Refusal {
                    reason: reason::UNSUPPORTED_GPU,
                    message,
                    waits: false,
                },
                NoGpu::Absent(message) => Refusal {
                    reason: reason::NO_SUCH_GPU,
                    message,
                    waits: true,
                },
            })?,
        ),
    };
    let mut base = Base {
        vendor: ask.as_ref().map(|ask| ask.vendor),
        suitable: suitable.as_ref(),
        weights: None,
        nodes,
    };
    let weights = match weights::of(service, seen, stored.as_ref()) {
        Ok(weights) => weights,
        Err(refusal) => {
            // What is wrong with the spec itself is said before anything is waited for.
            objects::render(service, &base).map_err(invalid)?;
            return Err(refusal);
        }
    };
    base.weights = weights.as_ref();
    let stored = stored.filter(|stored| objects::is_made_from(stored, service, &base));
    let is_current = stored.is_some();
    let rendered = match stored {
        Some(stored) => stored,
        None => objects::render(service, &base).map_err(invalid)?,
    };
    let (wanted, scaled) = number_of_copies(service, seen, now);
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let ending = copies::placed(&seen.pods, true);
    // Without GPUs a copy more is never in the way.
    let spare = suitable.as_ref().map_or(u32::MAX, |found| found.spare);
    let refused = seen.waiting.iter().filter(|copy| copy.verdict.is_some());
    let refused = count(refused.count());
    // A place that has just come free is given in a moment.
    let no_room = refused > 0 && ending == 0 && spare > 0;
    let since = service.status.as_ref();
    let since = since.and_then(|status| status.no_room_since.as_ref());
    let no_room_since = no_room.then(|| since.map_or(now, |time| time.0));
    let settled = no_room_since.is_some_and(|since| later(since, SETTLED) <= now);
    let strategy = rollout::strategy(Room {
        replicas: wanted.wanted,
        spare,
        placed: count(copies::placed(&seen.pods, false)),
        ending: count(ending),
        refused: if settled { refused } else { 0 },
    });
    Ok(Wanted {
        rendered,
        is_current,
        ask,
        suitable,
        copies: wanted,
        strategy,
        no_room_since,
        scaled,
        nodes,
    })
}

/// Objects of its name that are somebody else's are left alone.
fn not_taken(service: &InferenceService, seen: &Seen) -> Result<(), Refusal> {
    let uid = service.uid().unwrap_or_default();
    let taken = |what: &str| {
        Err(Refusal {
            reason: reason::NAME_TAKEN,
            message: format!(
                "the {what} {} is not this service's: rename one of them, or delete the {what}",
                service.name_any()
            ),
            waits: true,
        })
    };
    if let Some(found) = &seen.deployment
        && !is_controlled_by(&**found, &uid)
    {
        return taken("Deployment");
    }
    if let Some(found) = seen
        .sets
        .iter()
        .find(|set| !is_controlled_by(&***set, &uid))
    {
        return Err(Refusal {
            reason: reason::NAME_TAKEN,
            message: format!(
                "the StatefulSet {} is not this service's: delete it, or take its label {} away",
                found.name_any(),
                label::INFERENCE_SERVICE
            ),
            waits: true,
        });
    }
    if let Some(found) = &seen.service
        && !is_controlled_by(&**found, &uid)
    {
        return taken("Service");
    }
    Ok(())
}

/// The rendering the Deployment has. A newer Warp may render the same spec otherwise; that alone restarts nothing.
fn rendering(seen: &Seen) -> Option<Value> {
    let deployment = seen.deployment.as_ref();
    let text = deployment.and_then(|found| found.annotations().get(label::RENDERED));
    let mut sets = seen.sets.iter();
    let of_sets = || sets.find_map(|set| set.annotations().get(label::RENDERED));
    let text = text.or_else(of_sets)?;
    let rendered: Value = serde_json::from_str(text).ok()?;
    rendered["template"].is_object().then_some(rendered)
}

/// How many copies there should be.
fn number_of_copies(
    service: &InferenceService,
    seen: &Seen,
    now: Timestamp,
) -> (Copies, Option<String>) {
    let spec = &service.spec;
    let asked = u32::try_from(spec.replicas).unwrap_or(0);
    let Some(scaling) = &spec.scaling else {
        let copies = Copies {
            wanted: asked,
            too_many_since: None,
        };
        return (copies, None);
    };
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let current = seen
        .deployment
        .as_ref()
        .and_then(|deployment| deployment.spec.as_ref()?.replicas)
        .map(count)
        .or_else(|| group::current(seen))
        .unwrap_or(asked);
    let since = service.status.as_ref();
    let since = since.and_then(|status| status.too_many_since.as_ref());
    let rules = Rules {
        min: copies::least(service, now).unwrap_or(1),
        max: count(scaling.max),
        metric: match scaling.metric {
            ScalingMetric::InFlight => Metric::InFlight,
            ScalingMetric::Queue => Metric::Queue,
            ScalingMetric::Cache => Metric::Cache,
            ScalingMetric::FirstToken => Metric::FirstToken,
            ScalingMetric::BetweenTokens => Metric::BetweenTokens,
        },
        target: count(scaling.target),
        window_seconds: run_seconds(&scaling.window).unwrap_or(300),
    };
    let copies = Copies {
        wanted: current,
        too_many_since: since.map(|time| time.0.as_second()),
    };
    let decision = scale::decide(
        &rules,
        copies,
        seen.heard.map(|heard| heard.load),
        now.as_second(),
    );
    (decision.copies, Some(decision.why))
}

fn children(plan: &mut Plan, service: &InferenceService, seen: &Seen, wanted: &Wanted) {
    let namespace = service.namespace().unwrap_or_default();
    let groups = if wanted.nodes > 1 {
        wanted.copies.wanted
    } else {
        0
    };
    for set in group::surplus(service, seen, groups) {
        plan.delete_version(&**set);
        plan.because("its copy is not wanted");
    }
    if wanted.nodes > 1 {
        let deployment = seen.deployment.as_ref();
        let deployment = deployment.filter(|found| found.meta().deletion_timestamp.is_none());
        if let Some(deployment) = deployment {
            plan.delete_version(&**deployment);
            plan.because("copies span nodes");
        }
        let names = (Kind::of::<Service>(), group::names_service(service));
        let front = objects::service(service, wanted.nodes);
        let services = [names, (Kind::of::<Service>(), front)];
        let sets = (0..groups).flat_map(|copy| group::sets(service, &wanted.rendered, copy));
        let sets = sets.map(|set| (Kind::of::<StatefulSet>(), set));
        for (kind, object) in services.into_iter().chain(sets) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            plan.push(Action::Apply {
                kind,
                key: Key::new(&namespace, name),
                manager: InferenceServices::MANAGER,
                object,
            });
        }
        return;
    }
    let deployment = objects::deployment(
        service,
        &wanted.rendered,
        wanted.copies.wanted,
        wanted.strategy,
    );
    for (kind, object) in [
        (Kind::of::<Service>(), objects::service(service, 1)),
        (Kind::of::<Deployment>(), deployment),
    ] {
        plan.push(Action::Apply {
            kind,
            key: Key::of(service),
            manager: InferenceServices::MANAGER,
            object,
        });
    }
}

fn accepted(
    service: &InferenceService,
    seen: &Seen,
    wanted: &Wanted,
    before: &InferenceServiceStatus,
    now: Timestamp,
) -> InferenceServiceStatus {
    let mut numbers = numbers(service, seen, wanted.copies.wanted);
    if !wanted.is_current {
        numbers.updated = 0;
    }
    let copies = i32::try_from(wanted.copies.wanted).unwrap_or(i32::MAX);
    let standing = assess::assess(&View {
        service,
        wanted: copies,
        numbers,
        pods: &seen.pods,
        workers: &seen.workers,
        waiting: &seen.waiting,
        ask: wanted.ask.as_ref(),
        suitable: wanted.suitable.as_ref(),
    });
    let Strategy {
        max_surge,
        max_unavailable,
    } = wanted.strategy;
    let how = if wanted.nodes > 1 {
        format!(
            "one at a time, in place: a copy spans {} nodes and goes as a whole",
            wanted.nodes
        )
    } else if max_surge > 0 {
        format!("{max_surge} at a time, each beside the copy it replaces")
    } else {
        format!("{max_unavailable} at a time, in place: no GPU is free for a copy more")
    };
    let yes = condition::State {
        kind: condition::ACCEPTED,
        status: "True",
        reason: reason::SPEC_ACCEPTED,
        message: wanted.scaled.clone().unwrap_or_default(),
    };
    let since = wanted.copies.too_many_since;
    let since = since.and_then(|second| Timestamp::from_second(second).ok());
    let load = figures::load(seen);
    InferenceServiceStatus {
        replicas: copies,
        cost: figures::cost(service, seen, load.as_ref()),
        cache: figures::cache(service, seen, before.cache.as_ref()),
        adapters: adapters::status(service, seen),
        gpus_per_replica: Some(service.spec.gpus_per_replica()),
        nodes_per_replica: i32::try_from(wanted.nodes).ok().filter(|nodes| *nodes > 1),
        too_many_since: since.map(Time),
        rollout: Some(how),
        no_room_since: wanted.no_room_since.map(Time),
        load,
        ..common(service, seen, &standing, numbers, yes, before, now)
    }
}

/// What its Deployment counts, or its groups.
fn numbers(service: &InferenceService, seen: &Seen, wanted: u32) -> Numbers {
    match &seen.deployment {
        None if !seen.sets.is_empty() => group::numbers(service, seen, wanted),
        deployment => assess::numbers(deployment.as_deref()),
    }
}

/// A spec that cannot be carried out changes nothing that runs.
fn refused(
    service: &InferenceService,
    seen: &Seen,
    refusal: &Refusal,
    before: &InferenceServiceStatus,
    now: Timestamp,
) -> InferenceServiceStatus {
    let copies = group::current(seen).unwrap_or(0);
    let numbers = numbers(service, seen, copies);
    let still = match numbers.ready {
        0 => String::new(),
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
        conditions: condition::next(&before.conditions, &[ready, accepted], generation, now),
        ..InferenceServiceStatus::default()
    }
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
    addresses.truncate(SHOWN);
    addresses
}

/// Tells what changed for those who look at Events.
fn events(
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
