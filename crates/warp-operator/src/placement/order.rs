//! The order in which those that wait are served. Pure.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::Timestamp;
use warp_api::workload::Priority;
use warp_runtime::cache::Key;

use super::{Arrivals, Claim, Claimant};

/// Where one stands in line: higher priority, then older, then the first to come, then by name so that the order is
/// total.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    priority: Reverse<Priority>,
    created: Option<Timestamp>,
    arrived: Timestamp,
    key: Key,
    /// Two kinds may have objects of one name.
    controller: &'static str,
}

impl Turn {
    /// Whether somebody of the lowest priority would go for it.
    pub(super) fn is_urgent(&self) -> bool {
        self.priority.0 > Priority::Low
    }

    pub(crate) fn of(claim: &Claim, arrived: Option<Timestamp>) -> Self {
        Self {
            priority: Reverse(claim.priority),
            created: claim.created,
            arrived: arrived.unwrap_or(Timestamp::MAX),
            key: claim.key.clone(),
            controller: claim.controller,
        }
    }
}

/// Puts those that wait in the order they are served.
pub(crate) fn in_order(wanted: &mut [Arc<dyn Claimant>], arrivals: &Arrivals) {
    wanted.sort_by_cached_key(|claimant| {
        let claim = claimant.claim();
        Turn::of(claim, arrivals.of(&claim.uid))
    });
}
