//! The user's weight of prices: how much room for later work a cheaper node is worth.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::{Ask, Spot};
use crate::fleet::{Fleet, WHOLE};

/// How many GPUs of room for later work one dollar per GPU-hour is worth, for every GPU a request
/// asks for. 0 ignores prices; from about 1 on a dollar decides, unless the last machines for
/// large requests are at stake.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct PriceWeight(f64);

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "failed to read price weight {0:?}: use a number from 0 (ignore prices) to {most}",
    most = PriceWeight::MOST
)]
pub struct BadPriceWeight(String);

impl PriceWeight {
    pub const IGNORED: Self = Self(0.0);
    const MOST: f64 = 1000.0;

    pub fn new(weight: f64) -> Result<Self, BadPriceWeight> {
        let sound = (0.0..=Self::MOST).contains(&weight);
        sound
            .then_some(Self(weight))
            .ok_or_else(|| BadPriceWeight(weight.to_string()))
    }

    pub const fn get(self) -> f64 {
        self.0
    }

    pub fn is_ignored(self) -> bool {
        self.0 <= 0.0
    }

    /// What a placement's price takes off its score, in thousandths of GPU. A node nobody named a
    /// price for counts like the dearest that has one.
    pub(super) fn cost(self, spot: &Spot<'_>, ask: &Ask) -> f64 {
        if self.is_ignored() {
            return 0.0;
        }
        let micros = spot.node.price_per_gpu_hour_micros;
        let micros = micros.unwrap_or_else(|| dearest(spot.fleet));
        let thousandths = self.0 * f64::from(WHOLE);
        thousandths * micros as f64 / 1e6 * ask.gpu_milli() as f64 / f64::from(WHOLE)
    }

    /// Changes when the price of nodes without one does.
    pub(super) fn epoch(self, fleet: &Fleet) -> u64 {
        if self.is_ignored() { 0 } else { dearest(fleet) }
    }
}

fn dearest(fleet: &Fleet) -> u64 {
    fleet.totals().dearest_price_micros().unwrap_or(0)
}

impl FromStr for PriceWeight {
    type Err = BadPriceWeight;

    fn from_str(text: &str) -> Result<Self, BadPriceWeight> {
        let number = text.trim().parse::<f64>().ok();
        let weight = number.and_then(|number| Self::new(number).ok());
        weight.ok_or_else(|| BadPriceWeight(text.to_owned()))
    }
}

impl fmt::Display for PriceWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
