//! Checks of the volumes of a pod.

use std::collections::HashSet;

use serde_json::Value;

use super::container;
use crate::kinds::checks::{
    Errors, descending_path, no_back_steps, one_of_if_set, required, required_label,
};
use crate::kinds::fields::{at, list, number, text};
use crate::kinds::{Quantity, claim};
use crate::schema::{FieldError, Path};

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// Checks every volume; the names of the valid ones.
pub(super) fn volumes(spec: &Value, path: &Path, errors: &mut Errors) -> HashSet<String> {
    let mut names = HashSet::new();
    for (index, volume) in list(spec, "volumes").iter().enumerate() {
        let path = path.child("volumes").index(index);
        let before = errors.len();
        source(volume, &path, errors);
        let name = text(volume, "name");
        required_label(name, &path.child("name"), errors);
        if names.contains(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        if errors.len() == before {
            names.insert(name.to_owned());
        }
    }
    names
}

fn source(volume: &Value, path: &Path, errors: &mut Errors) {
    let kinds = volume.as_object().into_iter().flatten();
    let mut kinds: Vec<(&String, &Value)> = kinds
        .filter(|(name, value)| *name != "name" && !value.is_null())
        .collect();
    // emptyDir is looked at first: it is the one blamed last.
    kinds.sort_by_key(|(name, _)| *name != "emptyDir");
    if kinds.is_empty() {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
    for (index, (kind, value)) in kinds.into_iter().enumerate() {
        let path = path.child(kind);
        if index > 0 {
            errors.push(FieldError::forbidden(
                &path,
                "may not specify more than 1 volume type",
            ));
            continue;
        }
        one(kind, value, &path, errors);
    }
}

fn one(kind: &str, value: &Value, path: &Path, errors: &mut Errors) {
    match kind {
        "emptyDir" => {
            let limit = at(value, "sizeLimit").and_then(Quantity::of);
            if limit.is_some_and(Quantity::is_negative) {
                let detail = "SizeLimit field must be a valid resource quantity";
                errors.push(FieldError::forbidden(&path.child("sizeLimit"), detail));
            }
        }
        "hostPath" => host_path(value, path, errors),
        "secret" => keyed(value, "secretName", path, errors),
        "configMap" => keyed(value, "name", path, errors),
        "downwardAPI" => {
            mode(value, "defaultMode", path, errors);
            for item in list(value, "items") {
                downward_file(item, path, errors);
            }
        }
        "projected" => projected(value, path, errors),
        "persistentVolumeClaim" => {
            required(text(value, "claimName"), &path.child("claimName"), errors);
        }
        "ephemeral" => match at(value, "volumeClaimTemplate") {
            None => errors.push(FieldError::required(&path.child("volumeClaimTemplate"), "")),
            Some(template) => {
                let spec = template.get("spec").cloned().unwrap_or_default();
                let path = path.child("volumeClaimTemplate").child("spec");
                claim::validate_spec(&spec, &path, errors);
            }
        },
        "nfs" => {
            required(text(value, "server"), &path.child("server"), errors);
            let export = text(value, "path");
            required(export, &path.child("path"), errors);
            if !export.is_empty() && !export.starts_with('/') {
                let detail = "must be an absolute path";
                errors.push(FieldError::invalid(&path.child("path"), export, detail));
            }
        }
        "csi" | "flexVolume" => required(text(value, "driver"), &path.child("driver"), errors),
        "image" => {
            required(text(value, "reference"), &path.child("reference"), errors);
            let policies = ["Always", "IfNotPresent", "Never"];
            one_of_if_set(value, "pullPolicy", &policies, path, errors);
        }
        "gitRepo" => {
            required(text(value, "repository"), &path.child("repository"), errors);
            descending_path(text(value, "directory"), &path.child("directory"), errors);
        }
        "glusterfs" => {
            required(text(value, "endpoints"), &path.child("endpoints"), errors);
            required(text(value, "path"), &path.child("path"), errors);
        }
        "cephfs" if list(value, "monitors").is_empty() => {
            errors.push(FieldError::required(&path.child("monitors"), ""));
        }
        "rbd" => {
            if list(value, "monitors").is_empty() {
                errors.push(FieldError::required(&path.child("monitors"), ""));
            }
            required(text(value, "image"), &path.child("image"), errors);
        }
        "azureFile" => {
            required(text(value, "secretName"), &path.child("secretName"), errors);
            required(text(value, "shareName"), &path.child("shareName"), errors);
        }
        "awsElasticBlockStore" | "cinder" | "portworxVolume" => {
            required(text(value, "volumeID"), &path.child("volumeID"), errors);
        }
        "gcePersistentDisk" => required(text(value, "pdName"), &path.child("pdName"), errors),
        _ => {}
    }
}

fn host_path(value: &Value, path: &Path, errors: &mut Errors) {
    let target = text(value, "path");
    if target.is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
        return;
    }
    no_back_steps(target, &path.child("path"), errors);
    let kinds = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    one_of_if_set(value, "type", &kinds, path, errors);
}

fn mode(value: &Value, name: &str, path: &Path, errors: &mut Errors) {
    if let Some(mode) = number(value, name).filter(|mode| !(0..=0o777).contains(mode)) {
        errors.push(FieldError::invalid(&path.child(name), mode, MODE));
    }
}

/// A secret or config map, whole or in items.
fn keyed(value: &Value, name: &str, path: &Path, errors: &mut Errors) {
    required(text(value, name), &path.child(name), errors);
    mode(value, "defaultMode", path, errors);
    for (index, item) in list(value, "items").iter().enumerate() {
        key_to_path(item, &path.child("items").index(index), errors);
    }
}

fn key_to_path(item: &Value, path: &Path, errors: &mut Errors) {
    required(text(item, "key"), &path.child("key"), errors);
    required(text(item, "path"), &path.child("path"), errors);
    reserved_path(text(item, "path"), &path.child("path"), errors);
    mode(item, "mode", path, errors);
}

fn reserved_path(value: &str, path: &Path, errors: &mut Errors) {
    descending_path(value, path, errors);
    if value.starts_with("..") && !value.starts_with("../") {
        errors.push(FieldError::invalid(path, value, "must not start with '..'"));
    }
}

fn downward_file(item: &Value, path: &Path, errors: &mut Errors) {
    required(text(item, "path"), &path.child("path"), errors);
    reserved_path(text(item, "path"), &path.child("path"), errors);
    match (at(item, "fieldRef"), at(item, "resourceFieldRef")) {
        (Some(reference), None) => {
            container::field_reference(reference, &path.child("fieldRef"), false, errors);
        }
        (None, Some(reference)) => {
            container::resource_reference(reference, &path.child("resourceFieldRef"), true, errors);
        }
        (Some(_), Some(_)) => {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.push(FieldError::invalid(path, "resource", detail));
        }
        (None, None) => {
            let detail = "one of fieldRef and resourceFieldRef is required";
            errors.push(FieldError::required(path, detail));
        }
    }
    mode(item, "mode", path, errors);
}

fn projected(value: &Value, path: &Path, errors: &mut Errors) {
    mode(value, "defaultMode", path, errors);
    let mut paths: HashSet<&str> = HashSet::new();
    for (index, source) in list(value, "sources").iter().enumerate() {
        let here = path.child("sources").index(index);
        let mut kinds = 0;
        for kind in ["secret", "configMap"] {
            let Some(part) = at(source, kind) else {
                continue;
            };
            kinds += 1;
            let part_path = here.child(kind);
            required(text(part, "name"), &part_path.child("name"), errors);
            for (index, item) in list(part, "items").iter().enumerate() {
                key_to_path(item, &part_path.child("items").index(index), errors);
                if !paths.insert(text(item, "path")) {
                    let detail = "conflicting duplicate paths";
                    errors.push(FieldError::invalid(path, text(part, "name"), detail));
                }
            }
        }
        if let Some(part) = at(source, "downwardAPI") {
            kinds += 1;
            for item in list(part, "items") {
                downward_file(item, &here.child("downwardAPI"), errors);
                if !paths.insert(text(item, "path")) {
                    let detail = "conflicting duplicate paths";
                    errors.push(FieldError::invalid(path, text(item, "path"), detail));
                }
            }
        }
        if let Some(part) = at(source, "serviceAccountToken") {
            kinds += 1;
            let seconds = number(part, "expirationSeconds").unwrap_or(3600);
            let seconds_path = here.child("serviceAccountToken").child("expirationSeconds");
            if seconds < 600 {
                let detail = "may not specify a duration less than 10 minutes";
                errors.push(FieldError::invalid(&seconds_path, seconds, detail));
            }
            if seconds > 1 << 32 {
                let detail = "may not specify a duration larger than 2^32 seconds";
                errors.push(FieldError::invalid(&seconds_path, seconds, detail));
            }
            required(text(part, "path"), &path.child("path"), errors);
            reserved_path(text(part, "path"), &path.child("path"), errors);
        }
        if kinds > 1 {
            let detail = "may not specify more than 1 volume type per source";
            errors.push(FieldError::forbidden(&here, detail));
        }
    }
}
