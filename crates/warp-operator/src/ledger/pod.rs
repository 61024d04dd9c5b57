//! The node a pod is pinned to, whether it is bound or not.

use k8s_openapi::api::core::v1::PodSpec;

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
