use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;
use warp_runtime::plan::{Action, Plan, Propagation};

fn kind() -> Arc<Kind> {
    Arc::new(Kind {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        plural: "configmaps".to_owned(),
    })
}

fn object(name: &str, owners: &[(&str, bool)]) -> ObjectMeta {
    let owners = owners.iter().map(|(owner, blocks)| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        name: (*owner).to_owned(),
        uid: format!("uid-{owner}"),
        controller: None,
        block_owner_deletion: Some(*blocks),
    });
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some("ns".to_owned()),
        resource_version: Some("1".to_owned()),
        owner_references: Some(owners.collect()),
        ..ObjectMeta::default()
    }
}

fn deleting(mut meta: ObjectMeta, finalizer: &str) -> ObjectMeta {
    meta.deletion_timestamp = Some(Timestamp::UNIX_EPOCH.into());
    meta.finalizers = Some(vec![finalizer.to_owned()]);
    meta
}

fn put(graph: &mut Graph, meta: &ObjectMeta) -> Vec<String> {
    graph.put(
        &format!("uid-{}", meta.name.as_ref().unwrap()),
        Node::new(kind(), meta),
    )
}

/// Plans with owners the graph does not know taken as absent.
fn plan(graph: &Graph, name: &str) -> (Plan, Vec<String>) {
    let uid = format!("uid-{name}");
    let node = graph.node(&uid).unwrap().clone();
    let owners: Vec<_> = node
        .owners
        .iter()
        .map(|owner| graph.owner(&node, owner).unwrap_or(Owner::Absent))
        .collect();
    graph.plan(&uid, &owners)
}

#[test]
fn an_owner_seen_to_go_need_not_be_asked_for() {
    let mut graph = Graph::default();
    put(&mut graph, &object("a", &[]));
    put(&mut graph, &object("child", &[("a", false)]));
    let mut renamed = object("stray", &[("a", false)]);
    renamed.owner_references.as_mut().unwrap()[0].name = "b".to_owned();
    put(&mut graph, &renamed);
    graph.remove("uid-a");
    let known = |name: &str| {
        let node = graph.node(&format!("uid-{name}")).unwrap();
        graph.owner(node, &node.owners[0])
    };
    assert_eq!(known("child"), Some(Owner::Absent));
    assert_eq!(known("stray"), None, "it never named that owner");
}

#[test]
fn an_owner_no_longer_heard_of_is_asked_for() {
    let mut graph = Graph::default();
    put(&mut graph, &object("a", &[]));
    put(&mut graph, &object("child", &[("a", false)]));
    assert_eq!(graph.forget("uid-a"), ["uid-child"]);
    let child = graph.node("uid-child").unwrap();
    assert_eq!(graph.owner(child, &child.owners[0]), None);
}

#[test]
fn an_object_goes_only_when_its_last_owner_is_gone() {
    let mut graph = Graph::default();
    put(&mut graph, &object("a", &[]));
    assert_eq!(
        put(&mut graph, &object("child", &[("a", false), ("b", false)])),
        ["uid-child"]
    );
    let (kept, _) = plan(&graph, "child");
    let [Action::Patch { patch, .. }] = kept.actions.as_slice() else {
        panic!("{kept:?}")
    };
    assert_eq!(
        patch["metadata"]["ownerReferences"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(graph.remove("uid-a"), ["uid-child"]);
    let (gone, _) = plan(&graph, "child");
    assert!(
        matches!(gone.actions.as_slice(), [Action::Delete { options, .. }]
        if options.propagation == Some(Propagation::Background)),
        "{gone:?}"
    );
}

#[test]
fn a_foreground_deletion_waits_for_blocking_dependents_only() {
    let mut graph = Graph::default();
    put(&mut graph, &object("blocking", &[("a", true)]));
    put(&mut graph, &object("free", &[("a", false)]));
    assert_eq!(
        put(
            &mut graph,
            &deleting(object("a", &[]), "foregroundDeletion")
        ),
        ["uid-a"]
    );
    let (nothing_yet, look) = plan(&graph, "a");
    assert!(nothing_yet.actions.is_empty());
    assert_eq!(look, ["uid-blocking", "uid-free"]);
    for dependent in ["blocking", "free"] {
        assert!(matches!(
            plan(&graph, dependent).0.actions.as_slice(),
            [Action::Delete { .. }]
        ));
    }
    assert_eq!(graph.remove("uid-blocking"), ["uid-a"]);
    let (finished, _) = plan(&graph, "a");
    let [Action::Patch { patch, .. }] = finished.actions.as_slice() else {
        panic!("{finished:?}")
    };
    assert_eq!(patch["metadata"]["finalizers"].as_array().unwrap().len(), 0);
}

#[test]
fn orphaning_frees_every_dependent_before_the_owner_goes() {
    let mut graph = Graph::default();
    put(&mut graph, &object("x", &[("a", true)]));
    put(&mut graph, &object("y", &[("a", false)]));
    put(&mut graph, &deleting(object("a", &[]), "orphan"));
    let (plan, _) = plan(&graph, "a");
    let names = plan.actions.iter().map(|action| match action {
        Action::Patch { key, .. } => key.name.to_string(),
        other => panic!("{other:?}"),
    });
    assert_eq!(names.collect::<Vec<_>>(), ["x", "y", "a"]);
}

#[test]
fn a_circle_of_blocking_owners_is_opened() {
    let mut graph = Graph::default();
    put(
        &mut graph,
        &deleting(object("a", &[("c", true)]), "foregroundDeletion"),
    );
    put(
        &mut graph,
        &deleting(object("b", &[("a", true)]), "foregroundDeletion"),
    );
    put(&mut graph, &object("c", &[("b", true)]));
    let (plan, _) = plan(&graph, "c");
    let [Action::Patch { patch, .. }, Action::Delete { .. }] = plan.actions.as_slice() else {
        panic!("{plan:?}")
    };
    assert_eq!(
        patch["metadata"]["ownerReferences"][0]["blockOwnerDeletion"],
        false
    );
}

#[test]
fn an_owner_of_an_unknown_kind_is_no_reason_to_delete() {
    let mut graph = Graph::default();
    put(&mut graph, &object("child", &[("a", false), ("b", false)]));
    let (plan, _) = graph.plan("uid-child", &[Owner::Unknown, Owner::Absent]);
    assert!(plan.actions.is_empty());
}

#[test]
fn an_owner_in_another_namespace_is_not_taken_from_the_graph() {
    let mut graph = Graph::default();
    let mut elsewhere = object("a", &[]);
    elsewhere.namespace = Some("other".to_owned());
    put(&mut graph, &elsewhere);
    put(&mut graph, &object("child", &[("a", false)]));
    let node = graph.node("uid-child").unwrap();
    assert_eq!(graph.owner(node, &node.owners[0]), None);
}

#[test]
fn a_reference_with_a_wrong_name_says_nothing_about_the_owner_of_that_uid() {
    let mut graph = Graph::default();
    put(&mut graph, &object("owner", &[]));
    let mut sloppy = object("sloppy", &[("owner", false)]);
    for owner in sloppy.owner_references.iter_mut().flatten() {
        owner.name = "wrong".to_owned();
    }
    put(&mut graph, &sloppy);
    put(&mut graph, &object("right", &[("owner", false)]));
    let sloppy = graph.node("uid-sloppy").unwrap().clone();
    assert_eq!(graph.owner(&sloppy, &sloppy.owners[0]), None);
    graph.remember_absent(&sloppy.key.namespace, &sloppy.owners[0]);
    assert_eq!(graph.owner(&sloppy, &sloppy.owners[0]), Some(Owner::Absent));
    let right = graph.node("uid-right").unwrap().clone();
    assert_eq!(graph.owner(&right, &right.owners[0]), Some(Owner::Solid));
}
