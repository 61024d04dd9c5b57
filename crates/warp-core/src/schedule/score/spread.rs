//! Topology spread constraints that need not hold (`ScheduleAnyway`).

use std::collections::BTreeMap;

use crate::fleet::{Fleet, Node, NodeId, Request, Spread, SpreadRules};
use crate::schedule::fit::spread::{matching_pods, takes_part};

use super::FULL;

const HOSTNAME: &str = "kubernetes.io/hostname";

/// The fewer pods of its group in a node's domains, the better. A node outside the constraints gets
/// nothing.
pub(super) fn scores(fleet: &Fleet, request: &Request, nodes: &[NodeId]) -> Vec<i64> {
    let constraints = &request.preferences.spread;
    if constraints.is_empty() {
        return vec![0; nodes.len()];
    }
    let counted: Vec<Counted<'_>> = constraints
        .iter()
        .map(|spread| Counted::new(fleet, request, spread, nodes))
        .collect();
    let pods = |&id: &NodeId| {
        let node = fleet.node(id).filter(|node| is_inside(request, node))?;
        let sum: f64 = counted
            .iter()
            .filter_map(|counted| counted.score(fleet, request, id, node))
            .sum();
        Some(whole(sum))
    };
    let raw: Vec<Option<i64>> = nodes.iter().map(pods).collect();
    let most = raw.iter().flatten().copied().max().unwrap_or(0);
    let least = raw.iter().flatten().copied().min().unwrap_or(0);
    let score = |raw: Option<i64>| match raw {
        None => 0,
        Some(_) if most == 0 => FULL,
        Some(raw) => FULL * (most + least - raw) / most,
    };
    raw.into_iter().map(score).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "counts of pods are far below 2^53"
)]
fn whole(value: f64) -> i64 {
    value.round() as i64
}

/// Whether the constraints speak of this node at all.
fn is_inside(request: &Request, node: &Node) -> bool {
    let preferences = &request.preferences;
    preferences.spread_by == SpreadRules::Cluster
        || preferences
            .spread
            .iter()
            .all(|spread| node.labels.contains_key(&spread.topology_key))
}

fn value<'n>(node: &'n Node, spread: &Spread) -> &'n str {
    node.labels
        .get(&spread.topology_key)
        .map_or("", |value| value)
}

/// One constraint with the pods of each domain that the listed nodes are in.
struct Counted<'a> {
    spread: &'a Spread,
    domains: BTreeMap<&'a str, i64>,
    /// Keeps a constraint of few domains from being drowned by one of many.
    weight: f64,
}

impl<'a> Counted<'a> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a fleet has fewer than 2^53 nodes"
    )]
    fn new(fleet: &'a Fleet, request: &Request, spread: &'a Spread, nodes: &[NodeId]) -> Self {
        let listed = nodes.iter().filter_map(|&id| fleet.node(id));
        let inside = listed.filter(|node| is_inside(request, node));
        if &*spread.topology_key == HOSTNAME {
            // Every node is its own domain; its pods are counted when it is scored.
            return Self {
                spread,
                domains: BTreeMap::new(),
                weight: (inside.count() as f64 + 2.0).ln(),
            };
        }
        let mut domains: BTreeMap<&str, i64> =
            inside.map(|node| (value(node, spread), 0)).collect();
        for (id, node) in fleet.nodes() {
            if is_inside(request, node)
                && takes_part(spread, request, node)
                && let Some(count) = domains.get_mut(value(node, spread))
            {
                *count += matching_pods(fleet, spread, request, id);
            }
        }
        Self {
            spread,
            weight: (domains.len() as f64 + 2.0).ln(),
            domains,
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of pods are far below 2^53"
    )]
    fn score(&self, fleet: &Fleet, request: &Request, id: NodeId, node: &Node) -> Option<f64> {
        let value = node.labels.get(&self.spread.topology_key)?;
        let pods = if &*self.spread.topology_key == HOSTNAME {
            matching_pods(fleet, self.spread, request, id)
        } else {
            self.domains.get(&**value).copied().unwrap_or(0)
        };
        // A larger allowed skew makes the same difference weigh less.
        Some(pods as f64 * self.weight + f64::from(self.spread.max_skew) - 1.0)
    }
}
