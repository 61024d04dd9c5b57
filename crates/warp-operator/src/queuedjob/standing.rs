//! Where a queued Job stands, from the Job and its pods alone. Pure.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use warp_api::label;

use super::objects::nodes;
use crate::workload::{ending, suspended};

/// What is to be done about a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It has ended, is going, or is another's: nothing of it is ours to change.
    Aside,
    /// It waits for a place.
    Queued,
    /// Suspended, and the Job controller has not seen that yet or pods of it still end.
    Settling,
    /// It ran before: while it has a start time, the API server lets nobody pin its pods.
    Restarting,
    /// It has been suspended by us and keeps the place it had in its template.
    Leaving,
    /// It had a place and was suspended by somebody else.
    Stopped,
    /// It has its place and has been resumed.
    Placed,
    /// It runs without having been placed.
    Unheld,
}

/// Whether a Job is to be queued: it asks for it, and belongs to no kind of ours.
pub(crate) fn is_ours(job: &Job) -> bool {
    let asks = job.labels().get(label::QUEUE).map(String::as_str) == Some("true");
    let of_warp = job.owner_references().iter().any(|owner| {
        let group = owner.api_version.split_once('/').map(|(group, _)| group);
        owner.controller == Some(true) && group == Some(warp_api::GROUP)
    });
    let managed = job
        .spec
        .as_ref()
        .and_then(|spec| spec.managed_by.as_deref());
    let elsewhere = managed.is_some_and(|manager| manager != "kubernetes.io/job-controller");
    asks && !of_warp && !elsewhere && !job.labels().contains_key(label::WORKLOAD_UID)
}

/// Whether the Job controller says that it has suspended it.
pub(super) fn is_seen_suspended(job: &Job) -> bool {
    let status = job.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|found| found.type_ == "Suspended" && found.status == "True")
}

/// Whether a Job is in the queue and has no place, or leaves the one it had.
pub(crate) fn waits(job: &Job) -> bool {
    matches!(
        standing(job, &[]),
        Standing::Queued | Standing::Settling | Standing::Restarting | Standing::Leaving
    )
}

/// Where a Job stands whose pods that have not ended are `pods`.
pub(crate) fn standing(job: &Job, pods: &[Arc<Pod>]) -> Standing {
    if !is_ours(job) || job.meta().deletion_timestamp.is_some() || ending(job) {
        return Standing::Aside;
    }
    let placed = nodes(job).is_some();
    let ours = job.annotations().contains_key(label::REQUEUED);
    let started = job.status.as_ref();
    let started = started.is_some_and(|status| status.start_time.is_some());
    match (suspended(job), placed) {
        (false, true) => Standing::Placed,
        (false, false) => Standing::Unheld,
        (true, true) if !ours => Standing::Stopped,
        (true, _) if !pods.is_empty() || !is_seen_suspended(job) => Standing::Settling,
        (true, _) if started => Standing::Restarting,
        (true, true) => Standing::Leaving,
        (true, false) => Standing::Queued,
    }
}
