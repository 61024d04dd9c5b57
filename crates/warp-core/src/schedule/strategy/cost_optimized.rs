//! The cheapest node that fits, the most free GPUs among equals. Where no node has a price, nodes
//! their owner marked cheap come first.

use super::{Ask, Policy, Rating, Spot, Strategy};
use crate::fleet::{Fleet, PoolFree, WHOLE};

#[derive(Debug)]
pub(super) struct CostOptimized;

impl Strategy for CostOptimized {
    fn policy(&self) -> Policy {
        Policy::CostOptimized
    }

    fn epoch(&self, fleet: &Fleet) -> u64 {
        u64::from(fleet.totals().priced())
    }

    fn rate(&mut self, spot: &Spot<'_>, _ask: &Ask) -> Rating {
        // A million dollars an hour stands for "nobody said": after every known price.
        const UNKNOWN: u64 = 1_000_000_000_000;
        let cost = if spot.fleet.totals().priced() {
            spot.node
                .price_per_gpu_hour_micros
                .unwrap_or(UNKNOWN)
                .min(UNKNOWN)
        } else {
            u64::from(!spot.node.cheap)
        };
        // Both parts are whole numbers below 2^53, so the sum is exact.
        let free = spot.pool.map_or(0, PoolFree::milli) / i64::from(WHOLE);
        Rating::from(free.clamp(0, 1023) as f64 - cost as f64 * 1024.0)
    }
}
