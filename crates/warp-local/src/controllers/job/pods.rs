//! The pods of a Job: which to create, which to end, and what an indexed one carries.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::index::{self, Indexes, index_of};
use super::plan::{
    Pass, delay, ended_at, failures_of_index, is_indexed, is_suspended, replaces_only_failed, uid,
};
use super::policy::{self, Verdict};
use super::status::{self, End};
use super::{FINALIZER, drop_finalizer, is_tracked};
use crate::controllers::ownership::controller_reference;
use crate::controllers::pods;
use warp_runtime::plan::{Outcome, Removal, about};

const PER_PASS: usize = 500;

impl Pass<'_> {
    /// Deletes and creates pods; how the Job ends when that is known now.
    pub(super) fn act(&mut self, end: Option<End>) -> Option<End> {
        if let Some(decided) = &end {
            let active = std::mem::take(&mut self.active);
            if decided.success {
                self.delete_uncounted(&active);
            } else {
                self.delete(&active);
            }
            return end;
        }
        if self.job.metadata.deletion_timestamp.is_none() {
            self.manage();
        }
        let complete = match self.spec.completions {
            None => self.succeeded > 0 && self.active_count == 0,
            Some(completions) => self.succeeded >= completions && self.active_count == 0,
        };
        if complete {
            return Some(End::success(
                "CompletionsReached",
                "Reached expected number of succeeded pods",
            ));
        }
        if self.job.metadata.deletion_timestamp.is_none() {
            self.tell_suspension();
        }
        None
    }

    fn tell_suspension(&mut self) {
        let suspended = is_suspended(self.spec);
        let (reason, message) = if suspended {
            ("JobSuspended", "Job suspended")
        } else {
            ("JobResumed", "Job resumed")
        };
        if !status::set(
            &mut self.status,
            status::SUSPENDED,
            suspended,
            reason,
            message,
            self.now,
        ) {
            return;
        }
        if !suspended {
            self.status.start_time = Some(Time(self.now));
        }
        let reason = if suspended { "Suspended" } else { "Resumed" };
        self.plan
            .note(about(self.job), false, reason, message.to_owned());
        // The deadline of a resumed Job counts from now.
        if let Some(deadline) = self.deadline() {
            self.plan.look_again(deadline);
        }
    }

    fn delete(&mut self, pods: &[Arc<Pod>]) {
        for pod in pods {
            let outcome = Outcome {
                about: about(self.job),
                done: ("SuccessfulDelete", "Deleted pod: {}".into()),
                failed: ("FailedDelete", "Error deleting: {}".into()),
            };
            self.plan.delete(&**pod, Removal::default(), Some(outcome));
            self.active_count -= 1;
            self.terminating += 1;
            if pods::is_ready(pod) {
                self.ready -= 1;
            }
        }
    }

    /// Deletes pods the Job itself does not want any more: they count neither as failed nor as succeeded.
    fn delete_uncounted(&mut self, pods: &[Arc<Pod>]) {
        for pod in pods.iter().filter(|pod| is_tracked(pod)) {
            drop_finalizer(pod, &mut self.plan);
        }
        let gone: BTreeSet<String> = pods.iter().map(|pod| uid(pod).to_owned()).collect();
        self.delete(pods);
        self.pods.retain(|pod| !gone.contains(uid(pod)));
    }

    fn manage(&mut self) {
        if is_suspended(self.spec) {
            let active = std::mem::take(&mut self.active);
            return self.delete_uncounted(&active);
        }
        let parallelism = self.spec.parallelism.unwrap_or(1);
        let want = match self.spec.completions {
            None if self.succeeded > 0 => self.active_count,
            None => parallelism,
            Some(completions) => (completions - self.succeeded).clamp(0, parallelism),
        };
        let surplus = self.surplus(usize::try_from(self.active_count - want).unwrap_or(0));
        if !surplus.is_empty() {
            return self.delete_uncounted(&surplus);
        }
        let still_there = if replaces_only_failed(self.spec) {
            self.terminating
        } else {
            0
        };
        let missing = usize::try_from(want - still_there - self.active_count)
            .unwrap_or(0)
            .min(PER_PASS);
        if missing > 0 {
            self.create(missing);
        }
    }

    /// Pods to lose: those without a valid index or with one another pod has, then as many as are too many.
    fn surplus(&self, at_least: usize) -> Vec<Arc<Pod>> {
        let mut ranked: Vec<_> = self
            .active
            .iter()
            .map(|pod| (pods::deletion_rank(pod, 0, self.now), pod.clone()))
            .collect();
        ranked.sort_by(|one, other| one.0.cmp(&other.0));
        let ranked = ranked.into_iter().map(|(_, pod)| pod);
        if !is_indexed(self.spec) {
            return ranked.take(at_least.min(PER_PASS)).collect();
        }
        let mut kept = BTreeSet::new();
        let (mut wrong, mut right) = (Vec::new(), Vec::new());
        // The best pod of an index stays, so look from the last to be lost.
        for pod in ranked.rev() {
            match index_of(&pod, self.job) {
                Some(index) if kept.insert(index) => right.push(pod),
                _ => wrong.push(pod),
            }
        }
        let more = at_least.saturating_sub(wrong.len());
        wrong.extend(right.into_iter().rev().take(more));
        wrong.truncate(PER_PASS);
        wrong
    }

    fn create(&mut self, missing: usize) {
        if self.spec.backoff_limit_per_index.is_none()
            && let Some(until) = self.backoff.until().filter(|until| *until > self.now)
        {
            return self.plan.look_again(until);
        }
        if !is_indexed(self.spec) {
            for _ in 0..missing {
                self.create_pod(None);
            }
            return;
        }
        let mut taken: Indexes = self
            .active
            .iter()
            .filter_map(|pod| index_of(pod, self.job))
            .collect();
        if replaces_only_failed(self.spec) {
            let ending = self
                .pods
                .iter()
                .filter(|pod| pods::is_terminating(pod) && !pods::is_finished(pod));
            taken.extend(ending.filter_map(|pod| index_of(pod, self.job)));
        }
        let free = (0..self.spec.completions.unwrap_or(0)).filter(|index| {
            !taken.contains(index)
                && !self.succeeded_indexes.contains(index)
                && !self.failed_indexes.contains(index)
        });
        let mut chosen = Vec::new();
        for index in free {
            if chosen.len() == missing {
                break;
            }
            let wait = self
                .predecessors
                .get(&index)
                .map(|pod| ended_at(pod, self.now) + delay(failures_of_index(pod) + 1));
            match wait.filter(|until| *until > self.now) {
                Some(until) => self.plan.look_again(until),
                None => chosen.push(index),
            }
        }
        for index in chosen {
            self.create_pod(Some(index));
        }
    }

    fn create_pod(&mut self, index: Option<i32>) {
        let name = self.job.metadata.name.as_deref().unwrap_or_default();
        let namespace = self.job.metadata.namespace.as_deref().unwrap_or_default();
        let mut pod = pods::from_template(
            &self.spec.template,
            namespace,
            name,
            controller_reference(self.job),
        );
        let finalizers = pod.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|name| name == FINALIZER) {
            finalizers.push(FINALIZER.to_owned());
        }
        if let Some(index) = index {
            self.mark_index(&mut pod, name, index);
        }
        let outcome = Outcome {
            about: about(self.job),
            done: ("SuccessfulCreate", "Created pod: {}".into()),
            failed: ("FailedCreate", "Error creating: {}".into()),
        };
        self.plan.create(&pod, Some(outcome));
        self.active_count += 1;
    }

    fn mark_index(&self, pod: &mut Pod, name: &str, index: i32) {
        let mut prefix = name.to_owned();
        let suffix = format!("-{index}-");
        prefix.truncate(58 - suffix.len());
        pod.metadata.generate_name = Some(prefix + &suffix);
        pod.metadata
            .labels
            .get_or_insert_default()
            .insert(index::INDEX.to_owned(), index.to_string());
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(index::INDEX.to_owned(), index.to_string());
        if self.spec.backoff_limit_per_index.is_some() {
            let (mut failures, mut ignored) = (0, 0);
            if let Some(before) = self.predecessors.get(&index) {
                failures = index::annotation(before, index::FAILURES).unwrap_or(0);
                ignored = index::annotation(before, index::IGNORED_FAILURES).unwrap_or(0);
                match policy::verdict(self.job, before) {
                    Verdict::Ignore => ignored += 1,
                    _ => failures += 1,
                }
            }
            annotations.insert(index::FAILURES.to_owned(), failures.to_string());
            if ignored > 0 {
                annotations.insert(index::IGNORED_FAILURES.to_owned(), ignored.to_string());
            }
        }
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = Some(format!("{name}-{index}"));
        index::add_variable(spec);
    }
}
