//! The schema model: one node tree for custom resources and built-in kinds.
//!
//! Plain data. Reading it from JSON is `parse`, from the built-in table `builtin`; what it means
//! for a value is in `prune`, `defaults` and `validate`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Schema;
use super::cel::Rule;

/// The `type` keyword.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonType {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl JsonType {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "object" => Self::Object,
            "array" => Self::Array,
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// `additionalProperties`.
#[derive(Debug, Clone, Default)]
pub(crate) enum Additional {
    #[default]
    Unset,
    Refused,
    Any,
    Schema(Schema),
}

/// Server-side apply's view of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind<'a> {
    Atomic,
    Set,
    Map(&'a [String]),
}

/// Server-side apply's view of a map or struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapKind {
    Granular,
    Atomic,
}

/// Strategic merge's view of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeStrategy<'a> {
    Replace,
    MergeByKey(&'a str),
    MergeSet,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ListType {
    #[default]
    Unset,
    Atomic,
    Set,
    Map,
}

/// How strategic merge treats a list, with the key where there is one.
#[derive(Debug, Clone, Default)]
pub(crate) enum Merge {
    #[default]
    Replace,
    Set,
    Key(Box<str>),
}

/// The value validations of one node. Boxed in the node: most nodes have none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_maximum: bool,
    pub(crate) minimum: Option<f64>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) max_length: Option<i64>,
    pub(crate) min_length: Option<i64>,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) max_items: Option<i64>,
    pub(crate) min_items: Option<i64>,
    pub(crate) max_properties: Option<i64>,
    pub(crate) min_properties: Option<i64>,
    pub(crate) required: Vec<String>,
    pub(crate) allowed: Vec<Value>,
    pub(crate) all_of: Vec<Schema>,
    pub(crate) any_of: Vec<Schema>,
    pub(crate) one_of: Vec<Schema>,
    pub(crate) not: Option<Schema>,
}

/// A regular expression with the text the messages show.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    pub(crate) text: String,
    pub(crate) regex: regex::Regex,
}

/// One schema node. Its flags are independent keywords of a schema.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, Default)]
pub(crate) struct Node {
    /// Set for a built-in type: the node is the named definition, built when first looked at.
    pub(crate) reference: Option<&'static str>,
    pub(crate) kind: Option<JsonType>,
    pub(crate) format: Option<Box<str>>,
    pub(crate) nullable: bool,
    pub(crate) default: Option<Value>,
    pub(crate) properties: BTreeMap<String, Schema>,
    pub(crate) items: Option<Schema>,
    pub(crate) additional: Additional,
    pub(crate) int_or_string: bool,
    pub(crate) preserve_unknown: bool,
    pub(crate) embedded: bool,
    pub(crate) list_type: ListType,
    pub(crate) list_keys: Vec<String>,
    pub(crate) atomic: bool,
    pub(crate) merge: Merge,
    pub(crate) retain_keys: bool,
    pub(crate) limits: Option<Box<Limits>>,
    pub(crate) rules: Vec<Rule>,
    /// Whether this node or one below carries a rule.
    pub(crate) has_rules: bool,
    /// The root of a custom resource: its rules also see the implied metadata.
    pub(crate) root: bool,
    /// The schema as it was written, kept at the root of a custom resource for the documents.
    pub(crate) source: Option<std::sync::Arc<Value>>,
    /// Go's name of the type (`int32`, `PodSpec`), for decoding errors of built-in kinds.
    pub(crate) go_type: Option<&'static str>,
}

impl Node {
    /// Whether the schema says nothing about members: a map of anything.
    pub(crate) fn additional_schema(&self) -> Option<&Schema> {
        match &self.additional {
            Additional::Schema(schema) => Some(schema),
            _ => None,
        }
    }
}
