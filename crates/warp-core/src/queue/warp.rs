//! `warp`: where nothing can be evicted, order by submission plus a bounded charge for the GPU-time
//! a job is expected to take, with a reservation for the first that does not fit; where work is
//! checkpointed, a Gittins index softened by waiting, with eviction of far worse ranked work.
//! Priority classes come first in both. Starvation is bounded by [`Hold`].

use crate::estimate::Durations;
use crate::preempt::{self, Plan, Terms};

use super::hold::Hold;
use super::job::{Job, Seconds};
use super::node_set::End;
use super::order::Blocked;
use super::state::{Slot, State};
use super::{HOUR, MINUTE, Policy, reserve};

/// Constants of the policy; the defaults were chosen at one load of one trace (`bench/placement/queue.md`).
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Most a job is set back for its expected GPU-time (no eviction).
    pub setback_cap: Seconds,
    /// Waiting that halves a rank's root: this much plus `per_attained` of the attained time.
    pub grace: Seconds,
    pub per_attained: f64,
    pub rerank_every: Seconds,
    /// Age from which a job may evict.
    pub may_evict_after: Seconds,
    pub terms: Terms,
    /// Waiting after which work that has never run may evict what ran only `urgent_run`: the first
    /// start of a short job must not wait for the next victim to have had its full turn.
    pub urgent_after: Seconds,
    pub urgent_run: Seconds,
    /// Waiting without a break after which a job is overdue.
    pub patience: Seconds,
    pub tick: Seconds,
    /// Share of the live GPU demand that must be evictable for eviction to pay; half of it to go on.
    pub least_evictable: f64,
    /// Work expected to be shorter is kept apart from longer work (no eviction).
    pub short: Seconds,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            setback_cap: 96.0 * HOUR,
            grace: 0.25 * HOUR,
            per_attained: 0.3,
            rerank_every: 5.0 * MINUTE,
            may_evict_after: 10.0 * MINUTE,
            terms: Terms {
                factor: 5.0,
                min_run: 2.0 * HOUR,
            },
            urgent_after: 0.25 * HOUR,
            urgent_run: HOUR,
            patience: 168.0 * HOUR,
            tick: MINUTE,
            least_evictable: 0.08,
            short: 0.25 * HOUR,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Warp {
    tuning: Tuning,
    hold: Hold,
    ranked_at: Seconds,
    preemptive: bool,
}

impl Default for Warp {
    fn default() -> Self {
        Self::new(Tuning::default())
    }
}

impl Warp {
    pub fn new(tuning: Tuning) -> Self {
        Self {
            tuning,
            hold: Hold::new(tuning.patience),
            ranked_at: f64::NEG_INFINITY,
            preemptive: false,
        }
    }

    /// The policy of a queue that is told from outside whether work can be evicted, such as a live one.
    #[must_use]
    pub fn evicting(mut self, evicting: bool) -> Self {
        self.preemptive = evicting;
        self
    }

    /// Whether eviction pays where this share of the live GPU demand is evictable, having paid before or not.
    pub fn pays(&self, evictable_share: f64) -> bool {
        let least = self.tuning.least_evictable * if self.preemptive { 0.5 } else { 1.0 };
        evictable_share >= least
    }

    fn rules(&self) -> Rules<'_> {
        Rules {
            terms: self.tuning.terms,
            may_evict_after: self.tuning.may_evict_after,
            urgent: Some((self.tuning.urgent_after, self.tuning.urgent_run)),
            hold: Some(&self.hold),
        }
    }

    fn rank(&self, job: &Job, now: Seconds, durations: &mut Durations) -> f64 {
        let attained = job.attained(now);
        let index = f64::from(job.gpus) * durations.of(job.group).gittins(attained);
        let patience = self.tuning.grace + self.tuning.per_attained * attained;
        index / (1.0 + job.waited(now) / patience).powi(2)
    }
}

impl Policy for Warp {
    fn name(&self) -> &'static str {
        "warp"
    }

    fn key(&self, job: &Job, now: Seconds, durations: &mut Durations) -> f64 {
        if self.preemptive {
            return self.rank(job, now, durations);
        }
        let expected = durations.of(job.group).mean_residual(job.attained(now));
        job.submit + (expected * f64::from(job.gpus)).min(self.tuning.setback_cap)
    }

    fn end(&self, job: &Job, durations: &mut Durations) -> End {
        let high = if self.preemptive {
            job.checkpoint.is_some()
        } else {
            durations.of(job.group).median() < self.tuning.short
        };
        if high { End::High } else { End::Low }
    }

    fn tick(&self) -> Option<Seconds> {
        self.preemptive.then_some(self.tuning.tick)
    }

    fn patience(&self) -> Option<Seconds> {
        Some(self.tuning.patience)
    }

    fn rerank_every(&self) -> Option<Seconds> {
        self.preemptive.then_some(self.tuning.rerank_every)
    }

    fn evicts_equals(&self, job: &Job, now: Seconds) -> Option<Terms> {
        let (level, terms) = self.rules().terms_of(job, now);
        (self.preemptive && level > 0).then_some(terms)
    }

    fn pass(&mut self, state: &mut State, durations: &mut Durations) {
        let preemptive = self.pays(state.evictable_share());
        let turned = preemptive != self.preemptive;
        self.preemptive = preemptive;
        let due = preemptive && state.now - self.ranked_at >= self.tuning.rerank_every;
        if turned || due {
            self.ranked_at = state.now;
            if !preemptive {
                state.rerank(self, durations);
            }
        }
        self.hold.update(state, durations);
        if preemptive {
            preemptive_pass(self, state, durations, &self.rules(), turned || due);
        } else {
            reserve::backfill(state, durations, Some(&self.hold));
        }
    }

    fn fork(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// Who may evict whom, and what to keep off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    pub(super) terms: Terms,
    /// Age from which a job may evict its equals; lower classes give way at once.
    pub(super) may_evict_after: Seconds,
    /// Waiting after which work that has never run may evict what ran only so long.
    pub(super) urgent: Option<(Seconds, Seconds)>,
    pub(super) hold: Option<&'a Hold>,
}

impl Rules<'_> {
    /// How sternly a waiting job may evict (0: lower classes only), and on which terms.
    pub(super) fn terms_of(&self, job: &Job, now: Seconds) -> (usize, Terms) {
        let age = now - job.submit;
        if age < self.may_evict_after {
            // No rank is worse than infinitely worse: only lower classes are left.
            let factor = f64::INFINITY;
            return (
                0,
                Terms {
                    factor,
                    ..self.terms
                },
            );
        }
        match self.urgent {
            Some((after, min_run)) if job.first_start.is_none() && age >= after => (
                2,
                Terms {
                    min_run,
                    ..self.terms
                },
            ),
            _ => (1, self.terms),
        }
    }
}

/// One pass in order of rank: what fits starts; what does not may evict work of a lower class or,
/// once it is old enough, of far worse rank. `rank` computes all ranks anew first.
pub(super) fn preemptive_pass(
    policy: &dyn Policy,
    state: &mut State,
    durations: &mut Durations,
    rules: &Rules<'_>,
    rank: bool,
) {
    if rank {
        rank_all(policy, state, durations);
    }
    // Needs that do not fit, and those nobody (young, old or urgent) can make room for.
    let mut full = Blocked::none(state);
    let mut stuck = [(); 3].map(|()| Blocked::none(state));
    let sternest = if rules.urgent.is_some() { 2 } else { 1 };
    let mut index = 0;
    while index < state.pending().len() {
        let waiting = state.waiting(index);
        let held = rules.hold.and_then(Hold::holder) == Some(waiting.slot);
        let hold = rules.hold.filter(|_| !held);
        let avoid = hold.and_then(|hold| hold.against(waiting.priority));
        if !full.has(waiting.need) {
            if state.try_start(index, avoid) {
                continue;
            }
            full.set(waiting.need);
        }
        let job = state.job(waiting.slot);
        let (level, terms) = rules.terms_of(job, state.now);
        let may_try =
            (level > 0 || state.runs_below(waiting.priority)) && !stuck[level].has(waiting.need);
        if may_try {
            if let Some(plan) = preempt::plan(state, job, waiting.key, &terms, avoid) {
                carry_out(plan, waiting.slot, policy, state, durations);
                full.clear();
                continue;
            }
            stuck[level].set(waiting.need);
            if level == sternest
                && stuck[level].all(state)
                && full.all(state)
                && !state.runs_below(waiting.priority)
            {
                return;
            }
        }
        index += 1;
    }
}

fn rank_all(policy: &dyn Policy, state: &mut State, durations: &mut Durations) {
    state.rerank(policy, durations);
    for position in 0..state.running().len() {
        let slot = state.running()[position];
        let fresh = policy.key(state.job(slot), state.now, durations);
        if let Some(run) = &mut state.job_mut(slot).run {
            run.rank = fresh;
        }
    }
}

/// Evicts the victims and starts the preemptor in the same instant.
fn carry_out(
    plan: Plan,
    preemptor: Slot,
    policy: &dyn Policy,
    state: &mut State,
    durations: &mut Durations,
) {
    for victim in plan.victims {
        let key = policy.key(state.job(victim), state.now, durations);
        state.evict(victim, preemptor, key, durations);
    }
    if let Some(at) = state.position(preemptor) {
        state.start(at, plan.placement);
    }
}
