//! Slots: how many requests of several GPUs each node could still take, over the whole fleet now.
//!
//! A node that a rare large request needs is worth keeping, and the more the fewer such nodes are
//! left. What a slot is worth therefore changes with every decision, while ratings are remembered;
//! so a rating only names the node's standing before and after, and each decision prices the
//! standings anew.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::Coming;
use crate::fleet::{Fleet, KindId, WHOLE};
use crate::schedule::memo::{Memo, state_key};
use crate::schedule::mix::Class;

/// Requests of two or more cards: a node is worth something to them as a number of slots.
#[derive(Clone, Debug)]
pub(super) struct SlotClass {
    pub(super) class: Class,
    /// Its part of all GPUs asked for.
    pub(super) share: f64,
    /// Thousandths of GPU one slot of an empty fleet is expected to serve.
    pub(super) weight: f64,
}

/// Slots per class on some node; equal nodes share one.
pub(super) type Standing = u16;

#[derive(Debug)]
pub(super) struct Slots {
    classes: Vec<SlotClass>,
    /// By class: the share of all classes that need at least as much, itself included.
    harder: Vec<f64>,
    standings: Vec<Vec<u16>>,
    numbers: BTreeMap<Vec<u16>, Standing>,
    memo: Memo<Standing>,
    /// What is counted in `free`: each node's fingerprint and standing.
    prints: Vec<u64>,
    nodes: Vec<Standing>,
    /// Slots free in the whole fleet, by class.
    free: Vec<i64>,
}

/// The standing of nodes without slots.
const NONE: Standing = 0;

impl Slots {
    pub(super) fn new(classes: Vec<SlotClass>) -> Self {
        let harder = |easy: &SlotClass| {
            let than = |hard: &&SlotClass| {
                hard.class.count >= easy.class.count && hard.class.cpu_milli >= easy.class.cpu_milli
            };
            let harder = classes.iter().filter(than);
            harder.map(|hard| hard.share).sum()
        };
        let none = vec![0; classes.len()];
        Self {
            harder: classes.iter().map(harder).collect(),
            standings: vec![none.clone()],
            numbers: BTreeMap::from([(none, NONE)]),
            memo: Memo::default(),
            prints: Vec::new(),
            nodes: Vec::new(),
            free: vec![0; classes.len()],
            classes,
        }
    }

    /// The standing of a node with this much left.
    pub(super) fn standing(
        &mut self,
        kind: Option<KindId>,
        cpu_milli: i64,
        cards: &[i32],
    ) -> Standing {
        let Some(kind) = kind else { return NONE };
        let idle = idle_cards(cards);
        if idle < 2 || self.classes.is_empty() {
            return NONE;
        }
        let head = [kind.index() as u64, cpu_milli.cast_unsigned(), idle as u64];
        let key = state_key(head, &[]);
        if let Some(known) = self.memo.get(key) {
            return known;
        }
        let count = |slot: &SlotClass| {
            u16::try_from(slots(&slot.class, kind, cpu_milli, idle)).unwrap_or(u16::MAX)
        };
        let counts: Vec<u16> = self.classes.iter().map(count).collect();
        // A fleet with more different standings than there are numbers has no rare ones.
        let next = Standing::try_from(self.standings.len()).unwrap_or(NONE);
        let number = *self.numbers.entry(counts).or_insert_with_key(|counts| {
            if next != NONE {
                self.standings.push(counts.clone());
            }
            next
        });
        self.memo.insert(key, number);
        number
    }

    /// What the slots of a standing are expected to serve on an empty fleet, in thousandths of GPU.
    pub(super) fn expected(&self, standing: Standing) -> f64 {
        let slots = self
            .classes
            .iter()
            .zip(&self.standings[usize::from(standing)]);
        slots
            .map(|(slot, &count)| slot.weight * f64::from(count))
            .sum()
    }

    /// Counts again the nodes that changed.
    fn refresh(&mut self, fleet: &Fleet) {
        const STEP: usize = 32;
        let nodes = fleet.prints().len();
        self.prints.resize(nodes, 0);
        self.nodes.resize(nodes, NONE);
        for from in (0..nodes).step_by(STEP) {
            let range = from..nodes.min(from + STEP);
            if self.prints[range.clone()] == fleet.prints()[range.clone()] {
                continue;
            }
            for at in range {
                if self.prints[at] != fleet.prints()[at] {
                    self.prints[at] = fleet.prints()[at];
                    self.count(fleet, at);
                }
            }
        }
    }

    fn count(&mut self, fleet: &Fleet, at: usize) {
        let free = fleet.slot_at(at).map(|slot| &slot.free);
        // The first pool stands for a node with several: such nodes are few.
        let pool = free.and_then(|free| free.pools.first());
        let cpu = free.map_or(0, |free| free.resources.cpu_milli);
        let cards = pool.map(|pool| pool.cards.as_slice()).unwrap_or_default();
        let now = self.standing(pool.map(|pool| pool.kind), cpu, cards);
        let before = std::mem::replace(&mut self.nodes[at], now);
        if before != now {
            let counts = [now, before].map(|standing| &self.standings[usize::from(standing)]);
            for ((free, &more), &less) in self.free.iter_mut().zip(counts[0]).zip(counts[1]) {
                *free += i64::from(more) - i64::from(less);
            }
        }
    }

    /// What each standing is worth now, in thousandths of GPU.
    ///
    /// Where all free slots of a size are expected to be asked for, one is worth `whole` times its
    /// size, and less by the cube of how many more there are. Requests that need even more count
    /// against the free ones too.
    pub(super) fn prices(&mut self, fleet: &Fleet, coming: &Coming, whole: f64) -> Vec<f64> {
        if self.classes.is_empty() {
            return Vec::new();
        }
        self.refresh(fleet);
        let price = |((slot, &share), &free): ((&SlotClass, &f64), &i64)| {
            let size = slot.class.gpu_milli();
            let free = (free as f64).max(1.0) * size;
            let scarce = (coming.asked(share, size) / free).min(1.0);
            whole * size * slot.share / share.max(f64::MIN_POSITIVE) * scarce.powi(3)
        };
        let classes = self.classes.iter().zip(&self.harder).zip(&self.free);
        let prices: Vec<f64> = classes.map(price).collect();
        let worth = |counts: &Vec<u16>| {
            let slots = prices.iter().zip(counts);
            slots.map(|(price, &count)| price * f64::from(count)).sum()
        };
        self.standings.iter().map(worth).collect()
    }
}

fn idle_cards(cards: &[i32]) -> usize {
    let idle = |card: &&i32| **card >= WHOLE.cast_signed();
    cards.iter().filter(idle).count()
}

/// How many requests of a class a node can take at once.
pub(super) fn slots(class: &Class, kind: KindId, cpu_milli: i64, idle: usize) -> u64 {
    if !class.accepts(kind) {
        return 0;
    }
    let by_cards = idle as u64 / u64::from(class.count.max(1));
    if class.cpu_milli <= 0 {
        return by_cards;
    }
    let by_cpu = cpu_milli.max(0) / class.cpu_milli;
    by_cards.min(by_cpu.cast_unsigned())
}
