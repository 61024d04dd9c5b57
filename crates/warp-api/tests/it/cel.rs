//! Every rule has an example it accepts and one it refuses, evaluated as the API server would.

use std::sync::LazyLock;

use kube_cel::{CompiledSchema, ValidationErrors, Validator, compile_schema};
use serde_json::{Value, json};
use warp_api::crd;
use warp_api::workload::{PLACED_FIELDS, RULES};

/// A rule's message with an object it accepts and one it refuses; for transition rules the object
/// before the change.
struct Example {
    message: &'static str,
    old: Option<Value>,
    accepted: Value,
    refused: Value,
}

fn workload(spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "GPUWorkload",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"modelName": "m", "gpuCount": 1},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

fn placed(spec: &Value) -> Value {
    let mut object = workload(spec);
    object["status"] = json!({"phase": "Running", "lastScheduleTime": "2026-11-15T00:00:00Z"});
    object
}

fn refusals(object: &Value, old: Option<&Value>) -> Vec<String> {
    static SCHEMA: LazyLock<CompiledSchema> =
        LazyLock::new(|| compile_schema(crd::schema(&crd::gpu_workload())));
    let errors = Validator::new()
        .validate_compiled(&SCHEMA, object, old)
        .err();
    errors
        .into_iter()
        .flat_map(ValidationErrors::into_vec)
        .map(|error| error.message)
        .collect()
}

fn template(spec: &Value) -> Value {
    json!({"podTemplate": {"spec": spec}})
}

fn value_examples() -> Vec<Example> {
    let containers = json!([{"name": "main", "image": "a"}]);
    let volume = |source: Value| {
        let mut volume = json!({"name": "data"});
        for (key, value) in source.as_object().into_iter().flatten() {
            volume[key] = value.clone();
        }
        workload(&json!({"image": "a", "volumes": [volume]}))
    };
    let mut long = workload(&json!({"image": "a"}));
    long["metadata"]["name"] = json!("x".repeat(64));
    vec![
        Example {
            message: "at most 63 characters",
            old: None,
            accepted: workload(&json!({"image": "a"})),
            refused: long,
        },
        Example {
            message: "exactly one of image and podTemplate",
            old: None,
            accepted: workload(&json!({"image": "a"})),
            refused: workload(&json!({})),
        },
        Example {
            message: "belong to image",
            old: None,
            accepted: workload(&template(&json!({"containers": containers}))),
            refused: workload(
                &json!({"podTemplate": {"spec": {"containers": containers}}, "args": ["x"]}),
            ),
        },
        Example {
            message: "priority and priorityClassName exclude",
            old: None,
            accepted: workload(
                &json!({"image": "a", "priorityClassName": "urgent", "priority": "normal"}),
            ),
            refused: workload(
                &json!({"image": "a", "priorityClassName": "urgent", "priority": "high"}),
            ),
        },
        Example {
            message: "the fewest members a gang starts with",
            old: None,
            accepted: workload(&json!({"image": "a", "replicas": 4, "minReplicas": 2})),
            refused: workload(&json!({"image": "a", "replicas": 4, "minReplicas": 5})),
        },
        Example {
            message: "the key of a node label",
            old: None,
            accepted: workload(
                &json!({"image": "a", "replicas": 2, "topology": {"level": "example.com/leaf_1"}}),
            ),
            refused: workload(
                &json!({"image": "a", "replicas": 2, "topology": {"level": "the same rack"}}),
            ),
        },
        Example {
            message: "a time of at least 1s",
            old: None,
            accepted: workload(&json!({"image": "a", "maxRuntime": "1h30m"})),
            refused: workload(&json!({"image": "a", "maxRuntime": "0s"})),
        },
        Example {
            message: "leave it out for no limit",
            old: None,
            accepted: workload(&json!({"image": "a"})),
            refused: workload(&json!({"image": "a", "maxRuntime": "forever"})),
        },
        Example {
            message: "give signal, period, annotation or path",
            old: None,
            accepted: workload(&json!({"image": "a", "checkpoint": {"path": "/saved"}})),
            refused: workload(&json!({"image": "a", "checkpoint": {"gracePeriod": "2m"}})),
        },
        Example {
            message: "gracePeriod must be a time",
            old: None,
            accepted: workload(
                &json!({"image": "a", "checkpoint": {"signal": "SIGUSR1", "gracePeriod": "2m"}}),
            ),
            refused: workload(
                &json!({"image": "a", "checkpoint": {"signal": "SIGUSR1", "gracePeriod": "0s"}}),
            ),
        },
        Example {
            message: "period must be a time",
            old: None,
            accepted: workload(&json!({"image": "a", "checkpoint": {"period": "1h30m"}})),
            refused: workload(&json!({"image": "a", "checkpoint": {"period": "often"}})),
        },
        Example {
            message: "positive quantity",
            old: None,
            accepted: workload(&json!({"image": "a", "gpu": {"minMemory": "40Gi"}})),
            refused: workload(&json!({"image": "a", "gpu": {"minMemory": "-1Gi"}})),
        },
        Example {
            message: "fraction is a share",
            old: None,
            accepted: workload(
                &json!({"image": "a", "gpu": {"fraction": "0.25", "sharing": "shared"}}),
            ),
            refused: workload(
                &json!({"image": "a", "gpu": {"fraction": "0.25", "sharing": "exclusive"}}),
            ),
        },
        Example {
            message: "fraction and partition exclude",
            old: None,
            accepted: workload(
                &json!({"image": "a", "gpuCount": 3, "gpu": {"partition": "1g.10gb"}}),
            ),
            refused: workload(
                &json!({"image": "a", "gpu": {"partition": "1g.10gb", "fraction": "0.5"}}),
            ),
        },
        Example {
            message: "isolation is for shared GPUs",
            old: None,
            accepted: workload(
                &json!({"image": "a", "gpu": {"fraction": "0.5", "isolation": "none"}}),
            ),
            refused: workload(
                &json!({"image": "a", "gpu": {"sharing": "exclusive", "isolation": "hardware"}}),
            ),
        },
        Example {
            message: "a share is of one GPU",
            old: None,
            accepted: workload(&json!({"image": "a", "replicas": 2, "gpu": {"sharing": "shared"}})),
            refused: workload(&json!({"image": "a", "gpuCount": 2, "gpu": {"sharing": "shared"}})),
        },
        Example {
            message: "rented machines hand out whole GPUs",
            old: None,
            accepted: workload(
                &json!({"image": "a", "gpu": {"sharing": "exclusive"}, "rent": {"maxPrice": "1"}}),
            ),
            refused: workload(
                &json!({"image": "a", "gpu": {"partition": "CPX"}, "rent": {"maxPrice": "1"}}),
            ),
        },
        Example {
            message: "exactly one of persistentVolumeClaim",
            old: None,
            accepted: volume(json!({"emptyDir": {"sizeLimit": "1Gi"}})),
            refused: volume(json!({"emptyDir": {}, "hostPath": {"path": "/data"}})),
        },
        Example {
            message: "podTemplate needs a spec",
            old: None,
            accepted: workload(&template(&json!({"containers": containers}))),
            refused: workload(&json!({"podTemplate": {"metadata": {}}})),
        },
        Example {
            message: "nodeName goes around",
            old: None,
            accepted: workload(&template(
                &json!({"containers": containers, "nodeSelector": {"a": "b"}}),
            )),
            refused: workload(&template(
                &json!({"containers": containers, "nodeName": "n"}),
            )),
        },
        Example {
            message: "restartPolicy must be Never",
            old: None,
            accepted: workload(&template(
                &json!({"containers": containers, "restartPolicy": "Never"}),
            )),
            refused: workload(&template(
                &json!({"containers": containers, "restartPolicy": "Always"}),
            )),
        },
    ]
}

fn transition_examples() -> Vec<Example> {
    let base = json!({"image": "a", "command": ["run"]});
    let free = json!({
        "image": "a", "command": ["run"], "suspend": true, "maxRuntime": "1h", "priority": "high",
        "retryPolicy": {"maxRetries": 1, "backoffSeconds": 5}, "ttlSecondsAfterFinished": 60,
    });
    let changed = |key: &str, value: Value| {
        let mut spec = base.clone();
        spec[key] = value;
        placed(&spec)
    };
    let frozen = |message, refused| Example {
        message,
        old: Some(placed(&base)),
        accepted: placed(&free),
        refused,
    };
    let templated = |image: &str| {
        placed(&template(
            &json!({"containers": [{"name": "main", "image": image}]}),
        ))
    };
    vec![
        frozen(
            "modelName and gpuCount may not",
            changed("gpuCount", json!(2)),
        ),
        frozen(
            "schedulingStrategy may not",
            changed("schedulingStrategy", json!("random")),
        ),
        frozen(
            "priorityClassName may not",
            placed(&json!({"image": "a", "command": ["run"], "priorityClassName": "urgent"})),
        ),
        frozen("replicas may not", changed("replicas", json!(2))),
        Example {
            message: "minReplicas may not",
            old: Some(changed("replicas", json!(2))),
            accepted: changed("replicas", json!(2)),
            refused: placed(
                &json!({"image": "a", "command": ["run"], "replicas": 2, "minReplicas": 1}),
            ),
        },
        Example {
            message: "topology may not",
            old: Some(changed("replicas", json!(2))),
            accepted: changed("replicas", json!(2)),
            refused: placed(
                &json!({"image": "a", "command": ["run"], "replicas": 2, "topology": {"level": "zone"}}),
            ),
        },
        frozen("mpi may not", changed("mpi", json!({"slots": 2}))),
        frozen("gpu may not", changed("gpu", json!({"vendor": "amd"}))),
        frozen("image may not", changed("image", json!("b"))),
        frozen("command may not", placed(&json!({"image": "a"}))),
        frozen("args may not", changed("args", json!(["x"]))),
        frozen(
            "env may not",
            changed("env", json!([{"name": "A", "value": "1"}])),
        ),
        frozen(
            "resources may not",
            changed("resources", json!({"limits": {"cpu": "1"}})),
        ),
        frozen(
            "volumes may not",
            changed("volumes", json!([{"name": "v", "emptyDir": {}}])),
        ),
        frozen(
            "securityContext may not",
            changed("securityContext", json!({"runAsUser": 1000})),
        ),
        frozen(
            "podSecurityContext may not",
            changed("podSecurityContext", json!({"runAsNonRoot": true})),
        ),
        Example {
            message: "podTemplate may not",
            old: Some(templated("a")),
            accepted: templated("a"),
            refused: templated("b"),
        },
        frozen(
            "checkpoint may not",
            changed("checkpoint", json!({"period": "10m"})),
        ),
    ]
}

/// Which rules there are for them is written by hand; the operator compares Jobs by the same fields.
#[test]
fn every_field_that_makes_a_job_is_frozen_while_it_runs() {
    for field in PLACED_FIELDS {
        let frozen = RULES.iter().any(|rule| {
            rule.message.contains(field)
                && rule.message.contains("may not change while it runs")
                && rule.rule.contains(&format!("oldSelf.spec.{field}"))
        });
        assert!(frozen, "{field}");
    }
    let rules = RULES
        .iter()
        .filter(|rule| rule.rule.contains("oldSelf.spec."));
    // Two fields share one rule.
    assert_eq!(rules.count() + 1, PLACED_FIELDS.len());
}

#[test]
fn a_spec_may_change_whenever_nothing_of_it_runs() {
    let of = |image: &str, phase: &str| {
        let mut object = placed(&json!({"image": image}));
        object["status"]["phase"] = json!(phase);
        object
    };
    for (phase, free) in [
        ("Pending", true),
        ("Scheduling", true),
        ("Scheduled", true),
        ("Running", false),
        ("Succeeded", false),
        ("Failed", false),
    ] {
        let said = refusals(&of("b", phase), Some(&of("a", phase)));
        assert_eq!(said.is_empty(), free, "{phase}: {said:?}");
    }
}

#[test]
fn every_rule_accepts_and_refuses_its_example() {
    let examples: Vec<Example> = value_examples()
        .into_iter()
        .chain(transition_examples())
        .collect();
    for rule in RULES {
        let known = examples
            .iter()
            .any(|example| rule.message.contains(example.message));
        assert!(known, "no example for: {}", rule.message);
    }
    for example in examples {
        let accepted = refusals(&example.accepted, example.old.as_ref());
        assert!(
            accepted.is_empty(),
            "{}: accepted example refused: {accepted:?}",
            example.message
        );
        let refused = refusals(&example.refused, example.old.as_ref());
        assert_eq!(refused.len(), 1, "{}: {refused:?}", example.message);
        assert!(
            refused[0].contains(example.message),
            "{}: {refused:?}",
            example.message
        );
    }
}

#[test]
fn before_placement_everything_may_change() {
    let old = workload(&json!({"image": "a"}));
    let new = workload(&json!({"image": "b", "gpuCount": 4, "args": ["x"]}));
    assert_eq!(refusals(&new, Some(&old)), Vec::<String>::new());
}

#[test]
fn defaults_are_the_first_designs() {
    let crd = crd::gpu_workload();
    let object = workload(&json!({"image": "a"}));
    let full = kube_cel::apply_defaults(crd::schema(&crd), &object);
    assert!(
        full["spec"]["priority"].is_null(),
        "whether it was said decides whether its tenant does"
    );
    assert_eq!(
        full["spec"]["retryPolicy"],
        json!({"maxRetries": 3, "backoffSeconds": 30, "maxDisruptions": 50})
    );
    assert_eq!(full["spec"]["suspend"], false);
    assert!(
        full["spec"].get("schedulingStrategy").is_none(),
        "the operator's default applies"
    );
}
