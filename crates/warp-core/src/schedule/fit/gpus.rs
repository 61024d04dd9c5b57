//! GPUs: the right kind, enough idle cards, or enough left on one card.

use std::sync::Arc;

use crate::fleet::{Cards, Fleet, Free, GpuPool, GpuRequest, KindSet, Node, PoolFree, WHOLE};

use super::Failures;
use crate::schedule::reason::Reason;

/// The node's pools that can take the request now.
pub fn usable_pools<'a>(
    node: &'a Node,
    free: &'a Free,
    gpu: &'a GpuRequest,
    kinds: &'a KindSet,
) -> impl Iterator<Item = usize> + 'a {
    let usable = move |&at: &usize| {
        kinds.contains(free.pools[at].kind) && has_room(&node.gpus[at], &free.pools[at], free, gpu)
    };
    (0..free.pools.len()).filter(usable)
}

fn has_room(pool: &GpuPool, left: &PoolFree, free: &Free, gpu: &GpuRequest) -> bool {
    let extras = pool.unit.extras(gpu);
    let enough = |(name, needed): (&Arc<str>, &i64)| free.resources.extended(name) >= *needed;
    extras.iter().all(enough)
        && match (&pool.cards, gpu.is_fraction()) {
            // Whether a seat is as large as the fraction is its kind's to say.
            (Cards::Counted, true) => pool.unit.shared && idle(pool, left, free) >= gpu.count,
            (Cards::Each(_), true) => {
                let roomy = |&card: &i32| i64::from(card) >= i64::from(gpu.milli);
                let seat = pool.unit.limits.is_none()
                    || free.resources.extended(&pool.resource) >= i64::from(gpu.count);
                seat && left.cards.iter().any(roomy)
            }
            (_, false) => idle(pool, left, free) >= gpu.count,
        }
}

fn idle(pool: &GpuPool, left: &PoolFree, free: &Free) -> u32 {
    let count = match pool.cards {
        Cards::Counted => free.resources.extended(&pool.resource).max(0),
        Cards::Each(_) => i64::try_from(left.idle_cards()).unwrap_or(i64::MAX),
    };
    u32::try_from(count).unwrap_or(u32::MAX)
}

pub(super) fn has_gpus(
    fleet: &Fleet,
    node: &Node,
    free: &Free,
    gpu: &GpuRequest,
    kinds: &KindSet,
    failures: &mut impl Failures,
) {
    if usable_pools(node, free, gpu, kinds).next().is_some() {
        return;
    }
    failures.fail(|| nearest_miss(fleet, node, free, gpu, kinds));
}

/// The reason that is closest to fitting: room on an accepted pool before the wrong kind.
fn nearest_miss(
    fleet: &Fleet,
    node: &Node,
    free: &Free,
    gpu: &GpuRequest,
    kinds: &KindSet,
) -> Reason {
    let pools = || node.gpus.iter().zip(&free.pools);
    let accepted = pools().filter(|(_, left)| kinds.contains(left.kind));
    let short = |(pool, left): (&GpuPool, &PoolFree)| {
        let counted = pool.cards == Cards::Counted && !pool.unit.is_whole();
        if counted {
            let total = node.allocatable.extended(&pool.resource).max(0);
            return Reason::FewParts {
                needed: gpu.count,
                idle: idle(pool, left, free),
                total: u32::try_from(total).unwrap_or(u32::MAX),
                what: Arc::from(pool.unit.to_string()),
            };
        }
        if !gpu.is_fraction() {
            let total = match &pool.cards {
                Cards::Counted => node.allocatable.extended(&pool.resource).max(0),
                Cards::Each(cards) => i64::try_from(cards.len()).unwrap_or(i64::MAX),
            };
            let sick = match &pool.cards {
                Cards::Counted => 0,
                Cards::Each(cards) => cards.iter().filter(|card| !card.healthy).count(),
            };
            return Reason::FewGpus {
                needed: gpu.count,
                idle: idle(pool, left, free),
                total: u32::try_from(total).unwrap_or(u32::MAX),
                sick: u32::try_from(sick).unwrap_or(u32::MAX),
            };
        }
        if pool.cards == Cards::Counted {
            return Reason::WholeCardsOnly;
        }
        let largest = left
            .cards
            .iter()
            .copied()
            .max()
            .unwrap_or(0)
            .clamp(0, WHOLE.cast_signed());
        Reason::NoRoomOnCard {
            needed: gpu.milli,
            largest: largest.cast_unsigned(),
        }
    };
    let rank = |reason: &Reason| match *reason {
        Reason::FewGpus { idle, .. } | Reason::FewParts { idle, .. } => u64::from(idle) + 1,
        Reason::NoRoomOnCard { largest, .. } => u64::from(largest) + 1,
        _ => 0,
    };
    if let Some(reason) = accepted.map(short).max_by_key(rank) {
        return reason;
    }
    // A pool of the right model tells more than another: it says what is wrong with that.
    let near = |left: &PoolFree| {
        let kind = fleet.kind(left.kind);
        let vendor = gpu
            .vendor
            .as_ref()
            .is_none_or(|vendor| *vendor == kind.vendor);
        let model = gpu.models.is_empty() || gpu.models.contains(&kind.model);
        (vendor && model, vendor)
    };
    let nearest = pools().rev().max_by_key(|(_, left)| near(left));
    let Some((_, left)) = nearest else {
        return Reason::NoGpu;
    };
    let kind = fleet.kind(left.kind);
    if !gpu.models.is_empty() && !gpu.models.contains(&kind.model) {
        Reason::GpuModel {
            found: Arc::clone(&kind.model),
        }
    } else if near(left).1 && !kind.unit.serves(gpu) {
        Reason::GpuUnit {
            found: Arc::from(kind.unit.to_string()),
        }
    } else if gpu.min_memory_bytes > kind.memory_bytes {
        Reason::GpuMemory {
            needed: gpu.min_memory_bytes,
            found: kind.memory_bytes,
        }
    } else {
        Reason::GpuVendor {
            found: Arc::clone(&kind.vendor),
        }
    }
}
