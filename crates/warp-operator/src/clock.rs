//! Where every other module gets its time from.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The time of day, either the machine's or one that follows tokio's clock, which tests may pause.
#[derive(Clone, Debug)]
pub enum Clock {
    System,
    /// `origin` plus what tokio's clock has advanced since `started`.
    Tokio {
        origin: Timestamp,
        started: Instant,
    },
}

impl Clock {
    /// A clock that reads `origin` now and moves with tokio's.
    pub fn starting_at(origin: Timestamp) -> Self {
        Self::Tokio {
            origin,
            started: Instant::now(),
        }
    }

    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            Self::Tokio { origin, started } => {
                let passed = SignedDuration::try_from(started.elapsed()).unwrap_or_default();
                origin.checked_add(passed).unwrap_or(Timestamp::MAX)
            }
        }
    }

    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    /// How long from now until `at`; zero when it has passed.
    pub fn until(&self, at: Timestamp) -> Duration {
        Duration::try_from(at.duration_since(self.now())).unwrap_or_default()
    }
}

/// `at` plus whole seconds, saturating.
pub(crate) fn after(at: Timestamp, seconds: i64) -> Timestamp {
    at.checked_add(SignedDuration::from_secs(seconds))
        .unwrap_or(Timestamp::MAX)
}
