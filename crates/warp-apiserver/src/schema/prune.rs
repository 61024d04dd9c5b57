//! Unknown fields, pruning and defaulting: what happens to a value before it is judged.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::{Additional, Node, Schema};

const META: [&str; 3] = ["apiVersion", "kind", "metadata"];

pub(super) fn prune(schema: &Schema, object: &mut Value) {
    walk(Some(schema), object, &mut String::new(), &mut |_| {});
    prune_metadata(schema, object, "", &mut |_| {});
}

pub(super) fn unknown_fields(schema: &Schema, object: &Value) -> Vec<String> {
    let mut copy = object.clone();
    let mut found = Vec::new();
    walk(Some(schema), &mut copy, &mut String::new(), &mut |path| {
        found.push(path.to_owned());
    });
    prune_metadata(schema, &mut copy, "", &mut |path| {
        found.push(path.to_owned());
    });
    found.sort();
    found
}

/// The members a schema declares plus those its `additionalProperties` admits.
enum Member<'a> {
    Known(Option<&'a Schema>),
    Unknown,
}

fn member<'a>(node: &'a Node, name: &str) -> Member<'a> {
    if let Some(schema) = node.properties.get(name) {
        return Member::Known(Some(schema));
    }
    match &node.additional {
        Additional::Schema(schema) => Member::Known(Some(schema)),
        // `additionalProperties: true` admits the name but says nothing about what is below it,
        // and what is not described is pruned.
        Additional::Any | Additional::Refused => Member::Known(None),
        Additional::Unset => Member::Unknown,
    }
}

fn walk(
    schema: Option<&Schema>,
    value: &mut Value,
    path: &mut String,
    report: &mut dyn FnMut(&str),
) {
    let node = schema.map(Schema::node);
    if let Some(node) = node.filter(|node| node.preserve_unknown) {
        walk_preserved(node, value, path, report);
        return;
    }
    match value {
        Value::Object(map) => walk_map(node, map, path, report),
        Value::Array(list) => {
            let items = node.and_then(|node| node.items.as_ref());
            walk_list(list, path, |item, path| walk(items, item, path, report));
        }
        _ => {}
    }
}

fn walk_map(
    node: Option<&Node>,
    map: &mut Map<String, Value>,
    path: &mut String,
    report: &mut dyn FnMut(&str),
) {
    let length = path.len();
    let Some(node) = node else {
        for name in map.keys() {
            push_name(path, name);
            report(path);
            path.truncate(length);
        }
        map.clear();
        return;
    };
    map.retain(|name, value| {
        if node.embedded && META.contains(&name.as_str()) {
            return true;
        }
        push_name(path, name);
        let keep = match member(node, name) {
            Member::Known(schema) => {
                walk(schema, value, path, report);
                true
            }
            Member::Unknown => {
                if length > 0 || !META.contains(&name.as_str()) {
                    report(path);
                }
                false
            }
        };
        path.truncate(length);
        keep
    });
}

/// Below `x-kubernetes-preserve-unknown-fields` only what is described is looked into.
fn walk_preserved(node: &Node, value: &mut Value, path: &mut String, report: &mut dyn FnMut(&str)) {
    let length = path.len();
    match value {
        Value::Object(map) => {
            for (name, value) in map.iter_mut() {
                if node.embedded && META.contains(&name.as_str()) {
                    continue;
                }
                let schema = match node.properties.get(name) {
                    Some(schema) => Some(schema),
                    None => match &node.additional {
                        Additional::Schema(schema) => Some(schema),
                        Additional::Any | Additional::Refused => None,
                        Additional::Unset => continue,
                    },
                };
                push_name(path, name);
                walk(schema, value, path, report);
                path.truncate(length);
            }
        }
        Value::Array(list) => {
            if let Some(items) = &node.items {
                walk_list(list, path, |item, path| {
                    walk_preserved(items.node(), item, path, report);
                });
            }
        }
        _ => {}
    }
}

fn walk_list(
    list: &mut [Value],
    path: &mut String,
    mut visit: impl FnMut(&mut Value, &mut String),
) {
    let length = path.len();
    for (index, item) in list.iter_mut().enumerate() {
        let _ = write!(path, "[{index}]");
        visit(item, path);
        path.truncate(length);
    }
}

fn push_name(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

/// Metadata of the object and of embedded objects is typed: its unknown members go too.
fn prune_metadata(schema: &Schema, value: &mut Value, path: &str, report: &mut dyn FnMut(&str)) {
    let node = schema.node();
    match value {
        Value::Object(map) => {
            for (name, value) in map.iter_mut() {
                let mut below = path.to_owned();
                push_name(&mut below, name);
                if node.embedded && name == "metadata" {
                    if let Some(meta) = Schema::builtin("meta", "v1", "ObjectMeta") {
                        walk(Some(&meta), value, &mut below, report);
                    }
                } else if let Member::Known(Some(schema)) = member(node, name) {
                    prune_metadata(schema, value, &below, report);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &node.items {
                for (index, item) in list.iter_mut().enumerate() {
                    prune_metadata(items, item, &format!("{path}[{index}]"), report);
                }
            }
        }
        _ => {}
    }
}

pub(super) fn apply_defaults(schema: &Schema, object: &mut Value) {
    drop_nulls(Some(schema), object);
    fill(schema, object);
}

/// Whether a null here is neither allowed nor replaced by a default.
fn refuses_null(schema: Option<&Schema>) -> bool {
    schema.is_some_and(|schema| !schema.node().nullable && schema.0.default.is_none())
}

fn drop_nulls(schema: Option<&Schema>, value: &mut Value) {
    let node = schema.map(Schema::node);
    match value {
        Value::Object(map) => map.retain(|name, value| {
            let schema = node.and_then(|node| {
                node.properties
                    .get(name)
                    .or_else(|| node.additional_schema())
            });
            if value.is_null() && refuses_null(schema) {
                return false;
            }
            drop_nulls(schema, value);
            true
        }),
        Value::Array(list) => {
            let items = node.and_then(|node| node.items.as_ref());
            for item in list {
                drop_nulls(items, item);
            }
        }
        _ => {}
    }
}

fn default_for_null(schema: &Schema, value: &Value) -> Option<Value> {
    (value.is_null() && !schema.node().nullable)
        .then(|| schema.0.default.clone())
        .flatten()
}

fn fill(schema: &Schema, value: &mut Value) {
    let node = schema.node();
    match value {
        Value::Object(map) => {
            for (name, member) in &node.properties {
                let Some(default) = &member.0.default else {
                    continue;
                };
                let missing = map
                    .get(name)
                    .is_none_or(|value| value.is_null() && !member.node().nullable);
                if missing {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in map.iter_mut() {
                if let Some(member) = node.properties.get(name) {
                    fill(member, value);
                } else if let Some(member) = node.additional_schema() {
                    if let Some(default) = default_for_null(member, value) {
                        *value = default;
                    }
                    fill(member, value);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = &node.items else { return };
            for item in list {
                if let Some(default) = default_for_null(items, item) {
                    *item = default;
                }
                fill(items, item);
            }
        }
        _ => {}
    }
}
