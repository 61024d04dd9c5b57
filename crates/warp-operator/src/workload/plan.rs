//! What should happen to one workload. Pure: everything it knows comes in, nothing goes out but a
//! plan.
//!
//! Anything that must survive a crash is in the status one pass before it is acted on: the retry
//! count before the next attempt is placed, the refused node before its Job is deleted, the final
//! phase before a Job that still holds GPUs is deleted.

mod attempts;
mod edits;
mod gangs;
mod saved;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::{Resource, ResourceExt};
use serde_json::json;
use warp_api::condition;
use warp_api::workload::{RefusedNode, RetryPolicy, fold_nodes, run_seconds};
use warp_api::{GPUWorkload, GPUWorkloadStatus, Phase, label, reason};
use warp_core::random::Fingerprint;
use warp_runtime::cache::Key;
use warp_runtime::plan::Plan;

use super::assess::{
    Placeable, Standing, Wait, assess, attempt, current, disruptions, ending, leaves, leftovers,
    live, missing_nodes, over, pinned, placeable, retries,
};
use super::course::{Course, Note};
use super::evict::{evict_pod, evicted_for, taken_by};
use super::failure::{Failure, Next};
use super::pod::{ended, made_by};
use super::say::{Say, conditions, note, told};
use super::{Seen, gang, rank, rent, shell, shown};
use crate::clock;
use crate::config::Settings;
use crate::estimates;

/// Longest backoff before jitter, as in the first design.
const MAX_BACKOFF: i64 = 300;
/// An unfinished workload is looked at this often even when nothing happens.
const RESYNC: i64 = 600;
/// A workload nobody has looked at gets a status after this long, so that one which is placed at
/// once costs no write for having waited.
const PATIENCE: i64 = 1;
/// Containers that start well get a status after this long, counted from the placement.
const START_PATIENCE: i64 = 3;
/// Seconds for which a node is left out whose room was taken by somebody else meanwhile.
const ROOM: u64 = 10;
/// Seconds after its time that a pod which was evicted is told to be late.
const OVERDUE: i64 = 30;
/// Refused nodes remembered at once.
const REFUSED: usize = 16;
/// Refusals in a row after which another node is still tried at once.
const QUICK: i32 = 8;
/// Longest wait between two nodes that are refused.
const MAX_PAUSE: i64 = 600;
/// A refusal this long ago says nothing about the next one.
const FORGOTTEN: i64 = 3600;

pub(super) fn plan(
    workload: &GPUWorkload,
    seen: &Seen,
    settings: &Settings,
    now: Timestamp,
) -> Course {
    let mut course = decide(workload, seen, settings, now);
    rent::arrange(&mut course, workload, &seen.rented, now);
    shown::arrange(
        &mut course,
        workload,
        (&seen.shown, &seen.catalogue),
        settings,
        now,
    );
    // Whoever is behind takes the Job of a newer attempt for one that was given up: the status that
    // says which attempt this is must be the newest.
    if course.deletes_a_job() {
        course.steps.only_if_unchanged(workload);
    }
    course
}

fn decide(workload: &GPUWorkload, seen: &Seen, settings: &Settings, now: Timestamp) -> Course {
    // Owner references take everything with it; there is nothing to add.
    if workload.meta().deletion_timestamp.is_some() {
        return Course::default();
    }
    let status = workload.status.clone().unwrap_or_default();
    let mut pass = Pass {
        workload,
        seen,
        settings,
        now,
        status,
        steps: Plan::default(),
    };
    if pass.status.phase.is_some_and(Phase::is_final) {
        return pass.finished();
    }
    pass.note_rank();
    let mut course = match assess(workload, seen, settings, now) {
        Standing::Succeeded { since, at } => pass.succeeded(since, at),
        Standing::Failed(failure) => {
            let mut course = match failure.next {
                Next::PlaceAgain => pass.disrupted(&failure),
                Next::Retry | Next::GiveUp => pass.failed(&failure),
            };
            only_if_lost(&mut course.steps, seen);
            course
        }
        // How it ended is about to be known; deleted now, it would have to run again.
        Standing::Settling => Course::later(clock::after(now, RESYNC)),
        _ if workload.spec.suspend && !current(workload, seen).is_some_and(ending) => {
            pass.suspended()
        }
        Standing::Unplaced => pass.unplaced(),
        ref standing if pass.is_of_an_older_spec(standing) => pass.spec_changed(),
        Standing::Refused { node, message } => pass.refused(&node, &message),
        Standing::Waiting(wait) => pass.waiting(wait),
        Standing::Gated(wait) => pass.gated(wait),
        Standing::Running { since } => pass.running(since),
        Standing::JobSuspended { ending } => pass.job_suspended(&ending),
        Standing::Orphaned {
            pod,
            node,
            running,
            since,
        } => pass.orphaned(&pod, &node, running, since),
    };
    for job in leftovers(workload, seen) {
        if job.meta().deletion_timestamp.is_none() {
            course.steps.delete_version(job);
            let why = "it belongs to an attempt that was given up";
            course.steps.because(why);
        }
    }
    course
}

struct Pass<'a> {
    workload: &'a GPUWorkload,
    seen: &'a Seen,
    settings: &'a Settings,
    now: Timestamp,
    status: GPUWorkloadStatus,
    /// Writes besides the status.
    steps: Plan,
}

impl Pass<'_> {
    /// What the line and evictions go by: much of it may not be in the spec.
    fn note_rank(&mut self) {
        let priority = rank(self.workload, self.seen.given).ok();
        let priority = priority.map(|rank| rank.priority);
        self.status.priority = priority;
        let goes = |priority| self.seen.given.preemptible(self.workload, priority);
        self.status.preemptible = priority.map(goes);
    }

    fn finished(self) -> Course {
        let mut steps = self.steps;
        let ended = self.status.completion_time.as_ref().map(|time| time.0);
        let ttl = self.workload.spec.ttl_seconds_after_finished;
        let due = ttl.and_then(|ttl| Some(clock::after(ended?, i64::from(ttl))));
        let mut status = self.status;
        status.observed_generation = self.workload.meta().generation;
        "the spec changed after the end".clone_into(&mut steps.why);
        if due.is_some_and(|due| due <= self.now) {
            steps.delete_version(self.workload);
            steps.because("ttlSecondsAfterFinished has passed");
        } else {
            let unfinished = self.seen.jobs.iter().filter(|job| !ending(job));
            for job in unfinished.filter(|job| job.meta().deletion_timestamp.is_none()) {
                steps.delete_version(&**job);
                steps.because("its workload has ended");
            }
            steps.again = due;
        }
        Course {
            steps,
            status: Some(status),
            ..Course::default()
        }
    }

    fn succeeded(mut self, since: Option<Timestamp>, at: Option<Timestamp>) -> Course {
        self.describe_job();
        // It may have run while nobody watched.
        self.status.start_time = self.status.start_time.or_else(|| since.map(Time));
        self.status.completion_time = Some(Time(at.unwrap_or(self.now)));
        self.note_started(since);
        self.note_ended(reason::SUCCEEDED, at.unwrap_or(self.now));
        self.status.deadline = None;
        let attempts = attempt(self.workload) + 1;
        let message = match attempts {
            1 => "the job ended with exit code 0".to_owned(),
            many => format!("the job ended with exit code 0 at attempt {many}"),
        };
        let note = note(false, reason::SUCCEEDED, "Finish", &message);
        let again = self
            .workload
            .spec
            .ttl_seconds_after_finished
            .map(|_| self.now);
        let say = Say {
            phase: Phase::Succeeded,
            ready: true,
            reason: reason::SUCCEEDED,
            message,
        };
        self.conclude(&say, vec![note], again, false)
    }

    fn failed(mut self, failure: &Failure) -> Course {
        let used = retries(self.workload);
        let number = attempt(self.workload) + 1;
        let RetryPolicy {
            max_retries,
            backoff_seconds,
            ..
        } = self.workload.spec.retry_policy;
        let retry = failure.next == Next::Retry && !self.ends_the_gang(failure);
        self.note_last_checkpoint(false);
        self.note_ended(failure.reason, self.now);
        self.status.deadline = None;
        self.status.start_time = None;
        if retry && used < max_retries {
            let uid = self.workload.uid().unwrap_or_default();
            let wait = backoff(backoff_seconds, used, &uid);
            let at = clock::after(self.now, wait);
            self.status.retry_count = Some(used + 1);
            self.status.next_retry_time = Some(Time(at));
            self.leave_nodes();
            self.status.job_name = None;
            let message = format!(
                "attempt {number} failed: {}; retry {} of {max_retries} in {wait} s",
                failure.message,
                used + 1
            );
            let note = note(true, failure.reason, "Retry", &message);
            let say = Say {
                phase: Phase::Pending,
                ready: false,
                reason: reason::RETRY_BACKOFF,
                message,
            };
            // At once: the lost attempt's Job, if it still exists, is deleted by the next pass.
            let now = self.now;
            return self.conclude(&say, vec![note], Some(now), false);
        }
        let (name, message) = if retry && max_retries > 0 {
            let all = format!("{} (all {max_retries} retries are used)", failure.message);
            (reason::EVENT_MAX_RETRIES, all)
        } else {
            (failure.reason, failure.message.clone())
        };
        self.given_up(failure.reason, name, message)
    }

    /// The cluster took the attempt off its node. It is placed again, for which no retry is used, as
    /// often as `maxDisruptions` allows.
    fn disrupted(mut self, failure: &Failure) -> Course {
        let count = disruptions(self.workload).saturating_add(1);
        let number = attempt(self.workload) + 1;
        let most = self.workload.spec.retry_policy.max_disruptions;
        self.note_last_checkpoint(matches!(
            failure.reason,
            reason::PREEMPTED | reason::EVICTED
        ));
        self.note_ended(failure.reason, self.now);
        let lost = self.lost_by(failure);
        if lost > 0 {
            let before = self.status.lost_gpu_seconds.unwrap_or(0);
            self.status.lost_gpu_seconds = Some(before.saturating_add(lost));
        }
        self.status.deadline = None;
        self.status.start_time = None;
        if count > most {
            let message = format!(
                "{} (more than the {most} disruptions that retryPolicy.maxDisruptions allows)",
                failure.message
            );
            return self.given_up(failure.reason, reason::EVENT_MAX_DISRUPTIONS, message);
        }
        // Nothing in the API says that a kubelet will refuse again: the node is left out for a while.
        if failure.reason == reason::REFUSED_BY_NODE
            && let Some(node) = self.refusing_node()
        {
            let job = current(self.workload, self.seen).and_then(ResourceExt::uid);
            self.avoid(&node, job.unwrap_or_default(), &failure.message);
        }
        // A node that takes it and loses it at once must not be fed for ever at this pace.
        let wait = pause(count);
        let next = (wait > 0).then(|| Time(clock::after(self.now, wait)));
        self.status.next_retry_time = next;
        self.status.disruptions = Some(count);
        self.leave_nodes();
        self.status.job_name = None;
        let when = match wait {
            0 => "at once".to_owned(),
            wait => format!("in {wait} s"),
        };
        let message = format!(
            "attempt {number} was disrupted: {}; it is placed again {when} and no retry is used (disruption {count} of at most {most})",
            failure.message
        );
        let note = note(true, failure.reason, "PlaceAgain", &message);
        let say = Say {
            phase: Phase::Pending,
            ready: false,
            reason: reason::DISRUPTED,
            message,
        };
        // At once: the lost attempt's Job, if it still exists, is deleted by the next pass.
        let now = self.now;
        self.conclude(&say, vec![note], Some(now), false)
    }

    /// The end without success.
    fn given_up(mut self, reason: &'static str, event: &'static str, message: String) -> Course {
        self.describe_job();
        self.status.completion_time = Some(Time(self.now));
        self.status.next_retry_time = None;
        let note = note(true, event, "Fail", &message);
        let say = Say {
            phase: Phase::Failed,
            ready: false,
            reason,
            message,
        };
        let now = self.now;
        self.conclude(&say, vec![note], Some(now), false)
    }

    fn suspended(mut self) -> Course {
        if let Some(job) = current(self.workload, self.seen) {
            self.steps.delete_version(job);
            self.steps.because("spec.suspend is true");
        }
        // A pod that lost its Job cannot be stopped through it.
        let left = live(self.seen, self.settings, self.now).find(|pod| {
            pod.owner_references().is_empty() && pod.meta().deletion_timestamp.is_none()
        });
        let left = left.map(|pod| {
            format!(
                "; its pod {} lost its Job and still holds GPUs: delete it",
                pod.name_any()
            )
        });
        self.stopped();
        self.status.next_retry_time = None;
        let message = format!(
            "suspended; set spec.suspend to false to place it again{}",
            left.unwrap_or_default()
        );
        let say = Say {
            phase: Phase::Pending,
            ready: false,
            reason: reason::SUSPENDED,
            message,
        };
        self.transition(&say, None, false)
    }

    /// Somebody suspended the Job: its GPUs are given back, and whoever did it may resume it. A node
    /// that is full by then is refused by the cluster's scheduler and another is looked for.
    fn job_suspended(mut self, ending: &[String]) -> Course {
        self.describe_job();
        self.forget_attempt();
        let job = self.status.job_name.clone().unwrap_or_default();
        let namespace = self.workload.namespace().unwrap_or_default();
        self.leave_nodes();
        self.status.deadline = None;
        self.status.start_time = None;
        let given_back = if ending.is_empty() {
            "its GPUs are given back".to_owned()
        } else {
            format!(
                "its GPUs are given back when {} has ended",
                ending.join(", ")
            )
        };
        let say = Say {
            phase: Phase::Pending,
            ready: false,
            reason: reason::JOB_SUSPENDED,
            message: format!(
                "Job {job} was suspended by hand and {given_back}; resume it (kubectl patch job -n {namespace} {job} --type=merge -p '{{\"spec\":{{\"suspend\":false}}}}'), or delete it to have the workload placed anew"
            ),
        };
        let again = clock::after(self.now, RESYNC);
        self.transition(&say, Some(again), true)
    }

    /// Its pod goes on without the Job: what it does still counts, and nothing starts beside it.
    fn orphaned(
        mut self,
        pod: &str,
        node: &str,
        running: bool,
        since: Option<Timestamp>,
    ) -> Course {
        let job = self.status.job_name.clone().unwrap_or_default();
        let bound = !node.is_empty();
        self.leave_nodes();
        self.status.assigned_node = bound.then(|| node.to_owned());
        self.status.deadline = None;
        self.status.start_time = since.filter(|_| running).map(Time);
        let say = Say {
            phase: match (running, bound) {
                (true, _) => Phase::Running,
                (false, true) => Phase::Scheduled,
                (false, false) => Phase::Scheduling,
            },
            ready: running,
            reason: reason::JOB_ORPHANED,
            message: format!(
                "Job {job} was deleted or disowned by hand and left its pod {pod} behind, whose end decides; spec.maxRuntime is not kept for it; delete the pod to have the workload placed anew"
            ),
        };
        let again = clock::after(self.now, RESYNC);
        self.transition(&say, Some(again), false)
    }

    fn unplaced(mut self) -> Course {
        let vanished = self.status.job_name.clone();
        let before = self.status.clone();
        self.stopped();
        // As long as a pod of it may be left behind: only the Job the status names can have orphans.
        if let Some(job) = &vanished
            && leaves(self.seen, job)
        {
            self.status.job_name = Some(job.clone());
        }
        let shape = shell(self.workload, &self.seen.catalogue).map_err(|bad| bad.0);
        let wrong = shape.and_then(|_| rank(self.workload, self.seen.given));
        if let Err(message) = wrong {
            let say = Say {
                phase: Phase::Pending,
                ready: false,
                reason: reason::INVALID_SPEC,
                message,
            };
            return self.transition(&say, None, false);
        }
        // Once this is written no Job is named any more, unless a pod of it may be left.
        let unnamed = GPUWorkloadStatus {
            job_name: None,
            ..self.status.clone()
        };
        let may = placeable(
            self.workload,
            Some(&unnamed),
            self.seen,
            self.settings,
            self.now,
        );
        let held = match may {
            Placeable::Held(until) => Some(until),
            _ => None,
        };
        let refused = self
            .status
            .refused_nodes
            .iter()
            .map(|refused| refused.until.0);
        let open_again = refused.filter(|until| *until > self.now).min();
        let resync = held
            .or(open_again)
            .unwrap_or_else(|| clock::after(self.now, RESYNC));
        match (may, self.seen.verdict.clone()) {
            (Placeable::Now | Placeable::Held(_), None) if vanished.is_some() => {
                let job = vanished.unwrap_or_default();
                let say = Say {
                    phase: Phase::Pending,
                    ready: false,
                    reason: reason::JOB_DELETED,
                    message: format!("Job {job} was deleted by hand; another is made"),
                };
                self.transition(&say, Some(resync), true)
            }
            (Placeable::No, _) => {
                let pods: Vec<String> = live(self.seen, self.settings, self.now)
                    .map(ResourceExt::name_any)
                    .collect();
                let what = if pods.is_empty() {
                    "its last job".to_owned()
                } else {
                    pods.join(", ")
                };
                let mut say = Say {
                    phase: Phase::Pending,
                    ready: false,
                    reason: reason::CLEANING_UP,
                    message: format!("waiting for {what} to end before it is placed again"),
                };
                let said = condition::find(&self.status.conditions, condition::READY);
                if let Some(job) = vanished {
                    say.reason = reason::JOB_DELETED;
                    say.message = format!("Job {job} was deleted by hand; {}", say.message);
                } else if let Some(said) = said.filter(|said| said.reason == reason::JOB_DELETED) {
                    say.reason = reason::JOB_DELETED;
                    say.message.clone_from(&said.message);
                }
                // A silent node's pod stops counting at a time no event announces.
                let soon = clock::after(self.now, 10);
                self.transition(&say, Some(soon), false)
            }
            (Placeable::From(at), _) => self.later(at),
            (_, Some(verdict)) => {
                self.status.queue_position =
                    self.seen.position.and_then(|at| i64::try_from(at).ok());
                if verdict.reason == reason::WAITING_FOR_CAPACITY {
                    let namespace = self.workload.namespace().unwrap_or_default();
                    let forecast = self.seen.forecast.as_ref();
                    estimates::tell(forecast, &before, &mut self.status, &namespace, self.now);
                }
                let say = Say {
                    phase: Phase::Pending,
                    ready: false,
                    reason: verdict.reason,
                    message: verdict.message,
                };
                self.transition(&say, Some(resync), true)
            }
            (_, None) => {
                self.status.queue_position = before.queue_position;
                self.status.estimated_start = before.estimated_start;
                self.status.waiting_for = before.waiting_for;
                self.queued(resync)
            }
        }
    }

    /// It waits for a time; what was said when the wait began still holds.
    fn later(self, at: Timestamp) -> Course {
        let said = condition::find(&self.status.conditions, condition::READY);
        let reasons = [
            reason::PLACEMENT_REFUSED,
            reason::RETRY_BACKOFF,
            reason::DISRUPTED,
        ];
        let kept = reasons.into_iter().find_map(|name| {
            let ready = said.filter(|ready| ready.reason == name)?;
            Some((name, ready.message.clone()))
        });
        let (reason, message) = kept.unwrap_or_else(|| {
            let message = format!("the next attempt starts at {at:.0}");
            (reason::RETRY_BACKOFF, message)
        });
        let say = Say {
            phase: Phase::Pending,
            ready: false,
            reason,
            message,
        };
        self.transition(&say, Some(at), false)
    }

    /// Nobody has looked at it yet. What was said before still holds; a new workload says nothing
    /// for a moment, because it is usually placed within it.
    fn queued(self, resync: Timestamp) -> Course {
        let made = self.workload.meta().creation_timestamp.as_ref();
        let patient_until = made.map_or(self.now, |made| clock::after(made.0, PATIENCE));
        if self.status.phase.is_none() && self.now < patient_until {
            return Course {
                place: true,
                ..Course::later(patient_until)
            };
        }
        // An operator that has just started knows no verdict yet; what its predecessor said holds
        // until the scheduler has looked, unless the spec has changed since.
        let named = self.workload.status.as_ref();
        let spoken = self.status.phase == Some(Phase::Pending)
            && named.is_none_or(|status| status.job_name.is_none())
            && self.status.observed_generation == self.workload.meta().generation;
        if spoken {
            return Course {
                place: true,
                ..Course::later(resync)
            };
        }
        let (reason, message) = (
            reason::QUEUED,
            "waiting for the scheduler to look at it".to_owned(),
        );
        let say = Say {
            phase: Phase::Pending,
            ready: false,
            reason,
            message,
        };
        self.transition(&say, Some(resync), true)
    }

    fn refused(mut self, node: &str, message: &str) -> Course {
        let Some(job) = current(self.workload, self.seen) else {
            return Course::default();
        };
        let uid = job.uid().unwrap_or_default();
        let known = self
            .status
            .refused_nodes
            .iter()
            .any(|refused| refused.job_uid == uid);
        if known {
            self.steps.delete_version(job);
            self.steps
                .because("the cluster's scheduler refused its node");
        } else {
            self.note_refusal(node, uid, message);
        }
        self.clear_place();
        let next = self.status.next_retry_time.as_ref().map(|time| time.0);
        let next = next.filter(|at| *at > self.now).map_or_else(
            || "another node is looked for".to_owned(),
            |at| format!("another node is looked for at {at:.0}"),
        );
        let message = format!("the cluster's scheduler refused node {node}: {message}; {next}");
        let say = Say {
            phase: Phase::Pending,
            ready: false,
            reason: reason::PLACEMENT_REFUSED,
            message,
        };
        let again = Some(self.now).filter(|_| !known);
        self.transition(&say, again, false)
    }

    /// Writes down that a node was refused, for how long it is left out, and when the next is tried.
    fn note_refusal(&mut self, node: &str, job_uid: String, message: &str) {
        // What the scheduler refuses node after node it refuses for a reason the ledger does not
        // see; trying on at this pace would be a Job and a pod a second, for ever.
        let remembered = self.avoid(node, job_uid, message);
        let before = self.status.refusals.filter(|_| remembered);
        let refusals = before.unwrap_or(0).saturating_add(1);
        self.status.refusals = Some(refusals);
        let pause = pause(refusals);
        if pause > 0 {
            self.status.next_retry_time = Some(Time(clock::after(self.now, pause)));
        }
    }

    /// Leaves a node out of the next choices for a while; whether others are left out already.
    fn avoid(&mut self, node: &str, job_uid: String, message: &str) -> bool {
        let now = self.now;
        // Lack of room is what the ledger knows best: as soon as it sees some, the node is as good
        // as any. Other reasons it may know nothing of.
        let room = message.contains("Insufficient ");
        let wait = self.settings.refusal_timeout.as_secs();
        let wait = if room { wait.min(ROOM) } else { wait };
        let until = clock::after(now, i64::try_from(wait).unwrap_or(i64::MAX));
        let refused = &mut self.status.refused_nodes;
        refused.retain(|old| clock::after(old.until.0, FORGOTTEN) > now);
        let remembered = !refused.is_empty();
        refused.retain(|old| old.name != node);
        let drop = (refused.len() + 1).saturating_sub(REFUSED);
        refused.drain(..drop);
        refused.push(RefusedNode {
            name: node.to_owned(),
            job_uid,
            until: Time(until),
            message: message.chars().take(256).collect(),
        });
        remembered
    }

    fn waiting(mut self, wait: Wait) -> Course {
        self.describe_job();
        self.count_members();
        self.status.start_time = None;
        self.status.deadline = Some(Time(wait.deadline));
        self.limit_runtime();
        if let Some(until) = self.quiet_start(&wait) {
            return Course::later(until);
        }
        // The kubelet alternates between "failed to pull" and "waiting before I pull again"; the
        // first says more, and following both would be a write per turn.
        let said = condition::find(&self.status.conditions, condition::READY);
        let kept = said.filter(|ready| {
            ready.reason == wait.reason && wait.reason == reason::IMAGE_PULL_FAILED
        });
        let message = kept.map_or(wait.message, |ready| ready.message.clone());
        let say = Say {
            phase: wait.phase,
            ready: false,
            reason: wait.reason,
            message,
        };
        self.transition(&say, Some(wait.deadline), false)
    }

    /// Until when a start that goes well is not worth a write: most take a moment, and then it runs.
    fn quiet_start(&self, wait: &Wait) -> Option<Timestamp> {
        let said = condition::find(&self.status.conditions, condition::READY)?;
        let placed = self.status.last_schedule_time.as_ref()?;
        let until = clock::after(placed.0, START_PATIENCE);
        let only_this = wait.reason == reason::STARTING
            && said.reason == reason::PLACED
            && self.status.observed_generation == self.workload.meta().generation
            && self.steps.is_idle();
        Some(until).filter(|until| only_this && self.now < *until)
    }

    /// It was asked to end for other work: its pods are evicted, and what follows is a disruption.
    /// Labels are anybody's to write: only pods the Job made go.
    fn evicting(mut self, job: &Job, by: &str, since: Option<Timestamp>) -> Course {
        self.describe_job();
        self.status.start_time = since.map(Time);
        self.note_told_checkpoint();
        let pods = self.seen.pods.iter().map(|pod| &**pod);
        let pods = pods.filter(|pod| made_by(job, pod) && !ended(pod));
        let pods: Vec<&Pod> = pods.collect();
        let mut until = None;
        for &pod in &pods {
            if let Some(time) = pod.meta().deletion_timestamp.as_ref() {
                until = until.max(Some(time.0));
            } else {
                evict_pod(&mut self.steps, pod);
                self.steps.because("other work takes its place");
            }
        }
        let overdue = until.filter(|until| clock::after(*until, OVERDUE) <= self.now);
        let when = match (overdue, until) {
            (Some(until), _) => {
                format!("it should have ended by {until:.0} and has not: its node may not answer")
            }
            (_, Some(until)) => format!("it has until {until:.0}"),
            _ => "its pod is being evicted".to_owned(),
        };
        self.status.deadline = until.map(Time).or_else(|| self.ends_by(&pods));
        let say = Say {
            phase: Phase::Running,
            ready: true,
            reason: reason::EVICTING,
            message: format!("{by} takes its place: {when}"),
        };
        let again = until.map_or_else(
            || clock::after(self.now, OVERDUE),
            |until| clock::after(until, OVERDUE).max(clock::after(self.now, OVERDUE)),
        );
        self.transition(&say, Some(again), false)
    }

    fn running(mut self, since: Option<Timestamp>) -> Course {
        let seen = self.seen;
        if let Some(job) = current(self.workload, seen)
            && let Some(by) = taken_by(job)
        {
            return self.evicting(job, &by, since);
        }
        self.describe_job();
        self.count_members();
        self.status.deadline = None;
        self.status.next_retry_time = None;
        self.status.refusals = None;
        self.status.start_time = since.map(Time);
        self.note_started(since);
        self.note_told_checkpoint();
        self.limit_runtime();
        let say = Say {
            phase: Phase::Running,
            ready: true,
            reason: reason::RUNNING,
            message: format!(
                "{}{}{}",
                self.running_where(),
                self.of_which_spec(),
                self.of_its_signal()
            ),
        };
        let again = clock::after(self.now, RESYNC);
        self.transition(&say, Some(again), false)
    }

    /// A changed `maxRuntime` reaches the running Job.
    fn limit_runtime(&mut self) {
        let Some(job) = current(self.workload, self.seen) else {
            return;
        };
        let wanted = self
            .workload
            .spec
            .max_runtime
            .as_deref()
            .and_then(run_seconds);
        let have = job
            .spec
            .as_ref()
            .and_then(|spec| spec.active_deadline_seconds);
        if wanted == have || over(job) {
            return;
        }
        let patch = json!({"spec": {"activeDeadlineSeconds": wanted}});
        self.steps.merge(job, patch);
        self.steps.because("spec.maxRuntime changed");
    }

    /// Copies what the current Job says about the placement.
    fn describe_job(&mut self) {
        if let Some(job) = current(self.workload, self.seen) {
            self.status.job_name = Some(job.name_any());
            self.status.ready = None;
            if gang::size(job).is_some() {
                self.status.assigned_nodes = fold_nodes(gang::nodes(job));
            } else {
                self.status.assigned_node = Some(pinned(job));
            }
            self.status
                .last_schedule_time
                .clone_from(&job.meta().creation_timestamp);
            self.note_placed();
        }
    }

    /// Where the attempt is and what decided it, for the `Placed` condition.
    fn placement(&self) -> Option<String> {
        let places = self.status.places()?;
        let job = current(self.workload, self.seen);
        let why = job.and_then(|job| job.annotations().get(label::PLACEMENT).cloned());
        Some(why.unwrap_or_else(|| format!("placed on node {places}")))
    }

    /// It is on no node any more.
    fn leave_nodes(&mut self) {
        self.status.assigned_node = None;
        self.status.assigned_nodes.clear();
        self.status.ready = None;
    }

    fn clear_place(&mut self) {
        self.leave_nodes();
        self.status.job_name = None;
        self.status.deadline = None;
        self.status.start_time = None;
        self.forget_attempt();
        self.leave_line();
    }

    /// It does not wait for GPUs any more.
    fn leave_line(&mut self) {
        self.status.queue_position = None;
        self.status.estimated_start = None;
        self.status.waiting_for = None;
    }

    /// A state that is told when its reason is new.
    fn transition(self, say: &Say, again: Option<Timestamp>, place: bool) -> Course {
        let before = condition::find(&self.status.conditions, condition::READY);
        let changed = before.is_none_or(|before| before.reason != say.reason);
        let note = if changed { told(say) } else { None };
        self.conclude(say, note.into_iter().collect(), again, place)
    }

    fn conclude(
        mut self,
        say: &Say,
        events: Vec<Note>,
        again: Option<Timestamp>,
        place: bool,
    ) -> Course {
        let generation = self.workload.meta().generation.unwrap_or_default();
        if say.phase != Phase::Pending {
            self.leave_line();
        }
        let states = conditions(say, self.placement().as_deref());
        let status = &mut self.status;
        status.conditions = condition::next(&status.conditions, &states, generation, self.now);
        status.phase = Some(say.phase);
        status.message = Some(say.message.clone());
        status.retry_count = Some(retries(self.workload).max(status.retry_count.unwrap_or(0)));
        status.observed_generation = Some(generation);
        if say.phase != Phase::Pending {
            status.queued_at = None;
        } else if status.queued_at.is_none() {
            status.queued_at = self.seen.arrived.map(MicroTime);
        }
        let mut steps = self.steps;
        steps.why = format!("{}: {}", say.reason, say.message);
        steps.again = again;
        Course {
            steps,
            status: Some(self.status),
            events,
            place,
        }
    }
}

/// What must be true for the pods of a workload on nodes we have not heard of to be lost: they can only be lost with
/// the node, and a watch may be behind.
pub(crate) fn only_if_lost(steps: &mut Plan, seen: &Seen) {
    for node in missing_nodes(seen) {
        steps.only_if_absent::<Node>(Key::new("", node));
    }
}

/// Seconds before the next node is tried after so many refusals in a row.
pub(super) fn pause(refusals: i32) -> i64 {
    match refusals - QUICK {
        ..=0 => 0,
        over => (1 << over.min(10)).min(MAX_PAUSE),
    }
}

/// Seconds before the next attempt: doubling, capped, plus up to a tenth of jitter that follows
/// from the workload and the attempt, so that a restart computes the same.
pub(super) fn backoff(base: i32, used: i32, uid: &str) -> i64 {
    let doubled = i64::from(base).saturating_mul(1 << used.clamp(0, 10));
    let capped = doubled.clamp(1, MAX_BACKOFF);
    let dice = Fingerprint::default()
        .text(uid)
        .word(u64::from(used.unsigned_abs()))
        .get();
    let tenth = u64::try_from(capped / 10).unwrap_or(0);
    capped + i64::try_from(dice % (tenth + 1)).unwrap_or(0)
}
