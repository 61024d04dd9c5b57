//! What is free on one node, and the sums over all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::kind::{KindId, Kinds};
use super::node::{Cards, Node};
use super::prefer::Load;
use super::request::{Effect, WHOLE};
use super::unit::pack;
use super::{Taken, Work};
use crate::random::Fingerprint;
use crate::resources::Resources;

/// A counted pool shows at most this many cards to a strategy; a node that claims a million devices
/// must not cost a million words. Whether a request fits is decided by the count itself.
const SHOWN_CARDS: i64 = 512;

/// What is left on a node. Amounts go below zero where a node is over-committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    pub resources: Resources,
    pub pods: i64,
    pub pools: Vec<PoolFree>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFree {
    pub kind: KindId,
    /// Usable thousandths per card: 0 for a sick card, and below zero for an over-committed one.
    pub cards: Vec<i32>,
}

impl PoolFree {
    pub fn idle_cards(&self) -> usize {
        self.cards
            .iter()
            .filter(|&&milli| milli >= WHOLE.cast_signed())
            .count()
    }

    pub fn milli(&self) -> i64 {
        self.cards
            .iter()
            .map(|&milli| i64::from(milli.max(0)))
            .sum()
    }
}

impl Free {
    pub(super) fn same(&self, other: &Self, mine: &Kinds, theirs: &Kinds) -> bool {
        // A name that went back to 0 equals a name never seen.
        let amounts = |free: &Self| -> BTreeMap<Arc<str>, i64> {
            let known = free
                .resources
                .extended
                .iter()
                .filter(|(_, amount)| **amount != 0);
            known
                .map(|(name, &amount)| (Arc::clone(name), amount))
                .collect()
        };
        let pool = |(a, b): (&PoolFree, &PoolFree)| {
            a.cards == b.cards && mine.get(a.kind) == theirs.get(b.kind)
        };
        self.resources.cpu_milli == other.resources.cpu_milli
            && self.resources.memory_bytes == other.resources.memory_bytes
            && amounts(self) == amounts(other)
            && self.pods == other.pods
            && self.pools.len() == other.pools.len()
            && self.pools.iter().zip(&other.pools).all(pool)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) node: Arc<Node>,
    pub(crate) free: Free,
    pub(crate) work: Vec<Arc<str>>,
    pub(crate) load: Load,
    /// Thousandths left per card whether healthy or not, for pools known card by card.
    raw: Vec<Vec<i32>>,
    /// Shares by size that pods hold of cards cut by amount, without saying of which card.
    shares: Vec<BTreeMap<u32, u32>>,
    description: Fingerprint,
    /// A hash of the name alone.
    pub(crate) name_print: u64,
}

impl Slot {
    pub(super) fn new(node: Arc<Node>, kinds: &mut Kinds) -> Self {
        let whole = WHOLE.cast_signed();
        let raw = node.gpus.iter().map(|pool| match &pool.cards {
            Cards::Counted => Vec::new(),
            Cards::Each(cards) => vec![whole; cards.len()],
        });
        let pools = node.gpus.iter().map(|pool| PoolFree {
            kind: kinds.number(pool),
            cards: Vec::new(),
        });
        let mut slot = Self {
            raw: raw.collect(),
            shares: vec![BTreeMap::new(); node.gpus.len()],
            free: Free {
                resources: node.allocatable.clone(),
                pods: node.pods,
                pools: pools.collect(),
            },
            description: describe(&node),
            name_print: Fingerprint::default().text(&node.name).get(),
            work: Vec::new(),
            load: Load::default(),
            node,
        };
        for pool in 0..slot.raw.len() {
            slot.show(pool);
        }
        slot
    }

    pub(super) fn has(&self, taken: &Taken) -> bool {
        self.node
            .gpus
            .get(taken.pool)
            .is_some_and(|pool| match &pool.cards {
                Cards::Counted => taken.cards.is_empty(),
                Cards::Each(cards) => taken
                    .cards
                    .iter()
                    .all(|&card| usize::from(card) < cards.len()),
            })
    }

    pub(super) fn take(&mut self, work: &Work) {
        self.free.resources.subtract(&work.request.resources);
        self.free.pods -= 1;
        self.load.add(work.request.load(), 1);
        self.move_gpus(work, -1);
    }

    pub(super) fn give_back(&mut self, work: &Work) {
        self.free.resources.add(&work.request.resources);
        self.free.pods += 1;
        self.load.add(work.request.load(), -1);
        self.move_gpus(work, 1);
    }

    fn move_gpus(&mut self, work: &Work, sign: i32) {
        if let (Some(gpu), Some(taken)) = (&work.request.gpu, &work.gpus)
            && let Some(pool) = self.node.gpus.get(taken.pool)
        {
            if pool.cards == Cards::Counted || pool.unit.limits.is_some() {
                let moved = pool.unit.takes(&pool.resource, gpu);
                if sign < 0 {
                    self.free.resources.subtract(&moved);
                } else {
                    self.free.resources.add(&moved);
                }
            }
            let milli = i32::try_from(gpu.milli).unwrap_or(i32::MAX);
            for &card in &taken.cards {
                if let Some(left) = self.raw[taken.pool].get_mut(usize::from(card)) {
                    *left = left.saturating_add(sign.saturating_mul(milli));
                }
            }
        }
        // Pods of others may hold a counted resource by name, without naming a pool.
        for pool in 0..self.raw.len() {
            self.move_shares(pool, work, sign);
            self.show(pool);
        }
    }

    /// Enters the shares that a pod holds by name of cards cut by amount.
    fn move_shares(&mut self, at: usize, work: &Work, sign: i32) {
        let pool = &self.node.gpus[at];
        if pool.unit.limits.is_none() {
            return;
        }
        let held = work.request.resources.extended(&pool.resource);
        let held = u32::try_from(held).unwrap_or(0);
        if held == 0 {
            return;
        }
        let milli = pool.unit.share_of(&work.request);
        let count = self.shares[at].entry(milli).or_default();
        *count = if sign < 0 {
            count.saturating_add(held)
        } else {
            count.saturating_sub(held)
        };
        self.shares[at].retain(|_, count| *count > 0);
    }

    /// Recomputes what strategies see of one pool.
    fn show(&mut self, at: usize) {
        let pool = &self.node.gpus[at];
        let shown = &mut self.free.pools[at].cards;
        shown.clear();
        match &pool.cards {
            Cards::Counted => {
                let total = self
                    .node
                    .allocatable
                    .extended(&pool.resource)
                    .clamp(0, SHOWN_CARDS);
                let free = self.free.resources.extended(&pool.resource).clamp(0, total);
                let milli = |card| if card < free { WHOLE.cast_signed() } else { 0 };
                shown.extend((0..total).map(milli));
            }
            Cards::Each(cards) => {
                let usable = |(card, &left): (&super::Card, &i32)| {
                    if card.healthy { left } else { left.min(0) }
                };
                shown.extend(cards.iter().zip(&self.raw[at]).map(usable));
                pack(shown, &self.shares[at]);
            }
        }
    }

    pub(super) fn fingerprint(&self) -> u64 {
        let mut print = self
            .description
            .signed(self.free.resources.cpu_milli)
            .signed(self.free.resources.memory_bytes)
            .signed(self.free.pods);
        for (name, &amount) in &self.free.resources.extended {
            if amount != 0 {
                print = print.text(name).signed(amount);
            }
        }
        for pool in &self.free.pools {
            print = print.word(pool.kind.index() as u64);
            for pair in pool.cards.chunks(2) {
                let high = u64::from(pair[0].cast_unsigned()) << 32;
                print = print.word(high | pair.get(1).map_or(7, |&c| u64::from(c.cast_unsigned())));
            }
        }
        // 0 means "no node".
        print.get().max(1)
    }
}

/// A hash of everything about a node that does not change with its load.
fn describe(node: &Node) -> Fingerprint {
    let mut print = Fingerprint::default()
        .text(&node.name)
        .word(node.labels.len() as u64);
    for (key, value) in &node.labels {
        print = print.text(key).text(value);
    }
    for taint in &node.taints {
        print = print
            .text(&taint.key)
            .text(&taint.value)
            .word(taint.effect as u64);
    }
    print
        .word(
            u64::from(node.unschedulable) | u64::from(node.ready) << 1 | u64::from(node.cheap) << 2,
        )
        .word(
            node.price_per_gpu_hour_micros
                .map_or(0, |price| price.wrapping_add(1)),
        )
        .signed(node.allocatable.cpu_milli)
        .signed(node.allocatable.memory_bytes)
}

/// Sums over the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub cpu_milli: i64,
    pub free_cpu_milli: i64,
    /// How many nodes have which price per GPU-hour.
    prices: BTreeMap<u64, i64>,
    /// Nodes with a taint that prefers no pods.
    soft_tainted: i64,
    kinds: Vec<KindTotal>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct KindTotal {
    milli: i64,
    free_milli: i64,
}

impl Totals {
    pub fn gpu_milli(&self) -> i64 {
        self.kinds.iter().map(|kind| kind.milli).sum()
    }

    pub fn free_gpu_milli(&self) -> i64 {
        self.kinds.iter().map(|kind| kind.free_milli).sum()
    }

    pub fn gpu_milli_of(&self, kind: KindId) -> i64 {
        self.kinds.get(kind.index()).map_or(0, |kind| kind.milli)
    }

    pub fn free_gpu_milli_of(&self, kind: KindId) -> i64 {
        self.kinds
            .get(kind.index())
            .map_or(0, |kind| kind.free_milli)
    }

    /// Whether any node has a taint that prefers no pods.
    pub fn has_soft_taints(&self) -> bool {
        self.soft_tainted > 0
    }

    /// Whether any node has a price.
    pub fn priced(&self) -> bool {
        !self.prices.is_empty()
    }

    /// The highest price per GPU-hour of any node.
    pub fn dearest_price_micros(&self) -> Option<u64> {
        self.prices.last_key_value().map(|(price, _)| *price)
    }

    pub(super) fn add(&mut self, slot: &Slot) {
        self.count(slot, 1);
    }

    pub(super) fn remove(&mut self, slot: &Slot) {
        self.count(slot, -1);
    }

    fn count(&mut self, slot: &Slot, sign: i64) {
        self.cpu_milli += sign * slot.node.allocatable.cpu_milli;
        self.free_cpu_milli += sign * slot.free.resources.cpu_milli.max(0);
        let soft = |taint: &super::Taint| taint.effect == Effect::PreferNoSchedule;
        if slot.node.taints.iter().any(soft) {
            self.soft_tainted += sign;
        }
        if let Some(price) = slot.node.price_per_gpu_hour_micros {
            let nodes = self.prices.entry(price).or_default();
            *nodes += sign;
            if *nodes == 0 {
                self.prices.remove(&price);
            }
        }
        for pool in &slot.free.pools {
            if self.kinds.len() <= pool.kind.index() {
                self.kinds
                    .resize(pool.kind.index() + 1, KindTotal::default());
            }
            let total = &mut self.kinds[pool.kind.index()];
            total.milli += sign * i64::from(WHOLE) * pool.cards.len().cast_signed() as i64;
            total.free_milli += sign * pool.milli();
        }
    }

    pub(super) fn same(&self, other: &Self, mine: &Kinds, theirs: &Kinds) -> bool {
        let by_kind = |totals: &Self, kinds: &Kinds| -> BTreeMap<super::Kind, KindTotal> {
            let known = kinds.iter().zip(&totals.kinds);
            known
                .filter(|(_, total)| **total != KindTotal::default())
                .map(|((_, kind), &total)| (kind.clone(), total))
                .collect()
        };
        self.cpu_milli == other.cpu_milli
            && self.free_cpu_milli == other.free_cpu_milli
            && self.prices == other.prices
            && self.soft_tainted == other.soft_tainted
            && by_kind(self, mine) == by_kind(other, theirs)
    }
}
