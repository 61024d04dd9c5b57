//! Asks `warp-core`'s estimator about a live line: which nodes each could use, what holds them and since when, and how
//! long such work has run so far. Pure.
//!
//! Whoever shares no node with others has a line of its own, as in placement. The estimator counts whole GPUs: CPU,
//! memory, tenants' limits, the closeness of gangs and evictions are not in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use warp_api::label;
use warp_api::workload::{EstimatedStart, Priority};
use warp_core::estimate::{Durations, Forecaster, History, StartEstimate};
use warp_core::fleet::{Expression, Operator, Request};
use warp_core::queue::job::Run;
use warp_core::queue::live::{Ask, Live, held, view};
use warp_core::queue::pool::ClassId;
use warp_core::queue::{Job, NodeId, Placement, Policy, Seconds, State};
use warp_runtime::cache::Key;

use super::runs::known_by;
use super::told::Forecast;
use crate::config::QueuePolicy;
use crate::ledger::Ledger;
use crate::placement::{Claim, Claimant, Holder, base_request, policy, require};

/// Finished work that must have been seen before anything is made of it.
const LEAST_SEEN: u64 = 5;
/// Replays: fewer where each takes long.
const REPLAYS: std::ops::RangeInclusive<usize> = 20..=50;
const JOBS_REPLAYED: usize = 50_000;

/// A line at one moment.
pub(super) struct Question<'a> {
    pub(super) ledger: &'a Ledger,
    /// Those that wait for room, in the order they are served.
    pub(super) line: &'a [Arc<dyn Claimant>],
    pub(super) holders: &'a [Holder],
    pub(super) durations: &'a Durations,
    pub(super) policy: QueuePolicy,
    pub(super) now: Timestamp,
}

/// What is known about each in line.
pub(super) fn forecast(question: &Question<'_>) -> Vec<Forecast> {
    let said = question.line.iter().map(|claimant| {
        let claim = claimant.claim();
        Forecast {
            ask: Some(ask_of(claim)),
            ..Forecast::nothing(claim.generation)
        }
    });
    let mut forecasts: Vec<Forecast> = said.collect();
    let fleet = FleetSeen::of(question);
    let mut durations = question.durations.clone();
    for line in fleet.lines() {
        let mut replay = Line::new(question, &fleet, &line, &mut durations);
        let starts = replay.starts(&durations);
        let first = replay.first_to_end(question, &mut durations);
        for (id, start) in starts {
            let Some(forecast) = usize::try_from(id)
                .ok()
                .and_then(|id| forecasts.get_mut(id))
            else {
                continue;
            };
            forecast.start = told(&start, question.now);
            forecast.first.clone_from(&first);
        }
    }
    forecasts
}

/// What a claim asks for, in words.
fn ask_of(claim: &Claim) -> String {
    let Some(pod) = claim.pods.first() else {
        return "nothing".to_owned();
    };
    let each = pod.gpus.describe();
    match (claim.pods.len(), pod.gpus.count) {
        (1, 1) => each,
        (1, _) => format!("{each} on one node"),
        (many, _) => format!("{many} × {each}"),
    }
}

/// A start as a status says it; none when it is further away than anybody can see.
fn told(start: &StartEstimate, now: Timestamp) -> Option<EstimatedStart> {
    let horizon = seconds(now) + Forecaster::default().horizon;
    if start.middle >= horizon {
        return None;
    }
    let earliest = time(start.low.floor()).max(time(seconds(now).floor()));
    let at = time(start.middle.round()).max(earliest);
    let latest = time(start.high.ceil()).max(at);
    Some(EstimatedStart {
        at: Time(at),
        earliest: Time(earliest),
        latest: Time(latest),
    })
}

fn seconds(time: Timestamp) -> Seconds {
    time.as_millisecond() as f64 / 1000.0
}

fn time(seconds: Seconds) -> Timestamp {
    let since = SignedDuration::try_from_secs_f64(seconds).unwrap_or(SignedDuration::MAX);
    let time = Timestamp::UNIX_EPOCH.checked_add(since);
    time.unwrap_or(Timestamp::MAX)
}

/// The fleet as the queue counts it, with what each in line could use and what each holder holds.
struct FleetSeen {
    live: Live,
    /// The need of each in line.
    need_of: Vec<usize>,
    /// GPUs of each holder, by node of the pool.
    parts_of: Vec<BTreeMap<NodeId, u32>>,
}

impl FleetSeen {
    fn of(question: &Question<'_>) -> Self {
        let fleet = &question.ledger.fleet;
        let mut asked: Vec<(Request, u32)> = Vec::new();
        let mut need_of = Vec::new();
        for claimant in question.line {
            let asks = request(question.ledger, claimant.claim());
            let known = asked.iter().position(|other| *other == asks);
            need_of.push(known.unwrap_or(asked.len()));
            if known.is_none() {
                asked.push(asks);
            }
        }
        let asks: Vec<Ask<'_>> = asked
            .iter()
            .map(|(request, members)| Ask {
                request,
                members: *members,
            })
            .collect();
        let mut holder_of: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, holder) in question.holders.iter().enumerate() {
            holder_of.extend(holder.works.iter().map(|work| (work.as_str(), index)));
        }
        let live = view(fleet, &asks, &|work| holder_of.contains_key(&*work.id));
        let mut parts_of = vec![BTreeMap::new(); question.holders.len()];
        for (place, id) in (0_u32..).zip(&live.nodes) {
            let Some(node) = fleet.node(*id) else {
                continue;
            };
            for work in fleet.works_on(*id) {
                let gpus = held(node, work);
                if let Some(holder) = holder_of.get(&*work.id)
                    && gpus > 0
                {
                    *parts_of[*holder].entry(place).or_default() += gpus;
                }
            }
        }
        Self {
            live,
            need_of,
            parts_of,
        }
    }

    /// Those in line who share nodes with each other, and those nodes. Who could use none is in no line.
    fn lines(&self) -> Vec<Shared> {
        let mut lines: Vec<Shared> = Vec::new();
        let needs = self.live.needs.iter();
        let possible: Vec<bool> = needs
            .map(|need| self.live.pool.possible(need).is_ok())
            .collect();
        for (index, need) in self.need_of.iter().enumerate() {
            if !possible[*need] {
                continue;
            }
            let need = &self.live.needs[*need];
            let mut own = Shared {
                members: vec![index],
                classes: need.accepts.clone(),
            };
            // Lines that could not use the same nodes until now may have become one.
            lines.retain(|line| {
                let apart = !line.classes.iter().any(|class| own.classes.contains(class));
                if !apart {
                    own.members.extend(&line.members);
                    own.classes.extend(&line.classes);
                }
                apart
            });
            own.classes.sort_unstable();
            own.classes.dedup();
            lines.push(own);
        }
        for line in &mut lines {
            line.members.sort_unstable();
        }
        lines
    }
}

/// Part of the line, and the classes of nodes it waits for.
struct Shared {
    members: Vec<usize>,
    classes: Vec<ClassId>,
}

/// What one of a claim's pods asks for, so that equals are equal, and how many there are.
fn request(ledger: &Ledger, claim: &Claim) -> (Request, u32) {
    let members = u32::try_from(claim.pods.len()).unwrap_or(u32::MAX);
    let Some(pod) = claim.pods.first() else {
        return (Request::default(), members);
    };
    let mut request = base_request(ledger, pod);
    let named = claim.providers.iter().flatten();
    let named: Vec<Arc<str>> = named.map(|name| Arc::from(name.as_str())).collect();
    if !named.is_empty() {
        let here = Expression {
            key: Arc::from(label::PROVIDER),
            operator: Operator::In,
            values: named,
        };
        require(&mut request, Some(&here), None);
    }
    // Only what lasts is asked of the nodes: no other pod's terms, for which these would matter.
    request.name = Arc::default();
    request.labels = warp_core::fleet::Labels::default();
    (request, members)
}

/// One line and what is in its way, ready to be replayed.
struct Line {
    state: State,
    policy: Box<dyn Policy>,
}

impl Line {
    fn new(
        question: &Question<'_>,
        fleet: &FleetSeen,
        shared: &Shared,
        durations: &mut Durations,
    ) -> Self {
        let policy = policy(question.policy);
        let mut state = State::new(fleet.live.pool.clone());
        state.now = seconds(question.now);
        let nodes: BTreeSet<NodeId> = shared
            .classes
            .iter()
            .flat_map(|class| fleet.live.pool.class_nodes(*class))
            .copied()
            .collect();
        for (index, holder) in question.holders.iter().enumerate() {
            let parts = &fleet.parts_of[index];
            if !parts.keys().any(|node| nodes.contains(node)) {
                continue;
            }
            let parts = parts
                .iter()
                .map(|(node, gpus)| (*node, (*gpus).min(state.pool().free_on(*node))));
            let placement = Placement::Many(parts.collect());
            let since = seconds(holder.since).min(state.now);
            let group = durations.group(&known_by(&holder.features));
            let mut job = Job::new(id_of(question, index), since, 0, placement.gpus(), group);
            job.priority = rank(holder.priority);
            job.limit = holder.longest_seconds.map(|longest| longest as f64);
            let run = Run {
                since,
                warm: since,
                placement,
                expected_end: state.now,
                expected_until: f64::NEG_INFINITY,
                rank: f64::NAN,
            };
            state.adopt(job, run);
        }
        for index in &shared.members {
            let claimant = &question.line[*index];
            let claim = claimant.claim();
            let need = fleet.live.needs[fleet.need_of[*index]].clone();
            let gpus = need.shape.gpus();
            let need = state.intern(need);
            let group = durations.group(&known_by(&claimant.features()));
            let submit = claim.created.map_or(state.now, seconds).min(state.now);
            let mut job = Job::new(*index as u64, submit, need, gpus, group);
            job.priority = rank(claim.priority);
            job.limit = claim.max_runtime_seconds.map(|longest| longest as f64);
            state.submit(job, policy.as_ref(), durations);
        }
        Self { state, policy }
    }

    fn starts(&self, durations: &Durations) -> BTreeMap<u64, StartEstimate> {
        let jobs = self.state.running().len() + self.state.pending().len();
        let samples = (JOBS_REPLAYED / jobs.max(1)).clamp(*REPLAYS.start(), *REPLAYS.end());
        let forecaster = Forecaster {
            samples: u32::try_from(samples).unwrap_or(u32::MAX),
            least_seen: LEAST_SEEN,
            ..Forecaster::default()
        };
        let (history, all) = (History::default(), |_| true);
        forecaster.estimate(&self.state, self.policy.as_ref(), durations, &history, &all)
    }

    /// Who is expected to end before all others.
    fn first_to_end(&mut self, question: &Question<'_>, durations: &mut Durations) -> Option<Key> {
        let mut ends: Vec<(Seconds, &Key)> = Vec::new();
        for slot in self.state.running().to_vec() {
            let job = self.state.job(slot);
            let Some(holder) = holder_of(question, job.id) else {
                continue;
            };
            let by = job
                .run
                .as_ref()
                .zip(job.limit)
                .map(|(run, limit)| run.since + limit);
            let end = if durations.seen() >= LEAST_SEEN {
                Some(self.state.expected_end(slot, durations).0)
            } else {
                by
            };
            ends.extend(end.map(|end| (end, &holder.key)));
        }
        let first = ends
            .into_iter()
            .min_by(|one, other| one.0.total_cmp(&other.0).then_with(|| one.1.cmp(other.1)));
        first.map(|(_, key)| key.clone())
    }
}

/// Those in line are called by their place in it, what runs by the numbers after.
fn id_of(question: &Question<'_>, holder: usize) -> u64 {
    (question.line.len() + holder) as u64
}

fn holder_of<'a>(question: &Question<'a>, id: u64) -> Option<&'a Holder> {
    let place = usize::try_from(id).ok()?;
    let index = place.checked_sub(question.line.len())?;
    question.holders.get(index)
}

fn rank(priority: Priority) -> i32 {
    match priority {
        Priority::Low => -1,
        Priority::Normal => 0,
        Priority::High => 1,
    }
}
