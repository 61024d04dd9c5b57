//! The checks of `metadata` that every kind shares.

use serde_json::Value;

use super::Resource;
use crate::kinds::metadata::{annotations, labels, qualified_name};
use crate::schema::{FieldError, Path};

/// Checks the metadata of a new or changed object.
pub(crate) fn validate_metadata(object: &Value, resource: &Resource) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let path = Path::new("metadata");
    let meta = &object["metadata"];
    let text = |name: &str| meta[name].as_str().unwrap_or_default();
    let validate_name = resource.strategy.validate_name;
    let generate = text("generateName");
    if !generate.is_empty() {
        // The generated part is alphanumeric: a prefix may end where a name may not.
        let probe = format!("{}a", generate.trim_end_matches(['-', '.']));
        for problem in validate_name(&probe) {
            errors.push(FieldError::invalid(
                &path.child("generateName"),
                generate,
                problem,
            ));
        }
    }
    let name = text("name");
    if name.is_empty() {
        errors.push(FieldError::required(
            &path.child("name"),
            "name or generateName is required",
        ));
    } else {
        for problem in validate_name(name) {
            errors.push(FieldError::invalid(&path.child("name"), name, problem));
        }
    }
    if resource.namespaced {
        let namespace = text("namespace");
        if namespace.is_empty() {
            errors.push(FieldError::required(&path.child("namespace"), ""));
        } else {
            for problem in super::name::label(namespace) {
                errors.push(FieldError::invalid(
                    &path.child("namespace"),
                    namespace,
                    problem,
                ));
            }
        }
    } else if !text("namespace").is_empty() {
        errors.push(FieldError::forbidden(
            &path.child("namespace"),
            "not allowed on this type",
        ));
    }
    if meta["generation"]
        .as_i64()
        .is_some_and(|generation| generation < 0)
    {
        errors.push(FieldError::invalid(
            &path.child("generation"),
            meta["generation"].clone(),
            "must be greater than or equal to 0",
        ));
    }
    labels(meta.get("labels"), &path.child("labels"), &mut errors);
    annotations(
        meta.get("annotations"),
        &path.child("annotations"),
        &mut errors,
    );
    owners(
        meta.get("ownerReferences"),
        &path.child("ownerReferences"),
        &mut errors,
    );
    finalizers(
        meta.get("finalizers"),
        &path.child("finalizers"),
        &mut errors,
    );
    errors
}

fn owners(list: Option<&Value>, path: &Path, errors: &mut Vec<FieldError>) {
    let mut controller: Option<(String, String)> = None;
    for owner in list.and_then(Value::as_array).into_iter().flatten() {
        let text = |name: &str| owner[name].as_str().unwrap_or_default();
        if text("apiVersion").is_empty() {
            errors.push(FieldError::invalid(
                &path.child("apiVersion"),
                text("apiVersion"),
                "version must not be empty",
            ));
        }
        for (name, problem) in [
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if text(name).is_empty() {
                errors.push(FieldError::invalid(&path.child(name), text(name), problem));
            }
        }
        if owner["controller"].as_bool() == Some(true) {
            if let Some((kind, name)) = &controller {
                errors.push(FieldError::invalid(
                    &Path::new("metadata.ownerReferences"),
                    list.cloned().unwrap_or_default(),
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {kind}/{name} and {}/{}",
                        text("kind"),
                        text("name")
                    ),
                ));
            } else {
                controller = Some((text("kind").to_owned(), text("name").to_owned()));
            }
        }
    }
}

fn finalizers(list: Option<&Value>, path: &Path, errors: &mut Vec<FieldError>) {
    const STANDARD: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];
    let mut orphan = false;
    let mut foreground = false;
    let names = list
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    for (position, name) in names.enumerate() {
        let path = path.index(position);
        orphan |= name == "orphan";
        foreground |= name == "foregroundDeletion";
        for problem in qualified_name(name) {
            errors.push(FieldError::invalid(&path, name, problem));
        }
        if !name.contains('/') && !STANDARD.contains(&name) {
            errors.push(FieldError::invalid(
                &path,
                name,
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
    }
    if orphan && foreground {
        errors.push(FieldError::invalid(
            path,
            list.cloned().unwrap_or_default(),
            "finalizer foregroundDeletion and finalizer orphan cannot both be set",
        ));
    }
}

/// Checks what an update may not change.
pub(crate) fn validate_metadata_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let path = Path::new("metadata");
    let (new, old) = (&new["metadata"], &old["metadata"]);
    for name in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        if new.get(name).filter(|v| !v.is_null()) != old.get(name).filter(|v| !v.is_null()) {
            errors.push(FieldError::invalid(
                &path.child(name),
                new.get(name).cloned().unwrap_or_default(),
                "field is immutable",
            ));
        }
    }
    if old.get("deletionTimestamp").is_some_and(|at| !at.is_null()) {
        let known = old["finalizers"].as_array().cloned().unwrap_or_default();
        let added: Vec<&str> = new["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|name| !known.contains(name))
            .filter_map(Value::as_str)
            .collect();
        if !added.is_empty() {
            errors.push(FieldError::forbidden(
                &path.child("finalizers"),
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    added.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
                ),
            ));
        }
    }
    errors
}
