//! Three tiers: a card already shared, then an idle card of a used node, then an untouched node.

use super::{Ask, Policy, Rating, Spot, Strategy};
use crate::fleet::WHOLE;

#[derive(Debug)]
pub(super) struct Packing;

impl Strategy for Packing {
    fn policy(&self) -> Policy {
        Policy::Packing
    }

    fn rate(&mut self, spot: &Spot<'_>, ask: &Ask) -> Rating {
        if ask.count == 0 {
            return Rating::default();
        }
        let idle = spot.pool.map_or(0, crate::fleet::PoolFree::idle_cards);
        if idle == spot.cards().len() {
            return Rating::from((33.0 - idle as f64).max(idle as f64));
        }
        if ask.is_fraction()
            && let Some(card) = spot.tightest_card(ask.milli)
        {
            let left = spot.cards()[card];
            if left < WHOLE.cast_signed() {
                let percent = left / 10;
                return Rating::from(f64::from(100 - percent / 10));
            }
        }
        Rating::from((50.0 - f64::from(ask.count)).max(33.0))
    }
}
