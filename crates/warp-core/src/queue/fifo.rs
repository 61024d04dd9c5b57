//! `fifo`: strictly in order of submission; one that does not fit stops everybody behind it.

use crate::estimate::Durations;

use super::job::{Job, Seconds};
use super::state::State;
use super::{Policy, order};

#[derive(Clone, Copy, Debug, Default)]
pub struct Fifo;

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn key(&self, job: &Job, _now: Seconds, _durations: &mut Durations) -> f64 {
        job.submit
    }

    fn pass(&mut self, state: &mut State, _durations: &mut Durations) {
        order::start_in_order(state, true, None);
    }

    fn fork(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }
}
