//! What the API server refuses of an InferenceService, rule by rule, with examples it accepts.

// `json!` at the call reads best by value.
#![allow(clippy::needless_pass_by_value)]

use kube_cel::{ValidationErrors, Validator, compile_schema};
use serde_json::{Value, json};
use warp_api::crd;
use warp_api::inferenceservice::RULES;

/// As the API server sees it: with its defaults filled in.
fn service(name: &str, more: Value) -> Value {
    let mut spec = json!({
        "model": {"source": "hf://org/name"},
        "engine": {"type": "vllm", "healthPath": "/health"},
        "replicas": 1, "port": 8000, "startLimit": "1h", "drain": "45s",
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    json!({
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": spec,
    })
}

fn refusals(object: &Value) -> Vec<String> {
    let schema = compile_schema(crd::schema(&crd::inference_service()));
    let errors = Validator::new().validate_compiled(&schema, object, None);
    let errors = errors
        .err()
        .into_iter()
        .flat_map(ValidationErrors::into_vec);
    errors.map(|error| error.message).collect()
}

fn scaling(min: i32, max: i32, window: &str) -> Value {
    json!({"scaling": {
        "min": min, "max": max, "by": "warp", "metric": "inFlight", "target": 8, "window": window,
    }})
}

fn scheduled(at: &str, min: i32) -> Value {
    let mut spec = scaling(1, 2, "5m");
    spec["scaling"]["schedule"] = json!([{"at": at, "min": min}, {"at": "20:30", "min": 1}]);
    spec
}

/// Scaled by an autoscaler of others.
fn given_to(by: &str, more: Value) -> Value {
    let mut spec = scaling(1, 4, "5m");
    spec["scaling"]["by"] = json!(by);
    for (field, value) in more.as_object().into_iter().flatten() {
        spec["scaling"][field] = value.clone();
    }
    spec
}

fn pools(all: Value) -> Value {
    json!({ "accelerators": all })
}

#[test]
fn every_rule_refuses_its_example_and_no_other() {
    let split = |tensor: i32| json!({"tensor": tensor, "pipeline": 1, "data": 2});
    let custom = |engine: Value| {
        let mut whole = json!({"type": "custom", "image": "i:1", "healthPath": "/"});
        for (field, value) in engine.as_object().into_iter().flatten() {
            whole[field] = value.clone();
        }
        json!({"engine": whole})
    };
    for accepted in [
        service("chat", json!({})),
        service(
            &"x".repeat(52),
            json!({"gpuCount": 4, "parallelism": split(2)}),
        ),
        service("chat", scaling(1, 4, "90s")),
        service("chat", scheduled("08:00", 2)),
        service("chat", given_to("hpa", json!({"window": "1h"}))),
        service(
            "chat",
            given_to("keda", json!({"prometheus": "http://p:9090"})),
        ),
        service(
            "chat",
            custom(json!({"command": ["serve"], "advanced": ["--x"]})),
        ),
        service("chat", json!({"startLimit": "1h30m", "drain": "10s"})),
        service("chat", json!({"model": {"cache": "llama", "name": "chat"}})),
        service(
            "chat",
            json!({"model": {"source": "hf://org/Tiny_1.5-chat"}}),
        ),
        service("chat", json!({"model": {"source": "gpt2"}})),
        service(
            "chat",
            json!({"model": {"source": "s3://bucket/models/tiny"}}),
        ),
        service("chat", json!({"model": {"source": "pvc://claim"}})),
        service("chat", json!({"model": {"source": "pvc://claim/a/b..c"}})),
        service(
            "chat",
            pools(
                json!([{"name": "a", "min": 1, "max": 1}, {"name": "b", "min": 0, "gpuCount": 2}]),
            ),
        ),
    ] {
        assert_eq!(refusals(&accepted), Vec::<String>::new(), "{accepted}");
    }
    let refused = [
        (service(&"x".repeat(53), json!({})), "at most 52 characters"),
        (service("a.b", json!({})), "has no dots"),
        (
            service("chat", json!({"model": {"name": "chat"}})),
            "exactly one of model.source and model.cache",
        ),
        (
            service(
                "chat",
                json!({"model": {"source": "a/b", "cache": "llama"}}),
            ),
            "exactly one of model.source and model.cache",
        ),
        (
            service(
                "chat",
                json!({"model": {"cache": "llama", "revision": "v1"}}),
            ),
            "model.revision is not for a cache",
        ),
        (
            service(
                "chat",
                json!({"model": {"cache": "llama", "adapters": [{"name": "a", "source": "org/a"}]}}),
            ),
            "the engine is offline",
        ),
        (
            service("chat", json!({"gpuCount": 3, "parallelism": split(2)})),
            "tensor × pipeline × data",
        ),
        (
            service("chat", scaling(3, 2, "5m")),
            "must not be more than",
        ),
        (service("chat", scheduled("08:00", 3)), "scaling.schedule"),
        (service("chat", scaling(0, 2, "5m")), "needs a gateway"),
        (
            service("chat", json!({"engine": {"type": "custom"}})),
            "a custom engine needs engine.image",
        ),
        (
            service(
                "chat",
                json!({"engine": {"type": "vllm", "command": ["x"]}}),
            ),
            "engine.command is for a custom engine",
        ),
        (
            service("chat", custom(json!({"args": {"a": "b"}}))),
            "engine.args are checked",
        ),
        (
            service("chat", {
                let mut spec = custom(json!({}));
                spec["model"] = json!({"source": "m", "adapters": [{"name": "a", "source": "b"}]});
                spec
            }),
            "model.adapters are not loaded",
        ),
        (
            service("chat", {
                let mut spec = pools(json!([{"name": "a", "min": 0}]));
                spec["gpu"] = json!({"models": ["H100"]});
                spec
            }),
            "are given in each of them",
        ),
        (
            service("chat", {
                let mut spec = pools(json!([{"name": "a", "min": 0}]));
                spec["multiNode"] = json!("auto");
                spec
            }),
            "a copy of accelerators is on one node",
        ),
        (
            service(
                "chat",
                pools(json!([{"name": "a", "min": 0}, {"name": "a", "min": 0}])),
            ),
            "each of accelerators has a name of its own",
        ),
        (
            service("chat", pools(json!([{"name": "a", "min": 3, "max": 2}]))),
            "min of an accelerator",
        ),
        (
            service(
                "chat",
                pools(json!([{"name": "a", "min": 0, "gpuCount": 3, "parallelism": split(2)}])),
            ),
            "gpuCount of an accelerator",
        ),
        (
            service("chat", json!({"startLimit": "soon"})),
            "startLimit must be",
        ),
        (
            service("chat", json!({"startLimit": "0s"})),
            "startLimit must be",
        ),
        (service("chat", json!({"drain": "5 s"})), "drain must be"),
        (
            service("chat", json!({"drain": "100000h"})),
            "drain must be",
        ),
        (service("chat", scaling(1, 2, "5d")), "window must be"),
        (service("chat", scaling(1, 2, "0m0s")), "window must be"),
        (
            service("chat", {
                let mut spec = scaling(1, 2, "5m");
                spec["scaling"]["metric"] = json!("cache");
                spec["scaling"]["target"] = json!(400);
                spec
            }),
            "in percent: from 1 to 100",
        ),
        (
            service("chat", {
                let steps = json!([{"at": "08:00", "min": 2}]);
                given_to("hpa", json!({ "schedule": steps }))
            }),
            "scaling.schedule is not for autoscalers of others",
        ),
        (
            service("chat", given_to("hpa", json!({"window": "2h"}))),
            "scaling.window is at most 1h",
        ),
        (
            service("chat", given_to("keda", json!({}))),
            "scaling.prometheus is the address",
        ),
        (
            service("chat", given_to("hpa", json!({"prometheus": "http://p"}))),
            "scaling.prometheus is the address",
        ),
        (
            service("chat", {
                let mut spec = given_to("keda", json!({"prometheus": "http://p"}));
                spec["engine"] = custom(json!({}))["engine"].clone();
                spec
            }),
            "not known of a custom engine",
        ),
        (
            service("chat", json!({"model": {"source": "pvc://claim/../.."}})),
            "pvc://CLAIM/FOLDER",
        ),
        (
            service("chat", json!({"model": {"source": "pvc:///folder"}})),
            "pvc://CLAIM/FOLDER",
        ),
        (
            service("chat", json!({"model": {"source": "hf://../x"}})),
            "hf://ORG/NAME",
        ),
        (
            service("chat", json!({"model": {"source": "hf://org/../x"}})),
            "hf://ORG/NAME",
        ),
        (
            service("chat", json!({"model": {"source": "hf://"}})),
            "hf://ORG/NAME",
        ),
        (
            service("chat", json!({"model": {"source": "org/../x"}})),
            "it has no '..'",
        ),
        (
            service("chat", json!({"model": {"source": "s3://"}})),
            "name the bucket",
        ),
        (
            service("chat", json!({"model": {"source": "s3:///folder"}})),
            "name the bucket",
        ),
    ];
    for (object, message) in &refused {
        let said = refusals(object);
        assert!(
            said.len() == 1 && said[0].contains(message),
            "{object}: {said:?}"
        );
    }
    for rule in RULES {
        assert!(
            refused
                .iter()
                .any(|(_, message)| rule.message.contains(message)),
            "no example of: {}",
            rule.message
        );
    }
}
