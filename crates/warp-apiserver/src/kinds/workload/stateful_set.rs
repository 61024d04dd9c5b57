//! StatefulSet: pods with names that stay.

use serde_json::{Value, json};

use super::super::{Described, columns, describe, keep_status, typed};
use super::{count, scale, selector_and_template};
use crate::kinds::checks::{Errors, not_negative};
use crate::kinds::fields::{at, list, number, text};
use crate::registry::resource::{Strategy, Subresource};
use crate::schema::{FieldError, Path};

/// `maxUnavailable` of a rolling update stands behind a gate that is closed by default: the field is dropped, as there.
fn default(object: &mut Value) {
    if let Some(rolling) = object
        .pointer_mut("/spec/updateStrategy/rollingUpdate")
        .and_then(Value::as_object_mut)
    {
        rolling.remove("maxUnavailable");
    }
    typed::round_trip("apps.StatefulSet", object);
}

/// What is counted of a set's pods besides how many there are.
const PARTS: [&str; 4] = [
    "readyReplicas",
    "currentReplicas",
    "updatedReplicas",
    "availableReplicas",
];

/// No part of a set is larger than the set, and no more are available than ready; collisions only add up.
fn status_update(new: &Value, old: &Value) -> Errors {
    let mut errors = Vec::new();
    let status = new.get("status").unwrap_or(&Value::Null);
    let path = Path::new("status");
    not_negative(status, "replicas", &path, &mut errors);
    for name in PARTS {
        not_negative(status, name, &path, &mut errors);
    }
    not_negative(status, "observedGeneration", &path, &mut errors);
    not_negative(status, "collisionCount", &path, &mut errors);
    for name in PARTS {
        if count(status, name) > count(status, "replicas") {
            let detail = "cannot be greater than status.replicas";
            let (path, value) = (path.child(name), count(status, name));
            errors.push(FieldError::invalid(&path, value, detail));
        }
    }
    if count(status, "availableReplicas") > count(status, "readyReplicas") {
        let detail = "cannot be greater than status.readyReplicas";
        let path = path.child("availableReplicas");
        let value = count(status, "availableReplicas");
        errors.push(FieldError::invalid(&path, value, detail));
    }
    let (before, after) = (
        number(old, "status.collisionCount"),
        number(status, "collisionCount"),
    );
    if after < before {
        let detail = "cannot be decremented";
        let path = path.child("collisionCount");
        errors.push(FieldError::invalid(&path, after.unwrap_or(0), detail));
    }
    errors
}

pub(super) fn descriptor() -> Described {
    let with = columns::with;
    let mut all = vec![
        columns::name(),
        with("Ready", "string", 0, |o, _| {
            json!(format!(
                "{}/{}",
                count(o, "status.readyReplicas"),
                count(o, "spec.replicas")
            ))
        }),
        columns::age(),
    ];
    all.extend(columns::template_columns(false));
    describe("apps", "v1", "StatefulSet", "statefulsets")
        .short("sts")
        .category("all")
        .subresources([scale(), Subresource::Status])
        .columns(all)
        .strategy(Strategy {
            default,
            prepare_create: |object| {
                object["status"] = json!({"replicas": 0, "availableReplicas": 0});
            },
            prepare_update: keep_status,
            validate: validate_stateful_set,
            validate_update: |new, old| {
                const MUTABLE: [&str; 8] = [
                    "replicas",
                    "ordinals",
                    "template",
                    "updateStrategy",
                    "revisionHistoryLimit",
                    "persistentVolumeClaimRetentionPolicy",
                    "minReadySeconds",
                    "volumeClaimTemplates",
                ];
                let strip = |object: &Value| {
                    let mut spec = object
                        .get("spec")
                        .and_then(Value::as_object)
                        .cloned()
                        .unwrap_or_default();
                    spec.retain(|name, _| !MUTABLE[..7].contains(&name.as_str()));
                    spec
                };
                if strip(new) == strip(old) {
                    return Vec::new();
                }
                let detail = "updates to statefulset spec for fields other than 'replicas', \
                              'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', \
                              'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are \
                              forbidden";
                vec![FieldError::forbidden(&Path::new("spec"), detail)]
            },
            validate_status_update: status_update,
            generation: true,
            ..Strategy::default()
        })
}

fn validate_stateful_set(object: &Value) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let policy = text(spec, "podManagementPolicy");
    if !matches!(policy, "OrderedReady" | "Parallel") {
        let detail = "must be 'OrderedReady' or 'Parallel'";
        errors.push(FieldError::invalid(
            &path.child("podManagementPolicy"),
            policy,
            detail,
        ));
    }
    let update = path.child("updateStrategy");
    match text(spec, "updateStrategy.type") {
        "OnDelete" => {
            if let Some(rolling) = at(spec, "updateStrategy.rollingUpdate") {
                let detail = "only allowed for updateStrategy 'RollingUpdate'";
                let path = update.child("rollingUpdate");
                errors.push(FieldError::invalid(&path, rolling.clone(), detail));
            }
        }
        "RollingUpdate" => {
            if let Some(rolling) = at(spec, "updateStrategy.rollingUpdate") {
                let path = update.child("rollingUpdate");
                not_negative(rolling, "partition", &path, &mut errors);
            }
        }
        "" => errors.push(FieldError::required(&update, "")),
        _ => {
            let value = spec.get("updateStrategy").cloned().unwrap_or_default();
            let detail = "must be 'RollingUpdate' or 'OnDelete'";
            errors.push(FieldError::invalid(&update, value, detail));
        }
    }
    not_negative(spec, "replicas", &path, &mut errors);
    not_negative(spec, "minReadySeconds", &path, &mut errors);
    if let Some(ordinals) = at(spec, "ordinals") {
        not_negative(ordinals, "start", &path.child("ordinals"), &mut errors);
    }
    // Volumes made from claim templates exist for the containers.
    let mut described = spec.clone();
    let templates: Vec<Value> = list(spec, "volumeClaimTemplates")
        .iter()
        .map(|claim| {
            let name = text(claim, "metadata.name");
            json!({"name": name, "persistentVolumeClaim": {"claimName": name}})
        })
        .collect();
    if !templates.is_empty() {
        let mut volumes = templates;
        let known: Vec<String> = volumes.iter().map(|v| text(v, "name").to_owned()).collect();
        volumes.extend(
            list(spec, "template.spec.volumes")
                .iter()
                .filter(|volume| !known.iter().any(|name| name == text(volume, "name")))
                .cloned(),
        );
        if let Some(template) = described.pointer_mut("/template/spec") {
            template["volumes"] = Value::Array(volumes);
        }
    }
    selector_and_template(&described, &path, "statefulset", &mut errors);
    errors
}
