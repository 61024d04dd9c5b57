//! PersistentVolumeClaim.

use serde_json::{Value, json};

use super::checks::{Errors, NEGATIVE, immutable, named, one_of_if_set};
use super::config::is_deleting;
use super::fields::{at, list, text};
use super::storage::access_modes_text;
use super::{Described, Quantity, columns, describe, keep_status, metadata, typed};
use crate::registry::resource::{Strategy, Subresource};
use crate::schema::{FieldError, Path};

const MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];

pub(super) fn descriptor() -> Described {
    let with = columns::with;
    describe("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        .short("pvc")
        .subresources([Subresource::Status])
        .columns(vec![
            columns::name(),
            with("Status", "string", 0, |o, _| {
                json!(if is_deleting(o) {
                    "Terminating"
                } else {
                    text(o, "status.phase")
                })
            }),
            with("Volume", "string", 0, |o, _| {
                json!(text(o, "spec.volumeName"))
            }),
            with("Capacity", "string", 0, |o, _| {
                let bound = !text(o, "spec.volumeName").is_empty();
                json!(if bound {
                    text(o, "status.capacity.storage")
                } else {
                    ""
                })
            }),
            with("Access Modes", "string", 0, |o, _| {
                let bound = !text(o, "spec.volumeName").is_empty();
                json!(if bound {
                    access_modes_text(list(o, "status.accessModes"))
                } else {
                    String::new()
                })
            }),
            with("StorageClass", "string", 0, |o, _| {
                json!(text(o, "spec.storageClassName"))
            }),
            with("VolumeAttributesClass", "string", 0, |o, _| {
                columns::unset_if_empty(text(o, "spec.volumeAttributesClassName"))
            }),
            columns::age(),
            with("VolumeMode", "string", 1, |o, _| {
                columns::unset_if_empty(text(o, "spec.volumeMode"))
            }),
        ])
        .strategy(Strategy {
            default: |object| typed::round_trip("core.PersistentVolumeClaim", object),
            prepare_create: |object| object["status"] = json!({"phase": "Pending"}),
            prepare_update: keep_status,
            validate: |object| {
                let mut errors = Vec::new();
                let spec = object.get("spec").unwrap_or(&Value::Null);
                validate_spec(spec, &Path::new("spec"), &mut errors);
                errors
            },
            validate_update,
            return_deleted: true,
            ..Strategy::default()
        })
}

/// The spec of a claim, also as a template inside other kinds.
pub(super) fn validate_spec(spec: &Value, path: &Path, errors: &mut Errors) {
    access_modes(spec, "at least 1 access mode is required", path, errors);
    if let Some(selector) = at(spec, "selector") {
        metadata::label_selector(selector, &path.child("selector"), errors);
    }
    let storage = path.child("resources").key("storage");
    match at(spec, "resources.requests.storage").and_then(Quantity::of) {
        None => errors.push(FieldError::required(&storage, "")),
        Some(amount) if amount.is_zero() || amount.is_negative() => {
            let detail = "must be greater than zero";
            errors.push(FieldError::invalid(&storage, amount.canonical(), detail));
        }
        Some(_) => {}
    }
    let class = text(spec, "storageClassName");
    if !class.is_empty() {
        named(
            metadata::subdomain(class),
            class,
            &path.child("storageClassName"),
            errors,
        );
    }
    one_of_if_set(spec, "volumeMode", &["Block", "Filesystem"], path, errors);
}

/// Access modes: known, at least one, and the exclusive one alone.
pub(super) fn access_modes(spec: &Value, missing: &str, path: &Path, errors: &mut Errors) {
    let modes: Vec<&str> = list(spec, "accessModes")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let path = path.child("accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required(&path, missing));
    }
    for mode in &modes {
        if !MODES.contains(mode) {
            errors.push(FieldError::not_supported(&path, *mode, &MODES));
        }
    }
    let alone = modes.contains(&"ReadWriteOncePod");
    if alone
        && modes
            .iter()
            .any(|mode| *mode != "ReadWriteOncePod" && MODES.contains(mode))
    {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(&path, detail));
    }
}

fn validate_update(new: &Value, old: &Value) -> Errors {
    let mut errors = Vec::new();
    let bound = text(new, "status.phase") == "Bound";
    let strip = |object: &Value, volume: bool| {
        let mut spec = object
            .get("spec")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        if volume {
            spec.remove("volumeName");
        }
        if bound {
            spec.remove("volumeAttributesClassName");
            if let Some(requests) = spec
                .get_mut("resources")
                .and_then(|r| r.get_mut("requests"))
            {
                requests["storage"] = Value::Null;
            }
        }
        spec
    };
    let unbound = text(old, "spec.volumeName").is_empty();
    if strip(new, unbound) != strip(old, unbound) {
        let detail = "spec is immutable after creation except resources.requests and \
                      volumeAttributesClassName for bound claims\n";
        errors.push(FieldError::forbidden(&Path::new("spec"), detail));
    }
    let size =
        |object: &Value| at(object, "spec.resources.requests.storage").and_then(Quantity::of);
    if let (Some(after), Some(before)) = (size(new), size(old))
        && after < before
    {
        let held = at(old, "status.capacity.storage").and_then(Quantity::of);
        if after <= held.unwrap_or(Quantity::ZERO) {
            let path = Path::new("spec.resources.requests.storage");
            let detail = "field can not be less than status.capacity";
            errors.push(FieldError::forbidden(&path, detail));
        }
    }
    immutable(new, old, "spec.volumeMode", &mut errors);
    errors
}

/// A capacity that must be above zero.
pub(super) fn positive(value: &Value, path: &Path, errors: &mut Errors) {
    let Some(amount) = Quantity::of(value) else {
        return;
    };
    if amount.is_negative() {
        errors.push(FieldError::invalid(path, amount.canonical(), NEGATIVE));
    }
    if amount.is_negative() || amount.is_zero() {
        errors.push(FieldError::invalid(
            path,
            amount.canonical(),
            "must be greater than zero",
        ));
    }
}
