//! Room on nodes: who comes, who goes for it, who waits and for what.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use warp_api::modelcache::{CopyPhase, NodeCopy};
use warp_runtime::plan::Premise;

use super::*;
use crate::modelcache::objects::nodes::{copy_name, drop_name, node_label};
use crate::modelcache::observe::{FolderMount, Neighbour};

/// A cache on node `a`, of a model of its own; quotas are 100 bytes.
fn named(name: &str, more: Value) -> ModelCache {
    let mut nodes = json!({"path": "/m", "quota": "100"});
    if let (Some(nodes), Some(more)) = (nodes.as_object_mut(), more.as_object()) {
        nodes.extend(more.clone());
    }
    let source = json!({"huggingface": {"repository": format!("org/{name}")}});
    let mut cache = cache(json!({"source": source, "nodes": nodes}));
    cache.metadata.name = Some(name.to_owned());
    cache.metadata.uid = Some(format!("uid-{name}"));
    cache.metadata.creation_timestamp = Some(Time(now()));
    cache
}

fn key(cache: &ModelCache) -> String {
    content_key(&cache.spec)
}

/// The cache, with a complete copy of so many bytes on node `a`.
fn with_bytes(mut cache: ModelCache, bytes: i64) -> ModelCache {
    let key = key(&cache);
    cache.status = Some(typed(json!({
        "phase": "Ready", "path": "/models/there", "commit": COMMIT, "digest": "sha256:1", "contentKey": key,
        "bytes": bytes, "folder": format!("/m/default/{key}"), "nodeLabel": node_label("default", &key),
        "nodes": [{"name": "a", "uid": "uid-a", "contentKey": key, "phase": "Ready", "bytes": bytes,
            "fetchedAt": "2026-11-16T10:00:00Z"}],
    })));
    cache
}

/// The cache, which knows how much it is and waits for room on node `a`.
fn of_size(mut cache: ModelCache, bytes: i64) -> ModelCache {
    cache.status = Some(typed(json!({
        "nodes": [{"name": "a", "uid": "uid-a", "contentKey": key(&cache), "phase": "Pending", "bytes": bytes}],
    })));
    cache
}

fn change(mut cache: ModelCache, change: impl FnOnce(&mut NodeCopy)) -> ModelCache {
    if let Some(status) = &mut cache.status {
        change(&mut status.nodes[0]);
    }
    cache
}

fn node(labels: Value) -> Arc<Node> {
    Arc::new(typed(json!({
        "metadata": {"name": "a", "uid": "uid-a", "labels": labels},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })))
}

fn beside(others: &[&ModelCache]) -> Seen {
    let mut seen = seen();
    seen.nodes = Some(vec![node(json!({}))]);
    let known = others.iter().map(|cache| Neighbour {
        cache: Arc::new((*cache).clone()),
        needed: false,
    });
    seen.neighbours = known.collect();
    seen
}

fn made(plan: &Plan) -> Vec<Value> {
    let jobs = plan.actions.iter().filter_map(|action| match action {
        Action::Create { kind, object, .. } if kind.kind == "Job" => Some(object.clone()),
        _ => None,
    });
    jobs.collect()
}

fn arguments(plan: &Plan) -> Vec<String> {
    let jobs = made(plan);
    assert_eq!(jobs.len(), 1, "{plan:?}");
    typed(jobs[0]["spec"]["template"]["spec"]["containers"][0]["args"].clone())
}

/// The cache as the plan leaves it.
fn next(cache: &ModelCache, plan: &Plan) -> ModelCache {
    let mut next = cache.clone();
    next.status = Some(status(plan));
    next
}

fn copy(plan: &Plan) -> NodeCopy {
    status(plan).nodes[0].clone()
}

fn told(copy: &NodeCopy) -> &str {
    copy.message.as_deref().unwrap_or_default()
}

#[test]
fn a_copy_of_unknown_size_may_have_what_is_free_and_says_what_it_needs() {
    let (old, new) = (
        with_bytes(named("old", json!({})), 60),
        named("new", json!({})),
    );
    let seen = beside(&[&old]);
    let begun = plan(&new, &seen, now());
    assert!(arguments(&begun).contains(&"--max-size=40".to_owned()));
    assert_eq!((copy(&begun).room, copy(&begun).bytes), (Some(40), None));
    // Nobody else may have come meanwhile.
    assert!(matches!(&begun.premises[..], [Premise::Unchanged(seen)] if seen.uid == "uid-old"));
    let new = next(&new, &begun);
    // What it needs, it says; then the other one is asked to go.
    let mut failed = seen.clone();
    failed.jobs.push(Arc::new(typed(json!({
        "metadata": {"name": copy_name(&new, "a", &key(&new)), "uid": "uid-job", "resourceVersion": "1",
            "ownerReferences": owned("ModelCache", "uid-new")},
        "status": {"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}]},
    }))));
    let words = json!({"failed": {"reason": "TooLarge", "message": "m", "bytes": 50}}).to_string();
    let failed = with_pod(failed, "uid-job", "Failed", Some(&words));
    let measured = plan(&new, &failed, now());
    assert_eq!(
        (copy(&measured).room, copy(&measured).bytes),
        (None, Some(50))
    );
    assert_eq!(copy(&measured).phase, CopyPhase::Pending);
    let new = next(&new, &measured);
    let waits = plan(&new, &seen, now());
    assert!(made(&waits).is_empty());
    let words = "room is being made: it comes when default/old is removed";
    assert_eq!(told(&copy(&waits)), words);
    let goes = plan(&old, &beside(&[&next(&new, &waits)]), now());
    assert_eq!(copy(&goes).phase, CopyPhase::Removing);
    assert_eq!(
        told(&copy(&goes)),
        "it made room for ModelCache default/new"
    );
}

#[test]
fn the_node_stops_offering_a_copy_before_it_is_removed_and_somebody_who_came_keeps_it() {
    let old = with_bytes(named("old", json!({})), 60);
    let new = of_size(named("new", json!({})), 50);
    let mut seen = beside(&[&new]);
    let label = node_label("default", &key(&old));
    seen.nodes = Some(vec![node(json!({&label: "ready"}))]);
    let first = plan(&old, &seen, now());
    assert!(made(&first).is_empty(), "{first:?}");
    assert!(first.actions.iter().any(|action| matches!(action,
        Action::Patch { kind, patch, .. } if kind.kind == "Node" && patch["metadata"]["labels"][&label].is_null())));
    let going = next(&old, &first);
    // The model is known still: a service that sleeps keeps it.
    assert_eq!(status(&first).path.as_deref(), Some("/models/there"));
    assert!(made(&plan(&going, &seen, now())).is_empty());
    seen.nodes = Some(vec![node(json!({}))]);
    assert_eq!(
        arguments(&plan(&going, &seen, now()))[..2],
        ["model", "drop"]
    );
    let mut used = seen.clone();
    used.mounts = vec![FolderMount {
        pod: "engine".to_owned(),
        node: "a".to_owned(),
        folder: format!("/m/default/{}", key(&old)),
    }];
    let stays = plan(&going, &used, now());
    assert_eq!(
        (copy(&stays).phase, copy(&stays).user_count),
        (CopyPhase::Ready, 1)
    );
    assert!(made(&stays).is_empty());
    seen.jobs.push(Arc::new(typed(json!({
        "metadata": {"name": drop_name(&old, "a", &key(&old)), "uid": "uid-drop", "resourceVersion": "1",
            "ownerReferences": owned("ModelCache", "uid-old")},
        "status": complete(),
    }))));
    let gone = plan(&going, &seen, now());
    assert_eq!(copy(&gone).phase, CopyPhase::Evicted);
    let after = status(&gone);
    assert_eq!(
        (after.copies.as_deref(), after.phase),
        (Some("0/1"), ModelPhase::Pending)
    );
    assert_eq!(after.conditions[0].reason, "Evicted");
    assert_eq!(
        told(&after.nodes[0]),
        "it made room for ModelCache default/new"
    );
}

#[test]
fn what_made_room_comes_back_into_free_room_or_when_something_waits_for_it() {
    let out = with_bytes(named("out", json!({})), 60);
    let out = change(out, |copy| copy.phase = CopyPhase::Evicted);
    let there = with_bytes(named("there", json!({})), 50);
    let mut seen = beside(&[&there]);
    let stays_out = plan(&out, &seen, now());
    assert!(made(&stays_out).is_empty());
    assert_eq!(copy(&stays_out).phase, CopyPhase::Evicted);
    assert!(
        plan(&next(&out, &stays_out), &seen, now())
            .actions
            .is_empty()
    );
    seen.waiting = vec!["pod engine".to_owned()];
    let needed = plan(&out, &seen, now());
    assert_eq!(copy(&needed).phase, CopyPhase::Pending);
    let mut around = beside(&[&next(&out, &needed)]);
    around.neighbours[0].needed = true;
    let goes = plan(&there, &around, now());
    assert_eq!(copy(&goes).phase, CopyPhase::Removing);
    // The same model as before, by its commit.
    let back = plan(
        &out,
        &beside(&[&with_bytes(named("there", json!({})), 40)]),
        now(),
    );
    let words = arguments(&back);
    assert!(words.contains(&"--max-size=60".to_owned()), "{words:?}");
    assert!(words.iter().any(|word| word.ends_with(COMMIT)), "{words:?}");
}

#[test]
fn a_copy_that_finds_no_room_says_what_holds_it_and_what_would_free_it() {
    let new = of_size(named("new", json!({})), 50);
    let used = change(with_bytes(named("used", json!({})), 30), |copy| {
        copy.user_count = 1;
    });
    let pinned = with_bytes(named("pinned", json!({"pinned": true})), 20);
    let high = with_bytes(named("high", json!({"priority": 5})), 25);
    let waits = plan(&new, &beside(&[&high, &pinned, &used]), now());
    assert!(made(&waits).is_empty());
    let after = status(&waits);
    assert_eq!(after.conditions[0].reason, "WaitingForRoom");
    let words = told(&after.nodes[0]);
    for part in [
        "it needs 50 bytes, and of the 100 that /m may have 25 are free",
        "ModelCache default/used (30 bytes, in use)",
        "ModelCache default/high (25 bytes, of a higher priority)",
        "ModelCache default/pinned (20 bytes, pinned)",
        "spec.nodes.quota of ModelCache default/high",
    ] {
        assert!(words.contains(part), "{words}");
    }
    // None of them goes.
    for one in [&used, &pinned, &high] {
        let mut around: Vec<&ModelCache> = vec![&new, &used, &pinned, &high];
        around.retain(|other| other.metadata.name != one.metadata.name);
        let mut seen = beside(&around);
        if one.metadata.name == used.metadata.name {
            seen.mounts = vec![FolderMount {
                pod: "engine".to_owned(),
                node: "a".to_owned(),
                folder: format!("/m/default/{}", key(one)),
            }];
        }
        assert_eq!(copy(&plan(one, &seen, now())).phase, CopyPhase::Ready);
    }
    let never = plan(&of_size(named("new", json!({})), 101), &beside(&[]), now());
    assert_eq!(status(&never).conditions[0].reason, "QuotaTooSmall");
}

#[test]
fn the_oldest_quota_of_a_folder_holds_and_another_is_refused() {
    let mut older = named("older", json!({}));
    older.metadata.creation_timestamp = Some(Time(now() - jiff::SignedDuration::from_hours(1)));
    let other = named("other", json!({"quota": "200"}));
    let refused = plan(&other, &beside(&[&older]), now());
    assert!(made(&refused).is_empty());
    let after = status(&refused);
    assert_eq!(after.conditions[0].reason, "QuotaContradicts");
    assert!(
        after.conditions[0]
            .message
            .contains("ModelCache default/older"),
        "{after:?}"
    );
    // The same in other words is the same.
    let same = named("other", json!({"quota": "1Ki"}));
    older.spec.nodes.as_mut().expect("copies").quota = Some("1024".to_owned());
    assert_eq!(made(&plan(&same, &beside(&[&older]), now())).len(), 1);
    // What is there stays, and says so.
    let kept = with_bytes(other, 10);
    let after = status(&plan(&kept, &beside(&[&older]), now()));
    assert_eq!(after.conditions[0].status, "True");
    assert!(
        after.conditions[0].message.contains("gives /m 1024"),
        "{after:?}"
    );
}

#[test]
fn of_caches_that_share_a_copy_one_removes_it_when_the_others_have_let_go() {
    let first = with_bytes(named("a-first", json!({})), 60);
    let mut second = with_bytes(named("a-first", json!({})), 60);
    second.metadata.name = Some("b-second".to_owned());
    second.metadata.uid = Some("uid-second".to_owned());
    let new = of_size(named("new", json!({})), 50);
    let around = |others: &[&ModelCache], sibling: &ModelCache| {
        let mut seen = beside(others);
        seen.siblings = vec![Arc::new(sibling.clone())];
        seen
    };
    let lets_go = plan(&second, &around(&[&first, &new], &first), now());
    assert_eq!(copy(&lets_go).phase, CopyPhase::Evicted);
    let going = plan(&first, &around(&[&second, &new], &second), now());
    assert_eq!(copy(&going).phase, CopyPhase::Removing);
    let first = next(&first, &going);
    let waits = plan(&first, &around(&[&second, &new], &second), now());
    assert!(made(&waits).is_empty(), "{waits:?}");
    let second = next(&second, &lets_go);
    let removes = plan(&first, &around(&[&second, &new], &second), now());
    assert_eq!(arguments(&removes)[..2], ["model", "drop"]);
    // Pinned by one, it stays for both.
    let mut pinned = with_bytes(named("a-first", json!({"pinned": true})), 60);
    pinned.metadata.name = Some("b-second".to_owned());
    let first = with_bytes(named("a-first", json!({})), 60);
    let stays = plan(&first, &around(&[&pinned, &new], &pinned), now());
    assert_eq!(copy(&stays).phase, CopyPhase::Ready);
}
