//! Objects whose status another writer changes too: a second operator that still believes to lead, a controller with
//! other ideas, a person.
//!
//! Two that correct each other at once would do so as fast as the API server answers. What we wrote is remembered, and
//! a status that is no longer it is corrected later each time. It never holds back the first write under a
//! name, nor one to an object only we write.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::Value;

use crate::cache::Key;
use crate::fingerprint;
use crate::kind::Kind;

/// How long the first correction waits; each further one twice as long, up to the longest.
const FIRST_CORRECTION: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(1);
/// An object left alone for so long is written by us alone again.
const CALM: SignedDuration = SignedDuration::from_mins(10);
/// Objects remembered; beyond it all are forgotten, which costs one correction without a wait.
const REMEMBERED: usize = 65_536;

type Object = (Kind, Key, &'static str);

#[derive(Debug, Default)]
pub(super) struct Contests(Mutex<BTreeMap<Object, Contest>>);

#[derive(Debug)]
struct Contest {
    /// The status we wrote last.
    ours: u64,
    /// Corrections so far, and until when the last one had or has to wait.
    corrections: u32,
    waits: bool,
    until: Timestamp,
}

impl Contests {
    /// Until when a correction of the status an object has must wait; none when it may be written.
    pub(super) fn hold(
        &self,
        object: &Object,
        theirs: &Value,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut contests = self.0.lock();
        let contest = contests.get_mut(object)?;
        if contest.ours == print(theirs) {
            return None;
        }
        if contest.waits {
            return (now < contest.until).then_some(contest.until);
        }
        if now.duration_since(contest.until) > CALM {
            contest.corrections = 0;
        }
        let wait = (FIRST_CORRECTION * (1 << contest.corrections.min(6))).min(LONGEST);
        contest.corrections += 1;
        contest.waits = true;
        contest.until = now + wait;
        Some(contest.until)
    }

    /// Remembers what the status is after our write.
    pub(super) fn wrote(&self, object: Object, ours: &Value) {
        let ours = print(ours);
        let mut contests = self.0.lock();
        if contests.len() >= REMEMBERED {
            contests.clear();
        }
        let contest = contests.entry(object).or_insert(Contest {
            ours,
            corrections: 0,
            waits: false,
            until: Timestamp::MIN,
        });
        contest.ours = ours;
        contest.waits = false;
    }

    /// The object is gone.
    pub(super) fn forget(&self, kind: &Kind, key: &Key) {
        self.0
            .lock()
            .retain(|(known, at, _), _| known != kind || at != key);
    }
}

fn print(status: &Value) -> u64 {
    fingerprint::of(&[&status.to_string()])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("small number")
    }

    fn object() -> Object {
        let kind = Kind::of::<k8s_openapi::api::core::v1::Pod>();
        (kind, Key::new("default", "w"), "manager")
    }

    /// How long a correction of a foreign status at `second` waits; it is made when it may be.
    fn corrected(contests: &Contests, second: i64) -> i64 {
        let theirs = json!({"phase": "Scheduling"});
        let until = contests.hold(&object(), &theirs, at(second));
        let until = until.map_or(second, Timestamp::as_second);
        assert_eq!(contests.hold(&object(), &theirs, at(until)), None);
        contests.wrote(object(), &json!({"phase": "Running"}));
        until - second
    }

    #[test]
    fn a_status_only_we_write_never_waits() {
        let contests = Contests::default();
        let mut status = Value::Null;
        for count in 0..50 {
            assert_eq!(contests.hold(&object(), &status, at(0)), None);
            status = json!({ "count": count });
            contests.wrote(object(), &status);
        }
    }

    #[test]
    fn a_status_another_writer_keeps_changing_is_corrected_later_each_time() {
        let contests = Contests::default();
        let waits: Vec<i64> = (0..9)
            .map(|round| corrected(&contests, 100 * round))
            .collect();
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn a_writer_that_left_it_alone_for_long_is_answered_soon_again() {
        let contests = Contests::default();
        for round in 0..5 {
            corrected(&contests, 100 * round);
        }
        assert_eq!(corrected(&contests, 10_000), 1);
    }

    #[test]
    fn an_object_that_is_gone_is_forgotten() {
        let contests = Contests::default();
        corrected(&contests, 0);
        let (kind, key, _) = object();
        contests.forget(&kind, &key);
        assert!(contests.0.lock().is_empty());
    }
}
