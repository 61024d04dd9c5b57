//! The descriptor of one served resource: everything the generic handlers know about a kind.
//!
//! A descriptor is data plus a few function pointers. Adding a built-in kind means filling one of
//! these (in `kinds`), never writing a handler; custom resources get theirs from their definition.

use jiff::Timestamp;
use serde_json::Value;

use crate::schema::{FieldError, Schema};

/// One resource in one served version.
#[derive(Clone, Debug)]
pub struct Resource {
    /// API group, empty for the core group.
    pub group: String,
    pub version: String,
    pub kind: String,
    pub list_kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub verbs: &'static [&'static str],
    pub subresources: Vec<Subresource>,
    pub schema: Schema,
    pub strategy: Strategy,
    /// Columns of the table form; `Name` and `Age` are included here too.
    pub columns: Vec<Column>,
    /// Field selectors beyond `metadata.name` and `metadata.namespace`.
    pub selectable_fields: Vec<SelectableField>,
    /// Set when objects are kept but nothing acts on them: the text of the `Warning` header.
    pub stored_only: Option<&'static str>,
    /// Set when the kind is a question to the server: it is answered and never stored.
    pub review: Option<Review>,
    /// Set for custom resources.
    pub custom: Option<Custom>,
    /// Set when the objects are those of another group in another form.
    pub conversion: Option<Conversion>,
}

/// How a resource is another view of a stored one (both groups of events). Its selectable fields
/// are the first of the stored one's, in the same order.
#[derive(Clone, Copy, Debug)]
pub struct Conversion {
    pub table: &'static str,
    pub to_stored: fn(&Value) -> Value,
    pub from_stored: fn(&Value) -> Value,
}

/// What only custom resources have.
#[derive(Clone, Debug)]
pub struct Custom {
    /// Identifies version and schema: an object written under another one is defaulted and pruned
    /// again when it is read.
    pub epoch: u64,
    /// `apiVersion` that objects are stored with.
    pub storage_version: String,
    /// Text of the deprecation warning, when the version is deprecated.
    pub deprecation: Option<String>,
}

pub const ALL_VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
pub const CREATE_ONLY: &[&str] = &["create"];

impl Resource {
    /// A stored resource with every verb, no subresource and no special behaviour.
    pub fn new(group: &str, version: &str, kind: &str, plural: &str, schema: Schema) -> Self {
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            list_kind: format!("{kind}List"),
            plural: plural.to_owned(),
            singular: kind.to_lowercase(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            verbs: ALL_VERBS,
            subresources: Vec::new(),
            schema,
            strategy: Strategy::default(),
            columns: Vec::new(),
            selectable_fields: Vec::new(),
            stored_only: None,
            review: None,
            custom: None,
            conversion: None,
        }
    }

    /// `v1` or `group/version`.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// `pods` or `jobs.batch`: how messages name the resource.
    pub fn qualified(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    /// Name of the table the objects live in; all versions share it.
    pub fn table(&self) -> String {
        match &self.conversion {
            Some(conversion) => conversion.table.to_owned(),
            None => qualified(&self.plural, &self.group),
        }
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|known| known.name() == name)
    }

    pub fn has_status(&self) -> bool {
        self.subresources
            .iter()
            .any(|known| matches!(known, Subresource::Status))
    }

    pub fn allows(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }
}

pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

pub fn qualified(plural: &str, group: &str) -> String {
    if group.is_empty() {
        plural.to_owned()
    } else {
        format!("{plural}.{group}")
    }
}

/// A path below an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subresource {
    Status,
    Scale(ScalePaths),
    /// `namespaces/finalize`.
    Finalize,
    /// `pods/binding`.
    Binding,
    /// `pods/eviction`.
    Eviction,
    /// `serviceaccounts/token`.
    Token,
    Log,
    Exec,
    Attach,
    PortForward,
}

impl Subresource {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Scale(_) => "scale",
            Self::Finalize => "finalize",
            Self::Binding => "binding",
            Self::Eviction => "eviction",
            Self::Token => "token",
            Self::Log => "log",
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }

    pub fn verbs(&self) -> &'static [&'static str] {
        match self {
            Self::Status | Self::Scale(_) => &["get", "patch", "update"],
            Self::Finalize => &["update"],
            Self::Binding | Self::Eviction | Self::Token => &["create"],
            Self::Log => &["get"],
            Self::Exec | Self::Attach | Self::PortForward => &["create", "get"],
        }
    }

    /// Group, version and kind of the body when it is not the object's own.
    pub fn kind(&self) -> Option<(&'static str, &'static str, &'static str)> {
        match self {
            Self::Scale(_) => Some(("autoscaling", "v1", "Scale")),
            Self::Binding => Some(("", "v1", "Binding")),
            Self::Eviction => Some(("policy", "v1", "Eviction")),
            Self::Token => Some(("authentication.k8s.io", "v1", "TokenRequest")),
            Self::Exec => Some(("", "v1", "PodExecOptions")),
            Self::Attach => Some(("", "v1", "PodAttachOptions")),
            Self::PortForward => Some(("", "v1", "PodPortForwardOptions")),
            _ => None,
        }
    }
}

/// Where the scale subresource finds its numbers, as in a definition: `.spec.replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    pub spec_replicas: String,
    pub status_replicas: String,
    /// Path of a label selector: a string for custom resources, an object for built-in kinds.
    pub selector: Option<String>,
}

/// A question answered by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Review {
    Token,
    SelfSubjectAccess,
    SubjectAccess,
    LocalSubjectAccess,
    SelfSubjectRules,
    SelfSubject,
}

/// A field selector: `name` is what the client writes, `path` where the value is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectableField {
    pub name: String,
    pub path: Vec<String>,
    /// Value of an absent field (`"false"`, `"0"`, mostly empty).
    pub absent: &'static str,
}

impl SelectableField {
    pub fn new(name: &str) -> Self {
        Self::at(name, name, "")
    }

    /// `path` is dotted, without a leading dot.
    pub fn at(name: &str, path: &str, absent: &'static str) -> Self {
        let path = path
            .trim_start_matches('.')
            .split('.')
            .map(str::to_owned)
            .collect();
        Self {
            name: name.to_owned(),
            path,
            absent,
        }
    }

    pub fn extract(&self, object: &Value) -> String {
        let mut at = object;
        for step in &self.path {
            match at.get(step) {
                Some(next) => at = next,
                None => return self.absent.to_owned(),
            }
        }
        match at {
            Value::Null => self.absent.to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }
}

/// One column of the table form.
#[derive(Clone, Debug)]
pub struct Column {
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub kind: String,
    pub format: String,
    pub description: String,
    /// 0 is always shown, more only with `-o wide`.
    pub priority: i32,
    pub cell: Cell,
}

/// How a column's value is found.
#[derive(Clone, Debug)]
pub enum Cell {
    /// A JSON path as in a definition's `additionalPrinterColumns`.
    Path(String),
    /// Computed by the kind.
    With(fn(&Value, Timestamp) -> Value),
}

/// What a built-in kind does beyond being stored. Every function has a neutral default.
///
/// Order of a create: `default` (part of decoding, so the writer owns defaulted fields), managed
/// fields, admission, `prepare_create`, `validate`. An update runs the `…_update` functions with
/// the new and the old object.
#[derive(Clone, Copy, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each flag is one independent behaviour of a kind"
)]
pub struct Strategy {
    pub default: fn(&mut Value),
    pub prepare_create: fn(&mut Value),
    pub prepare_update: fn(&mut Value, &Value),
    /// Runs after the generic rule "a status write keeps everything else".
    pub prepare_status_update: fn(&mut Value, &Value),
    /// Runs when a deletion begins and the object stays for finalizers or a grace period.
    pub prepare_delete: fn(&mut Value),
    pub validate: fn(&Value) -> Vec<FieldError>,
    /// Also called after `validate` passed on the new object.
    pub validate_update: fn(&Value, &Value) -> Vec<FieldError>,
    pub validate_status_update: fn(&Value, &Value) -> Vec<FieldError>,
    /// Texts of `Warning` headers for an accepted object.
    pub warnings: fn(&Value) -> Vec<String>,
    /// Whether a name is valid; the texts of what is wrong with it (without the field path).
    pub validate_name: fn(&str) -> Vec<String>,
    /// Whether the server counts spec changes in `metadata.generation`.
    pub generation: bool,
    /// Seconds a deletion waits, from the object and the request; `None` deletes at once.
    pub grace: Option<fn(&Value, Option<i64>) -> i64>,
    /// Objects also wait for `spec.finalizers` to be emptied (namespaces).
    pub spec_finalizers: bool,
    /// Deleting without a propagation policy orphans dependants (jobs), with this warning.
    pub orphan_by_default: Option<&'static str>,
    /// `PUT` of an object that is not there creates it.
    pub create_on_update: bool,
    /// `PUT` without a resource version is accepted.
    pub unconditional_update: bool,
    /// A create may bring its status (nodes); otherwise it is dropped before `prepare_create`.
    pub keep_status: bool,
    /// Deleting answers with the last state of the object instead of a `Status`.
    pub return_deleted: bool,
}

impl Default for Strategy {
    fn default() -> Self {
        Self {
            default: |_| {},
            prepare_create: |_| {},
            prepare_update: |_, _| {},
            prepare_status_update: |_, _| {},
            prepare_delete: |_| {},
            validate: |_| Vec::new(),
            validate_update: |_, _| Vec::new(),
            validate_status_update: |_, _| Vec::new(),
            warnings: |_| Vec::new(),
            validate_name: crate::registry::name::subdomain,
            generation: false,
            grace: None,
            spec_finalizers: false,
            orphan_by_default: None,
            create_on_update: false,
            unconditional_update: true,
            keep_status: false,
            return_deleted: false,
        }
    }
}
