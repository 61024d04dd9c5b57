//! Pods and nodes as the core's fit sees them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node as KubeNode, Pod, PodSpec};
use warp_api::pod as reading;
use warp_core::fleet::{DEFAULT_PODS, Node, Request};
use warp_core::resources::Resources;

pub(crate) use warp_api::pod::labels;

/// What a pod asks for and where it may run.
pub(crate) fn request(pod: &Pod) -> Request {
    let empty = PodSpec::default();
    reading::request(&pod.metadata, pod.spec.as_ref().unwrap_or(&empty))
}

/// The limits of a pod's containers together, as quotas count them.
pub(crate) fn limits(pod: &Pod) -> Resources {
    pod.spec.as_ref().map(reading::limits).unwrap_or_default()
}

/// A node as the ledger keeps it. Readiness reaches pods through taints, as in Kubernetes, and GPUs are counted by name.
pub(crate) fn node(node: &KubeNode) -> Node {
    let status = node.status.as_ref();
    let mut allocatable = reading::amounts(status.and_then(|status| status.allocatable.as_ref()));
    let pods = allocatable.extended.remove("pods").unwrap_or(DEFAULT_PODS);
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_ref());
    Node {
        name: Arc::from(node.metadata.name.as_deref().unwrap_or_default()),
        labels: labels(node.metadata.labels.as_ref()),
        taints: taints
            .into_iter()
            .flatten()
            .filter_map(reading::taint)
            .collect(),
        unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
        ready: true,
        allocatable,
        pods,
        ..Node::default()
    }
}
