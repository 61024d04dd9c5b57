//! `las`: least attained service, in GPU-seconds, with eviction of checkpointed work that has had
//! far more. Knows nothing about durations.

use crate::estimate::Durations;
use crate::preempt::Terms;

use super::job::{Job, Seconds};
use super::state::State;
use super::warp::{Rules, preemptive_pass};
use super::{HOUR, MINUTE, Policy};

#[derive(Clone, Debug)]
pub struct Las {
    terms: Terms,
    ranked_at: Seconds,
}

impl Default for Las {
    fn default() -> Self {
        Self {
            terms: Terms {
                factor: 10.0,
                min_run: 2.0 * HOUR,
            },
            ranked_at: f64::NEG_INFINITY,
        }
    }
}

const RERANK_EVERY: Seconds = 5.0 * MINUTE;

impl Las {
    fn rules(&self) -> Rules<'_> {
        Rules {
            terms: self.terms,
            may_evict_after: 10.0 * MINUTE,
            urgent: None,
            hold: None,
        }
    }
}

impl Policy for Las {
    fn name(&self) -> &'static str {
        "las"
    }

    fn key(&self, job: &Job, now: Seconds, _durations: &mut Durations) -> f64 {
        f64::from(job.gpus) * job.attained(now).max(MINUTE)
    }

    fn tick(&self) -> Option<Seconds> {
        Some(MINUTE)
    }

    fn evicts_equals(&self, job: &Job, now: Seconds) -> Option<Terms> {
        let (level, terms) = self.rules().terms_of(job, now);
        (level > 0).then_some(terms)
    }

    fn pass(&mut self, state: &mut State, durations: &mut Durations) {
        let rank = state.now - self.ranked_at >= RERANK_EVERY;
        if rank {
            self.ranked_at = state.now;
        }
        preemptive_pass(self, state, durations, &self.rules(), rank);
    }

    fn fork(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}
