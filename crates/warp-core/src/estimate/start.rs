//! When waiting work will start: the queue is replayed forward many times with the policy that
//! runs it, each time with other durations and other arrivals. Running work ends by its
//! distribution given how long it has run (or by its own progress reports), arrivals are those of
//! a random one of the last days. Durations of one group share a random scale in each replay: the
//! learnt distribution itself is uncertain, and drawing every job independently would average
//! that away and give bands far too narrow. What was submitted together shares its fate
//! ([`Bursts`](super::Bursts)): work that is running or waiting is drawn from its burst. Work with a
//! limit ends by then; in some replays all of it takes as long as it may, so that the band ends no
//! earlier than what the limits alone promise.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::queue::Policy;
use crate::queue::engine::{Engine, Event};
use crate::queue::job::{Checkpoint, Job, Seconds};
use crate::queue::state::{Slot, State};

use super::bursts::BurstId;
use super::dice::Dice;
use super::distribution::{BINS, Distribution, bin_of};
use super::durations::{Durations, GroupId};

const DAY: Seconds = 86_400.0;
/// Passes of a replay are at least this share of the time since its beginning apart.
const GRAIN: f64 = 0.03;
/// Arrivals are replayed in pieces of this length.
const BLOCK: Seconds = DAY / 4.0;
/// Days of arrivals a replay draws from.
const DAYS: u32 = 7;

/// A past submission, as the kind of work to expect again.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub at: Seconds,
    need: u32,
    gpus: u32,
    priority: i32,
    checkpoint: Option<Checkpoint>,
    group: GroupId,
}

impl Arrival {
    pub fn of(job: &Job) -> Self {
        Self {
            at: job.submit,
            need: job.need,
            gpus: job.gpus,
            priority: job.priority,
            checkpoint: job.checkpoint,
            group: job.group,
        }
    }

    fn again(&self, id: u64, at: Seconds) -> Job {
        let mut job = Job::new(id, at, self.need, self.gpus, self.group);
        job.priority = self.priority;
        job.checkpoint = self.checkpoint;
        job
    }
}

/// The submissions of the last days, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    arrivals: VecDeque<Arrival>,
}

impl History {
    pub fn add(&mut self, arrival: Arrival) {
        let oldest = arrival.at - (f64::from(DAYS) + 1.0) * DAY;
        while self.arrivals.front().is_some_and(|first| first.at < oldest) {
            self.arrivals.pop_front();
        }
        self.arrivals.push_back(arrival);
    }

    /// Submissions from `from` to before `to`.
    fn between(&self, from: Seconds, to: Seconds) -> impl Iterator<Item = &Arrival> {
        let start = self.arrivals.partition_point(|arrival| arrival.at < from);
        self.arrivals
            .range(start..)
            .take_while(move |arrival| arrival.at < to)
    }

    /// Whole days that the history reaches back from `now`.
    fn days(&self, now: Seconds) -> u32 {
        let reach = self
            .arrivals
            .front()
            .map_or(0.0, |first| (now - first.at) / DAY);
        (1..=DAYS)
            .rev()
            .find(|days| f64::from(*days) <= reach)
            .unwrap_or(1)
    }
}

/// When a job starts, absolute: the middle and the ends of the 80 % band.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StartEstimate {
    pub low: Seconds,
    pub middle: Seconds,
    pub high: Seconds,
}

/// How to replay.
#[derive(Clone, Copy, Debug)]
pub struct Forecaster {
    pub samples: u32,
    /// Spread (of the logarithm) of the scale that the durations of a group share.
    pub group_sigma: f64,
    /// Spread of what is left of work that reports its progress.
    pub report_sigma: f64,
    /// Quantiles of the replays that make the estimate.
    pub levels: [f64; 3],
    /// Replays end here at the latest.
    pub horizon: Seconds,
    /// Replays in which everything with a limit runs until it is reached.
    pub to_the_limit: u32,
    /// Finished work that must have been seen before anything is made of it. Until then work with a
    /// limit ends at any time until that, and work without one never.
    pub least_seen: u64,
    pub seed: u64,
}

impl Default for Forecaster {
    fn default() -> Self {
        Self {
            samples: 50,
            group_sigma: 0.4,
            report_sigma: 0.15,
            levels: [0.02, 0.5, 0.98],
            horizon: 30.0 * DAY,
            to_the_limit: 2,
            least_seen: 0,
            seed: 42,
        }
    }
}

impl Forecaster {
    /// Estimates for the waiting jobs that `wanted` accepts, by job id.
    pub fn estimate(
        &self,
        state: &State,
        policy: &dyn Policy,
        durations: &Durations,
        history: &History,
        wanted: &dyn Fn(u64) -> bool,
    ) -> BTreeMap<u64, StartEstimate> {
        // Asking must not change what is asked: the learner refreshes its groups when read.
        let durations = &mut durations.clone();
        let mut starts: BTreeMap<u64, Vec<Seconds>> = state
            .pending()
            .map(|waiting| state.job(waiting.slot))
            .filter(|job| wanted(job.id))
            .map(|job| (job.id, Vec::with_capacity(self.samples as usize)))
            .collect();
        let limit = state.now + self.horizon;
        let fates = Fates::of(state, durations);
        for sample in 0..self.samples {
            let dice = Dice::of(self.seed, u64::from(sample));
            let fated = sample < self.to_the_limit;
            Replay::new(self, state, policy, (durations, &fates), (dice, fated)).run(
                durations,
                history,
                &mut starts,
            );
            for times in starts.values_mut() {
                times.resize(sample as usize + 1, limit);
            }
        }
        starts
            .into_iter()
            .map(|(id, mut times)| {
                times.sort_by(f64::total_cmp);
                let [low, middle, high] = self.levels.map(|level| quantile(&times, level));
                (id, StartEstimate { low, middle, high })
            })
            .collect()
    }
}

/// Quantile of sorted values, interpolated.
fn quantile(sorted: &[f64], level: f64) -> f64 {
    let place = (level * sorted.len() as f64 - 0.5).clamp(0.0, sorted.len() as f64 - 1.0);
    let below = sorted
        .iter()
        .enumerate()
        .take_while(|(k, _)| *k as f64 <= place)
        .last();
    let Some((k, low)) = below else { return 0.0 };
    let high = sorted.get(k + 1).unwrap_or(low);
    low + (place - k as f64) * (high - low)
}

/// Everything running, then everybody in line.
fn live(state: &State) -> impl Iterator<Item = Slot> {
    let waiting = state.pending().map(|waiting| waiting.slot);
    state.running().iter().copied().chain(waiting)
}

/// How long the work of each burst runs, as far as can be told now.
struct Fates {
    of: BTreeMap<(GroupId, BurstId), Distribution>,
}

impl Fates {
    fn of(state: &State, durations: &Durations) -> Self {
        let mut reached: BTreeMap<(GroupId, BurstId), [f64; BINS]> = BTreeMap::new();
        for slot in live(state) {
            let job = state.job(slot);
            let Some(burst) = job.burst else { continue };
            let reached = reached.entry((job.group, burst)).or_insert([0.0; BINS]);
            let age = job.attained(state.now);
            if age > 0.0 {
                reached[bin_of(age)] += 1.0;
            }
        }
        let fate = |((group, burst), reached): (_, [f64; BINS])| {
            let fate = durations.of_burst(group, burst, &reached)?;
            Some(((group, burst), fate))
        };
        Self {
            of: reached.into_iter().filter_map(fate).collect(),
        }
    }

    fn of_job(&self, job: &Job) -> Option<&Distribution> {
        self.of.get(&(job.group, job.burst?))
    }
}

struct Replay<'a> {
    forecaster: &'a Forecaster,
    engine: Engine,
    dice: Dice,
    /// Everything with a limit runs until it is reached.
    to_the_limit: bool,
    /// Enough finished work has been seen to make something of it.
    learnt: bool,
    scales: Vec<Option<f64>>,
    next_id: u64,
    begin: Seconds,
    /// The first arrival that the policy has not looked at.
    arrived: Option<Seconds>,
    /// Wanted jobs that have not started yet in this replay.
    open: BTreeSet<u64>,
}

impl<'a> Replay<'a> {
    fn new(
        forecaster: &'a Forecaster,
        state: &State,
        policy: &dyn Policy,
        (durations, fates): (&mut Durations, &Fates),
        (dice, to_the_limit): (Dice, bool),
    ) -> Self {
        let engine = Engine::with_state(state.clone(), policy.fork(), false);
        let mut replay = Self {
            forecaster,
            engine,
            dice,
            to_the_limit,
            learnt: durations.seen() >= forecaster.least_seen,
            scales: Vec::new(),
            next_id: u64::MAX,
            begin: state.now,
            arrived: None,
            open: BTreeSet::new(),
        };
        for slot in live(state) {
            let job = state.job(slot);
            let total = match fates.of_job(job) {
                Some(fate) => replay.draw(job, state.now, fate),
                None => replay.draw(job, state.now, durations.of(job.group)),
            };
            replay.engine.set_truth(slot, total);
        }
        replay
    }

    /// A total duration for a job, given how far it is.
    fn draw(&mut self, job: &Job, now: Seconds, fate: &Distribution) -> Seconds {
        let age = job.attained(now);
        let total = self.guess(job, age, fate);
        match job.limit {
            Some(limit) if self.to_the_limit => limit.max(age),
            Some(_) => age + job.within_limit(age, total - age),
            None => total,
        }
    }

    /// The same without regard to its limit.
    fn guess(&mut self, job: &Job, age: Seconds, fate: &Distribution) -> Seconds {
        if let Some(progress) = job.progress
            && job.run.is_some()
        {
            let error = (self.forecaster.report_sigma * self.dice.normal()).exp();
            return age + progress.left(age) * error;
        }
        if !self.learnt {
            return match job.limit {
                Some(limit) => age + (limit - age).max(0.0) * self.dice.unit(),
                None => age + 2.0 * self.forecaster.horizon,
            };
        }
        let scale = self.scale(job.group);
        let total = fate.quantile_after(age, self.dice.unit());
        age + ((total - age) * scale).max(1.0)
    }

    fn scale(&mut self, group: GroupId) -> f64 {
        let index = group.number() as usize;
        if self.scales.len() <= index {
            self.scales.resize(index + 1, None);
        }
        let dice = &mut self.dice;
        let sigma = self.forecaster.group_sigma;
        *self.scales[index].get_or_insert_with(|| (sigma * dice.normal()).exp())
    }

    fn run(
        mut self,
        durations: &mut Durations,
        history: &History,
        starts: &mut BTreeMap<u64, Vec<Seconds>>,
    ) {
        self.open = starts.keys().copied().collect();
        let now = self.engine.state.now;
        let days = history.days(now);
        let mut block = 0.0;
        while block * BLOCK < self.forecaster.horizon {
            let whole_days = (block * BLOCK / DAY).floor();
            let back = DAY * (1.0 + whole_days + self.dice.below(days as usize) as f64);
            let begin = now + block * BLOCK - back;
            for arrival in history.between(begin, (begin + BLOCK).min(now)) {
                self.advance(arrival.at + back, durations, starts);
                if self.open.is_empty() {
                    return;
                }
                self.arrive(arrival, arrival.at + back, durations);
            }
            block += 1.0;
            self.advance(now + block * BLOCK, durations, starts);
            if self.open.is_empty() {
                return;
            }
        }
    }

    fn arrive(&mut self, arrival: &Arrival, at: Seconds, durations: &mut Durations) {
        let job = arrival.again(self.next_id, at);
        self.next_id -= 1;
        let total = self.draw(&job, at, durations.of(job.group));
        self.engine.submit(job, total, durations);
        self.arrived.get_or_insert(at);
    }

    /// When the policy acts next: on the next event, but far ahead only every so often. Nobody
    /// needs a start in two days to the second, and the replay gets many times cheaper.
    fn next_pass(&mut self) -> Option<Seconds> {
        let due = match (self.engine.next_event(), self.arrived) {
            (Some(event), Some(arrived)) => Some(event.min(arrived)),
            (event, arrived) => event.or(arrived),
        };
        let last = self.engine.state.now;
        due.map(|due| due.max(last + GRAIN * (last - self.begin)))
    }

    /// Lets the replay run to `until`, noting the first start of every wanted job.
    fn advance(
        &mut self,
        until: Seconds,
        durations: &mut Durations,
        starts: &mut BTreeMap<u64, Vec<Seconds>>,
    ) {
        loop {
            for event in self.engine.drain() {
                if let Event::Started { at, id, .. } = event
                    && self.open.remove(&id)
                    && let Some(times) = starts.get_mut(&id)
                {
                    times.push(at);
                }
            }
            if self.open.is_empty() {
                return;
            }
            match self.next_pass() {
                Some(at) if at < until => {
                    self.engine.step(at, durations);
                    self.arrived = None;
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests;
