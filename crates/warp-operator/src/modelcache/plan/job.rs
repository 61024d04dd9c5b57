//! How the Job that fetches is doing, and what its pods said. What holds for any Job of a cache is shared with
//! `optimize.rs`.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use warp_api::modelcache::{MOUNT, ModelPhase, ModelProgress};
use warp_api::{ModelCache, ModelCacheStatus, reason};
use warp_runtime::plan::{Plan, is_controlled_by};

use super::{Verdict, complete_verdict, own_claim, settings};
use crate::modelcache::objects::content_key;
use crate::modelcache::observe::Seen;
use crate::modelcache::report::{LastWords, last_words};

/// How often a running fetch is asked how far it is.
pub(super) const ASK_EVERY: SignedDuration = SignedDuration::from_secs(5);
/// How long the report of a Job that ended is waited for: watches of Jobs and pods are not one.
pub(super) const REPORT_LIMIT: SignedDuration = SignedDuration::from_mins(2);

/// The folder of a model that a simulated node pretended to fetch.
pub(super) const PRETENDED: &str = "simulated";

/// When a condition of a Job became true, and its reason and message.
pub(super) fn job_condition<'a>(
    job: &'a Job,
    kind: &str,
) -> Option<(Option<Timestamp>, &'a str, &'a str)> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|one| one.type_ == kind && one.status == "True")?;
    let at = found.last_transition_time.as_ref().map(|time| time.0);
    let text = |text: &'a Option<String>| text.as_deref().unwrap_or_default();
    Some((at, text(&found.reason), text(&found.message)))
}

/// How the Job that fetches is doing.
pub(super) fn follow(
    cache: &ModelCache,
    seen: &Seen,
    job: &Job,
    now: Timestamp,
    after: &mut ModelCacheStatus,
    plan: &mut Plan,
) -> Verdict {
    let pods = pods_of(seen, job);
    if job.meta().deletion_timestamp.is_some() {
        return Verdict::pending(reason::FETCH_PENDING, "an earlier fetch is ending");
    }
    if let Some((at, ..)) = job_condition(job, "Complete") {
        return completed(seen, job, &pods, at.unwrap_or(now), now, after, plan, cache);
    }
    if settings::keep(cache, job, plan) == settings::Kept::Anew {
        let message = "the fetch begins again, as the changed spec says, from where it stopped";
        return Verdict::pending(reason::FETCH_PENDING, message);
    }
    if let Some((_, why, message)) = job_condition(job, "Failed") {
        return failed(job, &pods, why, message);
    }
    active(cache, seen, job, &pods, now, after, plan)
}

/// Labels are anybody's to write; whose pod it is the owner says.
pub(super) fn pods_of<'a>(seen: &'a Seen, job: &Job) -> Vec<&'a Pod> {
    let uid = job.uid().unwrap_or_default();
    let pods = seen.fetchers.iter().map(|pod| &**pod);
    pods.filter(|pod| is_controlled_by(*pod, &uid)).collect()
}

#[expect(clippy::too_many_arguments, reason = "one step of one decision")]
fn completed(
    seen: &Seen,
    job: &Job,
    pods: &[&Pod],
    at: Timestamp,
    now: Timestamp,
    after: &mut ModelCacheStatus,
    plan: &mut Plan,
    cache: &ModelCache,
) -> Verdict {
    let Some(pod) = pods.iter().find(|pod| phase(pod) == "Succeeded") else {
        let until = at.checked_add(REPORT_LIMIT).unwrap_or(now);
        if now >= until {
            // The pod is gone and took its report along. What it fetched is there: a second look is quick.
            plan.delete_version(job);
        } else {
            plan.look_again(until);
        }
        return Verdict::new(
            ModelPhase::Fetching,
            reason::FETCHING,
            "the fetch has ended; its report is waited for",
        );
    };
    match last_words(pod) {
        Some(LastWords::Fetched(fetched)) => {
            after.path = Some(format!("{MOUNT}/{}", fetched.path));
            after.verified_files = fetched.verified_files();
            after.commit = Some(fetched.commit);
            after.digest = Some(fetched.digest);
            after.bytes = Some(fetched.bytes);
            after.files = Some(fetched.files);
        }
        Some(LastWords::Simulated {}) => {
            after.path = Some(format!("{MOUNT}/{PRETENDED}"));
            (after.commit, after.digest) = (None, None);
            (after.bytes, after.files) = (Some(0), Some(0));
            after.verified_files = None;
        }
        Some(LastWords::Failed(_)) | None => {
            let message = format!(
                "Job {} ended well and pod {} left no report: an image that is not warp's says nothing. Mend that, then delete the Job",
                job.name_any(),
                pod.name_any()
            );
            return Verdict::new(ModelPhase::Failed, reason::NO_REPORT, message);
        }
    }
    after.fetched_at = Some(Time(at));
    after.content_key = Some(content_key(&cache.spec));
    let volume = own_claim(cache, seen);
    after.volume = volume.map(ResourceExt::name_any);
    after.volume_uid = volume.and_then(ResourceExt::uid);
    after.shared_from = None;
    after.job_name = None;
    after.deadline = None;
    complete_verdict(after)
}

pub(super) fn phase(pod: &Pod) -> &str {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase.unwrap_or_default()
}

/// The pod that ended last, with what it said.
pub(super) fn last_failure(pods: &[&Pod]) -> Option<(String, String)> {
    let failed = pods.iter().filter(|pod| phase(pod) == "Failed");
    let last = failed.max_by_key(|pod| (pod.creation_timestamp(), pod.name_any()))?;
    if let Some(LastWords::Failed(words)) = last_words(last) {
        return Some((words.reason, words.message));
    }
    let status = last.status.as_ref()?;
    let ended = containers(last).find_map(|container| {
        let ended = container.state.as_ref()?.terminated.as_ref()?;
        let code = ended.exit_code;
        let why = ended.reason.as_deref().unwrap_or("Error");
        let said = ended.message.as_deref().unwrap_or_default();
        let said = said.lines().rfind(|line| !line.trim().is_empty());
        let said = said.map_or(String::new(), |line| format!(": {}", line.trim()));
        // The containers before the one that failed ended well.
        (code != 0).then(|| {
            format!(
                "pod {} ended with {why}, exit code {code}{said}",
                last.name_any()
            )
        })
    });
    let message = ended.or_else(|| status.message.clone());
    let message = message.unwrap_or_else(|| format!("pod {} failed", last.name_any()));
    Some((reason::FETCH_FAILED.to_owned(), message))
}

/// Of the containers that run one after the other, and then of those that run together.
fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let first = status.and_then(|status| status.init_container_statuses.as_ref());
    let then = status.and_then(|status| status.container_statuses.as_ref());
    first.into_iter().chain(then).flatten()
}

fn failed(job: &Job, pods: &[&Pod], why: &str, message: &str) -> Verdict {
    let (reason, words) = match why {
        "DeadlineExceeded" => (
            reason::FETCH_TIMEOUT.to_owned(),
            "the fetch took longer than spec.timeout; what came is kept".to_owned(),
        ),
        _ => last_failure(pods).unwrap_or_else(|| {
            (
                reason::FETCH_FAILED.to_owned(),
                format!("the fetch failed: {message}"),
            )
        }),
    };
    let next = format!(
        "delete Job {} to try again, or change the spec",
        job.name_any()
    );
    Verdict::new(ModelPhase::Failed, &reason, format!("{words}. {next}"))
}

fn active(
    cache: &ModelCache,
    seen: &Seen,
    job: &Job,
    pods: &[&Pod],
    now: Timestamp,
    after: &mut ModelCacheStatus,
    plan: &mut Plan,
) -> Verdict {
    let again = last_failure(pods).map_or(String::new(), |(_, words)| {
        format!("; the last try ended: {words}")
    });
    if pods.iter().any(|pod| phase(pod) == "Running") {
        plan.look_again(now.checked_add(ASK_EVERY).unwrap_or(now));
        let before = cache.status.as_ref();
        after.progress = progress(seen, now).or_else(|| {
            // What it said last, with the time it said so.
            let same = before.filter(|before| before.job_name == after.job_name);
            same.and_then(|before| before.progress.clone())
        });
        let trouble = seen
            .moment
            .as_ref()
            .and_then(|moment| moment.trouble.clone());
        let trouble = trouble.map_or(String::new(), |words| format!("; trying again: {words}"));
        let message = format!("fetching {}{trouble}{again}", cache.spec.source.word());
        return Verdict::new(ModelPhase::Fetching, reason::FETCHING, message);
    }
    let waiting = pods.iter().find(|pod| matches!(phase(pod), "Pending" | ""));
    if let Some((reason, words)) = waiting.and_then(|pod| why_waiting(pod)) {
        return Verdict::pending(reason, format!("{words}{again}"));
    }
    let message = format!("Job {} has not started its pod{again}", job.name_any());
    Verdict::pending(reason::FETCH_PENDING, message)
}

/// Why a pod does not run yet, in the words of whoever keeps it.
pub(super) fn why_waiting(pod: &Pod) -> Option<(&'static str, String)> {
    let status = pod.status.as_ref()?;
    let name = pod.name_any();
    let stuck = containers(pod).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let why = waiting
            .reason
            .as_deref()
            .filter(|why| *why != "ContainerCreating" && *why != "PodInitializing")?;
        let words = waiting.message.as_deref().unwrap_or_default();
        let reason = match why {
            "ErrImagePull" | "ImagePullBackOff" => reason::IMAGE_PULL_FAILED,
            _ => reason::CONTAINER_CREATE_FAILED,
        };
        Some((reason, format!("pod {name} waits: {why}: {words}")))
    });
    let unscheduled = || {
        let condition = status
            .conditions
            .iter()
            .flatten()
            .find(|one| one.type_ == "PodScheduled" && one.status == "False")?;
        let words = condition.message.as_deref().unwrap_or_default();
        let reason = if words.contains("ersistentVolumeClaim") || words.contains("ersistent volume")
        {
            reason::VOLUME_PENDING
        } else {
            reason::FETCH_PENDING
        };
        Some((reason, format!("pod {name} has no node: {words}")))
    };
    let starting = || Some((reason::FETCH_PENDING, format!("pod {name} is starting")));
    stuck.or_else(unscheduled).or_else(starting)
}

fn progress(seen: &Seen, now: Timestamp) -> Option<ModelProgress> {
    let moment = seen.moment.as_ref()?;
    // The list of files is not there yet.
    if moment.bytes_total == 0 {
        return None;
    }
    let percent = moment.bytes.saturating_mul(100) / moment.bytes_total.max(1);
    Some(ModelProgress {
        files: moment.files,
        files_total: moment.files_total,
        bytes: moment.bytes,
        bytes_total: moment.bytes_total,
        percent: format!("{percent}%"),
        bytes_per_second: moment.bytes_per_second,
        seconds_left: moment.seconds_left,
        observed_at: Some(Time(now)),
    })
}
