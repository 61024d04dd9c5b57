//! Work of one kind that is submitted in one go: a sweep, a retried batch, a script in a loop. It
//! shares its fate far more than its group does, so what has become of some of it says how long
//! the rest will run. A burst is known from the times of submission alone, is shrunk towards its
//! group, and is forgotten when the last of it has ended. Only start-time estimates ask for it:
//! the order of the line does not depend on who was submitted together.

use std::collections::BTreeMap;

use super::distribution::{BINS, bin_of};
use super::durations::GroupId;

/// Submissions of a group further apart than this belong to different bursts, seconds.
const GAP: f64 = 120.0;
/// Observations of the group's opinion that a burst starts with.
const PULL: f64 = 4.0;

/// A burst takes no more than so many: somebody who never stops must not be judged by last week.
const LARGEST: u32 = 200;

/// One burst; numbers are not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BurstId(u64);

#[derive(Clone, Debug)]
struct Burst {
    /// Submitted and not ended.
    live: u32,
    size: u32,
    ended: [f64; BINS],
}

/// The bursts that have not ended.
#[derive(Clone, Debug, Default)]
pub struct Bursts {
    open: BTreeMap<BurstId, Burst>,
    /// By group: when work was last submitted, and the burst it joined.
    last: BTreeMap<GroupId, (f64, BurstId)>,
    count: u64,
}

impl Bursts {
    /// Work of a group was submitted at `at`, not before any earlier call for the group.
    pub fn join(&mut self, group: GroupId, at: f64) -> BurstId {
        let room = |id| self.open.get(id).is_some_and(|burst| burst.size < LARGEST);
        let last = self.last.get(&group);
        let id = last
            .filter(|(when, id)| at - when <= GAP && room(id))
            .map_or(BurstId(self.count), |(_, id)| *id);
        let burst = self.open.entry(id).or_insert_with(|| {
            self.count += 1;
            Burst {
                live: 0,
                size: 0,
                ended: [0.0; BINS],
            }
        });
        burst.live += 1;
        burst.size += 1;
        self.last.insert(group, (at, id));
        id
    }

    /// Work of a burst ended after running for `duration`.
    pub fn leave(&mut self, id: BurstId, duration: f64) {
        let Some(burst) = self.open.get_mut(&id) else {
            return;
        };
        burst.live = burst.live.saturating_sub(1);
        burst.ended[bin_of(duration.max(0.0))] += 1.0;
        if burst.live == 0 {
            self.open.remove(&id);
        }
    }

    /// Moves the `hazard` of the group to what is known of the burst: what ended, and, in
    /// `reached`, how much of what still runs has got as far as each bin.
    pub fn refine(&self, id: BurstId, reached: &[f64; BINS], hazard: &mut [f64; BINS]) {
        let Some(burst) = self.open.get(&id) else {
            return;
        };
        let mut beyond = 0.0;
        for (bin, hazard) in hazard.iter_mut().enumerate().rev() {
            let ended = burst.ended[bin];
            // Work that is inside a bin has been at risk for half of it.
            let at_risk = beyond + ended + 0.5 * reached[bin];
            *hazard = (ended + PULL * *hazard) / (at_risk + PULL);
            beyond += ended + reached[bin];
        }
    }
}

#[cfg(test)]
mod tests;
