//! Copies on nodes: the first, the others, those that come later, and those that go.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use warp_api::modelcache::CopyPhase;

use super::*;
use crate::modelcache::objects::nodes::{copy_name, drop_name, node_label, share_name};
use crate::modelcache::observe::FolderMount;

fn kept() -> ModelCache {
    cache(json!({
        "source": {"huggingface": {"repository": "org/tiny"}},
        "nodes": {"selector": {"disk": "fast"}, "path": "/var/lib/warp/models"},
    }))
}

fn node(name: &str, labels: Value) -> Arc<Node> {
    let mut all = json!({"disk": "fast"});
    if let (Some(all), Some(more)) = (all.as_object_mut(), labels.as_object()) {
        all.extend(more.clone());
    }
    Arc::new(typed(json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": all},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })))
}

fn among(nodes: &[&str]) -> Seen {
    let mut seen = seen();
    seen.nodes = Some(nodes.iter().map(|name| node(name, json!({}))).collect());
    seen
}

fn key() -> String {
    content_key(&kept().spec)
}

fn held() -> String {
    node_label("default", &key())
}

/// The Job of a node, with a status and its pod's last words.
fn with_copy(mut seen: Seen, name: &str, status: Value, words: Option<&str>) -> Seen {
    let job = copy_name(&kept(), name, &key());
    let uid = format!("uid-job-{name}");
    seen.jobs.push(Arc::new(typed(json!({
        "metadata": {"name": job, "uid": uid, "resourceVersion": "1", "ownerReferences": owned("ModelCache", "uid-m")},
        "status": status,
    }))));
    let phase = if words.is_some() {
        "Succeeded"
    } else {
        "Running"
    };
    with_pod(seen, &uid, phase, words)
}

/// The Job by which a node lends its copy.
fn with_lender(mut seen: Seen, name: &str, phase: &str) -> Seen {
    let job = share_name(&kept(), name, &key());
    seen.jobs.push(Arc::new(typed(json!({
        "metadata": {"name": job, "uid": "uid-share", "resourceVersion": "1", "creationTimestamp": now().to_string(),
            "ownerReferences": owned("ModelCache", "uid-m")},
    }))));
    seen.fetchers.push(Arc::new(typed(json!({
        "metadata": {"name": "m-share-x", "ownerReferences": owned("Job", "uid-share")},
        "status": {"phase": phase, "podIP": "10.0.0.9"},
    }))));
    seen
}

fn words(job: &Value) -> Vec<String> {
    typed(job["spec"]["template"]["spec"]["containers"][0]["args"].clone())
}

fn jobs(plan: &Plan) -> Vec<Value> {
    let jobs = plan.actions.iter().filter_map(|action| match action {
        Action::Create { kind, object, .. } if kind.kind == "Job" => Some(object.clone()),
        _ => None,
    });
    jobs.collect()
}

/// What labels of nodes are set to.
fn labels(plan: &Plan) -> Vec<(String, Value)> {
    let patches = plan.actions.iter().filter_map(|action| match action {
        Action::Patch {
            kind, key, patch, ..
        } if kind.kind == "Node" => {
            Some((key.name.to_string(), patch["metadata"]["labels"].clone()))
        }
        _ => None,
    });
    patches.collect()
}

fn phases(status: &ModelCacheStatus) -> Vec<(&str, CopyPhase)> {
    let all = status.nodes.iter();
    all.map(|copy| (copy.name.as_str(), copy.phase)).collect()
}

/// A cache of which these nodes have a copy.
fn ready_on(nodes: &[&str]) -> ModelCache {
    let mut cache = kept();
    let copies: Vec<Value> = nodes
        .iter()
        .map(|name| json!({"name": name, "uid": format!("uid-{name}"), "contentKey": key(), "phase": "Ready"}))
        .collect();
    cache.status = Some(typed(json!({
        "phase": "Ready", "path": "/models/there", "commit": COMMIT, "digest": "sha256:1", "contentKey": key(),
        "folder": format!("/var/lib/warp/models/default/{}", key()), "nodeLabel": held(), "nodes": copies,
    })));
    cache
}

#[test]
fn the_first_node_fetches_and_the_others_wait_for_it() {
    let first = plan(&kept(), &among(&["a", "b"]), now());
    let jobs = jobs(&first);
    assert_eq!(jobs.len(), 1, "{first:?}");
    let pod = &jobs[0]["spec"]["template"]["spec"];
    let volume = pod["volumes"]
        .as_array()
        .and_then(|all| all.iter().find(|one| one["name"] == "model"));
    let path = format!("/var/lib/warp/models/default/{}", key());
    assert_eq!(
        volume.map(|one| &one["hostPath"]["path"]),
        Some(&json!(path))
    );
    let terms = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(
        terms["nodeSelectorTerms"][0]["matchFields"][0]["values"],
        json!(["a"])
    );
    let told = status(&first);
    assert_eq!(
        phases(&told),
        [("a", CopyPhase::Pending), ("b", CopyPhase::Pending)]
    );
    assert_eq!(
        told.nodes[1].message.as_deref(),
        Some("waits for the first copy")
    );
    assert_eq!((told.copies.as_deref(), told.volume), (Some("0/2"), None));
}

#[test]
fn a_copy_labels_its_node_and_the_others_fetch_the_same_commit() {
    let seen = with_copy(among(&["a", "b"]), "a", complete(), Some(&fetched()));
    let mut cache = kept();
    let next = plan(&cache, &seen, now());
    let told = status(&next);
    assert_eq!(
        (told.phase, ready(&told)),
        (ModelPhase::Ready, ("True", "Fetched"))
    );
    assert_eq!(told.copies.as_deref(), Some("1/2"));
    assert_eq!(told.node_label, Some(held()));
    assert_eq!(labels(&next), [("a".to_owned(), json!({held(): "ready"}))]);
    // The first lends its copy, and the others take theirs from there.
    let lending = jobs(&next);
    assert_eq!(lending.len(), 1);
    assert_eq!(words(&lending[0])[..2], ["model", "share"]);
    let waits = told.nodes[1].message.as_deref();
    assert_eq!(waits, Some("waits for a node that lends its copy"));
    let lent = with_lender(seen.clone(), "a", "Running");
    let copying = jobs(&plan(&cache, &lent, now()));
    assert_eq!(copying.len(), 1);
    let asked = words(&copying[0]);
    assert_eq!(
        asked.last().map(String::as_str),
        Some(&*format!("hf://org/tiny@{COMMIT}"))
    );
    let peer = asked
        .iter()
        .find(|word| word.starts_with("--peer=http://10.0.0.9:"));
    assert!(
        peer.is_some_and(|peer| peer.ends_with("/uid-m")),
        "{asked:?}"
    );
    // One that does not start is not waited for for long.
    let stuck = with_lender(seen.clone(), "a", "Pending");
    assert!(jobs(&plan(&cache, &stuck, now())).is_empty());
    let later = now() + jiff::SignedDuration::from_mins(2);
    let alone = jobs(&plan(&cache, &stuck, later));
    assert!(
        !words(&alone[0])
            .iter()
            .any(|word| word.starts_with("--peer"))
    );
    // Recorded, its Job goes; labelled, nothing more is done for it.
    cache.status = Some(told);
    let seen = with_lender(seen, "a", "Running");
    let mut later = with_copy(seen, "b", json!({"active": 1}), None);
    later.nodes = Some(vec![
        node("a", json!({held(): "ready"})),
        node("b", json!({})),
    ]);
    let after = plan(&cache, &later, now());
    assert_eq!((deletes(&after), labels(&after).len()), (1, 0), "{after:?}");
    assert_eq!(phases(&status(&after))[1], ("b", CopyPhase::Fetching));
}

#[test]
fn what_is_not_what_the_others_have_is_no_copy() {
    let cache = ready_on(&["a"]);
    let other = fetched().replace("sha256:1", "sha256:2");
    let mut seen = with_copy(among(&["a", "b"]), "b", complete(), Some(&other));
    seen.nodes = Some(vec![
        node("a", json!({held(): "ready"})),
        node("b", json!({})),
    ]);
    let after = plan(&cache, &seen, now());
    assert!(labels(&after).is_empty());
    let told = status(&after);
    assert_eq!(told.nodes[1].phase, CopyPhase::Failed);
    assert_eq!(ready(&told), ("True", "Fetched"));
    let message = &told.conditions[0].message;
    assert!(
        message.contains("on 1 of 2 nodes; it failed on b"),
        "{message}"
    );
}

#[test]
fn nodes_that_come_later_get_it_and_few_at_once() {
    let cache = ready_on(&["a"]);
    let all = with_lender(among(&["a", "b", "c", "d", "e", "f", "g"]), "a", "Running");
    let next = plan(&cache, &all, now());
    assert_eq!(jobs(&next).len(), 4);
    let told = status(&next);
    assert_eq!(told.nodes[6].message.as_deref(), Some("waits for its turn"));
    // Another node of the same name has another disk.
    let mut replaced = among(&["b"]);
    let mut again = (*node("a", json!({}))).clone();
    again.metadata.uid = Some("uid-new".to_owned());
    replaced
        .nodes
        .get_or_insert_default()
        .insert(0, Arc::new(again));
    let lost = plan(&cache, &replaced, now());
    let told = status(&lost);
    assert_eq!((told.path.as_deref(), jobs(&lost).len()), (None, 1));
}

#[test]
fn a_node_without_the_labels_loses_its_copy_when_nobody_uses_it() {
    let cache = ready_on(&["a", "b"]);
    let mut seen = among(&["a"]);
    let mut left = (*node("b", json!({held(): "ready"}))).clone();
    left.metadata.labels.get_or_insert_default().remove("disk");
    seen.nodes.get_or_insert_default().push(Arc::new(left));
    seen.mounts = vec![FolderMount {
        pod: "engine".to_owned(),
        node: "b".to_owned(),
        folder: format!("/var/lib/warp/models/default/{}", key()),
    }];
    let kept_for = status(&plan(&cache, &seen, now()));
    assert_eq!(
        kept_for.nodes[1].message.as_deref(),
        Some("it goes when pods engine are gone")
    );
    assert_eq!(kept_for.users, ["engine"]);
    seen.mounts.clear();
    let goes = plan(&cache, &seen, now());
    assert!(
        labels(&goes).contains(&("b".to_owned(), json!({held(): null}))),
        "{goes:?}"
    );
    let jobs = jobs(&goes);
    assert_eq!(jobs.len(), 1);
    let words = &jobs[0]["spec"]["template"]["spec"]["containers"][0]["args"];
    assert_eq!(*words, json!(["model", "drop", "/models"]));
    assert_eq!(phases(&status(&goes))[1], ("b", CopyPhase::Removing));
}

#[test]
fn each_copy_tells_who_uses_it_and_when_it_was_last_used() {
    let mut cache = ready_on(&["a", "b"]);
    let mut seen = among(&["a", "b"]);
    let mount = |node: &str| FolderMount {
        pod: "engine".to_owned(),
        node: node.to_owned(),
        folder: format!("/var/lib/warp/models/default/{}", key()),
    };
    // One that waits for its node mounts nothing yet.
    seen.mounts = vec![mount("")];
    assert_eq!(status(&plan(&cache, &seen, now())).last_used, None);
    seen.mounts = vec![mount("b")];
    let told = status(&plan(&cache, &seen, now()));
    let uses = told.nodes.iter();
    let uses: Vec<_> = uses
        .map(|copy| (copy.user_count, copy.last_used.clone()))
        .collect();
    assert_eq!(uses, [(0, None), (1, Some(Time(now())))]);
    assert_eq!(told.last_used, Some(Time(now())));
    cache.status = Some(told);
    seen.mounts.clear();
    let ended = now() + jiff::SignedDuration::from_mins(5);
    seen.past_mounts = vec![(mount("b"), ended)];
    let later = now() + jiff::SignedDuration::from_mins(9);
    let told = status(&plan(&cache, &seen, later));
    assert_eq!(told.nodes[1].last_used, Some(Time(ended)));
    assert_eq!(
        (told.nodes[1].user_count, told.last_used),
        (0, Some(Time(ended)))
    );
}

#[test]
fn a_cache_goes_with_its_last_copy() {
    let mut cache = ready_on(&["a"]);
    cache.metadata.deletion_timestamp = Some(Time(now()));
    let mut seen = among(&["a"]);
    seen.services = vec!["chat".to_owned()];
    let held_by = plan(&cache, &seen, now());
    assert_eq!(ready(&status(&held_by)), ("False", "InUse"));
    assert!(jobs(&held_by).is_empty());
    seen.services.clear();
    let goes = plan(&cache, &seen, now());
    assert_eq!(ready(&status(&goes)), ("False", "Removing"));
    assert_eq!(jobs(&goes).len(), 1);
    seen.jobs.push(Arc::new(typed(json!({
        "metadata": {"name": drop_name(&cache, "a", &key()), "uid": "uid-drop", "resourceVersion": "1",
            "ownerReferences": owned("ModelCache", "uid-m")},
        "status": complete(),
    }))));
    let gone = plan(&cache, &seen, now());
    let lets_go =
        |action: &Action| matches!(action, Action::Patch { kind, .. } if kind.kind == "ModelCache");
    assert!(gone.actions.iter().any(lets_go), "{gone:?}");
}

#[test]
fn caches_of_the_same_content_keep_each_others_copies() {
    let mut cache = ready_on(&["a"]);
    cache.metadata.deletion_timestamp = Some(Time(now()));
    let mut other = ready_on(&["a"]);
    other.metadata.name = Some("other".to_owned());
    let mut seen = among(&["a"]);
    seen.siblings.push(Arc::new(other));
    let gone = plan(&cache, &seen, now());
    assert!(
        jobs(&gone).is_empty() && labels(&gone).is_empty(),
        "{gone:?}"
    );
}

#[test]
fn what_cannot_be_is_said() {
    let none = status(&plan(&kept(), &seen(), now()));
    assert_eq!(ready(&none), ("False", "NodesNotAllowed"));
    let mut nobody = seen();
    nobody.nodes = Some(Vec::new());
    let told = status(&plan(&kept(), &nobody, now()));
    assert_eq!(ready(&told), ("False", "NoNodes"));
    assert!(
        told.message
            .is_some_and(|words| words.contains("disk=fast"))
    );
    let mut imageless = among(&["a"]);
    imageless.fetcher.image = None;
    let told = status(&plan(&kept(), &imageless, now()));
    assert_eq!(ready(&told), ("False", "NoFetchImage"));
    // A label without a copy leads pods to nothing.
    imageless.nodes = Some(vec![node("a", json!({held(): "ready"}))]);
    let cleaned = plan(&kept(), &imageless, now());
    assert_eq!(labels(&cleaned), [("a".to_owned(), json!({held(): null}))]);
}
