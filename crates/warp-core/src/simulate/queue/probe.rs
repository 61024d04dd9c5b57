//! Judges start-time estimates: asks for them at submission and along the wait, and compares with
//! what happened, beside two naive predictors that know the queue but not the policy.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::estimate::dice::Dice;
use crate::estimate::{Durations, Forecaster, History, StartEstimate};
use crate::queue::engine::Engine;
use crate::queue::{HOUR, MINUTE, Seconds};

use super::report::percentile;
use super::{Settings, Submission};

/// Waits shorter than this are not judged.
const SHORTEST: Seconds = MINUTE;

/// When in a wait the question is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    Submission,
    HalfWay,
    Late,
}

impl Moment {
    const ALL: [(Self, f64); 3] = [
        (Self::Submission, 0.0),
        (Self::HalfWay, 0.5),
        (Self::Late, 0.9),
    ];
}

/// A question to ask: when will that job start?
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    at: Seconds,
    id: u64,
    moment: Moment,
}

/// A question, its answers and the truth, all as remaining wait in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Scored {
    pub moment: Moment,
    pub actual: Seconds,
    pub low: Seconds,
    pub middle: Seconds,
    pub high: Seconds,
    /// Mean wait of the jobs started in the last hour.
    pub last_hour: Seconds,
    /// Expected GPU-time ahead in the queue over all GPUs.
    pub queue_service: Seconds,
}

/// A random sample of the jobs that waited, each asked about at submission, half-way and late.
pub fn choose(
    starts: &BTreeMap<u64, Seconds>,
    jobs: &[Submission],
    settings: &Settings,
) -> Vec<Probe> {
    let submit = |id: u64| {
        usize::try_from(id)
            .ok()
            .and_then(|i| jobs.get(i))
            .map(|j| j.submit)
    };
    let mut waited: Vec<(u64, Seconds, Seconds)> = starts
        .iter()
        .filter_map(|(id, start)| submit(*id).map(|submit| (*id, submit, start - submit)))
        .filter(|(_, submit, _)| {
            settings
                .window
                .is_none_or(|window| window.contains(*submit))
        })
        .filter(|(_, _, wait)| *wait > SHORTEST)
        .collect();
    Dice::of(settings.seed, u64::MAX).shuffle(&mut waited);
    let mut probes: Vec<Probe> = waited
        .iter()
        .take(settings.probes)
        .flat_map(|(id, submit, wait)| {
            Moment::ALL.map(|(moment, part)| Probe {
                at: submit + part * wait,
                id: *id,
                moment,
            })
        })
        .filter(|probe| settings.along || probe.moment == Moment::Submission)
        .collect();
    probes.sort_by(|a, b| b.at.total_cmp(&a.at).then(b.id.cmp(&a.id)));
    probes
}

/// Asks and keeps score.
#[derive(Debug)]
pub struct Judge {
    forecaster: Forecaster,
    /// Questions to come, the next one last.
    queue: Vec<Probe>,
    asked: Vec<(u64, Seconds, Scored)>,
    done: Vec<Scored>,
    /// Starts and waits of the last hour.
    recent: VecDeque<(Seconds, Seconds)>,
}

impl Judge {
    pub fn new(forecaster: Forecaster, queue: Vec<Probe>) -> Self {
        Self {
            forecaster,
            queue,
            asked: Vec::new(),
            done: Vec::new(),
            recent: VecDeque::new(),
        }
    }

    /// When the next question is due.
    pub fn next(&self) -> Option<Seconds> {
        self.queue.last().map(|probe| probe.at)
    }

    /// Asks everything that is due now.
    pub fn ask(&mut self, engine: &Engine, durations: &Durations, history: &History) {
        let now = engine.state.now;
        while let Some(probe) = self.queue.last().copied().filter(|probe| probe.at <= now) {
            self.queue.pop();
            let forecaster = Forecaster {
                seed: self.forecaster.seed ^ probe.id,
                ..self.forecaster
            };
            let wanted = |id| id == probe.id;
            let answers =
                forecaster.estimate(&engine.state, engine.policy(), durations, history, &wanted);
            if let Some(StartEstimate { low, middle, high }) = answers.get(&probe.id) {
                let scored = Scored {
                    moment: probe.moment,
                    actual: 0.0,
                    low: low - now,
                    middle: middle - now,
                    high: high - now,
                    last_hour: self.last_hour(now),
                    queue_service: queue_service(engine, durations, probe.id),
                };
                self.asked.push((probe.id, now, scored));
            }
        }
    }

    fn last_hour(&self, now: Seconds) -> Seconds {
        let waits: Vec<f64> = self
            .recent
            .iter()
            .filter(|(at, _)| *at > now - HOUR)
            .map(|(_, wait)| *wait)
            .collect();
        if waits.is_empty() {
            0.0
        } else {
            waits.iter().sum::<f64>() / waits.len() as f64
        }
    }

    /// A job started for the first time.
    pub fn started(&mut self, id: u64, at: Seconds, wait: Seconds) {
        self.recent.push_back((at, wait));
        while self
            .recent
            .front()
            .is_some_and(|(earlier, _)| *earlier < at - HOUR)
        {
            self.recent.pop_front();
        }
        let done = &mut self.done;
        self.asked.retain(|(asked, when, scored)| {
            if *asked == id {
                done.push(Scored {
                    actual: at - when,
                    ..*scored
                });
            }
            *asked != id
        });
    }

    pub fn finish(self) -> Vec<Scored> {
        self.done
    }
}

/// Expected GPU-seconds of everybody ahead in line, spread over all GPUs.
fn queue_service(engine: &Engine, durations: &Durations, id: u64) -> Seconds {
    let mut durations = durations.clone();
    let state = &engine.state;
    let mut ahead = 0.0;
    for waiting in state.pending() {
        let job = state.job(waiting.slot);
        if job.id == id {
            break;
        }
        ahead += durations.of(job.group).mean() * f64::from(job.gpus);
    }
    ahead / state.pool().total().max(1) as f64
}

/// Errors and coverage at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Accuracy {
    pub median_rel_error: f64,
    pub covered_by_80: f64,
    pub asked: usize,
    pub naive_last_hour: f64,
    pub naive_queue_service: f64,
}

impl Accuracy {
    fn at(scored: &[Scored], moment: Moment) -> Self {
        let here: Vec<&Scored> = scored.iter().filter(|s| s.moment == moment).collect();
        if here.is_empty() {
            return Self::default();
        }
        let error = |answer: fn(&Scored) -> f64| {
            let relative = |s: &&Scored| (answer(s) - s.actual).abs() / s.actual.max(1.0);
            let mut errors: Vec<f64> = here.iter().map(relative).collect();
            errors.sort_by(f64::total_cmp);
            percentile(&errors, 0.5)
        };
        let covered = here
            .iter()
            .filter(|s| s.low <= s.actual && s.actual <= s.high)
            .count();
        Self {
            median_rel_error: error(|s| s.middle),
            covered_by_80: covered as f64 / here.len() as f64,
            asked: here.len(),
            naive_last_hour: error(|s| s.last_hour),
            naive_queue_service: error(|s| s.queue_service),
        }
    }
}

/// How good the estimates were: at submission (flat), half-way and at nine tenths of the wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EtaFigures {
    #[serde(flatten)]
    pub at_submission: Accuracy,
    pub half_way: Accuracy,
    pub late: Accuracy,
}

impl EtaFigures {
    pub fn of(scored: &[Scored]) -> Self {
        Self {
            at_submission: Accuracy::at(scored, Moment::Submission),
            half_way: Accuracy::at(scored, Moment::HalfWay),
            late: Accuracy::at(scored, Moment::Late),
        }
    }
}
