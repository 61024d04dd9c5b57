//! Pods and nodes as the core's fit sees them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Affinity, Container, Node as KubeNode, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    Pod, PodAffinityTerm, PodSpec, Taint as KubeTaint, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use warp_core::fleet::{
    Constraints, DEFAULT_PODS, Effect, Expression, HostPort, Labels, Node, NodePolicy, NodeTerm,
    Operator, PodTerm, Request, Selector, Spread, Taint, Toleration, TolerationOperator,
};
use warp_core::resources::Resources;

type Amounts = std::collections::BTreeMap<String, Quantity>;

/// What a pod asks for and where it may run.
pub(crate) fn request(pod: &Pod) -> Request {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    Request {
        name: pod.metadata.name.as_deref().unwrap_or_default().into(),
        namespace: pod.metadata.namespace.as_deref().unwrap_or_default().into(),
        labels: labels(pod.metadata.labels.as_ref()),
        resources: resources(spec),
        constraints: constraints(spec),
        priority: spec.priority.unwrap_or(0),
        ..Request::default()
    }
}

pub(crate) fn labels(labels: Option<&std::collections::BTreeMap<String, String>>) -> Labels {
    labels
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.as_str().into(), value.as_str().into()))
        .collect()
}

fn read(amounts: Option<&Amounts>) -> Resources {
    let mut resources = Resources::default();
    for (name, amount) in amounts.into_iter().flatten() {
        // The API server refuses amounts that cannot be read; one that slipped through asks for nothing.
        if let Err(error) = resources.set(name, &amount.0) {
            tracing::debug!(name, %error, "amount ignored");
        }
    }
    resources
}

fn of_container(container: &Container) -> Resources {
    read(
        container
            .resources
            .as_ref()
            .and_then(|resources| resources.requests.as_ref()),
    )
}

fn largest(one: &mut Resources, other: &Resources) {
    one.cpu_milli = one.cpu_milli.max(other.cpu_milli);
    one.memory_bytes = one.memory_bytes.max(other.memory_bytes);
    for (name, &amount) in &other.extended {
        let mine = one.extended.entry(name.clone()).or_default();
        *mine = (*mine).max(amount);
    }
}

/// The most a pod needs at any time: its containers and sidecars together, or one init container beside the sidecars
/// started before it.
fn resources(spec: &PodSpec) -> Resources {
    let mut running = Resources::default();
    for container in &spec.containers {
        running.add(&of_container(container));
    }
    let mut sidecars = Resources::default();
    let mut starting = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let mut needs = of_container(container);
        if is_sidecar(&container) {
            running.add(&needs);
            sidecars.add(&needs);
            needs = sidecars.clone();
        } else {
            needs.add(&sidecars);
        }
        largest(&mut starting, &needs);
    }
    largest(&mut running, &starting);
    // Amounts given for the whole pod replace the sums of its containers.
    let whole = read(
        spec.resources
            .as_ref()
            .and_then(|resources| resources.requests.as_ref()),
    );
    if whole.cpu_milli > 0 {
        running.cpu_milli = whole.cpu_milli;
    }
    if whole.memory_bytes > 0 {
        running.memory_bytes = whole.memory_bytes;
    }
    running.extended.extend(whole.extended);
    running.add(&read(spec.overhead.as_ref()));
    running
}

/// The limits of a pod's containers together, as quotas count them.
pub(crate) fn limits(pod: &Pod) -> Resources {
    let mut limits = Resources::default();
    for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
        limits.add(&read(
            container
                .resources
                .as_ref()
                .and_then(|resources| resources.limits.as_ref()),
        ));
    }
    limits
}

fn constraints(spec: &PodSpec) -> Constraints {
    let empty = Affinity::default();
    let affinity = spec.affinity.as_ref().unwrap_or(&empty);
    let near = affinity.pod_affinity.as_ref();
    let apart = affinity.pod_anti_affinity.as_ref();
    let required = affinity.node_affinity.as_ref().and_then(|node| {
        node.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    Constraints {
        node_name: None,
        node_selector: labels(spec.node_selector.as_ref()),
        node_affinity: required.map(terms),
        tolerations: spec
            .tolerations
            .iter()
            .flatten()
            .map(|toleration| Toleration {
                key: toleration.key.as_deref().unwrap_or_default().into(),
                operator: match toleration.operator.as_deref() {
                    Some("Exists") => TolerationOperator::Exists,
                    _ => TolerationOperator::Equal,
                },
                value: toleration.value.as_deref().unwrap_or_default().into(),
                effect: toleration.effect.as_deref().and_then(effect),
            })
            .collect(),
        pod_affinity: pod_terms(near.and_then(|near| {
            near.required_during_scheduling_ignored_during_execution
                .as_ref()
        })),
        pod_anti_affinity: pod_terms(apart.and_then(|apart| {
            apart
                .required_during_scheduling_ignored_during_execution
                .as_ref()
        })),
        spread: spec
            .topology_spread_constraints
            .iter()
            .flatten()
            .filter(|spread| spread.when_unsatisfiable == "DoNotSchedule")
            .map(spread)
            .collect(),
        host_ports: spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten().filter(is_sidecar))
            .flat_map(host_ports)
            .collect(),
    }
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "an iterator's filter hands out references"
)]
fn is_sidecar(container: &&Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn host_ports(container: &Container) -> impl Iterator<Item = HostPort> {
    container.ports.iter().flatten().filter_map(|port| {
        let number = u16::try_from(port.host_port?)
            .ok()
            .filter(|number| *number > 0)?;
        Some(HostPort {
            ip: port.host_ip.as_deref().unwrap_or_default().into(),
            protocol: port.protocol.as_deref().unwrap_or("TCP").into(),
            port: number,
        })
    })
}

pub(crate) fn terms(selector: &NodeSelector) -> Vec<NodeTerm> {
    selector.node_selector_terms.iter().map(term).collect()
}

pub(super) fn term(term: &NodeSelectorTerm) -> NodeTerm {
    let read = |requirements: Option<&Vec<NodeSelectorRequirement>>| {
        requirements
            .into_iter()
            .flatten()
            .map(|requirement| {
                expression(
                    &requirement.key,
                    &requirement.operator,
                    requirement.values.as_ref(),
                )
            })
            .collect()
    };
    NodeTerm {
        match_expressions: read(term.match_expressions.as_ref()),
        match_fields: read(term.match_fields.as_ref()),
    }
}

fn expression(key: &str, operator: &str, values: Option<&Vec<String>>) -> Expression {
    let operator = match operator {
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::Gt,
        "Lt" => Operator::Lt,
        _ => Operator::In,
    };
    Expression {
        key: key.into(),
        operator,
        values: values
            .into_iter()
            .flatten()
            .map(|value| value.as_str().into())
            .collect(),
    }
}

pub(super) fn selector(selector: &LabelSelector) -> Selector {
    Selector {
        match_labels: labels(selector.match_labels.as_ref()),
        match_expressions: selector
            .match_expressions
            .iter()
            .flatten()
            .map(|requirement| {
                expression(
                    &requirement.key,
                    &requirement.operator,
                    requirement.values.as_ref(),
                )
            })
            .collect(),
    }
}

fn pod_terms(terms: Option<&Vec<PodAffinityTerm>>) -> Vec<PodTerm> {
    terms
        .into_iter()
        .flatten()
        .map(|term| PodTerm {
            selector: term.label_selector.as_ref().map(selector),
            topology_key: term.topology_key.as_str().into(),
            namespaces: term
                .namespaces
                .iter()
                .flatten()
                .map(|name| name.as_str().into())
                .collect(),
            namespace_selector: term.namespace_selector.as_ref().map(selector),
            match_label_keys: term
                .match_label_keys
                .iter()
                .flatten()
                .map(|key| key.as_str().into())
                .collect(),
            mismatch_label_keys: term
                .mismatch_label_keys
                .iter()
                .flatten()
                .map(|key| key.as_str().into())
                .collect(),
        })
        .collect()
}

pub(super) fn spread(constraint: &TopologySpreadConstraint) -> Spread {
    let policy = |text: Option<&str>, default| match text {
        Some("Honor") => NodePolicy::Honor,
        Some("Ignore") => NodePolicy::Ignore,
        _ => default,
    };
    let number = |value: i32| u32::try_from(value).unwrap_or(1);
    Spread {
        max_skew: number(constraint.max_skew),
        topology_key: constraint.topology_key.as_str().into(),
        selector: constraint.label_selector.as_ref().map(selector),
        min_domains: constraint.min_domains.map_or(1, number),
        node_affinity_policy: policy(
            constraint.node_affinity_policy.as_deref(),
            NodePolicy::Honor,
        ),
        node_taints_policy: policy(constraint.node_taints_policy.as_deref(), NodePolicy::Ignore),
        match_label_keys: constraint
            .match_label_keys
            .iter()
            .flatten()
            .map(|key| key.as_str().into())
            .collect(),
    }
}

pub(crate) fn effect(text: &str) -> Option<Effect> {
    match text {
        "NoSchedule" => Some(Effect::NoSchedule),
        "PreferNoSchedule" => Some(Effect::PreferNoSchedule),
        "NoExecute" => Some(Effect::NoExecute),
        _ => None,
    }
}

fn taint(taint: &KubeTaint) -> Option<Taint> {
    Some(Taint::new(
        &taint.key,
        taint.value.as_deref().unwrap_or_default(),
        effect(&taint.effect)?,
    ))
}

/// A node as the ledger keeps it. Readiness reaches pods through taints, as in Kubernetes, and GPUs are counted by name.
pub(crate) fn node(node: &KubeNode) -> Node {
    let mut allocatable = read(
        node.status
            .as_ref()
            .and_then(|status| status.allocatable.as_ref()),
    );
    let pods = allocatable.extended.remove("pods").unwrap_or(DEFAULT_PODS);
    let spec = node.spec.as_ref();
    Node {
        name: Arc::from(node.metadata.name.as_deref().unwrap_or_default()),
        labels: labels(node.metadata.labels.as_ref()),
        taints: spec
            .and_then(|spec| spec.taints.as_ref())
            .into_iter()
            .flatten()
            .filter_map(taint)
            .collect(),
        unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
        ready: true,
        allocatable,
        pods,
        ..Node::default()
    }
}
