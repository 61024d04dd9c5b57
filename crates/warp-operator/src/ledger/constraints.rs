//! A pod's required constraints in the fleet's words. Preferences are left to the strategy.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSpec, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use warp_core::fleet::{
    Constraints, Effect, Expression, HostPort, NodePolicy, NodeTerm, Operator, PodTerm, Selector,
    Spread, Toleration, TolerationOperator,
};

pub(super) fn translate(spec: &PodSpec) -> Constraints {
    let affinity = spec.affinity.as_ref();
    let node = affinity
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|node| {
            node.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    let near = affinity
        .and_then(|affinity| affinity.pod_affinity.as_ref())
        .and_then(|pod| {
            pod.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    let apart = affinity
        .and_then(|affinity| affinity.pod_anti_affinity.as_ref())
        .and_then(|pod| {
            pod.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    let spread = spec.topology_spread_constraints.iter().flatten();
    Constraints {
        node_name: None,
        node_selector: spec.node_selector.iter().flatten().map(pair).collect(),
        node_affinity: node.map(|node| node.node_selector_terms.iter().map(term).collect()),
        tolerations: spec.tolerations.iter().flatten().map(toleration).collect(),
        pod_affinity: near.into_iter().flatten().map(pod_term).collect(),
        pod_anti_affinity: apart.into_iter().flatten().map(pod_term).collect(),
        spread: spread
            .filter(|one| one.when_unsatisfiable == "DoNotSchedule")
            .map(spreading)
            .collect(),
        host_ports: host_ports(spec),
    }
}

fn text(text: &str) -> Arc<str> {
    Arc::from(text)
}

fn pair((key, value): (&String, &String)) -> (Arc<str>, Arc<str>) {
    (text(key), text(value))
}

fn texts(list: Option<&Vec<String>>) -> Vec<Arc<str>> {
    list.into_iter().flatten().map(|one| text(one)).collect()
}

fn term(term: &NodeSelectorTerm) -> NodeTerm {
    NodeTerm {
        match_expressions: term
            .match_expressions
            .iter()
            .flatten()
            .map(requirement)
            .collect(),
        match_fields: term
            .match_fields
            .iter()
            .flatten()
            .map(requirement)
            .collect(),
    }
}

fn requirement(requirement: &NodeSelectorRequirement) -> Expression {
    Expression {
        key: text(&requirement.key),
        operator: operator(&requirement.operator),
        values: texts(requirement.values.as_ref()),
    }
}

/// The API server accepts no other operator; should one appear, matching nothing is the safe side.
fn operator(name: &str) -> Operator {
    match name {
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::Gt,
        "Lt" => Operator::Lt,
        _ => Operator::In,
    }
}

fn toleration(one: &k8s_openapi::api::core::v1::Toleration) -> Toleration {
    Toleration {
        key: text(one.key.as_deref().unwrap_or_default()),
        operator: match one.operator.as_deref() {
            Some("Exists") => TolerationOperator::Exists,
            _ => TolerationOperator::Equal,
        },
        value: text(one.value.as_deref().unwrap_or_default()),
        effect: match one.effect.as_deref() {
            Some("NoSchedule") => Some(Effect::NoSchedule),
            Some("PreferNoSchedule") => Some(Effect::PreferNoSchedule),
            Some("NoExecute") => Some(Effect::NoExecute),
            _ => None,
        },
    }
}

fn selector(selector: &LabelSelector) -> Selector {
    let expression = |one: &LabelSelectorRequirement| Expression {
        key: text(&one.key),
        operator: operator(&one.operator),
        values: texts(one.values.as_ref()),
    };
    Selector {
        match_labels: selector.match_labels.iter().flatten().map(pair).collect(),
        match_expressions: selector
            .match_expressions
            .iter()
            .flatten()
            .map(expression)
            .collect(),
    }
}

fn pod_term(term: &PodAffinityTerm) -> PodTerm {
    PodTerm {
        selector: term.label_selector.as_ref().map(selector),
        topology_key: text(&term.topology_key),
        namespaces: term
            .namespaces
            .iter()
            .flatten()
            .map(|one| text(one))
            .collect(),
        namespace_selector: term.namespace_selector.as_ref().map(selector),
        match_label_keys: texts(term.match_label_keys.as_ref()),
        mismatch_label_keys: texts(term.mismatch_label_keys.as_ref()),
    }
}

fn spreading(one: &TopologySpreadConstraint) -> Spread {
    let policy = |name: Option<&String>, absent| match name.map(String::as_str) {
        Some("Honor") => NodePolicy::Honor,
        Some("Ignore") => NodePolicy::Ignore,
        _ => absent,
    };
    Spread {
        max_skew: u32::try_from(one.max_skew).unwrap_or(1),
        topology_key: text(&one.topology_key),
        selector: one.label_selector.as_ref().map(selector),
        min_domains: one
            .min_domains
            .and_then(|count| u32::try_from(count).ok())
            .unwrap_or(1),
        node_affinity_policy: policy(one.node_affinity_policy.as_ref(), NodePolicy::Honor),
        node_taints_policy: policy(one.node_taints_policy.as_ref(), NodePolicy::Ignore),
        match_label_keys: texts(one.match_label_keys.as_ref()),
    }
}

fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let ports = spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|container| container.ports.iter().flatten());
    let host = ports.filter_map(|port| {
        let number = u16::try_from(port.host_port?)
            .ok()
            .filter(|number| *number > 0)?;
        Some(HostPort {
            ip: text(port.host_ip.as_deref().unwrap_or_default()),
            protocol: text(port.protocol.as_deref().unwrap_or("TCP")),
            port: number,
        })
    });
    host.collect()
}
