//! The order in which those that wait are served: priority first, then what the queue policy says. The policies are
//! `warp-core`'s, asked over what has been learnt about run times.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use warp_api::workload::Priority;
use warp_core::estimate::{Durations, Features};
use warp_core::preempt::Terms;
use warp_core::queue::job::Run;
use warp_core::queue::warp::Warp;
use warp_core::queue::{self, Job, Placement, Policy, Seconds};
use warp_runtime::cache::Key;

use super::{Arrivals, Claim, Claimant, Runs};
use crate::config::QueuePolicy;
use crate::estimates::known_by;

/// What was learnt is taken up at most this often: it moves everybody in line.
const LEARN_EVERY: SignedDuration = SignedDuration::from_mins(1);

/// Where one stands in line: higher priority, then who has waited for too long, then what the policy says, then older,
/// then the first to come, then by name so that the order is total.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    priority: Reverse<Priority>,
    overdue: Reverse<bool>,
    rank: i64,
    created: Option<Timestamp>,
    arrived: Timestamp,
    key: Key,
    /// Two kinds may have objects of one name, and one object several claims: no two stand in one place.
    uid: String,
}

impl Turn {
    /// Whether somebody of the lowest priority would go for it.
    pub(super) fn is_urgent(&self) -> bool {
        self.priority.0 > Priority::Low
    }
}

/// What the order follows from.
#[derive(Debug)]
pub(crate) struct Order {
    name: QueuePolicy,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    policy: Box<dyn Policy>,
    durations: Durations,
    /// Learnt since, and when the last was taken up.
    offered: Option<Arc<Durations>>,
    learnt_at: Option<Timestamp>,
    /// Work is evicted for its equals.
    evicting: bool,
    /// When ranks were last computed; they hold until they are computed anew.
    ranked_at: Timestamp,
    /// Grows whenever everybody's place may be another.
    version: u64,
}

/// What a waiting claim may evict of its own priority.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Equals {
    terms: Terms,
    rank: f64,
}

impl Order {
    pub(crate) fn new(name: QueuePolicy) -> Self {
        let known = Known {
            policy: policy(name),
            durations: Durations::default(),
            offered: None,
            learnt_at: None,
            evicting: false,
            ranked_at: Timestamp::UNIX_EPOCH,
            version: 0,
        };
        Self {
            name,
            known: Mutex::new(known),
        }
    }

    /// The order at one moment, of those who know how long work has run.
    pub(crate) fn at(
        name: QueuePolicy,
        durations: Durations,
        evictable_share: f64,
        now: Timestamp,
    ) -> Self {
        let order = Self::new(name);
        order.known.lock().durations = durations;
        order.refresh(evictable_share, now);
        order
    }

    /// Takes in what was learnt about run times.
    pub(crate) fn learn(&self, durations: Arc<Durations>) {
        self.known.lock().offered = Some(durations);
    }

    /// Takes up what has changed by now, where so much of the GPUs that are held or asked for could be evicted for equals.
    /// Another number than before when everybody's place may be another.
    pub(crate) fn refresh(&self, evictable_share: f64, now: Timestamp) -> u64 {
        if self.by_age() {
            return 0;
        }
        let mut known = self.known.lock();
        let known = &mut *known;
        let mut anew = known.version == 0;
        let rested = |at: Timestamp| now.duration_since(at) >= LEARN_EVERY;
        if known.learnt_at.is_none_or(rested)
            && let Some(learnt) = known.offered.take()
        {
            known.durations = Arc::unwrap_or_clone(learnt);
            known.learnt_at = Some(now);
            anew = true;
        }
        if self.name == QueuePolicy::Warp {
            let pays = Warp::default()
                .evicting(known.evicting)
                .pays(evictable_share);
            if pays != known.evicting {
                known.evicting = pays;
                known.policy = Box::new(Warp::default().evicting(pays));
                anew = true;
            }
        }
        let passed = seconds(now) - seconds(known.ranked_at);
        anew |= known
            .policy
            .rerank_every()
            .is_some_and(|every| passed >= every);
        if anew {
            known.ranked_at = now;
            known.version += 1;
        }
        known.version
    }

    /// Whether only age and priority count.
    fn by_age(&self) -> bool {
        use QueuePolicy::{Easy, Fifo, SkipAhead};
        matches!(self.name, Easy | Fifo | SkipAhead)
    }

    /// Where a claim stands that came then.
    pub(crate) fn turn(
        &self,
        claimant: &dyn Claimant,
        arrived: Option<Timestamp>,
        now: Timestamp,
    ) -> Turn {
        let claim = claimant.claim();
        let overdue = self.overdue_at(claim).is_some_and(|at| at <= now);
        let rank = if overdue || self.by_age() {
            0
        } else {
            let known = &mut *self.known.lock();
            let job = known.waiting(claimant);
            let at = seconds(known.ranked_at);
            in_whole_numbers(known.policy.key(&job, at, &mut known.durations))
        };
        Turn {
            priority: Reverse(claim.priority),
            overdue: Reverse(overdue),
            rank,
            created: claim.created,
            arrived: arrived.unwrap_or(Timestamp::MAX),
            key: claim.key.clone(),
            uid: claim.uid.clone(),
        }
    }

    /// When a claim that still waits has waited for too long.
    pub(super) fn overdue_at(&self, claim: &Claim) -> Option<Timestamp> {
        let patience = self.known.lock().policy.patience()?;
        let patience = SignedDuration::try_from_secs_f64(patience).ok()?;
        claim.created?.checked_add(patience).ok()
    }

    /// Whether room is kept for a claim whose turn it is and that fits nowhere.
    pub(super) fn keeps_for(&self, claim: &Claim, now: Timestamp) -> bool {
        match self.name {
            QueuePolicy::Easy | QueuePolicy::Fifo => true,
            QueuePolicy::SkipAhead | QueuePolicy::Sjf | QueuePolicy::Las => false,
            QueuePolicy::Warp => {
                let evicting = self.known.lock().evicting;
                !evicting || self.overdue_at(claim).is_some_and(|at| at <= now)
            }
        }
    }

    /// How far a claim may go in evicting its equals: the larger, the further. Claims of one shape and one level wait for the
    /// same reason.
    pub(super) fn level(&self, claimant: &dyn Claimant, now: Timestamp) -> u64 {
        if !self.evicts() {
            return 0;
        }
        let equals = self.equals(claimant, now);
        equals.map_or(0, |equals| 1 + u64::from(equals.terms.min_run < LONG_RUN))
    }

    /// Whether work is ever evicted for its equals.
    pub(super) fn evicts(&self) -> bool {
        match self.name {
            QueuePolicy::Las => true,
            QueuePolicy::Warp => self.known.lock().evicting,
            _ => false,
        }
    }

    /// What a claim may evict of its own priority, if anything.
    pub(super) fn equals(&self, claimant: &dyn Claimant, now: Timestamp) -> Option<Equals> {
        if !self.evicts() {
            return None;
        }
        let known = &mut *self.known.lock();
        let job = known.waiting(claimant);
        let terms = known.policy.evicts_equals(&job, seconds(now))?;
        let rank = known.policy.key(&job, seconds(now), &mut known.durations);
        Some(Equals { terms, rank })
    }

    /// Whether running work of the same priority goes for a claim that may evict its equals: it is ranked far worse, has run
    /// long enough, and has saved something since.
    pub(super) fn gives_way(&self, runs: &Runs, to: Equals, now: Timestamp) -> bool {
        let Some(started) = runs.started.filter(|_| runs.saves) else {
            return false;
        };
        let saved = runs.unsaved_since.is_none_or(|since| since > started);
        let ran = now.duration_since(started).as_secs_f64();
        if !saved || ran < to.terms.min_run {
            return false;
        }
        let known = &mut *self.known.lock();
        let group = known.durations.group(&known_by(&runs.features));
        let gpus = u32::try_from(runs.gpus).unwrap_or(u32::MAX);
        let mut job = Job::new(0, seconds(runs.created.unwrap_or(started)), 0, gpus, group);
        job.run = Some(Run {
            since: seconds(started),
            warm: seconds(started),
            placement: Placement::Many(Vec::new()),
            expected_end: f64::INFINITY,
            expected_until: f64::INFINITY,
            rank: f64::NAN,
        });
        let rank = known.policy.key(&job, seconds(now), &mut known.durations);
        rank > to.terms.factor * to.rank
    }
}

/// Terms of work that has never run ask less of its victims.
const LONG_RUN: Seconds = 2.0 * queue::HOUR;

impl Known {
    /// A claim as the policies see it.
    fn waiting(&mut self, claimant: &dyn Claimant) -> Job {
        let claim = claimant.claim();
        let features: Features = claimant.features();
        let group = self.durations.group(&known_by(&features));
        let submit = claim.created.map_or(0.0, seconds);
        let mut job = Job::new(0, submit, 0, features.gpus, group);
        job.saved = claim.saved_seconds as f64;
        job.first_start = claim.has_run.then_some(submit);
        job.limit = claim.max_runtime_seconds.map(|longest| longest as f64);
        job
    }
}

/// The core's policy of that name.
pub(crate) fn policy(name: QueuePolicy) -> Box<dyn Policy> {
    match name {
        QueuePolicy::Easy => Box::new(queue::easy::Easy),
        QueuePolicy::Fifo => Box::new(queue::fifo::Fifo),
        QueuePolicy::SkipAhead => Box::new(queue::skip_ahead::SkipAhead),
        QueuePolicy::Sjf => Box::new(queue::sjf::Sjf),
        QueuePolicy::Las => Box::new(queue::las::Las::default()),
        QueuePolicy::Warp => Box::new(Warp::default()),
    }
}

fn seconds(time: Timestamp) -> Seconds {
    time.as_millisecond() as f64 / 1000.0
}

/// A number of the same order that can be compared.
fn in_whole_numbers(key: f64) -> i64 {
    let bits = key.to_bits().cast_signed();
    // Negative numbers are the larger the smaller they are.
    bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
}

/// Puts those that wait in the order they are served.
pub(crate) fn in_order(
    wanted: &mut [Arc<dyn Claimant>],
    order: &Order,
    arrivals: &Arrivals,
    now: Timestamp,
) {
    wanted.sort_by_cached_key(|claimant| {
        let arrived = arrivals.of(&claimant.claim().uid);
        order.turn(&**claimant, arrived, now)
    });
}
