//! Rate limits: one lane per limit, first come first served. Whoever gives up waiting takes no turn.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// A shortest time between two requests, and when the next may be sent.
struct Lane {
    gap: Duration,
    next: tokio::sync::Mutex<Option<Instant>>,
}

pub(crate) struct Pace {
    lanes: Vec<Lane>,
    /// The vendor asked for silence until then.
    held: Mutex<Option<Instant>>,
}

impl Pace {
    pub(crate) fn new(gaps: &[Duration]) -> Self {
        let lane = |gap: &Duration| Lane {
            gap: *gap,
            next: tokio::sync::Mutex::new(None),
        };
        Self {
            lanes: gaps.iter().map(lane).collect(),
            held: Mutex::new(None),
        }
    }

    /// Waits for a turn in every lane named, in that order. The distance counts from when the last wait is over.
    pub(crate) async fn turn(&self, lanes: &[usize]) {
        let mut turns = Vec::with_capacity(lanes.len());
        for lane in lanes.iter().filter_map(|number| self.lanes.get(*number)) {
            let next = lane.next.lock().await;
            if let Some(at) = *next {
                sleep_until(at).await;
            }
            turns.push((lane.gap, next));
        }
        self.silence().await;
        for (gap, mut next) in turns {
            *next = Some(Instant::now() + gap);
        }
    }

    async fn silence(&self) {
        loop {
            let held = *self.held.lock();
            match held {
                Some(until) if until > Instant::now() => sleep_until(until).await,
                _ => return,
            }
        }
    }

    /// Nothing is sent before `until`.
    pub(crate) fn hold(&self, until: Instant) {
        let mut held = self.held.lock();
        *held = Some(held.map_or(until, |known| known.max(until)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn turns_keep_their_distance_and_those_who_leave_take_none() {
        let pace = Arc::new(Pace::new(&[
            Duration::from_secs(1),
            Duration::from_secs(12),
        ]));
        let start = Instant::now();
        pace.turn(&[1, 0]).await;
        let leaves = tokio::time::timeout(Duration::from_secs(3), pace.turn(&[1, 0])).await;
        assert!(leaves.is_err());
        pace.turn(&[1, 0]).await;
        assert_eq!(start.elapsed().as_secs(), 12);
        pace.turn(&[0]).await;
        assert_eq!(start.elapsed().as_secs(), 13);
    }

    /// Found by fifty launches at Lambda: the distance of launches shrank by the wait in the other lane.
    #[tokio::test(start_paused = true)]
    async fn a_wait_in_one_lane_does_not_shrink_the_distance_in_another() {
        let pace = Pace::new(&[Duration::from_secs(10), Duration::from_secs(12)]);
        pace.turn(&[0]).await;
        pace.turn(&[1, 0]).await;
        let first = Instant::now();
        pace.turn(&[1, 0]).await;
        assert_eq!(first.elapsed().as_secs(), 12);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wish_for_silence_holds_for_everybody() {
        let pace = Pace::new(&[Duration::ZERO]);
        let start = Instant::now();
        pace.hold(start + Duration::from_secs(30));
        pace.hold(start + Duration::from_secs(5));
        pace.turn(&[0]).await;
        assert_eq!(start.elapsed().as_secs(), 30);
    }
}
