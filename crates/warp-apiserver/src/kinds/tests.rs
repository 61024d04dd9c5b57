//! Behaviour of the built-in kinds as a whole. What each says about an object is pinned by the
//! recorded answers of a real server (`tests/it/recorded.rs`).

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{Quantity, builtin, initial_objects, resources};

#[test]
fn every_kind_of_the_list_is_served_once() {
    let all = builtin();
    let names: Vec<String> = all
        .iter()
        .map(|r| format!("{} {}", r.api_version(), r.kind))
        .collect();
    let distinct: BTreeSet<&String> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
    let served: BTreeSet<&str> = all
        .iter()
        .filter(|r| r.stored_only.is_none() && r.review.is_none())
        .map(|r| r.kind.as_str())
        .collect();
    let expected = [
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "ControllerRevision",
        "CustomResourceDefinition",
        "Deployment",
        "EndpointSlice",
        "Event",
        "Job",
        "Lease",
        "LimitRange",
        "Namespace",
        "Node",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "Pod",
        "PodDisruptionBudget",
        "PodTemplate",
        "PriorityClass",
        "ReplicaSet",
        "ResourceQuota",
        "Role",
        "RoleBinding",
        "Secret",
        "Service",
        "ServiceAccount",
        "StatefulSet",
        "StorageClass",
    ];
    assert_eq!(served, BTreeSet::from(expected));
    let stored: BTreeSet<&str> = all
        .iter()
        .filter(|r| r.stored_only.is_some())
        .map(|r| r.kind.as_str())
        .collect();
    let expected = [
        "HorizontalPodAutoscaler",
        "Ingress",
        "IngressClass",
        "NetworkPolicy",
        "ReplicationController",
    ];
    assert_eq!(stored, BTreeSet::from(expected));
    let groups: BTreeSet<(&str, &str)> = all
        .iter()
        .map(|r| (r.group.as_str(), r.version.as_str()))
        .collect();
    let versions: BTreeSet<&str> = groups.iter().map(|(group, _)| *group).collect();
    assert_eq!(groups.len(), versions.len(), "one version per group");
}

/// Group and version, and the kinds of it, one row a group.
fn rows(kept: impl Fn(&crate::registry::resource::Resource) -> bool) -> String {
    let mut groups: std::collections::BTreeMap<(String, String), BTreeSet<String>> =
        std::collections::BTreeMap::new();
    for resource in builtin().iter().filter(|resource| kept(resource)) {
        groups
            .entry((resource.group.clone(), resource.version.clone()))
            .or_default()
            .insert(resource.kind.clone());
    }
    let head = "| Group | Version | Kinds |\n|---|---|---|\n".to_owned();
    let rows = groups.into_iter().map(|((group, version), kinds)| {
        let group = if group.is_empty() { "core" } else { &group };
        let kinds: Vec<String> = kinds.into_iter().collect();
        format!("| {group} | {version} | {} |\n", kinds.join(", "))
    });
    std::iter::once(head).chain(rows).collect()
}

#[test]
fn the_reference_page_says_what_is_served_and_what_is_only_stored() {
    let page = "docs/reference/embedded.md";
    let served = rows(|resource| resource.stored_only.is_none());
    warp_testkit::page::check_part(page, "kinds served", &served).unwrap();
    let stored = rows(|resource| resource.stored_only.is_some());
    warp_testkit::page::check_part(page, "kinds stored only", &stored).unwrap();
}

#[test]
fn initial_objects_are_valid() {
    let all = builtin();
    for object in initial_objects() {
        let resource = all
            .iter()
            .find(|r| object["kind"] == r.kind.as_str())
            .expect("served");
        let mut stored = object.clone();
        (resource.strategy.default)(&mut stored);
        let errors = (resource.strategy.validate)(&stored);
        assert!(errors.is_empty(), "{object}: {errors:?}");
    }
}

#[test]
fn requests_of_a_pod_are_its_containers_or_its_largest_step() {
    let spec = json!({
        "containers": [
            {"resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "2"}}},
            {"resources": {"requests": {"cpu": "500m"}}},
        ],
        "initContainers": [
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
            {"resources": {"requests": {"cpu": "4"}}},
        ],
        "overhead": {"cpu": "100m"},
    });
    let amounts = resources::pod_requests(&spec);
    assert_eq!(amounts["cpu"].canonical(), "5100m");
    assert_eq!(amounts["nvidia.com/gpu"].canonical(), "2");
}

#[test]
fn quantities_are_read_and_written_as_kubernetes_does() {
    let cases = [
        ("1", "1"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1.5Gi", "1536Mi"),
        ("1024", "1024"),
        ("1024Ki", "1Mi"),
        ("1e3", "1e3"),
        ("0", "0"),
        ("-1", "-1"),
        ("100000000n", "100m"),
        ("1k", "1k"),
        ("1000k", "1M"),
        (".5", "500m"),
        ("5.", "5"),
    ];
    for (text, canonical) in cases {
        assert_eq!(
            Quantity::parse(text).map(Quantity::canonical).as_deref(),
            Ok(canonical),
            "{text}"
        );
    }
    for text in ["", "x", "1x", "1..2", "--1", "1 Gi", "1ki", "e3", "1e"] {
        assert!(Quantity::parse(text).is_err(), "{text}");
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..70_000).prop_map(Value::from),
        prop_oneof![
            "[a-zA-Z0-9./:-]{0,8}",
            Just("1Gi".to_owned()),
            Just("25%".to_owned())
        ]
        .prop_map(Value::from),
    ];
    let names = prop_oneof![
        Just("spec"),
        Just("metadata"),
        Just("containers"),
        Just("name"),
        Just("image"),
        Just("ports"),
        Just("template"),
        Just("selector"),
        Just("matchLabels"),
        Just("resources"),
        Just("limits"),
        Just("requests"),
        Just("cpu"),
        Just("volumes"),
        Just("emptyDir"),
        Just("env"),
        Just("valueFrom"),
        Just("data"),
        Just("type"),
        Just("labels"),
        Just("replicas"),
        Just("strategy"),
        Just("affinity"),
        Just("tolerations"),
        Just("rules"),
        Just("versions"),
        Just("schema"),
        Just("names"),
        Just("status"),
    ];
    leaf.prop_recursive(6, 60, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
            proptest::collection::vec((names.clone(), inner), 0..5).prop_map(|members| {
                let members = members
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value));
                Value::Object(members.collect::<Map<_, _>>())
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn no_kind_panics_on_any_decodable_body(body in value(), other in value()) {
        for resource in builtin() {
            let read = |body: &Value| {
                let mut object = body.clone();
                if !object.is_object() {
                    object = json!({"spec": object});
                }
                object["metadata"] = json!({"name": "x", "uid": "u"});
                resource.schema.prune(&mut object);
                if resource.schema.decode_error(&object).is_some() {
                    return None;
                }
                (resource.strategy.default)(&mut object);
                Some(object)
            };
            let Some(mut object) = read(&body) else { continue };
            let mut again = object.clone();
            (resource.strategy.default)(&mut again);
            prop_assert_eq!(&again, &object, "defaulting {} twice", resource.kind);
            (resource.strategy.prepare_create)(&mut object);
            let _ = (resource.strategy.validate)(&object);
            let now = jiff::Timestamp::UNIX_EPOCH;
            for column in &resource.columns {
                if let crate::registry::resource::Cell::With(cell) = column.cell {
                    let _ = cell(&object, now);
                }
            }
            if let Some(mut new) = read(&other) {
                (resource.strategy.prepare_update)(&mut new, &object);
                let _ = (resource.strategy.validate_update)(&new, &object);
            }
        }
    }

    #[test]
    fn quantities_survive_their_canonical_form(whole in -1_000_000i64..1_000_000, unit in 0usize..6) {
        let text = format!("{whole}{}", ["", "m", "k", "Mi", "Gi", "e3"][unit]);
        let quantity = Quantity::parse(&text).expect("parses");
        prop_assert_eq!(Quantity::parse(&quantity.canonical()), Ok(quantity));
    }
}
