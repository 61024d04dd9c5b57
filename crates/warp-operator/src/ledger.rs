//! The fleet as the API shows it: nodes, what every pod holds on them, and what pods that are not there yet have been
//! promised. `books` keeps it from pass to pass.
//!
//! Translation only. What fits where is `warp-core`'s.

mod books;
mod node;
mod pod;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, PodSpec};
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use warp_api::workload::TopologyLevels;
use warp_core::fleet::{Fleet, Request, Work, WorkState};
use warp_core::gpu::{Catalogue, Device, NodeGpus};

pub(crate) use books::{Books, Sources};
pub(crate) use node::{allocatable, devices, is_ready, model_name, provider_of, takes_pods};
pub(crate) use pod::{finished, is_behind, let_through, node_of, pin, pinned_to, waits_for_volume};
pub(crate) use volumes::Storage;
pub use warp_api::pod::request;

/// What is kept for a pod that is not there yet: its owner has been promised a place.
#[derive(Clone, Debug, PartialEq)]
pub struct Promise {
    /// Uid of the object that will make the pod; a pod that names it as an owner has come. With the member's number
    /// behind it where that makes several.
    pub owner: String,
    pub meta: ObjectMeta,
    pub spec: PodSpec,
    /// The pod is there and is not told its node yet: quotas count it already.
    pub counted: bool,
}

/// What an administrator says of how nodes are read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    /// The GPU models that are known.
    pub(crate) catalogue: Arc<Catalogue>,
    /// Where nodes say how close together they are.
    pub(crate) levels: Arc<TopologyLevels>,
}

/// A snapshot to decide on.
#[derive(Debug, Default)]
pub struct Ledger {
    pub fleet: Fleet,
    /// Devices by node name, with what the fleet does not model (labels that told a model).
    pub gpus: BTreeMap<String, NodeGpus>,
    storage: Storage,
}

impl Ledger {
    /// Adds what pods may ask of namespaces and of volumes.
    pub(crate) fn with_surroundings(
        mut self,
        namespaces: &[Arc<Namespace>],
        storage: Storage,
    ) -> Self {
        for namespace in namespaces {
            self.set_namespace(namespace);
        }
        self.storage = storage;
        self
    }

    fn set_namespace(&mut self, namespace: &Namespace) {
        let labels = warp_api::pod::labels(namespace.metadata.labels.as_ref());
        self.fleet.set_namespace(&namespace.name_any(), labels);
    }

    /// A pod's request, with where its volumes can be reached.
    pub(crate) fn request(&self, meta: &ObjectMeta, spec: &PodSpec) -> Request {
        let mut request = request(meta, spec);
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        request.constraints.volumes = self.storage.reach(namespace, spec);
        request
    }

    /// The devices of a node under one resource name.
    pub(crate) fn device(&self, node: &str, resource: &str) -> Option<&Device> {
        self.gpus
            .get(node)?
            .devices
            .iter()
            .find(|device| device.resource == resource)
    }

    /// Every group of devices in the fleet.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.gpus.values().flat_map(|gpus| &gpus.devices)
    }
}

/// Builds the snapshot: every pod that is bound, nominated or pinned holds its effective requests,
/// Terminating ones included; a promise holds what its pod will until that is there. A pod that waits for
/// a volume claim holds nothing: nobody knows when it comes, and kube-scheduler keeps nothing for it.
pub fn build(nodes: &[Arc<Node>], pods: &[Arc<Pod>], promises: &[Promise]) -> Ledger {
    build_among(&Reading::default(), nodes, pods, promises)
}

/// The same as an administrator wants nodes to be read.
pub(crate) fn build_among(
    reading: &Reading,
    nodes: &[Arc<Node>],
    pods: &[Arc<Pod>],
    promises: &[Promise],
) -> Ledger {
    let owners = pods.iter().flat_map(|pod| pod.owner_references());
    let with_pods: BTreeSet<&str> = owners.map(|owner| owner.uid.as_str()).collect();
    let coming = promises
        .iter()
        .filter(|promise| !with_pods.contains(promise.owner.as_str()));
    assemble(reading, nodes, pods, coming)
}

/// The same, with every promise taken for one whose pod is still to come.
fn assemble<'a>(
    reading: &Reading,
    nodes: &[Arc<Node>],
    pods: &[Arc<Pod>],
    coming: impl IntoIterator<Item = &'a Promise>,
) -> Ledger {
    let mut fleet = Fleet::new();
    let mut gpus = BTreeMap::new();
    for node in nodes {
        let (node, devices) = node::translate(node, &reading.catalogue, &reading.levels);
        gpus.insert(node.name.to_string(), devices);
        fleet.set_node(node);
    }
    let held = pods.iter().filter_map(|pod| pod_work(pod));
    for work in held.chain(coming.into_iter().filter_map(promised_work)) {
        bind(&mut fleet, work);
    }
    Ledger {
        fleet,
        gpus,
        storage: Storage::default(),
    }
}

/// Whether a node's change can change a decision: heartbeats cannot.
pub(crate) fn node_matters(old: Option<&Node>, new: Option<&Node>) -> bool {
    // What its labels say shows in it whether a model or a level is known or not.
    let reading = Reading::default();
    let form = |node: &Node| {
        let (described, gpus) = node::translate(node, &reading.catalogue, &reading.levels);
        (described, gpus, node.meta().deletion_timestamp.is_some())
    };
    old.map(form) != new.map(form)
}

/// Whether a pod's change can change what is free.
pub(crate) fn pod_matters(old: Option<&Pod>, new: Option<&Pod>) -> bool {
    let form = |pod: &Pod| {
        let status = pod.status.as_ref();
        let nominated = status.and_then(|status| status.nominated_node_name.clone());
        let bound = node_of(pod).map(str::to_owned);
        (
            pod.uid(),
            bound,
            nominated,
            finished(pod),
            waits_for_volume(pod),
            pod.meta().deletion_timestamp.is_some(),
            pod.spec.as_ref().and_then(pinned_to),
        )
    };
    old.map(form) != new.map(form)
}

/// A pod on a node that is not there holds nothing that could be given away.
fn bind(fleet: &mut Fleet, work: Work) {
    if let Err(error) = fleet.bind(work) {
        tracing::debug!(error = %error, "not counted");
    }
}

fn pod_work(pod: &Pod) -> Option<Work> {
    if finished(pod) {
        return None;
    }
    let status = pod.status.as_ref();
    let spec = pod.spec.as_ref()?;
    let nominated = status.and_then(|status| status.nominated_node_name.clone());
    let (node, bound) = match node_of(pod) {
        Some(node) => (node.to_owned(), true),
        None if waits_for_volume(pod) => return None,
        None => (
            nominated
                .filter(|name| !name.is_empty())
                .or_else(|| pinned_to(spec))?,
            false,
        ),
    };
    let state = match (pod.meta().deletion_timestamp.is_some(), bound) {
        (true, _) => WorkState::Terminating,
        (false, true) => WorkState::Running,
        (false, false) => WorkState::Reserved,
    };
    Some(work(pod.uid()?, node, request(&pod.metadata, spec), state))
}

fn promised_work(promise: &Promise) -> Option<Work> {
    let node = pinned_to(&promise.spec)?;
    let request = request(&promise.meta, &promise.spec);
    let id = promise.owner.clone();
    Some(work(id, node, request, WorkState::Reserved))
}

fn work(id: String, node: String, request: Request, state: WorkState) -> Work {
    Work {
        id: Arc::from(id),
        request: Arc::new(request),
        node: Arc::from(node),
        gpus: None,
        since: 0,
        state,
    }
}

#[cfg(test)]
mod tests;
