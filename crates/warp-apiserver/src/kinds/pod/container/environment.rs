//! Environment variables of containers, and the references they and volumes make to fields.

use serde_json::Value;

use crate::kinds::checks::{Errors, env_name, named, required};
use crate::kinds::fields::{at, list, text};
use crate::kinds::metadata;
use crate::schema::{FieldError, Path};

const ENV_FIELDS: [&str; 8] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
];
const ENV_FIELDS_MORE: &str = "status.podIPs";
const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

pub(super) fn environment(container: &Value, path: &Path, errors: &mut Errors) {
    for (index, variable) in list(container, "env").iter().enumerate() {
        let path = path.child("env").index(index);
        let name = text(variable, "name");
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            named(env_name(name), name, &path.child("name"), errors);
        }
        let Some(source) = at(variable, "valueFrom") else {
            continue;
        };
        let path = path.child("valueFrom");
        let mut sources = 0;
        if let Some(reference) = at(source, "fieldRef") {
            sources += 1;
            field_reference(reference, &path.child("fieldRef"), true, errors);
        }
        if let Some(reference) = at(source, "resourceFieldRef") {
            sources += 1;
            resource_reference(reference, &path.child("resourceFieldRef"), false, errors);
        }
        for kind in ["configMapKeyRef", "secretKeyRef"] {
            if let Some(reference) = at(source, kind) {
                sources += 1;
                key_reference(reference, &path.child(kind), errors);
            }
        }
        if at(source, "fileKeyRef").is_some() {
            sources += 1;
        }
        let detail = match sources {
            0 => {
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, \
                 `secretKeyRef` or `fileKeyRef`"
            }
            _ if !text(variable, "value").is_empty() => {
                "may not be specified when `value` is not empty"
            }
            1 => continue,
            _ => "may not have more than one field specified at a time",
        };
        errors.push(FieldError::invalid(&path, "", detail));
    }
}

pub(in crate::kinds::pod) fn field_reference(
    reference: &Value,
    path: &Path,
    env: bool,
    errors: &mut Errors,
) {
    if text(reference, "apiVersion").is_empty() {
        errors.push(FieldError::required(&path.child("apiVersion"), ""));
        return;
    }
    let field = text(reference, "fieldPath");
    if field.is_empty() {
        errors.push(FieldError::required(&path.child("fieldPath"), ""));
        return;
    }
    if let Some((base, subscript)) = field
        .strip_suffix("']")
        .and_then(|rest| rest.split_once("['"))
    {
        match base {
            "metadata.annotations" => {
                named(
                    metadata::qualified_name(&subscript.to_lowercase()),
                    subscript,
                    path,
                    errors,
                );
            }
            "metadata.labels" => {
                named(metadata::qualified_name(subscript), subscript, path, errors);
            }
            _ => {
                let detail = format!(
                    "error converting fieldPath: field label does not support subscript: {field}"
                );
                errors.push(FieldError::invalid(&path.child("fieldPath"), field, detail));
            }
        }
        return;
    }
    let whole = ["metadata.annotations", "metadata.labels"];
    let known = ENV_FIELDS.contains(&field) || field == ENV_FIELDS_MORE || whole.contains(&field);
    if !known {
        let detail = format!("error converting fieldPath: field label not supported: {field}");
        errors.push(FieldError::invalid(&path.child("fieldPath"), field, detail));
    } else if env && whole.contains(&field) {
        let mut allowed = ENV_FIELDS.to_vec();
        allowed.push(ENV_FIELDS_MORE);
        errors.push(FieldError::not_supported(
            &path.child("fieldPath"),
            field,
            &allowed,
        ));
    } else if !env
        && ![
            "metadata.annotations",
            "metadata.labels",
            "metadata.name",
            "metadata.namespace",
            "metadata.uid",
        ]
        .contains(&field)
    {
        let allowed = [
            "metadata.annotations",
            "metadata.labels",
            "metadata.name",
            "metadata.namespace",
            "metadata.uid",
        ];
        errors.push(FieldError::not_supported(
            &path.child("fieldPath"),
            field,
            &allowed,
        ));
    }
}

pub(in crate::kinds::pod) fn resource_reference(
    reference: &Value,
    path: &Path,
    volume: bool,
    errors: &mut Errors,
) {
    let resource = text(reference, "resource");
    if volume && text(reference, "containerName").is_empty() {
        errors.push(FieldError::required(&path.child("containerName"), ""));
    } else if resource.is_empty() {
        errors.push(FieldError::required(&path.child("resource"), ""));
    } else if !RESOURCE_FIELDS.contains(&resource)
        && !resource.starts_with("limits.hugepages-")
        && !resource.starts_with("requests.hugepages-")
    {
        let path = path.child("resource");
        errors.push(FieldError::not_supported(&path, resource, &RESOURCE_FIELDS));
    }
}

fn key_reference(reference: &Value, path: &Path, errors: &mut Errors) {
    let name = text(reference, "name");
    named(metadata::subdomain(name), name, &path.child("name"), errors);
    let key = text(reference, "key");
    if key.is_empty() {
        errors.push(FieldError::required(&path.child("key"), ""));
    } else {
        named(metadata::config_key(key), key, &path.child("key"), errors);
    }
}

pub(super) fn environment_from(container: &Value, path: &Path, errors: &mut Errors) {
    let path = path.child("envFrom");
    for (index, source) in list(container, "envFrom").iter().enumerate() {
        let here = path.index(index);
        let prefix = text(source, "prefix");
        named(env_name(prefix), prefix, &here.child("prefix"), errors);
        let mut sources = 0;
        for kind in ["configMapRef", "secretRef"] {
            if let Some(reference) = at(source, kind) {
                sources += 1;
                required(
                    text(reference, "name"),
                    &here.child(kind).child("name"),
                    errors,
                );
            }
        }
        let detail = match sources {
            0 => "must specify one of: `configMapRef` or `secretRef`",
            1 => continue,
            _ => "may not have more than one field specified at a time",
        };
        errors.push(FieldError::invalid(&path, "", detail));
    }
}
