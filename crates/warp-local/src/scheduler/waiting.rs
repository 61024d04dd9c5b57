//! Pods that wait for a place: those to try now, by priority, and those that failed and wait for a reason to try again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::informer::Key;

const FIRST_DELAY: Duration = Duration::from_secs(1);
const LAST_DELAY: Duration = Duration::from_secs(10);
/// A pod nothing has happened to is tried again after this time all the same.
const FORGOTTEN: Duration = Duration::from_mins(5);

/// Higher priority first, then who came first.
type Rank = (std::cmp::Reverse<i32>, u64);

#[derive(Debug)]
struct Entry {
    rank: Rank,
    attempts: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Active,
    /// Tried again at this time.
    Backoff(Instant),
    /// Failed at this time; waits for an event.
    Parked(Instant),
    /// Being tried or bound.
    Taken,
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    entries: BTreeMap<Key, Entry>,
    active: BTreeSet<(Rank, Key)>,
    timers: BTreeSet<(Instant, Key)>,
    serial: u64,
}

impl Waiting {
    pub(super) fn add(&mut self, key: &Key, priority: i32) {
        if self.entries.contains_key(key) {
            return;
        }
        self.serial += 1;
        let rank = (std::cmp::Reverse(priority), self.serial);
        self.entries.insert(
            key.clone(),
            Entry {
                rank,
                attempts: 0,
                state: State::Active,
            },
        );
        self.active.insert((rank, key.clone()));
    }

    pub(super) fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.leave(key, entry.rank, entry.state);
        }
    }

    fn leave(&mut self, key: &Key, rank: Rank, state: State) {
        match state {
            State::Active => {
                self.active.remove(&(rank, key.clone()));
            }
            State::Backoff(at) => {
                self.timers.remove(&(at, key.clone()));
            }
            State::Parked(at) => {
                self.timers.remove(&(at + FORGOTTEN, key.clone()));
            }
            State::Taken => {}
        }
    }

    fn enter(&mut self, key: &Key, state: State) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let (rank, old) = (entry.rank, entry.state);
        entry.state = state;
        self.leave(key, rank, old);
        match state {
            State::Active => {
                self.active.insert((rank, key.clone()));
            }
            State::Backoff(at) => {
                self.timers.insert((at, key.clone()));
            }
            State::Parked(at) => {
                self.timers.insert((at + FORGOTTEN, key.clone()));
            }
            State::Taken => {}
        }
    }

    /// The next pod to try.
    pub(super) fn take(&mut self) -> Option<Key> {
        let key = self.active.first()?.1.clone();
        self.enter(&key, State::Taken);
        Some(key)
    }

    /// There was no place for it: it waits until something happens.
    pub(super) fn park(&mut self, key: &Key, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.attempts += 1;
        }
        self.enter(key, State::Parked(now));
    }

    /// It failed for a passing reason.
    pub(super) fn retry(&mut self, key: &Key, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.attempts += 1;
        let delay = delay(entry.attempts);
        self.enter(key, State::Backoff(now + delay));
    }

    /// A write about it failed: if it still waits, it is tried again soon and not only when something happens.
    pub(super) fn unsaid(&mut self, key: &Key, now: Instant) {
        let Some(entry) = self.entries.get(key) else {
            return;
        };
        if matches!(entry.state, State::Parked(_)) {
            let delay = delay(entry.attempts);
            self.enter(key, State::Backoff(now + delay));
        }
    }

    /// Something happened that may make room: whoever waits is tried again, not sooner than its delay allows.
    pub(super) fn stir(&mut self, now: Instant) {
        let parked: Vec<_> = self
            .entries
            .iter()
            .filter_map(|(key, entry)| match entry.state {
                State::Parked(since) => Some((key.clone(), since + delay(entry.attempts))),
                _ => None,
            })
            .collect();
        for (key, at) in parked {
            self.enter(
                &key,
                if at <= now {
                    State::Active
                } else {
                    State::Backoff(at)
                },
            );
        }
    }

    /// One pod changed itself: it is tried now.
    pub(super) fn wake(&mut self, key: &Key) {
        if self
            .entries
            .get(key)
            .is_some_and(|entry| entry.state != State::Taken)
        {
            self.enter(key, State::Active);
        }
    }

    /// Moves pods whose time has come; when the next one's comes.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Instant> {
        while let Some((at, key)) = self.timers.first().cloned() {
            if at > now {
                return Some(at);
            }
            self.enter(&key, State::Active);
        }
        None
    }

    pub(super) fn has_parked(&self) -> bool {
        !self.timers.is_empty()
    }
}

fn delay(attempts: u32) -> Duration {
    FIRST_DELAY
        .saturating_mul(1 << attempts.saturating_sub(1).min(8))
        .min(LAST_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn higher_priority_goes_first_and_failures_wait_for_an_event() {
        let mut waiting = Waiting::default();
        let (low, high) = (Key::new("n", "low"), Key::new("n", "high"));
        waiting.add(&low, 0);
        waiting.add(&high, 10);
        assert_eq!(waiting.take(), Some(high.clone()));
        assert_eq!(waiting.take(), Some(low.clone()));
        let start = Instant::now();
        waiting.park(&high, start);
        assert_eq!(waiting.take(), None);
        waiting.stir(start);
        assert_eq!(waiting.tick(start), Some(start + FIRST_DELAY));
        waiting.tick(start + FIRST_DELAY);
        assert_eq!(waiting.take(), Some(high));
        waiting.remove(&low);
        assert!(!waiting.has_parked());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_write_brings_back_a_pod_that_waits_and_no_other() {
        let mut waiting = Waiting::default();
        let key = Key::new("n", "pod");
        let start = Instant::now();
        waiting.unsaid(&key, start);
        waiting.add(&key, 0);
        assert_eq!(waiting.take(), Some(key.clone()));
        // Being bound meanwhile: a second attempt would place it twice.
        waiting.unsaid(&key, start);
        assert_eq!(waiting.tick(start + FORGOTTEN), None);
        assert_eq!(waiting.take(), None);
        waiting.park(&key, start);
        assert_eq!(waiting.tick(start), Some(start + FORGOTTEN));
        waiting.unsaid(&key, start);
        assert_eq!(waiting.tick(start), Some(start + FIRST_DELAY));
        waiting.tick(start + FIRST_DELAY);
        assert_eq!(waiting.take(), Some(key));
    }
}
