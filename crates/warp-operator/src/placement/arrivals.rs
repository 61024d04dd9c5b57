//! The order in which the watch showed workloads: creation times have whole seconds, and within one the first to come
//! goes first. A workload that waits carries its arrival in its status, so that others can tell the order and a restart
//! keeps it; one that has never waited comes by name after a restart.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// When workloads came, by uid; no two at the same time.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    last: Timestamp,
    times: BTreeMap<String, Timestamp>,
}

impl Arrivals {
    /// Notes a workload that is new: when its status says, else now. What it says may be anybody's to write: nobody comes
    /// after now, and those that come later need not wait for such a time.
    pub(crate) fn note(&self, uid: &str, said: Option<Timestamp>, now: Timestamp) {
        let mut seen = self.0.lock();
        if seen.times.contains_key(uid) {
            return;
        }
        let now = micros(now);
        let next = seen.last.saturating_add(SignedDuration::from_micros(1));
        let next = next.unwrap_or(Timestamp::MAX);
        let came = match said {
            Some(said) if said <= now.max(seen.last) => said,
            _ => now.max(next),
        };
        seen.last = seen.last.max(came);
        seen.times.insert(uid.to_owned(), came);
    }

    /// When it came.
    pub(crate) fn of(&self, uid: &str) -> Option<Timestamp> {
        self.0.lock().times.get(uid).copied()
    }

    /// When the last one came.
    pub(super) fn last(&self) -> Timestamp {
        self.0.lock().last
    }

    /// Forgets one that is finished or gone.
    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().times.remove(uid);
    }

    /// Forgets workloads that are finished or gone: those that came until `last` and are not among `uids`. What came
    /// later may not be in a list that was made before.
    pub(super) fn keep_only(&self, uids: &BTreeSet<String>, last: Timestamp) {
        let keep = |uid: &String, came: &mut Timestamp| *came > last || uids.contains(uid);
        self.0.lock().times.retain(keep);
    }
}

/// As fine as a status can say it.
fn micros(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    #[test]
    fn one_that_comes_while_a_pass_lists_the_others_keeps_its_turn() {
        let arrivals = Arrivals::default();
        arrivals.note("first", None, NOW);
        arrivals.note("gone", None, NOW);
        let last = arrivals.last();
        let listed = BTreeSet::from(["first".to_owned()]);
        arrivals.note("meanwhile", None, NOW);
        arrivals.keep_only(&listed, last);
        arrivals.note("later", None, NOW);
        assert!(arrivals.of("first") < arrivals.of("meanwhile"));
        assert!(arrivals.of("meanwhile") < arrivals.of("later"));
        assert_eq!(arrivals.of("gone"), None);
    }

    #[test]
    fn what_a_status_says_holds_and_the_clock_may_go_back() {
        let arrivals = Arrivals::default();
        let said = NOW + SignedDuration::from_secs(9);
        arrivals.note("waited", Some(said), said);
        arrivals.note("new", None, NOW);
        assert_eq!(arrivals.of("waited"), Some(said));
        assert!(arrivals.of("new") > Some(said));
        arrivals.note("waited", None, NOW);
        assert_eq!(arrivals.of("waited"), Some(said), "it came once");
    }

    #[test]
    fn whoever_claims_to_come_from_the_future_came_now_and_holds_nobody_up() {
        for said in [Timestamp::MAX, NOW + SignedDuration::from_hours(24)] {
            let arrivals = Arrivals::default();
            arrivals.note("honest", None, NOW);
            arrivals.note("liar", Some(said), NOW);
            arrivals.note("later", None, NOW);
            let soon = NOW + SignedDuration::from_secs(1);
            assert!(arrivals.of("honest") < arrivals.of("liar"));
            assert!(arrivals.of("liar") < arrivals.of("later"));
            assert!(arrivals.of("later") < Some(soon));
        }
    }
}
