//! `easy`: in order of submission; the first that does not fit gets a reservation, and others may
//! start if they do not stand in its way.

use crate::estimate::Durations;

use super::job::{Job, Seconds};
use super::state::State;
use super::{Policy, reserve};

#[derive(Clone, Copy, Debug, Default)]
pub struct Easy;

impl Policy for Easy {
    fn name(&self) -> &'static str {
        "easy"
    }

    fn key(&self, job: &Job, _now: Seconds, _durations: &mut Durations) -> f64 {
        job.submit
    }

    fn pass(&mut self, state: &mut State, durations: &mut Durations) {
        reserve::backfill(state, durations, None);
    }

    fn fork(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }
}
