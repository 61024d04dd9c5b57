//! Lists that are sets or maps (`x-kubernetes-list-type`): nothing in them twice, and which old item a
//! new one corresponds to.

use serde_json::Value;

use crate::schema::error::go_json;
use crate::schema::{FieldError, ListType, Node, Path, Schema};

/// The old item a new item of a list-map corresponds to; other lists have no such notion.
pub(in crate::schema) fn correlate_item<'a>(
    node: &Node,
    item: &Value,
    old: &'a Value,
) -> Option<&'a Value> {
    if node.list_type != ListType::Map {
        return None;
    }
    let key = |item: &Value| -> Vec<Value> {
        let defaults = node.items.as_ref().map(Schema::node);
        node.list_keys
            .iter()
            .map(|name| {
                let default = || {
                    defaults
                        .and_then(|items| items.properties.get(name))
                        .and_then(|schema| schema.default().cloned())
                };
                item.get(name)
                    .cloned()
                    .or_else(default)
                    .unwrap_or(Value::Null)
            })
            .collect()
    };
    let wanted = key(item);
    old.as_array()?
        .iter()
        .find(|candidate| key(candidate) == wanted)
}

/// `x-kubernetes-list-type`: sets and list-maps hold no duplicate.
pub(super) fn list_keys(schema: &Schema, value: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let node = schema.node();
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if let Some(schema) = node.properties.get(name) {
                    list_keys(schema, value, &path.child(name), errors);
                } else if let Some(schema) = node.additional_schema() {
                    list_keys(schema, value, &path.key(name), errors);
                }
            }
        }
        Value::Array(list) => {
            match node.list_type {
                ListType::Set => duplicates(list, path, errors),
                ListType::Map => list_map_keys(node, list, path, errors),
                ListType::Unset | ListType::Atomic => {}
            }
            let Some(items) = &node.items else { return };
            for (index, item) in list.iter().enumerate() {
                list_keys(items, item, &path.index(index), errors);
            }
        }
        _ => {}
    }
}

/// Reports each value that occurs more than once, at its second place.
fn duplicates(list: &[Value], path: &Path, errors: &mut Vec<FieldError>) {
    let mut seen: std::collections::HashMap<String, usize> = std::collections::HashMap::new();
    for (index, item) in list.iter().enumerate() {
        let times = seen.entry(go_json(item)).or_insert(0);
        *times += 1;
        if *times == 2 {
            errors.push(FieldError::duplicate(&path.index(index), item.clone()));
        }
    }
}

fn list_map_keys(node: &Node, list: &[Value], path: &Path, errors: &mut Vec<FieldError>) {
    if let Some(index) = list
        .iter()
        .position(|item| !item.is_object() && !item.is_null())
    {
        let detail = "must be an object for an array of list-type map";
        errors.push(FieldError::invalid(
            &path.index(index),
            list[index].clone(),
            detail,
        ));
        return;
    }
    let keys: Vec<Value> = list
        .iter()
        .map(|item| {
            let members = node.list_keys.iter();
            members
                .filter_map(|key| item.get(key).map(|v| (key.clone(), v.clone())))
                .collect()
        })
        .map(Value::Object)
        .collect();
    duplicates(&keys, path, errors);
}
