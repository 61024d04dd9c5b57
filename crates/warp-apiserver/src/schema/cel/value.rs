//! JSON values as CEL sees them, guided by the schema: formats become times, durations and bytes,
//! members of objects get the escaped names expressions use.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use kube_cel::cel::Value as CelValue;
use kube_cel::cel::objects::{Key, Map as CelMap};
use serde_json::Value;

use crate::schema::{Additional, JsonType, Schema};

const RESERVED: [&str; 20] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
];

/// The name expressions use for a member; `None` when there is none.
pub(super) fn escape(name: &str) -> Option<String> {
    if RESERVED.contains(&name) || name == "while" {
        return Some(format!("__{name}__"));
    }
    let first = name.chars().next()?;
    if !(first.is_ascii_alphabetic() || first == '_')
        || !name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c))
    {
        return None;
    }
    Some(
        name.replace("__", "__underscores__")
            .replace('.', "__dot__")
            .replace('-', "__dash__")
            .replace('/', "__slash__"),
    )
}

pub(super) fn to_cel(schema: Option<&Schema>, value: &Value) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(value) => CelValue::Bool(*value),
        Value::Number(number) => number_to_cel(schema, number),
        Value::String(text) => string_to_cel(schema, text),
        Value::Array(list) => {
            let items = schema.and_then(Schema::items);
            CelValue::List(Arc::new(
                list.iter().map(|item| to_cel(items, item)).collect(),
            ))
        }
        Value::Object(map) => {
            let node = schema.map(Schema::node);
            let is_map = node.is_some_and(|node| {
                matches!(node.additional, Additional::Schema(_) | Additional::Any)
            });
            let mut out = HashMap::with_capacity(map.len());
            for (name, value) in map {
                let member =
                    schema.and_then(|schema| schema.field(name).or_else(|| schema.additional()));
                let key = if is_map {
                    Some(name.clone())
                } else {
                    escape(name)
                };
                if let Some(key) = key {
                    out.insert(Key::String(Arc::new(key)), to_cel(member, value));
                }
            }
            CelValue::Map(CelMap { map: Arc::new(out) })
        }
    }
}

fn number_to_cel(schema: Option<&Schema>, number: &serde_json::Number) -> CelValue {
    let double = schema.is_some_and(|schema| schema.node().kind == Some(JsonType::Number));
    match number.as_i64() {
        Some(whole) if !double => CelValue::Int(whole),
        _ => {
            let float = number.as_f64().unwrap_or_default();
            let integer = schema.is_some_and(|s| s.node().kind == Some(JsonType::Integer));
            #[allow(clippy::cast_possible_truncation)]
            if integer && float.fract() == 0.0 {
                CelValue::Int(float as i64)
            } else {
                CelValue::Float(float)
            }
        }
    }
}

fn string_to_cel(schema: Option<&Schema>, text: &str) -> CelValue {
    let node = schema.map(Schema::node).filter(|node| !node.int_or_string);
    let format = node.and_then(|node| node.format.as_deref());
    let special = match format {
        Some("date-time") => chrono::DateTime::parse_from_rfc3339(text)
            .ok()
            .map(CelValue::Timestamp),
        Some("date") => chrono::DateTime::parse_from_rfc3339(&format!("{text}T00:00:00Z"))
            .ok()
            .map(CelValue::Timestamp),
        Some("duration") => {
            go_duration(text).map(|nanos| CelValue::Duration(chrono::Duration::nanoseconds(nanos)))
        }
        Some("byte") => base64::engine::general_purpose::STANDARD
            .decode(text)
            .ok()
            .map(|bytes| CelValue::Bytes(Arc::new(bytes))),
        _ => None,
    };
    special.unwrap_or_else(|| CelValue::String(Arc::new(text.to_owned())))
}

/// Go's duration syntax (`1h30m`, `1.5s`), in nanoseconds.
fn go_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total = 0f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        let scale = match &rest[..unit] {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        total += number * scale;
        rest = &rest[unit..];
    }
    #[allow(clippy::cast_possible_truncation)]
    (total.abs() < 9.2e18).then_some(if negative {
        -total as i64
    } else {
        total as i64
    })
}
