use k8s_openapi::api::apps::v1::ReplicaSetSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::json;

use super::*;
use warp_runtime::plan::Action;

fn set(replicas: i32) -> ReplicaSet {
    let labels: BTreeMap<_, _> = [("app".to_owned(), "web".to_owned())].into();
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some("web".to_owned()),
            namespace: Some("ns".to_owned()),
            uid: Some("set".to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            selector: LabelSelector {
                match_labels: Some(labels),
                ..LabelSelector::default()
            },
            ..ReplicaSetSpec::default()
        }),
        status: None,
    }
}

fn pod(name: &str, app: &str, owned: bool, phase: &str) -> Arc<Pod> {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "ns", "uid": name, "labels": { "app": app } },
        "spec": { "containers": [] },
        "status": { "phase": phase }
    }))
    .unwrap();
    if owned {
        pod.metadata.owner_references = Some(vec![controller_reference(&set(0))]);
    }
    Arc::new(pod)
}

fn verbs(plan: &Plan) -> Vec<String> {
    let verb = |action: &Action| match action {
        Action::Create { .. } => Some("create".to_owned()),
        Action::Delete { key, .. } => Some(format!("delete {}", key.name)),
        Action::Patch { key, sub: None, .. } => Some(format!("patch {}", key.name)),
        _ => None,
    };
    plan.actions.iter().filter_map(verb).collect()
}

fn plan_of(replicas: i32, candidates: Vec<Arc<Pod>>) -> Plan {
    let set = set(replicas);
    let seen = Seen {
        set: &set,
        candidates,
        failure: None,
        crowding: &BTreeMap::new,
    };
    plan(&seen, Timestamp::UNIX_EPOCH)
}

#[test]
fn finished_pods_are_replaced_and_matching_orphans_adopted() {
    let pods = vec![
        pod("done", "web", true, "Failed"),
        pod("stray", "web", false, "Running"),
    ];
    assert_eq!(verbs(&plan_of(2, pods)), ["patch stray", "create"]);
}

#[test]
fn a_pod_that_no_longer_matches_is_released_and_replaced() {
    assert_eq!(
        verbs(&plan_of(1, vec![pod("p", "other", true, "Running")])),
        ["patch p", "create"]
    );
}

#[test]
fn pending_pods_go_before_running_ones() {
    let pods = vec![
        pod("a", "web", true, "Running"),
        pod("b", "web", true, "Pending"),
        pod("c", "web", true, "Running"),
    ];
    assert_eq!(verbs(&plan_of(2, pods)), ["delete b"]);
}

#[test]
fn a_failure_to_create_is_a_condition_until_a_pass_succeeds() {
    let failure = Failure {
        reason: "FailedCreate",
        message: "quota".to_owned(),
    };
    let held = conditions(None, Some(&failure), Timestamp::UNIX_EPOCH);
    assert_eq!(held.as_ref().unwrap()[0].message.as_deref(), Some("quota"));
    assert_eq!(conditions(held, None, Timestamp::UNIX_EPOCH), None);
}
