//! Job.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::count;
use crate::codec::table::human_duration;
use crate::kinds::checks::{Errors, immutable, not_negative, one_of_if_set};
use crate::kinds::config::is_deleting;
use crate::kinds::fields::{at, flag, list, number, text};
use crate::kinds::{Described, columns, describe, empty_status, keep_status, metadata, pod, typed};
use crate::registry::resource::{SelectableField, Strategy, Subresource};
use crate::schema::{FieldError, Path};

const ORPHANS: &str = "child pods are preserved by default when jobs are deleted; set \
                       propagationPolicy=Background to remove them or set \
                       propagationPolicy=Orphan to suppress this warning";

pub(super) fn descriptor() -> Described {
    let with = columns::with;
    let mut all = vec![
        columns::name(),
        with("Status", "string", 0, |o, _| json!(status(o))),
        with("Completions", "string", 0, |o, _| json!(completions(o))),
        with("Duration", "string", 0, |o, now| json!(duration(o, now))),
        columns::age(),
    ];
    all.extend(columns::template_columns(true));
    describe("batch", "v1", "Job", "jobs")
        .category("all")
        .subresources([Subresource::Status])
        .columns(all)
        .selectable([SelectableField::at(
            "status.successful",
            "status.succeeded",
            "0",
        )])
        .strategy(Strategy {
            default: |object| typed::round_trip("batch.Job", object),
            prepare_create: |object| {
                generate_selector(object);
                inherit_labels(object);
                empty_status(object);
            },
            prepare_update: keep_status,
            validate,
            validate_update,
            validate_status_update,
            generation: true,
            orphan_by_default: Some(ORPHANS),
            ..Strategy::default()
        })
}

fn has_condition(job: &Value, kind: &str) -> bool {
    list(job, "status.conditions")
        .iter()
        .any(|c| text(c, "type") == kind && text(c, "status") == "True")
}

fn status(job: &Value) -> &'static str {
    if has_condition(job, "Complete") {
        "Complete"
    } else if has_condition(job, "Failed") {
        "Failed"
    } else if is_deleting(job) {
        "Terminating"
    } else if has_condition(job, "Suspended") {
        "Suspended"
    } else if has_condition(job, "FailureTarget") {
        "FailureTarget"
    } else if has_condition(job, "SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(job: &Value) -> String {
    let done = count(job, "status.succeeded");
    match (
        number(job, "spec.completions"),
        count(job, "spec.parallelism"),
    ) {
        (Some(wanted), _) => format!("{done}/{wanted}"),
        (None, many) if many > 1 => format!("{done}/1 of {many}"),
        (None, _) => format!("{done}/1"),
    }
}

fn duration(job: &Value, now: Timestamp) -> String {
    let Ok(start) = text(job, "status.startTime").parse::<Timestamp>() else {
        return String::new();
    };
    let end = text(job, "status.completionTime")
        .parse::<Timestamp>()
        .unwrap_or(now);
    human_duration(end.as_second() - start.as_second())
}

const JOB_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];
const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];

/// Pods of a job are found by labels the server makes up, unless the user says otherwise.
fn generate_selector(job: &mut Value) {
    if flag(job, "spec.manualSelector") {
        return;
    }
    let name = text(job, "metadata.name").to_owned();
    let uid = text(job, "metadata.uid").to_owned();
    let labels = &mut job["spec"]["template"]["metadata"]["labels"];
    if !labels.is_object() {
        *labels = Value::Object(Map::new());
    }
    for (keys, value) in [(JOB_LABELS, &name), (UID_LABELS, &uid)] {
        for key in keys {
            if labels.get(key).is_none() {
                labels[key] = json!(value);
            }
        }
    }
    let chosen = &mut job["spec"]["selector"]["matchLabels"];
    if !chosen.is_object() {
        *chosen = Value::Object(Map::new());
    }
    if chosen.get(UID_LABELS[1]).is_none() {
        chosen[UID_LABELS[1]] = json!(uid);
    }
}

/// A job without labels gets its template's, the generated ones included.
fn inherit_labels(job: &mut Value) {
    let own = job.pointer("/metadata/labels").and_then(Value::as_object);
    let labels = job.pointer("/spec/template/metadata/labels").cloned();
    if let (true, Some(labels)) = (own.is_none_or(Map::is_empty), labels) {
        job["metadata"]["labels"] = labels;
    }
}

fn validate(job: &Value) -> Errors {
    let mut errors = Vec::new();
    generated_selector(job, &mut errors);
    let path = Path::new("spec");
    let spec = job.get("spec").unwrap_or(&Value::Null);
    match at(spec, "selector") {
        None => errors.push(FieldError::required(&path.child("selector"), "")),
        Some(selector) => {
            metadata::label_selector(selector, &path.child("selector"), &mut errors);
            let labels = spec.pointer("/template/metadata/labels");
            if !metadata::selects(Some(selector), labels) {
                let path = path.child("template").child("metadata").child("labels");
                let value = labels.cloned().unwrap_or(Value::Null);
                let detail = "`selector` does not match template `labels`";
                errors.push(FieldError::invalid(&path, value, detail));
            }
        }
    }
    numbers(spec, &path, &mut errors);
    let template = spec.get("template").unwrap_or(&Value::Null);
    pod::spec::template(template, &path.child("template"), &mut errors);
    restart_policy(spec, template, &path, &mut errors);
    let name = text(job, "metadata.name");
    if text(spec, "completionMode") == "Indexed"
        && let Some(wanted) = number(spec, "completions").filter(|wanted| *wanted > 0)
    {
        let host = format!("{name}-{}", wanted - 1);
        if !metadata::dns1123_label(&host).is_empty() {
            let detail = format!("will not able to create pod with invalid DNS label: {host}");
            errors.push(FieldError::invalid(
                &Path::new("metadata.name"),
                name,
                detail,
            ));
        }
    }
    errors
}

fn generated_selector(job: &Value, errors: &mut Errors) {
    let Some(selector) = at(job, "spec.selector") else {
        return;
    };
    if flag(job, "spec.manualSelector") {
        return;
    }
    let (name, uid) = (text(job, "metadata.name"), text(job, "metadata.uid"));
    let labels = job.pointer("/spec/template/metadata/labels");
    let path = Path::new("spec.template.metadata");
    for (key, expected) in [
        (UID_LABELS[0], uid),
        (JOB_LABELS[0], name),
        (UID_LABELS[1], uid),
        (JOB_LABELS[1], name),
    ] {
        let found = labels
            .and_then(|labels| labels.get(key))
            .and_then(Value::as_str);
        let path = path.child("labels");
        match found {
            None => errors.push(FieldError::required(
                &path.key(key),
                format!("must be '{expected}'"),
            )),
            Some(found) if found != expected => {
                let value = labels.cloned().unwrap_or(Value::Null);
                let detail = format!("must be '{expected}'");
                errors.push(FieldError::invalid(&path.key(key), value, detail));
            }
            Some(_) => {}
        }
    }
    let expected = json!({
        UID_LABELS[0]: uid, JOB_LABELS[0]: name, UID_LABELS[1]: uid, JOB_LABELS[1]: name,
    });
    if !metadata::selects(Some(selector), Some(&expected)) {
        let detail = "`selector` not auto-generated";
        errors.push(FieldError::invalid(
            &Path::new("spec.selector"),
            selector.clone(),
            detail,
        ));
    }
}

fn numbers(spec: &Value, path: &Path, errors: &mut Errors) {
    for name in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        not_negative(spec, name, path, errors);
    }
    if at(spec, "maxFailedIndexes").is_some() && at(spec, "backoffLimitPerIndex").is_none() {
        let detail = "when maxFailedIndexes is specified";
        errors.push(FieldError::required(
            &path.child("backoffLimitPerIndex"),
            detail,
        ));
    }
    one_of_if_set(
        spec,
        "completionMode",
        &["NonIndexed", "Indexed"],
        path,
        errors,
    );
    if text(spec, "completionMode") == "Indexed" {
        if at(spec, "completions").is_none() {
            let detail = "when completion mode is Indexed";
            errors.push(FieldError::required(&path.child("completions"), detail));
        }
        if let Some(many) = number(spec, "parallelism").filter(|many| *many > 100_000) {
            let detail = "must be less than or equal to 100000 when completion mode is Indexed";
            errors.push(FieldError::invalid(
                &path.child("parallelism"),
                many,
                detail,
            ));
        }
        if let (Some(failed), Some(wanted)) = (
            number(spec, "maxFailedIndexes"),
            number(spec, "completions"),
        ) && failed > wanted
        {
            let detail = "must be less than or equal to completions";
            errors.push(FieldError::invalid(
                &path.child("maxFailedIndexes"),
                failed,
                detail,
            ));
        }
    } else {
        for name in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if let Some(value) = number(spec, name) {
                let detail = "requires indexed completion mode";
                errors.push(FieldError::invalid(&path.child(name), value, detail));
            }
        }
        if let Some(policy) = at(spec, "successPolicy") {
            let detail = "requires indexed completion mode";
            errors.push(FieldError::invalid(
                &path.child("successPolicy"),
                policy.clone(),
                detail,
            ));
        }
    }
    let policies = ["Failed", "TerminatingOrFailed"];
    one_of_if_set(spec, "podReplacementPolicy", &policies, path, errors);
    failure_policy(spec, path, errors);
}

fn failure_policy(spec: &Value, path: &Path, errors: &mut Errors) {
    let rules = list(spec, "podFailurePolicy.rules");
    let path = path.child("podFailurePolicy").child("rules");
    if rules.len() > 20 {
        let count = i64::try_from(rules.len()).unwrap_or(i64::MAX);
        errors.push(FieldError::too_many(&path, count, 20));
    }
    for (index, rule) in rules.iter().enumerate() {
        let path = path.index(index);
        let actions = ["Count", "FailIndex", "FailJob", "Ignore"];
        let action = text(rule, "action");
        if action.is_empty() {
            let detail = "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]";
            errors.push(FieldError::required(&path.child("action"), detail));
        } else {
            one_of_if_set(rule, "action", &actions, &path, errors);
        }
        let by_code = at(rule, "onExitCodes");
        let by_condition = !list(rule, "onPodConditions").is_empty();
        if by_code.is_some() && by_condition {
            let detail = "specifying both OnExitCodes and OnPodConditions is not supported";
            errors.push(FieldError::invalid(&path, Value::Null, detail));
        }
        if by_code.is_none() && !by_condition {
            let detail = "specifying one of OnExitCodes and OnPodConditions is required";
            errors.push(FieldError::invalid(&path, Value::Null, detail));
        }
        if let Some(codes) = by_code {
            let path = path.child("onExitCodes");
            super::super::checks::one_of(codes, "operator", &["In", "NotIn"], &path, errors);
            if list(codes, "values").is_empty() {
                let detail = "at least one value is required";
                errors.push(FieldError::invalid(
                    &path.child("values"),
                    json!([]),
                    detail,
                ));
            }
            for (index, value) in list(codes, "values").iter().enumerate() {
                if text(codes, "operator") == "In" && value == &json!(0) {
                    let detail = "must not be 0 for the In operator";
                    errors.push(FieldError::invalid(
                        &path.child("values").index(index),
                        0,
                        detail,
                    ));
                }
            }
        }
    }
}

fn restart_policy(spec: &Value, template: &Value, path: &Path, errors: &mut Errors) {
    let policy = text(template, "spec.restartPolicy");
    let path = path.child("template").child("spec").child("restartPolicy");
    match policy {
        "" | "Always" => {
            let detail = "valid values: \"OnFailure\", \"Never\"";
            errors.push(FieldError::required(&path, detail));
        }
        "OnFailure" if at(spec, "podFailurePolicy").is_some() => {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            errors.push(FieldError::invalid(&path, policy, detail));
        }
        "OnFailure" | "Never" => {}
        other => errors.push(FieldError::not_supported(
            &path,
            other,
            &["OnFailure", "Never"],
        )),
    }
}

fn validate_update(new: &Value, old: &Value) -> Errors {
    let mut errors = Vec::new();
    let indexed = text(new, "spec.completionMode") == "Indexed";
    if !indexed {
        immutable(new, old, "spec.completions", &mut errors);
    } else if at(new, "spec.completions") != at(old, "spec.completions")
        && at(new, "spec.completions") != at(new, "spec.parallelism")
    {
        let value = at(new, "spec.completions").cloned().unwrap_or(Value::Null);
        let detail = "can only be modified in tandem with spec.parallelism";
        errors.push(FieldError::invalid(
            &Path::new("spec.completions"),
            value,
            detail,
        ));
    }
    immutable(new, old, "spec.selector", &mut errors);
    template_update(new, old, &mut errors);
    for name in [
        "spec.completionMode",
        "spec.podFailurePolicy",
        "spec.backoffLimitPerIndex",
        "spec.managedBy",
        "spec.successPolicy",
    ] {
        immutable(new, old, name, &mut errors);
    }
    errors
}

/// When a job started is taken back only while it is suspended, or set anew as it is resumed.
fn validate_status_update(new: &Value, old: &Value) -> Errors {
    let started = |job| at(job, "status.startTime");
    let suspended = |job: &Value, wanted: &str| {
        let mut conditions = list(job, "status.conditions").iter();
        conditions.any(|c| text(c, "type") == "Suspended" && text(c, "status") == wanted)
    };
    let resuming = suspended(old, "True") && suspended(new, "False");
    let changed = started(old).is_some() && started(old) != started(new);
    if changed && !resuming && !flag(new, "spec.suspend") {
        let detail = "startTime cannot be removed for unsuspended job";
        return vec![FieldError::required(&Path::new("status.startTime"), detail)];
    }
    Vec::new()
}

/// The template is fixed, except where a suspended job that never started may still be placed.
fn template_update(new: &Value, old: &Value, errors: &mut Errors) {
    let waiting = flag(old, "spec.suspend") && at(old, "status.startTime").is_none();
    let strip = |job: &Value| {
        let mut template = job.pointer("/spec/template").cloned().unwrap_or_default();
        if waiting {
            if let Some(metadata) = template.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("labels");
                metadata.remove("annotations");
            }
            if let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) {
                for name in ["nodeSelector", "tolerations", "schedulingGates"] {
                    spec.remove(name);
                }
                if let Some(affinity) = spec.get_mut("affinity").and_then(Value::as_object_mut) {
                    affinity.remove("nodeAffinity");
                    if affinity.is_empty() {
                        spec.remove("affinity");
                    }
                }
            }
        }
        template
    };
    if strip(new) != strip(old) {
        let value = new.pointer("/spec/template").cloned().unwrap_or_default();
        errors.push(FieldError::invalid(
            &Path::new("spec.template"),
            value,
            "field is immutable",
        ));
    }
}
