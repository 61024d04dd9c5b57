//! How long an object whose pass failed waits for its next one.
//!
//! Owns: the count of failures in a row per object. Must not decide what a failure means for it.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use warp_core::random::Fingerprint;

use crate::apply::ApplyError;
use crate::cache::Key;

/// Waits after conflicts in a row. The newer version is usually on its way and brings the key back at
/// once; until it is here the same write is refused again, so there is no point in trying often.
const CONFLICTS: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_secs(2),
    Duration::from_mins(1),
];
/// Longest wait before jitter.
const LONGEST: Duration = Duration::from_secs(256);

/// Why a pass failed, as far as it decides when to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Somebody else was first.
    Conflict,
    /// The server said no, and will say it again until somebody changes something.
    Refused,
    /// No answer, or one that promises better times.
    Failed,
}

impl Kind {
    fn of(error: &ApplyError) -> Self {
        if error.is_conflict() {
            return Self::Conflict;
        }
        match error.status().map(|status| status.code) {
            Some(429) => Self::Failed,
            Some(400..500) => Self::Refused,
            _ => Self::Failed,
        }
    }
}

/// Consecutive failures per object.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<BTreeMap<Key, Count>>);

#[derive(Debug, Default)]
struct Count {
    errors: u32,
    conflicts: usize,
}

impl Failures {
    pub(super) fn clear(&self, key: &Key) {
        self.0.lock().remove(key);
    }

    /// How long to wait after this failure and those before it.
    pub(super) fn backoff(&self, key: &Key, error: &ApplyError) -> Duration {
        self.wait(key, Kind::of(error))
    }

    /// From one second to about four minutes, twice as long each time; when the server said no from
    /// three seconds and three times as long. With up to a tenth of jitter.
    fn wait(&self, key: &Key, kind: Kind) -> Duration {
        let mut failures = self.0.lock();
        let count = failures.entry(key.clone()).or_default();
        let seconds = match kind {
            Kind::Conflict => {
                let wait = CONFLICTS[count.conflicts.min(CONFLICTS.len() - 1)];
                count.conflicts += 1;
                return wait;
            }
            Kind::Refused => 3_u64.saturating_pow(count.errors + 1),
            Kind::Failed => 2_u64.saturating_pow(count.errors),
        };
        let base = Duration::from_secs(seconds).min(LONGEST);
        let dice = Fingerprint::default()
            .text(&key.name)
            .word(u64::from(count.errors))
            .get()
            % 1000;
        count.errors += 1;
        base + base.mul_f64(dice as f64 / 10_000.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> Key {
        Key {
            namespace: "default".to_owned(),
            name: "w".to_owned(),
        }
    }

    /// How often an object is tried within `time`, each try failing so.
    fn tries(kind: Kind, time: Duration) -> usize {
        let failures = Failures::default();
        let mut spent = Duration::ZERO;
        let waits = std::iter::repeat_with(|| failures.wait(&key(), kind));
        1 + waits
            .take_while(|wait| {
                spent += *wait;
                spent < time
            })
            .count()
    }

    #[test]
    fn what_the_server_refuses_is_tried_less_often_than_what_it_failed_to_do() {
        let time = Duration::from_secs(45);
        assert_eq!(tries(Kind::Refused, time), 4);
        assert_eq!(tries(Kind::Failed, time), 6);
    }

    #[test]
    fn a_success_begins_afresh() {
        let failures = Failures::default();
        for _ in 0..5 {
            failures.wait(&key(), Kind::Failed);
        }
        failures.clear(&key());
        assert!(failures.wait(&key(), Kind::Failed) < Duration::from_secs(2));
    }

    #[test]
    fn only_a_refusal_is_a_refusal() {
        let kind = |code: u16| {
            let status = kube::core::Status::failure("", "").with_code(code);
            Kind::of(&ApplyError::Refused {
                verb: "patch",
                resource: String::new(),
                name: String::new(),
                source: Box::new(kube::Error::Api(Box::new(status))),
            })
        };
        assert_eq!(kind(403), Kind::Refused);
        assert_eq!(kind(422), Kind::Refused);
        assert_eq!(kind(409), Kind::Conflict);
        assert_eq!(kind(429), Kind::Failed);
        assert_eq!(kind(503), Kind::Failed);
    }

    proptest! {
        #[test]
        fn every_wait_is_between_a_second_and_the_longest(
            kinds in proptest::collection::vec(prop_oneof![Just(Kind::Refused), Just(Kind::Failed)], 1..60),
        ) {
            let failures = Failures::default();
            for kind in kinds {
                let wait = failures.wait(&key(), kind);
                prop_assert!(wait >= Duration::from_secs(1));
                prop_assert!(wait <= LONGEST + LONGEST / 10);
            }
        }
    }
}
