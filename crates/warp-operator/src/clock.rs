//! Times of the API, which are whole seconds.

use jiff::{SignedDuration, Timestamp};

/// `at` plus whole seconds, saturating.
pub(crate) fn after(at: Timestamp, seconds: i64) -> Timestamp {
    warp_runtime::driver::later(at, SignedDuration::from_secs(seconds))
}
