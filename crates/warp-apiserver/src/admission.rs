//! Admission in process: what happens to an object between decoding and storing.
//!
//! Owns the trait, the order of the built-in plugins and nothing about HTTP. Plugins see the state
//! through [`ReadState`]; they never write.

mod limits;
mod namespace;
mod pods;
pub(crate) mod quota;
mod security;
mod services;
mod storage;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value;

use crate::registry::resource::Resource;
use crate::schema::FieldError;

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

/// One request, after decoding and defaulting. Plugins may change `object`.
#[derive(Debug)]
pub struct AdmissionRequest<'a> {
    pub operation: Operation,
    pub resource: &'a Resource,
    pub subresource: Option<&'a str>,
    pub namespace: Option<&'a str>,
    pub name: &'a str,
    /// The new object; for a deletion the one being deleted.
    pub object: &'a mut Value,
    pub old: Option<&'a Value>,
    pub user: &'a str,
    pub dry_run: bool,
    /// The request's options (`DeleteOptions` and its like).
    pub options: &'a Value,
}

impl AdmissionRequest<'_> {
    /// Whether this is about the named kind itself, not about a subresource.
    fn is(&self, operation: Operation, table: &str) -> bool {
        self.operation == operation && self.subresource.is_none() && self.resource.table() == table
    }
}

/// The stored objects a plugin may look at. `table` is `pods` or `jobs.batch`.
pub trait ReadState {
    fn get(&self, table: &str, namespace: Option<&str>, name: &str) -> Option<Value>;
    fn list(&self, table: &str, namespace: Option<&str>) -> Vec<Value>;
}

/// Why a request is turned down.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// 403; the text follows "… is forbidden: ". `causes` go to `details.causes`.
    #[error("{why}")]
    Forbidden { why: String, causes: Vec<Value> },
    /// 404 of another object than the one requested.
    #[error("{resource} \"{name}\" not found")]
    NotFound {
        group: String,
        resource: String,
        name: String,
    },
    /// 422.
    #[error("{}", crate::schema::aggregate(.0))]
    Invalid(Vec<FieldError>),
}

impl Refusal {
    pub fn forbidden(why: impl Into<String>) -> Self {
        Self::Forbidden {
            why: why.into(),
            causes: Vec::new(),
        }
    }
}

/// Texts of `Warning` headers.
pub type Warnings = Vec<String>;

/// One step of admission. The platform plugs its own kinds in with this.
pub trait Admission: Send + Sync {
    fn admit(
        &self,
        request: &mut AdmissionRequest<'_>,
        state: &dyn ReadState,
    ) -> Result<Warnings, Refusal>;
}

/// The built-in plugins in the order they run.
pub fn builtin() -> Vec<Arc<dyn Admission>> {
    vec![
        Arc::new(namespace::Lifecycle),
        Arc::new(limits::LimitRanges),
        Arc::new(pods::ServiceAccounts),
        Arc::new(pods::Priorities),
        Arc::new(pods::DefaultTolerations),
        Arc::new(storage::DefaultClass),
        Arc::new(services::Addresses),
        Arc::new(security::PodSecurity),
        Arc::new(quota::Quotas),
    ]
}
