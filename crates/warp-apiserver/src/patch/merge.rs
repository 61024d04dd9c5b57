//! JSON merge patch (RFC 7386).

use serde_json::{Map, Value};

/// Lays `patch` over `object`; nulls remove.
pub fn apply(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Value::Object(map) = object else { return };
    for (name, value) in patch {
        if value.is_null() {
            map.shift_remove(name);
        } else {
            apply(map.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}
