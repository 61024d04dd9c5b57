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

    /// The number the next workload gets.
    pub(super) fn next(&self) -> u64 {
        self.0.lock().next
    }

    /// Forgets workloads that are finished or gone: those that came before `since` and are not among `uids`. What came
    /// later may not be in a list that was made before.
    pub(super) fn keep_only(&self, uids: &BTreeSet<String>, since: u64) {
        let keep = |uid: &String, number: &mut u64| *number >= since || uids.contains(uid);
        self.0.lock().numbers.retain(keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_comes_while_a_pass_lists_the_others_keeps_its_number() {
        let arrivals = Arrivals::default();
        arrivals.note("first");
        arrivals.note("gone");
        let since = arrivals.next();
        let listed = BTreeSet::from(["first".to_owned()]);
        arrivals.note("meanwhile");
        arrivals.keep_only(&listed, since);
        arrivals.note("later");
        assert!(arrivals.of("first") < arrivals.of("meanwhile"));
        assert!(arrivals.of("meanwhile") < arrivals.of("later"));
        assert_eq!(arrivals.of("gone"), u64::MAX);
    }
}
