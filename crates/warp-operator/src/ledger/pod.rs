//! What a pod says of the place it has, is promised or waits for.

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec,
};
use serde_json::{Value, json};

/// The node a pod is bound to.
pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref())
}

/// Whether a pod has ended, well or badly: it holds nothing any more.
pub(crate) fn finished(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether the cluster's scheduler cannot bind a pod because of a claim: missing, unbound, or with a
/// volume that is not there.
pub(crate) fn waits_for_volume(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|found| {
        found.type_ == "PodScheduled"
            && found.status == "False"
            && found
                .message
                .as_deref()
                .is_some_and(|text| text.to_ascii_lowercase().contains("persistentvolumeclaim"))
    })
}

/// The node every alternative of the required affinity names, if they all name the same one.
pub(crate) fn pinned_to(spec: &PodSpec) -> Option<String> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let mut nodes = required.node_selector_terms.iter().map(|term| {
        term.match_fields.iter().flatten().find_map(|field| {
            let [node] = field.values.as_deref()? else {
                return None;
            };
            (field.key == "metadata.name" && field.operator == "In").then(|| node.clone())
        })
    });
    let first = nodes.next()??;
    nodes
        .all(|node| node.as_ref() == Some(&first))
        .then_some(first)
}

/// Whether a pod waits behind a gate of this name.
pub(crate) fn is_behind(pod: &Pod, gate: &str) -> bool {
    let gates = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.scheduling_gates.as_ref());
    let mut gates = gates.into_iter().flatten();
    gates.any(|found| found.name == gate)
}

/// The change that pins a gated pod to its node and lets it go. Gates of others stay theirs.
pub(crate) fn let_through(pod: &Pod, gate: &str, node: &str) -> Value {
    let mut spec = pod.spec.clone().unwrap_or_default();
    pin(&mut spec, Some(node), None);
    let affinity = spec.affinity.and_then(|affinity| affinity.node_affinity);
    let required = affinity.and_then(|all| all.required_during_scheduling_ignored_during_execution);
    let mut gates = spec.scheduling_gates.unwrap_or_default();
    gates.retain(|found| found.name != gate);
    let gates = (!gates.is_empty()).then_some(gates);
    json!({"spec": {
        "schedulingGates": gates,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
    }})
}

/// Requires a node and a label of it. Terms are alternatives: both go into every one, or a pod would slip through another.
pub(crate) fn pin(pod: &mut PodSpec, node: Option<&str>, label: Option<(String, Vec<String>)>) {
    let here = node.map(|node| NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    });
    let model = label.map(|(key, values)| NodeSelectorRequirement {
        key,
        operator: "In".to_owned(),
        values: Some(values),
    });
    if here.is_none() && model.is_none() {
        return;
    }
    let affinity: &mut Affinity = pod.affinity.get_or_insert_default();
    let node: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    let required: &mut NodeSelector = node
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required
            .node_selector_terms
            .push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        if let Some(here) = &here {
            term.match_fields.get_or_insert_default().push(here.clone());
        }
        if let Some(model) = &model {
            term.match_expressions
                .get_or_insert_default()
                .push(model.clone());
        }
    }
}
