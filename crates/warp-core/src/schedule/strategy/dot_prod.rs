//! The smallest product of what is free and what is asked (Tetris' heuristic, as the FGD study
//! normalised it): large requests avoid nodes with much left.

use super::best_fit::{MAX_CPU_MILLI, MAX_GPU_MILLI, free_milli};
use super::{Ask, Policy, Rating, Spot, Strategy};

#[derive(Debug)]
pub(super) struct DotProd;

impl Strategy for DotProd {
    fn policy(&self) -> Policy {
        Policy::DotProd
    }

    fn rate(&mut self, spot: &Spot<'_>, ask: &Ask) -> Rating {
        let cpu = spot.free.resources.cpu_milli as f64 / MAX_CPU_MILLI;
        let gpu = free_milli(spot) / MAX_GPU_MILLI;
        let product = cpu * (ask.cpu_milli as f64 / MAX_CPU_MILLI)
            + gpu * (ask.gpu_milli() as f64 / MAX_GPU_MILLI);
        Rating::from((100.0 * (1.0 - product / 2.0)).trunc())
    }
}
