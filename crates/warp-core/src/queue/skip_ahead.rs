//! `skipAhead`: in order of submission, but whoever fits may start (what most clusters do). Wide
//! work starves behind narrow work.

use crate::estimate::Durations;

use super::job::{Job, Seconds};
use super::state::State;
use super::{Policy, order};

#[derive(Clone, Copy, Debug, Default)]
pub struct SkipAhead;

impl Policy for SkipAhead {
    fn name(&self) -> &'static str {
        "skipAhead"
    }

    fn key(&self, job: &Job, _now: Seconds, _durations: &mut Durations) -> f64 {
        job.submit
    }

    fn pass(&mut self, state: &mut State, _durations: &mut Durations) {
        order::start_in_order(state, false, None);
    }

    fn fork(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }
}
