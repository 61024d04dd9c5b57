//! The pools of GPUs a service is served by, each with a Deployment of its own: what a pool is called, what is seen of it, and
//! what it is to have. A service without `accelerators` is one pool without a name. Pure.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use warp_api::inferenceservice::{Accelerator, AcceleratorStatus};
use warp_api::workload::GpuAsk;
use warp_api::{InferenceService, label, reason};
use warp_core::rollout::{self, Retiring, Room, Strategy};
use warp_core::scale::{self, Pool as Share};
use warp_runtime::driver::later;

use super::assess::{self, Numbers};
use super::copies;
use super::objects;
use super::observe::{Seen, Waiting};
use super::vendor::Suitable;

/// How long GPUs must look free that no copy gets, until that is believed.
pub(super) const SETTLED: SignedDuration = SignedDuration::from_secs(10);
/// How long copies then go to the pools after it.
const PASSED_OVER: SignedDuration = SignedDuration::from_mins(5);

/// One pool.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// None: the service has no `accelerators`.
    pub(super) name: Option<String>,
    /// The service as it is for this pool.
    pub(super) service: InferenceService,
    min: u32,
    max: u32,
}

/// The pools of a service, the preferred first.
pub(super) fn of(service: &InferenceService) -> Vec<Pool> {
    if service.spec.accelerators.is_empty() {
        return vec![Pool {
            name: None,
            service: service.clone(),
            min: 0,
            max: u32::MAX,
        }];
    }
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let pool = |accelerator: &Accelerator| Pool {
        name: Some(accelerator.name.clone()),
        service: InferenceService {
            spec: service.spec.on(accelerator),
            ..service.clone()
        },
        min: count(accelerator.min),
        max: accelerator.max.map_or(u32::MAX, count),
    };
    service.spec.accelerators.iter().map(pool).collect()
}

/// What the Deployment of a pool is called.
pub(super) fn deployment_name(service: &str, pool: Option<&str>) -> String {
    match pool {
        Some(pool) => format!("{service}-{pool}"),
        None => service.to_owned(),
    }
}

/// The pool that something says it belongs to.
pub(super) fn said(object: &impl ResourceExt) -> Option<&str> {
    object.labels().get(label::ACCELERATOR).map(String::as_str)
}

/// The Deployment of a pool.
pub(super) fn deployment<'a>(
    seen: &'a Seen,
    service: &str,
    pool: Option<&str>,
) -> Option<&'a Arc<Deployment>> {
    let name = deployment_name(service, pool);
    match pool {
        None => seen.deployment.as_ref(),
        Some(_) => seen.pools.iter().find(|found| found.name_any() == name),
    }
}

/// Every Deployment of a service.
pub(super) fn deployments(seen: &Seen) -> impl Iterator<Item = &Arc<Deployment>> {
    seen.deployment.iter().chain(&seen.pools)
}

/// The Deployments that give up copies, and what they keep, so that there are `most` altogether: those that do not answer
/// go first, and of the others those of the preferred pools last.
pub(super) fn fewer(seen: &Seen, most: u32) -> Vec<(&Arc<Deployment>, u32)> {
    let told = |found: &Deployment| found.spec.as_ref().and_then(|spec| spec.replicas);
    let mut all: Vec<(&Arc<Deployment>, u32)> = deployments(seen)
        .filter(|found| found.meta().deletion_timestamp.is_none())
        .map(|found| (found, positive(told(found).unwrap_or(1))))
        .collect();
    let sum = all.iter().map(|(_, copies)| *copies);
    let mut surplus = sum.fold(0, u32::saturating_add).saturating_sub(most);
    for spares_ready in [true, false] {
        for (found, copies) in all.iter_mut().rev() {
            let ready = positive(assess::numbers(Some(found)).ready);
            let spared = if spares_ready { ready } else { 0 };
            let given = surplus.min(copies.saturating_sub(spared));
            *copies -= given;
            surplus -= given;
        }
    }
    all.retain(|(found, copies)| positive(told(found).unwrap_or(1)) != *copies);
    all
}

/// How a Deployment replaces its copies.
pub(super) fn strategy_of(found: &Deployment) -> Option<Strategy> {
    let strategy = found.spec.as_ref()?.strategy.as_ref()?;
    let rolling = strategy.rolling_update.as_ref()?;
    let number = |text: &Option<IntOrString>| match text {
        Some(IntOrString::Int(number)) => Some(positive(*number)),
        _ => None,
    };
    Some(Strategy {
        max_surge: number(&rolling.max_surge)?,
        max_unavailable: number(&rolling.max_unavailable)?,
    })
}

/// The Deployments of pools that are none any more.
pub(super) fn retired<'a>(
    seen: &'a Seen,
    service: &'a str,
    pools: &'a [Judged],
) -> impl Iterator<Item = &'a Arc<Deployment>> {
    let names: Vec<String> = pools
        .iter()
        .filter(|judged| judged.rendered.is_some())
        .map(|judged| deployment_name(service, judged.pool.name.as_deref()))
        .collect();
    deployments(seen).filter(move |found| !names.contains(&found.name_any()))
}

/// What was found out about one pool.
#[derive(Clone, Debug)]
pub(super) struct Judged {
    pub(super) pool: Pool,
    /// What its pods are made from; none: no node has such GPUs, and never had.
    pub(super) rendered: Option<Value>,
    /// Its Deployment is made from the spec as it is: what it says of its copies is about this spec.
    pub(super) is_current: bool,
    pub(super) ask: Option<GpuAsk>,
    pub(super) suitable: Option<Suitable>,
    /// Nodes a copy spans.
    pub(super) nodes: u32,
    /// Why it has none, or fewer than it could.
    pub(super) why: Option<String>,
    /// Its changed spec can never be placed: it keeps the copies that have a place, as they are, and gets no more.
    pub(super) keeps: bool,
}

impl Judged {
    /// No copy of its spec can be anywhere.
    pub(super) fn is_lost(&self) -> bool {
        self.rendered.is_none() || self.keeps
    }

    /// All nodes there are, empty, have no place for a copy.
    pub(super) fn is_too_large(&self) -> bool {
        let suitable = self.suitable.as_ref();
        suitable.is_some_and(|found| found.too_large)
    }
}

/// What a pool is to have.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) copies: u32,
    pub(super) strategy: Strategy,
    pub(super) no_room_until: Option<Timestamp>,
    /// When it may have to be given up on.
    pub(super) again: Option<Timestamp>,
}

/// What is seen of the copies of one pool.
struct Sight<'a> {
    pods: Vec<Arc<Pod>>,
    waiting: Vec<&'a Waiting>,
    spare: u32,
    /// All nodes there are have no place for a copy.
    too_large: bool,
}

impl<'a> Sight<'a> {
    fn of(judged: &Judged, seen: &'a Seen) -> Self {
        let name = judged.pool.name.as_deref();
        let pods = seen.pods.iter().filter(|pod| said(&***pod) == name);
        let waiting = seen.waiting.iter();
        Self {
            pods: pods.cloned().collect(),
            waiting: waiting
                .filter(|copy| copy.accelerator.as_deref() == name)
                .collect(),
            too_large: judged.is_too_large(),
            // Without GPUs a copy more is never in the way.
            spare: match (&judged.rendered, &judged.suitable) {
                (None, _) => 0,
                (Some(_), None) => u32::MAX,
                (Some(_), Some(found)) => found.spare,
            },
        }
    }

    fn refused(&self) -> u32 {
        let refused = self.waiting.iter().filter(|copy| copy.verdict.is_some());
        count(refused.count())
    }

    /// Whether its copies can never be placed as they are.
    fn is_hopeless(&self) -> bool {
        let said = self.waiting.iter().filter_map(|copy| copy.verdict.as_ref());
        self.too_large
            || said
                .into_iter()
                .any(|verdict| verdict.reason == reason::NEVER_FITS)
    }

    fn ending(&self) -> u32 {
        count(copies::placed(&self.pods, true))
    }

    fn placed(&self) -> u32 {
        count(copies::placed(&self.pods, false))
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Whether copies of a pool have a place.
pub(super) fn serves(seen: &Seen, pool: &str) -> bool {
    let pods = seen.pods.iter().filter(|pod| said(&***pod) == Some(pool));
    let pods: Vec<Arc<Pod>> = pods.cloned().collect();
    copies::placed(&pods, false) > 0
}

/// Since when GPUs look free that no copy gets, in a service of one pool.
pub(super) fn no_room_since(
    judged: &Judged,
    seen: &Seen,
    before: Option<Timestamp>,
    now: Timestamp,
) -> Option<Timestamp> {
    let sight = Sight::of(judged, seen);
    // A place that has just come free is given in a moment.
    let no_room = sight.refused() > 0 && sight.ending() == 0 && sight.spare > 0;
    no_room.then(|| before.unwrap_or(now))
}

/// Until when a pool is passed over, or when that may be said.
fn passed_over(
    sight: &Sight<'_>,
    known: Option<&AcceleratorStatus>,
    now: Timestamp,
) -> Result<Option<Timestamp>, Timestamp> {
    let known = known.and_then(|known| known.no_room_until.as_ref());
    let known = known.map(|time| time.0).filter(|until| *until > now);
    if known.is_some() || sight.spare == 0 || sight.ending() > 0 {
        return Ok(known);
    }
    let refused = sight.waiting.iter().filter(|copy| copy.verdict.is_some());
    match refused.filter_map(|copy| copy.since).min() {
        None => Ok(None),
        Some(since) if later(since, SETTLED) > now => Err(later(since, SETTLED)),
        Some(_) => Ok(Some(later(now, PASSED_OVER))),
    }
}

/// Copies its Deployment was told to have.
fn told(judged: &Judged, seen: &Seen) -> u32 {
    let pool = &judged.pool;
    let found = deployment(seen, &pool.service.name_any(), pool.name.as_deref());
    let told = found.and_then(|found| found.spec.as_ref()?.replicas);
    told.map_or(0, positive)
}

/// Spreads the copies wanted over the pools. In a service of one pool, `had`: the copies that have had a place at once;
/// `settled`: that GPUs look free that no copy gets.
pub(super) fn give(
    (wanted, had): (u32, Option<u32>),
    judged: &[Judged],
    seen: &Seen,
    known: &[AcceleratorStatus],
    settled: bool,
    now: Timestamp,
) -> Vec<Given> {
    let sights: Vec<Sight<'_>> = judged.iter().map(|one| Sight::of(one, seen)).collect();
    let over: Vec<_> = judged
        .iter()
        .zip(&sights)
        .map(|(one, sight)| {
            let name = one.pool.name.as_ref()?;
            let known = known.iter().find(|known| known.name == *name);
            Some(passed_over(sight, known, now))
        })
        .collect();
    let until = |at: usize| over[at].and_then(Result::ok).flatten();
    let shares: Vec<Share> = judged
        .iter()
        .zip(&sights)
        .enumerate()
        .map(|(at, (one, sight))| Share {
            min: one.pool.min,
            max: match &one.rendered {
                None => 0,
                Some(_) if one.keeps => one.pool.max.min(sight.placed()),
                Some(_) => one.pool.max,
            },
            // A copy stays in the pool it was given to unless it is told there that it has no place. One more than that is
            // there only while others are replaced, and one that goes leaves its place.
            placed: {
                let told = told(one, seen);
                let having = sight.placed().min(told);
                told.saturating_sub(sight.refused()).max(having)
            },
            spare: if until(at).is_some() {
                0
            } else {
                sight.spare.saturating_add(sight.ending())
            },
        })
        .collect();
    let copies = scale::spread(wanted, &shares);
    let strategy = |at: usize| {
        let sight = &sights[at];
        rollout::strategy(Room {
            replicas: copies[at],
            spare: sight.spare,
            placed: sight.placed(),
            ending: sight.ending(),
            had: had.unwrap_or(copies[at]),
            hopeless: sight.is_hopeless(),
            refused: if settled || until(at).is_some() {
                sight.refused()
            } else {
                0
            },
        })
    };
    (0..judged.len())
        .map(|at| Given {
            copies: copies[at],
            strategy: strategy(at),
            no_room_until: until(at),
            again: over[at].and_then(Result::err),
        })
        .collect()
}

/// How many copies the Deployments keep that are of no pool any more.
pub(super) fn retire(
    service: &InferenceService,
    seen: &Seen,
    judged: &[Judged],
    given: &[Given],
) -> Vec<(Arc<Deployment>, u32)> {
    let name = service.name_any();
    let mut new_ready = 0_u32;
    let mut room = false;
    for (one, given) in judged.iter().zip(given) {
        let sight = Sight::of(one, seen);
        let found = deployment(seen, &name, one.pool.name.as_deref());
        let ready = positive(assess::numbers(found.map(|found| &**found)).ready);
        new_ready = new_ready.saturating_add(ready);
        let starts = sight.placed() > ready;
        room |= given.copies > ready && (starts || (sight.spare > 0 && sight.refused() == 0));
    }
    let wanted = given.iter().map(|given| given.copies).sum();
    let mut kept = Vec::new();
    for found in retired(seen, &name, judged) {
        let old = found.spec.as_ref().and_then(|spec| spec.replicas);
        let old_ready = positive(assess::numbers(Some(found)).ready);
        let copies = rollout::retire(Retiring {
            wanted,
            new_ready,
            room,
            old: positive(old.unwrap_or(1)),
            old_ready,
        });
        // What one keeps the next need not.
        new_ready = new_ready.saturating_add(copies);
        kept.push((Arc::clone(found), copies));
    }
    kept
}

pub(super) fn positive(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// What the Deployments of a service count together; `current` says whether one is made from the spec as it is.
pub(super) fn numbers(seen: &Seen, current: impl Fn(&Deployment) -> bool) -> Numbers {
    deployments(seen).fold(Numbers::default(), |sum, found| {
        let one = assess::numbers(Some(found));
        Numbers {
            total: sum.total + one.total,
            ready: sum.ready + one.ready,
            updated: sum.updated + if current(found) { one.updated } else { 0 },
        }
    })
}

/// What is said of the pools; nothing of one without a name.
pub(super) fn status(
    service: &InferenceService,
    seen: &Seen,
    judged: &[Judged],
    given: &[Given],
) -> Vec<AcceleratorStatus> {
    let name = service.name_any();
    let said = judged.iter().zip(given).filter_map(|(one, given)| {
        let pool = one.pool.name.as_ref()?;
        let found = deployment(seen, &name, Some(pool));
        let numbers = assess::numbers(found.map(|found| &**found));
        let passed = given.no_room_until.map(|until| {
            format!(
                "GPUs look free that no copy gets: until {until:.0} copies go to the pools after it"
            )
        });
        Some(AcceleratorStatus {
            name: pool.clone(),
            gpus: one.ask.as_ref().map(GpuAsk::describe),
            replicas: i32::try_from(given.copies).unwrap_or(i32::MAX),
            ready_replicas: numbers.ready,
            updated_replicas: if one.is_current { numbers.updated } else { 0 },
            no_room_until: given
                .no_room_until
                .map(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time),
            message: one.why.clone().or(passed),
        })
    });
    said.collect()
}

/// The rendering a pool has. A newer Warp may render the same spec otherwise; that alone restarts nothing.
pub(super) fn rendering(seen: &Seen, service: &str, pool: Option<&str>) -> Option<Value> {
    let found = deployment(seen, service, pool);
    let text = found.and_then(|found| found.annotations().get(label::RENDERED));
    let mut sets = seen.sets.iter().filter(|_| pool.is_none());
    let of_sets = || sets.find_map(|set| set.annotations().get(label::RENDERED));
    objects::stored(text.or_else(of_sets)?)
}
