//! How the Job that brings a copy is doing, and what it said in the end.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use warp_api::modelcache::{CopyPhase, MOUNT, ModelPhase, NodeCopy};
use warp_api::{ModelCacheStatus, reason};
use warp_runtime::plan::Plan;

use super::super::job::{
    ASK_EVERY, PRETENDED, REPORT_LIMIT, job_condition, last_failure, phase, pods_of, why_waiting,
};
use super::super::{Verdict, settings};
use super::{Pass, namespace};
use crate::modelcache::objects::nodes::node_label;
use crate::modelcache::report::{LastWords, last_words};

impl Pass<'_> {
    /// How the Job of one node is doing.
    pub(super) fn follow(
        &mut self,
        job: &Job,
        copy: &mut NodeCopy,
        after: &mut ModelCacheStatus,
        plan: &mut Plan,
    ) -> Verdict {
        let pods = pods_of(self.seen, job);
        if job.meta().deletion_timestamp.is_some() {
            copy.message = Some("an earlier fetch is ending".to_owned());
            return Verdict::pending(reason::FETCH_PENDING, "an earlier fetch is ending");
        }
        if let Some((at, ..)) = job_condition(job, "Complete") {
            return self.completed(job, &pods, at.unwrap_or(self.now), copy, after, plan);
        }
        if settings::keep(self.cache, job, plan) == settings::Kept::Anew {
            let message = "the fetch begins again, as the changed spec says";
            copy.message = Some(message.to_owned());
            return Verdict::pending(reason::FETCH_PENDING, message);
        }
        if let Some((_, why, message)) = job_condition(job, "Failed") {
            if let Some(bytes) = too_large(&pods) {
                // Now it is known how much room it needs: it comes again when there is that.
                plan.delete_version(job);
                (copy.bytes, copy.room) = (Some(bytes), None);
                let message = format!("it has {bytes} bytes, which were not free");
                copy.message = Some(message.clone());
                return Verdict::pending(reason::WAITING_FOR_ROOM, message);
            }
            let (why, words) = match why {
                "DeadlineExceeded" => (
                    reason::FETCH_TIMEOUT.to_owned(),
                    "the fetch took longer than spec.timeout; what came is kept".to_owned(),
                ),
                _ => last_failure(&pods)
                    .unwrap_or_else(|| (reason::FETCH_FAILED.to_owned(), message.to_owned())),
            };
            let words = format!(
                "{words}. delete Job {} to try again, or change the spec",
                job.name_any()
            );
            return failed(copy, &why, &words);
        }
        if pods.iter().any(|pod| phase(pod) == "Running") {
            copy.phase = CopyPhase::Fetching;
            self.measure(copy, plan);
            let message = format!(
                "node {} fetches {}",
                copy.name,
                self.cache.spec.source.word()
            );
            return Verdict::new(ModelPhase::Fetching, reason::FETCHING, message);
        }
        let waits = pods.iter().find_map(|pod| why_waiting(pod));
        let (why, words) = waits.unwrap_or_else(|| {
            let words = format!("Job {} has not started its pod", job.name_any());
            (reason::FETCH_PENDING, words)
        });
        copy.message = Some(words.clone());
        Verdict::pending(why, words)
    }

    /// Others may have the rest of the room as soon as it is known how much this one takes.
    fn measure(&self, copy: &mut NodeCopy, plan: &mut Plan) {
        if copy.room.is_none() || copy.bytes.is_some() {
            return;
        }
        let total = self.seen.moment.as_ref().map(|moment| moment.bytes_total);
        if let Some(total) = total.filter(|total| *total > 0) {
            (copy.bytes, copy.room) = (Some(total), Some(total));
        } else if self.seen.fetcher.asks_progress {
            plan.look_again(self.now.checked_add(ASK_EVERY).unwrap_or(self.now));
        }
    }

    fn completed(
        &mut self,
        job: &Job,
        pods: &[&Pod],
        at: Timestamp,
        copy: &mut NodeCopy,
        after: &mut ModelCacheStatus,
        plan: &mut Plan,
    ) -> Verdict {
        let Some(pod) = pods.iter().find(|pod| phase(pod) == "Succeeded") else {
            let until = at.checked_add(REPORT_LIMIT).unwrap_or(self.now);
            if self.now >= until {
                plan.delete_version(job);
            } else {
                plan.look_again(until);
            }
            copy.phase = CopyPhase::Fetching;
            let message = "the fetch has ended; its report is waited for";
            copy.message = Some(message.to_owned());
            return Verdict::new(ModelPhase::Fetching, reason::FETCHING, message);
        };
        // Where no node has it any more, nobody has to agree.
        let first = after.content_key.as_ref() != Some(&self.key) || self.nowhere;
        let differs = "what came is not what the other nodes have: the source has changed. Name a revision that stays";
        match last_words(pod) {
            Some(LastWords::Fetched(fetched)) if first => {
                after.path = Some(format!("{MOUNT}/{}", fetched.path));
                after.verified_files = fetched.verified_files();
                after.commit = Some(fetched.commit);
                after.digest = Some(fetched.digest);
                (after.bytes, after.files) = (Some(fetched.bytes), Some(fetched.files));
            }
            Some(LastWords::Fetched(fetched)) => {
                if after.digest.as_ref() != Some(&fetched.digest) {
                    return failed(copy, "ContentMismatch", differs);
                }
            }
            Some(LastWords::Simulated {}) if first => {
                after.path = Some(format!("{MOUNT}/{PRETENDED}"));
                (after.commit, after.digest) = (None, None);
                (after.bytes, after.files) = (Some(0), Some(0));
                after.verified_files = None;
            }
            Some(LastWords::Simulated {}) => {
                if after.commit.is_some() {
                    let words = "pretended: the node is simulated and holds no files";
                    return failed(copy, reason::SIMULATED_FETCH, words);
                }
            }
            Some(LastWords::Failed(_)) | None => {
                let words = format!(
                    "Job {} ended well and pod {} left no report: an image that is not warp's says nothing. Mend that, then delete the Job",
                    job.name_any(),
                    pod.name_any()
                );
                return failed(copy, reason::NO_REPORT, &words);
            }
        }
        if first {
            let namespace = namespace(self.cache);
            after.fetched_at = Some(Time(at));
            after.content_key = Some(self.key.clone());
            after.folder = Some(self.folder(&self.key));
            after.node_label = Some(node_label(&namespace, &self.key));
        }
        self.nowhere = false;
        copy.phase = CopyPhase::Ready;
        copy.message = None;
        (copy.bytes, copy.room) = (after.bytes, None);
        copy.fetched_at = Some(Time(at));
        Verdict::new(ModelPhase::Ready, reason::MODEL_FETCHED, "")
    }
}

fn failed(copy: &mut NodeCopy, why: &str, words: &str) -> Verdict {
    copy.phase = CopyPhase::Failed;
    copy.message = Some(format!("{why}: {words}"));
    let message = format!("on node {}: {words}", copy.name);
    Verdict::new(ModelPhase::Failed, why, message)
}

/// What a fetch needs that was given too little room.
fn too_large(pods: &[&Pod]) -> Option<i64> {
    let ended = pods.iter().filter(|pod| phase(pod) == "Failed");
    let mut words = ended.filter_map(|pod| last_words(pod));
    words.find_map(|words| match words {
        LastWords::Failed(failed) if failed.reason == "TooLarge" => failed.bytes,
        _ => None,
    })
}
