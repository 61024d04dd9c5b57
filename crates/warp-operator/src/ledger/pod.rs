//! A pod as the fleet sees it: what it effectively asks for, and the node it is pinned to.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use warp_core::fleet::Request;
use warp_core::resources::Resources;

use super::constraints;

/// The request of a pod, GPUs as named resources.
pub fn request(meta: &ObjectMeta, spec: &PodSpec) -> Request {
    let labels = meta.labels.iter().flatten();
    Request {
        name: Arc::from(meta.name.as_deref().unwrap_or_default()),
        namespace: Arc::from(meta.namespace.as_deref().unwrap_or_default()),
        labels: labels
            .map(|(key, value)| (Arc::from(key.as_str()), Arc::from(value.as_str())))
            .collect(),
        resources: effective(spec),
        constraints: constraints::translate(spec),
        ..Default::default()
    }
}

/// What the scheduler counts: the larger of all containers with their sidecars and the hungriest
/// moment of initialisation, plus overhead. Requests of the whole pod, where given, replace the sum.
fn effective(spec: &PodSpec) -> Resources {
    let mut running = Resources::default();
    for container in &spec.containers {
        running.add(&asked(container));
    }
    let mut sidecars = Resources::default();
    let mut peak = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let own = asked(container);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars.add(&own);
            peak = larger(peak, &sidecars);
        } else {
            let mut moment = sidecars.clone();
            moment.add(&own);
            peak = larger(peak, &moment);
        }
    }
    running.add(&sidecars);
    let mut total = larger(running, &peak);
    if let Some(whole) = spec.resources.as_ref().map(requests) {
        read(&mut total, &whole);
    }
    if let Some(overhead) = &spec.overhead {
        let mut extra = Resources::default();
        read(&mut extra, overhead);
        total.add(&extra);
    }
    total
}

fn asked(container: &Container) -> Resources {
    let mut asked = Resources::default();
    if let Some(resources) = &container.resources {
        read(&mut asked, &requests(resources));
    }
    asked
}

/// A limit without a request is a request of the same size.
fn requests(resources: &ResourceRequirements) -> BTreeMap<String, Quantity> {
    let mut all = resources.limits.clone().unwrap_or_default();
    all.extend(resources.requests.clone().unwrap_or_default());
    all
}

fn read(into: &mut Resources, amounts: &BTreeMap<String, Quantity>) {
    for (name, amount) in amounts {
        // The API server validated it; a server we do not know is not worth a panic.
        if let Err(error) = into.set(name, &amount.0) {
            tracing::warn!(resource = name, error = %error, "ignored in a pod's requests");
        }
    }
}

fn larger(mut one: Resources, other: &Resources) -> Resources {
    one.cpu_milli = one.cpu_milli.max(other.cpu_milli);
    one.memory_bytes = one.memory_bytes.max(other.memory_bytes);
    for (name, &amount) in &other.extended {
        let have = one.extended.entry(Arc::clone(name)).or_insert(0);
        *have = (*have).max(amount);
    }
    one
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
