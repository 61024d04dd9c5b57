//! What a cache needs next, and what is told about it. Pure and total.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use warp_api::modelcache::{MOUNT, ModelPhase, ModelProgress};
use warp_api::{ModelCache, ModelCacheStatus, condition, reason};
use warp_runtime::plan::{Plan, about, is_controlled_by};
use warp_runtime::reconcile::Reconcile;

use super::ModelCaches;
use super::objects::{claim, content_key, job, job_name, timeout_seconds};
use super::observe::Seen;
use super::report::{LastWords, last_words};

/// Keeps a cache until nobody mounts its files: they would be gone under a running engine.
pub(crate) const FINALIZER: &str = "gpu.warp.dev/model-users";
/// How often a running fetch is asked how far it is.
const ASK_EVERY: SignedDuration = SignedDuration::from_secs(5);
/// How long the report of a Job that ended is waited for: watches of Jobs and pods are not one.
const REPORT_LIMIT: SignedDuration = SignedDuration::from_mins(2);
/// Users a message and the status name before they count the rest.
const NAMED: usize = 3;
const LISTED: usize = 20;

/// Where a cache is, in words.
struct Verdict {
    phase: ModelPhase,
    reason: String,
    message: String,
}

impl Verdict {
    fn new(phase: ModelPhase, reason: &str, message: impl Into<String>) -> Self {
        Self {
            phase,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }

    fn pending(reason: &str, message: impl Into<String>) -> Self {
        Self::new(ModelPhase::Pending, reason, message)
    }
}

pub(super) fn plan(cache: &ModelCache, seen: &Seen, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if cache.meta().deletion_timestamp.is_some() {
        go(cache, seen, now, &mut plan);
        return plan;
    }
    if !cache.finalizers().iter().any(|one| one == FINALIZER) {
        "a cache goes only when nobody mounts it".clone_into(&mut plan.why);
        plan.add_finalizer(cache, FINALIZER);
        return plan;
    }
    let before = cache.status.clone().unwrap_or_default();
    let mut after = carried_over(cache, &before, seen);
    let verdict = decide(cache, seen, now, &mut after, &mut plan);
    tell(cache, &before, after, &verdict, now, &mut plan);
    plan
}

/// What stays of the last status: the complete model, as long as its volume is the same.
fn carried_over(cache: &ModelCache, before: &ModelCacheStatus, seen: &Seen) -> ModelCacheStatus {
    let mut after = ModelCacheStatus {
        observed_generation: cache.meta().generation,
        source: Some(cache.spec.source.word()),
        volume: Some(ModelCache::claim_name(&cache.name_any())),
        users: seen.users.iter().take(LISTED).cloned().collect(),
        user_count: i64::try_from(seen.users.len()).unwrap_or(i64::MAX),
        conditions: before.conditions.clone(),
        ..ModelCacheStatus::default()
    };
    let same_volume = before.volume_uid.is_some()
        && before.volume_uid == own_claim(cache, seen).and_then(|claim| claim.uid());
    if same_volume {
        after.path.clone_from(&before.path);
        after.commit.clone_from(&before.commit);
        after.digest.clone_from(&before.digest);
        after.bytes = before.bytes;
        after.files = before.files;
        after.fetched_at.clone_from(&before.fetched_at);
        after.content_key.clone_from(&before.content_key);
        after.volume_uid.clone_from(&before.volume_uid);
    }
    after
}

/// The cache's own claim.
fn own_claim<'a>(cache: &ModelCache, seen: &'a Seen) -> Option<&'a PersistentVolumeClaim> {
    let uid = cache.uid().unwrap_or_default();
    seen.claim
        .as_deref()
        .filter(|claim| is_controlled_by(*claim, &uid))
}

fn own_jobs<'a>(cache: &ModelCache, seen: &'a Seen) -> impl Iterator<Item = &'a Job> {
    let uid = cache.uid().unwrap_or_default();
    let jobs = seen.jobs.iter().map(|job| &**job);
    jobs.filter(move |job| is_controlled_by(*job, &uid))
}

fn decide(
    cache: &ModelCache,
    seen: &Seen,
    now: Timestamp,
    after: &mut ModelCacheStatus,
    plan: &mut Plan,
) -> Verdict {
    let key = content_key(&cache.spec);
    let wanted = job_name(cache);
    let complete = after.content_key.as_ref() == Some(&key);
    // What fetches something else, or has said everything, is not needed.
    for job in own_jobs(cache, seen) {
        let going = job.meta().deletion_timestamp.is_some();
        if !going && (complete || job.name_any() != wanted) {
            plan.delete_version(job);
        }
    }
    if complete {
        let files = after.files.unwrap_or_default();
        let bytes = after.bytes.unwrap_or_default();
        let message = format!("{files} files with {bytes} bytes are complete and verified");
        return Verdict::new(ModelPhase::Ready, reason::MODEL_FETCHED, message);
    }
    match own_claim(cache, seen) {
        None if seen.claim.is_some() => {
            let name = ModelCache::claim_name(&cache.name_any());
            let message = format!(
                "the claim {name} belongs to somebody else; delete it, or name the cache differently"
            );
            return Verdict::pending(reason::VOLUME_TAKEN, message);
        }
        None => {
            plan.create_or_find(&claim(cache));
            return Verdict::pending(reason::VOLUME_PENDING, "its volume is being made");
        }
        Some(claim) if claim.meta().deletion_timestamp.is_some() => {
            let message = format!(
                "the claim {} is being deleted; another is made when it is gone",
                claim.name_any()
            );
            return Verdict::pending(reason::VOLUME_PENDING, message);
        }
        Some(_) => {}
    }
    let Some(found) = own_jobs(cache, seen).find(|job| job.name_any() == wanted) else {
        return begin(cache, seen, plan);
    };
    after.job_name = Some(wanted);
    after.deadline = deadline(cache, found);
    follow(cache, seen, found, now, after, plan)
}

fn begin(cache: &ModelCache, seen: &Seen, plan: &mut Plan) -> Verdict {
    let Some(image) = &seen.fetcher.image else {
        return Verdict::pending(
            reason::NO_FETCH_IMAGE,
            "the operator does not know which image fetches: start it with --fetch-image",
        );
    };
    plan.create_or_find(&job(cache, &seen.fetcher, image));
    Verdict::pending(reason::FETCH_PENDING, "the fetch is about to start")
}

fn deadline(cache: &ModelCache, job: &Job) -> Option<Time> {
    let started = job.status.as_ref()?.start_time.as_ref()?.0;
    let limit = SignedDuration::from_secs(timeout_seconds(&cache.spec));
    started.checked_add(limit).ok().map(Time)
}

/// When a condition of a Job became true, and its reason and message.
fn job_condition<'a>(job: &'a Job, kind: &str) -> Option<(Option<Timestamp>, &'a str, &'a str)> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|one| one.type_ == kind && one.status == "True")?;
    let at = found.last_transition_time.as_ref().map(|time| time.0);
    let text = |text: &'a Option<String>| text.as_deref().unwrap_or_default();
    Some((at, text(&found.reason), text(&found.message)))
}

/// How the Job that fetches is doing.
fn follow(
    cache: &ModelCache,
    seen: &Seen,
    job: &Job,
    now: Timestamp,
    after: &mut ModelCacheStatus,
    plan: &mut Plan,
) -> Verdict {
    // Labels are anybody's to write; whose pod it is the owner says.
    let uid = job.uid().unwrap_or_default();
    let pods: Vec<&Pod> = seen
        .fetchers
        .iter()
        .map(|pod| &**pod)
        .filter(|pod| is_controlled_by(*pod, &uid))
        .collect();
    if job.meta().deletion_timestamp.is_some() {
        return Verdict::pending(reason::FETCH_PENDING, "an earlier fetch is ending");
    }
    if let Some((at, ..)) = job_condition(job, "Complete") {
        return completed(seen, job, &pods, at.unwrap_or(now), now, after, plan, cache);
    }
    if let Some((_, why, message)) = job_condition(job, "Failed") {
        return failed(job, &pods, why, message);
    }
    active(cache, seen, job, &pods, now, after, plan)
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
    let Some(LastWords::Fetched(fetched)) = last_words(pod) else {
        let message = format!(
            "Job {} ended well and pod {} left no report: a simulated node fetches nothing, and an image that is not warp's says nothing. Mend that, then delete the Job",
            job.name_any(),
            pod.name_any()
        );
        return Verdict::new(ModelPhase::Failed, reason::NO_REPORT, message);
    };
    after.path = Some(format!("{MOUNT}/{}", fetched.path));
    after.commit = Some(fetched.commit);
    after.digest = Some(fetched.digest);
    after.bytes = Some(fetched.bytes);
    after.files = Some(fetched.files);
    after.fetched_at = Some(Time(at));
    after.content_key = Some(content_key(&cache.spec));
    after.volume_uid = own_claim(cache, seen).and_then(|claim| claim.uid());
    after.job_name = None;
    after.deadline = None;
    let message = format!(
        "{} files with {} bytes are complete and verified",
        fetched.files, fetched.bytes
    );
    Verdict::new(ModelPhase::Ready, reason::MODEL_FETCHED, message)
}

fn phase(pod: &Pod) -> &str {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase.unwrap_or_default()
}

/// The pod that ended last, with what it said.
fn last_failure(pods: &[&Pod]) -> Option<(String, String)> {
    let failed = pods.iter().filter(|pod| phase(pod) == "Failed");
    let last = failed.max_by_key(|pod| (pod.creation_timestamp(), pod.name_any()))?;
    if let Some(LastWords::Failed(words)) = last_words(last) {
        return Some((words.reason, words.message));
    }
    let status = last.status.as_ref()?;
    let ended = status
        .container_statuses
        .iter()
        .flatten()
        .find_map(|container| {
            let ended = container.state.as_ref()?.terminated.as_ref()?;
            let code = ended.exit_code;
            let why = ended.reason.as_deref().unwrap_or("Error");
            Some(format!(
                "pod {} ended with {why}, exit code {code}",
                last.name_any()
            ))
        });
    let message = ended.or_else(|| status.message.clone());
    let message = message.unwrap_or_else(|| format!("pod {} failed", last.name_any()));
    Some((reason::FETCH_FAILED.to_owned(), message))
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
fn why_waiting(pod: &Pod) -> Option<(&'static str, String)> {
    let status = pod.status.as_ref()?;
    let name = pod.name_any();
    let stuck = status
        .container_statuses
        .iter()
        .flatten()
        .find_map(|container| {
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

/// A cache that is being deleted: it goes when nobody mounts its files.
fn go(cache: &ModelCache, seen: &Seen, now: Timestamp, plan: &mut Plan) {
    for job in own_jobs(cache, seen) {
        if job.meta().deletion_timestamp.is_none() {
            plan.delete_version(job);
        }
    }
    if seen.users.is_empty() {
        "nobody mounts its files".clone_into(&mut plan.why);
        plan.remove_finalizer(cache, FINALIZER);
        return;
    }
    let before = cache.status.clone().unwrap_or_default();
    let after = ModelCacheStatus {
        progress: None,
        job_name: None,
        deadline: None,
        ..carried_over(cache, &before, seen)
    };
    let named = seen
        .users
        .iter()
        .take(NAMED)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    let more = seen.users.len().saturating_sub(NAMED);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    let message = format!(
        "it is deleted when pods {named}{more} no longer mount its files; delete them, or wait"
    );
    let verdict = Verdict::new(before.phase, reason::IN_USE, message);
    tell(cache, &before, after, &verdict, now, plan);
}

fn tell(
    cache: &ModelCache,
    before: &ModelCacheStatus,
    mut after: ModelCacheStatus,
    verdict: &Verdict,
    now: Timestamp,
    plan: &mut Plan,
) {
    let going = verdict.reason == reason::IN_USE;
    let ready = verdict.phase == ModelPhase::Ready && !going;
    after.phase = verdict.phase;
    after.message = (!ready).then(|| verdict.message.clone());
    let generation = cache.meta().generation.unwrap_or_default();
    let state = condition::State {
        kind: condition::READY,
        status: if ready { "True" } else { "False" },
        // A reason the fetch itself gives takes its place below.
        reason: reason::FETCH_FAILED,
        message: verdict.message.clone(),
    };
    let mut conditions = condition::next(&before.conditions, &[state], generation, now);
    for found in &mut conditions {
        if found.type_ == condition::READY {
            found.reason.clone_from(&verdict.reason);
        }
    }
    after.conditions = conditions;
    plan.why.clone_from(&verdict.message);
    let old = condition::find(&before.conditions, condition::READY);
    let changed = old.is_none_or(|old| old.reason != verdict.reason);
    plan.own_status(
        cache,
        ModelCaches::MANAGER,
        cache.status.as_ref().map(own).unwrap_or_default(),
        own(&after),
    );
    let quiet = matches!(
        &*verdict.reason,
        reason::FETCH_PENDING | reason::VOLUME_PENDING
    );
    if changed && !quiet {
        let warning = !(ready || verdict.reason == reason::FETCHING);
        plan.note(
            about(cache),
            warning,
            &verdict.reason,
            verdict.message.clone(),
        );
    }
}

/// The part of a status that is ours: conditions of other writers stay theirs.
fn own(status: &ModelCacheStatus) -> Value {
    let mut status = status.clone();
    status
        .conditions
        .retain(|found| found.type_ == condition::READY);
    serde_json::to_value(status).unwrap_or_default()
}
