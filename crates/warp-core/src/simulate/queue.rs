//! A job list on a fleet under a queue policy: who waited how long, what was lost, how busy the
//! GPUs were, and how good the start-time estimates would have been. Plain data in, plain data
//! out; the same input and seed give the same result.

pub mod fleet;
pub mod probe;
pub mod report;
pub mod row;
pub mod trace;

use std::collections::BTreeMap;

use crate::estimate::dice::Dice;
use crate::estimate::{Arrival, Durations, Features, Forecaster, History};
use crate::queue::engine::{Engine, Event};
use crate::queue::job::Progress;
use crate::queue::pool::Impossible;
use crate::queue::{Checkpoint, Job, Need, Policy, Pool, Seconds, Shape};

pub use report::{Report, Spread};

/// One job of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// Line of the input, for messages.
    pub line: usize,
    pub submit: Seconds,
    pub duration: Seconds,
    pub shape: Shape,
    /// GPU types that will do; empty = any.
    pub types: Vec<String>,
    pub priority: i32,
    /// Whether it can be evicted, if the list says so.
    pub preemptible: Option<bool>,
    pub tenant: Option<String>,
    pub model: Option<String>,
    pub image: Option<String>,
}

/// How to run a list.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Share of the jobs that can be evicted, where the list does not say.
    pub preemptible: f64,
    pub checkpoint: Checkpoint,
    pub seed: u64,
    /// Error of the progress reports of running jobs (0.15 = ± 15 %); `None` = no reports.
    pub progress: Option<f64>,
    /// Jobs submitted in it are measured, the others only take part; `None` = all.
    pub window: Option<trace::Window>,
    /// How many start-time estimates to judge, and how they are made.
    pub probes: usize,
    /// Judge them half-way and late in the wait too.
    pub along: bool,
    pub forecaster: Forecaster,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            preemptible: 0.0,
            checkpoint: Checkpoint::default(),
            seed: 42,
            progress: None,
            window: None,
            probes: 0,
            along: false,
            forecaster: Forecaster::default(),
        }
    }
}

/// What became of one job.
#[derive(Clone, Debug)]
pub struct Fate {
    pub submit: Seconds,
    pub duration: Seconds,
    pub gpus: u32,
    pub first_start: Seconds,
    pub end: Seconds,
    pub evictions: u32,
}

/// A job that can never run on this fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub line: usize,
    pub reason: Impossible,
}

/// The raw result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub fates: Vec<Fate>,
    pub refused: Vec<Refused>,
    /// GPU-seconds lost to evictions (unsaved work and restarts).
    pub lost: f64,
    /// GPU-seconds GPUs were held, by hour since the first submission.
    pub busy: Vec<f64>,
    pub gpus: u64,
    /// When the first job was submitted.
    pub begin: Seconds,
    pub evictions: Vec<(Seconds, u64, u64)>,
    pub probes: Vec<probe::Scored>,
    /// First start by job, of those that started.
    pub starts: BTreeMap<u64, Seconds>,
    /// Largest number of jobs that waited at once.
    pub deepest: usize,
}

/// Runs `jobs` (in order of submission) on `pool`. `watch` is told how many jobs were submitted.
///
/// Estimates are judged on a random sample of the jobs that really wait, so the list is run once
/// to learn who they are and a second time to ask for their start times at the right moments.
pub fn run(
    jobs: &[Submission],
    pool: &Pool,
    policy: &dyn Policy,
    settings: &Settings,
    watch: &mut dyn FnMut(usize),
) -> Outcome {
    let once = Run::new(jobs, pool.clone(), policy.fork(), settings, Vec::new());
    let outcome = once.go(watch);
    let probes = probe::choose(&outcome.starts, jobs, settings);
    if probes.is_empty() {
        return outcome;
    }
    Run::new(jobs, pool.clone(), policy.fork(), settings, probes).go(watch)
}

/// A queue stopped in the middle of a run, with all that an estimate needs.
#[derive(Debug)]
pub struct Pause {
    pub engine: Engine,
    pub durations: Durations,
    pub history: History,
}

/// Runs `jobs` until `depth` of them wait at once; `None` if that never happens.
pub fn pause_at(
    jobs: &[Submission],
    pool: &Pool,
    policy: &dyn Policy,
    settings: &Settings,
    depth: usize,
) -> Option<Pause> {
    let mut run = Run::new(jobs, pool.clone(), policy.fork(), settings, Vec::new());
    run.engine.wait_until(run.begin);
    let mut next = 0;
    while next < jobs.len() {
        next = run.next_instant(next);
        if run.engine.state.pending().len() >= depth {
            return Some(Pause {
                engine: run.engine,
                durations: run.durations,
                history: run.history,
            });
        }
    }
    None
}

struct Run<'a> {
    jobs: &'a [Submission],
    settings: &'a Settings,
    engine: Engine,
    durations: Durations,
    /// Need numbers by shape and types; `Err` when the fleet can never hold it.
    needs: BTreeMap<(Shape, &'a [String]), Result<u32, Impossible>>,
    fates: Vec<Option<Fate>>,
    outcome: Outcome,
    begin: Seconds,
    history: History,
    probes: probe::Judge,
}

impl<'a> Run<'a> {
    fn new(
        jobs: &'a [Submission],
        pool: Pool,
        policy: Box<dyn Policy>,
        settings: &'a Settings,
        probes: Vec<probe::Probe>,
    ) -> Self {
        let gpus = pool.total();
        let begin = jobs.first().map_or(0.0, |job| job.submit);
        Self {
            jobs,
            settings,
            engine: Engine::new(pool, policy),
            durations: Durations::default(),
            needs: BTreeMap::new(),
            fates: vec![None; jobs.len()],
            outcome: Outcome {
                gpus,
                begin,
                ..Outcome::default()
            },
            begin,
            history: History::default(),
            probes: probe::Judge::new(settings.forecaster, probes),
        }
    }

    fn go(mut self, watch: &mut dyn FnMut(usize)) -> Outcome {
        self.engine.wait_until(self.begin);
        let mut next = 0;
        while next < self.jobs.len() {
            next = self.next_instant(next);
            self.probes
                .ask(&self.engine, &self.durations, &self.history);
            self.outcome.deepest = self.outcome.deepest.max(self.engine.state.pending().len());
            watch(next);
        }
        self.run_until(f64::INFINITY);
        self.outcome.lost = self.engine.state.lost();
        let measured = |at: Seconds| {
            self.settings
                .window
                .is_none_or(|window| window.contains(at))
        };
        let fates = self.fates.into_iter().flatten();
        self.outcome.fates = fates.filter(|fate| measured(fate.submit)).collect();
        self.outcome.probes = self.probes.finish();
        self.outcome
    }

    /// Runs up to the submission of job `next`, submits all of that instant and lets the policy
    /// act. Returns the job after them.
    fn next_instant(&mut self, mut next: usize) -> usize {
        let at = self.jobs[next].submit;
        self.run_until(at);
        self.pass_time(at);
        self.engine.wait_until(at);
        while next < self.jobs.len() && self.jobs[next].submit <= at {
            self.submit(next);
            next += 1;
        }
        self.engine.pass(&mut self.durations);
        self.settle();
        next
    }

    fn run_until(&mut self, limit: Seconds) {
        while let Some(at) = self.engine.next_event() {
            let question = self.probes.next().unwrap_or(f64::INFINITY);
            if question < at.min(limit) {
                self.pass_time(question);
                self.engine.wait_until(question);
                self.probes
                    .ask(&self.engine, &self.durations, &self.history);
                continue;
            }
            if at >= limit {
                return;
            }
            self.pass_time(at);
            self.engine.step(at, &mut self.durations);
            self.settle();
        }
    }

    fn submit(&mut self, index: usize) {
        let row = &self.jobs[index];
        let key = (row.shape, row.types.as_slice());
        if !self.needs.contains_key(&key) {
            let pool = self.engine.state.pool();
            let need = Need {
                shape: row.shape,
                accepts: pool.classes_named(&row.types),
            };
            let number = pool
                .possible(&need)
                .map(|()| self.engine.state.intern(need));
            self.needs.insert(key, number);
        }
        let need = match &self.needs[&key] {
            Ok(need) => *need,
            Err(reason) => {
                let refused = Refused {
                    line: row.line,
                    reason: reason.clone(),
                };
                self.outcome.refused.push(refused);
                return;
            }
        };
        let mut dice = Dice::of(self.settings.seed, index as u64);
        let (lot, error) = (dice.unit(), 2.0 * dice.unit() - 1.0);
        let evictable = row.preemptible.unwrap_or(lot < self.settings.preemptible);
        let gpus = row.shape.gpus();
        let group = self.durations.group(&Features {
            tenant: row.tenant.clone(),
            model: row.model.clone(),
            image: row.image.clone(),
            gpus,
        });
        let mut job = Job::new(index as u64, row.submit, need, gpus, group);
        job.priority = row.priority;
        job.checkpoint = evictable.then_some(self.settings.checkpoint);
        job.progress = self.settings.progress.map(|noise| {
            let pace = 1.0 + noise * error;
            Progress {
                total: row.duration * pace,
                pace,
            }
        });
        self.history.add(Arrival::of(&job));
        self.engine.submit(job, row.duration, &mut self.durations);
    }

    /// Takes note of what the engine did.
    fn settle(&mut self) {
        for event in self.engine.drain() {
            match event {
                Event::Started { at, id, .. } => {
                    if let std::collections::btree_map::Entry::Vacant(entry) =
                        self.outcome.starts.entry(id)
                    {
                        entry.insert(at);
                        let index = usize::try_from(id).unwrap_or(usize::MAX);
                        self.probes.started(id, at, at - self.jobs[index].submit);
                    }
                }
                Event::Evicted { at, id, by } => self.outcome.evictions.push((at, id, by)),
                Event::Finished { at, job, total } => {
                    let index = usize::try_from(job.id).unwrap_or(usize::MAX);
                    self.fates[index] = Some(Fate {
                        submit: job.submit,
                        duration: total,
                        gpus: job.gpus,
                        first_start: job.first_start.unwrap_or(at),
                        end: at,
                        evictions: job.evictions,
                    });
                }
            }
        }
    }

    /// Books the GPUs held since the last event into hours.
    fn pass_time(&mut self, to: Seconds) {
        let pool = self.engine.state.pool();
        let held = (pool.total() - pool.free()) as f64;
        let mut from = self.engine.state.now - self.begin;
        let to = to - self.begin;
        while from < to {
            let hour = report::whole(from / 3600.0);
            let stop = ((hour + 1) as f64 * 3600.0).min(to);
            if self.outcome.busy.len() <= hour {
                self.outcome.busy.resize(hour + 1, 0.0);
            }
            self.outcome.busy[hour] += held * (stop - from);
            from = stop;
        }
    }
}

#[cfg(test)]
mod tests;
