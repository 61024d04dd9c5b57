//! Protobuf request bodies, decoded to the JSON the rest of the server works on.
//!
//! Typed Go clients send these since 1.32. One generic decoder follows the table of field facts;
//! answers are always JSON, which every client accepts.

mod wire;

#[cfg(test)]
mod tests;

use base64::Engine as _;
use serde_json::{Map, Value, json};

use crate::schema::{Definition, FieldType, definition_facts, definition_name};
use wire::{Reader, Wire};

/// Marks a body as an envelope around an object.
pub const MAGIC: &[u8; 4] = b"k8s\0";
/// Messages nested deeper are refused rather than followed.
const DEEPEST: usize = 100;

/// Why a body could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    #[error("failed to decode protobuf body: {0}")]
    Malformed(&'static str),
    #[error(
        "failed to decode protobuf body: no kind \"{kind}\" is registered for version \"{api_version}\""
    )]
    UnknownKind { api_version: String, kind: String },
}

type Decoded<T> = Result<T, DecodeError>;

/// The object in a body with media type `application/vnd.kubernetes.protobuf`.
pub fn decode(body: &[u8]) -> Decoded<Value> {
    let envelope = body.strip_prefix(MAGIC).ok_or(DecodeError::Malformed(
        "the body does not begin with the envelope's mark",
    ))?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    let mut reader = Reader::new(envelope);
    while let Some((number, value)) = reader.field()? {
        match number {
            1 => {
                let mut inner = Reader::new(value.bytes()?);
                while let Some((number, value)) = inner.field()? {
                    match number {
                        1 => api_version = value.text()?,
                        2 => kind = value.text()?,
                        _ => {}
                    }
                }
            }
            2 => raw = value.bytes()?,
            _ => {}
        }
    }
    let definition =
        definition_of(&api_version, &kind).ok_or_else(|| DecodeError::UnknownKind {
            api_version: api_version.clone(),
            kind: kind.clone(),
        })?;
    let mut object = Map::new();
    object.insert("kind".to_owned(), Value::String(kind));
    object.insert("apiVersion".to_owned(), Value::String(api_version));
    message(definition, raw, &mut object, 0)?;
    Ok(Value::Object(object))
}

fn definition_of(api_version: &str, kind: &str) -> Option<&'static Definition> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    // Options may be sent under any group's name.
    let name = match kind {
        "DeleteOptions" => "meta.DeleteOptions",
        _ => definition_name(group, version, kind)?,
    };
    definition_facts(name)
}

fn message(
    definition: &'static Definition,
    bytes: &[u8],
    into: &mut Map<String, Value>,
    depth: usize,
) -> Decoded<()> {
    if depth > DEEPEST {
        return Err(DecodeError::Malformed("messages are nested too deeply"));
    }
    let mut reader = Reader::new(bytes);
    while let Some((number, value)) = reader.field()? {
        let Some(field) = definition
            .fields
            .iter()
            .find(|field| field.number == number)
        else {
            continue;
        };
        if field.inline() {
            if let FieldType::Message(name) = &field.kind
                && let Some(inner) = definition_facts(name)
            {
                message(inner, value.bytes()?, into, depth + 1)?;
            }
            continue;
        }
        match &field.kind {
            FieldType::List(item) => {
                let list = into.entry(field.name).or_insert_with(|| json!([]));
                let Some(list) = list.as_array_mut() else {
                    continue;
                };
                repeated(item, &value, list, depth)?;
            }
            FieldType::Map(member) => {
                let map = into.entry(field.name).or_insert_with(|| json!({}));
                let Some(map) = map.as_object_mut() else {
                    continue;
                };
                let (key, value) = entry(member, value.bytes()?, depth)?;
                map.insert(key, value);
            }
            other => {
                let decoded = single(other, &value, depth)?;
                // Go writes zeros of what is not a pointer; in JSON they are left out.
                if !decoded.is_null() && (field.pointer || !is_zero(other, &decoded)) {
                    into.insert(field.name.to_owned(), decoded);
                }
            }
        }
    }
    Ok(())
}

fn is_zero(field_type: &FieldType, value: &Value) -> bool {
    if matches!(field_type, FieldType::Scalar("IntOrString" | "Quantity")) {
        return false;
    }
    match value {
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// One occurrence of a repeated field; numbers may come packed.
fn repeated(
    item: &FieldType,
    value: &Wire<'_>,
    list: &mut Vec<Value>,
    depth: usize,
) -> Decoded<()> {
    let numeric = matches!(item, FieldType::Scalar("int32" | "int64" | "bool"));
    if let (true, Wire::Bytes(bytes)) = (numeric, value) {
        let mut reader = Reader::new(bytes);
        while !reader.is_empty() {
            list.push(single(item, &Wire::Varint(reader.varint()?), depth)?);
        }
    } else {
        list.push(single(item, value, depth)?);
    }
    Ok(())
}

fn entry(member: &FieldType, bytes: &[u8], depth: usize) -> Decoded<(String, Value)> {
    let (mut key, mut value) = (String::new(), None);
    let mut reader = Reader::new(bytes);
    while let Some((number, found)) = reader.field()? {
        match number {
            1 => key = found.text()?,
            2 => value = Some(single(member, &found, depth)?),
            _ => {}
        }
    }
    let value = match value {
        Some(value) => value,
        // An entry without a value holds the zero one.
        None => match member {
            FieldType::Scalar("string" | "bytes") => json!(""),
            FieldType::Scalar("Quantity") => json!("0"),
            FieldType::Scalar("int32" | "int64") => json!(0),
            FieldType::Scalar("bool") => json!(false),
            FieldType::Scalar("ExtraValue") | FieldType::List(_) => json!([]),
            _ => json!({}),
        },
    };
    Ok((key, value))
}

fn single(field_type: &FieldType, value: &Wire<'_>, depth: usize) -> Decoded<Value> {
    match field_type {
        FieldType::Message(name) => match *name {
            "apiextensions.JSONSchemaPropsOrArray"
            | "apiextensions.JSONSchemaPropsOrBool"
            | "apiextensions.JSONSchemaPropsOrStringArray" => {
                schema_or_else(name, value.bytes()?, depth)
            }
            name => {
                let mut map = Map::new();
                if let Some(definition) = definition_facts(name) {
                    message(definition, value.bytes()?, &mut map, depth + 1)?;
                }
                Ok(Value::Object(map))
            }
        },
        FieldType::Scalar(name) => scalar(name, value),
        FieldType::List(_) | FieldType::Map(_) => {
            Err(DecodeError::Malformed("a list cannot hold lists"))
        }
    }
}

#[allow(clippy::cast_possible_wrap)]
fn scalar(name: &str, value: &Wire<'_>) -> Decoded<Value> {
    Ok(match name {
        "string" => Value::String(value.text()?),
        "bool" => Value::Bool(value.varint()? != 0),
        "int32" | "int64" => json!(value.varint()? as i64),
        "float64" => json!(f64::from_bits(value.fixed()?)),
        "bytes" => Value::String(base64::engine::general_purpose::STANDARD.encode(value.bytes()?)),
        "Quantity" => {
            Value::String(first(value.bytes()?)?.map_or(Ok("0".to_owned()), |v| v.text())?)
        }
        "Time" | "MicroTime" => time(value.bytes()?, name == "MicroTime")?,
        "IntOrString" => int_or_string(value.bytes()?)?,
        "Duration" => {
            let nanos = first(value.bytes()?)?.map_or(Ok(0), |v| v.varint())? as i64;
            Value::String(go_duration(nanos))
        }
        "RawExtension" | "FieldsV1" | "JSON" => match first(value.bytes()?)? {
            None => Value::Null,
            Some(raw) => serde_json::from_slice(raw.bytes()?)
                .map_err(|_| DecodeError::Malformed("an embedded object is not JSON"))?,
        },
        "ExtraValue" => {
            let mut list = Vec::new();
            let mut reader = Reader::new(value.bytes()?);
            while let Some((_, item)) = reader.field()? {
                list.push(Value::String(item.text()?));
            }
            Value::Array(list)
        }
        _ => {
            return Err(DecodeError::Malformed(
                "a field has a type that is not known",
            ));
        }
    })
}

/// The first field of a message of one field.
fn first(bytes: &[u8]) -> Decoded<Option<Wire<'_>>> {
    let mut reader = Reader::new(bytes);
    while let Some((number, value)) = reader.field()? {
        if number == 1 {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

#[allow(clippy::cast_possible_wrap)]
fn time(bytes: &[u8], micro: bool) -> Decoded<Value> {
    let (mut seconds, mut nanos) = (0i64, 0i64);
    let mut reader = Reader::new(bytes);
    while let Some((number, value)) = reader.field()? {
        match number {
            1 => seconds = value.varint()? as i64,
            2 => nanos = value.varint()? as i64,
            _ => {}
        }
    }
    if seconds == 0 && nanos == 0 {
        return Ok(Value::Null);
    }
    let nanos =
        i32::try_from(nanos).map_err(|_| DecodeError::Malformed("a time is out of range"))?;
    let time = jiff::Timestamp::new(seconds, if micro { nanos } else { 0 })
        .map_err(|_| DecodeError::Malformed("a time is out of range"))?;
    Ok(Value::String(if micro {
        format!("{time:.6}")
    } else {
        time.to_string()
    }))
}

#[allow(clippy::cast_possible_wrap)]
fn int_or_string(bytes: &[u8]) -> Decoded<Value> {
    let (mut text, mut number, mut string) = (String::new(), 0i64, false);
    let mut reader = Reader::new(bytes);
    while let Some((field, value)) = reader.field()? {
        match field {
            1 => string = value.varint()? == 1,
            2 => number = value.varint()? as i64,
            3 => text = value.text()?,
            _ => {}
        }
    }
    Ok(if string {
        Value::String(text)
    } else {
        json!(number)
    })
}

/// The three members of a CRD schema that are a schema or something else.
fn schema_or_else(name: &str, bytes: &[u8], depth: usize) -> Decoded<Value> {
    const SCHEMA: FieldType = FieldType::Message("apiextensions.JSONSchemaProps");
    let boolean = name.ends_with("OrBool");
    let (mut schema, mut allowed, mut list) = (None, false, Vec::new());
    let mut reader = Reader::new(bytes);
    while let Some((number, value)) = reader.field()? {
        match (number, boolean) {
            (1, true) => allowed = value.varint()? != 0,
            (1, false) | (2, true) => schema = Some(single(&SCHEMA, &value, depth + 1)?),
            (2, false) if name.ends_with("OrStringArray") => {
                list.push(Value::String(value.text()?));
            }
            (2, false) => list.push(single(&SCHEMA, &value, depth + 1)?),
            _ => {}
        }
    }
    Ok(match schema {
        Some(schema) => schema,
        None if boolean => Value::Bool(allowed),
        None => Value::Array(list),
    })
}

/// Go's text of a duration: `1h30m0s`.
fn go_duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = nanos.unsigned_abs();
    if nanos < 1_000_000_000 {
        let (value, unit) = match nanos {
            0 => return "0s".to_owned(),
            n if n < 1_000 => (n as f64, "ns"),
            n if n < 1_000_000 => (n as f64 / 1e3, "µs"),
            n => (n as f64 / 1e6, "ms"),
        };
        return format!("{sign}{value}{unit}");
    }
    let (whole, fraction) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let (hours, minutes) = (whole / 3600, whole / 60 % 60);
    let seconds = (whole % 60) as f64 + fraction as f64 / 1e9;
    match (hours, minutes) {
        (0, 0) => format!("{sign}{seconds}s"),
        (0, _) => format!("{sign}{minutes}m{seconds}s"),
        _ => format!("{sign}{hours}h{minutes}m{seconds}s"),
    }
}
