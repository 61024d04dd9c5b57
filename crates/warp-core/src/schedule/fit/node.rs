//! What a node itself says: ready, cordoned, labels, taints, and the sums it has left.

use std::sync::Arc;

use crate::fleet::{Constraints, Effect, Free, Node, Request, Taint};

use super::Failures;
use crate::schedule::reason::{Reason, UNSCHEDULABLE};

pub(super) fn admits(node: &Node, request: &Request, failures: &mut impl Failures) {
    let constraints = &request.constraints;
    if !node.ready {
        failures.fail(|| Reason::NotReady);
    }
    if node.unschedulable
        && !tolerated(
            constraints,
            &Taint::new(UNSCHEDULABLE, "", Effect::NoSchedule),
        )
    {
        failures.fail(|| Reason::Unschedulable);
    }
    if let Some(wanted) = &constraints.node_name
        && *wanted != node.name
    {
        failures.fail(|| Reason::OtherNode {
            wanted: Arc::clone(wanted),
        });
    }
    if let Some(taint) = untolerated(node, constraints) {
        failures.fail(|| Reason::Taint(taint.clone()));
    }
    for (key, wanted) in &constraints.node_selector {
        if node.labels.get(key) != Some(wanted) {
            let (key, wanted) = (Arc::clone(key), Arc::clone(wanted));
            failures.fail(|| Reason::Selector { key, wanted });
        }
    }
    if !affinity_holds(node, constraints) {
        failures.fail(|| Reason::Affinity);
    }
}

fn tolerated(constraints: &Constraints, taint: &Taint) -> bool {
    constraints
        .tolerations
        .iter()
        .any(|toleration| toleration.tolerates(taint))
}

/// The first taint that keeps the pod off; soft taints never do.
pub(super) fn untolerated<'n>(node: &'n Node, constraints: &Constraints) -> Option<&'n Taint> {
    node.taints
        .iter()
        .filter(|taint| taint.effect != Effect::PreferNoSchedule)
        .find(|taint| !tolerated(constraints, taint))
}

fn affinity_holds(node: &Node, constraints: &Constraints) -> bool {
    let matches = |term: &crate::fleet::NodeTerm| term.matches(&node.name, &node.labels);
    constraints
        .node_affinity
        .as_ref()
        .is_none_or(|terms| terms.iter().any(matches))
}

/// `nodeSelector` and required affinity together, as spread constraints honour them.
pub(super) fn selected(node: &Node, constraints: &Constraints) -> bool {
    let labelled = |(key, value): (&Arc<str>, &Arc<str>)| node.labels.get(key) == Some(value);
    constraints.node_selector.iter().all(labelled) && affinity_holds(node, constraints)
}

/// Every volume must be within reach.
pub(super) fn reaches_volumes(node: &Node, request: &Request, failures: &mut impl Failures) {
    for reach in &request.constraints.volumes {
        let holds = |term: &crate::fleet::NodeTerm| term.matches(&node.name, &node.labels);
        if !reach.nodes.iter().any(holds) {
            let claim = || Arc::clone(&reach.claim);
            failures.fail(|| Reason::Volume { claim: claim() });
        }
    }
}

/// Everything but memory, which few requests share: see `Filter::fits_but_for_memory`.
pub(super) fn has_room(node: &Node, free: &Free, request: &Request, failures: &mut impl Failures) {
    if free.pods < 1 {
        failures.fail(|| Reason::TooManyPods { limit: node.pods });
    }
    let asked = &request.resources;
    let (left, all) = (&free.resources, &node.allocatable);
    let mut need = |name: &str, needed: i64, free: i64, total: i64| {
        // As in Kubernetes: asking for nothing fits even an over-committed node.
        if needed > 0 && needed > free {
            let resource = || Arc::from(name);
            failures.fail(|| Reason::Insufficient {
                resource: resource(),
                needed,
                free,
                total,
            });
        }
    };
    need("cpu", asked.cpu_milli, left.cpu_milli, all.cpu_milli);
    for (name, &needed) in &asked.extended {
        need(name, needed, left.extended(name), all.extended(name));
    }
}

pub(super) fn has_memory(
    node: &Node,
    free: &Free,
    request: &Request,
    failures: &mut impl Failures,
) {
    let (needed, left) = (request.resources.memory_bytes, free.resources.memory_bytes);
    if needed > 0 && needed > left {
        failures.fail(|| Reason::Insufficient {
            resource: Arc::from("memory"),
            needed,
            free: left,
            total: node.allocatable.memory_bytes,
        });
    }
}
