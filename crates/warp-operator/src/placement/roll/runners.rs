//! What runs and could make room, and who of it has run for long enough. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::Whose;
use crate::placement::Runner;

/// What runs and could make room.
#[derive(Debug, Default)]
pub(super) struct Runners {
    pub(super) all: BTreeMap<Whose, (Arc<dyn Runner>, bool)>,
    /// Those that have not run for long enough yet.
    young: BTreeSet<(Timestamp, Whose)>,
    /// Changes when somebody may be evicted who could not before, or the other way round.
    pub(super) print: u64,
    /// GPUs of all, and of those that save what they do.
    pub(super) gpus: u64,
    pub(super) evictable: u64,
    /// The same as a list; made when it is asked for.
    pub(super) list: Option<Arc<Vec<Arc<dyn Runner>>>>,
}

impl Runners {
    pub(super) fn remove(&mut self, who: &Whose, min_run: SignedDuration) {
        if let Some((runner, due)) = self.all.remove(who) {
            self.print = self.print.wrapping_sub(runner.runs().print(due));
            self.gpus -= runner.runs().gpus;
            self.evictable -= runner.runs().evictable_gpus();
            if let Some(at) = runner.runs().due(min_run) {
                self.young.remove(&(at, who.clone()));
            }
            self.list = None;
        }
    }

    pub(super) fn add(
        &mut self,
        who: &Whose,
        runner: Arc<dyn Runner>,
        min_run: SignedDuration,
        now: Timestamp,
    ) {
        let at = runner.runs().due(min_run).filter(|at| *at > now);
        self.young.extend(at.map(|at| (at, who.clone())));
        self.print = self.print.wrapping_add(runner.runs().print(at.is_none()));
        self.gpus += runner.runs().gpus;
        self.evictable += runner.runs().evictable_gpus();
        self.all.insert(who.clone(), (runner, at.is_none()));
        self.list = None;
    }

    /// Those that have run for long enough by now may be evicted.
    pub(super) fn ripen(&mut self, now: Timestamp) {
        while let Some((at, _)) = self.young.first()
            && *at <= now
            && let Some((_, who)) = self.young.pop_first()
        {
            if let Some((runner, due)) = self.all.get_mut(&who) {
                let runs = runner.runs();
                self.print = self.print.wrapping_sub(runs.print(*due));
                self.print = self.print.wrapping_add(runs.print(true));
                *due = true;
            }
        }
    }
}
