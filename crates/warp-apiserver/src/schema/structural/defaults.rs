//! Default values in a schema must be pruned and valid where they stand.

use serde_json::Value;

use crate::schema::{FieldError, Path, Schema, parse, validate};

/// Checks every default below `schema`. The schema is structurally sound already.
pub(super) fn check(schema: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match parse::root(schema, false) {
        Ok(model) => walk(&model, path, false, &mut errors),
        Err(detail) => errors.push(FieldError::invalid(path, "", detail)),
    }
    errors
}

fn walk(schema: &Schema, path: &Path, inside_meta: bool, errors: &mut Vec<FieldError>) {
    let node = schema.node();
    let inside_meta = inside_meta && !node.embedded;
    if let Some(default) = schema.default() {
        let path = path.child("default");
        let mut pruned = default.clone();
        schema.prune(&mut pruned);
        if !inside_meta && pruned != *default {
            let detail = "must not have unknown fields";
            errors.push(FieldError::invalid(&path, default.clone(), detail));
        }
        errors.extend(validate::default_value(schema, default, &path));
    }
    if let Some(items) = &node.items {
        walk(items, &path.child("items"), inside_meta, errors);
    }
    for (name, member) in &node.properties {
        let meta = node.embedded && matches!(name.as_str(), "metadata" | "apiVersion" | "kind");
        walk(
            member,
            &path.child("properties").key(name),
            inside_meta || meta,
            errors,
        );
    }
}
