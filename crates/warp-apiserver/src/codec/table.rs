//! Objects as a `Table`: what `kubectl get` prints.
//!
//! Columns come from the descriptor; this module finds their values. It knows no kind.

mod path;

#[cfg(test)]
mod tests;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::registry::resource::{Cell, Column, Resource};

/// What of the object itself a row carries (`includeObject`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

impl IncludeObject {
    /// Reads the query parameter; unknown values are refused by the caller.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "None" => Some(Self::None),
            "" | "Metadata" => Some(Self::Metadata),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

/// The table of some objects. List metadata (`resourceVersion`, `continue`) is the caller's.
pub fn table(
    resource: &Resource,
    objects: &[Value],
    include: IncludeObject,
    now: Timestamp,
) -> Value {
    let columns: Vec<Value> = resource.columns.iter().map(definition).collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| row(resource, object, include, now))
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": columns,
        "rows": rows,
    })
}

fn definition(column: &Column) -> Value {
    json!({
        "name": column.name,
        "type": column.kind,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    })
}

fn row(resource: &Resource, object: &Value, include: IncludeObject, now: Timestamp) -> Value {
    let cells: Vec<Value> = resource
        .columns
        .iter()
        .map(|column| cell(column, object, now))
        .collect();
    let mut row = Map::new();
    row.insert("cells".to_owned(), Value::Array(cells));
    match include {
        IncludeObject::None => {}
        IncludeObject::Metadata => {
            row.insert("object".to_owned(), partial(object));
        }
        IncludeObject::Object => {
            row.insert("object".to_owned(), object.clone());
        }
    }
    Value::Object(row)
}

/// The object as `PartialObjectMetadata`.
pub fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

fn cell(column: &Column, object: &Value, now: Timestamp) -> Value {
    match &column.cell {
        Cell::With(compute) => compute(object, now),
        Cell::Path(text) => {
            let found = path::find(text, object);
            let Some(value) = found.first().filter(|value| !value.is_null()) else {
                return Value::Null;
            };
            typed(&column.kind, value, now)
        }
    }
}

/// A value as a cell of the column's type; a value of another type leaves the cell empty.
fn typed(kind: &str, value: &Value, now: Timestamp) -> Value {
    match (kind, value) {
        ("integer", Value::Number(number)) => {
            #[allow(clippy::cast_possible_truncation)]
            let whole = number
                .as_i64()
                .or_else(|| number.as_f64().map(|float| float as i64));
            json!(whole)
        }
        ("number", Value::Number(number)) => json!(number.as_f64()),
        ("boolean", Value::Bool(_)) | ("string", Value::String(_)) => value.clone(),
        ("date", Value::String(text)) => Value::String(age(text, now)),
        ("string", other) => Value::String(crate::schema::go_json(other)),
        _ => Value::Null,
    }
}

/// How long ago a timestamp was, as `kubectl` prints it.
pub fn age(timestamp: &str, now: Timestamp) -> String {
    match timestamp.parse::<Timestamp>() {
        Ok(then) => human_duration(now.as_second() - then.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// A duration in at most two units, coarser the longer it is.
pub fn human_duration(seconds: i64) -> String {
    let minutes = seconds / 60;
    let hours = minutes / 60;
    let days = hours / 24;
    let pair = |whole: i64, unit: char, rest: i64, small: char| {
        if rest == 0 {
            format!("{whole}{unit}")
        } else {
            format!("{whole}{unit}{rest}{small}")
        }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..1 => "0s".to_owned(),
        1..120 => format!("{seconds}s"),
        _ if minutes < 10 => pair(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => pair(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => pair(days, 'd', hours % 24, 'h'),
        _ if days < 730 => format!("{days}d"),
        _ if days < 2920 => pair(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}
