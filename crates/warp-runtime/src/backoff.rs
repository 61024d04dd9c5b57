//! How long a key whose pass failed waits for its next one. It must not decide what a failure means.

use std::time::Duration;

use crate::fingerprint;

/// How the work on a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Done,
    /// No answer, or one that promises better times.
    Failed,
    /// The server said no, and will say it again until something changes.
    Refused,
    /// The server asked to be left alone for a while.
    PutOff,
    /// Another writer was first. The newer version is usually on its way and brings the key back at once.
    Conflict,
    /// The pass panicked: a defect, and one object's.
    Panicked,
}

/// The waits of one kind of controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first_failed: Duration,
    first_refused: Duration,
    longest: Duration,
    /// Being put off counts as a refusal rather than as a failure.
    put_off_is_refusal: bool,
    /// Waits after conflicts in a row; none treats a conflict as a failure.
    conflicts: &'static [Duration],
    panicked: Option<Duration>,
    /// Up to a tenth more, so that many objects that failed together do not come back together.
    jitter: bool,
}

impl Backoff {
    /// Quick to come back, as the controllers of kube-controller-manager are: from 5 ms to a minute, refusals from 100 ms.
    pub const QUICK: Self = Self {
        first_failed: Duration::from_millis(5),
        first_refused: Duration::from_millis(100),
        longest: Duration::from_mins(1),
        put_off_is_refusal: true,
        conflicts: &[],
        panicked: None,
        jitter: false,
    };

    /// Easy on a cluster that is shared: from one second to about four minutes, refusals from three seconds.
    pub const CALM: Self = Self {
        first_failed: Duration::from_secs(1),
        first_refused: Duration::from_secs(3),
        longest: Duration::from_secs(256),
        put_off_is_refusal: false,
        conflicts: &[
            Duration::from_millis(50),
            Duration::from_secs(2),
            Duration::from_mins(1),
        ],
        panicked: Some(Duration::from_mins(1)),
        jitter: true,
    };

    /// How long to wait after this end and those before it; `name` spreads the jitter.
    pub(crate) fn delay(&self, end: End, failures: &mut Failures, name: &str) -> Duration {
        let is_refusal = match end {
            End::Refused => true,
            End::PutOff => self.put_off_is_refusal,
            _ => false,
        };
        let base = match end {
            End::Done => return Duration::ZERO,
            End::Conflict if !self.conflicts.is_empty() => {
                let wait = self.conflicts[failures.conflicts.min(self.conflicts.len() - 1)];
                failures.conflicts += 1;
                return wait;
            }
            End::Panicked if self.panicked.is_some() => {
                return self.panicked.unwrap_or_default();
            }
            _ if is_refusal => self
                .first_refused
                .saturating_mul(3_u32.saturating_pow(failures.refused.min(10))),
            _ => self
                .first_failed
                .saturating_mul(1 << failures.failed.min(20)),
        };
        let base = base.min(self.longest);
        let errors = failures.failed + failures.refused;
        if is_refusal {
            failures.refused += 1;
        } else {
            failures.failed += 1;
        }
        if !self.jitter {
            return base;
        }
        let dice = fingerprint::of(&[name, &errors.to_string()]) % 1000;
        base + base.mul_f64(dice as f64 / 10_000.0)
    }
}

/// Failures in a row of one key. Each sort is counted by itself: one refusal after a few requests without an answer says
/// nothing about how long the server will refuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failures {
    failed: u32,
    refused: u32,
    conflicts: usize,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// How often an object is tried within `time`, each try ending so.
    fn tries(end: End, time: Duration) -> usize {
        let mut failures = Failures::default();
        let mut spent = Duration::ZERO;
        let waits = std::iter::repeat_with(|| Backoff::CALM.delay(end, &mut failures, "w"));
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
        assert_eq!(tries(End::Refused, time), 4);
        assert_eq!(tries(End::Failed, time), 6);
    }

    #[test]
    fn a_first_refusal_after_some_failures_waits_no_longer_than_any_other_first() {
        let mut failures = Failures::default();
        for _ in 0..5 {
            Backoff::CALM.delay(End::Failed, &mut failures, "w");
        }
        let wait = Backoff::CALM.delay(End::Refused, &mut failures, "w");
        assert!(wait < Duration::from_secs(4), "{wait:?}");
    }

    #[test]
    fn a_conflict_is_looked_at_soon_and_then_seldom() {
        let mut failures = Failures::default();
        let waits: Vec<_> = (0..4)
            .map(|_| {
                Backoff::CALM
                    .delay(End::Conflict, &mut failures, "w")
                    .as_millis()
            })
            .collect();
        assert_eq!(waits, [50, 2_000, 60_000, 60_000]);
    }

    proptest! {
        #[test]
        fn every_wait_is_between_the_first_and_the_longest(
            ends in proptest::collection::vec(prop_oneof![Just(End::Refused), Just(End::Failed)], 1..60),
        ) {
            for backoff in [Backoff::CALM, Backoff::QUICK] {
                let mut failures = Failures::default();
                for end in &ends {
                    let wait = backoff.delay(*end, &mut failures, "w");
                    prop_assert!(wait >= backoff.first_failed);
                    prop_assert!(wait <= backoff.longest + backoff.longest / 10);
                }
            }
        }
    }
}
