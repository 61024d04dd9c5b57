//! A queue in virtual time: takes submissions whose true duration is given, lets the policy act on
//! every submission, end and tick, and ends work when its time is up. The simulator feeds it a
//! trace; the start-time estimate feeds it samples. The policy never sees the true durations.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::estimate::Durations;

use super::job::{Job, Seconds};
use super::state::{Action, Slot, State};
use super::{Policy, Pool};

/// What happened, when.
#[derive(Clone, Debug)]
pub enum Event {
    Started {
        at: Seconds,
        slot: Slot,
        id: u64,
    },
    Evicted {
        at: Seconds,
        id: u64,
        by: u64,
    },
    Finished {
        at: Seconds,
        job: Box<Job>,
        total: Seconds,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct End {
    at: Seconds,
    slot: Slot,
    /// Start counter of the slot: an end of an earlier run is stale.
    run: u32,
}

impl Eq for End {}

impl Ord for End {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at
            .total_cmp(&other.at)
            .then(self.slot.cmp(&other.slot))
            .then(self.run.cmp(&other.run))
    }
}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Debug)]
pub struct Engine {
    pub state: State,
    policy: Box<dyn Policy>,
    ends: BinaryHeap<Reverse<End>>,
    /// True total duration and start counter, by slot.
    truth: Vec<(Seconds, u32)>,
    next_tick: Seconds,
    /// Whether ends teach `Durations` and are told; a replay must not learn from its own samples.
    learn: bool,
    events: Vec<Event>,
}

impl Engine {
    pub fn new(pool: Pool, policy: Box<dyn Policy>) -> Self {
        Self::with_state(State::new(pool), policy, true)
    }

    /// From a state with work in it; [`Self::set_truth`] must follow for each job.
    pub fn with_state(state: State, policy: Box<dyn Policy>, learn: bool) -> Self {
        let next_tick = policy.tick().map_or(f64::INFINITY, |tick| state.now + tick);
        Self {
            state,
            policy,
            ends: BinaryHeap::new(),
            truth: Vec::new(),
            next_tick,
            learn,
            events: Vec::new(),
        }
    }

    pub fn policy(&self) -> &dyn Policy {
        self.policy.as_ref()
    }

    /// Says how long the job in a slot will have run in total when it ends.
    pub fn set_truth(&mut self, slot: Slot, total: Seconds) {
        if self.truth.len() <= slot.index() {
            self.truth.resize(slot.index() + 1, (0.0, 0));
        }
        self.truth[slot.index()].0 = total;
        if self.state.job(slot).run.is_some() {
            self.expect_end(slot);
        }
    }

    fn expect_end(&mut self, slot: Slot) {
        let job = self.state.job(slot);
        let Some(run) = &job.run else { return };
        let (total, starts) = &mut self.truth[slot.index()];
        *starts = starts.wrapping_add(1);
        let at = (run.warm + *total - job.saved).max(self.state.now);
        self.ends.push(Reverse(End {
            at,
            slot,
            run: *starts,
        }));
    }

    /// Puts a job in line now; the caller calls [`Self::pass`] when all of this instant are in.
    pub fn submit(&mut self, mut job: Job, total: Seconds, durations: &mut Durations) -> Slot {
        if self.learn {
            job.burst = Some(durations.bursts.join(job.group, job.submit));
        }
        let slot = self.state.submit(job, self.policy.as_ref(), durations);
        self.set_truth(slot, total);
        slot
    }

    /// Lets the policy act once.
    pub fn pass(&mut self, durations: &mut Durations) {
        let now = self.state.now;
        if self.next_tick.is_infinite()
            && let Some(tick) = self.policy.tick()
        {
            self.next_tick = now + tick;
        }
        self.policy.pass(&mut self.state, durations);
        for action in self.state.take_actions() {
            match action {
                Action::Start(slot) => {
                    self.expect_end(slot);
                    let id = self.state.job(slot).id;
                    self.events.push(Event::Started { at: now, slot, id });
                }
                Action::Evict { victim, by } => {
                    // The end that was due is stale now.
                    self.truth[victim.index()].1 = self.truth[victim.index()].1.wrapping_add(1);
                    let (id, by) = (self.state.job(victim).id, self.state.job(by).id);
                    self.events.push(Event::Evicted { at: now, id, by });
                }
            }
        }
    }

    /// The next end or tick, if any work runs or waits.
    pub fn next_event(&mut self) -> Option<Seconds> {
        while let Some(Reverse(end)) = self.ends.peek() {
            if self.is_current(*end) {
                break;
            }
            self.ends.pop();
        }
        let end = self.ends.peek().map(|Reverse(end)| end.at);
        let tick = (self.state.pending().len() > 0 && self.next_tick.is_finite())
            .then(|| self.next_tick.max(self.state.now));
        match (end, tick) {
            (Some(end), Some(tick)) => Some(end.min(tick)),
            (end, tick) => end.or(tick),
        }
    }

    fn is_current(&self, end: End) -> bool {
        self.truth[end.slot.index()].1 == end.run
    }

    /// Processes the ends due at the next event's time, then lets the policy act.
    pub fn step(&mut self, at: Seconds, durations: &mut Durations) {
        self.state.now = at;
        while let Some(Reverse(end)) = self.ends.peek().copied() {
            if end.at > at {
                break;
            }
            self.ends.pop();
            if !self.is_current(end) {
                continue;
            }
            let (total, starts) = &mut self.truth[end.slot.index()];
            *starts = starts.wrapping_add(1);
            let total = *total;
            let job = self.state.finish(end.slot);
            if self.learn {
                durations.observe(job.group, total);
                if let Some(burst) = job.burst {
                    durations.bursts.leave(burst, total);
                }
                let job = Box::new(job);
                self.events.push(Event::Finished { at, job, total });
            }
        }
        if at >= self.next_tick {
            // A policy may stop asking for ticks.
            self.next_tick = self.policy.tick().map_or(f64::INFINITY, |tick| {
                self.next_tick + (((at - self.next_tick) / tick).floor() + 1.0) * tick
            });
        }
        self.pass(durations);
    }

    /// Moves time forward without anything happening.
    pub fn wait_until(&mut self, at: Seconds) {
        self.state.now = at;
    }

    /// What happened since the last call.
    pub fn drain(&mut self) -> std::vec::Drain<'_, Event> {
        self.events.drain(..)
    }
}
