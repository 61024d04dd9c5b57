//! Deployment and ReplicaSet; below it ControllerRevision, Job, ReplicationController and StatefulSet.

mod controller_revision;
mod job;
mod replication_controller;
mod stateful_set;

use serde_json::{Value, json};

use super::checks::{Errors, count_or_percent, immutable, not_negative, not_over_whole};
use super::fields::{at, entries, list, number, text};
use super::{Described, columns, describe, empty_status, keep_status, metadata, pod, typed};
use crate::registry::resource::{Column, ScalePaths, SelectableField, Strategy, Subresource};
use crate::schema::{FieldError, Path};

pub(super) fn descriptors() -> Vec<Described> {
    vec![
        deployment(),
        replica_set(),
        stateful_set::descriptor(),
        controller_revision::descriptor(),
        job::descriptor(),
        replication_controller::descriptor(),
        pod_template(),
    ]
}

fn pod_template() -> Described {
    describe("", "v1", "PodTemplate", "podtemplates")
        .columns(vec![columns::name(), columns::age()])
        .strategy(Strategy {
            default: |object| typed::round_trip("core.PodTemplate", object),
            generation: true,
            return_deleted: true,
            ..Strategy::default()
        })
}

fn scale() -> Subresource {
    Subresource::Scale(ScalePaths {
        spec_replicas: ".spec.replicas".to_owned(),
        status_replicas: ".status.replicas".to_owned(),
        selector: Some(".spec.selector".to_owned()),
    })
}

fn count(object: &Value, path: &str) -> i64 {
    number(object, path).unwrap_or(0)
}

fn deployment() -> Described {
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
        with("Up-to-date", "integer", 0, |o, _| {
            json!(count(o, "status.updatedReplicas"))
        }),
        with("Available", "integer", 0, |o, _| {
            json!(count(o, "status.availableReplicas"))
        }),
        columns::age(),
    ];
    all.extend(columns::template_columns(true));
    describe("apps", "v1", "Deployment", "deployments")
        .short("deploy")
        .category("all")
        .subresources([scale(), Subresource::Status])
        .columns(all)
        .strategy(Strategy {
            default: |object| typed::round_trip("apps.Deployment", object),
            prepare_create: empty_status,
            prepare_update: |object, old| {
                keep_status(object, old);
                // Annotations of a deployment travel to its replica sets: they count as a change.
                let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
                if object["metadata"].get("annotations") != old["metadata"].get("annotations") {
                    object["metadata"]["generation"] = (generation + 1).into();
                }
            },
            validate: validate_deployment,
            validate_update: selector_immutable,
            validate_status_update: status_counts,
            generation: true,
            ..Strategy::default()
        })
}

fn selector_immutable(new: &Value, old: &Value) -> Errors {
    let mut errors = Vec::new();
    immutable(new, old, "spec.selector", &mut errors);
    errors
}

fn status_counts(new: &Value, _old: &Value) -> Errors {
    let mut errors = Vec::new();
    let status = new.get("status").unwrap_or(&Value::Null);
    let path = Path::new("status");
    for name in [
        "observedGeneration",
        "replicas",
        "fullyLabeledReplicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
    ] {
        not_negative(status, name, &path, &mut errors);
    }
    let total = count(status, "replicas");
    for name in ["updatedReplicas", "readyReplicas", "availableReplicas"] {
        if count(status, name) > total {
            let detail = "cannot be greater than status.replicas";
            errors.push(FieldError::invalid(
                &path.child(name),
                count(status, name),
                detail,
            ));
        }
    }
    if at(status, "updatedReplicas").is_some()
        && count(status, "availableReplicas") > count(status, "readyReplicas")
    {
        let detail = "cannot be greater than readyReplicas";
        let value = count(status, "availableReplicas");
        errors.push(FieldError::invalid(
            &path.child("availableReplicas"),
            value,
            detail,
        ));
    }
    errors
}

/// Selector and template of a workload: the selector must be there, and choose the template.
fn selector_and_template(spec: &Value, path: &Path, kind: &str, errors: &mut Errors) {
    let selector = at(spec, "selector");
    let selector_path = path.child("selector");
    match selector {
        None => errors.push(FieldError::required(&selector_path, "")),
        Some(value) => {
            metadata::label_selector(value, &selector_path, errors);
            let empty = entries(value, "matchLabels").count() == 0
                && list(value, "matchExpressions").is_empty();
            if empty {
                let detail = format!("empty selector is invalid for {kind}");
                errors.push(FieldError::invalid(&selector_path, value.clone(), detail));
            }
        }
    }
    let template = spec.get("template").unwrap_or(&Value::Null);
    let path = path.child("template");
    let labels = template.pointer("/metadata/labels");
    // No selector chooses nothing.
    let chosen = selector.is_some_and(|selector| {
        let any = entries(selector, "matchLabels").count() > 0
            || !list(selector, "matchExpressions").is_empty();
        !any || metadata::selects(Some(selector), labels)
    });
    let owner = if kind == "statefulset" {
        "StatefulSet"
    } else {
        "ReplicaSet"
    };
    lasting_template(template, chosen, &path, owner, errors);
}

/// A template of pods that are kept running, and whether its owner's selector chooses it.
fn lasting_template(template: &Value, chosen: bool, path: &Path, owner: &str, errors: &mut Errors) {
    if !chosen {
        let detail = "`selector` does not match template `labels`";
        let value = template.pointer("/metadata/labels").cloned();
        let path = path.child("metadata").child("labels");
        errors.push(FieldError::invalid(
            &path,
            value.unwrap_or(Value::Null),
            detail,
        ));
    }
    pod::spec::template(template, path, errors);
    let policy = text(template, "spec.restartPolicy");
    if policy != "Always" {
        let path = path.child("spec").child("restartPolicy");
        errors.push(FieldError::not_supported(&path, policy, &["Always"]));
    }
    if at(template, "spec.activeDeadlineSeconds").is_some() {
        let detail = format!("activeDeadlineSeconds in {owner} is not Supported");
        let path = path.child("spec").child("activeDeadlineSeconds");
        errors.push(FieldError::forbidden(&path, detail));
    }
}

fn validate_deployment(object: &Value) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let spec = object.get("spec").unwrap_or(&Value::Null);
    not_negative(spec, "replicas", &path, &mut errors);
    selector_and_template(spec, &path, "deployment", &mut errors);
    strategy(spec, &path.child("strategy"), &mut errors);
    not_negative(spec, "minReadySeconds", &path, &mut errors);
    not_negative(spec, "revisionHistoryLimit", &path, &mut errors);
    not_negative(spec, "progressDeadlineSeconds", &path, &mut errors);
    if let Some(deadline) = number(spec, "progressDeadlineSeconds")
        && deadline <= count(spec, "minReadySeconds")
    {
        let detail = "must be greater than minReadySeconds";
        errors.push(FieldError::invalid(
            &path.child("progressDeadlineSeconds"),
            deadline,
            detail,
        ));
    }
    errors
}

fn strategy(spec: &Value, path: &Path, errors: &mut Errors) {
    let rolling = at(spec, "strategy.rollingUpdate");
    let rolling_path = path.child("rollingUpdate");
    match text(spec, "strategy.type") {
        "Recreate" if rolling.is_some() => {
            let detail = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::forbidden(&rolling_path, detail));
        }
        "Recreate" => {}
        "RollingUpdate" => {
            let Some(rolling) = rolling else { return };
            let (down, over) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
            count_or_percent(down, &rolling_path.child("maxUnavailable"), errors);
            count_or_percent(over, &rolling_path.child("maxSurge"), errors);
            if is_nothing(down) && is_nothing(over) {
                let detail = "may not be 0 when `maxSurge` is 0";
                let value = down.cloned().unwrap_or_else(|| json!(0));
                let path = rolling_path.child("maxUnavailable");
                errors.push(FieldError::invalid(&path, value, detail));
            }
            not_over_whole(down, &rolling_path.child("maxUnavailable"), errors);
        }
        _ => {
            let value = spec.get("strategy").cloned().unwrap_or_default();
            let value =
                json!({"Type": value.get("type"), "RollingUpdate": value.get("rollingUpdate")});
            errors.push(FieldError::not_supported(
                path,
                value,
                &["Recreate", "RollingUpdate"],
            ));
        }
    }
}

fn is_nothing(value: Option<&Value>) -> bool {
    match value {
        None => true,
        Some(Value::String(text)) => text.trim_end_matches('%').parse::<i64>().unwrap_or(0) == 0,
        Some(other) => other.as_i64() == Some(0),
    }
}

/// Desired, current and ready: what plain output of replicated pods shows.
fn replica_columns() -> Vec<Column> {
    let with = columns::with;
    vec![
        columns::name(),
        with("Desired", "integer", 0, |o, _| {
            json!(count(o, "spec.replicas"))
        }),
        with("Current", "integer", 0, |o, _| {
            json!(count(o, "status.replicas"))
        }),
        with("Ready", "integer", 0, |o, _| {
            json!(count(o, "status.readyReplicas"))
        }),
        columns::age(),
    ]
}

fn replica_set() -> Described {
    let mut all = replica_columns();
    all.extend(columns::template_columns(true));
    describe("apps", "v1", "ReplicaSet", "replicasets")
        .short("rs")
        .category("all")
        .subresources([scale(), Subresource::Status])
        .columns(all)
        .selectable([SelectableField::at(
            "status.replicas",
            "status.replicas",
            "0",
        )])
        .strategy(Strategy {
            default: |object| typed::round_trip("apps.ReplicaSet", object),
            prepare_create: |object| object["status"] = json!({"replicas": 0}),
            prepare_update: keep_status,
            validate: |object| {
                let mut errors = Vec::new();
                let path = Path::new("spec");
                let spec = object.get("spec").unwrap_or(&Value::Null);
                not_negative(spec, "replicas", &path, &mut errors);
                not_negative(spec, "minReadySeconds", &path, &mut errors);
                selector_and_template(spec, &path, "deployment", &mut errors);
                errors
            },
            validate_update: selector_immutable,
            validate_status_update: status_counts,
            generation: true,
            ..Strategy::default()
        })
}
