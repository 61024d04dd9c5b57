//! The fleet: nodes, the work on them, and the ledger of what is free.
//!
//! One ledger serves batch, serving and rented machines. Every change (`bind`, `release`,
//! `set_node`, `remove_node`) costs what it touches, never the size of the fleet, and returns what
//! undoes it. The fleet records; it does not choose (that is `schedule`) and it does not refuse an
//! over-committed node, because real clusters have them: `check` names those.

mod kind;
mod ledger;
mod node;
mod prefer;
mod request;
mod select;
#[cfg(test)]
mod tests;
pub(crate) mod unit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use kind::{Kind, KindId, KindSet};
pub use ledger::{Free, PoolFree, Totals};
pub use node::{Card, Cards, DEFAULT_PODS, GpuPool, Level, Node, Topology};
pub use prefer::{Load, Preferences, SpreadRules, Weighted};
pub use request::{
    Constraints, Contradiction, Effect, GpuRequest, HostPort, NodePolicy, PodTerm, Reach, Request,
    Spread, Taint, Toleration, TolerationOperator, WHOLE,
};
pub use select::{Expression, Labels, NodeTerm, Operator, Selector};
pub use unit::{Limits, Part, Unit};

use kind::Kinds;
pub(crate) use ledger::Slot;

/// A node's place in this fleet. It stays the same until the node is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

impl NodeId {
    pub(crate) const fn at(index: u32) -> Self {
        Self(index)
    }

    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Work on a node, or a promise of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Work {
    /// Unique in the fleet: a pod's uid, or the name of a reservation.
    pub id: Arc<str>,
    pub request: Arc<Request>,
    pub node: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Taken>,
    /// When it started, in seconds of the caller's clock.
    #[serde(default)]
    pub since: i64,
    #[serde(default)]
    pub state: WorkState,
}

/// The cards a piece of work holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Taken {
    /// Which of the node's pools.
    pub pool: usize,
    /// Card indexes; empty where cards are only counted.
    pub cards: Vec<u16>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WorkState {
    #[default]
    Running,
    /// Decided but not yet bound: it holds its resources like running work.
    Reserved,
    /// Being deleted: it still holds resources, but spread constraints no longer count it.
    Terminating,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FleetError {
    #[error("failed to bind {work}: it is bound already")]
    AlreadyBound { work: Arc<str> },
    #[error("failed to bind {work}: node {node} is not in the fleet")]
    UnknownNode { work: Arc<str>, node: Arc<str> },
    #[error("failed to bind {work}: node {node} has no GPU pool {pool} with the cards it names")]
    UnknownCard {
        work: Arc<str>,
        node: Arc<str>,
        pool: usize,
    },
}

#[derive(Clone, Debug, Default)]
pub struct Fleet {
    slots: Vec<Option<Slot>>,
    /// One per slot, changed whenever anything a placement depends on changes; 0 = no node.
    prints: Vec<u64>,
    vacant: Vec<NodeId>,
    by_name: BTreeMap<Arc<str>, NodeId>,
    works: BTreeMap<Arc<str>, Work>,
    /// Work whose required anti-affinity can refuse others.
    repelling: BTreeSet<Arc<str>>,
    /// Work whose affinity makes nodes better or worse for others.
    swaying: BTreeSet<Arc<str>>,
    namespaces: BTreeMap<Arc<str>, Labels>,
    kinds: Kinds,
    totals: Totals,
}

impl Fleet {
    pub fn new() -> Self {
        Self::default()
    }

    /// The fleet these nodes and this work make up, from nothing.
    pub fn rebuild(
        nodes: impl IntoIterator<Item = Node>,
        works: impl IntoIterator<Item = Work>,
    ) -> Result<Self, FleetError> {
        let mut fleet = Self::new();
        for node in nodes {
            fleet.set_node(node);
        }
        for work in works {
            fleet.bind(work)?;
        }
        Ok(fleet)
    }

    /// Adds a node or replaces its description; work on it stays. Returns the old description.
    ///
    /// Work whose cards the new description no longer has keeps its CPU and memory only.
    pub fn set_node(&mut self, node: Node) -> Option<Arc<Node>> {
        let node = Arc::new(node);
        if let Some(&id) = self.by_name.get(&node.name) {
            let old = self.slots[id.index()].take();
            let (work, before) = match old {
                Some(slot) => {
                    self.totals.remove(&slot);
                    (slot.work, Some(slot.node))
                }
                None => (Vec::new(), None),
            };
            let mut slot = Slot::new(node, &mut self.kinds);
            for work_id in work {
                if let Some(held) = self.works.get(&work_id) {
                    slot.take(held);
                }
                slot.work.push(work_id);
            }
            self.put(id, slot);
            return before;
        }
        let slot = Slot::new(Arc::clone(&node), &mut self.kinds);
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.prints.push(0);
            NodeId(u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX))
        });
        self.by_name.insert(Arc::clone(&node.name), id);
        self.put(id, slot);
        None
    }

    /// Removes a node and the work on it, and returns both.
    pub fn remove_node(&mut self, name: &str) -> Option<(Arc<Node>, Vec<Work>)> {
        let id = self.by_name.remove(name)?;
        let slot = self.slots[id.index()].take()?;
        self.totals.remove(&slot);
        self.prints[id.index()] = 0;
        self.vacant.push(id);
        let works = slot.work.iter().filter_map(|work| {
            self.repelling.remove(work);
            self.swaying.remove(work);
            self.works.remove(work)
        });
        let works = works.collect();
        Some((slot.node, works))
    }

    /// Puts work on its node. Undone by `release`.
    pub fn bind(&mut self, work: Work) -> Result<(), FleetError> {
        let id = || Arc::clone(&work.id);
        if self.works.contains_key(&work.id) {
            return Err(FleetError::AlreadyBound { work: id() });
        }
        let unknown = || FleetError::UnknownNode {
            work: id(),
            node: Arc::clone(&work.node),
        };
        let node = self.find(&work.node).ok_or_else(unknown)?;
        let mut slot = self.slots[node.index()].take().ok_or_else(unknown)?;
        if let Some(taken) = &work.gpus
            && !slot.has(taken)
        {
            let (name, pool) = (Arc::clone(&work.node), taken.pool);
            self.slots[node.index()] = Some(slot);
            return Err(FleetError::UnknownCard {
                work: id(),
                node: name,
                pool,
            });
        }
        self.totals.remove(&slot);
        slot.take(&work);
        slot.work.push(id());
        self.put(node, slot);
        if !work.request.constraints.pod_anti_affinity.is_empty() {
            self.repelling.insert(id());
        }
        if work.request.sways_others() {
            self.swaying.insert(id());
        }
        self.works.insert(id(), work);
        Ok(())
    }

    /// Takes work off its node. Undone by `bind` of what it returns.
    pub fn release(&mut self, id: &str) -> Option<Work> {
        let work = self.works.remove(id)?;
        self.repelling.remove(id);
        self.swaying.remove(id);
        let node = self.find(&work.node)?;
        let mut slot = self.slots[node.index()].take()?;
        self.totals.remove(&slot);
        slot.give_back(&work);
        slot.work.retain(|held| **held != *id);
        self.put(node, slot);
        Some(work)
    }

    /// Labels of a namespace, for affinity terms that select namespaces.
    pub fn set_namespace(&mut self, name: &str, labels: Labels) {
        self.namespaces.insert(Arc::from(name), labels);
    }

    pub fn namespace_labels(&self, name: &str) -> Option<&Labels> {
        self.namespaces.get(name)
    }

    fn put(&mut self, id: NodeId, slot: Slot) {
        self.totals.add(&slot);
        self.prints[id.index()] = slot.fingerprint();
        self.slots[id.index()] = Some(slot);
    }

    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// Nodes in the order of their names.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Arc<Node>)> {
        self.by_name
            .values()
            .filter_map(|&id| Some((id, self.node(id)?)))
    }

    pub fn node(&self, id: NodeId) -> Option<&Arc<Node>> {
        self.slot(id).map(|slot| &slot.node)
    }

    pub fn free(&self, id: NodeId) -> Option<&Free> {
        self.slot(id).map(|slot| &slot.free)
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Every piece of work, by id.
    pub fn works(&self) -> impl Iterator<Item = &Work> {
        self.works.values()
    }

    pub fn work(&self, id: &str) -> Option<&Work> {
        self.works.get(id)
    }

    pub fn works_on(&self, id: NodeId) -> impl Iterator<Item = &Work> {
        let ids = self
            .slot(id)
            .map(|slot| slot.work.as_slice())
            .unwrap_or_default();
        ids.iter().filter_map(|work| self.works.get(work))
    }

    pub(crate) fn repelling(&self) -> impl Iterator<Item = &Work> {
        self.repelling.iter().filter_map(|id| self.works.get(id))
    }

    pub(crate) fn swaying(&self) -> impl Iterator<Item = &Work> {
        self.swaying.iter().filter_map(|id| self.works.get(id))
    }

    /// What the work on a node asks for, as scores by load count it.
    pub fn load(&self, id: NodeId) -> Option<Load> {
        self.slot(id).map(|slot| slot.load)
    }

    /// Sums over all nodes, kept up to date by every change.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    pub fn kind(&self, id: KindId) -> &Kind {
        self.kinds.get(id)
    }

    /// Every kind of GPU seen so far.
    pub fn kinds(&self) -> impl Iterator<Item = (KindId, &Kind)> {
        self.kinds.iter()
    }

    /// The kinds of GPU a request accepts here.
    pub fn accepted(&self, gpu: &GpuRequest) -> KindSet {
        self.kinds
            .iter()
            .filter(|(_, kind)| kind.accepted_by(gpu))
            .map(|(id, _)| id)
            .collect()
    }

    pub(crate) fn slot(&self, id: NodeId) -> Option<&Slot> {
        self.slots.get(id.index())?.as_ref()
    }

    pub(crate) fn slot_at(&self, index: usize) -> Option<&Slot> {
        self.slots.get(index)?.as_ref()
    }

    /// One number per node that changes when anything a placement there depends on changes.
    pub(crate) fn prints(&self) -> &[u64] {
        &self.prints
    }
}

/// Two fleets are equal when they hold the same nodes, work and free amounts, whatever the order
/// they were built in.
impl PartialEq for Fleet {
    fn eq(&self, other: &Self) -> bool {
        let same_node = |(name, &mine): (&Arc<str>, &NodeId)| {
            let Some(theirs) = other.find(name) else {
                return false;
            };
            match (self.slot(mine), other.slot(theirs)) {
                (Some(a), Some(b)) => {
                    a.node == b.node
                        && a.load == b.load
                        && a.free.same(&b.free, &self.kinds, &other.kinds)
                }
                _ => false,
            }
        };
        self.len() == other.len()
            && self.works == other.works
            && self.repelling == other.repelling
            && self.swaying == other.swaying
            && self.namespaces == other.namespaces
            && self.by_name.iter().all(same_node)
            && self.totals.same(&other.totals, &self.kinds, &other.kinds)
    }
}
