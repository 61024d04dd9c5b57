//! The protobuf form of a version 2 document (gnostic's `openapi.v2.Document`), as far as ours has fields.

use serde_json::{Map, Value};

/// Numbers of the fields that are written.
mod field {
    pub(super) mod document {
        pub(crate) const SWAGGER: u32 = 1;
        pub(crate) const INFO: u32 = 2;
        pub(crate) const PATHS: u32 = 8;
        pub(crate) const DEFINITIONS: u32 = 9;
    }
    pub(super) mod schema {
        pub(crate) const REFERENCE: u32 = 1;
        /// Fields of text, numbers and flags, by keyword.
        pub(crate) const TEXTS: [(&str, u32); 4] = [
            ("format", 2),
            ("title", 3),
            ("description", 4),
            ("pattern", 13),
        ];
        pub(crate) const DEFAULT: u32 = 5;
        pub(crate) const DOUBLES: [(&str, u32); 3] =
            [("multipleOf", 6), ("maximum", 7), ("minimum", 9)];
        pub(crate) const INTEGERS: [(&str, u32); 6] = [
            ("maxLength", 11),
            ("minLength", 12),
            ("maxItems", 14),
            ("minItems", 15),
            ("maxProperties", 17),
            ("minProperties", 18),
        ];
        pub(crate) const FLAGS: [(&str, u32); 3] = [
            ("exclusiveMaximum", 8),
            ("exclusiveMinimum", 10),
            ("uniqueItems", 16),
        ];
        pub(crate) const REQUIRED: u32 = 19;
        pub(crate) const ENUM: u32 = 20;
        pub(crate) const ADDITIONAL_PROPERTIES: u32 = 21;
        pub(crate) const TYPE: u32 = 22;
        pub(crate) const ITEMS: u32 = 23;
        pub(crate) const PROPERTIES: u32 = 25;
        pub(crate) const EXTENSION: u32 = 31;
    }
    /// Of messages that only name or wrap a value.
    pub(super) const FIRST: u32 = 1;
    pub(super) const SECOND: u32 = 2;
}

pub(crate) fn encode(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    text(&mut out, field::document::SWAGGER, &document["swagger"]);
    let mut info = Vec::new();
    text(&mut info, field::FIRST, &document["info"]["title"]);
    text(&mut info, field::SECOND, &document["info"]["version"]);
    bytes(&mut out, field::document::INFO, &info);
    bytes(&mut out, field::document::PATHS, &[]);
    let definitions = named_schemas(document["definitions"].as_object());
    bytes(&mut out, field::document::DEFINITIONS, &definitions);
    out
}

/// A message of named schemas: `Definitions` and `Properties` alike.
fn named_schemas(schemas: Option<&Map<String, Value>>) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in schemas.into_iter().flatten() {
        let mut named = Vec::new();
        bytes(&mut named, field::FIRST, name.as_bytes());
        bytes(&mut named, field::SECOND, &schema(value));
        bytes(&mut out, field::FIRST, &named);
    }
    out
}

fn schema(value: &Value) -> Vec<u8> {
    use field::schema as number;
    let mut out = Vec::new();
    text(&mut out, number::REFERENCE, &value["$ref"]);
    for (name, number) in number::TEXTS {
        text(&mut out, number, &value[name]);
    }
    limits(value, &mut out);
    if let Some(default) = value.get("default") {
        bytes(&mut out, number::DEFAULT, &any(default));
    }
    for allowed in value["enum"].as_array().into_iter().flatten() {
        bytes(&mut out, number::ENUM, &any(allowed));
    }
    for name in value["required"].as_array().into_iter().flatten() {
        text(&mut out, number::REQUIRED, name);
    }
    let wrapped = |value: &Value| {
        let mut item = Vec::new();
        bytes(&mut item, field::FIRST, &schema(value));
        item
    };
    if let Some(others) = value.get("additionalProperties") {
        let item = match others {
            Value::Bool(any) => {
                let mut item = Vec::new();
                flag(&mut item, field::SECOND, *any);
                item
            }
            others => wrapped(others),
        };
        bytes(&mut out, number::ADDITIONAL_PROPERTIES, &item);
    }
    if value["type"].is_string() {
        let mut kind = Vec::new();
        text(&mut kind, field::FIRST, &value["type"]);
        bytes(&mut out, number::TYPE, &kind);
    }
    if let Some(items) = value.get("items") {
        bytes(&mut out, number::ITEMS, &wrapped(items));
    }
    if let Some(properties) = value["properties"].as_object() {
        let properties = named_schemas(Some(properties));
        bytes(&mut out, number::PROPERTIES, &properties);
    }
    let map = value.as_object().into_iter().flatten();
    for (name, extension) in map.filter(|(name, _)| name.starts_with("x-")) {
        let mut named = Vec::new();
        bytes(&mut named, field::FIRST, name.as_bytes());
        bytes(&mut named, field::SECOND, &any(extension));
        bytes(&mut out, number::EXTENSION, &named);
    }
    out
}

/// Numbers and flags.
fn limits(value: &Value, out: &mut Vec<u8>) {
    use field::schema as number;
    for (name, number) in number::DOUBLES {
        if let Some(limit) = value[name].as_f64() {
            double(out, number, limit);
        }
    }
    for (name, number) in number::INTEGERS {
        if let Some(limit) = value[name].as_u64() {
            varint(out, u64::from(number) << 3);
            varint(out, limit);
        }
    }
    for (name, number) in number::FLAGS {
        if value[name] == true {
            flag(out, number, true);
        }
    }
}

/// Any value, as YAML, which JSON is.
fn any(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    bytes(&mut out, field::SECOND, value.to_string().as_bytes());
    out
}

fn flag(out: &mut Vec<u8>, number: u32, set: bool) {
    varint(out, u64::from(number) << 3);
    out.push(u8::from(set));
}

fn double(out: &mut Vec<u8>, number: u32, value: f64) {
    const FIXED: u64 = 1;
    varint(out, u64::from(number) << 3 | FIXED);
    out.extend_from_slice(&value.to_le_bytes());
}

/// A text field; absent when it is empty or no text.
fn text(out: &mut Vec<u8>, number: u32, value: &Value) {
    if let Some(value) = value.as_str().filter(|value| !value.is_empty()) {
        bytes(out, number, value.as_bytes());
    }
}

/// A field of bytes: text or a message.
fn bytes(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    const LENGTH_DELIMITED: u64 = 2;
    varint(out, u64::from(number) << 3 | LENGTH_DELIMITED);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}
