//! One fetch for all caches of a namespace that name the same content: who fetches, who shares, and what is told about
//! it. Pure.
//!
//! Content is shared where source, revision, patterns, credentials and kind of volume are the same. Other namespaces
//! cannot mount a claim, and must not read what was fetched with a Secret of this one.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Resource, ResourceExt};
use serde_json::json;
use warp_api::modelcache::{CopyPhase, ModelPhase, NodeCopy};
use warp_api::{ModelCache, ModelCacheStatus, condition, reason};
use warp_runtime::cache::{Cache, Key};
use warp_runtime::plan::is_controlled_by;

use super::objects::content_key;
use super::observe::Seen;
use super::plan::{Verdict, own_claim};

/// How caches are found: by what they hold, and by whose volume they share.
pub(super) const INDEXES: &[fn(&ModelCache) -> Option<String>] = &[
    |cache| Some(held(cache)),
    |cache| {
        let lender = cache.status.as_ref()?.shared_from.as_deref()?;
        Some(Key::new(&cache.namespace().unwrap_or_default(), lender).to_string())
    },
];
const BY_CONTENT: usize = 0;
const BY_LENDER: usize = 1;

/// What a cache holds and how, in its namespace.
fn held(cache: &ModelCache) -> String {
    let spec = &cache.spec;
    json!([
        cache.namespace(),
        content_key(spec),
        spec.storage_class,
        spec.access_mode.as_str(),
        spec.nodes.as_ref().map(|copies| &copies.path),
    ])
    .to_string()
}

/// The caches that share the volume of one.
pub(super) fn sharers(lender: &Key, caches: &Cache<ModelCache>) -> Vec<Key> {
    let found = caches.by(BY_LENDER, &lender.to_string());
    found.iter().map(|one| Key::of(&**one)).collect()
}

/// The other caches that have to do with one: of the same content, on the same volume.
pub(super) fn siblings(cache: &ModelCache, caches: &Cache<ModelCache>) -> Vec<Arc<ModelCache>> {
    let own = Key::of(cache);
    let mut found = caches.by(BY_CONTENT, &held(cache));
    found.extend(caches.by(BY_LENDER, &own.to_string()));
    let lender = cache
        .status
        .as_ref()
        .and_then(|status| status.shared_from.as_deref());
    let lender = lender.map(|name| Key::new(&cache.namespace().unwrap_or_default(), name));
    found.extend(lender.and_then(|key| caches.get(&key)));
    found.retain(|one| Key::of(&**one) != own);
    found.sort_by_key(|one| one.name_any());
    found.dedup_by_key(|one| one.name_any());
    found
}

/// The other caches, of any namespace, that keep copies in the same folder of nodes.
pub(super) fn in_same_folder(
    cache: &ModelCache,
    caches: &Cache<ModelCache>,
) -> Vec<Arc<ModelCache>> {
    let path = |one: &ModelCache| {
        let copies = one.spec.nodes.as_ref();
        copies.map(|copies| copies.path.trim_end_matches('/').to_owned())
    };
    let Some(folder) = path(cache) else {
        return Vec::new();
    };
    let own = Key::of(cache);
    let mut found = caches.all();
    found.retain(|one| Key::of(&**one) != own && path(one).as_ref() == Some(&folder));
    found
}

/// Who is to be looked at when a cache changes, besides itself: its siblings, and where room on nodes is limited everybody
/// who shares that.
pub(super) fn concerned(cache: &ModelCache, caches: &Cache<ModelCache>) -> Vec<Key> {
    let siblings = siblings(cache, caches);
    let mut keys: Vec<Key> = siblings.iter().map(|one| Key::of(&**one)).collect();
    let around = in_same_folder(cache, caches);
    // Who waits for room may have waited for a limit that is gone.
    let cramped = |one: &ModelCache| {
        let copies = one.spec.nodes.as_ref();
        let waits = |copy: &NodeCopy| matches!(copy.phase, CopyPhase::Pending | CopyPhase::Evicted);
        let status = one.status.as_ref();
        copies.is_some_and(|copies| copies.quota.is_some())
            || status.is_some_and(|status| status.nodes.iter().any(waits))
    };
    if cramped(cache) || around.iter().any(|one| cramped(one)) {
        keys.extend(around.iter().map(|one| Key::of(&**one)));
    }
    keys
}

/// A sibling's own claim.
fn claim_of<'a>(sibling: &ModelCache, seen: &'a Seen) -> Option<&'a PersistentVolumeClaim> {
    let name = ModelCache::claim_name(&sibling.name_any());
    let uid = sibling.uid().unwrap_or_default();
    let claims = seen.sibling_claims.iter().map(|claim| &**claim);
    claims
        .filter(|claim| is_controlled_by(*claim, &uid))
        .find(|claim| claim.name_any() == name)
}

/// The claim a cache shared when it was last looked at.
pub(super) fn lent_claim<'a>(
    before: &ModelCacheStatus,
    seen: &'a Seen,
) -> Option<&'a PersistentVolumeClaim> {
    let name = before.shared_from.as_deref()?;
    let lender = seen.siblings.iter().find(|one| one.name_any() == name)?;
    claim_of(lender, seen)
}

/// Names of the caches whose content lies on the volume of this one.
pub(super) fn shared_by(cache: &ModelCache, seen: &Seen) -> Vec<String> {
    let own = cache.name_any();
    let sharing = seen.siblings.iter().filter(|one| {
        let status = one.status.as_ref();
        status.and_then(|status| status.shared_from.as_ref()) == Some(&own)
    });
    sharing.map(|one| one.name_any()).collect()
}

/// The cache that fetches what this one names; none where this one does it itself. All caches of one content agree: one
/// that has a volume comes first, then the oldest.
pub(super) fn lender<'a>(cache: &ModelCache, seen: &'a Seen) -> Option<&'a ModelCache> {
    // What is made of a model needs room on a volume of its own.
    if cache.spec.optimize.is_some() || own_claim(cache, seen).is_some() {
        return None;
    }
    let alike = held(cache);
    let rank = |one: &ModelCache, has_volume: bool| {
        (!has_volume, one.creation_timestamp(), one.name_any())
    };
    let candidates = seen.siblings.iter().map(|one| &**one).filter(|one| {
        let shares = one.status.as_ref();
        let shares = shares.is_some_and(|status| status.shared_from.is_some());
        let going = one.meta().deletion_timestamp.is_some();
        // Room may be what it failed for.
        let failed = one.status.as_ref();
        let failed = failed.is_some_and(|status| status.phase == ModelPhase::Failed);
        let cramped = failed && one.spec.size != cache.spec.size;
        let lends = claim_of(one, seen).is_some() || !shares;
        !going && !cramped && lends && held(one) == alike
    });
    let best = candidates
        .map(|one| (rank(one, claim_of(one, seen).is_some()), one))
        .min_by(|a, b| a.0.cmp(&b.0))?;
    (best.0 < rank(cache, false)).then_some(best.1)
}

/// How a cache is that leaves the fetch to another.
pub(super) fn follow(
    cache: &ModelCache,
    lender: &ModelCache,
    seen: &Seen,
    after: &mut ModelCacheStatus,
) -> Option<Verdict> {
    let name = lender.name_any();
    let theirs = lender.status.clone().unwrap_or_default();
    let claim = claim_of(lender, seen);
    let volume = claim.and_then(ResourceExt::uid);
    let key = content_key(&cache.spec);
    let there = volume.is_some() && theirs.volume_uid == volume && theirs.shared_from.is_none();
    if there && theirs.content_key.as_ref() == Some(&key) {
        after.path = theirs.path;
        after.commit = theirs.commit;
        after.digest = theirs.digest;
        (after.bytes, after.files) = (theirs.bytes, theirs.files);
        after.verified_files = theirs.verified_files;
        after.fetched_at = theirs.fetched_at;
        after.content_key = Some(key);
        after.volume = Some(ModelCache::claim_name(&name));
        (after.volume_uid, after.shared_from) = (volume, Some(name));
        after.optimized = None;
        return None;
    }
    let current = theirs.observed_generation == lender.meta().generation;
    let told = condition::find(&theirs.conditions, condition::READY).filter(|_| current);
    let Some(told) = told else {
        let message = format!("ModelCache {name} is about to fetch the same content, for both");
        return Some(Verdict::pending(reason::FETCH_PENDING, message));
    };
    after.job_name = theirs.job_name;
    after.deadline = theirs.deadline;
    after.progress = theirs.progress;
    let phase = match theirs.phase {
        // Another content than the one that is wanted, by what was seen last.
        ModelPhase::Ready | ModelPhase::Optimizing => ModelPhase::Pending,
        phase => phase,
    };
    let message = format!(
        "ModelCache {name} fetches the same content, for both: {}",
        told.message
    );
    let why = match phase {
        ModelPhase::Pending if told.status == "True" => reason::FETCH_PENDING,
        _ => told.reason.as_str(),
    };
    Some(Verdict::new(phase, why, message))
}
