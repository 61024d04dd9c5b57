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

fn thing(schema: &Value) -> Arc<Resource> {
    let mut resource = Resource::new(
        "example.com",
        "v1",
        "Thing",
        "things",
        Schema::from_crd(schema, false).expect("valid"),
    );
    resource.custom = Some(Custom {
        epoch: 0,
        storage_version: "example.com/v1".to_owned(),
        deprecation: None,
    });
    Arc::new(resource)
}

/// The definition of a thing in version 2 and in version 3.
fn published(schema: &Value) -> [Value; 2] {
    let thing = thing(schema);
    let three = document(&[Arc::clone(&thing)]);
    let two = swagger::document([three.clone()].iter(), [thing.as_ref()].into_iter());
    let name = "com.example.v1.Thing";
    [
        two["definitions"][name].clone(),
        three["components"]["schemas"][name].clone(),
    ]
}

#[test]
fn custom_resources_are_described_as_their_author_wrote() {
    let schema = json!({
        "type": "object", "description": "A thing.",
        "properties": {"spec": {"type": "object", "description": "What is wanted."}},
    });
    let document = document(&[thing(&schema)]);
    let thing = &document["components"]["schemas"]["com.example.v1.Thing"];
    assert_eq!(
        thing["properties"]["spec"],
        json!({"type": "object", "description": "What is wanted."})
    );
    assert!(thing["properties"]["metadata"]["allOf"][0]["$ref"].is_string());
    let list = &document["components"]["schemas"]["com.example.v1.ThingList"];
    assert_eq!(
        list["properties"]["items"]["items"]["$ref"],
        "#/components/schemas/com.example.v1.Thing"
    );
    let path = "/apis/example.com/v1/namespaces/{namespace}/things/{name}";
    let patches = &document["paths"][path]["patch"]["requestBody"]["content"];
    let patches: Vec<&String> = patches.as_object().expect("content").keys().collect();
    assert_eq!(
        patches,
        [
            "application/apply-patch+yaml",
            "application/json-patch+json",
            "application/merge-patch+json"
        ]
    );
}

#[test]
fn custom_resources_are_open_in_version_two_where_it_cannot_say_what_they_are() {
    let [two, three] = published(&json!({
        "type": "object",
        "properties": {"spec": {
            "type": "object",
            "required": ["maybe", "sure"],
            "properties": {
                "maybe": {"type": "object", "nullable": true, "properties": {"a": {"type": "string"}}},
                "sure": {"type": "string", "pattern": "a+", "enum": ["a"]},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                         "properties": {"a": {"type": "string"}}},
                "port": {"x-kubernetes-int-or-string": true, "description": "A port."},
                "inner": {"type": "object", "x-kubernetes-embedded-resource": true,
                          "properties": {"spec": {"type": "object"}}},
                "flag": {"type": "boolean", "default": false, "nullable": false},
            },
        }},
    }));
    let spec = &two["properties"]["spec"];
    assert_eq!(spec["required"], json!(["sure"]));
    let member = |name: &str| spec["properties"][name].clone();
    assert_eq!(member("maybe"), json!({}));
    assert_eq!(
        member("sure"),
        json!({"type": "string", "pattern": "a+", "enum": ["a"]})
    );
    assert_eq!(
        member("free"),
        json!({"x-kubernetes-preserve-unknown-fields": true})
    );
    assert_eq!(
        member("port"),
        json!({"description": "A port.", "x-kubernetes-int-or-string": true})
    );
    assert_eq!(member("flag"), json!({"type": "boolean"}));
    assert_eq!(member("inner")["required"], json!(["kind", "apiVersion"]));
    let spec = &three["properties"]["spec"];
    assert_eq!(spec["required"], json!(["maybe", "sure"]));
    assert_eq!(
        spec["properties"]["port"]["anyOf"],
        json!([{"type": "integer"}, {"type": "string"}])
    );
    assert_eq!(spec["properties"]["maybe"]["nullable"], true);
    assert_eq!(spec["properties"]["flag"]["default"], false);
    assert!(spec["properties"]["free"]["properties"]["a"].is_object());
}

#[test]
fn custom_resources_that_keep_everything_are_only_named_in_version_two() {
    let [two, three] = published(&json!({
        "type": "object", "description": "Anything.", "x-kubernetes-preserve-unknown-fields": true,
    }));
    let kind = json!([{"group": "example.com", "kind": "Thing", "version": "v1"}]);
    assert_eq!(
        two,
        json!({"type": "object", "x-kubernetes-group-version-kind": kind})
    );
    assert_eq!(three["x-kubernetes-preserve-unknown-fields"], true);
    assert_eq!(three["description"], "Anything.");
    assert!(three["properties"]["kind"].is_object());
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
    let document = swagger::document([document(&all)].iter(), std::iter::empty());
    let definitions = document["definitions"].as_object().expect("definitions");
    for resource in &all {
        let kind = |name: String| json!([{"group": resource.group, "kind": name, "version": resource.version}]);
        let name = definition_name(resource);
        let own = &definitions[&name];
        assert_eq!(
            own["x-kubernetes-group-version-kind"],
            kind(resource.kind.clone())
        );
        if !resource.allows("list") {
            continue;
        }
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
