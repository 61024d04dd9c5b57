//! Events of both groups. They are the same things with different member names; one table holds
//! them, so each group sees what the other wrote.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::checks::Errors;
use super::fields::{at, number, text};
use super::{Described, columns, describe, metadata, typed};
use crate::codec::table::age;
use crate::registry::resource::{Column, Conversion, SelectableField, Strategy};
use crate::schema::{FieldError, Path};

pub(super) fn descriptors() -> Vec<Described> {
    let mut newer = events();
    newer.0.conversion = Some(Conversion {
        table: "events",
        to_stored: |event| convert(event, "v1"),
        from_stored: |event| convert(event, "events.k8s.io/v1"),
    });
    vec![core(), newer]
}

fn core() -> Described {
    describe("", "v1", "Event", "events")
        .short("ev")
        .columns(event_columns())
        .selectable(
            [
                "kind",
                "namespace",
                "name",
                "uid",
                "apiVersion",
                "resourceVersion",
                "fieldPath",
            ]
            .map(|name| SelectableField::new(&format!("involvedObject.{name}")))
            .into_iter()
            .chain([
                SelectableField::new("reason"),
                SelectableField::new("reportingComponent"),
                SelectableField::new("type"),
                // Last, so that the fields both groups have are at the same places of the index.
                SelectableField::at("source", "source.component", ""),
            ]),
        )
        .strategy(Strategy {
            default: |object| typed::round_trip("core.Event", object),
            validate: |object| validate(object, "involvedObject"),
            ..Strategy::default()
        })
}

fn events() -> Described {
    describe("events.k8s.io", "v1", "Event", "events")
        .short("ev")
        .columns(event_columns())
        .selectable(
            [
                "kind",
                "namespace",
                "name",
                "uid",
                "apiVersion",
                "resourceVersion",
                "fieldPath",
            ]
            .map(|name| SelectableField::new(&format!("regarding.{name}")))
            .into_iter()
            .chain([
                SelectableField::new("reason"),
                SelectableField::at("reportingController", "reportingController", ""),
                SelectableField::new("type"),
            ]),
        )
        .strategy(Strategy {
            default: |object| typed::round_trip("events.Event", object),
            validate: |object| {
                let mut errors = validate(object, "regarding");
                validate_new(object, &mut errors);
                errors
            },
            ..Strategy::default()
        })
}

fn validate(object: &Value, subject: &str) -> Errors {
    let mut errors = Vec::new();
    let involved = text(object, &format!("{subject}.namespace"));
    let own = text(object, "metadata.namespace");
    let path = Path::new("involvedObject.namespace");
    if involved.is_empty() {
        if own != "default" && own != "kube-system" {
            let detail = "does not match event.namespace";
            errors.push(FieldError::invalid(&path, involved, detail));
        }
    } else if involved != own {
        errors.push(FieldError::invalid(
            &path,
            involved,
            "does not match event.namespace",
        ));
    }
    for problem in metadata::dns1123_label(own) {
        errors.push(FieldError::invalid(&Path::new("namespace"), own, problem));
    }
    errors
}

/// The newer group asks for more.
fn validate_new(object: &Value, errors: &mut Errors) {
    for name in [
        "reportingController",
        "reportingInstance",
        "action",
        "reason",
    ] {
        let value = text(object, name);
        if value.is_empty() {
            errors.push(FieldError::required(&Path::new(name), ""));
        } else if value.len() > 128 {
            let detail = "can have at most 128 characters";
            errors.push(FieldError::invalid(&Path::new(name), "", detail));
        }
    }
    if at(object, "eventTime").is_none() {
        errors.push(FieldError::required(&Path::new("eventTime"), ""));
    }
    if text(object, "note").len() > 1024 {
        let detail = "can have at most 1024 characters";
        errors.push(FieldError::invalid(&Path::new("message"), "", detail));
    }
    if !matches!(text(object, "type"), "Normal" | "Warning") {
        let detail = "has invalid value: ".to_owned() + text(object, "type");
        errors.push(FieldError::invalid(&Path::new("type"), "", detail));
    }
}

fn event_columns() -> Vec<Column> {
    let with = columns::with;
    vec![
        with("Last Seen", "string", 0, |event, now| {
            json!(last_seen(event, now))
        }),
        with("Type", "string", 0, |event, _| json!(text(event, "type"))),
        with("Reason", "string", 0, |event, _| {
            json!(text(event, "reason"))
        }),
        with("Object", "string", 0, |event, _| json!(object_text(event))),
        with("Subobject", "string", 1, |event, _| {
            json!(either(
                event,
                "involvedObject.fieldPath",
                "regarding.fieldPath"
            ))
        }),
        with("Source", "string", 1, |event, _| json!(source(event))),
        with("Message", "string", 0, |event, _| {
            json!(either(event, "message", "note").trim())
        }),
        with("First Seen", "string", 1, |event, now| {
            let first = either(event, "firstTimestamp", "deprecatedFirstTimestamp");
            json!(since(
                if first.is_empty() {
                    text(event, "eventTime")
                } else {
                    first
                },
                now
            ))
        }),
        with("Count", "string", 1, |event, _| {
            let count = number(event, "series.count")
                .or_else(|| number(event, "count"))
                .or_else(|| number(event, "deprecatedCount"));
            json!(count.unwrap_or(0).max(1).to_string())
        }),
        Column {
            priority: 1,
            ..columns::name()
        },
    ]
}

fn either<'a>(event: &'a Value, first: &str, second: &str) -> &'a str {
    let found = text(event, first);
    if found.is_empty() {
        text(event, second)
    } else {
        found
    }
}

fn since(time: &str, now: Timestamp) -> String {
    age(time, now)
}

fn last_seen(event: &Value, now: Timestamp) -> String {
    let series = text(event, "series.lastObservedTime");
    let last = either(event, "lastTimestamp", "deprecatedLastTimestamp");
    let time = if !series.is_empty() {
        series
    } else if !last.is_empty() {
        last
    } else {
        text(event, "eventTime")
    };
    since(time, now)
}

fn object_text(event: &Value) -> String {
    let kind = either(event, "involvedObject.kind", "regarding.kind").to_lowercase();
    let name = either(event, "involvedObject.name", "regarding.name");
    if name.is_empty() {
        kind
    } else {
        format!("{kind}/{name}")
    }
}

fn source(event: &Value) -> String {
    let component = either(event, "source.component", "deprecatedSource.component");
    let component = if component.is_empty() {
        either(event, "reportingComponent", "reportingController")
    } else {
        component
    };
    let host = either(event, "source.host", "deprecatedSource.host");
    if host.is_empty() {
        component.to_owned()
    } else {
        format!("{component}, {host}")
    }
}

const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// The same event in the other group's form.
pub(crate) fn convert(event: &Value, to_api_version: &str) -> Value {
    let to_new = to_api_version == "events.k8s.io/v1";
    let mut out = Map::new();
    for (name, value) in event.as_object().into_iter().flatten() {
        let renamed = NAMES.iter().find_map(|(old, new)| match to_new {
            true if name == old => Some(*new),
            false if name == new => Some(*old),
            _ => None,
        });
        out.insert(renamed.unwrap_or(name).to_owned(), value.clone());
    }
    out.insert("apiVersion".to_owned(), json!(to_api_version));
    let mut object = Value::Object(out);
    typed::round_trip(
        if to_new { "events.Event" } else { "core.Event" },
        &mut object,
    );
    object
}
