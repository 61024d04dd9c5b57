//! What a cache needs next, and what is told about it. Pure and total.

mod job;
mod last_used;
mod nodes;
mod optimize;
mod settings;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use warp_api::modelcache::ModelPhase;
use warp_api::{ModelCache, ModelCacheStatus, condition, reason};
use warp_runtime::plan::{Plan, about, is_controlled_by};
use warp_runtime::reconcile::{Reconcile, Refusal};

use super::ModelCaches;
use super::objects::{self, claim, content_key, job_name, timeout_seconds};
use super::observe::Seen;
use super::share;
pub(super) use nodes::matches;

/// Keeps a cache until nobody uses its files: they would be gone under a running engine.
pub(crate) const FINALIZER: &str = "gpu.warp.dev/model-users";
/// Users a message and the status name before they count the rest.
const NAMED: usize = 3;
const LISTED: usize = 20;

/// Where a cache is, in words.
pub(super) struct Verdict {
    phase: ModelPhase,
    reason: String,
    message: String,
}

impl Verdict {
    pub(super) fn new(phase: ModelPhase, reason: &str, message: impl Into<String>) -> Self {
        Self {
            phase,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }

    pub(super) fn pending(reason: &str, message: impl Into<String>) -> Self {
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
        "a cache goes only when nobody uses it".clone_into(&mut plan.why);
        plan.add_finalizer(cache, FINALIZER);
        return plan;
    }
    let before = cache.status.clone().unwrap_or_default();
    let mut after = carried_over(cache, &before, seen, now);
    if let Some(copies) = &cache.spec.nodes {
        let verdict = nodes::decide(cache, copies, seen, now, &mut after, &mut plan);
        tell(cache, &before, after, &verdict, now, &mut plan);
        return plan;
    }
    let verdict = decide(cache, seen, now, &mut after, &mut plan);
    tell(cache, &before, after, &verdict, now, &mut plan);
    plan
}

/// What a cache says when the API server does not take something that was made for it. What is complete stays.
pub(super) fn rejected(cache: &ModelCache, seen: &Seen, refused: &Refusal, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let before = cache.status.clone().unwrap_or_default();
    let after = carried_over(cache, &before, seen, now);
    // A quota or a policy may let it pass later.
    let phase = if refused.forbidden {
        ModelPhase::Pending
    } else {
        ModelPhase::Failed
    };
    let message = format!(
        "the API server does not take the {} {}: {}",
        refused.kind, refused.name, refused.words
    );
    let verdict = Verdict::new(phase, reason::OBJECT_REJECTED, message);
    tell(cache, &before, after, &verdict, now, &mut plan);
    plan
}

/// What stays of the last status: the complete model, as long as its volume is the same.
fn carried_over(
    cache: &ModelCache,
    before: &ModelCacheStatus,
    seen: &Seen,
    now: Timestamp,
) -> ModelCacheStatus {
    let mut users = seen.users.clone();
    users.extend(seen.lent_users.iter().cloned());
    users.sort();
    users.dedup();
    let sharers = share::shared_by(cache, seen);
    let mut after = ModelCacheStatus {
        observed_generation: cache.meta().generation,
        source: Some(cache.spec.source.word()),
        volume: Some(ModelCache::claim_name(&cache.name_any())),
        shared_by: sharers.into_iter().take(LISTED).collect(),
        user_count: i64::try_from(users.len()).unwrap_or(i64::MAX),
        users: users.into_iter().take(LISTED).collect(),
        services: seen.services.iter().take(LISTED).cloned().collect(),
        conditions: before.conditions.clone(),
        ..ModelCacheStatus::default()
    };
    if let Some(copies) = &cache.spec.nodes {
        nodes::carry_over(cache, copies, before, seen, now, &mut after);
        return after;
    }
    let used = (before.user_count > 0, after.user_count > 0);
    after.last_used = last_used::told(before.last_used.as_ref(), used, seen.ended, now);
    let volume = match before.shared_from {
        Some(_) => share::lent_claim(before, seen),
        None => own_claim(cache, seen),
    };
    let same_volume =
        before.volume_uid.is_some() && before.volume_uid == volume.and_then(ResourceExt::uid);
    if same_volume {
        after.volume = volume.map(ResourceExt::name_any);
        after.shared_from.clone_from(&before.shared_from);
        after.path.clone_from(&before.path);
        after.commit.clone_from(&before.commit);
        after.digest.clone_from(&before.digest);
        after.bytes = before.bytes;
        after.files = before.files;
        after.verified_files = before.verified_files;
        after.fetched_at.clone_from(&before.fetched_at);
        after.content_key.clone_from(&before.content_key);
        after.volume_uid.clone_from(&before.volume_uid);
        after.optimized.clone_from(&before.optimized);
        if cache.spec.optimize.is_none() {
            after.optimized = None;
        }
    }
    after
}

/// The cache's own claim.
pub(super) fn own_claim<'a>(
    cache: &ModelCache,
    seen: &'a Seen,
) -> Option<&'a PersistentVolumeClaim> {
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
    let Some(spoiler) = optimize::spoiler(cache, seen, after) else {
        return advance(cache, seen, (now, None), after, plan);
    };
    // What is there is not what was fetched: it is not served, and what differs is fetched again.
    (after.content_key, after.path) = (None, None);
    let verdict = advance(cache, seen, (now, Some(&spoiler)), after, plan);
    let message = format!(
        "Job {spoiler} changed the fetched model, which is therefore verified and fetched again: {}",
        verdict.message
    );
    Verdict { message, ..verdict }
}

/// The next step; `kept` is a Job that stays for what it says.
fn advance(
    cache: &ModelCache,
    seen: &Seen,
    (now, kept): (Timestamp, Option<&str>),
    after: &mut ModelCacheStatus,
    plan: &mut Plan,
) -> Verdict {
    let key = content_key(&cache.spec);
    // What is made of a model is made on a volume of its own.
    let elsewhere = after.shared_from.is_some() && cache.spec.optimize.is_some();
    let complete = after.content_key.as_ref() == Some(&key) && !elsewhere;
    let making = optimize::wanted(cache, after).filter(|_| complete);
    let wanted = match &making {
        Some(making) => Some(making.job_name.clone()),
        None if complete => None,
        None => Some(job_name(cache)),
    };
    // What fetches or makes something else, or has said everything, is not needed.
    for job in own_jobs(cache, seen) {
        let going = job.meta().deletion_timestamp.is_some();
        let name = job.name_any();
        if !going && Some(&name) != wanted.as_ref() && Some(name.as_str()) != kept {
            plan.delete_version(job);
        }
    }
    let Some(wanted) = wanted else {
        return complete_verdict(after);
    };
    if let Some(making) = making {
        return optimize::decide(cache, seen, &making, now, after, plan);
    }
    if let Some(lender) = share::lender(cache, seen) {
        let waits = share::follow(cache, lender, seen, after);
        return waits.unwrap_or_else(|| complete_verdict(after));
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
    job::follow(cache, seen, found, now, after, plan)
}

/// What is told of a complete model. Only a pretended one has no commit.
fn complete_verdict(after: &ModelCacheStatus) -> Verdict {
    let optimized = after.optimized.as_ref();
    let pretended = optimized.is_some_and(|model| model.commit.is_none());
    if after.commit.is_none() || pretended {
        let message = "pretended: the fetch ran on a simulated node, which fetches nothing, so the volume is empty. Simulated nodes and engines serve it; for real files run `warp up --runtime process` or use a cluster with real nodes, and make the cache again there";
        return Verdict::new(ModelPhase::Ready, reason::SIMULATED_FETCH, message);
    }
    if let Some(model) = optimized {
        let message = format!(
            "{} files with {} bytes were made by {} of commit {} and are complete and verified",
            model.files,
            model.bytes,
            model.image,
            model.from_commit.as_deref().unwrap_or("unknown"),
        );
        return Verdict::new(ModelPhase::Ready, reason::MODEL_OPTIMIZED, message);
    }
    let files = after.files.unwrap_or_default();
    let bytes = after.bytes.unwrap_or_default();
    if let Some(lender) = &after.shared_from {
        let message = format!(
            "{files} files with {bytes} bytes are {}, fetched once by ModelCache {lender} and shared from its volume",
            checked(after)
        );
        return Verdict::new(ModelPhase::Ready, reason::MODEL_SHARED, message);
    }
    let message = format!("{files} files with {bytes} bytes are {}", checked(after));
    Verdict::new(ModelPhase::Ready, reason::MODEL_FETCHED, message)
}

/// How sure it is that the files are what the source has.
fn checked(after: &ModelCacheStatus) -> String {
    match after.verified_files {
        None => "complete and verified".to_owned(),
        Some(0) => "complete (the source has no digests to verify them by)".to_owned(),
        Some(verified) => format!(
            "complete, {verified} of them verified (the source has no digests of the others)"
        ),
    }
}

fn begin(cache: &ModelCache, seen: &Seen, plan: &mut Plan) -> Verdict {
    let Some(image) = &seen.fetcher.image else {
        return Verdict::pending(
            reason::NO_FETCH_IMAGE,
            "the operator does not know which image fetches: start it with --fetch-image",
        );
    };
    plan.create_or_find(&objects::job(cache, &seen.fetcher, image));
    Verdict::pending(reason::FETCH_PENDING, "the fetch is about to start")
}

fn deadline(cache: &ModelCache, job: &Job) -> Option<Time> {
    let started = job.status.as_ref()?.start_time.as_ref()?.0;
    let limit = SignedDuration::from_secs(timeout_seconds(&cache.spec));
    started.checked_add(limit).ok().map(Time)
}

/// The first of some names, and how many more there are.
fn first_of(names: &[String]) -> String {
    let named = names.iter().take(NAMED).cloned().collect::<Vec<_>>();
    match names.len().saturating_sub(NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// A cache that is being deleted: it goes when no service names it, no other cache shares its files and nobody mounts
/// them.
fn go(cache: &ModelCache, seen: &Seen, now: Timestamp, plan: &mut Plan) {
    if let Some(copies) = &cache.spec.nodes {
        nodes::go(cache, copies, seen, now, plan);
        return;
    }
    for job in own_jobs(cache, seen) {
        if job.meta().deletion_timestamp.is_none() {
            plan.delete_version(job);
        }
    }
    let sharers = share::shared_by(cache, seen);
    if seen.users.is_empty() && seen.services.is_empty() && sharers.is_empty() {
        "nobody uses its files".clone_into(&mut plan.why);
        plan.remove_finalizer(cache, FINALIZER);
        return;
    }
    let before = cache.status.clone().unwrap_or_default();
    let after = ModelCacheStatus {
        progress: None,
        job_name: None,
        deadline: None,
        ..carried_over(cache, &before, seen, now)
    };
    let services = match seen.services.as_slice() {
        [] => None,
        names => Some(format!(
            "InferenceServices {} no longer name it",
            first_of(names)
        )),
    };
    let pods = match seen.users.as_slice() {
        [] => None,
        names => Some(format!(
            "pods {} no longer mount its files",
            first_of(names)
        )),
    };
    let caches = match sharers.as_slice() {
        [] => None,
        names => Some(format!(
            "ModelCaches {} no longer share its files",
            first_of(names)
        )),
    };
    let users: Vec<String> = [services, caches, pods].into_iter().flatten().collect();
    let message = format!(
        "it is deleted when {}; delete them, or wait",
        users.join(" and ")
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
    let going = matches!(&*verdict.reason, reason::IN_USE | reason::REMOVING);
    let ready = verdict.phase == ModelPhase::Ready && !going;
    after.phase = verdict.phase;
    let silent = ready && verdict.reason != reason::SIMULATED_FETCH;
    after.message = (!silent).then(|| verdict.message.clone());
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
    last_used::look_again(&after, plan);
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
        let warning = !(ready || matches!(&*verdict.reason, reason::FETCHING | reason::OPTIMIZING));
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
