//! Why a request does not fit: one sentence folded from the reasons of every node.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::fleet::{Fleet, Request};
use crate::schedule::Reason;
use crate::schedule::fit::Filter;

/// Why a request fits nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub request: Arc<str>,
    /// Nodes in the fleet.
    pub nodes: usize,
    /// Reasons by how many nodes give them first, most frequent first.
    pub reasons: Vec<Folded>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folded {
    pub label: String,
    pub nodes: usize,
    /// One node's reason, for its numbers.
    pub example: Reason,
}

impl Explanation {
    pub fn new(fleet: &Fleet, request: &Request) -> Self {
        let filter = Filter::new(fleet, request);
        let mut folded = BTreeMap::<String, (usize, Reason)>::new();
        for (id, _) in fleet.nodes() {
            // A node is counted under its first reason, so that the counts add up to the fleet.
            if let Some(reason) = filter.reasons(id).into_iter().next() {
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
            nodes: fleet.len(),
            reasons,
        }
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
        Ok(())
    }
}
