//! What to do about one Job, from what is seen of it and its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};

use super::index::{self, Indexes, index_of};
use super::policy::{self, Verdict};
use super::status::{self, End};
use super::{FINALIZER, drop_finalizer, is_tracked};
use crate::controllers::ownership::claim;
use crate::controllers::pods;
use warp_runtime::driver::later;
use warp_runtime::plan::{Plan, about};

const UNCOUNTED: usize = 500;
const FIRST_DELAY: SignedDuration = SignedDuration::from_secs(10);
const LAST_DELAY: SignedDuration = SignedDuration::from_mins(10);

/// How often pods failed since the last success, and when last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backoff {
    failures: u32,
    last: Option<Timestamp>,
}

impl Backoff {
    pub(super) fn until(self) -> Option<Timestamp> {
        let last = self.last?;
        (self.failures > 0).then(|| last + delay(self.failures))
    }
}

pub(super) fn delay(failures: u32) -> SignedDuration {
    let doubled = FIRST_DELAY
        .as_secs()
        .saturating_mul(1_i64 << failures.saturating_sub(1).min(20));
    SignedDuration::from_secs(doubled).min(LAST_DELAY)
}

pub(super) struct Seen<'a> {
    pub(super) job: &'a Job,
    /// The Job's pods and the pods nobody controls.
    pub(super) candidates: Vec<Arc<Pod>>,
    pub(super) backoff: Backoff,
}

/// One pass over a Job; everything later steps need of earlier ones.
pub(super) struct Pass<'a> {
    pub(super) job: &'a Job,
    pub(super) spec: &'a JobSpec,
    pub(super) now: Timestamp,
    pub(super) pods: Vec<Arc<Pod>>,
    pub(super) active: Vec<Arc<Pod>>,
    pub(super) status: JobStatus,
    pub(super) uncounted: UncountedTerminatedPods,
    pub(super) succeeded: i32,
    pub(super) failed: i32,
    pub(super) succeeded_indexes: Indexes,
    pub(super) failed_indexes: Indexes,
    /// Failed pods kept until their index has a new pod, which takes over their count of failures.
    pub(super) predecessors: BTreeMap<i32, Arc<Pod>>,
    pub(super) terminating: i32,
    pub(super) ready: i32,
    pub(super) active_count: i32,
    pub(super) backoff: Backoff,
    pub(super) plan: Plan,
}

pub(super) fn plan(seen: &Seen<'_>, now: Timestamp) -> (Plan, Backoff) {
    let job = seen.job;
    let Some(spec) = &job.spec else {
        return (Plan::default(), seen.backoff);
    };
    let mut plan = Plan::default();
    let nothing = LabelSelector::default();
    let selector = spec.selector.as_ref().unwrap_or(&nothing);
    let candidates = if spec.selector.is_some() {
        seen.candidates.clone()
    } else {
        Vec::new()
    };
    let pods = claim::<Job, Pod, _>(job, selector, candidates, &mut plan, Some(FINALIZER)).mine;
    let mut pass = Pass::new(job, spec, pods, seen.backoff, plan, now);
    let end = pass.end();
    let end = pass.act(end);
    pass.record(end.as_ref());
    (pass.plan, pass.backoff)
}

pub(super) fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

pub(super) fn is_suspended(spec: &JobSpec) -> bool {
    spec.suspend == Some(true)
}

/// Are pods replaced only once they have really failed, not as soon as they are being deleted?
pub(super) fn replaces_only_failed(spec: &JobSpec) -> bool {
    spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some()
}

fn is_failed(pod: &Pod, spec: &JobSpec) -> bool {
    match pods::phase(pod) {
        "Failed" => true,
        "Succeeded" => false,
        _ => pods::is_terminating(pod) && !replaces_only_failed(spec),
    }
}

fn is_succeeded(pod: &Pod) -> bool {
    pods::phase(pod) == "Succeeded"
}

pub(super) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// When a pod ended, as far as it says.
pub(super) fn ended_at(pod: &Pod, now: Timestamp) -> Timestamp {
    let status = pod.status.as_ref();
    let containers = status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    let finished = containers
        .filter_map(|container| {
            Some(
                container
                    .state
                    .as_ref()?
                    .terminated
                    .as_ref()?
                    .finished_at
                    .as_ref()?
                    .0,
            )
        })
        .max();
    let not_ready = || {
        pods::condition(pod, "Ready")
            .and_then(|ready| ready.last_transition_time.as_ref())
            .map(|time| time.0)
    };
    let deleted = || pod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    finished
        .or_else(not_ready)
        .or_else(deleted)
        .unwrap_or(now)
        .min(now)
}

pub(super) fn failures_of_index(pod: &Pod) -> u32 {
    let count = |name| u32::try_from(index::annotation(pod, name).unwrap_or(0)).unwrap_or(0);
    count(index::FAILURES) + count(index::IGNORED_FAILURES)
}

fn count(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

fn none_if_zero(value: i32) -> Option<i32> {
    (value != 0).then_some(value)
}

impl<'a> Pass<'a> {
    fn new(
        job: &'a Job,
        spec: &'a JobSpec,
        pods: Vec<Arc<Pod>>,
        backoff: Backoff,
        plan: Plan,
        now: Timestamp,
    ) -> Self {
        let mut status = job.status.clone().unwrap_or_default();
        let active: Vec<_> = pods
            .iter()
            .filter(|pod| pods::is_active(pod))
            .cloned()
            .collect();
        let mut pass = Self {
            job,
            spec,
            now,
            terminating: count(
                pods.iter()
                    .filter(|pod| pods::is_terminating(pod) && !pods::is_finished(pod))
                    .count(),
            ),
            ready: count(active.iter().filter(|pod| pods::is_ready(pod)).count()),
            active_count: count(active.len()),
            pods,
            active,
            uncounted: status.uncounted_terminated_pods.take().unwrap_or_default(),
            status,
            succeeded: 0,
            failed: 0,
            succeeded_indexes: Indexes::new(),
            failed_indexes: Indexes::new(),
            predecessors: BTreeMap::new(),
            backoff,
            plan,
        };
        pass.settle_uncounted();
        if pass.status.start_time.is_none() && !is_suspended(spec) {
            pass.status.start_time = Some(Time(now));
        }
        pass.count();
        pass
    }

    /// Pods whose finalizer is gone become numbers.
    fn settle_uncounted(&mut self) {
        let held: BTreeSet<&str> = self
            .pods
            .iter()
            .filter(|pod| is_tracked(pod))
            .map(|pod| uid(pod))
            .collect();
        let settle = |list: &mut Option<Vec<String>>| {
            let before = list.as_ref().map_or(0, Vec::len);
            if let Some(list) = list {
                list.retain(|uid| held.contains(uid.as_str()));
            }
            let after = list.as_ref().map_or(0, Vec::len);
            if after == 0 {
                *list = None;
            }
            count(before - after)
        };
        let succeeded = settle(&mut self.uncounted.succeeded);
        let failed = settle(&mut self.uncounted.failed);
        if !is_indexed(self.spec) {
            self.status.succeeded = none_if_zero(self.status.succeeded.unwrap_or(0) + succeeded);
        }
        self.status.failed = none_if_zero(self.status.failed.unwrap_or(0) + failed);
    }

    fn is_uncounted(&self, pod: &Pod) -> bool {
        let listed =
            |list: &Option<Vec<String>>| list.iter().flatten().any(|known| known == uid(pod));
        listed(&self.uncounted.succeeded) || listed(&self.uncounted.failed)
    }

    /// Counts what has ended, the pods not yet in the status included.
    fn count(&mut self) {
        let fresh: Vec<Arc<Pod>> = self
            .pods
            .iter()
            .filter(|pod| is_tracked(pod) && !self.is_uncounted(pod))
            .cloned()
            .collect();
        let new_failed: Vec<_> = fresh
            .iter()
            .filter(|pod| is_failed(pod, self.spec))
            .collect();
        let new_succeeded = fresh.iter().filter(|pod| is_succeeded(pod));
        let length = |list: &Option<Vec<String>>| count(list.as_ref().map_or(0, Vec::len));
        self.succeeded = self.status.succeeded.unwrap_or(0)
            + length(&self.uncounted.succeeded)
            + count(new_succeeded.clone().count());
        let counted = new_failed
            .iter()
            .filter(|pod| policy::verdict(self.job, pod) != Verdict::Ignore);
        self.failed = self.status.failed.unwrap_or(0)
            + length(&self.uncounted.failed)
            + count(counted.count());
        self.backoff = self.next_backoff(&fresh);
        if is_indexed(self.spec) {
            self.count_indexes();
        }
    }

    fn next_backoff(&self, fresh: &[Arc<Pod>]) -> Backoff {
        let mut ends: Vec<(Timestamp, bool)> = fresh
            .iter()
            .filter(|pod| is_succeeded(pod) || is_failed(pod, self.spec))
            .map(|pod| (ended_at(pod, self.now), is_succeeded(pod)))
            .collect();
        ends.sort_unstable();
        let mut backoff = self.backoff;
        for (at, success) in ends {
            if success {
                backoff = Backoff::default();
            } else {
                backoff = Backoff {
                    failures: backoff.failures + 1,
                    last: Some(backoff.last.map_or(at, |last| last.max(at))),
                };
            }
        }
        backoff
    }

    fn count_indexes(&mut self) {
        let completions = self.spec.completions.unwrap_or(0);
        self.succeeded_indexes =
            index::parse(self.status.completed_indexes.as_deref(), completions);
        let done = self
            .pods
            .iter()
            .filter(|pod| is_succeeded(pod) && is_tracked(pod));
        let done: Vec<i32> = done.filter_map(|pod| index_of(pod, self.job)).collect();
        self.succeeded_indexes.extend(done);
        self.succeeded = count(self.succeeded_indexes.len());
        if self.spec.backoff_limit_per_index.is_none() {
            return;
        }
        self.failed_indexes = index::parse(self.status.failed_indexes.as_deref(), completions);
        // Once the end is decided, pods the Job itself ends say nothing about their index.
        let decided = status::decided(&self.status).is_some();
        let failed: Vec<_> = self
            .pods
            .iter()
            .filter(|pod| is_tracked(pod) && is_failed(pod, self.spec))
            .filter(|pod| !decided || pods::is_finished(pod))
            .filter_map(|pod| Some((index_of(pod, self.job)?, pod.clone())))
            .collect();
        let for_good = failed
            .iter()
            .filter(|(_, pod)| policy::fails_index(self.job, pod))
            .map(|(index, _)| *index);
        self.failed_indexes.extend(for_good);
        let running: BTreeSet<i32> = self
            .active
            .iter()
            .filter_map(|pod| index_of(pod, self.job))
            .collect();
        for (index, pod) in failed {
            let settled =
                self.failed_indexes.contains(&index) || self.succeeded_indexes.contains(&index);
            if settled || running.contains(&index) {
                continue;
            }
            let later = self
                .predecessors
                .get(&index)
                .is_none_or(|known| failures_of_index(known) <= failures_of_index(&pod));
            if later {
                self.predecessors.insert(index, pod);
            }
        }
    }

    /// How the Job ends, if its end is decided before anything is done about its pods.
    fn end(&mut self) -> Option<End> {
        if let Some(end) = status::decided(&self.status) {
            return Some(end);
        }
        let verdicts = self
            .pods
            .iter()
            .filter(|pod| is_failed(pod, self.spec))
            .map(|pod| policy::verdict(self.job, pod));
        for verdict in verdicts {
            if let Verdict::FailJob(message) = verdict {
                return Some(End::failure("PodFailurePolicy", &message));
            }
        }
        if self.failed > self.spec.backoff_limit.unwrap_or(6) || self.is_past_restarts() {
            return Some(End::failure(
                "BackoffLimitExceeded",
                "Job has reached the specified backoff limit",
            ));
        }
        if let Some(deadline) = self.deadline() {
            if deadline <= self.now {
                return Some(End::failure(
                    "DeadlineExceeded",
                    "Job was active longer than specified deadline",
                ));
            }
            self.plan.look_again(deadline);
        }
        if is_indexed(self.spec) {
            self.end_by_indexes()
        } else {
            None
        }
    }

    fn end_by_indexes(&self) -> Option<End> {
        let completions = usize::try_from(self.spec.completions.unwrap_or(0)).unwrap_or(0);
        if self.spec.backoff_limit_per_index.is_some() {
            let failed = self.failed_indexes.len();
            if self
                .spec
                .max_failed_indexes
                .is_some_and(|most| failed > usize::try_from(most).unwrap_or(0))
            {
                let message = "Job has exceeded the specified maximal number of failed indexes";
                return Some(End::failure("MaxFailedIndexesExceeded", message));
            }
            if failed > 0 && failed + self.succeeded_indexes.len() >= completions {
                return Some(End::failure("FailedIndexes", "Job has failed indexes"));
            }
        }
        let policy = self.spec.success_policy.as_ref()?;
        let message = policy::success(
            policy,
            self.spec.completions.unwrap_or(0),
            &self.succeeded_indexes,
        )?;
        Some(End::success("SuccessPolicy", &message))
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let seconds = self
            .spec
            .active_deadline_seconds
            .filter(|_| !is_suspended(self.spec))?;
        // A resumed Job starts anew.
        if status::holds(self.status.conditions.as_ref(), status::SUSPENDED).is_some() {
            return None;
        }
        let started = self.status.start_time.as_ref()?.0;
        Some(later(started, SignedDuration::from_secs(seconds)))
    }

    /// With restart policy OnFailure the restarts of containers count instead of failed pods.
    fn is_past_restarts(&self) -> bool {
        let policy = self
            .spec
            .template
            .spec
            .as_ref()
            .and_then(|spec| spec.restart_policy.as_deref());
        if policy != Some("OnFailure") {
            return false;
        }
        let running = self
            .pods
            .iter()
            .filter(|pod| matches!(pods::phase(pod), "Running" | "Pending"));
        let restarts: i32 = running
            .filter_map(|pod| pod.status.as_ref())
            .flat_map(|status| {
                status
                    .container_statuses
                    .iter()
                    .flatten()
                    .chain(status.init_container_statuses.iter().flatten())
            })
            .map(|container| container.restart_count)
            .sum();
        match self.spec.backoff_limit.unwrap_or(6) {
            0 => restarts > 0,
            limit => restarts >= limit,
        }
    }

    /// Writes down what has ended, then frees those pods.
    fn record(&mut self, end: Option<&End>) {
        let freed = self.note_ended(end);
        self.status.active = none_if_zero(self.active_count);
        self.status.ready = Some(self.ready);
        self.status.terminating = Some(self.terminating);
        if is_indexed(self.spec) {
            self.status.succeeded = none_if_zero(count(self.succeeded_indexes.len()));
            self.status.completed_indexes =
                Some(index::write(&self.succeeded_indexes)).filter(|text| !text.is_empty());
            if self.spec.backoff_limit_per_index.is_some() {
                self.status.failed_indexes = Some(index::write(&self.failed_indexes));
            }
        }
        let nothing_open = self.uncounted.succeeded.is_none()
            && self.uncounted.failed.is_none()
            && freed.is_empty();
        if let Some(end) = end {
            status::set(
                &mut self.status,
                end.interim(),
                true,
                &end.reason,
                &end.message,
                self.now,
            );
            if nothing_open && self.terminating == 0 {
                self.finish(end);
            }
        }
        self.status.uncounted_terminated_pods = Some(std::mem::take(&mut self.uncounted));
        self.plan
            .status(self.job, self.job.status.as_ref(), &self.status);
        for pod in freed {
            drop_finalizer(&pod, &mut self.plan);
        }
    }

    fn finish(&mut self, end: &End) {
        status::set(
            &mut self.status,
            end.terminal(),
            true,
            &end.reason,
            &end.message,
            self.now,
        );
        if end.success {
            self.status.completion_time = Some(Time(self.now));
            self.plan.note(
                about(self.job),
                false,
                "Completed",
                "Job completed".to_owned(),
            );
        } else {
            self.plan
                .note(about(self.job), true, &end.reason, end.message.clone());
        }
    }

    /// Lists the uids of pods that ended; the pods whose finalizer can go.
    fn note_ended(&mut self, end: Option<&End>) -> Vec<Arc<Pod>> {
        let mut freed = Vec::new();
        let deleted = self.job.metadata.deletion_timestamp.is_some();
        for pod in self.pods.clone().into_iter().filter(|pod| is_tracked(pod)) {
            let failed = is_failed(&pod, self.spec);
            let is_predecessor = index_of(&pod, self.job)
                .and_then(|index| self.predecessors.get(&index))
                .is_some_and(|kept| uid(kept) == uid(&pod));
            let free =
                deleted || end.is_some() || is_succeeded(&pod) || (failed && !is_predecessor);
            if !free {
                continue;
            }
            let valid_index = !is_indexed(self.spec) || index_of(&pod, self.job).is_some();
            if !self.is_uncounted(&pod) {
                if is_succeeded(&pod) {
                    if !is_indexed(self.spec) {
                        self.uncounted
                            .succeeded
                            .get_or_insert_default()
                            .push(uid(&pod).to_owned());
                    }
                } else if (failed || end.is_some_and(|end| !end.success))
                    && valid_index
                    && policy::verdict(self.job, &pod) != Verdict::Ignore
                {
                    self.uncounted
                        .failed
                        .get_or_insert_default()
                        .push(uid(&pod).to_owned());
                }
            }
            freed.push(pod);
            if freed.len() >= UNCOUNTED {
                break;
            }
        }
        freed
    }
}
