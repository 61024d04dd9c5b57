//! What should happen to a gang that is special to gangs: letting its pods go, and counting them. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use warp_api::reason;
use warp_api::workload::MemberFailure;

use super::{Pass, Wait, current, gang};
use crate::ledger::node_of;
use crate::workload::course::Course;
use crate::workload::failure::Failure;
use crate::workload::members::running;
use crate::workload::pod::{containers, made_by, pod_phase};

/// What of a workload lets its pods go. A watch that is behind may hide that it was stopped. Its Job is not asked for: when
/// that was stopped, its pods are changed too, and the write that lets one go is for the version that was seen.
const DECISIVE: [&str; 5] = [
    "/metadata/generation",
    "/metadata/deletionTimestamp",
    "/status/phase",
    "/status/retryCount",
    "/status/disruptions",
];

impl Pass<'_> {
    /// All pods are there: each that still waits is told its node and let go.
    pub(super) fn gated(mut self, wait: Wait) -> Course {
        if let Some(job) = current(self.workload, self.seen) {
            let nodes = gang::nodes(job);
            let mut gated = self.members();
            gated.retain(|pod| gang::is_gated(pod) && pod.meta().deletion_timestamp.is_none());
            self.steps.only_if_shows(self.workload, &DECISIVE);
            for pod in gated {
                let node = gang::rank(&pod).and_then(|rank| nodes.get(rank));
                if let Some(node) = node {
                    self.steps.merge(&*pod, gang::let_go(&pod, node));
                    self.steps.because("every member of the gang is there");
                }
            }
        }
        self.waiting(wait)
    }

    /// Pods of the current Job.
    fn members(&self) -> Vec<Arc<Pod>> {
        let job = current(self.workload, self.seen);
        let pods = self.seen.pods.iter();
        let own = pods.filter(|pod| job.is_some_and(|job| made_by(job, pod)));
        own.cloned().collect()
    }

    /// The node whose kubelet refused a pod of the current Job.
    pub(super) fn refusing_node(&self) -> Option<String> {
        let never_ran = |pod: &&Arc<Pod>| {
            let mut containers = containers(pod);
            let ran = containers.any(|container| {
                let state = container.state.as_ref();
                state.is_some_and(|state| state.terminated.is_some())
            });
            pod_phase(pod) == Some("Failed") && !ran
        };
        let members = self.members();
        let refused = members.iter().find(never_ran);
        let there = refused.and_then(|pod| node_of(pod)).map(str::to_owned);
        self.status.assigned_node.clone().or(there)
    }

    /// Whether the workload wants no other attempt after this failure: a member failed by itself.
    pub(super) fn ends_the_gang(&self, failure: &Failure) -> bool {
        let policy = &self.workload.spec.retry_policy;
        let own = matches!(
            failure.reason,
            reason::NON_ZERO_EXIT | reason::OUT_OF_MEMORY
        );
        own && policy.on_member_failure == Some(MemberFailure::Fail)
    }

    /// How many members of a gang run.
    pub(super) fn count_members(&mut self) {
        let size = current(self.workload, self.seen).and_then(gang::size);
        self.status.ready = size.map(|size| {
            let running = running(self.members().iter().map(|pod| &**pod));
            format!("{running}/{size}")
        });
    }

    pub(super) fn running_where(&self) -> String {
        let places = self.status.places().unwrap_or_default();
        match &self.status.ready {
            None => format!("running on node {places}"),
            Some(ready) => format!("{ready} members run on {places}"),
        }
    }
}
