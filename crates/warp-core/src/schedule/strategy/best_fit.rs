//! Least left over: the node whose CPU and GPUs the request fills best.

use super::{Ask, Policy, Rating, Spot, Strategy};

/// The largest node of the published study, by which leftovers are normalised.
pub(super) const MAX_CPU_MILLI: f64 = 128_000.0;
pub(super) const MAX_GPU_MILLI: f64 = 8_000.0;

#[derive(Debug)]
pub(super) struct BestFit;

impl Strategy for BestFit {
    fn policy(&self) -> Policy {
        Policy::BestFit
    }

    fn rate(&mut self, spot: &Spot<'_>, ask: &Ask) -> Rating {
        let cpu = (spot.free.resources.cpu_milli - ask.cpu_milli) as f64 / MAX_CPU_MILLI;
        let gpu = (free_milli(spot) - ask.gpu_milli() as f64) / MAX_GPU_MILLI;
        // The published score is an integer, and its ties are part of what it does.
        Rating::from((100.0 * (1.0 - 0.5 * cpu - 0.5 * gpu)).trunc())
    }
}

pub(super) fn free_milli(spot: &Spot<'_>) -> f64 {
    spot.pool.map_or(0, crate::fleet::PoolFree::milli) as f64
}
