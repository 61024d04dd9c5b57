//! What the status remembers of attempts, for comparing providers. An entry changes with a status that is written anyway:
//! it is never the reason for a write. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use warp_api::label;
use warp_api::workload::{ATTEMPT_NODES, ATTEMPTS, WorkloadAttempt};

use super::{Pass, attempt, current};
use crate::workload::assess::pinned;
use crate::workload::gang;
use crate::workload::pod::{made_by, started};

impl Pass<'_> {
    /// The current attempt has a place: its Job says where.
    pub(super) fn note_placed(&mut self) {
        let Some(job) = current(self.workload, self.seen) else {
            return;
        };
        let provider = job.annotations().get(label::PROVIDER);
        let placed = job.meta().creation_timestamp.as_ref();
        let (Some(provider), Some(placed)) = (provider, placed) else {
            return;
        };
        let number = attempt(self.workload);
        let known = self.status.recent_attempts.iter();
        let same = |one: &WorkloadAttempt| one.number == number && one.placed_at == *placed;
        if known.clone().any(same) {
            return;
        }
        // A place that came to nothing before it was used is not worth an entry.
        self.status
            .recent_attempts
            .retain(|one| one.number != number);
        self.status.recent_attempts.push(WorkloadAttempt {
            number,
            provider: provider.clone(),
            nodes: nodes(job),
            placed_at: placed.clone(),
            started_at: None,
            ended_at: None,
            reason: None,
        });
        let over = self.status.recent_attempts.len().saturating_sub(ATTEMPTS);
        self.status.recent_attempts.drain(..over);
    }

    /// The current attempt runs, or ran, since then.
    pub(super) fn note_started(&mut self, since: Option<Timestamp>) {
        self.note_placed();
        if let Some(entry) = self.own_attempt()
            && entry.started_at.is_none()
        {
            entry.started_at = since.map(Time);
        }
    }

    /// The current attempt has ended, how and when.
    pub(super) fn note_ended(&mut self, reason: &str, at: Timestamp) {
        // It may have run while nobody watched.
        let job = current(self.workload, self.seen);
        let own = |pod: &&Arc<Pod>| job.is_some_and(|job| made_by(job, pod));
        let pods = self.seen.pods.iter().filter(own);
        self.note_started(pods.filter_map(|pod| started(pod)).min());
        if let Some(entry) = self.own_attempt() {
            entry.ended_at = Some(Time(at));
            entry.reason = Some(reason.to_owned());
        }
    }

    /// The place of the current attempt is given up before it has started, by no fault of its nodes.
    pub(super) fn forget_attempt(&mut self) {
        let number = attempt(self.workload);
        self.status
            .recent_attempts
            .retain(|one| one.number != number || one.started_at.is_some());
    }

    fn own_attempt(&mut self) -> Option<&mut WorkloadAttempt> {
        let number = attempt(self.workload);
        let mut all = self.status.recent_attempts.iter_mut();
        all.find(|one| one.number == number && one.ended_at.is_none())
    }
}

/// The nodes a Job of ours is pinned to, as many as an attempt names.
fn nodes(job: &Job) -> Vec<String> {
    let mut all: Vec<String> = gang::nodes(job).into_iter().map(str::to_owned).collect();
    if all.is_empty() {
        all.push(pinned(job));
    }
    all.sort();
    all.dedup();
    all.truncate(ATTEMPT_NODES);
    all
}
