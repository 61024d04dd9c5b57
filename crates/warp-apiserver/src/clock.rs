//! The clock every timestamp comes from. Timers are tokio's, so under a paused runtime the whole
//! server runs in virtual time.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// Where "now" comes from.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    Tokio { start: Timestamp, at: Instant },
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// `start` plus what tokio's clock has advanced since: follows paused time.
    pub fn tokio(start: Timestamp) -> Self {
        Self(Source::Tokio {
            start,
            at: Instant::now(),
        })
    }

    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => Timestamp::now(),
            Source::Tokio { start, at } => start.saturating_add(at.elapsed()).unwrap_or(*start),
        }
    }

    /// Now as objects carry it: whole seconds, `2026-11-15T22:00:00Z`.
    pub fn now_text(&self) -> String {
        seconds(self.now())
    }

    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// A timestamp with whole seconds.
pub fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
