//! The work queue of one controller: each key once, never two workers on one key, later keys by time, failed keys with
//! growing delay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

const FIRST_DELAY: Duration = Duration::from_millis(5);
const LAST_DELAY: Duration = Duration::from_mins(1);

#[derive(Debug)]
struct State<K> {
    ready: VecDeque<K>,
    queued: BTreeSet<K>,
    running: BTreeSet<K>,
    /// Keys added while they were being worked on.
    dirty: BTreeSet<K>,
    timers: BTreeMap<K, Instant>,
    by_time: BTreeSet<(Instant, K)>,
    failures: BTreeMap<K, u32>,
}

#[derive(Debug)]
pub(crate) struct Queue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
}

impl<K: Ord + Clone + Debug> Queue<K> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                queued: BTreeSet::new(),
                running: BTreeSet::new(),
                dirty: BTreeSet::new(),
                timers: BTreeMap::new(),
                by_time: BTreeSet::new(),
                failures: BTreeMap::new(),
            }),
            wake: Notify::new(),
        }
    }

    pub(crate) fn add(&self, key: K) {
        self.state.lock().add(key);
        self.wake.notify_one();
    }

    /// Adds `key` after `delay`; an earlier time already set for it stays.
    pub(crate) fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        self.state.lock().add_at(key, Instant::now() + delay);
        self.wake.notify_one();
    }

    /// Ends the work on `key`: a failure is tried again after a growing delay.
    pub(crate) fn done(&self, key: &K, failed: bool) {
        let mut state = self.state.lock();
        state.running.remove(key);
        if failed {
            let count = state.failures.entry(key.clone()).or_default();
            let delay = FIRST_DELAY
                .saturating_mul(1 << (*count).min(20))
                .min(LAST_DELAY);
            *count += 1;
            state.add_at(key.clone(), Instant::now() + delay);
        } else {
            state.failures.remove(key);
        }
        if state.dirty.remove(key) {
            state.add(key.clone());
        }
        drop(state);
        self.wake.notify_one();
    }

    /// The next key to work on. The caller must call [`Queue::done`] for it.
    pub(crate) async fn next(&self) -> K {
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

impl<K: Ord + Clone> State<K> {
    fn add(&mut self, key: K) {
        if self.running.contains(&key) {
            self.dirty.insert(key);
        } else if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn add_at(&mut self, key: K, at: Instant) {
        if let Some(known) = self.timers.get(&key).copied() {
            if known <= at {
                return;
            }
            self.by_time.remove(&(known, key.clone()));
        }
        self.timers.insert(key.clone(), at);
        self.by_time.insert((at, key));
    }

    fn take(&mut self, now: Instant) -> Result<K, Option<Instant>> {
        while let Some((at, _)) = self.by_time.first() {
            if *at > now {
                break;
            }
            if let Some((_, key)) = self.by_time.pop_first() {
                self.timers.remove(&key);
                self.add(key);
            }
        }
        if let Some(key) = self.ready.pop_front() {
            self.queued.remove(&key);
            self.running.insert(key.clone());
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
        queue.done(&"a", false);
        assert_eq!(queue.next().await, "a");
        queue.done(&"a", false);
        queue.done(&"b", false);
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
            queue.done(&"late", true);
            queue.next().await;
            waits.push(before.elapsed());
        }
        assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "{waits:?}");
    }
}
