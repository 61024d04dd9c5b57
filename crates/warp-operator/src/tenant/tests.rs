//! What a tenant says of its namespaces and their GPUs.

mod budgets;
mod defaults;
mod isolation;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use serde_json::{Value, json};
use warp_api::{GPUWorkload, Tenant, TenantStatus};
use warp_runtime::plan::{Action, Plan};

use super::observe::{Seen, Usage, count};
use super::plan::plan;

fn now() -> Timestamp {
    "2026-11-16T12:00:00Z".parse().expect("a time")
}

fn tenant(name: &str, namespaces: &Value) -> Tenant {
    serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": 4, "resourceVersion": "7"},
        "spec": {"namespaces": namespaces},
    }))
    .expect("a tenant")
}

fn namespace(name: &str, labels: &Value) -> Arc<Namespace> {
    let namespace = json!({"metadata": {"name": name, "labels": labels}});
    Arc::new(serde_json::from_value(namespace).expect("a namespace"))
}

fn seen(tenants: &[&Tenant], usage: BTreeMap<String, Usage>) -> Seen {
    Seen {
        tenants: tenants
            .iter()
            .map(|tenant| Arc::new((*tenant).clone()))
            .collect(),
        namespaces: vec![
            namespace("a", &json!({"team": "red"})),
            namespace("b", &json!({"team": "red"})),
            namespace("c", &json!({"team": "blue"})),
        ],
        usage: Arc::new(usage),
        ..Seen::default()
    }
}

/// The status a plan writes.
fn written(plan: &Plan) -> TenantStatus {
    let status = plan.actions.iter().find_map(|action| match action {
        Action::Status(status) => Some(status.after.clone()),
        _ => None,
    });
    serde_json::from_value(status.expect("a status is written")).expect("a tenant's status")
}

fn ready(status: &TenantStatus) -> (&str, &str, &str) {
    let ready = &status.conditions[0];
    assert_eq!(
        (ready.type_.as_str(), ready.observed_generation),
        ("Ready", Some(4))
    );
    (&ready.status, &ready.reason, &ready.message)
}

#[test]
fn names_and_labels_both_claim_namespaces_that_exist() {
    let it = tenant(
        "red",
        &json!({"names": ["c", "not-yet"], "selector": {"matchLabels": {"team": "red"}}}),
    );
    let status = written(&plan(&it, &seen(&[&it], BTreeMap::new()), now()));
    assert_eq!(status.namespaces, ["a", "b", "c"]);
    assert_eq!(status.namespace_count, 3);
    assert_eq!(status.observed_generation, Some(4));
    assert_eq!(ready(&status), ("True", "NamespacesFound", "a, b, c"));
    assert_eq!(status.message, None);
}

#[test]
fn a_repeated_pass_writes_nothing() {
    let mut it = tenant("red", &json!({"names": ["a"]}));
    let seen = seen(&[&it], BTreeMap::new());
    it.status = Some(written(&plan(&it, &seen, now())));
    let later = now() + jiff::SignedDuration::from_hours(1);
    assert!(plan(&it, &seen, later).is_idle());
}

#[test]
fn a_namespace_that_two_claim_counts_for_neither_and_both_say_so() {
    let red = tenant(
        "red",
        &json!({"selector": {"matchLabels": {"team": "red"}}}),
    );
    let thief = tenant("thief", &json!({"names": ["b", "c"]}));
    let usage = BTreeMap::from([(
        "b".to_owned(),
        Usage {
            in_use: BTreeMap::from([("H100".to_owned(), 8)]),
            ..Usage::default()
        },
    )]);
    let seen = seen(&[&red, &thief], usage);
    for (it, left, other) in [(&red, "a", "thief"), (&thief, "c", "red")] {
        let plan = plan(it, &seen, now());
        let status = written(&plan);
        assert_eq!(status.namespaces, [left]);
        assert_eq!(status.gpus_in_use, 0);
        let (value, reason, message) = ready(&status);
        assert_eq!((value, reason), ("False", "NamespaceContested"));
        assert!(
            message.contains(&format!("b (also claimed by {other})")),
            "{message}"
        );
        assert_eq!(status.message.as_deref(), Some(message));
        assert!(
            plan.actions
                .iter()
                .any(|action| matches!(action, Action::Note(note) if note.warning))
        );
    }
}

#[test]
fn a_tenant_being_deleted_claims_nothing_from_others() {
    let red = tenant("red", &json!({"names": ["a"]}));
    let mut going = tenant("going", &json!({"names": ["a"]}));
    going.metadata.deletion_timestamp = Some(now().into());
    let seen = seen(&[&red, &going], BTreeMap::new());
    assert_eq!(ready(&written(&plan(&red, &seen, now()))).0, "True");
    assert!(plan(&going, &seen, now()).is_idle());
}

#[test]
fn what_cannot_be_read_or_does_not_exist_is_a_condition() {
    let nowhere = tenant("nowhere", &json!({"names": ["z"]}));
    let status = written(&plan(&nowhere, &seen(&[&nowhere], BTreeMap::new()), now()));
    assert_eq!(ready(&status).1, "NoNamespace");
    let broken = json!({"selector": {"matchExpressions": [{"key": "team", "operator": "Near", "values": ["red"]}]}});
    let broken = tenant("broken", &broken);
    let status = written(&plan(&broken, &seen(&[&broken], BTreeMap::new()), now()));
    assert_eq!(ready(&status).1, "InvalidSelector");
    assert!(status.namespaces.is_empty());
}

fn pod(name: &str, fields: &Value) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "a", "uid": name},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
    });
    for (path, value) in fields.as_object().into_iter().flatten() {
        *pod.pointer_mut(path).unwrap_or(&mut Value::Null) = value.clone();
    }
    if fields["node"].is_string() {
        pod["spec"]["nodeName"] = fields["node"].clone();
    }
    if fields["phase"].is_string() {
        pod["status"] = json!({"phase": fields["phase"]});
    }
    if fields["workload"].is_string() {
        pod["metadata"]["labels"] = json!({"gpu.warp.dev/workload-uid": fields["workload"]});
    }
    Arc::new(serde_json::from_value(pod).expect("a pod"))
}

fn workload(uid: &str, spec: &Value, phase: &str) -> Arc<GPUWorkload> {
    let mut object = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "metadata": {"name": uid, "namespace": "a", "uid": uid},
        "spec": {"modelName": "m", "gpuCount": 4, "image": "i"},
        "status": {"phase": phase},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    Arc::new(serde_json::from_value(object).expect("a workload"))
}

#[test]
fn bound_pods_use_and_what_has_no_node_waits() {
    let pods = [
        pod("bound", &json!({"node": "n1", "phase": "Running"})),
        pod("of-workload", &json!({"node": "n1", "workload": "placed"})),
        pod("done", &json!({"node": "n1", "phase": "Succeeded"})),
        pod("unbound", &json!({})),
        pod("unbound-of-workload", &json!({"workload": "waits"})),
        pod("on-unknown-node", &json!({"node": "gone"})),
    ];
    let none = json!({});
    let workloads = [
        workload("placed", &none, "Running"),
        workload("waits", &json!({"gpu": {"models": ["H100"]}}), "Pending"),
        workload("any", &none, "Pending"),
        workload("over", &none, "Failed"),
        workload("held", &json!({"suspend": true}), "Pending"),
    ];
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}},
    }))
    .expect("a node");
    let node = Arc::new(node);
    let all = count(
        &pods,
        &workloads,
        |name| (name == "n1").then(|| node.clone()),
        &warp_core::gpu::Catalogue::default(),
    );
    let usage = &all["a"];
    let by = |pairs: &[(&str, i64)]| -> BTreeMap<String, i64> {
        pairs
            .iter()
            .map(|(model, count)| ((*model).to_owned(), *count))
            .collect()
    };
    assert_eq!(usage.in_use, by(&[("H100-80GB", 4000), ("nvidia", 2000)]));
    assert_eq!(usage.waiting, by(&[("H100", 4000), ("nvidia", 6000)]));
}
