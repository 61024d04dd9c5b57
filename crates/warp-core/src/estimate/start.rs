//! When waiting work will start: the queue is replayed forward many times with the policy that
//! runs it, each time with other durations and other arrivals. Running work ends by its
//! distribution given how long it has run (or by its own progress reports), arrivals are those of
//! a random one of the last days. Durations of one group share a random scale in each replay: the
//! learnt distribution itself is uncertain, and drawing every job independently would average
//! that away and give bands far too narrow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::queue::Policy;
use crate::queue::engine::{Engine, Event};
use crate::queue::job::{Checkpoint, Job, Seconds};
use crate::queue::state::State;

use super::dice::Dice;
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
    pub seed: u64,
}

impl Default for Forecaster {
    fn default() -> Self {
        Self {
            samples: 50,
            group_sigma: 0.8,
            report_sigma: 0.15,
            levels: [0.12, 0.5, 0.94],
            horizon: 30.0 * DAY,
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
        for sample in 0..self.samples {
            let dice = Dice::of(self.seed, u64::from(sample));
            Replay::new(self, state, policy, durations, dice).run(durations, history, &mut starts);
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

struct Replay<'a> {
    forecaster: &'a Forecaster,
    engine: Engine,
    dice: Dice,
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
        durations: &mut Durations,
        dice: Dice,
    ) -> Self {
        let engine = Engine::with_state(state.clone(), policy.fork(), false);
        let mut replay = Self {
            forecaster,
            engine,
            dice,
            scales: Vec::new(),
            next_id: u64::MAX,
            begin: state.now,
            arrived: None,
            open: BTreeSet::new(),
        };
        for slot in state.running() {
            let total = replay.draw(state.job(*slot), state.now, durations);
            replay.engine.set_truth(*slot, total);
        }
        for waiting in state.pending() {
            let total = replay.draw(state.job(waiting.slot), state.now, durations);
            replay.engine.set_truth(waiting.slot, total);
        }
        replay
    }

    /// A total duration for a job, given how far it is.
    fn draw(&mut self, job: &Job, now: Seconds, durations: &mut Durations) -> Seconds {
        let age = job.attained(now);
        if let Some(progress) = job.progress
            && job.run.is_some()
        {
            let error = (self.forecaster.report_sigma * self.dice.normal()).exp();
            return age + progress.left(age) * error;
        }
        let scale = self.scale(job.group);
        let total = durations
            .of(job.group)
            .quantile_after(age, self.dice.unit());
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
        let total = self.draw(&job, at, durations);
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
