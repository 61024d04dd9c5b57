//! The GPUWorkload controller: follows each workload's Job and pods and says what they mean.
//!
//! It never chooses a node: a workload without a Job waits for the scheduler, which makes one.

mod assess;
mod failure;
mod objects;
mod observe;
mod plan;
mod pod;
mod say;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{Resource, ResourceExt};
use serde_json::Value;
use warp_api::{GPUWorkload, GPUWorkloadStatus, Phase, condition, label};

use crate::audit;
use crate::cache::Key;
use crate::config::Settings;
use crate::context::Context;
use crate::driver::Reconcile;
use crate::plan::Plan;

pub(crate) use assess::{Wish, attempt, over, suspended, waits_for_volume, wish};
pub(crate) use objects::{Place, Shell, shell};
pub(crate) use observe::{Seen, reserves, see};
pub(crate) use plan::lost_nodes;

/// The kind as the driver runs it.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) settings: Settings,
}

impl Reconcile for Controller {
    type Object = GPUWorkload;
    type Seen = Seen;
    type Status = GPUWorkloadStatus;

    const KIND: &'static str = "GPUWorkload";
    const MANAGER: &'static str = "warp-workload";

    fn observe(&self, cx: &Context, key: &Key) -> Option<(Arc<GPUWorkload>, Seen)> {
        let workload = cx.workloads.get(key)?;
        let seen = see(cx, &workload);
        Some((workload, seen))
    }

    fn plan(&self, workload: &GPUWorkload, seen: &Seen, now: Timestamp) -> Plan<GPUWorkloadStatus> {
        plan::plan(workload, seen, &self.settings, now)
    }

    fn status(workload: &GPUWorkload) -> Option<&GPUWorkloadStatus> {
        workload.status.as_ref()
    }

    /// Conditions of other writers stay theirs: written with ours, they could never be removed again.
    fn own(status: &GPUWorkloadStatus) -> Value {
        let mut body = serde_json::to_value(status).unwrap_or_default();
        if let Some(conditions) = body["conditions"].as_array_mut() {
            conditions.retain(|found| {
                [condition::READY, condition::PLACED, condition::SUCCEEDED]
                    .iter()
                    .any(|ours| found["type"] == *ours)
            });
        }
        body
    }

    fn written(&self, cx: &Context, before: &GPUWorkload, after: GPUWorkload) {
        let phase =
            |workload: &GPUWorkload| workload.status.as_ref().and_then(|status| status.phase);
        let retries = |workload: &GPUWorkload| {
            workload
                .status
                .as_ref()
                .and_then(|status| status.retry_count)
        };
        if phase(&after) == Some(Phase::Failed) && phase(before) != Some(Phase::Failed) {
            let conditions = after
                .status
                .as_ref()
                .map_or(&[][..], |status| &status.conditions);
            let reason = condition::find(conditions, condition::READY).map(|ready| &ready.reason);
            cx.metrics.failed(reason.map_or("Unknown", |reason| reason));
        }
        if phase(&after) != phase(before) {
            audit::transition(&after);
        }
        if retries(&after).unwrap_or(0) > retries(before).unwrap_or(0) {
            cx.metrics.retried();
        }
        cx.workloads.note(after, cx.clock.now());
    }
}

/// The workload an object of ours belongs to, by its labels.
pub(crate) fn owner_key<K: ResourceExt>(object: &K) -> Option<Key> {
    let name = object.labels().get(label::WORKLOAD)?;
    object.labels().get(label::WORKLOAD_UID)?;
    Some(Key::new(&object.namespace()?, name))
}

/// The workload whose Job an Event is about.
pub(crate) fn event_key(cx: &Context, event: &Event) -> Option<Key> {
    let object = &event.involved_object;
    let key = Key::new(object.namespace.as_deref()?, object.name.as_deref()?);
    owner_key(&*cx.jobs.get(&key)?)
}

/// Workloads that hear about a change of a node: those with pods on it.
pub(crate) fn keys_on(cx: &Context, node: &Node) -> Vec<Key> {
    let name = node.meta().name.as_deref();
    let pods = cx.pods.all();
    let here = pods
        .iter()
        .filter(|pod| node_of(pod) == name && name.is_some());
    here.filter_map(|pod| owner_key(&**pod)).collect()
}

/// The node a pod is bound to.
pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref())
}

/// Whether a Job belongs to this very workload: not to an earlier one of the same name, and not to
/// somebody in another namespace who wrote our labels on a Job of theirs.
pub(crate) fn owns(workload: &GPUWorkload, job: &Job) -> bool {
    let uid = workload.meta().uid.as_deref();
    uid.is_some()
        && job.meta().namespace == workload.meta().namespace
        && job.labels().get(label::WORKLOAD_UID).map(String::as_str) == uid
        && job
            .owner_references()
            .iter()
            .any(|owner| owner.controller == Some(true) && Some(owner.uid.as_str()) == uid)
}
