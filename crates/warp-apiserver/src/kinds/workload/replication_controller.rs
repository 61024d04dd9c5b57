//! ReplicationController: kept and checked, nothing acts on it. Clients of old still list it.

use serde_json::{Value, json};

use super::super::{Described, columns, describe, keep_status, pod, typed};
use super::{replica_columns, scale, status_counts};
use crate::kinds::checks::{Errors, not_negative};
use crate::kinds::fields::{at, entries, text};
use crate::registry::resource::{SelectableField, Strategy, Subresource};
use crate::schema::{FieldError, Path};

pub(super) fn descriptor() -> Described {
    let mut all = replica_columns();
    all.extend(columns::template_columns(false));
    all.push(columns::with("Selector", "string", 1, |object, _| {
        json!(columns::labels_text(object, "spec.selector"))
    }));
    describe("", "v1", "ReplicationController", "replicationcontrollers")
        .short("rc")
        .category("all")
        .stored_only()
        .subresources([scale(), Subresource::Status])
        .columns(all)
        .selectable([SelectableField::at(
            "status.replicas",
            "status.replicas",
            "0",
        )])
        .strategy(Strategy {
            default: |object| typed::round_trip("core.ReplicationController", object),
            prepare_create: |object| object["status"] = json!({"replicas": 0}),
            prepare_update: keep_status,
            validate,
            validate_status_update: status_counts,
            generation: true,
            ..Strategy::default()
        })
}

fn validate(object: &Value) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let spec = object.get("spec").unwrap_or(&Value::Null);
    not_negative(spec, "minReadySeconds", &path, &mut errors);
    if entries(spec, "selector").count() == 0 {
        errors.push(FieldError::required(&path.child("selector"), ""));
    }
    not_negative(spec, "replicas", &path, &mut errors);
    template(spec, &path.child("template"), &mut errors);
    errors
}

fn template(spec: &Value, path: &Path, errors: &mut Errors) {
    let Some(template) = at(spec, "template") else {
        errors.push(FieldError::required(path, ""));
        return;
    };
    let labels = template.pointer("/metadata/labels");
    let label = |key: &str| labels.and_then(|labels| labels.get(key));
    if !entries(spec, "selector").all(|(key, value)| label(key) == Some(value)) {
        let detail = "`selector` does not match template `labels`";
        let value = labels.cloned().unwrap_or(Value::Null);
        let path = path.child("metadata").child("labels");
        errors.push(FieldError::invalid(&path, value, detail));
    }
    pod::spec::template(template, path, errors);
    let policy = text(template, "spec.restartPolicy");
    if policy != "Always" {
        let path = path.child("spec").child("restartPolicy");
        errors.push(FieldError::not_supported(&path, policy, &["Always"]));
    }
    if at(template, "spec.activeDeadlineSeconds").is_some() {
        let detail = "activeDeadlineSeconds in ReplicationController is not Supported";
        let path = path.child("spec").child("activeDeadlineSeconds");
        errors.push(FieldError::forbidden(&path, detail));
    }
}
