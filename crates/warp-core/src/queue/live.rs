//! The queue's view of a fleet: whole GPUs on the nodes that each request could ever use. Nodes
//! that no request tells apart form a class, so that the policies of the simulator run unchanged
//! over a live snapshot. What is temporary (GPUs, CPU or memory in use) is for the queue to wait
//! for; the final word on a start stays with `schedule`, which checks CPU, memory and cards too.

use std::collections::BTreeMap;

use crate::fleet::{self, Cards, Fleet, Node, Request, Work};
use crate::schedule::Reason;
use crate::schedule::fit::Filter;

use super::job::{Need, Shape};
use super::pool::{ClassId, Pool};

/// A request as it stands in line: one pod, or a gang of equal ones.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub request: &'a Request,
    pub members: u32,
}

/// A fleet as the queue counts it.
#[derive(Clone, Debug)]
pub struct Live {
    pub pool: Pool,
    /// The fleet's node for each node of the pool.
    pub nodes: Vec<fleet::NodeId>,
    /// One for each ask, in their order; `accepts` is empty where no node would ever do.
    pub needs: Vec<Need>,
}

/// The pool for `fleet` and what each ask needs of it. GPUs of work that `managed` does not claim
/// are taken off for good; claimed work is for the caller to adopt into the state.
pub fn view(fleet: &Fleet, asks: &[Ask<'_>], managed: &dyn Fn(&Work) -> bool) -> Live {
    let filters: Vec<Filter<'_>> = asks
        .iter()
        .map(|ask| Filter::new(fleet, ask.request))
        .collect();
    let mut live = Live {
        pool: Pool::default(),
        nodes: Vec::new(),
        needs: Vec::new(),
    };
    let mut accepting: BTreeMap<ClassId, Vec<bool>> = BTreeMap::new();
    for (id, node) in fleet.nodes() {
        let size = gpus(node);
        if size == 0 {
            continue;
        }
        let fits: Vec<bool> = filters
            .iter()
            .map(|f| !f.reasons(id).iter().any(lasting))
            .collect();
        let marks: String = fits
            .iter()
            .map(|fit| if *fit { '1' } else { '0' })
            .collect();
        let model = node.gpus.first().map_or("", |pool| &pool.model);
        let class = live.pool.class(&format!("{model}/{marks}"), size);
        let place = live.pool.add_node(class);
        let idle: usize = fleet.free(id).map_or(0, |free| {
            free.pools.iter().map(fleet::PoolFree::idle_cards).sum()
        });
        let claimed: u32 = fleet
            .works_on(id)
            .filter(|work| managed(work))
            .map(|work| held(node, work))
            .sum();
        let idle = u32::try_from(idle).unwrap_or(u32::MAX);
        live.pool
            .take(place, size.saturating_sub(idle.saturating_add(claimed)));
        live.nodes.push(id);
        accepting.insert(class, fits);
    }
    for (index, ask) in asks.iter().enumerate() {
        let gpus = ask.request.gpu.as_ref().map_or(0, |gpu| gpu.count);
        let shape = match ask.members {
            0 | 1 => Shape::Gpus(gpus),
            count => Shape::Members { count, gpus },
        };
        let accepts = accepting
            .iter()
            .filter(|(_, fits)| fits[index])
            .map(|(class, _)| *class);
        live.needs.push(Need {
            shape,
            accepts: accepts.collect(),
        });
    }
    live
}

/// Usable GPUs of a node, in use or not.
fn gpus(node: &Node) -> u32 {
    let count = |pool: &fleet::GpuPool| match &pool.cards {
        Cards::Each(cards) => cards.iter().filter(|card| card.healthy).count() as u64,
        Cards::Counted => {
            let counted = node
                .allocatable
                .extended
                .get(&pool.resource)
                .copied()
                .unwrap_or(0);
            u64::try_from(counted).unwrap_or(0)
        }
    };
    u32::try_from(node.gpus.iter().map(count).sum::<u64>()).unwrap_or(u32::MAX)
}

/// Whole GPUs of its node that a piece of work holds.
pub fn held(node: &Node, work: &Work) -> u32 {
    let counted = || {
        let named = &work.request.resources.extended;
        let pools = node.gpus.iter();
        let gpus = pools.filter_map(|pool| named.get(&pool.resource));
        u32::try_from(gpus.sum::<i64>()).unwrap_or(0)
    };
    work.request
        .gpu
        .as_ref()
        .map_or_else(counted, |gpu| gpu.count)
}

/// Whether waiting for other work to end cannot cure it.
fn lasting(reason: &Reason) -> bool {
    match reason {
        Reason::Contradiction(_)
        | Reason::NotReady
        | Reason::Unschedulable
        | Reason::OtherNode { .. }
        | Reason::Selector { .. }
        | Reason::Affinity
        | Reason::Volume { .. }
        | Reason::Taint(_)
        | Reason::NoGpu
        | Reason::GpuModel { .. }
        | Reason::GpuVendor { .. }
        | Reason::GpuMemory { .. }
        | Reason::GpuUnit { .. }
        | Reason::WholeCardsOnly
        | Reason::NoTopologyLabel { .. } => true,
        Reason::Insufficient { needed, total, .. } => needed > total,
        Reason::FewGpus {
            needed,
            total,
            sick,
            ..
        } => *needed > total.saturating_sub(*sick),
        Reason::FewParts { needed, total, .. } => needed > total,
        Reason::TooManyPods { limit } => *limit < 1,
        Reason::NoRoomOnCard { .. }
        | Reason::HostPort { .. }
        | Reason::PodAffinity { .. }
        | Reason::PodAntiAffinity { .. }
        | Reason::Repelled { .. }
        | Reason::Spread { .. } => false,
    }
}

#[cfg(test)]
mod tests;
