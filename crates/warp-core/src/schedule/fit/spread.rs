//! Topology spread constraints that must hold (`DoNotSchedule`).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fleet::{
    Fleet, Node, NodeId, NodePolicy, Operator, Request, Selector, Spread, WorkState,
};

use super::Failures;
use super::node::{selected, untolerated};
use super::pods::keys_match;
use crate::schedule::reason::Reason;

/// Every constraint of a request, with the pods of each domain counted.
#[derive(Debug)]
pub(super) struct Spreads {
    counted: Vec<Counted>,
}

#[derive(Debug)]
struct Counted {
    key: Arc<str>,
    max_skew: u32,
    /// Matching pods per domain, over the nodes that take part.
    domains: BTreeMap<Arc<str>, i64>,
    /// Pods in the emptiest domain; 0 while there are fewer domains than asked for.
    least: i64,
    /// 1 when the pod itself matches its own selector.
    own: i64,
}

impl Spreads {
    pub(super) fn count(fleet: &Fleet, request: &Request) -> Self {
        let constraints = &request.constraints.spread;
        let mut counted: Vec<_> = constraints
            .iter()
            .map(|spread| Counted {
                key: Arc::clone(&spread.topology_key),
                max_skew: spread.max_skew,
                domains: BTreeMap::new(),
                least: 0,
                own: i64::from(selects(spread, request, request)),
            })
            .collect();
        if constraints.is_empty() {
            return Self { counted };
        }
        for (id, node) in fleet.nodes() {
            // A node without one of the labels takes part in none of the constraints.
            if !constraints
                .iter()
                .all(|spread| node.labels.contains_key(&spread.topology_key))
            {
                continue;
            }
            for (spread, counted) in constraints.iter().zip(&mut counted) {
                if takes_part(spread, request, node)
                    && let Some(value) = node.labels.get(&spread.topology_key)
                {
                    let pods = matching_pods(fleet, spread, request, id);
                    *counted.domains.entry(Arc::clone(value)).or_default() += pods;
                }
            }
        }
        for (spread, counted) in constraints.iter().zip(&mut counted) {
            let enough = counted.domains.len() >= spread.min_domains.max(1) as usize;
            let least = counted.domains.values().copied().min();
            counted.least = least.filter(|_| enough).unwrap_or(0);
        }
        Self { counted }
    }

    pub(super) fn check(&self, node: &Node, failures: &mut impl Failures) {
        for counted in &self.counted {
            let key = || Arc::clone(&counted.key);
            let Some(value) = node.labels.get(&counted.key) else {
                failures.fail(|| Reason::NoTopologyLabel { key: key() });
                continue;
            };
            let here = counted.domains.get(value).copied().unwrap_or(0);
            let skew = here + counted.own - counted.least;
            if skew > i64::from(counted.max_skew) {
                failures.fail(|| Reason::Spread {
                    key: key(),
                    skew,
                    max: counted.max_skew,
                });
            }
        }
    }
}

pub(in crate::schedule) fn takes_part(spread: &Spread, request: &Request, node: &Node) -> bool {
    let constraints = &request.constraints;
    (spread.node_affinity_policy == NodePolicy::Ignore || selected(node, constraints))
        && (spread.node_taints_policy == NodePolicy::Ignore
            || untolerated(node, constraints).is_none())
}

pub(in crate::schedule) fn matching_pods(
    fleet: &Fleet,
    spread: &Spread,
    request: &Request,
    node: NodeId,
) -> i64 {
    // As kube-scheduler has it: a selector without any requirement counts no bound pod, though the
    // pod itself matches it.
    let keys = || {
        spread
            .match_label_keys
            .iter()
            .any(|key| request.labels.contains_key(key))
    };
    if spread.selector.as_ref().is_some_and(Selector::is_empty) && !keys() {
        return 0;
    }
    let counts = |work: &&crate::fleet::Work| {
        work.state != WorkState::Terminating
            && work.request.namespace == request.namespace
            && selects(spread, request, &work.request)
    };
    i64::try_from(fleet.works_on(node).filter(counts).count()).unwrap_or(i64::MAX)
}

fn selects(spread: &Spread, owner: &Request, other: &Request) -> bool {
    spread
        .selector
        .as_ref()
        .is_some_and(|selector| selector.matches(&other.labels))
        && keys_match(
            &spread.match_label_keys,
            &owner.labels,
            &other.labels,
            Operator::In,
        )
}
