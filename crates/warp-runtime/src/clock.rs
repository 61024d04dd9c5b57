//! Where every part of a controller gets the time of day from. Timers are tokio's, so under a paused runtime a whole
//! cluster of controllers runs in virtual time.

use std::fmt::{self, Debug};
use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::Instant;

/// The time of day: the machine's, or one a caller gives.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({})", self.now())
    }
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self::reading(Timestamp::now)
    }

    /// A clock that reads `start` now and moves with tokio's, which tests may pause.
    pub fn tokio(start: Timestamp) -> Self {
        let at = Instant::now();
        Self::reading(move || start.saturating_add(at.elapsed()).unwrap_or(start))
    }

    /// The time `now` says.
    pub fn reading(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}
