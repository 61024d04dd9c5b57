//! Checks a CRD's `openAPIV3Schema` as strictly as a real server: structural rules, forbidden
//! keywords, list and map extensions, defaults and CEL rules.
//!
//! Works on the JSON as it was sent; the model is only built from what has passed.

mod defaults;
mod keywords;
mod nested;

use serde_json::{Map, Value};

use super::{FieldError, Path};

/// Every refusal of one schema. `status` says whether the status subresource is enabled, which
/// restricts what may stand at the root.
pub(crate) fn check(schema: &Value, path: &Path, status: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(map) = schema.as_object() else {
        return vec![FieldError::required(path, "")];
    };
    if status {
        root_with_status(map, path, &mut errors);
    }
    if flag(map, "nullable") {
        let detail = "nullable cannot be true at the root";
        errors.push(FieldError::forbidden(&path.child("nullable"), detail));
    }
    let mut structural = Vec::new();
    invariants(map, Level::Root, path, &mut structural);
    nested::completeness(map, map, path, path, &mut structural);
    structural.sort_by_key(ToString::to_string);
    let mut rules_apply = structural.is_empty();
    errors.append(&mut structural);
    if rules_apply {
        let mut found = defaults::check(schema, path);
        rules_apply = found.is_empty();
        errors.append(&mut found);
    }
    errors.extend(keywords::check(schema, path, rules_apply));
    errors
}

fn flag(map: &Map<String, Value>, name: &str) -> bool {
    map.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn text<'a>(map: &'a Map<String, Value>, name: &str) -> &'a str {
    map.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn object<'a>(map: &'a Map<String, Value>, name: &str) -> Option<&'a Map<String, Value>> {
    map.get(name).and_then(Value::as_object)
}

fn members<'a>(
    map: &'a Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = (&'a String, &'a Map<String, Value>)> {
    object(map, name)
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((name, value.as_object()?)))
}

fn list<'a>(
    map: &'a Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = (usize, &'a Map<String, Value>)> {
    map.get(name)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .enumerate()
        .filter_map(|(index, value)| Some((index, value.as_object()?)))
}

/// Which part of an object a schema describes; the wording depends on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

const ROOT_WITH_STATUS: [&str; 22] = [
    "description",
    "type",
    "format",
    "title",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "required",
    "items",
    "properties",
    "externalDocs",
    "example",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

/// With a status subresource the schema of `status` is taken out of the root, so nothing may stand
/// at the root that would be lost by that.
fn root_with_status(map: &Map<String, Value>, path: &Path, errors: &mut Vec<FieldError>) {
    let kind = text(map, "type");
    if !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(
            &path.child("type"),
            kind,
            "only \"object\" is allowed as the type at the root of the schema if the status \
             subresource is enabled",
        ));
    }
    let zero = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    };
    let extra = map
        .iter()
        .any(|(name, value)| !ROOT_WITH_STATUS.contains(&name.as_str()) && !zero(value));
    if extra {
        let names: Vec<String> = ROOT_WITH_STATUS
            .iter()
            .map(|name| match *name {
                "x-kubernetes-preserve-unknown-fields" => "XPreserveUnknownFields".to_owned(),
                "x-kubernetes-validations" => "XValidations".to_owned(),
                name => name[..1].to_uppercase() + &name[1..],
            })
            .collect();
        let detail = format!(
            "only [{}] fields are allowed at the root of the schema if the status subresource is \
             enabled",
            names.join(" ")
        );
        errors.push(FieldError::invalid(
            path,
            Value::Object(map.clone()),
            detail,
        ));
    }
}

/// The rules about one schema and everything below it outside of value validations.
fn invariants(map: &Map<String, Value>, level: Level, path: &Path, errors: &mut Vec<FieldError>) {
    let kind = text(map, "type");
    let embedded = flag(map, "x-kubernetes-embedded-resource");
    let preserve = flag(map, "x-kubernetes-preserve-unknown-fields");
    let int_or_string = flag(map, "x-kubernetes-int-or-string");
    if kind == "array" && !map.contains_key("items") {
        errors.push(FieldError::required(
            &path.child("items"),
            "must be specified",
        ));
    }
    if let Some(items) = object(map, "items") {
        invariants(items, Level::Item, &path.child("items"), errors);
    }
    for (name, member) in members(map, "properties") {
        invariants(
            member,
            Level::Field,
            &path.child("properties").key(name),
            errors,
        );
    }
    let additional = map
        .get("additionalProperties")
        .filter(|value| !value.is_null());
    if let Some(additional) = additional {
        let path = path.child("additionalProperties");
        if level == Level::Root {
            errors.push(FieldError::forbidden(&path, "must not be used at the root"));
        }
        if let Some(member) = additional.as_object() {
            invariants(member, Level::Field, &path, errors);
        }
        if embedded {
            let detail = "must not be used if x-kubernetes-embedded-resource is set";
            errors.push(FieldError::forbidden(&path, detail));
        }
    }
    let detail = "must be false if x-kubernetes-int-or-string is true";
    if int_or_string && preserve {
        let path = path.child("x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(&path, true, detail));
    }
    if int_or_string && embedded {
        let path = path.child("x-kubernetes-embedded-resource");
        errors.push(FieldError::invalid(&path, true, detail));
    }
    nested::value_validations(
        map,
        nested::is_int_or_string_any_of(map),
        nested::is_int_or_string_all_of(map),
        path,
        errors,
    );
    type_rules(
        kind,
        embedded,
        int_or_string || preserve,
        level,
        path,
        errors,
    );
    metadata_rules(map, level, embedded, path, errors);
    if embedded && !preserve && object(map, "properties").is_none_or(Map::is_empty) {
        errors.push(FieldError::required(
            &path.child("properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without \
             x-kubernetes-preserve-unknown-fields",
        ));
    }
}

fn type_rules(
    kind: &str,
    embedded: bool,
    untyped_allowed: bool,
    level: Level,
    path: &Path,
    errors: &mut Vec<FieldError>,
) {
    let path = path.child("type");
    if embedded && kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if kind.is_empty() {
            FieldError::required(&path, detail)
        } else {
            FieldError::invalid(&path, kind, detail)
        });
    } else if kind.is_empty() && !untyped_allowed {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(&path, detail));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(
            &path,
            kind,
            "must be object at the root",
        ));
    }
}

fn metadata_rules(
    map: &Map<String, Value>,
    level: Level,
    embedded: bool,
    path: &Path,
    errors: &mut Vec<FieldError>,
) {
    let Some(properties) = object(map, "properties") else {
        return;
    };
    let checked = level == Level::Root || embedded;
    let path = path.child("properties");
    for name in ["kind", "apiVersion"] {
        if let Some(member) = object(properties, name).filter(|_| checked) {
            let kind = text(member, "type");
            if kind != "string" {
                let path = path.key(name).child("type");
                errors.push(FieldError::invalid(&path, kind, "must be string"));
            }
        }
    }
    let Some(metadata) = object(properties, "metadata") else {
        return;
    };
    let path = path.key("metadata");
    let kind = text(metadata, "type");
    if checked && kind != "object" {
        errors.push(FieldError::invalid(
            &path.child("type"),
            kind,
            "must be object",
        ));
    }
    if level == Level::Root {
        let only_names = object(metadata, "properties").is_none_or(|map| {
            map.keys()
                .all(|name| name == "name" || name == "generateName")
        });
        let plain = metadata.iter().all(|(name, value)| {
            matches!(name.as_str(), "type" | "properties" | "default") || is_zero(value)
        });
        if !only_names || !plain {
            errors.push(FieldError::forbidden(
                &path,
                "must not specify anything other than name and generateName, but metadata is \
                 implicitly specified",
            ));
        }
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
