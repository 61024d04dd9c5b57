//! What the current attempt's Job and pods mean. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Resource, ResourceExt};
use warp_api::{GPUWorkload, GPUWorkloadStatus, Phase, label, reason};

use super::Seen;
use super::failure::{self, Failure, Next};
use super::gang;
use super::members::{self, Members};
use super::pod::{container_trouble, ended, made_by, pod_phase, started};
use crate::clock;
use crate::config::Settings;
use crate::ledger::{node_of, waits_for_volume};

/// Label by which the Job controller names a pod's Job.
const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// Taint by which an administrator states that a node's pods run no more.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Where the current attempt stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Standing {
    /// It has no Job.
    Unplaced,
    Waiting(Wait),
    /// All pods of a gang are there, and not all of them have been let go.
    Gated(Wait),
    Running {
        since: Option<Timestamp>,
    },
    /// Its pod ended; the Job is about to say how.
    Settling,
    /// Its Job was suspended, not by us; the pods that still end are named.
    JobSuspended {
        ending: Vec<String>,
    },
    /// Its Job is gone or disowned and its pod goes on without it.
    Orphaned {
        pod: String,
        node: String,
        running: bool,
        since: Option<Timestamp>,
    },
    Succeeded {
        since: Option<Timestamp>,
        at: Option<Timestamp>,
    },
    Failed(Failure),
    /// The cluster's scheduler will not bind the pod to the node we chose.
    Refused {
        node: String,
        message: String,
    },
}

/// A Job that exists and does not run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wait {
    pub(crate) phase: Phase,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// When it is given up.
    pub(crate) deadline: Timestamp,
}

/// Whether a workload may be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placeable {
    No,
    /// Not before then: its next attempt waits.
    From(Timestamp),
    /// Its last placement could not be made and is not tried again before then.
    Held(Timestamp),
    Now,
}

/// The number of the current attempt: every failure and every disruption begins another one.
pub(crate) fn attempt(workload: &GPUWorkload) -> i32 {
    retries(workload).saturating_add(disruptions(workload))
}

pub(super) fn retries(workload: &GPUWorkload) -> i32 {
    let status = workload.status.as_ref();
    status.and_then(|status| status.retry_count).unwrap_or(0)
}

pub(super) fn disruptions(workload: &GPUWorkload) -> i32 {
    let status = workload.status.as_ref();
    status.and_then(|status| status.disruptions).unwrap_or(0)
}

/// Whether a Job makes no pods until it is resumed.
pub(crate) fn suspended(job: &Job) -> bool {
    job.spec
        .as_ref()
        .is_some_and(|spec| spec.suspend == Some(true))
}

/// Whether a Job has ended, well or badly.
pub(crate) fn over(job: &Job) -> bool {
    has_condition(job, "Complete") || has_condition(job, "Failed")
}

/// Whether a Job has ended or is about to say so: its controller has decided and makes no more pods.
/// Deleting it now would take away the record of how it ended.
pub(crate) fn ending(job: &Job) -> bool {
    over(job) || has_condition(job, "FailureTarget") || has_condition(job, "SuccessCriteriaMet")
}

/// The Job of the current attempt.
pub(crate) fn current<'a>(workload: &GPUWorkload, seen: &'a Seen) -> Option<&'a Job> {
    let attempt = attempt(workload).to_string();
    let mut jobs = seen
        .jobs
        .iter()
        .filter(|job| job.meta().deletion_timestamp.is_none());
    jobs.find(|job| job.labels().get(label::ATTEMPT) == Some(&attempt))
        .map(|job| &**job)
}

/// Jobs of other attempts that may still make or run pods.
pub(crate) fn leftovers<'a>(workload: &GPUWorkload, seen: &'a Seen) -> Vec<&'a Job> {
    let attempt = attempt(workload).to_string();
    let others = seen.jobs.iter().filter(|job| {
        job.labels().get(label::ATTEMPT) != Some(&attempt) && !ending(job)
            || job.meta().deletion_timestamp.is_some()
    });
    others.map(|job| &**job).collect()
}

/// Whether a workload may be placed, given the status it has or is about to have. Two attempts never overlap: as long
/// as a pod of an earlier one can still run, the answer is no. A status that still names a Job is corrected before
/// another one is made: that write also proves that the workload is there, whatever a silent watch leaves us to believe.
pub(crate) fn placeable(
    workload: &GPUWorkload,
    status: Option<&GPUWorkloadStatus>,
    seen: &Seen,
    settings: &Settings,
    now: Timestamp,
) -> Placeable {
    let finished = status
        .and_then(|status| status.phase)
        .is_some_and(Phase::is_final);
    if workload.meta().deletion_timestamp.is_some()
        || finished
        || status.is_some_and(|status| status.job_name.is_some())
        || workload.spec.suspend
        || current(workload, seen).is_some()
        || !leftovers(workload, seen).is_empty()
        || live(seen, settings, now).next().is_some()
    {
        return Placeable::No;
    }
    let next = status.and_then(|status| status.next_retry_time.as_ref());
    match (next, seen.held_until) {
        (Some(at), _) if at.0 > now => Placeable::From(at.0),
        (_, Some(until)) if until > now => Placeable::Held(until),
        _ => Placeable::Now,
    }
}

/// Pods that may still run, or come to run.
pub(crate) fn live<'a>(
    seen: &'a Seen,
    settings: &'a Settings,
    now: Timestamp,
) -> impl Iterator<Item = &'a Pod> {
    let pods = seen.pods.iter().map(|pod| &**pod);
    pods.filter(move |pod| can_run(pod, seen, settings, now))
}

/// Whether a pod can still run. It provably cannot when it ended, was deleted by force, or its node
/// is gone or declared out of service; it is taken not to when its node has been silent for longer
/// than the deadline in the status.
pub(super) fn can_run(pod: &Pod, seen: &Seen, settings: &Settings, now: Timestamp) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return false;
    }
    let meta = pod.meta();
    if meta.deletion_timestamp.is_some() && meta.deletion_grace_period_seconds == Some(0) {
        return false;
    }
    let Some(name) = node_of(pod) else {
        return true;
    };
    let Some(node) = seen.nodes.get(name) else {
        return false;
    };
    !out_of_service(node) && silent_until(node, settings).is_none_or(|deadline| deadline > now)
}

/// Nodes that pods of a workload are bound to and that we have not heard of: gone, or not yet told.
pub(super) fn missing_nodes(seen: &Seen) -> BTreeSet<&str> {
    let unfinished = seen.pods.iter().filter(|pod| !ended(pod));
    unfinished
        .filter_map(|pod| node_of(pod))
        .filter(|node| !seen.nodes.contains_key(*node))
        .collect()
}

fn out_of_service(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints
        .into_iter()
        .flatten()
        .any(|taint| taint.key == OUT_OF_SERVICE)
}

/// When the first of the nodes that do not answer is given up.
pub(super) fn silence_ends(seen: &Seen, settings: &Settings, now: Timestamp) -> Option<Timestamp> {
    let silent = seen.nodes.values();
    let deadlines = silent.filter_map(|node| silent_until(node, settings));
    deadlines.filter(|deadline| *deadline > now).min()
}

/// For a node that does not answer: when its pods are given up.
fn silent_until(node: &Node, settings: &Settings) -> Option<Timestamp> {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "Ready")?;
    if ready.status == "True" {
        return None;
    }
    let since = ready.last_transition_time.as_ref()?.0;
    Some(plus(since, settings.node_loss_timeout))
}

/// Where the current attempt stands.
pub(crate) fn assess(
    workload: &GPUWorkload,
    seen: &Seen,
    settings: &Settings,
    now: Timestamp,
) -> Standing {
    let Some(job) = current(workload, seen) else {
        let left = orphan(workload, seen);
        return left.map_or(Standing::Unplaced, |pod| {
            of_orphan(workload, pod, seen, settings, now)
        });
    };
    let pods: Vec<&Pod> = seen
        .pods
        .iter()
        .map(|pod| &**pod)
        .filter(|pod| made_by(job, pod))
        .collect();
    if has_condition(job, "Complete") {
        let at = job
            .status
            .as_ref()
            .and_then(|status| status.completion_time.as_ref());
        return Standing::Succeeded {
            since: pods.iter().filter_map(|pod| started(pod)).min(),
            at: at.map(|time| time.0),
        };
    }
    let live: Vec<&Pod> = pods
        .iter()
        .copied()
        .filter(|pod| can_run(pod, seen, settings, now))
        .collect();
    let failed = has_condition(job, "Failed") || has_condition(job, "FailureTarget");
    let answers = |name: &str| answers(name, seen, settings);
    let gang = gang::size(job).map(|size| Members {
        workload,
        job,
        pods: &pods,
        size,
        seen,
        settings,
        now,
    });
    match (live.first(), failed) {
        (None, true) => Standing::Failed(failure::explain(workload, job, &pods, &answers)),
        (_, false) if suspended(job) => Standing::JobSuspended {
            ending: live.iter().map(|pod| pod.name_any()).collect(),
        },
        (None, false) => without_live_pod(workload, job, &pods, seen, settings, now),
        (Some(pod), _) => match gang {
            None => with_pod(job, pod, &pinned(job), seen, settings, now),
            Some(gang) if failed => gang.stopping(),
            Some(gang) => gang.standing(),
        },
    }
}

/// Whether a node is there, in service and ready.
pub(super) fn answers(name: &str, seen: &Seen, settings: &Settings) -> bool {
    seen.nodes
        .get(name)
        .is_some_and(|node| !out_of_service(node) && silent_until(node, settings).is_none())
}

/// The pod of the current attempt whose Job was deleted without it (`--cascade=orphan`) or lost its
/// owner. Only the Job the status names counts, and only a pod that nobody is deleting: what the
/// garbage collector has not come to yet still names its Job as owner.
fn orphan<'a>(workload: &GPUWorkload, seen: &'a Seen) -> Option<&'a Pod> {
    let job = workload.status.as_ref()?.job_name.as_deref()?;
    let number = attempt(workload).to_string();
    let left = |pod: &&Arc<Pod>| {
        let owners = pod.owner_references();
        let owner = owners.iter().find(|owner| owner.controller == Some(true));
        let disowned = owner.is_none_or(|owner| {
            let mut strays = seen.strays.iter();
            strays.any(|stray| stray.meta().uid.as_deref() == Some(&owner.uid))
        });
        let labels = pod.labels();
        disowned
            && pod.meta().deletion_timestamp.is_none()
            && labels.get(label::ATTEMPT) == Some(&number)
            && labels.get(JOB_NAME).map(String::as_str) == Some(job)
    };
    // Of a gang, what failed decides first, and what ended well last.
    let turn = |pod: &&Arc<Pod>| match pod_phase(pod) {
        Some("Failed") => 0,
        Some("Succeeded") => 2,
        _ => 1,
    };
    let left = seen.pods.iter().filter(left);
    left.min_by_key(turn).map(|pod| &**pod)
}

/// Whether a Job that was deleted may still leave a pod behind: the garbage collector has not got round
/// to deleting or freeing it.
pub(super) fn leaves(seen: &Seen, job: &str) -> bool {
    let left = |pod: &&Arc<Pod>| {
        pod.meta().deletion_timestamp.is_none()
            && !ended(pod)
            && pod.labels().get(JOB_NAME).map(String::as_str) == Some(job)
    };
    seen.jobs.iter().any(|found| found.name_any() == job) || seen.pods.iter().any(|pod| left(&pod))
}

/// A pod without its Job decides by its own end.
fn of_orphan(
    workload: &GPUWorkload,
    pod: &Pod,
    seen: &Seen,
    settings: &Settings,
    now: Timestamp,
) -> Standing {
    let name = pod.name_any();
    let node = node_of(pod).unwrap_or_default().to_owned();
    if pod_phase(pod) == Some("Succeeded") {
        let placed = workload.status.as_ref();
        let placed = placed.and_then(warp_api::GPUWorkloadStatus::placed_members);
        let members = placed.unwrap_or(workload.spec.members() as usize);
        let same = |other: &&Arc<Pod>| other.labels().get(JOB_NAME) == pod.labels().get(JOB_NAME);
        let well = seen.pods.iter().filter(same);
        let well = well
            .filter(|other| pod_phase(other) == Some("Succeeded"))
            .count();
        if well < members {
            return Standing::Failed(Failure {
                reason: reason::POD_DELETED,
                message: format!(
                    "its Job is gone and only {well} of its {members} pods were left and ended well"
                ),
                next: Next::Retry,
            });
        }
        return Standing::Succeeded {
            since: started(pod),
            at: None,
        };
    }
    if can_run(pod, seen, settings, now) {
        return Standing::Orphaned {
            running: pod_phase(pod) == Some("Running"),
            since: started(pod),
            pod: name,
            node,
        };
    }
    if !ended(pod) {
        return lost(workload, None, pod, seen, settings);
    }
    let namespace = pod.namespace().unwrap_or_default();
    let logs = format!("see kubectl logs -n {namespace} {name}");
    let answers = |name: &str| answers(name, seen, settings);
    let why = failure::of_pod(workload, None, pod, &logs, &answers);
    Standing::Failed(why.unwrap_or_else(|| Failure {
        reason: reason::JOB_FAILED,
        message: format!("its pod {name}, left without its Job, failed and says not why"),
        next: Next::Retry,
    }))
}

/// A pod that cannot run any more and has not ended: deleted by force, or lost with its node.
pub(super) fn lost(
    workload: &GPUWorkload,
    job: Option<&Job>,
    pod: &Pod,
    seen: &Seen,
    settings: &Settings,
) -> Standing {
    let (node, name) = (node_of(pod).unwrap_or_default(), pod.name_any());
    let answers = |name: &str| answers(name, seen, settings);
    if answers(node)
        && let Some(failure) = failure::of_pod(workload, job, pod, "", &answers)
    {
        return Standing::Failed(failure);
    }
    Standing::Failed(Failure {
        reason: reason::NODE_LOST,
        message: format!(
            "node {node} is gone or has not answered for {} s while {name} was on it",
            settings.node_loss_timeout.as_secs(),
        ),
        next: Next::PlaceAgain,
    })
}

/// The Job is unfinished and nothing of it can run: no pod yet, or its pods ended or were lost.
fn without_live_pod(
    workload: &GPUWorkload,
    job: &Job,
    pods: &[&Pod],
    seen: &Seen,
    settings: &Settings,
    now: Timestamp,
) -> Standing {
    let lost = pods
        .iter()
        .find(|pod| !ended(pod) && node_of(pod).is_some());
    if let Some(pod) = lost {
        return self::lost(workload, Some(job), pod, seen, settings);
    }
    // Its time is over and its pod is gone already: the Job says so next.
    if !pods.is_empty() || failure::past_deadline(job, now) {
        return Standing::Settling;
    }
    if let Some(refused) = pods_refused(job, seen, settings, now) {
        return refused;
    }
    let (node, deadline) = (pinned(job), start_deadline(job, settings));
    if deadline <= now {
        let message = "its pod was never created".to_owned();
        return Standing::Refused { node, message };
    }
    let message = if gang::size(job).is_some() {
        format!(
            "placed on {}; its pods are being created and bound",
            members::places(job)
        )
    } else {
        placed_on(&node)
    };
    Standing::Waiting(Wait {
        phase: Phase::Scheduling,
        reason: reason::PLACED,
        message,
        deadline,
    })
}

/// What was said of a pod of a Job, without the name it would have had: every try makes up another, and what changes
/// with each would be told anew each time.
fn without_pod_names(text: &str, job: &str) -> String {
    let begin = format!("\"{job}-");
    let mut parts = text.split(begin.as_str());
    let mut said = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.find('"').map_or("", |end| &part[end + 1..]);
        said = format!("{said}of job {job}{rest}");
    }
    said
}

/// The cluster refuses to create pods of a Job.
pub(super) fn pods_refused(
    job: &Job,
    seen: &Seen,
    settings: &Settings,
    now: Timestamp,
) -> Option<Standing> {
    let uid = job.uid().unwrap_or_default();
    let message = seen.refusals.get(&uid)?;
    let next = if message.contains("violates PodSecurity") {
        "set what it names in spec.securityContext or spec.podSecurityContext (in podTemplate, where there is one), for example podSecurityContext.runAsNonRoot with an image that does not run as root"
    } else {
        "change the namespace's quota or policy, or the workload"
    };
    let message = without_pod_names(message, &job.name_any());
    let message = format!("the cluster refuses to create the pod: {message}; {next}");
    Some(start_wait(
        job,
        Phase::Scheduling,
        reason::PODS_REFUSED,
        message,
        settings,
        now,
    ))
}

/// Whether a Job has had its time to start.
pub(super) fn past_start(job: &Job, settings: &Settings, now: Timestamp) -> bool {
    start_deadline(job, settings) <= now
}

/// Where a pod stands that may still run; `chosen` is the node it is to be bound to.
pub(super) fn with_pod(
    job: &Job,
    pod: &Pod,
    chosen: &str,
    seen: &Seen,
    settings: &Settings,
    now: Timestamp,
) -> Standing {
    let running = pod_phase(pod) == Some("Running");
    let Some(node) = node_of(pod) else {
        return unbound(job, pod, chosen, settings, now);
    };
    if let Some(deadline) = seen
        .nodes
        .get(node)
        .and_then(|node| silent_until(node, settings))
    {
        return Standing::Waiting(Wait {
            phase: if running {
                Phase::Running
            } else {
                Phase::Scheduled
            },
            reason: reason::NODE_LOST,
            message: format!(
                "node {node} does not answer or is not ready; if it stays so the attempt counts as failed at {deadline:.0}"
            ),
            deadline,
        });
    }
    if let Some((found, message)) = container_trouble(pod) {
        if found == reason::INVALID_IMAGE_NAME {
            return Standing::Failed(Failure {
                reason: found,
                message,
                next: Next::GiveUp,
            });
        }
        return start_wait(job, Phase::Scheduled, found, message, settings, now);
    }
    if running {
        return Standing::Running {
            since: started(pod),
        };
    }
    start_wait(
        job,
        Phase::Scheduled,
        reason::STARTING,
        format!("bound to node {node}; its containers are being started"),
        settings,
        now,
    )
}

/// A pod the cluster's scheduler has not bound. One it makes room for, by preempting others, is on its
/// way.
fn unbound(job: &Job, pod: &Pod, node: &str, settings: &Settings, now: Timestamp) -> Standing {
    let node = node.to_owned();
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let scheduled = conditions
        .into_iter()
        .flatten()
        .find(|found| found.type_ == "PodScheduled");
    let refused = scheduled.filter(|found| {
        found.status == "False" && found.reason.as_deref() == Some("Unschedulable")
    });
    let making_room = pod
        .status
        .as_ref()
        .and_then(|status| status.nominated_node_name.as_ref())
        .is_some_and(|nominated| *nominated == node);
    if let Some(refused) = refused.filter(|_| !making_room) {
        let message = refused.message.clone().unwrap_or_default();
        if waits_for_volume(pod) {
            // kube-scheduler ends this with words that it has said already.
            let said = message.strip_suffix(". not found").unwrap_or(&message);
            let message = format!(
                "a volume claim is missing or unbound: {said}; create it or correct its name"
            );
            return start_wait(
                job,
                Phase::Scheduling,
                reason::VOLUME_NOT_READY,
                message,
                settings,
                now,
            );
        }
        return Standing::Refused { node, message };
    }
    let deadline = start_deadline(job, settings);
    if deadline <= now {
        return Standing::Refused {
            node,
            message: "its pod was never bound".to_owned(),
        };
    }
    Standing::Waiting(Wait {
        phase: Phase::Scheduling,
        reason: reason::PLACED,
        message: placed_on(&node),
        deadline,
    })
}

/// What is said from the placement until its pod is bound, which takes a moment and is not worth a second write.
fn placed_on(node: &str) -> String {
    format!("placed on node {node}; its pod is being created and bound")
}

/// A wait that ends in a failed attempt when the start takes too long.
fn start_wait(
    job: &Job,
    phase: Phase,
    reason: &'static str,
    message: String,
    settings: &Settings,
    now: Timestamp,
) -> Standing {
    let deadline = start_deadline(job, settings);
    if deadline > now {
        return Standing::Waiting(Wait {
            phase,
            reason,
            message,
            deadline,
        });
    }
    let reason = if reason == reason::STARTING {
        reason::START_TIMEOUT
    } else {
        reason
    };
    let after = settings.start_timeout.as_secs();
    Standing::Failed(Failure {
        reason,
        message: format!("not running {after} s after placement: {message}"),
        next: Next::Retry,
    })
}

/// A Job that was suspended and resumed starts anew.
pub(super) fn start_deadline(job: &Job, settings: &Settings) -> Timestamp {
    let made = job
        .meta()
        .creation_timestamp
        .as_ref()
        .map_or(Timestamp::MAX, |time| time.0);
    let status = job.status.as_ref();
    let resumed = status.and_then(|status| status.conditions.as_ref());
    let resumed = resumed
        .into_iter()
        .flatten()
        .filter(|found| found.type_ == "Suspended" && found.status == "False")
        .filter_map(|found| found.last_transition_time.as_ref())
        .map(|time| time.0);
    let from = resumed.max().map_or(made, |resumed| resumed.max(made));
    plus(from, settings.start_timeout)
}

/// The node a Job of ours is pinned to; of a gang, that of its first member.
pub(crate) fn pinned(job: &Job) -> String {
    let first = || gang::nodes(job).first().map(|node| (*node).to_owned());
    let said = job.annotations().get(label::NODE).cloned();
    said.or_else(first).unwrap_or_default()
}

fn has_condition(job: &Job, kind: &str) -> bool {
    let conditions = job
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|found| found.type_ == kind && found.status == "True")
}

fn plus(at: Timestamp, wait: std::time::Duration) -> Timestamp {
    let seconds = SignedDuration::try_from(wait)
        .unwrap_or(SignedDuration::MAX)
        .as_secs();
    clock::after(at, seconds)
}
