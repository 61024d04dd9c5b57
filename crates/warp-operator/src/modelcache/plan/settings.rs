//! What of the spec a Job carries besides what it fetches: its limits follow the spec while it exists.

use k8s_openapi::api::batch::v1::Job;
use serde_json::json;
use warp_api::ModelCache;
use warp_runtime::plan::Plan;

use super::job::job_condition;
use crate::modelcache::objects::{LIMIT_RATE, timeout_seconds};

/// What became of the Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// It goes on.
    On,
    /// It is deleted, and another begins when it is gone.
    Anew,
}

/// Has a Job that is not complete do what the spec says now. How long and how often it may try is changed on it; what
/// stands in its pods cannot be, and a Job that failed under other limits is over: then another takes its place.
pub(super) fn keep(cache: &ModelCache, job: &Job, plan: &mut Plan) -> Kept {
    let Some(spec) = &job.spec else {
        return Kept::On;
    };
    let wanted = (
        Some(timeout_seconds(&cache.spec)),
        Some(cache.spec.backoff_limit),
    );
    let limits = (spec.active_deadline_seconds, spec.backoff_limit) != wanted;
    let failed = job_condition(job, "Failed").is_some();
    if (limits && failed) || is_paced_otherwise(cache, job) {
        plan.delete_version(job);
        return Kept::Anew;
    }
    if limits {
        let (deadline, retries) = wanted;
        plan.merge(
            job,
            json!({"spec": {"activeDeadlineSeconds": deadline, "backoffLimit": retries}}),
        );
    }
    Kept::On
}

/// Whether its container that fetches keeps to another rate. The one that publishes what `optimize` made keeps to none.
fn is_paced_otherwise(cache: &ModelCache, job: &Job) -> bool {
    let pod = job
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let containers = pod.into_iter().flat_map(|pod| &pod.containers);
    let mut fetching = containers.filter(|one| one.name == "fetch");
    let wanted = cache.spec.bandwidth.as_deref();
    fetching.any(|one| {
        let mut words = one.args.iter().flatten();
        let rate = words.find_map(|word| word.strip_prefix(LIMIT_RATE));
        rate != wanted
    })
}
