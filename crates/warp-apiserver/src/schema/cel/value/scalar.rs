//! Scalars of a resource as CEL sees them: numbers by their schema, formats as times, durations and
//! bytes, and the escaped names expressions use for members.

use std::sync::Arc;

use base64::Engine as _;
use kube_cel::cel::Value as CelValue;

use crate::schema::{JsonType, Schema};

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
pub(in crate::schema::cel) fn escape(name: &str) -> Option<String> {
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

pub(super) fn number(schema: Option<&Schema>, number: &serde_json::Number) -> CelValue {
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

/// The value of a string whose format says it is something else.
pub(super) fn formatted(schema: Option<&Schema>, text: &str) -> Option<CelValue> {
    let node = schema.map(Schema::node).filter(|node| !node.int_or_string);
    let format = node.and_then(|node| node.format.as_deref());
    match format {
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
    }
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
