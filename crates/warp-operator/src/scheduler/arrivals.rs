//! The order in which the watch showed workloads: creation times have whole seconds, and within one the
//! first to come goes first. Kept in memory only; the first list after a start comes by name.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

/// Arrival numbers by workload uid.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    next: u64,
    numbers: BTreeMap<String, u64>,
}

impl Arrivals {
    /// Numbers a workload that is new.
    pub(crate) fn note(&self, uid: &str) {
        let mut seen = self.0.lock();
        if !seen.numbers.contains_key(uid) {
            let number = seen.next;
            seen.next += 1;
            seen.numbers.insert(uid.to_owned(), number);
        }
    }

    /// Its number; one that never came is last.
    pub(super) fn of(&self, uid: &str) -> u64 {
        let seen = self.0.lock();
        seen.numbers.get(uid).copied().unwrap_or(u64::MAX)
    }

    /// Forgets workloads that are finished or gone.
    pub(super) fn keep_only(&self, uids: &BTreeSet<String>) {
        self.0.lock().numbers.retain(|uid, _| uids.contains(uid));
    }
}
