//! Behaviour of the schema engine that holds for every value.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{ListKind, MapKind, MergeStrategy, Path, Schema, structural};

/// A schema that uses every way of describing members.
fn schema() -> Schema {
    let schema = json!({
        "type": "object",
        "properties": {"spec": {
            "type": "object",
            "properties": {
                "a": {"type": "string", "default": "x"},
                "b": {"type": "integer", "minimum": 1, "maximum": 5},
                "c": {"type": "array", "items": {"type": "object", "properties": {"d": {"type": "boolean", "default": true}}}},
                "e": {"type": "object", "additionalProperties": {"type": "number"}},
                "f": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "g": {"x-kubernetes-int-or-string": true},
                "h": {"type": "string", "nullable": true},
                "i": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
            },
        }},
    });
    Schema::from_crd(&schema, false).expect("valid")
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-1e6f64..1e6).prop_map(Value::from),
        "[a-z]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            proptest::collection::btree_map("[a-i]", inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

#[allow(clippy::needless_pass_by_value)]
fn object(spec: Value) -> Value {
    json!({"apiVersion": "x/v1", "kind": "X", "metadata": {"name": "n"}, "spec": spec})
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn pruning_removes_exactly_the_unknown_fields_and_is_idempotent(spec in value()) {
        let schema = schema();
        let before = object(spec);
        let mut pruned = before.clone();
        schema.prune(&mut pruned);
        prop_assert!(schema.unknown_fields(&pruned).is_empty());
        prop_assert_eq!(schema.unknown_fields(&before).is_empty(), pruned == before);
        let mut again = pruned.clone();
        schema.prune(&mut again);
        prop_assert_eq!(again, pruned);
    }

    #[test]
    fn defaulting_is_idempotent_and_leaves_no_refused_null(spec in value()) {
        let schema = schema();
        let mut once = object(spec);
        schema.prune(&mut once);
        schema.apply_defaults(&mut once);
        let mut twice = once.clone();
        schema.apply_defaults(&mut twice);
        prop_assert_eq!(&twice, &once);
        if once["spec"].is_object() {
            prop_assert!(once["spec"].get("a").is_some_and(|a| !a.is_null()));
            prop_assert!(once["spec"].get("b").is_none_or(|b| !b.is_null()));
        }
    }

    #[test]
    fn an_unchanged_object_is_never_refused_again(spec in value()) {
        let schema = schema();
        let stored = object(spec);
        let fresh = schema.validate(&stored, None);
        let again = schema.validate(&stored, Some(&stored));
        // Only what is not ratcheted may remain: embedded objects' own metadata.
        for error in &again {
            prop_assert!(fresh.contains(error));
            prop_assert!(error.field.starts_with("spec.i"), "{}", error);
        }
    }

    #[test]
    fn random_schemas_are_judged_without_panic(schema in value()) {
        let _ = structural::check(&schema, &Path::new("s"), true);
        let _ = Schema::from_crd(&json!({"type": "object", "properties": {"spec": schema}}), false);
    }

    #[test]
    fn built_in_schemas_survive_any_body(body in value()) {
        for (group, version, kind) in
            [("", "v1", "Pod"), ("batch", "v1", "Job"), ("apiextensions.k8s.io", "v1", "CustomResourceDefinition")]
        {
            let schema = Schema::builtin(group, version, kind).expect("built in");
            let mut object = object(body.clone());
            let _ = schema.unknown_fields(&object);
            schema.prune(&mut object);
            let _ = schema.decode_error(&object);
        }
    }
}

#[test]
fn built_in_lists_and_maps_say_how_they_merge() {
    let pod = Schema::builtin("", "v1", "Pod").expect("built in");
    let spec = pod.field("spec").expect("spec");
    let containers = spec.field("containers").expect("containers");
    assert_eq!(containers.list_kind(), ListKind::Map(&["name".to_owned()]));
    assert_eq!(containers.merge_key(), MergeStrategy::MergeByKey("name"));
    let ports = containers
        .items()
        .and_then(|c| c.field("ports"))
        .expect("ports");
    assert_eq!(
        ports.list_kind(),
        ListKind::Map(&["containerPort".to_owned(), "protocol".to_owned()])
    );
    assert_eq!(
        ports.merge_key(),
        MergeStrategy::MergeByKey("containerPort")
    );
    let protocol = ports
        .items()
        .and_then(|p| p.field("protocol"))
        .expect("protocol");
    assert_eq!(protocol.default(), Some(&json!("TCP")));
    assert_eq!(
        spec.field("nodeSelector").expect("selector").map_kind(),
        MapKind::Atomic
    );
    let finalizers = pod
        .field("metadata")
        .and_then(|m| m.field("finalizers"))
        .expect("finalizers");
    assert_eq!(
        (finalizers.list_kind(), finalizers.merge_key()),
        (ListKind::Set, MergeStrategy::MergeSet)
    );
    assert!(spec.field("volumes").expect("volumes").retain_keys());
    let tolerations = spec.field("tolerations").expect("tolerations");
    assert_eq!(
        (tolerations.list_kind(), tolerations.merge_key()),
        (ListKind::Atomic, MergeStrategy::Replace)
    );
    let deployment = Schema::builtin("apps", "v1", "Deployment").expect("built in");
    let selector = deployment
        .field("spec")
        .and_then(|s| s.field("selector"))
        .expect("selector");
    assert_eq!(selector.map_kind(), MapKind::Atomic);
}

#[test]
fn unknown_fields_are_named_by_path() {
    let pod = Schema::builtin("", "v1", "Pod").expect("built in");
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "label": {}},
        "spec": {"containers": [{"name": "a", "imag": "x"}], "volumes": [{"name": "v", "emptyDi": {}}]},
        "spce": {},
    });
    assert_eq!(
        pod.unknown_fields(&object),
        [
            "metadata.label",
            "spce",
            "spec.containers[0].imag",
            "spec.volumes[0].emptyDi"
        ]
    );
}
