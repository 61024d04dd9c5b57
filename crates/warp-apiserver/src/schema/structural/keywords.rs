//! Keywords and Kubernetes extensions of a schema: which may stand where, with what, and the CEL
//! rules they carry.

use serde_json::{Map, Value, json};

use super::{flag, list, members, object, text};
use crate::schema::cel;
use crate::schema::{FieldError, Path};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Where in the object a schema stands, as far as the rules care.
#[derive(Clone)]
struct Place<'a> {
    /// Why defaults are not allowed here; `None` where they are.
    no_defaults: Option<String>,
    inside_meta: bool,
    /// The schema above which old and new values cannot be matched up.
    uncorrelatable: Option<Path>,
    rules: Option<cel::Scope<'a>>,
}

#[derive(Default)]
struct Found {
    schema: Vec<FieldError>,
    cel: Vec<FieldError>,
}

impl Found {
    fn merge(&mut self, other: Self) {
        self.schema.extend(other.schema);
        self.cel.extend(other.cel);
    }
}

pub(super) fn check(schema: &Value, path: &Path, rules_apply: bool) -> Vec<FieldError> {
    let Some(map) = schema.as_object() else {
        return Vec::new();
    };
    let budget = cel::Budget::default();
    let place = Place {
        no_defaults: None,
        inside_meta: false,
        uncorrelatable: None,
        rules: rules_apply.then(|| cel::Scope::root(schema, &budget)),
    };
    let mut found = node(map, path, true, &place);
    found.cel.extend(budget.errors(path));
    found.schema.extend(found.cel);
    found.schema
}

fn node(map: &Map<String, Value>, path: &Path, root: bool, place: &Place<'_>) -> Found {
    let mut found = Found::default();
    standard(map, path, place, &mut found.schema);
    if flag(map, "uniqueItems") {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes \
                      quadratic";
        found
            .schema
            .push(FieldError::forbidden(&path.child("uniqueItems"), detail));
    }
    additional(map, path, place, &mut found);
    properties(map, path, root, place, &mut found);
    let nested = Place {
        rules: None,
        ..place.clone()
    };
    if let Some(schema) = object(map, "not") {
        found.merge(node(schema, &path.child("not"), false, &nested));
    }
    for name in ["allOf", "oneOf", "anyOf"] {
        for (index, schema) in list(map, name) {
            found.merge(node(schema, &path.child(name).index(index), false, &nested));
        }
    }
    for (name, schema) in members(map, "definitions") {
        found.merge(node(
            schema,
            &path.child("definitions").key(name),
            false,
            &nested,
        ));
    }
    if let Some(items) = object(map, "items") {
        let mut below = place.clone();
        if text(map, "x-kubernetes-list-type") != "map" {
            below.uncorrelatable.get_or_insert_with(|| path.clone());
        }
        below.rules = place.rules.as_ref().map(|scope| scope.items(map, items));
        found.merge(node(items, &path.child("items"), false, &below));
    }
    extensions(map, path, &mut found.schema);
    rules(map, path, place, &mut found);
    found
}

/// What no schema may contain.
fn standard(
    map: &Map<String, Value>,
    path: &Path,
    place: &Place<'_>,
    errors: &mut Vec<FieldError>,
) {
    let kind = text(map, "type");
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(&path.child("type"), kind, &TYPES));
    }
    if map.get("default").is_some_and(|value| !value.is_null())
        && let Some(reason) = &place.no_defaults
    {
        let detail = format!("must not be set {reason}");
        errors.push(FieldError::forbidden(&path.child("default"), detail));
    }
    let unsupported = [
        "id",
        "additionalItems",
        "patternProperties",
        "definitions",
        "dependencies",
        "$ref",
    ];
    for name in unsupported {
        let present = match map.get(name) {
            None | Some(Value::Null) => false,
            Some(Value::String(text)) => name == "$ref" || !text.is_empty(),
            Some(Value::Object(map)) => {
                !map.is_empty() || matches!(name, "dependencies" | "additionalItems")
            }
            Some(_) => true,
        };
        if present {
            let detail = format!("{name} is not supported");
            errors.push(FieldError::forbidden(&path.child(name), detail));
        }
    }
    if kind == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.push(FieldError::forbidden(&path.child("type"), detail));
    }
    if map
        .get("items")
        .is_some_and(|items| items.as_array().is_some_and(|list| !list.is_empty()))
    {
        let detail = "items must be a schema object and not an array";
        errors.push(FieldError::forbidden(&path.child("items"), detail));
    }
    if place.inside_meta && flag(map, "x-kubernetes-embedded-resource") {
        let path = path.child("x-kubernetes-embedded-resource");
        errors.push(FieldError::forbidden(
            &path,
            "must not be used inside of resource meta",
        ));
    }
}

fn additional(map: &Map<String, Value>, path: &Path, place: &Place<'_>, found: &mut Found) {
    let Some(value) = map
        .get("additionalProperties")
        .filter(|value| !value.is_null())
    else {
        return;
    };
    let path = path.child("additionalProperties");
    let has_properties = object(map, "properties").is_some_and(|map| !map.is_empty());
    if has_properties && *value != Value::Bool(true) {
        let detail = "additionalProperties and properties are mutual exclusive";
        found.schema.push(FieldError::forbidden(&path, detail));
    }
    if let Some(schema) = value.as_object() {
        let mut below = place.clone();
        if place.inside_meta {
            let reason = "inside additionalProperties applying to object metadata";
            below.no_defaults = Some(reason.to_owned());
        }
        below.rules = place
            .rules
            .as_ref()
            .map(|scope| scope.additional(map, schema));
        found.merge(node(schema, &path, false, &below));
    }
}

fn properties(
    map: &Map<String, Value>,
    path: &Path,
    root: bool,
    place: &Place<'_>,
    found: &mut Found,
) {
    for (name, schema) in members(map, "properties") {
        let mut below = place.clone();
        if text(map, "x-kubernetes-map-type") == "atomic" {
            below.uncorrelatable.get_or_insert_with(|| path.clone());
        }
        let meta = matches!(name.as_str(), "metadata" | "kind" | "apiVersion");
        if meta && (root || flag(map, "x-kubernetes-embedded-resource")) {
            below.inside_meta = true;
            if root {
                below.no_defaults = Some(format!("in top-level {name}"));
            }
        }
        below.rules = place.rules.as_ref().map(|scope| scope.property(schema));
        found.merge(node(
            schema,
            &path.child("properties").key(name),
            false,
            &below,
        ));
    }
}

fn extensions(map: &Map<String, Value>, path: &Path, errors: &mut Vec<FieldError>) {
    let kind = text(map, "type");
    let type_path = path.child("type");
    let must_be = |wanted: &str, reason: &str| {
        let detail = format!("must be {wanted} if {reason} is specified");
        if kind.is_empty() {
            FieldError::required(&type_path, detail)
        } else {
            FieldError::invalid(&type_path, kind, detail)
        }
    };
    if map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        let path = path.child("x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(
            &path,
            false,
            "must be true or undefined",
        ));
    }
    if let Some(map_type) = map.get("x-kubernetes-map-type").and_then(Value::as_str) {
        if kind != "object" {
            errors.push(must_be("object", "x-kubernetes-map-type"));
        }
        let known = ["atomic", "granular"];
        if !known.contains(&map_type) {
            let path = path.child("x-kubernetes-map-type");
            errors.push(FieldError::not_supported(&path, map_type, &known));
        }
    }
    let list_type = map.get("x-kubernetes-list-type").and_then(Value::as_str);
    let items = object(map, "items");
    match list_type {
        Some(_) if kind != "array" => errors.push(must_be("array", "x-kubernetes-list-type")),
        Some("set") => set_items(items, path, errors),
        _ => {}
    }
    let known = ["atomic", "set", "map"];
    if let Some(list_type) = list_type.filter(|list_type| !known.contains(list_type)) {
        let path = path.child("x-kubernetes-list-type");
        errors.push(FieldError::not_supported(&path, list_type, &known));
    }
    let keys: Vec<&str> = map
        .get("x-kubernetes-list-map-keys")
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    if !keys.is_empty() && list_type != Some("map") {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        let path = path.child("x-kubernetes-list-type");
        errors.push(match list_type {
            None => FieldError::required(&path, detail),
            Some(other) => FieldError::invalid(&path, other, detail),
        });
    }
    if list_type == Some("map") {
        list_map(map, &keys, path, errors);
    }
    if let (Some(list_type @ ("set" | "map")), Some(items)) = (list_type, items) {
        key_presence(list_type, &keys, items, path, errors);
    }
}

/// The items of a set are compared as a whole, so they must be atomic.
fn set_items(items: Option<&Map<String, Value>>, path: &Path, errors: &mut Vec<FieldError>) {
    let Some(items) = items else { return };
    let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let list_type = items
        .get("x-kubernetes-list-type")
        .cloned()
        .unwrap_or(Value::Null);
    match text(items, "type") {
        "array" if !list_type.is_null() && list_type != "atomic" => {
            let path = path.child("items").child("x-kubernetes-list-type");
            errors.push(FieldError::invalid(&path, list_type, detail));
        }
        "object" if text(items, "x-kubernetes-map-type") != "atomic" => {
            let path = path.child("items").child("x-kubernetes-map-type");
            errors.push(FieldError::invalid(&path, list_type, detail));
        }
        _ => {}
    }
}

fn list_map(map: &Map<String, Value>, keys: &[&str], path: &Path, errors: &mut Vec<FieldError>) {
    let keys_path = path.child("x-kubernetes-list-map-keys");
    if keys.is_empty() {
        let detail = "must not be empty if x-kubernetes-list-type is map";
        errors.push(FieldError::required(&keys_path, detail));
    }
    let items_path = path.child("items");
    let Some(items) = object(map, "items") else {
        let detail = "must have a schema if x-kubernetes-list-type is map";
        errors.push(FieldError::required(&items_path, detail));
        return;
    };
    let kind = text(items, "type");
    if kind != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(&items_path.child("type"), kind, detail));
        return;
    }
    for (index, key) in keys.iter().enumerate() {
        match object(items, "properties").and_then(|map| object(map, key)) {
            Some(member) if matches!(text(member, "type"), "array" | "object") => {
                let path = items_path.child("properties").key(key).child("type");
                let detail =
                    "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.push(FieldError::invalid(&path, kind, detail));
            }
            Some(_) => {}
            None => {
                let detail = "entries must all be names of item properties";
                errors.push(FieldError::invalid(&keys_path, json!(keys), detail));
            }
        }
        if keys[..index].contains(key) {
            let detail = "must not contain duplicate entries";
            errors.push(FieldError::invalid(&keys_path, json!(keys), detail));
        }
    }
}

/// Keys must be there: required or defaulted, and never null.
fn key_presence(
    list_type: &str,
    keys: &[&str],
    items: &Map<String, Value>,
    path: &Path,
    errors: &mut Vec<FieldError>,
) {
    let path = path.child("items");
    if flag(items, "nullable") {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.push(FieldError::forbidden(&path.child("nullable"), detail));
    }
    if list_type != "map" {
        return;
    }
    let required: Vec<&str> = items
        .get("required")
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    for key in keys {
        let Some(member) = object(items, "properties").and_then(|map| object(map, key)) else {
            continue;
        };
        let path = path.child("properties").key(key);
        if !required.contains(key) && member.get("default").is_none_or(Value::is_null) {
            errors.push(FieldError::required(
                &path.child("default"),
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be \
                 a required property",
            ));
        }
        if flag(member, "nullable") {
            errors.push(FieldError::forbidden(
                &path.child("nullable"),
                "this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
            ));
        }
    }
}

const REASONS: [&str; 4] = [
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
];

fn rules(map: &Map<String, Value>, path: &Path, place: &Place<'_>, found: &mut Found) {
    let rules: Vec<_> = list(map, "x-kubernetes-validations").collect();
    for (index, rule) in &rules {
        let path = path.child("x-kubernetes-validations").index(*index);
        rule_members(map, rule, &path, &mut found.schema);
    }
    if !found.schema.is_empty() {
        return;
    }
    let Some(scope) = &place.rules else { return };
    for (index, rule) in rules {
        let path = path.child("x-kubernetes-validations").index(index);
        found.cel.extend(cel::check_rule(
            scope,
            map,
            rule,
            &path,
            place.uncorrelatable.as_ref(),
        ));
    }
}

fn rule_members(
    map: &Map<String, Value>,
    rule: &Map<String, Value>,
    path: &Path,
    errors: &mut Vec<FieldError>,
) {
    let breaks = |text: &str| text.contains(['\n', '\r']);
    let (expression, message) = (text(rule, "rule").trim(), text(rule, "message"));
    if expression.is_empty() {
        errors.push(FieldError::required(
            &path.child("rule"),
            "rule is not specified",
        ));
    } else if !message.is_empty() && message.trim().is_empty() {
        let detail = "must be non-empty if specified";
        errors.push(FieldError::invalid(&path.child("message"), message, detail));
    } else if breaks(message.trim()) {
        let detail = "must not contain line breaks";
        errors.push(FieldError::invalid(&path.child("message"), message, detail));
    } else if breaks(expression) && message.trim().is_empty() {
        let detail = "message must be specified if rule contains line breaks";
        errors.push(FieldError::required(&path.child("message"), detail));
    }
    let message_expression = text(rule, "messageExpression");
    if !message_expression.is_empty() && message_expression.trim().is_empty() {
        let detail = "messageExpression must be non-empty if specified";
        errors.push(FieldError::required(
            &path.child("messageExpression"),
            detail,
        ));
    }
    if let Some(reason) = rule.get("reason").and_then(Value::as_str)
        && !REASONS.contains(&reason)
    {
        errors.push(FieldError::not_supported(
            &path.child("reason"),
            reason,
            &REASONS,
        ));
    }
    let field_path = text(rule, "fieldPath");
    let path = path.child("fieldPath");
    if !field_path.is_empty() {
        if field_path.trim().is_empty() {
            let detail = "must be non-empty if specified";
            errors.push(FieldError::invalid(&path, field_path, detail));
        }
        if breaks(field_path) {
            errors.push(FieldError::invalid(
                &path,
                field_path,
                "must not contain line breaks",
            ));
        }
        if cel::field_path(map, field_path, true).is_err() {
            errors.push(FieldError::invalid(
                &path,
                field_path,
                "must be a valid path",
            ));
        }
    }
}
