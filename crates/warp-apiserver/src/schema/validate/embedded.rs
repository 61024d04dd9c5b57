//! Objects embedded in objects (`x-kubernetes-embedded-resource`).

use serde_json::{Map, Value};

use crate::kinds::metadata;
use crate::schema::{FieldError, Path, Schema};

/// Objects embedded in objects carry apiVersion, kind and valid metadata of their own.
pub(super) fn embedded_objects(
    schema: &Schema,
    value: &Value,
    path: &Path,
    root: bool,
    errors: &mut Vec<FieldError>,
) {
    let node = schema.node();
    match value {
        Value::Object(map) => {
            if node.embedded && !root {
                embedded_object(map, path, errors);
            }
            for (name, value) in map {
                if let Some(schema) = node.properties.get(name) {
                    embedded_objects(schema, value, &path.child(name), false, errors);
                } else if let Some(schema) = node.additional_schema() {
                    embedded_objects(schema, value, &path.key(name), false, errors);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = &node.items else { return };
            for (index, item) in list.iter().enumerate() {
                embedded_objects(items, item, &path.index(index), false, errors);
            }
        }
        _ => {}
    }
}

fn embedded_object(map: &Map<String, Value>, path: &Path, errors: &mut Vec<FieldError>) {
    for name in ["apiVersion", "kind"] {
        let path = path.child(name);
        match map.get(name) {
            None => errors.push(FieldError::required(&path, "")),
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(FieldError::invalid(&path, "", "must not be empty"));
            }
            Some(Value::String(text)) if name == "apiVersion" => {
                if text.matches('/').count() > 1 {
                    let detail = format!("unexpected GroupVersion string: {text}");
                    errors.push(FieldError::invalid(&path, text.as_str(), detail));
                }
            }
            Some(Value::String(text)) => {
                let problems = metadata::dns1035_label(&text.to_lowercase());
                if !problems.is_empty() {
                    let detail = format!(
                        "may have mixed case, but should otherwise match: {}",
                        problems.join(",")
                    );
                    errors.push(FieldError::invalid(&path, text.as_str(), detail));
                }
            }
            Some(other) => errors.push(FieldError::invalid(
                &path,
                other.clone(),
                "must be a string",
            )),
        }
    }
    if let Some(meta) = map.get("metadata") {
        errors.extend(metadata::validate_embedded(meta, &path.child("metadata")));
    }
}
