//! Behaviour of the built-in plugins.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{AdmissionRequest, Operation, ReadState, Refusal, builtin};
use crate::kinds;
use crate::registry::resource::Resource;

/// Stored objects by table.
#[derive(Default)]
struct Objects(BTreeMap<&'static str, Vec<Value>>);

impl Objects {
    fn with(mut self, table: &'static str, object: Value) -> Self {
        self.0.entry(table).or_default().push(object);
        self
    }

    fn namespaced() -> Self {
        let active = json!({"metadata": {"name": "ns"}, "status": {"phase": "Active"}});
        Self::default().with("namespaces", active)
    }
}

impl ReadState for Objects {
    fn get(&self, table: &str, namespace: Option<&str>, name: &str) -> Option<Value> {
        self.list(table, namespace)
            .into_iter()
            .find(|object| object["metadata"]["name"] == name)
    }

    fn list(&self, table: &str, namespace: Option<&str>) -> Vec<Value> {
        let all = self.0.get(table).cloned().unwrap_or_default();
        all.into_iter()
            .filter(|object| {
                namespace.is_none_or(|namespace| {
                    object["metadata"]
                        .get("namespace")
                        .is_none_or(|own| own == namespace)
                })
            })
            .collect()
    }
}

fn resource(kind: &str) -> Resource {
    kinds::builtin()
        .into_iter()
        .find(|resource| resource.kind == kind)
        .expect("served")
}

/// Creates an object through defaulting and every plugin.
fn create(state: &Objects, kind: &str, mut object: Value) -> Result<Value, Refusal> {
    let resource = resource(kind);
    (resource.strategy.default)(&mut object);
    let name = object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let namespace = resource.namespaced.then_some("ns");
    for plugin in builtin() {
        plugin.admit(
            &mut AdmissionRequest {
                operation: Operation::Create,
                resource: &resource,
                subresource: None,
                namespace,
                name: &name,
                object: &mut object,
                old: None,
                user: "admin",
                dry_run: false,
                options: &Value::Null,
            },
            state,
        )?;
    }
    Ok(object)
}

#[allow(clippy::needless_pass_by_value)]
fn pod(resources: Value) -> Value {
    json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "a", "image": "x:1", "resources": resources}]},
    })
}

fn refusal(result: Result<Value, Refusal>) -> String {
    result.expect_err("refused").to_string()
}

#[test]
fn objects_need_a_namespace_that_stays() {
    let missing = refusal(create(&Objects::default(), "Pod", pod(json!({}))));
    assert_eq!(missing, "namespaces \"ns\" not found");
    let leaving = Objects::default().with(
        "namespaces",
        json!({"metadata": {"name": "ns"}, "status": {"phase": "Terminating"}}),
    );
    let text = refusal(create(
        &leaving,
        "ConfigMap",
        json!({"metadata": {"name": "c"}}),
    ));
    assert!(text.contains("because it is being terminated"), "{text}");
}

#[test]
fn pods_get_an_account_a_priority_and_tolerations() {
    let stored = create(&Objects::namespaced(), "Pod", pod(json!({}))).expect("accepted");
    let spec = &stored["spec"];
    assert_eq!(spec["serviceAccountName"], "default");
    assert_eq!(spec["priority"], 0);
    assert_eq!(spec["preemptionPolicy"], "PreemptLowerPriority");
    assert_eq!(spec["tolerations"].as_array().map(Vec::len), Some(2));
}

#[test]
fn priorities_come_from_classes_only() {
    let state = Objects::namespaced()
        .with(
            "priorityclasses.scheduling.k8s.io",
            json!({
                "metadata": {"name": "high"}, "value": 7, "preemptionPolicy": "Never",
            }),
        )
        .with(
            "priorityclasses.scheduling.k8s.io",
            json!({
                "metadata": {"name": "usual"}, "value": 3, "globalDefault": true,
            }),
        );
    let mut named = pod(json!({}));
    named["spec"]["priorityClassName"] = json!("high");
    let stored = create(&state, "Pod", named.clone()).expect("accepted");
    assert_eq!(
        (
            &stored["spec"]["priority"],
            &stored["spec"]["preemptionPolicy"]
        ),
        (&json!(7), &json!("Never"))
    );
    let stored = create(&state, "Pod", pod(json!({}))).expect("accepted");
    assert_eq!(stored["spec"]["priorityClassName"], "usual");
    named["spec"]["priority"] = json!(9);
    assert!(refusal(create(&state, "Pod", named)).contains("computed 7"));
    let mut unknown = pod(json!({}));
    unknown["spec"]["priorityClassName"] = json!("nope");
    assert_eq!(
        refusal(create(&state, "Pod", unknown)),
        "no PriorityClass with name nope was found"
    );
    let mut other = pod(json!({}));
    other["spec"]["runtimeClassName"] = json!("nope");
    assert_eq!(
        refusal(create(&state, "Pod", other)),
        "pod rejected: RuntimeClass \"nope\" not found"
    );
    let second = json!({"metadata": {"name": "other"}, "value": 1, "globalDefault": true});
    assert!(refusal(create(&state, "PriorityClass", second)).contains("usual"));
}

#[test]
fn limit_ranges_fill_in_and_bound() {
    let state = Objects::namespaced().with(
        "limitranges",
        json!({
            "metadata": {"name": "l", "namespace": "ns"},
            "spec": {"limits": [{
                "type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "500m"},
                "max": {"cpu": "2"}, "min": {"cpu": "100m"},
            }]},
        }),
    );
    let stored = create(&state, "Pod", pod(json!({}))).expect("accepted");
    let container = &stored["spec"]["containers"][0]["resources"];
    assert_eq!(
        *container,
        json!({"limits": {"cpu": "1"}, "requests": {"cpu": "500m"}})
    );
    assert_eq!(
        stored["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu request for container a; cpu limit for container a"
    );
    let large = pod(json!({"limits": {"cpu": "3"}, "requests": {"cpu": "50m"}}));
    assert_eq!(
        refusal(create(&state, "Pod", large)),
        "[minimum cpu usage per Container is 100m, but request is 50m, maximum cpu usage per \
         Container is 2, but limit is 3]"
    );
}

#[test]
fn quota_counts_compute_devices_and_objects() {
    let quota =
        |hard: Value| json!({"metadata": {"name": "q", "namespace": "ns"}, "spec": {"hard": hard}});
    let running = json!({
        "metadata": {"name": "old", "namespace": "ns"}, "status": {"phase": "Running"},
        "spec": {"containers": [{"name": "a", "resources": {
            "limits": {"nvidia.com/gpu": "3"}, "requests": {"nvidia.com/gpu": "3", "cpu": "1"},
        }}]},
    });
    let mut finished = running.clone();
    finished["status"]["phase"] = json!("Succeeded");
    let state = Objects::namespaced()
        .with(
            "resourcequotas",
            quota(json!({"requests.nvidia.com/gpu": "4", "pods": "5"})),
        )
        .with("pods", running.clone())
        .with("pods", finished);
    let one = pod(json!({"limits": {"nvidia.com/gpu": "1"}}));
    create(&state, "Pod", one).expect("one device is left");
    let two = pod(json!({"limits": {"nvidia.com/gpu": "2"}}));
    assert_eq!(
        refusal(create(&state, "Pod", two)),
        "exceeded quota: q, requested: requests.nvidia.com/gpu=2, used: \
         requests.nvidia.com/gpu=3, limited: requests.nvidia.com/gpu=4"
    );
    let compute = Objects::namespaced().with(
        "resourcequotas",
        quota(json!({"cpu": "1", "limits.memory": "1Gi"})),
    );
    assert_eq!(
        refusal(create(&compute, "Pod", pod(json!({})))),
        "failed quota: q: must specify cpu for: a; limits.memory for: a"
    );
    let objects = Objects::namespaced()
        .with(
            "resourcequotas",
            quota(json!({"configmaps": "1", "count/jobs.batch": "0"})),
        )
        .with(
            "configmaps",
            json!({"metadata": {"name": "c", "namespace": "ns"}}),
        );
    let text = refusal(create(
        &objects,
        "ConfigMap",
        json!({"metadata": {"name": "d"}}),
    ));
    assert_eq!(
        text,
        "exceeded quota: q, requested: configmaps=1, used: configmaps=1, limited: configmaps=1"
    );
    let text = refusal(create(&objects, "Job", json!({"metadata": {"name": "j"}})));
    assert!(text.contains("count/jobs.batch=1"), "{text}");
}

#[test]
fn scoped_quota_only_counts_what_it_is_about() {
    let quota = json!({
        "metadata": {"name": "q", "namespace": "ns"},
        "spec": {"hard": {"pods": "0"}, "scopes": ["BestEffort"]},
    });
    let state = Objects::namespaced().with("resourcequotas", quota);
    assert!(refusal(create(&state, "Pod", pod(json!({})))).contains("pods=1"));
    create(&state, "Pod", pod(json!({"requests": {"cpu": "1"}}))).expect("not best effort");
}

#[test]
fn services_get_distinct_addresses() {
    let service = |name: &str, kind: &str| {
        json!({
            "metadata": {"name": name}, "spec": {"type": kind, "ports": [{"port": 80}]},
        })
    };
    let first =
        create(&Objects::namespaced(), "Service", service("a", "NodePort")).expect("accepted");
    assert_eq!(first["spec"]["ports"][0]["nodePort"], 30000);
    let mut taken = first.clone();
    taken["metadata"] = json!({"name": "b", "namespace": "ns"});
    let state = Objects::namespaced().with("services", taken);
    let second = create(&state, "Service", service("a", "NodePort")).expect("accepted");
    assert_ne!(first["spec"]["clusterIP"], second["spec"]["clusterIP"]);
    assert_eq!(second["spec"]["ports"][0]["nodePort"], 30001);
    let headless = json!({
        "metadata": {"name": "h"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]},
    });
    let stored = create(&state, "Service", headless).expect("accepted");
    assert_eq!(stored["spec"]["clusterIPs"], json!(["None"]));
}

#[test]
fn claims_get_the_default_class() {
    let state = Objects::namespaced().with("storageclasses.storage.k8s.io", json!({
        "metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    }));
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
    let stored = create(&state, "PersistentVolumeClaim", claim).expect("accepted");
    assert_eq!(stored["spec"]["storageClassName"], "fast");
}
