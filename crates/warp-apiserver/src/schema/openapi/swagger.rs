//! Version 2 of the documents, all groups in one: what kubectl falls back to when it cannot ask the server
//! to validate, as for a `kind: List`.
//!
//! Made from version 3, of built-in kinds without descriptions and paths, which nobody reads here. kubectl wants it in the
//! protobuf form (`proto`), everybody else gets JSON.

mod proto;

use serde_json::{Map, Value, json};

pub(crate) use proto::encode;

use super::custom;
use crate::registry::resource::Resource;

const FROM: &str = "#/components/schemas/";
const TO: &str = "#/definitions/";

/// One document of the definitions in the documents of version 3, and those of custom resources, which
/// are published in full.
pub(crate) fn document<'a>(
    documents: impl Iterator<Item = &'a Value>,
    customs: impl Iterator<Item = &'a Resource>,
) -> Value {
    let mut all = Map::new();
    for document in documents {
        let schemas = document["components"]["schemas"].as_object();
        for (name, schema) in schemas.into_iter().flatten() {
            // Shared definitions come with every group; the one of the kind's own group names it.
            let names_kind = schema.get(KIND).is_some();
            if names_kind || !all.contains_key(name) {
                all.insert(name.clone(), schema.clone());
            }
        }
    }
    let mut definitions: Map<String, Value> = all
        .iter()
        .map(|(name, schema)| (name.clone(), converted(schema, &all)))
        .collect();
    for (name, schema) in customs.flat_map(custom::definitions_of_version_two) {
        definitions.insert(name, schema);
    }
    definitions.sort_keys();
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1.35"},
        "paths": {},
        "definitions": definitions,
    })
}

const KIND: &str = "x-kubernetes-group-version-kind";

/// A schema in the words of version 2. What that version cannot say is left open.
fn converted(schema: &Value, all: &Map<String, Value>) -> Value {
    let Some(map) = schema.as_object() else {
        return json!({});
    };
    let mut out: Map<String, Value> = map
        .iter()
        .filter(|(name, _)| {
            name.starts_with("x-kubernetes-") && *name != "x-kubernetes-validations"
        })
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if let Some(reference) = reference(map) {
        if all.contains_key(reference) {
            out.insert("$ref".to_owned(), format!("{TO}{reference}").into());
        }
        return Value::Object(out);
    }
    let open = [
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-int-or-string",
        "nullable",
    ];
    let kind = map.get("type").and_then(Value::as_str);
    let Some(kind) = kind.filter(|_| !open.iter().any(|name| map.get(*name) == Some(&json!(true))))
    else {
        return Value::Object(out);
    };
    match kind {
        "array" => {
            let Some(items) = map.get("items") else {
                return Value::Object(out);
            };
            out.insert("items".to_owned(), converted(items, all));
        }
        "object" => {
            if let Some(properties) = map.get("properties").and_then(Value::as_object) {
                let properties: Map<String, Value> = properties
                    .iter()
                    .map(|(name, member)| (name.clone(), converted(member, all)))
                    .collect();
                out.insert("properties".to_owned(), properties.into());
            }
            if let Some(others) = map.get("additionalProperties").filter(|o| o.is_object()) {
                out.insert("additionalProperties".to_owned(), converted(others, all));
            }
            if let Some(required) = map.get("required") {
                out.insert("required".to_owned(), required.clone());
            }
        }
        _ => {
            if let Some(format) = map.get("format") {
                out.insert("format".to_owned(), format.clone());
            }
        }
    }
    out.insert("type".to_owned(), kind.into());
    Value::Object(out)
}

/// What the schema refers to, plainly or wrapped so that other words may stand beside it.
fn reference(map: &Map<String, Value>) -> Option<&str> {
    let wrapped = || match map.get("allOf")?.as_array()?.as_slice() {
        [one] => one.get("$ref"),
        _ => None,
    };
    let reference = map.get("$ref").or_else(wrapped)?.as_str()?;
    Some(reference.strip_prefix(FROM).unwrap_or(reference))
}
