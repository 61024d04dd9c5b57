//! What the API server refuses of a ModelCache, rule by rule, with examples it accepts.

// `json!` at the call reads best by value.
#![allow(clippy::needless_pass_by_value)]

use kube_cel::{ValidationErrors, Validator, compile_schema};
use serde_json::{Value, json};
use warp_api::crd;
use warp_api::modelcache::RULES;

fn cache(name: &str, source: Value, size: &str) -> Value {
    json!({
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "ModelCache",
        "metadata": {"name": name},
        "spec": {"source": source, "size": size, "accessMode": "ReadWriteMany"},
    })
}

fn refusals(object: &Value, before: Option<&Value>) -> Vec<String> {
    let schema = compile_schema(crd::schema(&crd::model_cache()));
    let errors = Validator::new().validate_compiled(&schema, object, before);
    let errors = errors
        .err()
        .into_iter()
        .flat_map(ValidationErrors::into_vec);
    errors.map(|error| error.message).collect()
}

#[test]
fn every_rule_refuses_its_example_and_no_other() {
    let hub = json!({"huggingface": {"repository": "a/b", "revision": "main"}});
    let pvc = |path: &str| json!({"pvc": {"claimName": "c", "path": path}});
    let s3 =
        |prefix: &str| json!({"s3": {"bucket": "models", "prefix": prefix, "region": "us-east-1"}});
    let listed = |url: &str, path: &str| json!({"http": {"url": url, "files": [{"path": path}]}});
    let gcs = |prefix: &str| json!({"gcs": {"bucket": "models", "prefix": prefix}});
    let azure = |prefix: &str| json!({"azure": {"account": "acc", "container": "models", "prefix": prefix}});
    let good = cache("m", hub.clone(), "5Gi");
    for (accepted, before) in [
        (good.clone(), None),
        (cache("m", pvc("a/b..c"), "5Gi"), Some(&good)),
        (
            cache("m", json!({"http": {"url": "https://h/f"}}), "5Gi"),
            None,
        ),
        (cache("m", s3("llama/8b"), "5Gi"), None),
        (cache("m", gcs("llama/8b"), "5Gi"), None),
        (cache("m", azure("llama/8b"), "5Gi"), None),
        (
            cache(
                "m",
                json!({"oci": {"reference": "ghcr.io/a/b:v1", "plainHttp": false}}),
                "5Gi",
            ),
            None,
        ),
        (cache("m", listed("https://h/m/", "a/b.json"), "5Gi"), None),
    ] {
        assert_eq!(
            refusals(&accepted, before),
            Vec::<String>::new(),
            "{accepted}"
        );
    }
    let both = json!({"huggingface": hub["huggingface"], "http": {"url": "https://h/f"}});
    let mut class = good.clone();
    class["spec"]["storageClass"] = json!("fast");
    let on_nodes = |path: &str| {
        let mut object = good.clone();
        object["spec"]["nodes"] = json!({"path": path});
        object
    };
    let mut both_ways = on_nodes("/models");
    both_ways["spec"]["optimize"] = json!({"image": "i"});
    let kept = on_nodes("/models");
    let refused = [
        (
            on_nodes("/models/../etc"),
            None,
            "must be a folder of the node",
        ),
        (both_ways, None, "cannot be given with nodes"),
        (on_nodes("/models"), Some(&good), "cannot be added"),
        (on_nodes("/other"), Some(&kept), "cannot be added"),
        (
            cache(&"x".repeat(49), hub.clone(), "5Gi"),
            None,
            "at most 48 characters",
        ),
        (cache("m", json!({}), "5Gi"), None, "exactly one of"),
        (cache("m", both, "5Gi"), None, "exactly one of"),
        (
            cache("m", pvc("a/../.."), "5Gi"),
            None,
            "must stay on the volume",
        ),
        (
            cache("m", json!({"http": {"url": "https://h/m/"}}), "5Gi"),
            None,
            "unless files are listed",
        ),
        (
            cache("m", listed("https://h/m?x=1", "a"), "5Gi"),
            None,
            "with files, url is a folder",
        ),
        (
            cache("m", listed("https://h/m", "a/../b"), "5Gi"),
            None,
            "must stay below url",
        ),
        (
            cache("m", s3("a/../b"), "5Gi"),
            None,
            "must be a path in the bucket",
        ),
        (
            cache("m", gcs("a/../b"), "5Gi"),
            None,
            "must be a path in Google's bucket",
        ),
        (
            cache("m", azure("../b"), "5Gi"),
            None,
            "must be a path in the container",
        ),
        (cache("m", hub, "6Gi"), Some(&good), "cannot be changed"),
        (class, Some(&good), "cannot be changed"),
    ];
    for (object, before, message) in &refused {
        let said = refusals(object, *before);
        assert!(
            said.len() == 1 && said[0].contains(message),
            "{object}: {said:?}"
        );
    }
    for rule in RULES {
        assert!(
            refused
                .iter()
                .any(|(_, _, message)| rule.message.contains(message)),
            "no example of: {}",
            rule.message
        );
    }
}
