//! Why a request does not fit: one sentence folded from the reasons of every node, who holds what it
//! waits for, and the smallest change that would make it fit now.

mod change;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub use change::{Change, OtherUnit, smallest_changes};

use crate::fleet::{Fleet, NodeId, Request, Work};
use crate::schedule::fit::Filter;
use crate::schedule::{Reason, Scope};

/// Why a request fits nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub request: Arc<str>,
    /// Nodes that were looked at.
    pub nodes: usize,
    /// Reasons by how many nodes give them first, most frequent first.
    pub reasons: Vec<Folded>,
    /// The node that lacks least, where lack of room is all that is wrong, and who holds the room.
    pub nearest: Option<Box<Nearest>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folded {
    pub label: String,
    pub nodes: usize,
    /// One node's reason, for its numbers.
    pub example: Reason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearest {
    pub node: Arc<str>,
    /// What is missing there.
    pub lacks: Reason,
    /// Work that holds it, the largest holder first.
    pub holders: Vec<Holder>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub id: Arc<str>,
    pub name: Arc<str>,
    pub namespace: Arc<str>,
    /// Of what is missing: thousandths of GPU, of a core, bytes, or units.
    pub amount: i64,
    pub since: i64,
}

impl Explanation {
    pub fn new(fleet: &Fleet, request: &Request) -> Self {
        Self::within(fleet, request, Scope::All)
    }

    /// The same, over some nodes only.
    pub fn within(fleet: &Fleet, request: &Request, scope: Scope<'_>) -> Self {
        let filter = Filter::new(fleet, request);
        let nodes: Vec<NodeId> = match scope {
            Scope::All => fleet.nodes().map(|(id, _)| id).collect(),
            Scope::Only(nodes) => nodes.to_vec(),
        };
        let mut folded = BTreeMap::<String, (usize, Reason)>::new();
        let mut nearest: Option<(u64, NodeId, Reason)> = None;
        for &id in &nodes {
            let reasons = filter.reasons(id);
            if let Some((lack, reason)) = lack(&reasons)
                && nearest.as_ref().is_none_or(|(least, ..)| lack < *least)
            {
                nearest = Some((lack, id, reason.clone()));
            }
            // A node is counted under its first reason, so that the counts add up to the fleet.
            if let Some(reason) = reasons.into_iter().next() {
                folded
                    .entry(reason.label())
                    .or_insert_with(|| (0, reason))
                    .0 += 1;
            }
        }
        let fold = |(label, (nodes, example))| Folded {
            label,
            nodes,
            example,
        };
        let mut reasons: Vec<_> = folded.into_iter().map(fold).collect();
        reasons.sort_by(|a, b| b.nodes.cmp(&a.nodes).then_with(|| a.label.cmp(&b.label)));
        Self {
            request: Arc::clone(&request.name),
            nodes: nodes.len(),
            reasons,
            nearest: nearest
                .and_then(|(_, id, lacks)| Nearest::new(fleet, id, lacks))
                .map(Box::new),
        }
    }
}

/// How far a node is from fitting, in thousandths of what is asked, when only room is missing.
fn lack(reasons: &[Reason]) -> Option<(u64, &Reason)> {
    if reasons.is_empty() || !reasons.iter().all(Reason::is_capacity) {
        return None;
    }
    let part = |missing: i64, needed: i64| {
        let share = i128::from(missing.max(0)) * 1000 / i128::from(needed.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    };
    let of = |reason: &Reason| match *reason {
        Reason::FewGpus { needed, idle, .. } | Reason::FewParts { needed, idle, .. } => {
            part(i64::from(needed) - i64::from(idle), i64::from(needed))
        }
        Reason::NoRoomOnCard { needed, largest } => {
            part(i64::from(needed) - i64::from(largest), i64::from(needed))
        }
        Reason::Insufficient { needed, free, .. } => part(needed - free, needed),
        _ => 1000,
    };
    let total = reasons.iter().map(of).sum();
    reasons.first().map(|reason| (total, reason))
}

impl Nearest {
    fn new(fleet: &Fleet, id: NodeId, lacks: Reason) -> Option<Self> {
        let held = |work: &Work| -> i64 {
            let request = &work.request;
            let gpus = || {
                let asked = request
                    .gpu
                    .as_ref()
                    .map_or(0, crate::fleet::GpuRequest::total_milli);
                let named = request.resources.extended.iter();
                let named: i64 = named
                    .filter(|(name, _)| fleet.kinds().any(|(_, kind)| kind.resource == **name))
                    .map(|(_, &count)| count.saturating_mul(1000))
                    .sum();
                i64::try_from(asked)
                    .unwrap_or(i64::MAX)
                    .saturating_add(named)
            };
            match &lacks {
                Reason::FewGpus { .. } | Reason::FewParts { .. } | Reason::NoRoomOnCard { .. } => {
                    gpus()
                }
                Reason::Insufficient { resource, .. } => match &**resource {
                    "cpu" => request.resources.cpu_milli,
                    "memory" => request.resources.memory_bytes,
                    name => request.resources.extended(name),
                },
                Reason::HostPort { holder, .. } => i64::from(request.name == *holder),
                _ => 1,
            }
        };
        let holder = |work: &Work| Holder {
            id: Arc::clone(&work.id),
            name: Arc::clone(&work.request.name),
            namespace: Arc::clone(&work.request.namespace),
            amount: held(work),
            since: work.since,
        };
        let works = fleet
            .works_on(id)
            .map(holder)
            .filter(|holder| holder.amount > 0);
        let mut holders: Vec<_> = works.collect();
        holders.sort_by(|a, b| b.amount.cmp(&a.amount).then_with(|| a.id.cmp(&b.id)));
        Some(Self {
            node: Arc::clone(&fleet.node(id)?.name),
            lacks,
            holders,
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes == 0 {
            return f.write_str("the fleet has no nodes");
        }
        write!(f, "0 of {} nodes fit", self.nodes)?;
        for (at, folded) in self.reasons.iter().enumerate() {
            let joint = if at == 0 { ": " } else { ", " };
            write!(f, "{joint}{} {}", folded.nodes, folded.label)?;
        }
        if let Some(nearest) = &self.nearest {
            write!(
                f,
                "; nearest is {} ({}",
                nearest.node,
                nearest.lacks.numbers()
            )?;
            let shown = nearest.holders.iter().take(3).map(|holder| &*holder.name);
            let shown: Vec<_> = shown.collect();
            if !shown.is_empty() {
                let more = nearest.holders.len() - shown.len();
                write!(f, ", held by {}", shown.join(", "))?;
                if more > 0 {
                    write!(f, " and {more} more")?;
                }
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}
