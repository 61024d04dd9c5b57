//! The fleet as the API shows it: nodes, what every pod holds on them, and what our Jobs have been
//! promised. Rebuilt from the caches in every scheduling pass; nothing is remembered.
//!
//! Translation only. What fits where is `warp-core`'s.

mod node;
mod pod;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, PodSpec};
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use warp_core::fleet::{Fleet, Request, Work, WorkState};
use warp_core::gpu::{Device, NodeGpus};

use crate::cache::Changed;
use crate::workload::{node_of, over, waits_for_volume};

pub(crate) use node::{model_name, provider_of};
pub(crate) use pod::pinned_to;
pub(crate) use volumes::Storage;
pub use warp_api::pod::request;

/// A snapshot to decide on.
#[derive(Debug)]
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
            let labels = warp_api::pod::labels(namespace.metadata.labels.as_ref());
            self.fleet.set_namespace(&namespace.name_any(), labels);
        }
        self.storage = storage;
        self
    }

    /// A pod's request, with where its volumes can be reached.
    pub(crate) fn request(&self, meta: &ObjectMeta, spec: &PodSpec) -> Request {
        let mut request = request(meta, spec);
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        request.constraints.volumes = self.storage.reach(namespace, spec);
        request
    }

    /// The exclusive devices of a node under one resource name.
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
/// Terminating ones included; a Job of ours without a pod holds what its pod will. A pod that waits for
/// a volume claim holds nothing: nobody knows when it comes, and kube-scheduler keeps nothing for it.
pub fn build(nodes: &[Arc<Node>], pods: &[Arc<Pod>], jobs: &[Arc<Job>]) -> Ledger {
    let mut fleet = Fleet::new();
    let mut gpus = BTreeMap::new();
    for node in nodes {
        let (node, devices) = node::translate(node);
        gpus.insert(node.name.to_string(), devices);
        fleet.set_node(node);
    }
    let mut with_pods = BTreeSet::new();
    for pod in pods {
        for owner in pod.owner_references() {
            with_pods.insert(owner.uid.clone());
        }
        if let Some(work) = pod_work(pod) {
            bind(&mut fleet, work);
        }
    }
    for job in jobs {
        let uid = job.uid().unwrap_or_default();
        if over(job) || with_pods.contains(&uid) || job.meta().deletion_timestamp.is_some() {
            continue;
        }
        if let Some(work) = job_work(job, &uid) {
            bind(&mut fleet, work);
        }
    }
    Ledger {
        fleet,
        gpus,
        storage: Storage::default(),
    }
}

/// Whether a node's change can change a decision: heartbeats cannot.
pub(crate) fn node_matters(change: &Changed<Node>) -> bool {
    let form = |node: &Arc<Node>| {
        let (described, gpus) = node::translate(node);
        (described, gpus, node.meta().deletion_timestamp.is_some())
    };
    change.before.as_ref().map(form) != change.after.as_ref().map(form)
}

/// Whether a pod's change can change what is free.
pub(crate) fn pod_matters(change: &Changed<Pod>) -> bool {
    let form = |pod: &Arc<Pod>| {
        let status = pod.status.as_ref();
        let nominated = status.and_then(|status| status.nominated_node_name.clone());
        let ended = status.and_then(|status| status.phase.as_deref());
        let ended = matches!(ended, Some("Succeeded" | "Failed"));
        let bound = node_of(pod).map(str::to_owned);
        (
            pod.uid(),
            bound,
            nominated,
            ended,
            waits_for_volume(pod),
            pod.meta().deletion_timestamp.is_some(),
        )
    };
    change.before.as_ref().map(form) != change.after.as_ref().map(form)
}

/// A pod on a node that is not there holds nothing that could be given away.
fn bind(fleet: &mut Fleet, work: Work) {
    if let Err(error) = fleet.bind(work) {
        tracing::debug!(error = %error, "not counted");
    }
}

fn pod_work(pod: &Pod) -> Option<Work> {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
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

fn job_work(job: &Job, uid: &str) -> Option<Work> {
    let template = &job.spec.as_ref()?.template;
    let spec = template.spec.as_ref()?;
    let mut meta = template.metadata.clone().unwrap_or_default();
    meta.namespace.clone_from(&job.metadata.namespace);
    meta.name.clone_from(&job.metadata.name);
    let node = pinned_to(spec)?;
    Some(work(
        uid.to_owned(),
        node,
        request(&meta, spec),
        WorkState::Reserved,
    ))
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
