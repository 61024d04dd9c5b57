//! Request bodies: JSON with duplicate members noticed, YAML, and Kubernetes' protobuf.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::codec::status::Status;

/// A decoded body and what was wrong with its form.
#[derive(Debug)]
pub struct Body {
    pub value: Value,
    /// Complaints of strict decoding: `duplicate field "spec.replicas"`.
    pub strict: Vec<String>,
}

/// Formats of object bodies, in the order Kubernetes lists them.
pub const OBJECT_TYPES: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];

/// Decodes the body of a create or update.
pub fn decode_object(content_type: &str, bytes: &[u8]) -> Result<Body, Status> {
    match media_type(content_type) {
        "" | "application/json" | "*/*" => decode_json(bytes),
        "application/yaml" => decode_yaml(bytes),
        "application/vnd.kubernetes.protobuf" => {
            let value = super::protobuf::decode(bytes)
                .map_err(|error| Status::bad_request(error.to_string()))?;
            Ok(Body {
                value,
                strict: Vec::new(),
            })
        }
        _ => Err(Status::unsupported_media(OBJECT_TYPES)),
    }
}

/// The type without parameters.
pub fn media_type(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

pub fn decode_json(bytes: &[u8]) -> Result<Body, Status> {
    let mut strict = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let seed = Node {
        path: &mut String::new(),
        strict: &mut strict,
    };
    let value = seed
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| {
            Status::bad_request(format!(
                "couldn't get version/kind; json parse error: {error}"
            ))
        })?;
    Ok(Body { value, strict })
}

/// YAML, or JSON when it looks like it (every JSON text is YAML, and faster read as JSON).
pub fn decode_yaml(bytes: &[u8]) -> Result<Body, Status> {
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{') {
        return decode_json(bytes);
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Status::bad_request(format!("error decoding YAML: {error}")))?;
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
    };
    let value: Value = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| Status::bad_request(format!("error decoding YAML: {error}")))?;
    Ok(Body {
        value,
        strict: duplicate_lines(text),
    })
}

/// Repeated keys of block mappings, worded and numbered as Go's YAML reader does.
fn duplicate_lines(text: &str) -> Vec<String> {
    let mut open: Vec<(usize, Vec<String>)> = Vec::new();
    let mut found = Vec::new();
    let mut literal: Option<usize> = None;
    for (number, line) in text.lines().enumerate() {
        let mut indent = line.len() - line.trim_start_matches(' ').len();
        let mut rest = line.trim();
        if rest.is_empty() || rest.starts_with('#') {
            continue;
        }
        if let Some(outer) = literal {
            if indent > outer {
                continue;
            }
            literal = None;
        }
        while let Some(item) = rest.strip_prefix("- ") {
            indent += rest.len() - item.trim_start().len();
            rest = item.trim_start();
            open.retain(|(at, _)| *at < indent);
        }
        let Some((key, value)) = rest.split_once(':') else {
            continue;
        };
        if !(value.is_empty() || value.starts_with(' ')) || rest.starts_with(['{', '[', '"', '\''])
        {
            continue;
        }
        if matches!(value.trim(), "|" | ">" | "|-" | ">-" | "|+" | ">+") {
            literal = Some(indent);
        }
        while open.last().is_some_and(|(at, _)| *at > indent) {
            open.pop();
        }
        if open.last().is_none_or(|(at, _)| *at < indent) {
            open.push((indent, Vec::new()));
        }
        if let Some((_, keys)) = open.last_mut() {
            if keys.iter().any(|known| known == key) {
                found.push(format!(
                    "line {}: key \"{key}\" already set in map",
                    number + 1
                ));
            } else {
                keys.push(key.to_owned());
            }
        }
    }
    found
}

/// Reads a value and notes repeated members with their path.
struct Node<'a> {
    path: &'a mut String,
    strict: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        let length = self.path.len();
        loop {
            self.path.push_str(&format!("[{}]", list.len()));
            let item = items.next_element_seed(Node {
                path: self.path,
                strict: self.strict,
            })?;
            self.path.truncate(length);
            match item {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        let length = self.path.len();
        while let Some(name) = members.next_key::<String>()? {
            if length > 0 {
                self.path.push('.');
            }
            self.path.push_str(&name);
            if map.contains_key(&name) {
                self.strict
                    .push(format!("duplicate field \"{}\"", self.path));
            }
            let value = members.next_value_seed(Node {
                path: self.path,
                strict: self.strict,
            })?;
            self.path.truncate(length);
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}
