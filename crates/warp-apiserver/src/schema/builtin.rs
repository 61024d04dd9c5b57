//! Schemas of the built-in kinds, from the table of field facts.
//!
//! The table (`kinds/fields.txt`) also drives protobuf decoding, so both agree by construction. A
//! definition is read when it is first looked at: starting the server costs nothing here.

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

use serde_json::Value;

use super::{Additional, JsonType, Limits, ListType, Merge, Node, Schema};

static TABLE: &str = include_str!("../kinds/fields.txt");

/// One type of the table.
#[derive(Debug)]
pub(crate) struct Definition {
    pub(crate) name: &'static str,
    /// Has apiVersion and kind.
    pub(crate) typed: bool,
    atomic: bool,
    pub(crate) fields: Vec<Field>,
}

/// One field of a type.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// The protobuf number; 0 when the field is not part of the encoding.
    pub(crate) number: u32,
    pub(crate) kind: FieldType,
    /// A pointer in Go: a zero value is a value, not an absence.
    pub(crate) pointer: bool,
    pub(crate) presence: Presence,
    facts: Facts,
}

/// What is written for an empty field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Nothing, except for structs, which cannot be empty.
    OmitEmpty,
    /// The empty value.
    Always,
    /// Nothing.
    OmitZero,
}

impl Field {
    /// An embedded struct: its members appear in the parent's JSON.
    pub(crate) fn inline(&self) -> bool {
        self.name == "."
    }

    pub(crate) fn enumeration(&self) -> &[&'static str] {
        &self.facts.enumeration
    }
}

#[derive(Debug, Default)]
struct Facts {
    list_keys: Vec<String>,
    set: bool,
    atomic: bool,
    merge: Option<&'static str>,
    retain_keys: bool,
    default: Option<Value>,
    enumeration: Vec<&'static str>,
}

/// The type of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FieldType {
    Scalar(&'static str),
    Message(&'static str),
    List(Box<Self>),
    Map(Box<Self>),
}

struct Entry {
    header: &'static str,
    body: &'static str,
    facts: OnceLock<Definition>,
    node: OnceLock<Node>,
}

static ENTRIES: LazyLock<HashMap<&'static str, Entry>> = LazyLock::new(|| {
    let mut entries = HashMap::new();
    for block in TABLE.split("\n@").skip(1) {
        let (header, body) = block.split_once('\n').unwrap_or((block, ""));
        let name = header.split(' ').next().unwrap_or(header);
        let entry = Entry {
            header,
            body,
            facts: OnceLock::new(),
            node: OnceLock::new(),
        };
        entries.insert(name, entry);
    }
    entries
});

/// The table's name of a kind: `apps.Deployment`.
pub(crate) fn definition_name(group: &str, version: &str, kind: &str) -> Option<&'static str> {
    let prefix = match (group, version) {
        ("", "v1") => "core",
        ("autoscaling", "v2") => "autoscaling",
        ("autoscaling", "v1") => "autoscaling1",
        ("meta" | "apps" | "batch" | "policy", "v1") => group,
        (
            "discovery.k8s.io"
            | "storage.k8s.io"
            | "events.k8s.io"
            | "coordination.k8s.io"
            | "scheduling.k8s.io"
            | "networking.k8s.io"
            | "rbac.authorization.k8s.io"
            | "authentication.k8s.io"
            | "authorization.k8s.io"
            | "apiextensions.k8s.io",
            "v1",
        ) => group.split('.').next()?,
        _ => return None,
    };
    let name = format!("{prefix}.{kind}");
    ENTRIES.get_key_value(name.as_str()).map(|(name, _)| *name)
}

pub(super) fn schema(group: &str, version: &str, kind: &str) -> Option<Schema> {
    definition_name(group, version, kind).map(reference)
}

fn reference(name: &'static str) -> Schema {
    Schema::from_node(Node {
        reference: Some(name),
        ..Node::default()
    })
}

/// The facts of a type, for the decoder and the documents.
pub(crate) fn definition_facts(name: &str) -> Option<&'static Definition> {
    let entry = ENTRIES.get(name)?;
    Some(entry.facts.get_or_init(|| parse(entry)))
}

/// The node of a type. Names come from the table itself, so they exist.
pub(super) fn definition(name: &'static str) -> &'static Node {
    static NOTHING: LazyLock<Node> = LazyLock::new(|| Node {
        preserve_unknown: true,
        ..Node::default()
    });
    let Some(entry) = ENTRIES.get(name) else {
        return &NOTHING;
    };
    entry
        .node
        .get_or_init(|| build(name, entry.facts.get_or_init(|| parse(entry))))
}

fn parse(entry: &'static Entry) -> Definition {
    let mut words = entry.header.split(' ');
    let name = words.next().unwrap_or_default();
    let flags: Vec<&str> = words.collect();
    let fields = entry.body.lines().filter_map(parse_field).collect();
    Definition {
        name,
        typed: flags.contains(&"typed"),
        atomic: flags.contains(&"atomic"),
        fields,
    }
}

fn parse_field(line: &'static str) -> Option<Field> {
    let mut words = line.split(' ');
    let (name, number, type_name) = (words.next()?, words.next()?, words.next()?);
    let (name, presence) = match name.as_bytes().last() {
        Some(b'!') => (&name[..name.len() - 1], Presence::Always),
        Some(b'~') => (&name[..name.len() - 1], Presence::OmitZero),
        _ => (name, Presence::OmitEmpty),
    };
    let mut facts = Facts::default();
    for word in words {
        match word.split_once('=') {
            Some(("map", keys)) => facts.list_keys = keys.split(',').map(str::to_owned).collect(),
            Some(("merge", key)) => facts.merge = Some(key),
            Some(("default", value)) => facts.default = serde_json::from_str(value).ok(),
            Some(("enum", values)) => facts.enumeration = values.split('|').collect(),
            _ => match word {
                "set" => facts.set = true,
                "atomic" => facts.atomic = true,
                "retainKeys" => facts.retain_keys = true,
                _ => {}
            },
        }
    }
    Some(Field {
        name,
        number: number.parse().unwrap_or(0),
        pointer: type_name.starts_with('*'),
        presence,
        kind: parse_type(type_name.trim_start_matches('*')),
        facts,
    })
}

fn parse_type(text: &'static str) -> FieldType {
    if let Some(item) = text.strip_prefix("[]") {
        FieldType::List(Box::new(parse_type(item.trim_start_matches('*'))))
    } else if let Some(member) = text.strip_prefix("map:") {
        FieldType::Map(Box::new(parse_type(member.trim_start_matches('*'))))
    } else if text.contains('.') {
        FieldType::Message(text)
    } else {
        FieldType::Scalar(text)
    }
}

fn build(name: &'static str, facts: &'static Definition) -> Node {
    const SCHEMA: &str = "apiextensions.JSONSchemaProps";
    let mut node = Node {
        kind: Some(JsonType::Object),
        atomic: facts.atomic,
        go_type: Some(name),
        ..Node::default()
    };
    // Three types of the CRD schema are a schema or something else: their JSON has no own members.
    match name {
        "apiextensions.JSONSchemaPropsOrArray" => {
            node = Node {
                kind: None,
                items: Some(reference(SCHEMA)),
                ..definition(SCHEMA).clone()
            };
        }
        "apiextensions.JSONSchemaPropsOrBool" | "apiextensions.JSONSchemaPropsOrStringArray" => {
            node = Node {
                kind: None,
                ..definition(SCHEMA).clone()
            };
        }
        _ => {}
    }
    if facts.typed {
        for name in ["apiVersion", "kind"] {
            node.properties
                .insert(name.to_owned(), Schema::from_node(scalar("string")));
        }
    }
    for field in &facts.fields {
        if let (true, FieldType::Message(inner)) = (field.inline(), &field.kind) {
            for (name, schema) in &definition(inner).properties {
                node.properties.insert(name.clone(), schema.clone());
            }
        } else {
            node.properties
                .insert(field.name.to_owned(), field_schema(field));
        }
    }
    node
}

fn field_schema(field: &'static Field) -> Schema {
    let mut node = type_node(&field.kind);
    let facts = &field.facts;
    if !facts.list_keys.is_empty() {
        node.list_type = ListType::Map;
        node.list_keys.clone_from(&facts.list_keys);
    } else if facts.set {
        node.list_type = ListType::Set;
    }
    node.atomic |= facts.atomic;
    node.merge = match facts.merge {
        None => Merge::Replace,
        Some("-") => Merge::Set,
        Some(key) => Merge::Key(key.into()),
    };
    node.retain_keys = facts.retain_keys;
    node.default.clone_from(&facts.default);
    if !facts.enumeration.is_empty() && node.kind == Some(JsonType::String) {
        let allowed = facts
            .enumeration
            .iter()
            .map(|name| Value::from(*name))
            .collect();
        node.limits = Some(Box::new(Limits {
            allowed,
            ..Limits::default()
        }));
    }
    Schema::from_node(node)
}

fn type_node(field_type: &'static FieldType) -> Node {
    match field_type {
        FieldType::Message(name) => Node {
            reference: Some(name),
            ..Node::default()
        },
        FieldType::Scalar(name) => scalar(name),
        FieldType::List(item) => Node {
            kind: Some(JsonType::Array),
            items: Some(Schema::from_node(type_node(item))),
            ..Node::default()
        },
        FieldType::Map(member) => Node {
            kind: Some(JsonType::Object),
            additional: Additional::Schema(Schema::from_node(type_node(member))),
            ..Node::default()
        },
    }
}

fn scalar(name: &'static str) -> Node {
    let plain = |kind: JsonType, format: Option<&str>| Node {
        kind: Some(kind),
        format: format.map(Into::into),
        go_type: Some(name),
        ..Node::default()
    };
    match name {
        "int32" | "int64" => plain(JsonType::Integer, Some(name)),
        "float64" | "float32" => plain(JsonType::Number, Some("double")),
        "bool" => plain(JsonType::Boolean, None),
        "bytes" => plain(JsonType::String, Some("byte")),
        "Time" | "MicroTime" => plain(JsonType::String, Some("date-time")),
        "IntOrString" | "Quantity" => Node {
            int_or_string: true,
            go_type: Some(name),
            ..Node::default()
        },
        "RawExtension" | "FieldsV1" | "JSON" => Node {
            preserve_unknown: true,
            go_type: Some(name),
            ..Node::default()
        },
        "ExtraValue" => Node {
            kind: Some(JsonType::Array),
            items: Some(Schema::from_node(scalar("string"))),
            ..Node::default()
        },
        _ => plain(JsonType::String, None),
    }
}
