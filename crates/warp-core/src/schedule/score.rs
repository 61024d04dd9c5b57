//! Which of the nodes a request fits it would rather have: the scores of kube-scheduler's default
//! plugins, with their weights (image locality left out).
//!
//! A rule gives a node 0 to 100 and compares it with the other nodes of the list, so scores hold for
//! one list only. What fits is `fit`'s; what is best for the fleet is a strategy's.

mod load;
mod pods;
mod spread;

use crate::fleet::{Effect, Fleet, Node, NodeId, Request};

/// The best a rule can say of a node.
const FULL: i64 = 100;

/// The rules, each one plugin of kube-scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Taints,
    NodeAffinity,
    Spread,
    PodAffinity,
    LeastAllocated,
    Balance,
}

impl Rule {
    pub const ALL: [Self; 6] = [
        Self::Taints,
        Self::NodeAffinity,
        Self::Spread,
        Self::PodAffinity,
        Self::LeastAllocated,
        Self::Balance,
    ];

    /// What users say of places; the others weigh how full a node is, which a strategy does too.
    const STATED: [Self; 4] = [
        Self::Taints,
        Self::NodeAffinity,
        Self::Spread,
        Self::PodAffinity,
    ];

    /// The plugin's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Taints => "TaintToleration",
            Self::NodeAffinity => "NodeAffinity",
            Self::Spread => "PodTopologySpread",
            Self::PodAffinity => "InterPodAffinity",
            Self::LeastAllocated => "NodeResourcesFit",
            Self::Balance => "NodeResourcesBalancedAllocation",
        }
    }

    const fn weight(self) -> i64 {
        match self {
            Self::Taints => 3,
            Self::NodeAffinity | Self::Spread | Self::PodAffinity => 2,
            Self::LeastAllocated | Self::Balance => 1,
        }
    }

    /// The weighted score of every node in the list, on all of which the request fits.
    pub fn scores(self, fleet: &Fleet, request: &Request, nodes: &[NodeId]) -> Vec<i64> {
        let mut scores = match self {
            Self::Taints => taints(fleet, request, nodes),
            Self::NodeAffinity => node_affinity(fleet, request, nodes),
            Self::Spread => spread::scores(fleet, request, nodes),
            Self::PodAffinity => pods::scores(fleet, request, nodes),
            Self::LeastAllocated => load::least_allocated(fleet, request, nodes),
            Self::Balance => load::balance(fleet, request, nodes),
        };
        for score in &mut scores {
            *score *= self.weight();
        }
        scores
    }
}

/// kube-scheduler's score of every node in the list, on all of which the request fits.
pub fn scores(fleet: &Fleet, request: &Request, nodes: &[NodeId]) -> Vec<i64> {
    sum(&Rule::ALL, fleet, request, nodes)
}

/// The nodes of the list that suit best what the request, the nodes' soft taints and the pods that
/// are there already state as preferences.
pub fn preferred(fleet: &Fleet, request: &Request, nodes: &[NodeId]) -> Vec<NodeId> {
    let scores = sum(&Rule::STATED, fleet, request, nodes);
    let best = scores.iter().max().copied();
    let all = nodes.iter().zip(scores);
    all.filter(|(_, score)| Some(*score) == best)
        .map(|(node, _)| *node)
        .collect()
}

/// Whether anything states a preference about the places of this request.
pub fn has_preferences(fleet: &Fleet, request: &Request) -> bool {
    !request.preferences.is_empty()
        || fleet.totals().has_soft_taints()
        || pods::is_swayed(fleet, request)
}

fn sum(rules: &[Rule], fleet: &Fleet, request: &Request, nodes: &[NodeId]) -> Vec<i64> {
    let mut total = vec![0; nodes.len()];
    for rule in rules {
        for (sum, score) in total.iter_mut().zip(rule.scores(fleet, request, nodes)) {
            *sum += score;
        }
    }
    total
}

/// A number for every node of the list; 0 for a node that is not there.
fn each(fleet: &Fleet, nodes: &[NodeId], value: impl Fn(NodeId, &Node) -> i64) -> Vec<i64> {
    let of = |&id: &NodeId| fleet.node(id).map_or(0, |node| value(id, node));
    nodes.iter().map(of).collect()
}

/// Soft taints: the fewer the request does not tolerate, the better.
fn taints(fleet: &Fleet, request: &Request, nodes: &[NodeId]) -> Vec<i64> {
    let mut counts = each(fleet, nodes, |_, node| {
        let soft = node.taints.iter().filter(|taint| {
            let tolerates = |one: &crate::fleet::Toleration| one.tolerates(taint);
            taint.effect == Effect::PreferNoSchedule
                && !request.constraints.tolerations.iter().any(tolerates)
        });
        soft.count().cast_signed() as i64
    });
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    for count in &mut counts {
        *count = FULL - FULL * *count / most;
    }
    counts
}

fn node_affinity(fleet: &Fleet, request: &Request, nodes: &[NodeId]) -> Vec<i64> {
    let wanted = &request.preferences.node_affinity;
    let mut sums = each(fleet, nodes, |_, node| {
        let held = wanted
            .iter()
            .filter(|wanted| wanted.term.matches(&node.name, &node.labels));
        held.map(|wanted| i64::from(wanted.weight)).sum()
    });
    let most = sums.iter().copied().max().unwrap_or(0).max(1);
    for sum in &mut sums {
        *sum = FULL * *sum / most;
    }
    sums
}
