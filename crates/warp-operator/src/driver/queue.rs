//! Keys waiting for a pass, each at most once and never two passes of one key at a time.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::cache::Key;
use crate::clock::Clock;

#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    when: BTreeMap<Key, Timestamp>,
    order: BTreeSet<(Timestamp, Key)>,
    running: BTreeSet<Key>,
}

impl Queue {
    /// Asks for a pass no later than `at`.
    pub(crate) fn add(&self, key: Key, at: Timestamp) {
        let mut state = self.state.lock();
        if let Some(&already) = state.when.get(&key) {
            if already <= at {
                return;
            }
            state.order.remove(&(already, key.clone()));
        }
        state.when.insert(key.clone(), at);
        state.order.insert((at, key));
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for the next key that is due and not being worked on, and marks it running.
    pub(crate) async fn next(&self, clock: &Clock) -> Key {
        loop {
            let now = clock.now();
            let wait = {
                let mut state = self.state.lock();
                match state.take(now) {
                    Ok(key) => return key,
                    Err(wait) => wait,
                }
            };
            match wait {
                Some(at) => {
                    tokio::select! {
                        () = clock.sleep(clock.until(at)) => {}
                        () = self.changed.notified() => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    /// Ends a pass; the key may be taken again.
    pub(crate) fn done(&self, key: &Key) {
        self.state.lock().running.remove(key);
        self.changed.notify_one();
    }
}

impl State {
    /// The earliest due key that is not running, else when the next one is due.
    fn take(&mut self, now: Timestamp) -> Result<Key, Option<Timestamp>> {
        let idle = self
            .order
            .iter()
            .find(|(_, key)| !self.running.contains(key))
            .cloned();
        match idle {
            Some((at, key)) if at <= now => {
                self.order.remove(&(at, key.clone()));
                self.when.remove(&key);
                self.running.insert(key.clone());
                Ok(key)
            }
            Some((at, _)) => Err(Some(at)),
            None => Err(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("default", name)
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("small number")
    }

    #[test]
    fn a_key_waits_once_and_at_its_earliest_time() {
        let queue = Queue::default();
        queue.add(key("a"), at(20));
        queue.add(key("a"), at(10));
        queue.add(key("a"), at(30));
        let mut state = queue.state.lock();
        assert_eq!(state.take(at(9)), Err(Some(at(10))));
        assert_eq!(state.take(at(10)), Ok(key("a")));
        assert_eq!(state.take(at(99)), Err(None));
    }

    #[test]
    fn a_running_key_is_not_handed_out_again_until_it_is_done() {
        let queue = Queue::default();
        queue.add(key("a"), at(0));
        assert_eq!(queue.state.lock().take(at(1)), Ok(key("a")));
        queue.add(key("a"), at(0));
        assert_eq!(queue.state.lock().take(at(1)), Err(None));
        queue.done(&key("a"));
        assert_eq!(queue.state.lock().take(at(1)), Ok(key("a")));
    }
}
