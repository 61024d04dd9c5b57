// `json!` at the call reads best by value.
#![allow(clippy::needless_pass_by_value)]

use serde_json::{Value, json};

use super::*;

mod surroundings;

fn node(name: &str, gpus: u32) -> Arc<Node> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"
            }},
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string()},
                "conditions": [{"type": "Ready", "status": "True"}]
            }
        }))
        .unwrap(),
    )
}

fn pod(uid: &str, spec: Value, status: Value) -> Arc<Pod> {
    let object = json!({"metadata": {"name": uid, "namespace": "default", "uid": uid}, "spec": spec, "status": status});
    Arc::new(serde_json::from_value(object).unwrap())
}

fn asking(gpus: u32) -> Value {
    json!([{"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}])
}

fn pinned(node: &str) -> Value {
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    ]}}})
}

fn free(ledger: &Ledger, node: &str) -> i64 {
    let id = ledger.fleet.find(node).unwrap();
    ledger
        .fleet
        .free(id)
        .unwrap()
        .resources
        .extended("nvidia.com/gpu")
}

#[test]
fn bound_nominated_pinned_and_terminating_pods_all_hold_their_gpus() {
    let cases = [
        (
            json!({"nodeName": "a", "containers": asking(2)}),
            json!({"phase": "Running"}),
            6,
        ),
        (
            json!({"containers": asking(2)}),
            json!({"phase": "Pending", "nominatedNodeName": "a"}),
            6,
        ),
        (
            json!({"affinity": pinned("a"), "containers": asking(2)}),
            json!({"phase": "Pending"}),
            6,
        ),
        (
            json!({"affinity": pinned("a"), "containers": asking(2)}),
            json!({"phase": "Pending", "conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "persistentvolumeclaim \"data\" not found",
            }]}),
            8,
        ),
        (
            json!({"containers": asking(2)}),
            json!({"phase": "Pending"}),
            8,
        ),
        (
            json!({"nodeName": "a", "containers": asking(2)}),
            json!({"phase": "Succeeded"}),
            8,
        ),
        (
            json!({"nodeName": "gone", "containers": asking(2)}),
            json!({"phase": "Running"}),
            8,
        ),
    ];
    for (spec, status, want) in cases {
        let text = format!("{spec} {status}");
        let ledger = build(&[node("a", 8)], &[pod("p", spec, status)], &[]);
        assert_eq!(free(&ledger, "a"), want, "{text}");
    }
    let mut ending = (*pod(
        "p",
        json!({"nodeName": "a", "containers": asking(3)}),
        json!({}),
    ))
    .clone();
    ending.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(
        free(&build(&[node("a", 8)], &[Arc::new(ending)], &[]), "a"),
        5
    );
}

fn promise(uid: &str, node: &str) -> Promise {
    let spec = json!({"affinity": pinned(node), "containers": asking(4)});
    Promise {
        owner: uid.to_owned(),
        meta: ObjectMeta {
            name: Some(uid.to_owned()),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        spec: serde_json::from_value(spec).unwrap(),
        counted: false,
    }
}

#[test]
fn a_promise_without_a_pod_is_a_reservation_and_with_one_is_not_counted_twice() {
    let waiting = promise("j", "a");
    assert_eq!(
        free(
            &build(&[node("a", 8)], &[], std::slice::from_ref(&waiting)),
            "a"
        ),
        4
    );
    let mut own = (*pod(
        "p",
        json!({"nodeName": "a", "containers": asking(4)}),
        json!({"phase": "Running"}),
    ))
    .clone();
    own.metadata.owner_references = serde_json::from_value(json!([
        {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": true}
    ]))
    .unwrap();
    assert_eq!(
        free(&build(&[node("a", 8)], &[Arc::new(own)], &[waiting]), "a"),
        4
    );
}

#[test]
fn a_pod_is_pinned_only_when_every_alternative_names_the_node() {
    let spec = |terms: Value| {
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
        serde_json::from_value(json!({"containers": [], "affinity": affinity})).unwrap()
    };
    let here =
        json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]});
    let there =
        json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]});
    let label = json!({"matchExpressions": [{"key": "x", "operator": "Exists"}]});
    assert_eq!(pinned_to(&spec(json!([here, here]))).as_deref(), Some("a"));
    assert_eq!(pinned_to(&spec(json!([here, there]))), None);
    assert_eq!(pinned_to(&spec(json!([here, label]))), None);
    assert_eq!(pinned_to(&spec(json!([]))), None);
}

#[test]
fn heartbeats_do_not_matter_and_capacity_does() {
    let before = node("a", 8);
    let mut beat = (*before).clone();
    beat.metadata.resource_version = Some("2".to_owned());
    assert!(!node_matters(Some(&before), Some(&beat)));
    assert!(node_matters(Some(&before), Some(&node("a", 4))));
    assert!(node_matters(Some(&before), None));
}
