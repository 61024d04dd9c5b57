//! What a check of one value found, and how it is put at its path.

use serde_json::{Value, json};

use crate::schema::error::FieldErrorKind;
use crate::schema::{FieldError, Path, go_quote};

/// What one check found: errors, and how many checks passed (to pick the closest `anyOf` branch).
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) errors: Vec<Finding>,
    pub(super) matched: usize,
}

/// A finding of the JSON schema check, before it is put at its path.
pub(super) enum Finding {
    Field {
        path: String,
        kind: FieldErrorKind,
        value: Option<Value>,
        detail: String,
    },
    /// A finding about a combination (`anyOf` and its like): it carries no path of its own.
    Whole(String),
}

impl Outcome {
    pub(super) fn merge(&mut self, other: Self) {
        self.errors.extend(other.errors);
        self.matched += other.matched;
    }

    pub(super) fn field(
        &mut self,
        path: &str,
        kind: FieldErrorKind,
        value: Option<Value>,
        detail: String,
    ) {
        self.errors.push(Finding::Field {
            path: path.to_owned(),
            kind,
            value,
            detail,
        });
    }

    pub(super) fn invalid(&mut self, path: &str, value: impl Into<Value>, detail: &str) {
        let detail = format!("{path} in body {detail}");
        self.field(path, FieldErrorKind::Invalid, Some(value.into()), detail);
    }

    pub(super) fn wrong_type(&mut self, path: &str, expected: &str, value: &str) {
        let detail = format!(
            "{path} in body must be of type {expected}: {}",
            go_quote(value)
        );
        self.field(
            path,
            FieldErrorKind::TypeInvalid,
            Some(json!(value)),
            detail,
        );
    }

    pub(super) fn into_field_errors(self, base: &Path) -> Vec<FieldError> {
        let errors = self.errors.into_iter();
        errors
            .map(|finding| match finding {
                Finding::Whole(detail) => FieldError::invalid(base, "", detail),
                Finding::Field {
                    path,
                    kind,
                    value,
                    detail,
                } => {
                    let path = path.trim_start_matches('.');
                    let path = if path.is_empty() {
                        base.clone()
                    } else {
                        base.child(path)
                    };
                    FieldError {
                        kind,
                        field: path.to_string(),
                        value,
                        detail,
                        declared_order: false,
                    }
                }
            })
            .collect()
    }
}
