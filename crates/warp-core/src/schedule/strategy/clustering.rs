//! Like with like: nodes that already run requests of the same size, then mixed ones that do, then
//! untouched ones, then the rest; fuller nodes first within each.

use super::best_fit::{MAX_GPU_MILLI, free_milli};
use super::{Ask, Policy, Rating, Spot, Strategy};
use crate::fleet::{GpuRequest, WHOLE};

#[derive(Debug)]
pub(super) struct Clustering;

impl Strategy for Clustering {
    fn policy(&self) -> Policy {
        Policy::Clustering
    }

    fn rate(&mut self, spot: &Spot<'_>, ask: &Ask) -> Rating {
        if ask.count == 0 {
            return Rating::default();
        }
        let works = spot.fleet.works_on(spot.id);
        let mut sizes: Vec<_> = works
            .filter_map(|work| work.request.gpu.as_ref())
            .map(size)
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        let wanted = if ask.milli < WHOLE { 0 } else { ask.count };
        let tier = match (sizes.contains(&wanted), sizes.len()) {
            (true, 1) => 75.0,
            (true, _) => 50.0,
            (false, 0) => 25.0,
            (false, _) => 0.0,
        };
        let fullness = (25.0 * (MAX_GPU_MILLI - free_milli(spot)) / MAX_GPU_MILLI).trunc();
        Rating::from(tier + fullness)
    }
}

/// Cards of a request; every fraction is of one size.
fn size(gpu: &GpuRequest) -> u32 {
    if gpu.is_fraction() { 0 } else { gpu.count }
}
