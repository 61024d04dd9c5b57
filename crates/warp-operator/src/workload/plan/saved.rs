//! What should be remembered of work that was saved, and what an eviction threw away. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use warp_api::workload::LastCheckpoint;
use warp_api::{label, reason};

use super::{Failure, Pass, attempt, current, live};
use crate::clock;
use crate::workload::checkpoint;

/// What a pod has to end in that does not say.
const GRACE_SECONDS: i64 = 30;

impl Pass<'_> {
    /// Pods of the current attempt, whoever owns them by now.
    fn of_this_attempt(&self) -> impl Iterator<Item = &Pod> {
        let number = attempt(self.workload).to_string();
        let pods = self.seen.pods.iter().map(|pod| &**pod);
        pods.filter(move |pod| pod.labels().get(label::ATTEMPT) == Some(&number))
    }

    /// What a pod that runs has said of its last checkpoint.
    pub(super) fn note_told_checkpoint(&mut self) {
        let checkpoint = self.workload.spec.checkpoint.as_ref();
        let told = checkpoint
            .and_then(|checkpoint| checkpoint::told(checkpoint, self.of_this_attempt(), self.now));
        self.saved_at(told);
    }

    /// The attempt has ended. `asked`: the cluster or its owner wanted it to.
    pub(super) fn note_last_checkpoint(&mut self, asked: bool) {
        let Some(checkpoint) = &self.workload.spec.checkpoint else {
            return;
        };
        let (started, now) = (self.started(), self.now);
        if started.is_none() {
            return;
        }
        let deadline = self.status.deadline.as_ref().map(|time| time.0);
        let by_signal = asked
            .then(|| checkpoint::when_asked(checkpoint, self.of_this_attempt(), deadline, now))
            .flatten();
        let last = by_signal
            .or_else(|| checkpoint::by_itself(checkpoint, self.of_this_attempt(), started, now));
        self.saved_at(last);
    }

    /// What was saved stays saved: only what is later counts.
    fn saved_at(&mut self, last: Option<LastCheckpoint>) {
        let before = self.status.last_checkpoint.as_ref();
        let later = |last: &LastCheckpoint| before.is_none_or(|before| before.time.0 < last.time.0);
        if let Some(last) = last.filter(later) {
            self.status.last_checkpoint = Some(last);
        }
    }

    fn started(&self) -> Option<Timestamp> {
        self.status.start_time.as_ref().map(|time| time.0)
    }

    /// Its Job is gone, and it is on no node any more. As long as its pods still end, what they began and until when they
    /// have stays in the status: whether they saved their work shows at their end.
    pub(super) fn stopped(&mut self) {
        let running = live(self.seen, self.settings, self.now);
        let running: Vec<&Pod> = running.collect();
        let saves = self.workload.spec.checkpoint.is_some() && self.started().is_some();
        if saves && !running.is_empty() {
            let until = self.ends_by(&running);
            let start = self.status.start_time.take();
            self.clear_place();
            (self.status.start_time, self.status.deadline) = (start, until);
            return;
        }
        if saves {
            self.note_last_checkpoint(true);
        }
        self.clear_place();
    }

    /// Until when pods that are asked to end have to do so, where that decides whether their work was saved. They may be gone
    /// before anybody has seen the time they were given.
    pub(super) fn ends_by(&self, pods: &[&Pod]) -> Option<Time> {
        self.workload.spec.checkpoint.as_ref()?;
        let given = pods
            .iter()
            .filter_map(|pod| pod.meta().deletion_timestamp.as_ref());
        let given = given.map(|time| time.0).max();
        let grace = pods.iter().filter_map(|pod| {
            let spec = pod.spec.as_ref()?;
            spec.termination_grace_period_seconds
        });
        let grace = grace.max().unwrap_or(GRACE_SECONDS);
        let before = self.status.deadline.as_ref().map(|time| time.0);
        let until = given.or(before);
        Some(Time(until.unwrap_or_else(|| clock::after(self.now, grace))))
    }

    /// GPU-seconds that an eviction for other work threw away: what was not saved.
    pub(super) fn lost_by(&self, failure: &Failure) -> i64 {
        let job = current(self.workload, self.seen);
        let evicted = job.and_then(super::evicted_for).is_some();
        let ours = failure.reason == reason::PREEMPTED && evicted;
        let Some(started) = self.started().filter(|_| ours) else {
            return 0;
        };
        let saved = self.status.last_checkpoint.as_ref();
        let since = saved.map_or(started, |saved| saved.time.0.max(started));
        let seconds = self.now.duration_since(since).as_secs().max(0);
        let spec = &self.workload.spec;
        let members = self.status.placed_members();
        let members = members.unwrap_or(spec.members() as usize);
        let gpus = i64::from(spec.gpu_count) * i64::try_from(members).unwrap_or(i64::MAX);
        // What was saved at the signal was all of it; the moment it took to end is not work.
        let all = saved.is_some_and(|saved| {
            saved.by == warp_api::workload::CheckpointEvidence::Signal && saved.time.0 >= started
        });
        if all { 0 } else { seconds.saturating_mul(gpus) }
    }

    /// Said of what runs, when the cluster does not deliver the signal it saves its work at.
    pub(super) fn of_its_signal(&self) -> String {
        let checkpoint = self.workload.spec.checkpoint.as_ref();
        let job = current(self.workload, self.seen);
        let (Some(checkpoint), Some(job)) = (checkpoint, job) else {
            return String::new();
        };
        if !checkpoint::signal_is_dropped(checkpoint, job) {
            return String::new();
        }
        let wanted = checkpoint.own_signal().map_or("", |signal| signal.as_str());
        format!(
            "; this cluster's API server leaves lifecycle.stopSignal out, so it is asked to end by SIGTERM or its image's own signal instead of {wanted}"
        )
    }
}
