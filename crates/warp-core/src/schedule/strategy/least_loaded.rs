//! The node with the most free GPUs; for work without GPUs, the most free CPU.

use super::{Ask, Policy, Rating, Spot, Strategy};

#[derive(Debug)]
pub(super) struct LeastLoaded;

impl Strategy for LeastLoaded {
    fn policy(&self) -> Policy {
        Policy::LeastLoaded
    }

    fn rate(&mut self, spot: &Spot<'_>, ask: &Ask) -> Rating {
        let free = if ask.count > 0 {
            spot.pool.map_or(0, crate::fleet::PoolFree::milli)
        } else {
            spot.free.resources.cpu_milli
        };
        Rating::from(free as f64)
    }
}
