//! Fragmentation gradient descent (Weng et al., ATC'23): the node where the GPU milli that typical
//! requests could not use grows least.

use super::{Ask, Policy, Rating, Spot, Strategy};
use crate::fleet::{Fleet, KindId, WHOLE};
use crate::schedule::memo::{Memo, state_key};
use crate::schedule::mix::{Class, Learning, Mix};

/// Expected unusable GPU of a node, over the typical requests.
#[derive(Clone, Debug, Default)]
pub struct Fragmentation {
    classes: Vec<Class>,
    memo: Memo<f64>,
}

impl Fragmentation {
    pub fn new(mix: &Mix) -> Self {
        Self {
            classes: mix.typical_of_the_study(),
            memo: Memo::default(),
        }
    }

    /// Thousandths of GPU on this node that a typical request cannot use, in expectation.
    pub fn of(&mut self, kind: KindId, cpu_milli: i64, cards: &[i32]) -> f64 {
        let key = state_key([kind.index() as u64, cpu_milli.cast_unsigned(), 0], cards);
        if let Some(known) = self.memo.get(key) {
            return known;
        }
        let idle: i64 = cards.iter().map(|&card| i64::from(card.max(0))).sum();
        let unusable = |class: &Class| {
            let whole = || idle as f64;
            if class.count == 0 || class.cpu_milli > cpu_milli || !class.accepts(kind) {
                return whole();
            }
            let fits = |&&card: &&i32| i64::from(card) >= i64::from(class.milli);
            if cards.iter().filter(fits).count() < class.count as usize {
                return whole();
            }
            let small = cards.iter().filter(|card| !fits(card));
            small.map(|&card| f64::from(card.max(0))).sum()
        };
        let value = self
            .classes
            .iter()
            .map(|class| class.weight * unusable(class))
            .sum();
        self.memo.insert(key, value);
        value
    }
}

#[derive(Debug)]
pub(super) struct Fgd {
    fragmentation: Fragmentation,
    learning: Option<Learning>,
    cards: Vec<i32>,
}

impl Fgd {
    pub(super) fn informed(mix: &Mix) -> Self {
        Self {
            fragmentation: Fragmentation::new(mix),
            learning: None,
            cards: Vec::new(),
        }
    }

    pub(super) fn learning() -> Self {
        Self {
            learning: Some(Learning::default()),
            ..Self::informed(&Mix::default())
        }
    }

    /// The node's fragmentation as it is.
    fn now(&mut self, spot: &Spot<'_>) -> f64 {
        let cpu = spot.free.resources.cpu_milli;
        spot.pool.map_or(0.0, |pool| {
            self.fragmentation.of(pool.kind, cpu, &pool.cards)
        })
    }

    /// The integer score of putting the request on one card (or on the first idle ones).
    fn score(&mut self, spot: &Spot<'_>, ask: &Ask, card: Option<usize>, before: f64) -> f64 {
        let Some(pool) = spot.pool else { return 0.0 };
        let cpu = spot.free.resources.cpu_milli;
        self.cards.clear();
        self.cards.extend_from_slice(&pool.cards);
        take(&mut self.cards, ask, card);
        let after = self
            .fragmentation
            .of(pool.kind, cpu - ask.cpu_milli, &self.cards);
        let decrease = (before - after) / f64::from(WHOLE);
        (100.0 / (1.0 + (-decrease).exp())).trunc()
    }

    fn best_card(&mut self, spot: &Spot<'_>, ask: &Ask) -> Option<(usize, f64)> {
        let before = self.now(spot);
        let mut best: Option<(usize, f64)> = None;
        let mut tried = i32::MIN;
        for (at, &left) in spot.cards().iter().enumerate() {
            // A card like the previous one scores like it, and the earlier card wins ties.
            if i64::from(left) < i64::from(ask.milli) || left == tried {
                continue;
            }
            tried = left;
            let score = self.score(spot, ask, Some(at), before);
            if best.is_none_or(|(_, known)| score > known) {
                best = Some((at, score));
            }
        }
        best
    }
}

/// Puts a request on cards: the given one, or the first idle ones.
pub(super) fn take(cards: &mut [i32], ask: &Ask, card: Option<usize>) {
    let milli = ask.milli.cast_signed();
    if let Some(at) = card {
        cards[at] -= milli;
    } else {
        let idle = cards
            .iter_mut()
            .filter(|left| **left >= WHOLE.cast_signed());
        for left in idle.take(ask.count as usize) {
            *left -= milli;
        }
    }
}

impl Strategy for Fgd {
    fn policy(&self) -> Policy {
        Policy::Fgd
    }

    fn arrived(&mut self, _fleet: &Fleet, ask: &Ask) {
        if let Some(learning) = &mut self.learning
            && learning.see(ask)
        {
            self.fragmentation = Fragmentation::new(learning.mix());
        }
    }

    fn epoch(&self, _fleet: &Fleet) -> u64 {
        self.learning.as_ref().map_or(0, Learning::epoch)
    }

    fn rate(&mut self, spot: &Spot<'_>, ask: &Ask) -> Rating {
        let score = if ask.is_fraction() {
            self.best_card(spot, ask).map_or(0.0, |(_, score)| score)
        } else {
            let before = self.now(spot);
            self.score(spot, ask, None, before)
        };
        Rating::from(score)
    }

    fn card(&mut self, spot: &Spot<'_>, ask: &Ask) -> Option<usize> {
        self.best_card(spot, ask).map(|(at, _)| at)
    }
}
