//! Everything a plan needs, read from the caches. No decisions.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use warp_api::workload::Priority;
use warp_runtime::cache::Key;

use super::ask::{patient, priority};
use super::queued::Queued;
use crate::context::Context;
use crate::estimates::Forecast;
use crate::ledger::finished;
use crate::placement::Verdict;
use crate::shapes::{BY_MAKER, BY_OWNER, BY_QUEUED};

/// What is known about one Job.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// Its pods. A Job counts those that have ended itself.
    pub(super) pods: Vec<Arc<Pod>>,
    /// Latest refusal to create a pod of it.
    pub(super) refusal: Option<String>,
    /// Its priority, or what is wrong with what it says of it.
    pub(super) priority: Result<Priority, String>,
    /// What the scheduler last said about it.
    pub(super) verdict: Option<Verdict>,
    /// The scheduler does not try it again before then.
    pub(super) held_until: Option<Timestamp>,
    /// Its place in line, from 1, as the scheduler last told it.
    pub(super) position: Option<usize>,
    /// When it came.
    pub(super) arrived: Option<Timestamp>,
    /// When it is expected to start, once somebody has asked.
    pub(super) forecast: Option<Forecast>,
}

pub(super) fn see(cx: &Context, job: &Queued) -> Seen {
    let uid = job.uid().unwrap_or_default();
    let generation = job.meta().generation.unwrap_or_default();
    Seen {
        pods: pods(cx, job),
        refusal: refusal(cx, job),
        priority: priority_of(cx, job),
        verdict: cx.verdicts.get(&uid, generation),
        held_until: cx.verdicts.held_until(&uid, generation),
        position: cx.verdicts.position(&uid, generation),
        arrived: cx.arrivals.of(&uid),
        forecast: cx.forecasts.get(&uid, generation),
    }
}

/// Pods of an object, of its own namespace: anybody may write any owner or label on what is theirs.
pub(super) fn pods(cx: &Context, job: &Queued) -> Vec<Arc<Pod>> {
    let uid = job.meta().uid.as_deref().unwrap_or_default();
    let mut pods = if job.kind.is_job() {
        let mut pods = cx.pods.by(BY_MAKER, uid);
        pods.retain(|pod| !finished(pod));
        pods
    } else {
        cx.pods.by(BY_QUEUED, uid)
    };
    pods.retain(|pod| pod.meta().namespace == job.meta().namespace);
    pods
}

/// What an Event of its own namespace says against its pods.
pub(super) fn refusal(cx: &Context, job: &Queued) -> Option<String> {
    let uid = job.meta().uid.as_deref().unwrap_or_default();
    let mut events = cx.refusals.by(BY_OWNER, uid);
    events.retain(|event| event.meta().namespace == job.meta().namespace);
    events.sort_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0));
    events.last()?.message.clone()
}

/// Whether the class of its pods evicts nobody.
pub(super) fn is_patient(cx: &Context, job: &Queued) -> bool {
    patient(job, |name| {
        let class = cx.priorities.get(&Key::new("", name))?;
        class.preemption_policy.clone()
    })
}

pub(super) fn priority_of(cx: &Context, job: &Queued) -> Result<Priority, String> {
    let value = |name: &str| {
        let class = cx.priorities.get(&Key::new("", name))?;
        Some(class.value)
    };
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    priority(job, value, cx.defaults.of(namespace).priority)
}
