//! Any node that fits, and any card of it.

use super::{Ask, Policy, Rating, Spot, Strategy, Weights};
use crate::fleet::Fleet;
use crate::random::Random;

#[derive(Debug)]
pub(super) struct AnyNode {
    random: Random,
}

impl AnyNode {
    pub(super) const fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
        }
    }
}

impl Strategy for AnyNode {
    fn policy(&self) -> Policy {
        Policy::Random
    }

    fn rate(&mut self, _spot: &Spot<'_>, _ask: &Ask) -> Rating {
        Rating::default()
    }

    fn weights(&mut self, _fleet: &Fleet, _ask: &Ask) -> Weights {
        Weights {
            dice: Some(self.random.next_u64()),
            ..Weights::default()
        }
    }

    fn card(&mut self, spot: &Spot<'_>, ask: &Ask) -> Option<usize> {
        let fits = |&at: &usize| i64::from(spot.cards()[at]) >= i64::from(ask.milli);
        let cards: Vec<_> = (0..spot.cards().len()).filter(fits).collect();
        cards.get(self.random.below(cards.len())).copied()
    }
}
