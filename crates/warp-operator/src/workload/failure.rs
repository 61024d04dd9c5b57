//! Why an attempt failed, from what its Job and pods left behind. Pure.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use kube::ResourceExt;
use warp_api::{GPUWorkload, reason};

use super::assess::containers;
use super::node_of;

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// Whether another attempt may do better.
    pub(crate) retry: bool,
}

/// Why a failed Job failed. The pod's own words are left out: a container may print secrets.
pub(crate) fn explain(workload: &GPUWorkload, job: &Job, pods: &[&Pod]) -> Failure {
    let conditions = job
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let late = conditions
        .into_iter()
        .flatten()
        .any(|found| found.status == "True" && found.reason.as_deref() == Some("DeadlineExceeded"));
    if late {
        let limit = workload.spec.max_runtime.as_deref().unwrap_or("its limit");
        return Failure {
            reason: reason::MAX_RUNTIME_EXCEEDED,
            message: format!(
                "it ran longer than spec.maxRuntime ({limit}); raise it or make the job shorter"
            ),
            retry: false,
        };
    }
    pods.iter()
        .find_map(|pod| of_pod(pod, job))
        .unwrap_or_else(|| Failure {
            reason: reason::JOB_FAILED,
            message: format!(
                "job {} failed and left no pod that says why",
                job.name_any()
            ),
            retry: true,
        })
}

fn of_pod(pod: &Pod, job: &Job) -> Option<Failure> {
    let node = node_of(pod).unwrap_or("unknown");
    let logs = format!(
        "see kubectl logs -n {} job/{}",
        job.namespace().unwrap_or_default(),
        job.name_any()
    );
    let ended = containers(pod).find_map(|container| {
        let state = container.state.as_ref()?.terminated.as_ref()?;
        (state.exit_code != 0 || oom(state)).then_some((&container.name, state))
    });
    // Eviction kills containers too, so it is the better explanation where both are there.
    if let Some(evicted) = eviction(pod, node) {
        return Some(evicted);
    }
    let (name, state) = ended?;
    if oom(state) {
        return Some(Failure {
            reason: reason::OUT_OF_MEMORY,
            message: format!(
                "container {name} on node {node} was killed for exceeding its memory limit; raise resources.limits.memory"
            ),
            retry: true,
        });
    }
    Some(Failure {
        reason: reason::NON_ZERO_EXIT,
        message: format!(
            "container {name} on node {node} ended with exit code {}; {logs}",
            state.exit_code
        ),
        retry: true,
    })
}

fn oom(state: &ContainerStateTerminated) -> bool {
    state.reason.as_deref() == Some("OOMKilled")
}

/// The cluster took the pod away: its node died, or it was evicted or preempted.
fn eviction(pod: &Pod, node: &str) -> Option<Failure> {
    let status = pod.status.as_ref()?;
    let target = status
        .conditions
        .iter()
        .flatten()
        .find(|found| found.type_ == "DisruptionTarget" && found.status == "True")
        .and_then(|found| found.reason.as_deref());
    let why = target.or_else(|| status.reason.as_deref().filter(|why| *why == "Evicted"))?;
    if matches!(why, "DeletionByTaintManager" | "DeletionByPodGC") {
        return Some(Failure {
            reason: reason::NODE_LOST,
            message: format!("node {node} was lost while the attempt ran on it"),
            retry: true,
        });
    }
    Some(Failure {
        reason: reason::EVICTED,
        message: format!("its pod on node {node} was taken away by the cluster ({why})"),
        retry: true,
    })
}
