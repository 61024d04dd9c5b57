//! A pod in the core's words: what it asks for, where it may run and where it would rather run.
//!
//! The only reading of pods for placement: the operator's ledger and the embedded engine's scheduler
//! both use it. It decides nothing, and it reads every pod, also one no API server has seen yet.

mod affinity;
mod resources;
#[cfg(test)]
mod tests;
pub mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Container, NodeSelector, PodSpec, Taint as PodTaint, Toleration as PodToleration,
    TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use warp_core::fleet::{
    Constraints, Effect, HostPort, Labels, NodePolicy, NodeTerm, Preferences, Request, Spread,
    Taint, Toleration, TolerationOperator,
};

pub use affinity::selector;
pub use resources::{amounts, limits};

/// The request of a pod, GPUs as named resources.
pub fn request(meta: &ObjectMeta, spec: &PodSpec) -> Request {
    Request {
        name: text(meta.name.as_deref()),
        namespace: text(meta.namespace.as_deref()),
        labels: labels(meta.labels.as_ref()),
        resources: resources::requests(spec),
        load: Some(resources::load(spec)),
        constraints: constraints(spec),
        preferences: preferences(spec),
        priority: spec.priority.unwrap_or(0),
        ..Request::default()
    }
}

pub fn labels(labels: Option<&BTreeMap<String, String>>) -> Labels {
    let pairs = labels.into_iter().flatten();
    pairs
        .map(|(key, value)| (Arc::from(key.as_str()), Arc::from(value.as_str())))
        .collect()
}

/// The alternatives of a node selector, one of which must hold.
pub fn node_terms(selector: &NodeSelector) -> Vec<NodeTerm> {
    let terms = selector.node_selector_terms.iter();
    terms.map(affinity::node_term).collect()
}

/// `None` for an effect that no Kubernetes has.
pub fn taint(taint: &PodTaint) -> Option<Taint> {
    let value = taint.value.as_deref().unwrap_or_default();
    Some(Taint::new(&taint.key, value, effect(&taint.effect)?))
}

fn effect(name: &str) -> Option<Effect> {
    match name {
        "NoSchedule" => Some(Effect::NoSchedule),
        "PreferNoSchedule" => Some(Effect::PreferNoSchedule),
        "NoExecute" => Some(Effect::NoExecute),
        _ => None,
    }
}

fn toleration(one: &PodToleration) -> Toleration {
    Toleration {
        key: text(one.key.as_deref()),
        operator: match one.operator.as_deref() {
            Some("Exists") => TolerationOperator::Exists,
            _ => TolerationOperator::Equal,
        },
        value: text(one.value.as_deref()),
        effect: one.effect.as_deref().and_then(effect),
    }
}

fn text(text: Option<&str>) -> Arc<str> {
    Arc::from(text.unwrap_or_default())
}

fn texts(list: Option<&Vec<String>>) -> Vec<Arc<str>> {
    let list = list.into_iter().flatten();
    list.map(|one| Arc::from(one.as_str())).collect()
}

fn constraints(spec: &PodSpec) -> Constraints {
    Constraints {
        node_name: None,
        node_selector: labels(spec.node_selector.as_ref()),
        node_affinity: affinity::required_node(spec),
        tolerations: spec.tolerations.iter().flatten().map(toleration).collect(),
        pod_affinity: affinity::required_near(spec),
        pod_anti_affinity: affinity::required_apart(spec),
        spread: spreads(spec, "DoNotSchedule"),
        host_ports: host_ports(spec),
        // The pod names claims; only whoever knows those can say more.
        volumes: Vec::new(),
    }
}

fn preferences(spec: &PodSpec) -> Preferences {
    Preferences {
        node_affinity: affinity::preferred_node(spec),
        pod_affinity: affinity::preferred_near(spec),
        pod_anti_affinity: affinity::preferred_apart(spec),
        spread: spreads(spec, "ScheduleAnyway"),
        ..Preferences::default()
    }
}

fn spreads(spec: &PodSpec, when_unsatisfiable: &str) -> Vec<Spread> {
    let all = spec.topology_spread_constraints.iter().flatten();
    all.filter(|one| one.when_unsatisfiable == when_unsatisfiable)
        .map(spread)
        .collect()
}

fn spread(one: &TopologySpreadConstraint) -> Spread {
    let policy = |name: Option<&String>, absent| match name.map(String::as_str) {
        Some("Honor") => NodePolicy::Honor,
        Some("Ignore") => NodePolicy::Ignore,
        _ => absent,
    };
    let number = |number: i32| u32::try_from(number).unwrap_or(1);
    Spread {
        max_skew: number(one.max_skew),
        topology_key: Arc::from(one.topology_key.as_str()),
        selector: one.label_selector.as_ref().map(selector),
        min_domains: one.min_domains.map_or(1, number),
        node_affinity_policy: policy(one.node_affinity_policy.as_ref(), NodePolicy::Honor),
        node_taints_policy: policy(one.node_taints_policy.as_ref(), NodePolicy::Ignore),
        match_label_keys: texts(one.match_label_keys.as_ref()),
    }
}

/// An init container that goes on running beside the others.
fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let early = spec.init_containers.iter().flatten();
    let running = spec
        .containers
        .iter()
        .chain(early.filter(|container| is_sidecar(container)));
    let ports = running.flat_map(|container| container.ports.iter().flatten());
    let host = ports.filter_map(|port| {
        let number = u16::try_from(port.host_port?).ok();
        Some(HostPort {
            ip: text(port.host_ip.as_deref()),
            protocol: Arc::from(port.protocol.as_deref().unwrap_or("TCP")),
            port: number.filter(|number| *number > 0)?,
        })
    });
    host.collect()
}
