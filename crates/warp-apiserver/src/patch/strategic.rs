//! Strategic merge patch: lists are merged by the keys their schema names, and directives say what
//! else to do with them (`$patch`, `$retainKeys`, `$setElementOrder/…`, `$deleteFromPrimitiveList/…`).

use std::cmp::Ordering;

use serde_json::{Map, Value};

use crate::codec::status::Status;
use crate::schema::{MergeStrategy, Schema};

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE: &str = "$deleteFromPrimitiveList/";

type Place<'a> = Option<&'a Schema>;

/// Lays `patch` over `object`.
pub fn apply(object: &mut Value, patch: &Value, schema: &Schema) -> Result<(), Status> {
    let (Value::Object(object), Value::Object(patch)) = (object, patch) else {
        return Err(Status::bad_request(
            "a strategic merge patch must be an object",
        ));
    };
    merge_maps(object, patch, Some(schema))
}

fn bad(message: impl Into<String>) -> Status {
    Status::bad_request(message)
}

fn member<'a>(schema: Place<'a>, name: &str) -> Place<'a> {
    let schema = schema?;
    schema.field(name).or_else(|| schema.additional())
}

fn merge_maps(
    object: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    schema: Place<'_>,
) -> Result<(), Status> {
    match patch.get(DIRECTIVE).map(Value::as_str) {
        None | Some(Some("merge")) => {}
        Some(Some("replace")) => {
            *object = patch.clone();
            object.shift_remove(DIRECTIVE);
            return Ok(());
        }
        Some(Some("delete")) => {
            object.clear();
            return Ok(());
        }
        Some(_) => {
            return Err(bad(format!(
                "unknown patch type found: {}",
                patch[DIRECTIVE]
            )));
        }
    }
    if let Some(retain) = patch.get(RETAIN) {
        retain_keys(object, patch, retain)?;
    }
    let before = object.clone();
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix(DELETE) {
            if let Some(Value::Array(items)) = object.get_mut(list) {
                let gone = value
                    .as_array()
                    .ok_or_else(|| bad("the list to delete from is not a list"))?;
                items.retain(|item| !gone.contains(item));
            }
        } else if !name.starts_with('$') {
            merge_member(object, name, value, member(schema, name))?;
        }
    }
    for (name, order) in patch {
        if let Some(list) = name.strip_prefix(ORDER) {
            let order = order
                .as_array()
                .ok_or_else(|| bad("the order of elements is not a list"))?;
            let strategy = member(schema, list);
            let server = before
                .get(list)
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            if let Some(Value::Array(items)) = object.get_mut(list) {
                *items = arrange(std::mem::take(items), order, &server, merge_key(strategy));
            }
        }
    }
    Ok(())
}

fn retain_keys(
    object: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    retain: &Value,
) -> Result<(), Status> {
    let keep = retain
        .as_array()
        .ok_or_else(|| bad("$retainKeys must be a list"))?;
    let kept = |name: &str| keep.iter().any(|key| key.as_str() == Some(name));
    let stray = patch
        .iter()
        .any(|(name, value)| !name.starts_with('$') && !value.is_null() && !kept(name));
    if stray {
        return Err(bad(
            "the list of keys to retain doesn't contain all keys of the patch",
        ));
    }
    object.retain(|name, _| kept(name));
    Ok(())
}

fn merge_member(
    object: &mut Map<String, Value>,
    name: &str,
    value: &Value,
    schema: Place<'_>,
) -> Result<(), Status> {
    if value.is_null() {
        object.shift_remove(name);
        return Ok(());
    }
    match (object.get_mut(name), value) {
        (Some(Value::Object(old)), Value::Object(new)) => merge_maps(old, new, schema),
        (Some(Value::Array(old)), Value::Array(new)) => {
            let merged = merge_lists(std::mem::take(old), new, schema)?;
            *old = merged;
            Ok(())
        }
        _ => {
            let mut fresh = value.clone();
            if !strip_directives(&mut fresh) {
                object.shift_remove(name);
                return Ok(());
            }
            object.insert(name.to_owned(), fresh);
            Ok(())
        }
    }
}

fn merge_key(schema: Place<'_>) -> Option<&str> {
    match schema?.merge_key() {
        MergeStrategy::MergeByKey(key) => Some(key),
        _ => None,
    }
}

fn merge_lists(
    mut old: Vec<Value>,
    new: &[Value],
    schema: Place<'_>,
) -> Result<Vec<Value>, Status> {
    let strategy = schema.map_or(MergeStrategy::Replace, Schema::merge_key);
    let server = old.clone();
    match strategy {
        MergeStrategy::Replace => {
            let mut fresh = new.to_vec();
            fresh.retain_mut(strip_directives);
            Ok(fresh)
        }
        MergeStrategy::MergeSet => {
            for item in new {
                if !old.contains(item) {
                    old.push(item.clone());
                }
            }
            Ok(arrange(old, new, &server, None))
        }
        MergeStrategy::MergeByKey(key) => merge_keyed(old, new, schema, key),
    }
}

fn merge_keyed(
    mut old: Vec<Value>,
    new: &[Value],
    schema: Place<'_>,
    key: &str,
) -> Result<Vec<Value>, Status> {
    let server = old.clone();
    let below = schema.and_then(Schema::items);
    let mut patch = Vec::new();
    let mut replace = false;
    for item in new {
        match item.get(DIRECTIVE).map(Value::as_str) {
            None | Some(Some("merge")) => patch.push(item),
            Some(Some("replace")) => replace = true,
            Some(Some("delete")) => {
                let gone = item.get(key).ok_or_else(|| {
                    bad(format!(
                        "delete patch type with no merge key defined: {key}"
                    ))
                })?;
                old.retain(|known| known.get(key) != Some(gone));
            }
            Some(_) => {
                return Err(bad(format!(
                    "unknown patch type found: {}",
                    item[DIRECTIVE]
                )));
            }
        }
    }
    if replace {
        let mut fresh: Vec<Value> = patch.into_iter().cloned().collect();
        fresh.retain_mut(strip_directives);
        return Ok(fresh);
    }
    for item in &patch {
        let Value::Object(fields) = item else {
            return Err(bad(format!("expected a map in a list merged by {key}")));
        };
        let value = fields.get(key).ok_or_else(|| {
            Status::plain_failure(format!(
                "map: {} does not contain declared merge key: {key}",
                go_text(item)
            ))
        })?;
        let known = old.iter_mut().find(|known| known.get(key) == Some(value));
        if let Some(Value::Object(known)) = known {
            merge_maps(known, fields, below)?;
        } else {
            let mut fresh = (*item).clone();
            strip_directives(&mut fresh);
            old.push(fresh);
        }
    }
    let order: Vec<Value> = patch.into_iter().cloned().collect();
    Ok(arrange(old, &order, &server, Some(key)))
}

/// A value as Go prints it.
fn go_text(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut members: Vec<String> = map
                .iter()
                .map(|(name, value)| format!("{name}:{}", go_text(value)))
                .collect();
            members.sort();
            format!("map[{}]", members.join(" "))
        }
        Value::Array(list) => {
            format!(
                "[{}]",
                list.iter().map(go_text).collect::<Vec<_>>().join(" ")
            )
        }
        Value::String(text) => text.clone(),
        Value::Null => "<nil>".to_owned(),
        other => other.to_string(),
    }
}

/// Removes directives and nulls from a part that is added as a whole. `false`: it asks to be
/// deleted and is not added at all.
fn strip_directives(value: &mut Value) -> bool {
    match value {
        Value::Object(map) => {
            if map.get(DIRECTIVE).and_then(Value::as_str) == Some("delete") {
                return false;
            }
            map.retain(|name, value| {
                !name.starts_with("$patch")
                    && !name.starts_with(RETAIN)
                    && !name.starts_with(ORDER)
                    && !name.starts_with(DELETE)
                    && !value.is_null()
                    && strip_directives(value)
            });
        }
        Value::Array(list) => list.retain_mut(strip_directives),
        _ => {}
    }
    true
}

/// Items named by `order` in that order, the server's own ones between them where they were.
fn arrange(items: Vec<Value>, order: &[Value], server: &[Value], key: Option<&str>) -> Vec<Value> {
    fn identity<'a>(item: &'a Value, key: Option<&str>) -> &'a Value {
        key.and_then(|key| item.get(key)).unwrap_or(item)
    }
    let place = |list: &[Value], item: &Value| {
        list.iter()
            .position(|known| identity(known, key) == identity(item, key))
    };
    let (mut named, mut own): (Vec<Value>, Vec<Value>) = items
        .into_iter()
        .partition(|item| place(order, item).is_some());
    named.sort_by_key(|item| place(order, item));
    own.sort_by_key(|item| place(server, item));
    let mut from = 0;
    for item in own {
        let mine = place(server, &item);
        let at = named[from..]
            .iter()
            .position(|other| {
                place(server, other)
                    .is_some_and(|other| Some(other).cmp(&mine) == Ordering::Greater)
            })
            .map_or(named.len(), |offset| from + offset);
        named.insert(at, item);
        from = at + 1;
    }
    named
}
