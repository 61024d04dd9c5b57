//! The Job that makes another model of the fetched one: when it runs, how it is doing, and what it made. The fetched
//! model and what was made before stay until it has ended well.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use warp_api::modelcache::{MOUNT, ModelPhase, Optimize, OptimizedModel};
use warp_api::{ModelCache, ModelCacheStatus, reason};
use warp_runtime::plan::Plan;

use super::job::{
    PRETENDED, REPORT_LIMIT, job_condition, last_failure, phase, pods_of, why_waiting,
};
use super::{Verdict, complete_verdict, deadline, own_jobs, settings};
use crate::modelcache::objects::optimize::{job, job_name, key};
use crate::modelcache::observe::Seen;
use crate::modelcache::report::{LastWords, last_words};

/// What is to be made.
pub(super) struct Making<'a> {
    optimize: &'a Optimize,
    key: String,
    pub(super) job_name: String,
}

/// What is to be made of the fetched model; none where nothing is asked for, or it is there already.
pub(super) fn wanted<'a>(cache: &'a ModelCache, after: &ModelCacheStatus) -> Option<Making<'a>> {
    let optimize = cache.spec.optimize.as_ref()?;
    let key = key(optimize, after);
    let made = after.optimized.as_ref().map(|model| &model.key);
    (made != Some(&key)).then(|| Making {
        optimize,
        job_name: job_name(cache, &key),
        key,
    })
}

/// The run of optimize that changed the model it was made of, as long as that was not fetched again since.
pub(super) fn spoiler(cache: &ModelCache, seen: &Seen, after: &ModelCacheStatus) -> Option<String> {
    let optimize = cache.spec.optimize.as_ref()?;
    let name = job_name(cache, &key(optimize, after));
    let job = own_jobs(cache, seen).find(|job| job.name_any() == name)?;
    let (failed_at, ..) = job_condition(job, "Failed")?;
    let (reason, _) = last_failure(&pods_of(seen, job))?;
    let fetched_at = after.fetched_at.as_ref().map(|time| time.0);
    (reason == reason::MODEL_CHANGED && failed_at >= fetched_at).then_some(name)
}

pub(super) fn decide(
    cache: &ModelCache,
    seen: &Seen,
    making: &Making<'_>,
    now: Timestamp,
    after: &mut ModelCacheStatus,
    plan: &mut Plan,
) -> Verdict {
    let Some(found) = own_jobs(cache, seen).find(|job| job.name_any() == making.job_name) else {
        return begin(cache, seen, making, after, plan);
    };
    after.job_name = Some(making.job_name.clone());
    after.deadline = deadline(cache, found);
    let pods = pods_of(seen, found);
    if found.meta().deletion_timestamp.is_some() {
        return under_way("an earlier run of optimize is ending");
    }
    if let Some((at, ..)) = job_condition(found, "Complete") {
        return completed(making, found, &pods, (at.unwrap_or(now), now), after, plan);
    }
    if settings::keep(cache, found, plan) == settings::Kept::Anew {
        return under_way("optimize begins again, as the changed spec says");
    }
    if let Some((_, why, message)) = job_condition(found, "Failed") {
        return failed(found, &pods, why, message, after);
    }
    active(making, found, &pods)
}

fn under_way(message: impl Into<String>) -> Verdict {
    Verdict::new(ModelPhase::Optimizing, reason::OPTIMIZING, message)
}

fn begin(
    cache: &ModelCache,
    seen: &Seen,
    making: &Making<'_>,
    after: &ModelCacheStatus,
    plan: &mut Plan,
) -> Verdict {
    let Some(image) = &seen.fetcher.image else {
        return Verdict::pending(
            reason::NO_FETCH_IMAGE,
            "the operator does not know which image publishes: start it with --fetch-image",
        );
    };
    let path = after.path.as_deref().unwrap_or(MOUNT);
    let of = (path, making.key.as_str());
    plan.create_or_find(&job(cache, making.optimize, &seen.fetcher, image, of));
    under_way("the fetched model is complete; optimize is about to start")
}

fn completed(
    making: &Making<'_>,
    job: &Job,
    pods: &[&Pod],
    (at, now): (Timestamp, Timestamp),
    after: &mut ModelCacheStatus,
    plan: &mut Plan,
) -> Verdict {
    let Some(pod) = pods.iter().find(|pod| phase(pod) == "Succeeded") else {
        let until = at.checked_add(REPORT_LIMIT).unwrap_or(now);
        if now >= until {
            // The pod is gone and took its report along: it is made once more.
            plan.delete_version(job);
        } else {
            plan.look_again(until);
        }
        return under_way("optimize has ended; its report is waited for");
    };
    let optimize = making.optimize;
    let words = optimize.command.iter().chain(&optimize.args).cloned();
    let mut model = OptimizedModel {
        from_commit: after.commit.clone(),
        image: optimize.image.clone(),
        command: words.collect(),
        finished_at: Some(Time(at)),
        key: making.key.clone(),
        ..OptimizedModel::default()
    };
    match last_words(pod) {
        Some(LastWords::Fetched(made)) => {
            model.path = format!("{MOUNT}/{}", made.path);
            model.commit = Some(made.commit);
            model.digest = Some(made.digest);
            (model.bytes, model.files) = (made.bytes, made.files);
        }
        Some(LastWords::Simulated {}) => {
            model.path = format!("{MOUNT}/{PRETENDED}-optimized-{}", making.key);
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
    after.optimized = Some(model);
    (after.job_name, after.deadline) = (None, None);
    complete_verdict(after)
}

fn failed(job: &Job, pods: &[&Pod], why: &str, message: &str, after: &ModelCacheStatus) -> Verdict {
    let (reason, words) = if why == "DeadlineExceeded" {
        let words = "optimize took longer than spec.timeout".to_owned();
        (reason::OPTIMIZE_TIMEOUT.to_owned(), words)
    } else {
        let (reason, words) = last_failure(pods)
            .unwrap_or_else(|| (reason::FETCH_FAILED.to_owned(), message.to_owned()));
        let reason = match reason.as_str() {
            reason::FETCH_FAILED => reason::OPTIMIZE_FAILED.to_owned(),
            _ => reason,
        };
        (reason, format!("optimize failed: {words}"))
    };
    let kept = match &after.optimized {
        Some(model) => format!("what was made before stays in {}", model.path),
        None => format!(
            "the fetched model stays in {}",
            after.path.as_deref().unwrap_or_default()
        ),
    };
    let next = format!(
        "delete Job {} to try again, or change spec.optimize",
        job.name_any()
    );
    Verdict::new(
        ModelPhase::Failed,
        &reason,
        format!("{words}; {kept}. {next}"),
    )
}

fn active(making: &Making<'_>, job: &Job, pods: &[&Pod]) -> Verdict {
    let again = last_failure(pods).map_or(String::new(), |(_, words)| {
        format!("; the last try ended: {words}")
    });
    let live = pods
        .iter()
        .filter(|pod| !matches!(phase(pod), "Failed" | "Succeeded"));
    if live.clone().any(|pod| has_begun(pod)) {
        return under_way(format!("{} works{again}", making.optimize.image));
    }
    if let Some((_, words)) = live.clone().find_map(|pod| why_waiting(pod)) {
        return under_way(format!("{words}{again}"));
    }
    under_way(format!(
        "Job {} has not started its pod{again}",
        job.name_any()
    ))
}

/// Whether one of its containers runs or has run.
fn has_begun(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let first = status.and_then(|status| status.init_container_statuses.as_ref());
    let begun = first.into_iter().flatten().any(|status| {
        let state = status.state.as_ref();
        state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    });
    begun || phase(pod) == "Running"
}
