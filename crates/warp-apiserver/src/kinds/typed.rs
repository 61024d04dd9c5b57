//! The round trip of a built-in object through its Go type: decode, default, encode.
//!
//! A real server stores typed objects, so empty optional members vanish, structs always appear,
//! quantities become canonical, and defaults are filled on the way. Everything here follows the
//! table of field facts; the defaults themselves are in `defaults`.

use serde_json::{Map, Value, json};

use super::{Quantity, defaults};
use crate::schema::{Definition, FieldType, Presence, definition_facts};

/// Puts an object of the named type into the form a real server stores.
pub(super) fn round_trip(name: &str, object: &mut Value) {
    if let (Some(definition), Value::Object(map)) = (definition_facts(name), object) {
        visit(definition, map);
    }
}

fn visit(definition: &Definition, map: &mut Map<String, Value>) {
    drop_empty(definition, map);
    fill(definition, map);
    defaults::of_type(definition.name, map);
    descend(definition, map);
}

/// Removes what decoding into Go cannot tell from absence.
fn drop_empty(definition: &Definition, map: &mut Map<String, Value>) {
    for field in &definition.fields {
        if field.inline() {
            if let Some(inner) = message(&field.kind) {
                drop_empty(inner, map);
            }
            continue;
        }
        let Some(value) = map.get(field.name) else {
            continue;
        };
        let empty = match value {
            Value::Null => true,
            _ if is_free(&field.kind) => false,
            _ if field.presence == Presence::Always => false,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty() && matches!(field.kind, FieldType::Map(_)),
            _ if field.pointer => false,
            Value::String(text) => text.is_empty() && is_plain(&field.kind),
            Value::Bool(value) => !value,
            Value::Number(number) => number.as_f64() == Some(0.0) && is_plain(&field.kind),
        };
        if empty {
            map.remove(field.name);
        }
    }
}

/// Values that are whatever they are.
fn is_free(field_type: &FieldType) -> bool {
    matches!(
        field_type,
        FieldType::Scalar("JSON" | "RawExtension" | "FieldsV1")
    )
}

fn is_plain(field_type: &FieldType) -> bool {
    matches!(
        field_type,
        FieldType::Scalar("string" | "int32" | "int64" | "float64" | "bytes")
    )
}

fn message(field_type: &FieldType) -> Option<&'static Definition> {
    match field_type {
        FieldType::Message(name) => definition_facts(name),
        _ => None,
    }
}

/// Adds what encoding from Go always writes.
fn fill(definition: &Definition, map: &mut Map<String, Value>) {
    for field in &definition.fields {
        if field.inline() {
            if let Some(inner) = message(&field.kind) {
                fill(inner, map);
            }
            continue;
        }
        if map.contains_key(field.name) || field.presence == Presence::OmitZero {
            continue;
        }
        let always = field.presence == Presence::Always;
        let value = match &field.kind {
            _ if field.pointer => always.then_some(Value::Null),
            FieldType::Message(_) => Some(json!({})),
            FieldType::Scalar("Time" | "MicroTime" | "RawExtension") => Some(Value::Null),
            FieldType::Scalar("Quantity") => Some(json!("0")),
            FieldType::Scalar("IntOrString") => Some(json!(0)),
            FieldType::List(_) | FieldType::Map(_) => always.then_some(Value::Null),
            FieldType::Scalar("bool") => always.then_some(Value::Bool(false)),
            FieldType::Scalar("int32" | "int64") => always.then_some(json!(0)),
            FieldType::Scalar(_) => always.then_some(json!("")),
        };
        if let Some(value) = value {
            map.insert(field.name.to_owned(), value);
        }
    }
}

fn descend(definition: &Definition, map: &mut Map<String, Value>) {
    for field in &definition.fields {
        if field.inline() {
            if let Some(inner) = message(&field.kind) {
                // An embedded struct is defaulted as a type of its own.
                defaults::of_type(inner.name, map);
                descend(inner, map);
            }
        } else if let Some(value) = map.get_mut(field.name) {
            value_of(&field.kind, value);
        }
    }
}

fn value_of(field_type: &FieldType, value: &mut Value) {
    match (field_type, value) {
        (FieldType::Message(name), Value::Object(map)) => {
            // A schema or something else: an object can only be the schema.
            let name = match *name {
                "apiextensions.JSONSchemaPropsOrArray"
                | "apiextensions.JSONSchemaPropsOrBool"
                | "apiextensions.JSONSchemaPropsOrStringArray" => "apiextensions.JSONSchemaProps",
                name => name,
            };
            if let Some(definition) = definition_facts(name) {
                visit(definition, map);
            }
        }
        (FieldType::List(item), Value::Array(list)) => {
            for value in list {
                if value.is_null() && matches!(**item, FieldType::Message(_)) {
                    *value = json!({});
                }
                value_of(item, value);
            }
        }
        (FieldType::Map(member), Value::Object(map)) => {
            for (_, value) in map.iter_mut() {
                value_of(member, value);
                if **member == FieldType::Scalar("Quantity") {
                    round_to_milli(value);
                }
            }
        }
        (FieldType::Scalar("Quantity"), value) => {
            if let Some(quantity) = Quantity::of(value) {
                *value = Value::String(quantity.canonical());
            }
        }
        (FieldType::Scalar("Time"), Value::String(text)) => {
            if let Ok(time) = text.parse::<jiff::Timestamp>()
                && let Ok(whole) = jiff::Timestamp::from_second(time.as_second())
            {
                *text = whole.to_string();
            }
        }
        (FieldType::Scalar("MicroTime"), Value::String(text)) => {
            if let Ok(time) = text.parse::<jiff::Timestamp>() {
                *text = format!("{time:.6}");
            }
        }
        _ => {}
    }
}

/// Resource amounts are kept in thousandths at most.
fn round_to_milli(value: &mut Value) {
    if let Some(quantity) = Quantity::of(value) {
        *value = Value::String(quantity.round_up_to_milli().canonical());
    }
}
