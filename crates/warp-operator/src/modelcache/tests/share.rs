//! Caches of the same content: one fetches, the others share.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

fn named(name: &str, created: &str) -> ModelCache {
    let mut cache = hub();
    cache.metadata.name = Some(name.to_owned());
    cache.metadata.uid = Some(format!("uid-{name}"));
    cache.metadata.creation_timestamp = Some(Time(created.parse().expect("a time")));
    cache
}

fn first() -> ModelCache {
    named("first", "2026-11-16T10:00:00Z")
}

fn second() -> ModelCache {
    named("second", "2026-11-16T11:00:00Z")
}

fn claim_uid(name: &str) -> String {
    format!("uid-claim-{name}")
}

fn claim_of(name: &str) -> Arc<k8s_openapi::api::core::v1::PersistentVolumeClaim> {
    Arc::new(typed(json!({"metadata": {
        "name": format!("{name}-model"), "uid": claim_uid(name), "resourceVersion": "1",
        "ownerReferences": owned("ModelCache", &format!("uid-{name}")),
    }})))
}

/// What one cache sees of another, with or without its claim.
fn beside(sibling: &ModelCache, has_claim: bool) -> Seen {
    let mut seen = seen();
    if has_claim {
        let name = sibling.metadata.name.as_deref().unwrap_or_default();
        seen.sibling_claims.push(claim_of(name));
    }
    seen.siblings.push(Arc::new(sibling.clone()));
    seen
}

fn complete_one(name: &str, created: &str) -> ModelCache {
    let mut cache = named(name, created);
    let key = content_key(&cache.spec);
    cache.status = Some(typed(json!({
        "phase": "Ready", "path": "/models/there", "commit": COMMIT, "digest": "sha256:1", "bytes": 99, "files": 3,
        "contentKey": key, "volume": format!("{name}-model"), "volumeUid": claim_uid(name), "observedGeneration": 2,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Fetched", "message": "m",
            "lastTransitionTime": "2026-11-16T11:00:00Z"}],
    })));
    cache
}

fn sharing() -> (ModelCache, Seen) {
    let lender = complete_one("first", "2026-11-16T10:00:00Z");
    let mut cache = second();
    let seen = beside(&lender, true);
    cache.status = Some(status(&plan(&cache, &seen, now())));
    (cache, seen)
}

#[test]
fn the_oldest_of_several_new_caches_fetches_and_the_others_wait_for_it() {
    let (first, second) = (first(), second());
    assert_eq!(
        creates(&plan(&first, &beside(&second, false), now())),
        ["PersistentVolumeClaim"]
    );
    let waits = plan(&second, &beside(&first, false), now());
    assert!(creates(&waits).is_empty(), "{waits:?}");
    let told = status(&waits);
    assert_eq!(ready(&told), ("False", "FetchPending"));
    assert_eq!((told.shared_from, told.path), (None, None));
}

#[test]
fn a_cache_that_has_a_volume_goes_before_an_older_one() {
    let (first, second) = (first(), second());
    let waits = plan(&first, &beside(&second, true), now());
    assert!(creates(&waits).is_empty(), "{waits:?}");
    let mut own = beside(&first, false);
    own.claim = Some(claim_of("second"));
    assert_eq!(creates(&plan(&second, &own, now())), ["Job"]);
}

#[test]
fn a_complete_model_is_shared_without_a_volume_or_a_fetch_of_its_own() {
    let (cache, seen) = sharing();
    let told = cache.status.clone().expect("a status");
    assert_eq!(told.phase, ModelPhase::Ready);
    assert_eq!(ready(&told), ("True", "Shared"));
    assert_eq!(told.volume.as_deref(), Some("first-model"));
    assert_eq!(told.shared_from.as_deref(), Some("first"));
    assert_eq!(
        (told.path.as_deref(), told.commit.as_deref(), told.bytes),
        (Some("/models/there"), Some(COMMIT), Some(99))
    );
    let rest = plan(&cache, &seen, now());
    assert!(rest.is_idle(), "{rest:?}");
}

#[test]
fn the_progress_and_the_failure_of_the_one_that_fetches_are_told_by_all() {
    let mut lender = first();
    lender.status = Some(typed(json!({
        "phase": "Fetching", "observedGeneration": 2, "jobName": "first-fetch-1",
        "progress": {"files": 1, "filesTotal": 4, "bytes": 50, "bytesTotal": 200, "percent": "25%", "bytesPerSecond": 1},
        "conditions": [{"type": "Ready", "status": "False", "reason": "Fetching", "message": "fetching it",
            "lastTransitionTime": "2026-11-16T11:00:00Z"}],
    })));
    let told = status(&plan(&second(), &beside(&lender, true), now()));
    assert_eq!(
        (told.phase, ready(&told)),
        (ModelPhase::Fetching, ("False", "Fetching"))
    );
    let percent = told.progress.map(|progress| progress.percent);
    assert_eq!(percent.as_deref(), Some("25%"));
    assert_eq!(told.job_name.as_deref(), Some("first-fetch-1"));
    if let Some(status) = &mut lender.status {
        status.phase = ModelPhase::Failed;
        status.conditions[0].reason = "Unauthorized".to_owned();
    }
    let told = status(&plan(&second(), &beside(&lender, true), now()));
    assert_eq!(
        (told.phase, ready(&told)),
        (ModelPhase::Failed, ("False", "Unauthorized"))
    );
    // With more room it may succeed.
    let mut larger = second();
    larger.spec.size = "900Gi".to_owned();
    assert_eq!(
        creates(&plan(&larger, &beside(&lender, true), now())),
        ["PersistentVolumeClaim"]
    );
}

#[test]
fn what_is_fetched_or_kept_otherwise_is_not_shared() {
    let lender = complete_one("first", "2026-11-16T10:00:00Z");
    let seen = beside(&lender, true);
    let mut others = [second(), second(), second(), second()];
    others[0].spec.ignore_patterns = vec!["*.md".to_owned()];
    others[1].spec.storage_class = Some("fast".to_owned());
    others[2].spec.optimize = Some(typed(json!({"image": "quantizer:1"})));
    if let Some(hub) = &mut others[3].spec.source.huggingface {
        hub.token_secret = Some("mine".to_owned());
    }
    for other in others {
        let own = plan(&other, &seen, now());
        assert_eq!(creates(&own), ["PersistentVolumeClaim"], "{:?}", other.spec);
    }
}

#[test]
fn the_one_that_fetched_goes_only_when_nobody_shares_and_says_who_does() {
    let (borrower, _) = sharing();
    let mut lender = complete_one("first", "2026-11-16T10:00:00Z");
    let mut seen = beside(&borrower, false);
    seen.claim = Some(claim_of("first"));
    let told = status(&plan(&lender, &seen, now()));
    assert_eq!(told.shared_by, ["second"]);
    lender.metadata.deletion_timestamp = Some(Time(now()));
    let told = status(&plan(&lender, &seen, now()));
    assert_eq!(ready(&told), ("False", "InUse"));
    assert_eq!(
        told.message.as_deref(),
        Some(
            "it is deleted when ModelCaches second no longer share its files; delete them, or wait"
        )
    );
    seen.siblings.clear();
    let free = plan(&lender, &seen, now());
    assert!(
        free.actions
            .iter()
            .any(|action| matches!(action, Action::Patch { .. }))
    );
}

#[test]
fn one_that_shares_stays_ready_while_the_other_waits_to_go_and_goes_itself_at_once() {
    let (mut cache, _) = sharing();
    let mut lender = complete_one("first", "2026-11-16T10:00:00Z");
    lender.metadata.deletion_timestamp = Some(Time(now()));
    let mut seen = beside(&lender, true);
    assert!(plan(&cache, &seen, now()).is_idle());
    // Pods hold the volume, which is not its own.
    seen.lent_users = vec!["engine".to_owned()];
    let told = status(&plan(&cache, &seen, now()));
    assert_eq!(
        (told.users, told.user_count),
        (vec!["engine".to_owned()], 1)
    );
    cache.metadata.deletion_timestamp = Some(Time(now()));
    let free = plan(&cache, &seen, now());
    assert!(
        free.actions
            .iter()
            .any(|action| matches!(action, Action::Patch { .. }))
    );
}

#[test]
fn another_revision_of_one_that_shares_is_fetched_by_itself_and_the_old_one_stays_meanwhile() {
    let (mut cache, mut seen) = sharing();
    if let Some(hub) = &mut cache.spec.source.huggingface {
        hub.revision = "v2".to_owned();
    }
    let own = plan(&cache, &seen, now());
    assert_eq!(creates(&own), ["PersistentVolumeClaim"]);
    let told = status(&own);
    assert_eq!(told.volume.as_deref(), Some("first-model"));
    assert_eq!(told.path.as_deref(), Some("/models/there"));
    assert_eq!(told.shared_from.as_deref(), Some("first"));
    // Complete, it lies on its own volume.
    seen.claim = Some(claim_of("second"));
    seen.jobs.push(Arc::new(typed(json!({
        "metadata": {"name": job_name(&cache), "uid": "uid-job", "resourceVersion": "1",
            "ownerReferences": owned("ModelCache", "uid-second")},
        "status": complete(),
    }))));
    let seen = with_pod(seen, "uid-job", "Succeeded", Some(&fetched()));
    let told = status(&plan(&cache, &seen, now()));
    assert_eq!(ready(&told), ("True", "Fetched"));
    assert_eq!(told.volume.as_deref(), Some("second-model"));
    assert_eq!(told.shared_from, None);
}

#[test]
fn a_volume_that_is_gone_is_fetched_again_by_whoever_shared_it() {
    let (cache, _) = sharing();
    let alone = plan(&cache, &seen(), now());
    assert_eq!(creates(&alone), ["PersistentVolumeClaim"]);
    let told = status(&alone);
    assert_eq!((told.path, told.shared_from), (None, None));
}
