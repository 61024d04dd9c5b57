use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::plan::{Seen, plan};
use super::*;
use crate::controllers::ownership::controller_reference;
use warp_runtime::plan::Action;

fn set(spec: &Value) -> StatefulSet {
    let mut object = json!({
        "metadata": {"name": "db", "namespace": "ns", "uid": "set", "generation": 1},
        "spec": {
            "replicas": 3, "serviceName": "db", "podManagementPolicy": "OrderedReady",
            "selector": {"matchLabels": {"app": "db"}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": []}},
        },
    });
    for (name, value) in spec.as_object().into_iter().flatten() {
        object["spec"][name] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

fn revised(set: &StatefulSet, known: &[Arc<ControllerRevision>]) -> Arc<ControllerRevision> {
    match revision::which(set, known) {
        revision::Which::New(new) => Arc::new(*new),
        _ => panic!("the template is known"),
    }
}

fn pod(set: &StatefulSet, ordinal: i32, revision: &ControllerRevision, ready: bool) -> Arc<Pod> {
    let template = revision::template(revision).unwrap();
    let mut pod = identity::pod(set, &template, revision::name(revision), ordinal);
    pod.metadata.uid = pod.metadata.name.clone();
    let ready = if ready { "True" } else { "False" };
    pod.status = serde_json::from_value(json!({
        "phase": "Running", "conditions": [{"type": "Ready", "status": ready}],
    }))
    .unwrap();
    Arc::new(pod)
}

#[derive(Default)]
struct World {
    pods: Vec<Arc<Pod>>,
    revisions: Vec<Arc<ControllerRevision>>,
    claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
}

impl World {
    fn verbs(&self, set: &StatefulSet) -> Vec<String> {
        let pod = |name: &str| {
            let found = self.pods.iter();
            let mut found = found.filter(|pod| pod.metadata.name.as_deref() == Some(name));
            found.next().cloned()
        };
        let claim = |name: &str| self.claims.get(name).cloned();
        let seen = Seen {
            set,
            pods: self.pods.clone(),
            revisions: self.revisions.clone(),
            pod: &pod,
            claim: &claim,
        };
        let (plan, _) = plan(&seen, Timestamp::UNIX_EPOCH);
        plan.actions.iter().filter_map(verb).collect()
    }
}

fn verb(action: &Action) -> Option<String> {
    match action {
        Action::Create { kind, object, .. } => {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let name = if kind.kind == "ControllerRevision" {
                ""
            } else {
                name
            };
            Some(format!("create {} {name}", kind.kind).trim_end().to_owned())
        }
        Action::Delete { key, .. } => Some(format!("delete {}", key.name)),
        Action::Patch { key, sub: None, .. } => Some(format!("patch {}", key.name)),
        _ => None,
    }
}

fn world(set: &StatefulSet, ready: &[bool]) -> World {
    let revision = revised(set, &[]);
    let pods = (0..).zip(ready);
    World {
        pods: pods
            .map(|(ordinal, ready)| pod(set, ordinal, &revision, *ready))
            .collect(),
        revisions: vec![revision],
        ..World::default()
    }
}

#[test]
fn the_revision_comes_before_the_first_pod() {
    let set = set(&json!({}));
    assert_eq!(World::default().verbs(&set), ["create ControllerRevision"]);
    assert_eq!(world(&set, &[]).verbs(&set), ["create Pod db-0"]);
}

#[test]
fn a_pod_is_made_only_when_all_before_it_are_ready() {
    let set = set(&json!({}));
    assert_eq!(world(&set, &[true]).verbs(&set), ["create Pod db-1"]);
    assert_eq!(world(&set, &[false]).verbs(&set), [""; 0]);
}

#[test]
fn parallel_sets_make_all_pods_at_once() {
    let set = set(&json!({"podManagementPolicy": "Parallel"}));
    let made = ["create Pod db-1", "create Pod db-2"];
    assert_eq!(world(&set, &[false]).verbs(&set), made);
}

#[test]
fn the_highest_pod_goes_first_and_only_if_those_before_it_are_ready() {
    let one = set(&json!({"replicas": 1}));
    assert_eq!(
        world(&one, &[true, true, true]).verbs(&one),
        ["delete db-2"]
    );
    assert_eq!(
        world(&one, &[true, false, true]).verbs(&one),
        ["delete db-2"]
    );
    assert_eq!(world(&one, &[true, false, false]).verbs(&one), [""; 0]);
    assert_eq!(world(&one, &[false, true, true]).verbs(&one), [""; 0]);
}

fn updated(spec: &Value) -> (StatefulSet, World, Arc<ControllerRevision>) {
    let mut world = world(&set(&json!({})), &[true, true, true]);
    let mut spec = spec.clone();
    spec["template"] = json!({
        "metadata": {"labels": {"app": "db", "version": "two"}}, "spec": {"containers": []},
    });
    let mut new = set(&spec);
    let old = revision::name(&world.revisions[0]).to_owned();
    new.status =
        Some(serde_json::from_value(json!({"replicas": 3, "currentRevision": old})).unwrap());
    let revision = revised(&new, &world.revisions);
    world.revisions.push(revision.clone());
    (new, world, revision)
}

#[test]
fn an_update_goes_from_the_highest_pod_to_the_partition() {
    let two =
        json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}});
    let (set, mut world, revision) = updated(&two);
    assert_eq!(world.verbs(&set), ["delete db-2"]);
    world.pods[2] = pod(&set, 2, &revision, true);
    assert_eq!(world.verbs(&set), [""; 0]);
    let (set, mut world, revision) = updated(&json!({}));
    world.pods[2] = pod(&set, 2, &revision, false);
    assert_eq!(world.verbs(&set), [""; 0]);
    world.pods[2] = pod(&set, 2, &revision, true);
    assert_eq!(world.verbs(&set), ["delete db-1"]);
}

#[test]
fn a_pod_below_the_partition_comes_back_as_it_was() {
    let two =
        json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}});
    let (set, mut world, _) = updated(&two);
    world.pods.remove(0);
    let pod = |_: &str| None;
    let claim = |_: &str| None;
    let seen = Seen {
        set: &set,
        pods: world.pods.clone(),
        revisions: world.revisions.clone(),
        pod: &pod,
        claim: &claim,
    };
    let (plan, _) = plan(&seen, Timestamp::UNIX_EPOCH);
    let made = plan.actions.iter().find_map(|action| match action {
        Action::Create { object, .. } => Some(object.clone()),
        _ => None,
    });
    let made = made.unwrap();
    assert_eq!(made["metadata"]["name"], "db-0");
    assert_eq!(
        made["metadata"]["labels"]["controller-revision-hash"],
        revision::name(&world.revisions[0])
    );
    assert_eq!(made["spec"]["hostname"], "db-0");
    assert_eq!(made["spec"]["subdomain"], "db");
}

#[test]
fn on_delete_nothing_is_replaced_unasked() {
    let (set, mut world, _) = updated(&json!({"updateStrategy": {"type": "OnDelete"}}));
    assert_eq!(world.verbs(&set), [""; 0]);
    world.pods.remove(1);
    assert_eq!(world.verbs(&set), ["create Pod db-1"]);
}

#[test]
fn an_old_template_makes_its_old_revision_the_newest() {
    let (new, world, _) = updated(&json!({}));
    let mut old = set(&json!({}));
    old.status.clone_from(&new.status);
    let name = revision::name(&world.revisions[0]);
    assert_eq!(world.verbs(&old), [format!("patch {name}")]);
}

#[test]
fn revisions_nobody_goes_by_are_kept_up_to_the_limit() {
    let (mut set, world, revision) = updated(&json!({"revisionHistoryLimit": 0}));
    let pods = (0..3).map(|ordinal| pod(&set, ordinal, &revision, true));
    let world = World {
        pods: pods.collect(),
        ..world
    };
    // The status still goes by the old one: it stays until the update is told to be done.
    assert_eq!(world.verbs(&set), [""; 0]);
    set.status = Some(
        serde_json::from_value(
            json!({"replicas": 3, "currentRevision": revision::name(&revision)}),
        )
        .unwrap(),
    );
    let old = revision::name(&world.revisions[0]);
    assert_eq!(world.verbs(&set), [format!("delete {old}")]);
}

#[test]
fn a_finished_pod_is_replaced_and_a_stranger_of_the_name_waited_for() {
    let set = set(&json!({"replicas": 1}));
    let mut with = world(&set, &[true]);
    let mut ended = Pod::clone(&with.pods[0]);
    ended.status = Some(serde_json::from_value(json!({"phase": "Failed"})).unwrap());
    with.pods[0] = Arc::new(ended.clone());
    assert_eq!(with.verbs(&set), ["delete db-0"]);
    ended.metadata.labels = None;
    ended.metadata.owner_references = None;
    with.pods[0] = Arc::new(ended);
    assert_eq!(with.verbs(&set), [""; 0]);
}

fn with_claims(policy: &Value) -> StatefulSet {
    set(&json!({
        "replicas": 1,
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
        "persistentVolumeClaimRetentionPolicy": policy,
    }))
}

fn claim_of(owner: Option<Value>) -> Arc<PersistentVolumeClaim> {
    let owners: Vec<Value> = owner.into_iter().collect();
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {
                "name": "data-db-0", "namespace": "ns", "uid": "claim", "resourceVersion": "1",
                "ownerReferences": owners,
            },
        }))
        .unwrap(),
    )
}

#[test]
fn claims_are_made_before_their_pod_and_found_again() {
    let set = with_claims(&Value::Null);
    let mut world = world(&set, &[]);
    let made = ["create PersistentVolumeClaim data-db-0", "create Pod db-0"];
    assert_eq!(world.verbs(&set), made);
    world.claims.insert("data-db-0".to_owned(), claim_of(None));
    assert_eq!(world.verbs(&set), ["create Pod db-0"]);
}

#[test]
fn claims_belong_to_the_set_only_if_they_are_to_go_with_it() {
    let set = with_claims(&json!({"whenDeleted": "Delete", "whenScaled": "Retain"}));
    let mut with = world(&set, &[true]);
    with.claims.insert("data-db-0".to_owned(), claim_of(None));
    assert_eq!(with.verbs(&set), ["patch data-db-0"]);
    let owner = serde_json::to_value(controller_reference(&set)).unwrap();
    let owned = claim_of(Some(owner));
    with.claims.insert("data-db-0".to_owned(), owned.clone());
    assert_eq!(with.verbs(&set), [""; 0]);
    let kept = with_claims(&Value::Null);
    let mut with = world(&kept, &[true]);
    with.claims.insert("data-db-0".to_owned(), owned);
    assert_eq!(with.verbs(&kept), ["patch data-db-0"]);
}
