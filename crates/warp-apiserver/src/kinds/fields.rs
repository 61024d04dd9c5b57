//! Reading and filling members of unstructured objects.

use serde_json::{Map, Value};

/// The value at a dotted path.
pub(crate) fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut here = object;
    for step in path.split('.') {
        here = here.get(step)?;
    }
    (!here.is_null()).then_some(here)
}

/// The text at a dotted path; empty when absent.
pub(crate) fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    at(object, path).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn number(object: &Value, path: &str) -> Option<i64> {
    at(object, path).and_then(Value::as_i64)
}

pub(crate) fn flag(object: &Value, path: &str) -> bool {
    at(object, path).and_then(Value::as_bool).unwrap_or(false)
}

/// The list at a dotted path; empty when absent.
pub(crate) fn list<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    at(object, path)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// The members at a dotted path, in order; none when absent.
pub(crate) fn entries<'a>(
    object: &'a Value,
    path: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    at(object, path)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
}

/// Sets a member that is absent or empty.
pub(crate) fn default_to(map: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    let empty = match map.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if empty {
        map.insert(name.to_owned(), value.into());
    }
}

/// The object at `name`, made when absent.
pub(crate) fn object_in<'a>(
    map: &'a mut Map<String, Value>,
    name: &str,
) -> Option<&'a mut Map<String, Value>> {
    let value = map
        .entry(name.to_owned())
        .or_insert_with(|| Value::Object(Map::new()));
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut()
}

/// Whether the dotted paths of two objects hold the same.
pub(crate) fn unchanged(new: &Value, old: &Value, path: &str) -> bool {
    at(new, path) == at(old, path)
}
