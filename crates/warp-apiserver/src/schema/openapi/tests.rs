//! Behaviour of the documents.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{definition_name, document, swagger};
use crate::kinds;
use crate::registry::resource::{Custom, Resource};
use crate::schema::{FieldType, Schema, definition_facts};

fn of_group(group: &str) -> Value {
    let resources: Vec<Arc<Resource>> = kinds::builtin()
        .into_iter()
        .filter(|r| r.group == group)
        .map(Arc::new)
        .collect();
    document(&resources)
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(text)) = map.get("$ref") {
                found.insert(text.clone());
            }
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn every_reference_of_every_document_resolves() {
    let groups: BTreeSet<String> = kinds::builtin().into_iter().map(|r| r.group).collect();
    for group in groups {
        let document = of_group(&group);
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        for reference in found {
            let name = reference
                .strip_prefix("#/components/schemas/")
                .expect("a local reference");
            assert!(
                document["components"]["schemas"].get(name).is_some(),
                "{group}: {name}"
            );
        }
    }
}

#[test]
fn every_kind_can_be_found_by_group_version_and_kind() {
    for resource in kinds::builtin() {
        let document = document(&[Arc::new(resource.clone())]);
        let wanted =
            json!({"group": resource.group, "version": resource.version, "kind": resource.kind});
        let schemas = document["components"]["schemas"]
            .as_object()
            .expect("schemas");
        let found = schemas.values().any(|schema| {
            schema["x-kubernetes-group-version-kind"]
                .as_array()
                .is_some_and(|l| l.contains(&wanted))
        });
        assert!(found, "{}", resource.kind);
    }
}

#[test]
fn patches_of_pods_take_field_validation_and_lists_have_their_keys() {
    let document = of_group("");
    let patch = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
    let names: Vec<&str> = patch["parameters"]
        .as_array()
        .expect("parameters")
        .iter()
        .filter_map(|p| p["name"].as_str())
        .collect();
    assert!(names.contains(&"fieldValidation"));
    let schemas = &document["components"]["schemas"];
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    let port = &schemas["io.k8s.api.core.v1.ContainerPort"]["properties"]["protocol"];
    assert_eq!(port["default"], "TCP");
    assert_eq!(port["enum"], json!(["SCTP", "TCP", "UDP"]));
}

#[test]
fn custom_resources_are_described_as_their_author_wrote() {
    let schema = json!({
        "type": "object", "description": "A thing.",
        "properties": {"spec": {"type": "object", "description": "What is wanted."}},
    });
    let mut resource = Resource::new(
        "example.com",
        "v1",
        "Thing",
        "things",
        Schema::from_crd(&schema, false).expect("valid"),
    );
    resource.custom = Some(Custom {
        epoch: 0,
        storage_version: "example.com/v1".to_owned(),
        deprecation: None,
    });
    let document = document(&[Arc::new(resource)]);
    let thing = &document["components"]["schemas"]["com.example.v1.Thing"];
    assert_eq!(
        thing["properties"]["spec"]["description"],
        "What is wanted."
    );
    assert!(thing["properties"]["metadata"]["allOf"][0]["$ref"].is_string());
    assert!(
        document["paths"]
            .get("/apis/example.com/v1/namespaces/{namespace}/things/{name}")
            .is_some()
    );
}

/// The table and the library describe the same types: every member the library knows is in the
/// table, with the same shape, and the other way round.
#[test]
fn the_table_of_facts_agrees_with_the_library() {
    let mut compared = 0;
    for group in [
        "",
        "apps",
        "batch",
        "policy",
        "storage.k8s.io",
        "networking.k8s.io",
        "apiextensions.k8s.io",
        "rbac.authorization.k8s.io",
    ] {
        let document = of_group(group);
        for (name, schema) in document["components"]["schemas"]
            .as_object()
            .expect("schemas")
        {
            let Some(facts) =
                super::definitions::table_name(name).and_then(|n| definition_facts(&n))
            else {
                continue;
            };
            let Some(properties) = schema["properties"].as_object() else {
                continue;
            };
            let described = Schema::of_definition(facts.name).expect("described");
            let theirs: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
            let ours: BTreeSet<&str> = described.fields().map(|(name, _)| name).collect();
            assert_eq!(theirs, ours, "{name}");
            for field in facts.fields.iter().filter(|field| !field.inline()) {
                let kind = properties[field.name]["type"].as_str();
                let expected = match &field.kind {
                    FieldType::List(_) => Some("array"),
                    FieldType::Map(_) => Some("object"),
                    FieldType::Scalar("int32" | "int64") => Some("integer"),
                    FieldType::Scalar("bool") => Some("boolean"),
                    FieldType::Scalar("string" | "bytes") => Some("string"),
                    _ => continue,
                };
                assert_eq!(kind, expected, "{name}.{}", field.name);
            }
            compared += 1;
        }
    }
    assert!(compared > 200, "only {compared} types were compared");
}

/// The fields of a protobuf message: number and bytes.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(message: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = message.split_first().expect("a whole number");
            *message = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut all = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        assert_eq!(tag & 7, 2, "every field here has a length");
        let length = usize::try_from(varint(&mut message)).expect("small");
        let (value, rest) = message.split_at(length);
        message = rest;
        all.push((tag >> 3, value));
    }
    all
}

#[test]
fn version_two_has_every_kind_and_its_list_in_both_forms() {
    let all: Vec<Arc<Resource>> = crate::kinds::builtin().into_iter().map(Arc::new).collect();
    let document = swagger::document([document(&all)].iter());
    let definitions = document["definitions"].as_object().expect("definitions");
    for resource in &all {
        let kind = |name: String| json!([{"group": resource.group, "kind": name, "version": resource.version}]);
        let name = definition_name(resource);
        let own = &definitions[&name];
        assert_eq!(
            own["x-kubernetes-group-version-kind"],
            kind(resource.kind.clone())
        );
        let list = &definitions[&format!("{name}List")];
        assert_eq!(
            list["x-kubernetes-group-version-kind"],
            kind(format!("{}List", resource.kind))
        );
    }
    let text = document.to_string();
    for reference in text.split("#/definitions/").skip(1) {
        let name = reference.split('"').next().expect("a name");
        assert!(definitions.contains_key(name), "{name} is referred to");
    }
    let deployment = &definitions["io.k8s.api.apps.v1.DeploymentSpec"];
    assert_eq!(deployment["required"], json!(["selector", "template"]));
    assert_eq!(
        deployment["properties"]["replicas"],
        json!({"type": "integer", "format": "int32"})
    );
    let encoded = swagger::encode(&document);
    let top = fields(&encoded);
    assert_eq!(top[0], (1, b"2.0".as_slice()));
    let (_, encoded) = top.last().expect("definitions");
    let names: Vec<&str> = fields(encoded)
        .into_iter()
        .map(|(_, named)| std::str::from_utf8(fields(named)[0].1).expect("text"))
        .collect();
    let expected: Vec<&str> = definitions.keys().map(String::as_str).collect();
    assert_eq!(names, expected);
}
