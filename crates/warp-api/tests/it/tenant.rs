//! What the API server refuses of a Tenant, rule by rule, with an example it accepts.

// `json!` at the call reads best by value.
#![allow(clippy::needless_pass_by_value)]

use kube_cel::{ValidationErrors, Validator, compile_schema};
use serde_json::{Value, json};
use warp_api::crd;
use warp_api::tenant::RULES;

fn tenant(name: &str, namespaces: Value) -> Value {
    json!({
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": name},
        "spec": {"namespaces": namespaces},
    })
}

fn limited(limits: Value) -> Value {
    let mut object = tenant("team", json!({"names": ["a"]}));
    for (key, value) in limits.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

fn refusals(object: &Value) -> Vec<String> {
    let schema = compile_schema(crd::schema(&crd::tenant()));
    let errors = Validator::new().validate_compiled(&schema, object, None);
    let errors = errors
        .err()
        .into_iter()
        .flat_map(ValidationErrors::into_vec);
    errors.map(|error| error.message).collect()
}

#[test]
fn every_rule_refuses_its_example_and_no_other() {
    let by_name = json!({"names": ["a"]});
    for accepted in [
        tenant("team", by_name.clone()),
        tenant("team", json!({"selector": {"matchLabels": {"team": "a"}}})),
        tenant("team", json!({"selector": {}})),
        tenant(&"x".repeat(63), json!({"names": ["a"], "selector": {}})),
        limited(
            json!({"parent": "company", "quota": [{"gpu": "H100", "nominal": 8}, {"gpu": "amd", "nominal": 0}]}),
        ),
        limited(json!({"defaults": {"priority": "low"}})),
        limited(json!({"defaults": {"priority": "low"}, "priorities": ["low", "normal"]})),
        limited(json!({"owners": [
            {"kind": "Group", "name": "g"},
            {"kind": "ServiceAccount", "name": "bot", "namespace": "ci"},
        ]})),
    ] {
        assert_eq!(refusals(&accepted), Vec::<String>::new(), "{accepted}");
    }
    let refused = [
        (tenant(&"x".repeat(64), by_name), "at most 63 characters"),
        (tenant("team", json!({})), "names or selector must be given"),
        (
            limited(json!({"parent": "team"})),
            "cannot be its own parent",
        ),
        (
            limited(
                json!({"quota": [{"gpu": "H100", "nominal": 8}, {"gpu": "H100", "nominal": 1}]}),
            ),
            "one line for each gpu",
        ),
        (
            limited(json!({"defaults": {"priority": "high"}, "priorities": ["low", "normal"]})),
            "defaults.priority must be one of priorities",
        ),
        (
            limited(json!({"owners": [{"kind": "ServiceAccount", "name": "bot"}]})),
            "given for a ServiceAccount",
        ),
        (
            limited(json!({"owners": [{"kind": "User", "name": "anna", "namespace": "ci"}]})),
            "given for a ServiceAccount",
        ),
        (
            tenant("team", json!({"names": []})),
            "names or selector must be given",
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
