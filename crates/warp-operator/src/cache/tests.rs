use k8s_openapi::api::core::v1::Node;
use kube::core::ObjectMeta;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("small number")
}

fn node(name: &str, version: u64, owner: &str) -> Node {
    Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            resource_version: Some(version.to_string()),
            labels: Some(BTreeMap::from([("owner".to_owned(), owner.to_owned())])),
            ..Default::default()
        },
        ..Default::default()
    }
}

fn cache() -> Cache<Node> {
    Cache::new(Shape {
        keep: |node| node.name_any() != "ignored",
        trim: |_| {},
        owner: |node| node.labels().get("owner").cloned(),
    })
}

fn listed(nodes: &[Node]) -> Cache<Node> {
    let cache = cache();
    cache.step(Step::Listing);
    for node in nodes {
        cache.step(Step::Listed(node.clone()));
    }
    assert!(!cache.synced());
    cache.step(Step::ListDone);
    cache
}

fn owner_of(cache: &Cache<Node>, name: &str) -> Option<String> {
    cache
        .get(&Key::new("", name))
        .and_then(|node| node.labels().get("owner").cloned())
}

#[test]
fn nothing_is_shown_before_a_list_is_complete() {
    let cache = cache();
    cache.step(Step::Listing);
    cache.step(Step::Listed(node("a", 1, "x")));
    assert_eq!(cache.all().len(), 0);
    cache.step(Step::ListDone);
    assert_eq!(cache.all().len(), 1);
    assert!(cache.synced());
}

#[test]
fn the_index_follows_changes_and_deletions() {
    let cache = listed(&[
        node("a", 1, "x"),
        node("b", 2, "x"),
        node("ignored", 3, "x"),
    ]);
    assert_eq!(cache.owned_by("x").len(), 2);
    cache.step(Step::Applied(node("a", 4, "y")));
    assert_eq!(
        (cache.owned_by("x").len(), cache.owned_by("y").len()),
        (1, 1)
    );
    cache.step(Step::Deleted(Key::new("", "a"), 5));
    assert_eq!(cache.owned_by("y").len(), 0);
}

#[test]
fn an_own_write_is_seen_at_once_and_not_undone_by_older_news() {
    let cache = listed(&[node("a", 1, "old")]);
    cache.note(node("a", 5, "own"), at(0));
    assert_eq!(owner_of(&cache, "a").as_deref(), Some("own"));
    assert!(
        cache
            .step(Step::Applied(node("a", 3, "late news")))
            .is_empty()
    );
    assert_eq!(owner_of(&cache, "a").as_deref(), Some("own"));
    cache.step(Step::Applied(node("a", 6, "newer")));
    assert_eq!(owner_of(&cache, "a").as_deref(), Some("newer"));
}

#[test]
fn an_own_write_the_watch_has_passed_is_not_resurrected() {
    let cache = listed(&[node("a", 1, "x")]);
    cache.step(Step::Applied(node("b", 7, "x")));
    cache.step(Step::Deleted(Key::new("", "b"), 8));
    // The answer to the request that made `b` arrives after the watch has shown its end.
    cache.note(node("b", 7, "x"), at(0));
    assert_eq!(cache.get(&Key::new("", "b")), None);
}

#[test]
fn a_relist_drops_what_is_gone_and_keeps_newer_own_writes() {
    let cache = listed(&[node("a", 1, "x"), node("b", 2, "x")]);
    cache.note(node("c", 9, "own"), at(0));
    cache.step(Step::Listing);
    cache.step(Step::Listed(node("a", 4, "x")));
    let changes = cache.step(Step::ListDone);
    let gone: Vec<String> = changes
        .iter()
        .filter(|change| change.after.is_none())
        .filter_map(|change| change.before.as_ref().map(|node| node.name_any()))
        .collect();
    assert_eq!(gone, ["b"]);
    assert!(cache.get(&Key::new("", "c")).is_some());
}

#[test]
fn an_own_write_a_later_list_does_not_show_is_forgotten_in_time() {
    let cache = listed(&[]);
    cache.note(node("a", 5, "own"), at(0));
    // A watch that is silent shows nothing, which proves nothing.
    cache.forget_unconfirmed(at(100 * OWN_SECONDS));
    assert_eq!(cache.all().len(), 1);
    cache.step(Step::Listing);
    cache.step(Step::ListDone);
    cache.forget_unconfirmed(at(OWN_SECONDS - 1));
    assert_eq!(cache.all().len(), 1);
    cache.forget_unconfirmed(at(OWN_SECONDS));
    assert_eq!(cache.all().len(), 0);
}
