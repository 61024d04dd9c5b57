//! Where a queued Job stands, from the Job and its pods alone. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use warp_api::label;

use super::objects::nodes;
use super::queued::Queued;
use crate::ledger::finished;

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
    /// The label that asks for the queue says neither yes nor no.
    Mislabelled,
}

/// Whether it is its owner's own to say whether it is queued: it belongs to no kind of ours, and its own controller runs
/// it.
pub(super) fn is_free(job: &Queued) -> bool {
    !job.is_of_another()
        && !job.managed_elsewhere
        && !job.labels().contains_key(label::WORKLOAD_UID)
}

/// Whether a Job is in the queue and has no place, or leaves the one it had.
pub(crate) fn waits(job: &Queued) -> bool {
    matches!(
        standing(job, &[]),
        Standing::Queued | Standing::Settling | Standing::Restarting | Standing::Leaving
    )
}

/// Where an object stands of which these pods are known.
pub(crate) fn standing(job: &Queued, pods: &[Arc<Pod>]) -> Standing {
    if job.meta().deletion_timestamp.is_some() || job.end.is_some() || !is_free(job) {
        return Standing::Aside;
    }
    match job.asks() {
        Some(true) => {}
        Some(false) => return Standing::Aside,
        None => return Standing::Mislabelled,
    }
    let placed = nodes(job).is_some();
    let ours = job.annotations().contains_key(label::REQUEUED);
    let runs = pods.iter().any(|pod| !finished(pod));
    match (job.suspended(), placed) {
        (false, true) => Standing::Placed,
        (false, false) => Standing::Unheld,
        (true, true) if !ours => Standing::Stopped,
        (true, _) if runs || !job.seen_suspended => Standing::Settling,
        // Only the API server's own Jobs are refused their places for it.
        (true, _) if job.started.is_some() && job.kind.is_job() => Standing::Restarting,
        (true, true) => Standing::Leaving,
        (true, false) => Standing::Queued,
    }
}
