//! Why an attempt failed, from what its Job and pods left behind. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod, PodCondition};
use kube::{Resource, ResourceExt};
use warp_api::{GPUWorkload, reason};

use super::evict::taken_by;
use super::pod::{containers, ended};
use crate::clock;
use crate::ledger::node_of;

/// A pod deleted this shortly before its Job's deadline was deleted for it: the Job controller's clock
/// is not ours, and times in the API are whole seconds.
const DEADLINE_SLACK: SignedDuration = SignedDuration::from_secs(1);

/// How long a pod may take to end that does not say, as Kubernetes has it.
const GRACE_SECONDS: i64 = 30;
/// What containers end with that were told to: killed, or asked to stop.
const STOPPED: [i32; 2] = [137, 143];

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) next: Next,
}

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another attempt would fail too.
    GiveUp,
    /// Another attempt may do better and uses up a retry.
    Retry,
    /// The attempt did nothing wrong: the cluster took it off its node.
    PlaceAgain,
}

/// Why a failed Job failed. The pod's own words are left out: a container may print secrets.
pub(crate) fn explain(
    workload: &GPUWorkload,
    job: &Job,
    pods: &[&Pod],
    answers: &dyn Fn(&str) -> bool,
) -> Failure {
    let conditions = job
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let failed = conditions.into_iter().flatten().filter(|found| {
        found.status == "True" && matches!(found.type_.as_str(), "Failed" | "FailureTarget")
    });
    let reasons: Vec<&str> = failed
        .clone()
        .filter_map(|found| found.reason.as_deref())
        .collect();
    let at = failed.filter_map(|found| found.last_transition_time.as_ref());
    let at = at.map(|time| time.0).min();
    // A pod that is gone cannot say that the Job's deadline took it; the times can.
    let taken_late = pods.is_empty() && at.is_some_and(|at| past_deadline(job, at));
    if reasons.contains(&"DeadlineExceeded") || taken_late {
        return too_long(workload);
    }
    let logs = format!(
        "see kubectl logs -n {} job/{}",
        job.namespace().unwrap_or_default(),
        job.name_any()
    );
    let told = pods.iter().filter_map(|pod| {
        let failure = of_pod(workload, Some(job), pod, &logs, answers)?;
        Some((began(pod), blame(&failure), failure))
    });
    // When one member of a gang ends, the Job ends the others: the first to end is why.
    if let Some((.., failure)) = told.min_by_key(|(at, blame, _)| (*at, *blame)) {
        return failure;
    }
    let name = job.name_any();
    // The only failure the Job's policy names is a disruption; the pod that knew which is gone.
    if reasons.contains(&"PodFailurePolicy") {
        let taken = Failure {
            reason: reason::EVICTED,
            message: format!(
                "the pod of job {name} on node {} was taken away by the cluster",
                super::assess::pinned(job)
            ),
            next: Next::PlaceAgain,
        };
        return for_whom(Some(job), taken);
    }
    // A Job keeps its failed pods. One that is gone, and not by a disruption, was deleted.
    if pods.is_empty() {
        return Failure {
            reason: reason::POD_DELETED,
            message: format!("the pod of job {name} is gone: it was deleted while it ran"),
            next: Next::Retry,
        };
    }
    Failure {
        reason: reason::JOB_FAILED,
        message: format!("job {name} failed and left no pod that says why"),
        next: Next::Retry,
    }
}

/// The earliest sign that a pod ends.
fn began(pod: &Pod) -> Timestamp {
    let target = target(pod).and_then(|target| target.last_transition_time.as_ref());
    let ends = containers(pod).filter_map(|container| {
        let state = container.state.as_ref()?.terminated.as_ref()?;
        state.finished_at.as_ref()
    });
    let signs = target.into_iter().chain(ends).map(|time| time.0);
    signs.chain(deleted_at(pod)).min().unwrap_or(Timestamp::MAX)
}

/// Of what is told of the same second, the likelier cause first: what the cluster did, what the program did, what was
/// done to it because of that.
fn blame(failure: &Failure) -> u8 {
    match (failure.next, failure.reason) {
        (Next::PlaceAgain, _) => 0,
        (_, reason::POD_DELETED) => 2,
        _ => 1,
    }
}

/// That the cluster takes a pod away, as soon as it says so: one that is being deleted, or has ended, for a disruption.
pub(super) fn taken_away(pod: &Pod, answers: &dyn Fn(&str) -> bool) -> Option<Failure> {
    let going = pod.meta().deletion_timestamp.is_some() || ended(pod);
    target(pod).filter(|_| going)?;
    disruption(pod, node_of(pod).unwrap_or("unknown"), answers)
}

/// The condition that says a disruption ends the pod.
fn target(pod: &Pod) -> Option<&PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|found| found.type_ == "DisruptionTarget" && found.status == "True")
}

fn too_long(workload: &GPUWorkload) -> Failure {
    let limit = workload.spec.max_runtime.as_deref().unwrap_or("its limit");
    Failure {
        reason: reason::MAX_RUNTIME_EXCEEDED,
        message: format!(
            "it ran longer than spec.maxRuntime ({limit}); raise it or make the job shorter"
        ),
        next: Next::GiveUp,
    }
}

/// Whether a Job's time was over at a moment.
pub(super) fn past_deadline(job: &Job, at: Timestamp) -> bool {
    let limit = job
        .spec
        .as_ref()
        .and_then(|spec| spec.active_deadline_seconds);
    let started = job
        .status
        .as_ref()
        .and_then(|status| status.start_time.as_ref());
    let (Some(limit), Some(started)) = (limit, started) else {
        return false;
    };
    let due = clock::after(started.0, limit);
    due.duration_since(at) <= DEADLINE_SLACK
}

/// Why a pod that runs no more ended badly; `None` when it says nothing of the kind. `answers` tells
/// whether a node of that name is there and ready.
pub(super) fn of_pod(
    workload: &GPUWorkload,
    job: Option<&Job>,
    pod: &Pod,
    logs: &str,
    answers: &dyn Fn(&str) -> bool,
) -> Option<Failure> {
    let node = node_of(pod).unwrap_or("unknown");
    let ended = containers(pod).find_map(|container| {
        let state = container.state.as_ref()?.terminated.as_ref()?;
        (state.exit_code != 0 || oom(state)).then_some((&container.name, state))
    });
    if let Some(failure) = at_a_cloud(pod) {
        return Some(failure);
    }
    // Eviction and deletion kill containers too, so they are the better explanation where both are
    // there.
    if let Some(taken) = disruption(pod, node, answers) {
        return Some(for_whom(job, taken));
    }
    let by_itself = |state: &ContainerStateTerminated| {
        let finished = state.finished_at.as_ref().map(|time| time.0);
        let asked = deleted_from(pod).zip(deleted_at(pod));
        asked.is_none_or(|(earliest, latest)| {
            let stopped = STOPPED.contains(&state.exit_code);
            finished.is_some_and(|at| at < earliest || (at < latest && !stopped))
        })
    };
    if let Some(deleted) = deleted_at(pod)
        && !ended.is_some_and(|(_, state)| by_itself(state))
    {
        if job.is_some_and(|job| past_deadline(job, deleted)) {
            return Some(too_long(workload));
        }
        return Some(Failure {
            reason: reason::POD_DELETED,
            message: format!(
                "its pod {} on node {node} was deleted by hand",
                pod.name_any()
            ),
            next: Next::Retry,
        });
    }
    let (name, state) = ended?;
    if oom(state) {
        return Some(Failure {
            reason: reason::OUT_OF_MEMORY,
            message: format!(
                "container {name} on node {node} was killed for exceeding its memory limit; raise resources.limits.memory"
            ),
            next: Next::Retry,
        });
    }
    Some(Failure {
        reason: reason::NON_ZERO_EXIT,
        message: format!(
            "container {name} on node {node} ended with exit code {}; {logs}",
            state.exit_code
        ),
        next: Next::Retry,
    })
}

/// What the operator itself says of a pod that was to be a container at a cloud.
fn at_a_cloud(pod: &Pod) -> Option<Failure> {
    let status = pod.status.as_ref()?;
    let said = status.reason.as_deref()?;
    let reason = [reason::CONTAINER_REFUSED, reason::EXIT_UNKNOWN]
        .into_iter()
        .find(|reason| *reason == said)?;
    Some(Failure {
        reason,
        message: status.message.clone().unwrap_or_default(),
        next: Next::GiveUp,
    })
}

fn oom(state: &ContainerStateTerminated) -> bool {
    state.reason.as_deref() == Some("OOMKilled")
}

/// When a pod's deletion was asked for at the earliest. The last delete, by which a kubelet lets a pod go whose containers have
/// ended, has no grace left and puts its own time in the place of the first one's.
fn deleted_from(pod: &Pod) -> Option<Timestamp> {
    let meta = pod.meta();
    if meta.deletion_grace_period_seconds.unwrap_or(0) > 0 {
        return deleted_at(pod);
    }
    let spec = pod.spec.as_ref();
    let grace = spec.and_then(|spec| spec.termination_grace_period_seconds);
    let ends = meta.deletion_timestamp.as_ref()?.0;
    Some(clock::after(ends, -grace.unwrap_or(GRACE_SECONDS)))
}

/// When a pod's deletion was asked for at the latest.
fn deleted_at(pod: &Pod) -> Option<Timestamp> {
    let meta = pod.meta();
    let ends = meta.deletion_timestamp.as_ref()?.0;
    let grace = meta.deletion_grace_period_seconds.unwrap_or(0);
    Some(clock::after(ends, -grace))
}

/// An eviction that we asked for says for whom.
fn for_whom(job: Option<&Job>, taken: Failure) -> Failure {
    let by = job.and_then(taken_by);
    match by.filter(|_| taken.reason == reason::EVICTED) {
        None => taken,
        Some(by) => Failure {
            reason: reason::PREEMPTED,
            message: format!("{by} took its place"),
            ..taken
        },
    }
}

/// The cluster took the pod away, or never let it start: nothing the workload did.
fn disruption(pod: &Pod, node: &str, answers: &dyn Fn(&str) -> bool) -> Option<Failure> {
    let status = pod.status.as_ref()?;
    let said = status.reason.as_deref().unwrap_or_default();
    let target = target(pod);
    let name = pod.name_any();
    let again = |reason, message| {
        Some(Failure {
            reason,
            message,
            next: Next::PlaceAgain,
        })
    };
    let Some(target) = target else {
        // What the kubelet evicts without naming a disruption it evicts for the pod's own use.
        if said == "Evicted" {
            let why = status.message.as_deref().unwrap_or("it gave no reason");
            return Some(Failure {
                reason: reason::EVICTED,
                message: format!(
                    "its pod {name} was evicted from node {node}: {why}; if it uses too much, raise its limit"
                ),
                next: Next::Retry,
            });
        }
        let refused = said.starts_with("OutOf")
            || matches!(
                said,
                "UnexpectedAdmissionError" | "NodeAffinity" | "NodeShutdown" | "Shutdown"
            );
        let never_ran = containers(pod).all(|container| {
            let state = container.state.as_ref();
            state.is_none_or(|state| state.terminated.is_none() && state.running.is_none())
        });
        if refused && never_ran {
            let message = format!("the kubelet of node {node} refused its pod {name} ({said})");
            return again(reason::REFUSED_BY_NODE, message);
        }
        return None;
    };
    match target.reason.as_deref().unwrap_or_default() {
        "DeletionByTaintManager" if answers(node) => again(
            reason::EVICTED,
            format!("its pod {name} was taken off node {node} for a NoExecute taint"),
        ),
        "DeletionByTaintManager" | "DeletionByPodGC" => again(
            reason::NODE_LOST,
            format!("node {node} was lost while its pod {name} was on it"),
        ),
        "PreemptionByScheduler" => again(
            reason::PREEMPTED,
            format!("its pod {name} on node {node} made room for one of higher priority"),
        ),
        "EvictionByEvictionAPI" => again(
            reason::EVICTED,
            format!("its pod {name} was evicted from node {node}, as a drain does"),
        ),
        "TerminationByKubelet" => {
            let why = if said.is_empty() {
                "node pressure or shutdown"
            } else {
                said
            };
            again(
                reason::EVICTED,
                format!("the kubelet of node {node} ended its pod {name} ({why})"),
            )
        }
        other => again(
            reason::EVICTED,
            format!("its pod {name} on node {node} was taken away by the cluster ({other})"),
        ),
    }
}
