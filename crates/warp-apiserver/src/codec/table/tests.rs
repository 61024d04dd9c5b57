//! Behaviour of tables and column paths.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{IncludeObject, age, human_duration, path, table};
use crate::registry::resource::{Cell, Column, Resource};
use crate::schema::Schema;

#[test]
fn durations_are_printed_in_at_most_two_units() {
    let cases = [
        (-5, "<invalid>"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (11_000, "3h3m"),
        (8 * 3600, "8h"),
        (48 * 3600, "2d"),
        (50 * 3600, "2d2h"),
        (8 * 86_400, "8d"),
        (729 * 86_400, "729d"),
        (730 * 86_400, "2y"),
        (800 * 86_400, "2y70d"),
        (2920 * 86_400, "8y"),
    ];
    for (seconds, expected) in cases {
        assert_eq!(human_duration(seconds), expected, "{seconds}");
    }
}

#[test]
fn column_paths_find_members_indices_and_filtered_items() {
    let object = json!({
        "metadata": {"labels": {"a.b/c": "x"}},
        "spec": {"list": [{"n": 1}, {"n": 2}]},
        "status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "Other", "status": "False"}
        ]},
    });
    let cases = [
        (".spec.list[0].n", json!([1])),
        (".spec.list[-1].n", json!([2])),
        (".spec.list[*].n", json!([1, 2])),
        (".spec.list[?(@.n>1)].n", json!([2])),
        (
            ".status.conditions[?(@.type==\"Ready\")].status",
            json!(["True"]),
        ),
        (
            ".status.conditions[?(@.type=='Other')].status",
            json!(["False"]),
        ),
        (".metadata.labels.a\\.b/c", json!(["x"])),
        (".metadata.labels['a\\.b/c']", json!(["x"])),
        ("..status", json!([object["status"], "True", "False"])),
        (".absent.deeper", json!([])),
        (".spec.list[", json!([])),
    ];
    for (text, expected) in cases {
        let found: Vec<Value> = path::find(text, &object).into_iter().cloned().collect();
        assert_eq!(Value::Array(found), expected, "{text}");
    }
}

#[test]
fn a_row_has_a_cell_per_column_and_the_metadata() {
    let column = |name: &str, kind: &str, path: &str| Column {
        name: name.to_owned(),
        kind: kind.to_owned(),
        format: String::new(),
        description: String::new(),
        priority: 0,
        cell: Cell::Path(path.to_owned()),
    };
    let mut resource = Resource::new("x.dev", "v1", "Thing", "things", Schema::anything());
    resource.columns = vec![
        column("Name", "string", ".metadata.name"),
        column("Count", "integer", ".spec.count"),
        column("Map", "string", ".spec"),
        column("Wrong", "integer", ".metadata.name"),
        column("Age", "date", ".metadata.creationTimestamp"),
    ];
    let object = json!({
        "apiVersion": "x.dev/v1", "kind": "Thing",
        "metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"count": 3},
    });
    let now: Timestamp = "2026-01-01T00:00:30Z".parse().unwrap();
    let made = table(
        &resource,
        std::slice::from_ref(&object),
        IncludeObject::Metadata,
        now,
    );
    assert_eq!(
        made["rows"][0]["cells"],
        json!(["a", 3, "{\"count\":3}", null, "30s"])
    );
    assert_eq!(made["rows"][0]["object"]["metadata"]["name"], "a");
    assert_eq!(made["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let bare = table(&resource, &[object], IncludeObject::None, now);
    assert!(bare["rows"][0].get("object").is_none());
    assert_eq!(age("nonsense", now), "<unknown>");
}
