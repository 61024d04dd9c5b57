//! The rules below `allOf`, `anyOf`, `oneOf` and `not`: they may restrict values but describe
//! nothing, and whatever they mention must be described outside of them.

use serde_json::{Map, Value, json};

use super::{is_zero, list, members, object, text};
use crate::schema::{FieldError, Path, parse};

fn is_int_or_string_list(map: &Map<String, Value>) -> bool {
    map.get("anyOf") == Some(&json!([{"type": "integer"}, {"type": "string"}]))
}

/// `anyOf: [{type: integer}, {type: string}]`, the one place where a nested type may stand.
pub(super) fn is_int_or_string_any_of(map: &Map<String, Value>) -> bool {
    is_int_or_string_list(map)
}

/// The same as the first element of `allOf`.
pub(super) fn is_int_or_string_all_of(map: &Map<String, Value>) -> bool {
    list(map, "allOf")
        .next()
        .is_some_and(|(_, first)| is_int_or_string_list(first))
}

pub(super) fn value_validations(
    map: &Map<String, Value>,
    skip_any_of: bool,
    skip_first_all_of: bool,
    path: &Path,
    errors: &mut Vec<FieldError>,
) {
    if !skip_any_of {
        for (index, schema) in list(map, "anyOf") {
            nested(schema, false, &path.child("anyOf").index(index), errors);
        }
    }
    for (index, schema) in list(map, "allOf") {
        let skip = skip_first_all_of && index == 0;
        nested(schema, skip, &path.child("allOf").index(index), errors);
    }
    for (index, schema) in list(map, "oneOf") {
        nested(schema, false, &path.child("oneOf").index(index), errors);
    }
    if let Some(schema) = object(map, "not") {
        nested(schema, false, &path.child("not"), errors);
    }
    let pattern = text(map, "pattern");
    if !pattern.is_empty()
        && let Err(error) = parse::compile_pattern(pattern)
    {
        let reason = error.lines().last().unwrap_or_default();
        let detail = format!("must be a valid regular expression, but isn't: {reason}");
        errors.push(FieldError::invalid(&path.child("pattern"), pattern, detail));
    }
}

fn nested(map: &Map<String, Value>, skip_any_of: bool, path: &Path, errors: &mut Vec<FieldError>) {
    const UNDEFINED: &str = "must be undefined to be structural";
    const EMPTY: &str = "must be empty to be structural";
    const FALSE: &str = "must be false to be structural";
    value_validations(map, skip_any_of, false, path, errors);
    if let Some(items) = object(map, "items") {
        nested(items, false, &path.child("items"), errors);
    }
    for (name, member) in members(map, "properties") {
        nested(member, false, &path.child("properties").key(name), errors);
    }
    let rules = [
        ("type", EMPTY),
        ("additionalProperties", UNDEFINED),
        ("default", UNDEFINED),
        ("title", EMPTY),
        ("description", EMPTY),
        ("nullable", FALSE),
        ("x-kubernetes-preserve-unknown-fields", FALSE),
        ("x-kubernetes-embedded-resource", FALSE),
        ("x-kubernetes-int-or-string", FALSE),
        ("x-kubernetes-list-map-keys", EMPTY),
        ("x-kubernetes-list-type", UNDEFINED),
        ("x-kubernetes-map-type", UNDEFINED),
        ("x-kubernetes-validations", EMPTY),
    ];
    for (name, detail) in rules {
        let present = match (detail, map.get(name)) {
            (_, None | Some(Value::Null)) => false,
            (UNDEFINED, Some(_)) => true,
            (_, Some(value)) => !is_zero(value),
        };
        if present {
            errors.push(FieldError::forbidden(&path.child(name), detail));
        }
    }
    if object(map, "properties").is_some_and(|map| map.contains_key("metadata")) {
        let path = path.child("properties").key("metadata");
        errors.push(FieldError::forbidden(
            &path,
            "must not be specified in a nested context",
        ));
    }
}

/// Whatever a value validation mentions must be described by the schema it restricts.
pub(super) fn completeness(
    rule: &Map<String, Value>,
    schema: &Map<String, Value>,
    described: &Path,
    mentioned: &Path,
    errors: &mut Vec<FieldError>,
) {
    if let Some(not) = object(rule, "not") {
        nested_completeness(
            not,
            Some(schema),
            described,
            &mentioned.child("not"),
            errors,
        );
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        for (index, branch) in list(rule, name) {
            let mentioned = mentioned.child(name).index(index);
            nested_completeness(branch, Some(schema), described, &mentioned, errors);
        }
    }
}

fn nested_completeness(
    rule: &Map<String, Value>,
    schema: Option<&Map<String, Value>>,
    described: &Path,
    mentioned: &Path,
    errors: &mut Vec<FieldError>,
) {
    let Some(schema) = schema else {
        let detail = format!("because it is defined in {mentioned}");
        errors.push(FieldError::required(described, detail));
        return;
    };
    completeness(rule, schema, described, mentioned, errors);
    if let Some(items) = object(rule, "items") {
        let (described, mentioned) = (described.child("items"), mentioned.child("items"));
        nested_completeness(
            items,
            object(schema, "items"),
            &described,
            &mentioned,
            errors,
        );
    }
    for (name, member) in members(rule, "properties") {
        let schema = object(schema, "properties").and_then(|map| object(map, name));
        let described = described.child("properties").key(name);
        let mentioned = mentioned.child("properties").key(name);
        nested_completeness(member, schema, &described, &mentioned, errors);
    }
}
