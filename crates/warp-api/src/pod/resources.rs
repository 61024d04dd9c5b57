//! What a pod asks for in amounts.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use warp_core::fleet::Load;
use warp_core::resources::Resources;

use super::is_sidecar;

/// What scores by load count for a container that does not say, as kube-scheduler does.
const UNSAID: Load = Load {
    cpu_milli: 100,
    memory_bytes: 200 << 20,
};

/// Amounts as the core counts them. The API server refuses what cannot be read; an amount that
/// slipped through counts nothing, so that it hides none of the others.
pub fn amounts(amounts: Option<&BTreeMap<String, Quantity>>) -> Resources {
    let mut read = Resources::default();
    for (name, amount) in amounts.into_iter().flatten() {
        let _unreadable = read.set(name, &amount.0);
    }
    read
}

/// The limits of a pod's containers together, as quotas count them.
pub fn limits(spec: &PodSpec) -> Resources {
    let mut limits = Resources::default();
    for container in &spec.containers {
        let own = container.resources.as_ref();
        limits.add(&amounts(own.and_then(|own| own.limits.as_ref())));
    }
    limits
}

/// The most a pod needs at any time, as the scheduler counts it.
pub(super) fn requests(spec: &PodSpec) -> Resources {
    let asked = |container: &Container| {
        let own = container.resources.as_ref().map(stated);
        amounts(own.as_ref())
    };
    let mut all = widest(spec, asked);
    if let Some(whole) = spec.resources.as_ref().map(stated) {
        replace(&mut all, &whole);
    }
    all.add(&amounts(spec.overhead.as_ref()));
    all
}

/// `requests` with a small amount for every container that asks for no CPU or no memory.
pub(super) fn load(spec: &PodSpec) -> Load {
    let asked = |container: &Container| {
        let own = container.resources.as_ref().map(stated).unwrap_or_default();
        let mut asked = Resources::new(UNSAID.cpu_milli, UNSAID.memory_bytes);
        replace(&mut asked, &own);
        asked
    };
    let mut all = widest(spec, asked);
    if let Some(whole) = spec.resources.as_ref().map(stated) {
        replace(&mut all, &whole);
    }
    all.add(&amounts(spec.overhead.as_ref()));
    Load {
        cpu_milli: all.cpu_milli,
        memory_bytes: all.memory_bytes,
    }
}

/// The larger of all containers with their sidecars and the hungriest moment of initialisation: one
/// init container beside the sidecars started before it.
fn widest(spec: &PodSpec, asked: impl Fn(&Container) -> Resources) -> Resources {
    let mut running = Resources::default();
    for container in &spec.containers {
        running.add(&asked(container));
    }
    let mut sidecars = Resources::default();
    let mut starting = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let mut moment = asked(container);
        if is_sidecar(container) {
            running.add(&moment);
            sidecars.add(&moment);
            moment = sidecars.clone();
        } else {
            moment.add(&sidecars);
        }
        enlarge(&mut starting, &moment);
    }
    enlarge(&mut running, &starting);
    running
}

/// A limit without a request is a request of the same size.
fn stated(resources: &ResourceRequirements) -> BTreeMap<String, Quantity> {
    let mut all = resources.limits.clone().unwrap_or_default();
    all.extend(resources.requests.clone().unwrap_or_default());
    all
}

/// Amounts given for the whole replace those of the parts.
fn replace(parts: &mut Resources, whole: &BTreeMap<String, Quantity>) {
    for (name, amount) in whole {
        let _unreadable = parts.set(name, &amount.0);
    }
}

fn enlarge(one: &mut Resources, other: &Resources) {
    one.cpu_milli = one.cpu_milli.max(other.cpu_milli);
    one.memory_bytes = one.memory_bytes.max(other.memory_bytes);
    for (name, &amount) in &other.extended {
        let have = one.extended.entry(Arc::clone(name)).or_insert(0);
        *have = (*have).max(amount);
    }
}
