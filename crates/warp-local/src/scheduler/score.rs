//! Preferences: which of the nodes a pod fits it would rather have. Only asked when a pod, or a node, states any.

use k8s_openapi::api::core::v1::{Pod, PodSpec, WeightedPodAffinityTerm};
use warp_core::fleet::{Effect, Fleet, Node, NodeId, Request};
use warp_core::schedule::fit::Filter;

use super::request::{selector, spread, term};

/// Does the pod itself state a preference?
pub(super) fn has_preferences(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let affinity = spec.affinity.as_ref();
    let node = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let soft_spread = spec
        .topology_spread_constraints
        .iter()
        .flatten()
        .any(|spread| spread.when_unsatisfiable == "ScheduleAnyway");
    let pods = affinity.is_some_and(|affinity| {
        let near = affinity.pod_affinity.as_ref().and_then(|near| {
            near.preferred_during_scheduling_ignored_during_execution
                .as_ref()
        });
        let apart = affinity.pod_anti_affinity.as_ref();
        let apart = apart.and_then(|apart| {
            apart
                .preferred_during_scheduling_ignored_during_execution
                .as_ref()
        });
        near.is_some_and(|terms| !terms.is_empty()) || apart.is_some_and(|terms| !terms.is_empty())
    });
    soft_spread
        || pods
        || node.is_some_and(|node| {
            node.preferred_during_scheduling_ignored_during_execution
                .as_ref()
                .is_some_and(|terms| !terms.is_empty())
        })
}

/// The best node for a pod by what it and the nodes prefer, then by free CPU.
pub(super) fn best(fleet: &Fleet, request: &Request, pod: &Pod) -> Option<NodeId> {
    let filter = Filter::new(fleet, request);
    let fitting: Vec<NodeId> = fleet
        .nodes()
        .map(|(id, _)| id)
        .filter(|id| filter.fits(*id))
        .collect();
    let spec = pod.spec.as_ref()?;
    fitting.into_iter().max_by_key(|id| {
        let (Some(node), Some(free)) = (fleet.node(*id), fleet.free(*id)) else {
            return (i64::MIN, 0, String::new());
        };
        let score = tainted(node, request)
            + wanted_node(node, spec)
            + wanted_pods(fleet, request, spec, node)
            + spread_out(fleet, request, spec, node);
        (score, free.resources.cpu_milli, node.name.to_string())
    })
}

/// A taint that prefers no pods weighs like a strong preference against.
fn tainted(node: &Node, request: &Request) -> i64 {
    let soft = node
        .taints
        .iter()
        .filter(|taint| taint.effect == Effect::PreferNoSchedule);
    let untolerated = soft.filter(|taint| {
        !request
            .constraints
            .tolerations
            .iter()
            .any(|toleration| toleration.tolerates(taint))
    });
    -300 * i64::try_from(untolerated.count()).unwrap_or(0)
}

fn wanted_node(node: &Node, spec: &PodSpec) -> i64 {
    let preferred = spec.affinity.as_ref().and_then(|affinity| {
        affinity
            .node_affinity
            .as_ref()?
            .preferred_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let weights = preferred
        .into_iter()
        .flatten()
        .filter(|preference| term(&preference.preference).matches(&node.name, &node.labels));
    2 * weights
        .map(|preference| i64::from(preference.weight))
        .sum::<i64>()
}

fn wanted_pods(fleet: &Fleet, request: &Request, spec: &PodSpec, node: &Node) -> i64 {
    let Some(affinity) = &spec.affinity else {
        return 0;
    };
    let near = affinity.pod_affinity.as_ref().and_then(|near| {
        near.preferred_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let apart = affinity.pod_anti_affinity.as_ref();
    let apart = apart.and_then(|apart| {
        apart
            .preferred_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let sum = |terms: Option<&Vec<WeightedPodAffinityTerm>>| -> i64 {
        terms
            .into_iter()
            .flatten()
            .map(|term| i64::from(term.weight) * matching(fleet, request, term, node))
            .sum()
    };
    sum(near) - sum(apart)
}

/// How many pods in the node's domain a term means.
fn matching(
    fleet: &Fleet,
    request: &Request,
    weighted: &WeightedPodAffinityTerm,
    node: &Node,
) -> i64 {
    let term = &weighted.pod_affinity_term;
    let Some(domain) = node.labels.get(term.topology_key.as_str()) else {
        return 0;
    };
    let Some(wanted) = term.label_selector.as_ref().map(selector) else {
        return 0;
    };
    let here = fleet.works().filter(|work| {
        let namespaces = term.namespaces.as_deref().unwrap_or_default();
        let in_namespace = if namespaces.is_empty() {
            work.request.namespace == request.namespace
        } else {
            namespaces
                .iter()
                .any(|name| **name == *work.request.namespace)
        };
        in_namespace
            && wanted.matches(&work.request.labels)
            && fleet
                .find(&work.node)
                .and_then(|id| fleet.node(id))
                .and_then(|node| node.labels.get(term.topology_key.as_str()))
                == Some(domain)
    });
    i64::try_from(here.count()).unwrap_or(i64::MAX)
}

/// Soft spreading: fewer pods of the same kind in the node's domain is better.
fn spread_out(fleet: &Fleet, request: &Request, spec: &PodSpec, node: &Node) -> i64 {
    let soft = spec
        .topology_spread_constraints
        .iter()
        .flatten()
        .filter(|spread| spread.when_unsatisfiable == "ScheduleAnyway");
    soft.map(|constraint| {
        let constraint = spread(constraint);
        let Some(domain) = node.labels.get(&constraint.topology_key) else {
            return -1000;
        };
        let same = fleet.works().filter(|work| {
            work.request.namespace == request.namespace
                && constraint
                    .selector
                    .as_ref()
                    .is_some_and(|selector| selector.matches(&work.request.labels))
                && fleet
                    .find(&work.node)
                    .and_then(|id| fleet.node(id))
                    .and_then(|node| node.labels.get(&constraint.topology_key))
                    == Some(domain)
        });
        -100 * i64::try_from(same.count()).unwrap_or(0)
    })
    .sum()
}
