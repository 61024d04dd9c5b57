//! Columns and cells that several kinds share.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::fields::{entries, list, text};
use crate::codec::table;
use crate::registry::resource::{Cell, Column};

fn column(name: &str, kind: &str, format: &str, priority: i32, cell: Cell) -> Column {
    Column {
        name: name.to_owned(),
        kind: kind.to_owned(),
        format: format.to_owned(),
        description: String::new(),
        priority,
        cell,
    }
}

pub(super) fn name() -> Column {
    column(
        "Name",
        "string",
        "name",
        0,
        Cell::Path(".metadata.name".to_owned()),
    )
}

pub(super) fn age() -> Column {
    with("Age", "string", 0, |object, now| json!(age_of(object, now)))
}

pub(super) fn created_at() -> Column {
    column(
        "Created At",
        "date",
        "",
        0,
        Cell::With(|object, _| json!(text(object, "metadata.creationTimestamp"))),
    )
}

pub(super) fn age_of(object: &Value, now: Timestamp) -> String {
    table::age(text(object, "metadata.creationTimestamp"), now)
}

/// A computed column.
pub(super) fn with(
    name: &str,
    kind: &str,
    priority: i32,
    compute: fn(&Value, Timestamp) -> Value,
) -> Column {
    column(name, kind, "", priority, Cell::With(compute))
}

/// A text or `<none>`.
pub(super) fn none_if_empty(text: &str) -> Value {
    json!(if text.is_empty() { "<none>" } else { text })
}

/// A text or `<unset>`.
pub(super) fn unset_if_empty(text: &str) -> Value {
    json!(if text.is_empty() { "<unset>" } else { text })
}

/// Containers, images and selector: what wide output of workloads ends with.
pub(super) fn template_columns(selector: bool) -> Vec<Column> {
    let mut columns = vec![
        with("Containers", "string", 1, |object, _| {
            json!(of_containers(object, "name"))
        }),
        with("Images", "string", 1, |object, _| {
            json!(of_containers(object, "image"))
        }),
    ];
    if selector {
        columns.push(with("Selector", "string", 1, |object, _| {
            json!(selector_text(object.pointer("/spec/selector")))
        }));
    }
    columns
}

fn of_containers(object: &Value, member: &str) -> String {
    let parts: Vec<&str> = list(object, "spec.template.spec.containers")
        .iter()
        .map(|c| text(c, member))
        .collect();
    parts.join(",")
}

/// A label selector on one line.
pub(super) fn selector_text(selector: Option<&Value>) -> String {
    let Some(selector) = selector.filter(|value| !value.is_null()) else {
        return "<none>".to_owned();
    };
    let mut parts: Vec<String> = entries(selector, "matchLabels")
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    for expression in list(selector, "matchExpressions") {
        let key = text(expression, "key");
        let mut values: Vec<&str> = list(expression, "values")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        values.sort_unstable();
        let values = values.join(",");
        parts.push(match text(expression, "operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    parts.sort();
    if parts.is_empty() {
        "<none>".to_owned()
    } else {
        parts.join(",")
    }
}

/// A map of labels on one line.
pub(super) fn labels_text(object: &Value, path: &str) -> String {
    let mut parts: Vec<String> = entries(object, path)
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    parts.sort();
    if parts.is_empty() {
        "<none>".to_owned()
    } else {
        parts.join(",")
    }
}
