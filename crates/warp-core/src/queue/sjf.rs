//! `sjf`: shortest expected job first, whoever fits may start. Good for the mean, bad for the
//! long and the wide.

use crate::estimate::Durations;

use super::job::{Job, Seconds};
use super::state::State;
use super::{Policy, order};

#[derive(Clone, Copy, Debug, Default)]
pub struct Sjf;

impl Policy for Sjf {
    fn name(&self) -> &'static str {
        "sjf"
    }

    fn key(&self, job: &Job, now: Seconds, durations: &mut Durations) -> f64 {
        durations.of(job.group).mean_residual(job.attained(now))
    }

    fn pass(&mut self, state: &mut State, _durations: &mut Durations) {
        order::start_in_order(state, false, None);
    }

    fn fork(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }
}
