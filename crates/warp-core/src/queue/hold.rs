//! The rule that bounds starvation. A job that has waited longer than `patience` is *overdue*. The
//! overdue job submitted first (within the highest priority that has one) gets a hold: a set of
//! nodes, chosen once, on which nobody of its priority or below starts until it has. So it starts
//! at the latest when the work that ran on those nodes at that moment has ended, and it waits at
//! most `patience` plus one such drain for every job that was in line before it.

use crate::estimate::Durations;

use super::job::Seconds;
use super::node_set::NodeSet;
use super::reserve::reserve;
use super::state::{Slot, State, Waiting};

/// The nodes kept for the job that is longest overdue.
#[derive(Clone, Debug)]
pub struct Hold {
    patience: Seconds,
    held: Option<Held>,
    /// Nobody in line is overdue before this.
    quiet_until: Seconds,
}

#[derive(Clone, Debug)]
struct Held {
    slot: Slot,
    id: u64,
    priority: i32,
    nodes: NodeSet,
}

impl Hold {
    pub fn new(patience: Seconds) -> Self {
        Self {
            patience,
            held: None,
            quiet_until: f64::NEG_INFINITY,
        }
    }

    /// Starts overdue work that fits, oldest first, and sees to it that the first that does not
    /// has its hold.
    pub fn update(&mut self, state: &mut State, durations: &mut Durations) {
        if self.held.is_none() && state.now < self.quiet_until {
            return;
        }
        loop {
            if let Some(held) = &self.held {
                let at = state.position(held.slot);
                let Some(index) = at.filter(|_| state.job(held.slot).id == held.id) else {
                    self.held = None;
                    continue;
                };
                if !state.try_start(index, None) {
                    return;
                }
                self.held = None;
            }
            let Some((index, waiting)) = self.longest_overdue(state) else {
                // Whoever joins the line later is overdue later.
                let since = state.pending().map(|w| state.job(w.slot).waiting_since);
                self.quiet_until = since.fold(state.now, f64::min) + self.patience;
                return;
            };
            if state.try_start(index, None) {
                continue;
            }
            let need = state.need(waiting.need).clone();
            let Some(found) = reserve(state, durations, &need, None) else {
                return;
            };
            self.held = Some(Held {
                slot: waiting.slot,
                id: state.job(waiting.slot).id,
                priority: waiting.priority,
                nodes: found.nodes,
            });
            return;
        }
    }

    fn longest_overdue(&self, state: &State) -> Option<(usize, Waiting)> {
        let overdue = |w: &Waiting| state.now - state.job(w.slot).waiting_since > self.patience;
        let line = state.pending().copied().enumerate();
        line.filter(|(_, w)| overdue(w)).min_by(|(_, a), (_, b)| {
            b.priority
                .cmp(&a.priority)
                .then(a.submit.total_cmp(&b.submit))
        })
    }

    /// The nodes a waiting job of that priority must keep off.
    pub fn against(&self, priority: i32) -> Option<&NodeSet> {
        self.held
            .as_ref()
            .filter(|held| priority <= held.priority)
            .map(|held| &held.nodes)
    }

    /// The job that holds nodes, if any.
    pub fn holder(&self) -> Option<Slot> {
        self.held.as_ref().map(|held| held.slot)
    }
}

#[cfg(test)]
mod tests;
