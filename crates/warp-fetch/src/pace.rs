//! How fast requests and bytes go: one limit for all connections, and one pause for all when a server asks for it.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Bytes that may come at once without waiting, as a time of the limit.
const BURST: Duration = Duration::from_millis(100);

/// Shared by all connections.
#[derive(Debug)]
pub(crate) struct Pace {
    bytes_per_second: Option<u64>,
    /// When the bytes let through so far are paid for.
    paid: Mutex<Instant>,
    /// Nobody asks before this.
    quiet_until: Mutex<Instant>,
}

impl Pace {
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        Self {
            bytes_per_second,
            paid: Mutex::new(Instant::now()),
            quiet_until: Mutex::new(Instant::now()),
        }
    }

    /// Waits until `bytes` more may be taken.
    pub(crate) async fn take(&self, bytes: usize) {
        let Some(limit) = self.bytes_per_second else {
            return;
        };
        let cost = Duration::from_secs_f64(bytes as f64 / limit.max(1) as f64);
        let due = {
            let mut paid = self.paid.lock();
            let start = (*paid).max(Instant::now() - BURST);
            *paid = start + cost;
            *paid
        };
        tokio::time::sleep_until(due).await;
    }

    /// Everybody waits this long before the next request.
    pub(crate) fn pause(&self, length: Duration) {
        let mut until = self.quiet_until.lock();
        *until = (*until).max(Instant::now() + length);
    }

    /// Waits for the end of a pause.
    pub(crate) async fn ready(&self) {
        loop {
            let until = *self.quiet_until.lock();
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_limit_holds_for_all_takers_together() {
        let pace = std::sync::Arc::new(Pace::new(Some(1000)));
        let start = Instant::now();
        let takers = (0..4).map(|_| {
            let pace = pace.clone();
            tokio::spawn(async move {
                for _ in 0..10 {
                    pace.take(100).await;
                }
            })
        });
        for taker in takers.collect::<Vec<_>>() {
            taker.await.unwrap();
        }
        let taken = start.elapsed();
        assert!(taken >= Duration::from_millis(3800), "{taken:?}");
        assert!(taken <= Duration::from_millis(4200), "{taken:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_holds_everybody_and_is_never_shortened() {
        let pace = Pace::new(None);
        let start = Instant::now();
        pace.pause(Duration::from_secs(30));
        pace.pause(Duration::from_secs(5));
        pace.ready().await;
        assert_eq!(start.elapsed().as_secs(), 30);
    }
}
