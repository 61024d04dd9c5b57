//! The schema engine: one model for custom resources and built-in kinds.
//!
//! Owns structural checks, unknown fields, pruning, defaulting, validation with Kubernetes' field
//! errors, CEL rules and the OpenAPI documents. It must not read the store, know about HTTP, or
//! hold rules of one kind (those are in `kinds`).

mod builtin;
pub(crate) mod cel;
mod decode;
mod error;
mod formats;
mod model;
pub mod openapi;
mod parse;
mod prune;
pub(crate) mod structural;
mod validate;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value;

pub(crate) use builtin::{Definition, FieldType, Presence, definition_facts, definition_name};
pub(crate) use error::go_float;
pub use error::{FieldError, FieldErrorKind, Path, aggregate, go_json, go_quote};
pub(crate) use formats::is_known as is_known_format;
pub(crate) use model::{Additional, JsonType, Limits, ListType, Merge, Node, Pattern};
pub use model::{ListKind, MapKind, MergeStrategy};

/// A schema node; cheap to clone.
#[derive(Debug, Clone)]
pub struct Schema(Arc<Node>);

impl Schema {
    pub(crate) fn from_node(node: Node) -> Self {
        Self(Arc::new(node))
    }

    /// A schema that accepts and keeps everything.
    pub fn anything() -> Self {
        Self::from_node(Node {
            preserve_unknown: true,
            ..Node::default()
        })
    }

    /// Reads a CRD version's `openAPIV3Schema`, refusing what Kubernetes refuses.
    pub fn from_crd(
        open_api_v3_schema: &Value,
        preserve_unknown: bool,
    ) -> Result<Self, Vec<FieldError>> {
        let path = Path::new("spec.validation.openAPIV3Schema");
        let errors = structural::check(open_api_v3_schema, &path, false);
        if !errors.is_empty() {
            return Err(errors);
        }
        Self::from_checked(open_api_v3_schema, preserve_unknown)
    }

    /// Reads the schema of a definition that was checked when it was written: stored ones are not
    /// judged again when the server starts.
    pub fn from_checked(
        open_api_v3_schema: &Value,
        preserve_unknown: bool,
    ) -> Result<Self, Vec<FieldError>> {
        parse::root(open_api_v3_schema, preserve_unknown).map_err(|detail| {
            let path = Path::new("spec.validation.openAPIV3Schema");
            vec![FieldError::invalid(&path, "", detail)]
        })
    }

    /// The schema of a built-in kind, built when first looked at.
    pub fn builtin(group: &str, version: &str, kind: &str) -> Option<Self> {
        builtin::schema(group, version, kind)
    }

    /// The schema of a type of the table: `core.PodSpec`.
    pub(crate) fn of_definition(name: &'static str) -> Option<Self> {
        builtin::definition_facts(name)?;
        Some(Self::from_node(Node {
            reference: Some(name),
            ..Node::default()
        }))
    }

    pub(crate) fn node(&self) -> &Node {
        match self.0.reference {
            Some(name) => builtin::definition(name),
            None => &self.0,
        }
    }

    /// The schema of one member of an object (declared members only).
    pub fn field(&self, name: &str) -> Option<&Self> {
        self.node().properties.get(name)
    }

    /// The names of the declared members.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Self)> {
        self.node()
            .properties
            .iter()
            .map(|(name, schema)| (name.as_str(), schema))
    }

    pub fn items(&self) -> Option<&Self> {
        self.node().items.as_ref()
    }

    /// The schema of every member of a map.
    pub fn additional(&self) -> Option<&Self> {
        self.node().additional_schema()
    }

    pub fn list_kind(&self) -> ListKind<'_> {
        match self.0.list_type {
            ListType::Unset | ListType::Atomic => ListKind::Atomic,
            ListType::Set => ListKind::Set,
            ListType::Map => ListKind::Map(&self.0.list_keys),
        }
    }

    pub fn map_kind(&self) -> MapKind {
        if self.0.atomic || self.node().atomic {
            MapKind::Atomic
        } else {
            MapKind::Granular
        }
    }

    pub fn merge_key(&self) -> MergeStrategy<'_> {
        match &self.0.merge {
            Merge::Replace => MergeStrategy::Replace,
            Merge::Set => MergeStrategy::MergeSet,
            Merge::Key(key) => MergeStrategy::MergeByKey(key),
        }
    }

    /// Whether a strategic merge of this field drops the members the patch does not name.
    pub fn retain_keys(&self) -> bool {
        self.0.retain_keys
    }

    pub fn default(&self) -> Option<&Value> {
        self.0.default.as_ref()
    }

    pub fn preserves_unknown(&self) -> bool {
        self.node().preserve_unknown
    }

    /// Whether the schema describes an embedded Kubernetes object.
    pub fn is_embedded(&self) -> bool {
        self.node().embedded
    }

    /// The paths of members the schema does not know, sorted: `spec.replica`.
    pub fn unknown_fields(&self, object: &Value) -> Vec<String> {
        prune::unknown_fields(self, object)
    }

    /// Removes the members the schema does not know.
    pub fn prune(&self, object: &mut Value) {
        prune::prune(self, object);
    }

    /// Fills defaults; nulls that are neither allowed nor defaulted are dropped first.
    pub fn apply_defaults(&self, object: &mut Value) {
        prune::apply_defaults(self, object);
    }

    /// Schema, list uniqueness, embedded metadata and CEL rules. With `old`, unchanged values are
    /// not judged again (ratcheting) and transition rules run.
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        self.validate_noting(object, old, Vec::new(), &mut Vec::new())
    }

    /// As `validate`, with what else is known to be wrong (`also`) told in its place, and with the rules that do
    /// not hold but are not held against the writer, because what they are about is unchanged.
    pub fn validate_noting(
        &self,
        object: &Value,
        old: Option<&Value>,
        also: Vec<FieldError>,
        forgiven: &mut Vec<FieldError>,
    ) -> Vec<FieldError> {
        validate::custom_resource(self, object, old, also, forgiven)
    }

    /// What a typed decoder says when a value has the wrong JSON type; `None` when it fits.
    /// For built-in kinds, whose schemas carry the Go names the message needs.
    pub fn decode_error(&self, object: &Value) -> Option<String> {
        decode::decode_error(self, object)
    }
}
