//! What Go's typed JSON decoder says when a value does not fit its field.
//!
//! Only for built-in kinds: custom resources are not typed, their schema judges them.

use serde_json::Value;

use super::{JsonType, Node, Schema};

pub(super) fn decode_error(schema: &Schema, object: &Value) -> Option<String> {
    let root = schema.0.reference.or(schema.0.go_type).unwrap_or("Object");
    check(schema, object, short(root), "")
}

fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn check(schema: &Schema, value: &Value, owner: &str, path: &str) -> Option<String> {
    let node = schema.node();
    if value.is_null() || node.preserve_unknown && node.kind.is_none() {
        return None;
    }
    if let Some(reason) = mismatch(schema, node, value) {
        return Some(match reason {
            Mismatch::Type(found) => {
                let go_type = go_type(schema, node);
                let place = if path.is_empty() {
                    String::new()
                } else {
                    format!("Go struct field {owner}.{path} of type ")
                };
                let place = if place.is_empty() {
                    "Go value of type ".to_owned()
                } else {
                    place
                };
                format!("json: cannot unmarshal {found} into {place}{go_type}")
            }
            Mismatch::Text(text) => text,
        });
    }
    match value {
        Value::Object(map) => map.iter().find_map(|(name, value)| {
            if let Some(member) = node.properties.get(name) {
                check(member, value, owner_of(schema, owner), &join(path, name))
            } else {
                // Keys of a map are not part of the path.
                check(node.additional_schema()?, value, owner, path)
            }
        }),
        Value::Array(list) => {
            let items = node.items.as_ref()?;
            list.iter().find_map(|item| check(items, item, owner, path))
        }
        _ => None,
    }
}

fn owner_of<'a>(schema: &Schema, owner: &'a str) -> &'a str {
    schema.0.reference.map_or(owner, short)
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

enum Mismatch {
    Type(String),
    Text(String),
}

fn mismatch(schema: &Schema, node: &Node, value: &Value) -> Option<Mismatch> {
    let found = match value {
        Value::Null => return None,
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let wrong = || Some(Mismatch::Type(found.to_owned()));
    match (schema.0.go_type.or(node.go_type), value) {
        (Some("Quantity"), Value::String(text)) => {
            return crate::kinds::Quantity::parse(text).is_err().then(|| {
                Mismatch::Text(
                    "quantities must match the regular expression \
                     '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                        .to_owned(),
                )
            });
        }
        (Some("Quantity" | "IntOrString"), Value::Number(_)) => return None,
        (Some("Time" | "MicroTime"), Value::String(text)) => {
            return (!super::formats::is_date_time(text)).then(|| {
                Mismatch::Text(format!(
                    "parsing time {} as \"2006-01-02T15:04:05Z07:00\": cannot parse {} as \"2006\"",
                    super::go_quote(text),
                    super::go_quote(text)
                ))
            });
        }
        (Some("bytes"), Value::String(text)) => {
            return (!super::formats::is_base64(text)).then(|| {
                let bad = text
                    .bytes()
                    .position(|b| !(b.is_ascii_alphanumeric() || b == b'+' || b == b'/'))
                    .unwrap_or(text.len());
                Mismatch::Text(format!("illegal base64 data at input byte {bad}"))
            });
        }
        _ => {}
    }
    if node.int_or_string {
        return if matches!(value, Value::String(_) | Value::Number(_)) {
            None
        } else {
            wrong()
        };
    }
    match (node.kind?, value) {
        (JsonType::Object, Value::Object(_))
        | (JsonType::Array, Value::Array(_))
        | (JsonType::String, Value::String(_))
        | (JsonType::Boolean, Value::Bool(_))
        | (JsonType::Number, Value::Number(_)) => None,
        (JsonType::Integer, Value::Number(number)) => match number.as_i64() {
            Some(whole) => {
                let fits = schema.0.go_type != Some("int32") || i32::try_from(whole).is_ok();
                (!fits).then(|| Mismatch::Type(format!("number {whole}")))
            }
            None => Some(Mismatch::Type(format!("number {number}"))),
        },
        _ => wrong(),
    }
}

fn go_type(schema: &Schema, node: &Node) -> String {
    if let Some(name) = schema.0.reference {
        return go_name(name);
    }
    if let Some(name) = schema.0.go_type {
        return match name {
            "Time" => "v1.Time".into(),
            "MicroTime" => "v1.MicroTime".into(),
            "Quantity" => "resource.Quantity".into(),
            "IntOrString" => "intstr.IntOrString".into(),
            "bytes" => "[]uint8".into(),
            other => other.into(),
        };
    }
    if let Some(items) = &node.items {
        return format!("[]{}", go_type(items, items.node()));
    }
    if let Some(members) = node.additional_schema() {
        return format!("map[string]{}", go_type(members, members.node()));
    }
    node.kind
        .map_or("interface {}", |kind| match kind {
            JsonType::Object => "map[string]interface {}",
            JsonType::Array => "[]interface {}",
            JsonType::String => "string",
            JsonType::Integer => "int64",
            JsonType::Number => "float64",
            JsonType::Boolean => "bool",
        })
        .to_owned()
}

/// Go prints the package of a type, which is the version; the autoscaling kinds are `v2`.
fn go_name(name: &str) -> String {
    let version = if name.starts_with("autoscaling.") {
        "v2"
    } else {
        "v1"
    };
    format!("{version}.{}", short(name))
}
