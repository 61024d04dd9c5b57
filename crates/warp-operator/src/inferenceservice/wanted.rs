//! What of a service is to be so: whether its spec can be carried out, what its pods are made from, and how many there are.
//! Pure.

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::Value;
use warp_api::inferenceservice::{ScalingBy, ScalingMetric};
use warp_api::workload::{GpuAsk, run_seconds};
use warp_api::{InferenceService, label, reason};
use warp_core::gpu::Vendor;
use warp_core::resources::Resources;
use warp_core::scale::{self, Copies, Metric, Rules};
use warp_runtime::driver::later;
use warp_runtime::plan::is_controlled_by;

use super::autoscaler;
use super::copies::{self, rank};
use super::group;
use super::objects::{self, Base};
use super::observe::Seen;
use super::pools::{self, Given, Judged, Pool, SETTLED, positive};
use super::vendor::{self, NoGpu, Suitable};
use super::weights;

/// A spec that cannot be carried out, or not now.
pub(super) struct Refusal {
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// It may become possible without a change of the spec.
    pub(super) waits: bool,
}

impl From<NoGpu> for Refusal {
    fn from(no: NoGpu) -> Self {
        let (reason, message, waits) = match no {
            NoGpu::Unsupported(message) => (reason::UNSUPPORTED_GPU, message, false),
            NoGpu::Absent(message) => (reason::NO_SUCH_GPU, message, true),
        };
        Self {
            reason,
            message,
            waits,
        }
    }
}

fn invalid(message: String) -> Refusal {
    Refusal {
        reason: reason::INVALID_SPEC,
        message,
        waits: false,
    }
}

/// What is to be so.
pub(super) struct Wanted {
    /// The pools of GPUs, the preferred first, with what each is to have.
    pub(super) pools: Vec<Judged>,
    pub(super) given: Vec<Given>,
    pub(super) copies: Copies,
    pub(super) no_room_since: Option<Timestamp>,
    pub(super) scaled: Option<String>,
    /// Nodes a copy spans.
    pub(super) nodes: u32,
}

pub(super) fn wanted(
    service: &InferenceService,
    seen: &Seen,
    now: Timestamp,
) -> Result<Wanted, Refusal> {
    not_taken(service, seen)?;
    rank(service, seen.class).map_err(|message| Refusal {
        waits: true,
        ..invalid(message)
    })?;
    no_gpus_of_its_own(service)?;
    let (copies, scaled) = number_of_copies(service, seen, now);
    let pools = pools::of(service).into_iter();
    let pools = pools.map(|pool| judge(&pool, seen, copies.wanted));
    let pools = pools.collect::<Result<Vec<Judged>, Refusal>>()?;
    // Some pool has such GPUs, or no copy could be anywhere.
    if pools.iter().all(Judged::is_lost) {
        let whys: Vec<String> = pools
            .iter()
            .filter_map(|judged| judged.why.clone())
            .collect();
        let refusal = Refusal::from(NoGpu::Absent(whys.join("; ")));
        return Err(Refusal {
            reason: if pools.iter().any(Judged::is_too_large) {
                reason::NEVER_FITS
            } else {
                refusal.reason
            },
            ..refusal
        });
    }
    let nodes = pools.iter().map(|judged| judged.nodes).max().unwrap_or(1);
    if copies.wanted > 0 {
        keep_what_serves(seen, &pools, nodes)?;
    }
    let before = service.status.as_ref();
    let no_room_since = match pools.as_slice() {
        [only] if only.pool.name.is_none() => {
            let since = before.and_then(|status| status.no_room_since.as_ref());
            pools::no_room_since(only, seen, since.map(|time| time.0), now)
        }
        _ => None,
    };
    let settled = no_room_since.is_some_and(|since| later(since, SETTLED) <= now);
    let known = before.map_or(&[][..], |status| &status.accelerators);
    let had = before.map(|status| positive(status.placed_replicas));
    let had = had.filter(|_| pools.len() == 1);
    let given = pools::give((copies.wanted, had), &pools, seen, known, settled, now);
    Ok(Wanted {
        pools,
        given,
        copies,
        no_room_since,
        scaled,
        nodes,
    })
}

/// GPUs are counted and placed by other fields: those of `resources` would be lost, or be nobody's in the ledger.
fn no_gpus_of_its_own(service: &InferenceService) -> Result<(), Refusal> {
    let Some(given) = &service.spec.resources else {
        return Ok(());
    };
    let mut names = given.limits.keys().chain(given.requests.keys());
    match names.find(|name| Vendor::of_units(name).is_some()) {
        Some(name) => Err(invalid(format!(
            "spec.resources names {name}: take it away, and say how many GPUs a copy has in spec.gpuCount and which in spec.gpu"
        ))),
        None => Ok(()),
    }
}

/// What a copy needs on each of its nodes besides GPUs, as far as it can be read.
fn needs(service: &InferenceService) -> Resources {
    let given = service.spec.resources.clone().unwrap_or_default();
    let mut all = Resources::default();
    // What is not promised is as much as it may have.
    for (name, amount) in given.limits.iter().chain(&given.requests) {
        // The API server has its own words for what is no amount.
        let _ = all.set(name, &amount.0);
    }
    all
}

/// Copies that span nodes are replaced in place, and so are those that begin or cease to span them: a change that can never
/// be placed would take what serves and put nothing there. Copies on one node are kept by how their Deployment replaces
/// them.
fn keep_what_serves(seen: &Seen, pools: &[Judged], nodes: u32) -> Result<(), Refusal> {
    let in_place = nodes > 1 || !seen.sets.is_empty();
    let changed = pools.iter().all(|judged| !judged.is_current);
    let serves = copies::placed(&seen.pods, false) > 0;
    if !(in_place && changed && serves && pools.iter().all(Judged::is_too_large)) {
        return Ok(());
    }
    let what = pools.iter().filter_map(|judged| judged.ask.as_ref());
    let what: Vec<String> = what.map(GpuAsk::describe).collect();
    let over = if nodes > 1 {
        format!(" over {nodes} nodes")
    } else {
        " on one node".to_owned()
    };
    Err(Refusal {
        reason: reason::NEVER_FITS,
        message: format!(
            "a copy of the changed spec can never be placed: all nodes together, empty, have no place for {}{over} with its other resources; what serves stays: correct the spec, or add such nodes",
            what.join(" or ")
        ),
        waits: true,
    })
}

/// Why a pool of several keeps its copies as they are.
fn kept(why: &str) -> String {
    format!("its copies stay as they are: one of the changed spec can never be placed: {why}")
}

/// What one pool's pods are made from. A pool of several whose GPUs no node has is left out, and one that serves keeps what
/// it has when a change of it can never be placed.
fn judge(pool: &Pool, seen: &Seen, wanted: u32) -> Result<Judged, Refusal> {
    let (service, spec) = (&pool.service, &pool.service.spec);
    let ask = spec.ask().map_err(|bad| invalid(bad.0))?;
    let stored = pools::rendering(seen, &service.name_any(), pool.name.as_deref());
    let rendered = stored
        .as_ref()
        .filter(|stored| objects::is_of(stored, spec));
    let nodes = match (&ask, rendered) {
        _ if pool.name.is_some() => 1,
        (Some(_), Some(rendered)) => objects::nodes_of(rendered),
        (Some(ask), None) => group::span(spec, ask, &seen.nodes),
        (None, _) => 1,
    };
    if nodes > 1
        && let Some(message) = group::refusal(service)
    {
        return Err(invalid(message));
    }
    // What pods are made from is known already, and the line says what they wait for; or there are none.
    let goes_without = rendered.is_some() || wanted == 0;
    let mut why = None;
    let each = needs(service);
    let found = ask
        .as_ref()
        .map(
            |ask| match vendor::suitable(ask, (nodes, &each), spec.engine.kind, &seen.nodes) {
                Err(NoGpu::Absent(_)) if goes_without => Ok(Suitable::none(ask)),
                Err(NoGpu::Absent(message)) => {
                    why = Some(message);
                    Ok(Suitable::none(ask))
                }
                found => found,
            },
        )
        .transpose()?;
    let suitable = found.map(|found| Suitable {
        resource: rendered
            .and_then(objects::resource_of)
            .unwrap_or(found.resource),
        ..found
    });
    let mut base = Base {
        pool: pool.name.as_deref(),
        vendor: ask.as_ref().map(|ask| ask.vendor),
        suitable: suitable.as_ref(),
        weights: None,
        nodes,
    };
    // What is wrong with the spec itself is said before anything is waited for.
    let fresh = if rendered.is_none() {
        Some(objects::render(service, &base).map_err(invalid)?)
    } else {
        None
    };
    let serves = pool.name.as_deref();
    let serves = serves.is_some_and(|name| rendered.is_none() && pools::serves(seen, name));
    let too_large = suitable.as_ref().is_some_and(|found| found.too_large);
    if serves && too_large && wanted > 0 {
        let what = ask.as_ref().map(GpuAsk::describe).unwrap_or_default();
        why = Some(format!(
            "no node, empty, has a place for {what} with its other resources; correct the pool, or add such a node"
        ));
    }
    let keeps = serves && stored.is_some() && why.is_some();
    let why = if keeps { why.as_deref().map(kept) } else { why };
    let judged = |rendered: Option<Value>, is_current: bool| Judged {
        keeps,
        rendered,
        is_current,
        ask: ask.clone(),
        suitable: suitable.clone(),
        nodes,
        why: why.clone(),
        pool: pool.clone(),
    };
    if why.is_some() {
        return Ok(judged(stored.filter(|_| keeps), false));
    }
    let weights = weights::of(service, seen, stored.as_ref())?;
    base.weights = weights.as_ref();
    let stored = stored.filter(|stored| objects::is_made_from(stored, service, &base));
    let is_current = stored.is_some();
    let rendered = match (stored, fresh) {
        (Some(stored), _) => stored,
        (None, Some(fresh)) if base.weights.is_none() => fresh,
        (None, _) => objects::render(service, &base).map_err(invalid)?,
    };
    Ok(judged(Some(rendered), is_current))
}

/// Objects of its name that are somebody else's are left alone.
fn not_taken(service: &InferenceService, seen: &Seen) -> Result<(), Refusal> {
    let uid = service.uid().unwrap_or_default();
    let taken = |what: &str, name: &str| {
        Err(Refusal {
            reason: reason::NAME_TAKEN,
            message: format!(
                "the {what} {name} is not this service's: rename one of them, or delete the {what}"
            ),
            waits: true,
        })
    };
    let mut deployments = pools::deployments(seen);
    if let Some(found) = deployments.find(|found| !is_controlled_by(&***found, &uid)) {
        return taken("Deployment", &found.name_any());
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
        return taken("Service", &service.name_any());
    }
    Ok(())
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
    // The autoscaler writes the number there, and keeps to the limit; whoever writes by hand does not.
    if scaling.by != ScalingBy::Warp {
        let most = positive(scaling.max);
        let copies = Copies {
            wanted: asked.min(most),
            too_many_since: None,
        };
        let told = autoscaler::told(service, seen).map(|told| told.message);
        let beyond = (asked > most)
            .then(|| format!("spec.replicas is {asked}, and spec.scaling.max keeps it at {most}"));
        let said: Vec<String> = told.into_iter().chain(beyond).collect();
        return (copies, Some(said.join("; ")));
    }
    let said = service.status.as_ref();
    let said = said.filter(|said| said.observed_generation.is_some());
    let current = match &seen.deployment {
        // Some of its pools may have none, and others more than they keep.
        _ if !spec.accelerators.is_empty() => said.map(|said| said.replicas),
        Some(deployment) => deployment.spec.as_ref().and_then(|spec| spec.replicas),
        None => None,
    };
    let current = current.map(positive);
    let current = current.or_else(|| group::current(seen)).unwrap_or(asked);
    let since = service.status.as_ref();
    let since = since.and_then(|status| status.too_many_since.as_ref());
    let rules = Rules {
        min: copies::least(service, now).unwrap_or(1),
        max: positive(scaling.max),
        metric: match scaling.metric {
            ScalingMetric::InFlight => Metric::InFlight,
            ScalingMetric::Queue => Metric::Queue,
            ScalingMetric::Cache => Metric::Cache,
            ScalingMetric::FirstToken => Metric::FirstToken,
            ScalingMetric::BetweenTokens => Metric::BetweenTokens,
        },
        target: positive(scaling.target),
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
