//! The work queue of one controller: each key once, never two workers on one key, later keys by time, failed keys with
//! growing delay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backoff::Failures;
pub use crate::backoff::{Backoff, End};

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Stage {
    #[default]
    Idle,
    Queued,
    Running,
    /// Added while it was being worked on.
    RunningDirty,
}

/// What is known of one key; all of it in one place, and nothing of keys that are at rest.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    stage: Stage,
    timer: Option<Instant>,
    failures: Failures,
}

impl Progress {
    fn is_at_rest(&self) -> bool {
        self.stage == Stage::Idle && self.timer.is_none() && self.failures == Failures::default()
    }
}

#[derive(Debug)]
struct State<K> {
    ready: VecDeque<K>,
    keys: BTreeMap<K, Progress>,
    by_time: BTreeSet<(Instant, K)>,
}

#[derive(Debug)]
pub struct Queue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
    backoff: Backoff,
}

impl<K: Ord + Clone + Debug> Default for Queue<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Clone + Debug> Queue<K> {
    pub fn new() -> Self {
        Self::with(Backoff::QUICK)
    }

    pub fn with(backoff: Backoff) -> Self {
        Self {
            backoff,
            state: Mutex::new(State {
                ready: VecDeque::new(),
                keys: BTreeMap::new(),
                by_time: BTreeSet::new(),
            }),
            wake: Notify::new(),
        }
    }

    pub fn add(&self, key: K) {
        self.state.lock().add(key);
        self.wake.notify_one();
    }

    /// Adds `key` after `delay`; an earlier time already set for it stays.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        self.state.lock().add_at(key, Instant::now() + delay);
        self.wake.notify_one();
    }

    /// Ends the work on `key`: a failure is tried again after a growing delay.
    pub fn done(&self, key: &K, end: End) {
        let mut state = self.state.lock();
        state.done(key, end, &self.backoff);
        drop(state);
        self.wake.notify_one();
    }

    /// The next key to work on. The caller must call [`Queue::done`] for it.
    pub async fn next(&self) -> K {
        loop {
            let until = match self.state.lock().take(Instant::now()) {
                Ok(key) => return key,
                Err(until) => until,
            };
            let notified = self.wake.notified();
            match until {
                Some(until) => {
                    tokio::select! {
                        () = notified => {}
                        () = tokio::time::sleep_until(until) => {}
                    }
                }
                None => notified.await,
            }
        }
    }
}

impl<K: Ord + Clone + Debug> State<K> {
    fn add(&mut self, key: K) {
        let progress = self.keys.entry(key.clone()).or_default();
        match progress.stage {
            Stage::Idle => {
                progress.stage = Stage::Queued;
                self.ready.push_back(key);
            }
            Stage::Running => progress.stage = Stage::RunningDirty,
            Stage::Queued | Stage::RunningDirty => {}
        }
    }

    fn add_at(&mut self, key: K, at: Instant) {
        let progress = self.keys.entry(key.clone()).or_default();
        if let Some(known) = progress.timer {
            if known <= at {
                return;
            }
            self.by_time.remove(&(known, key.clone()));
        }
        progress.timer = Some(at);
        self.by_time.insert((at, key));
    }

    fn done(&mut self, key: &K, end: End, backoff: &Backoff) {
        let progress = self.keys.entry(key.clone()).or_default();
        let again = progress.stage == Stage::RunningDirty;
        progress.stage = Stage::Idle;
        if end == End::Done {
            progress.failures = Failures::default();
            if progress.is_at_rest() && !again {
                self.keys.remove(key);
            }
        } else {
            let delay = backoff.delay(end, &mut progress.failures, &format!("{key:?}"));
            self.add_at(key.clone(), Instant::now() + delay);
        }
        if again {
            self.add(key.clone());
        }
    }

    fn take(&mut self, now: Instant) -> Result<K, Option<Instant>> {
        while let Some((at, _)) = self.by_time.first() {
            if *at > now {
                break;
            }
            if let Some((_, key)) = self.by_time.pop_first() {
                if let Some(progress) = self.keys.get_mut(&key) {
                    progress.timer = None;
                }
                self.add(key);
            }
        }
        if let Some(key) = self.ready.pop_front() {
            if let Some(progress) = self.keys.get_mut(&key) {
                progress.stage = Stage::Running;
            }
            return Ok(key);
        }
        Err(self.by_time.first().map(|(at, _)| *at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_added_while_it_is_worked_on_comes_back_once() {
        let queue = Queue::new();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.next().await, "b");
        queue.done(&"a", End::Done);
        assert_eq!(queue.next().await, "a");
        queue.done(&"a", End::Done);
        queue.done(&"b", End::Done);
        assert!(queue.state.lock().keys.is_empty(), "keys at rest are kept");
        assert!(
            tokio::time::timeout(Duration::from_secs(100), queue.next())
                .await
                .is_err()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_time_wins_and_failures_wait_longer_each_time() {
        let queue = Queue::new();
        let start = Instant::now();
        queue.add_after("late", Duration::from_secs(20));
        queue.add_after("late", Duration::from_secs(10));
        queue.add_after("late", Duration::from_secs(30));
        assert_eq!(queue.next().await, "late");
        assert_eq!(start.elapsed().as_secs(), 10);
        let mut waits = Vec::new();
        for _ in 0..4 {
            let before = Instant::now();
            queue.done(&"late", End::Failed);
            queue.next().await;
            waits.push(before.elapsed());
        }
        assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "{waits:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_for_a_minute_is_tried_a_few_times() {
        let queue = Queue::new();
        let start = Instant::now();
        queue.add("refused");
        let mut tries = 0;
        while start.elapsed() < Duration::from_mins(1) {
            queue.next().await;
            tries += 1;
            queue.done(&"refused", End::Refused);
        }
        assert_eq!(tries, 8, "one at once and one after .1, .3, .9 … seconds");
    }
}
