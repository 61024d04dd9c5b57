//! What may change about a pod once it exists: next to nothing.

use serde_json::{Map, Value};

use crate::kinds::checks::Errors;
use crate::kinds::fields::{at, list, number, text};
use crate::schema::{FieldError, Path};

const MUTABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,\
`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

pub(super) fn validate(new: &Value, old: &Value) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    for kind in ["containers", "initContainers"] {
        let (before, after) = (
            list(old, &format!("spec.{kind}")),
            list(new, &format!("spec.{kind}")),
        );
        if before.len() != after.len() {
            let detail = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(&path.child(kind), detail));
            return errors;
        }
    }
    let deadline_path = path.child("activeDeadlineSeconds");
    match (
        number(new, "spec.activeDeadlineSeconds"),
        number(old, "spec.activeDeadlineSeconds"),
    ) {
        (Some(after), Some(before)) if after > before => {
            let detail = "must be less than or equal to previous value";
            errors.push(FieldError::invalid(&deadline_path, after, detail));
            return errors;
        }
        (None, Some(_)) => {
            let detail = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid(&deadline_path, Value::Null, detail));
        }
        _ => {}
    }
    tolerations(new, old, &path, &mut errors);
    gates(new, old, &path, &mut errors);
    let munged = munge(new, old, &path, &mut errors);
    if munged.as_ref() != at(old, "spec").and_then(Value::as_object) {
        let changed = difference(munged.as_ref(), at(old, "spec"));
        let detail = format!("pod updates may not change fields other than {MUTABLE}\n{changed}");
        errors.push(FieldError::forbidden(&path, detail));
    }
    errors
}

/// The new spec with everything that may change put back: what differs now may not.
fn munge(new: &Value, old: &Value, path: &Path, errors: &mut Errors) -> Option<Map<String, Value>> {
    let mut spec = at(new, "spec")?.as_object()?.clone();
    let before = at(old, "spec")?;
    for kind in ["containers", "initContainers"] {
        let containers = spec.get_mut(kind).and_then(Value::as_array_mut);
        for (container, old) in containers.into_iter().flatten().zip(list(before, kind)) {
            restore(container.as_object_mut(), old, "image");
        }
    }
    for name in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        restore(Some(&mut spec), before, name);
    }
    if number(before, "terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0)
        && spec.get("terminationGracePeriodSeconds") == Some(&Value::from(1))
    {
        restore(Some(&mut spec), before, "terminationGracePeriodSeconds");
    }
    if !list(before, "schedulingGates").is_empty() {
        gated(&mut spec, before, path, errors);
    }
    Some(spec)
}

fn restore(map: Option<&mut Map<String, Value>>, old: &Value, name: &str) {
    let Some(map) = map else { return };
    match old.get(name) {
        Some(value) => map.insert(name.to_owned(), value.clone()),
        None => map.remove(name),
    };
}

/// A pod that waits behind gates may still be narrowed to fewer nodes, never widened.
fn gated(spec: &mut Map<String, Value>, before: &Value, path: &Path, errors: &mut Errors) {
    let narrowed = at(before, "nodeSelector")
        .and_then(Value::as_object)
        .is_none_or(|old| {
            let new = spec.get("nodeSelector").and_then(Value::as_object);
            old.iter()
                .all(|(key, value)| new.and_then(|new| new.get(key)) == Some(value))
        });
    if !narrowed {
        let detail = "only additions are allowed (no mutations or deletions)";
        let value = spec.get("nodeSelector").cloned().unwrap_or(Value::Null);
        errors.push(FieldError::invalid(
            &path.child("nodeSelector"),
            value,
            detail,
        ));
    }
    restore(Some(spec), before, "nodeSelector");
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let terms = |affinity: Option<&Value>| -> Option<Vec<Value>> {
        let terms = affinity?
            .get("nodeAffinity")?
            .get(required)?
            .get("nodeSelectorTerms")?;
        terms.as_array().cloned()
    };
    let old_terms = terms(before.get("affinity"));
    let new_terms = terms(spec.get("affinity"));
    if let Some(old_terms) = old_terms.filter(|old| Some(old) != new_terms.as_ref()) {
        let same_length = new_terms
            .as_ref()
            .is_some_and(|new| new.len() == old_terms.len());
        let grown = |(old, new): (&Value, &Value)| {
            ["matchExpressions", "matchFields"]
                .iter()
                .all(|name| list(new, name).starts_with(list(old, name)))
        };
        let narrowed = same_length
            && new_terms
                .as_ref()
                .is_some_and(|new| old_terms.iter().zip(new).all(grown));
        if !narrowed {
            let path = path.child("affinity").child("nodeAffinity").child(required);
            let detail = "only additions are allowed (no mutations or deletions)";
            let value = Value::from(new_terms.unwrap_or_default());
            errors.push(FieldError::invalid(&path, value, detail));
        }
    }
    let mut affinity = spec.get("affinity").cloned().unwrap_or(Value::Null);
    let old_affinity = before.get("affinity").cloned().unwrap_or(Value::Null);
    if let Some(map) = affinity.as_object_mut() {
        restore(Some(map), &old_affinity, "nodeAffinity");
        if map.is_empty() && old_affinity.is_null() {
            affinity = Value::Null;
        }
    } else if old_affinity
        .as_object()
        .is_some_and(|map| map.keys().all(|key| key == "nodeAffinity"))
    {
        affinity = old_affinity;
    }
    if affinity.is_null() {
        spec.remove("affinity");
    } else {
        spec.insert("affinity".to_owned(), affinity);
    }
}

fn tolerations(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    let strip = |toleration: &Value| {
        let mut map = toleration.as_object().cloned().unwrap_or_default();
        map.remove("tolerationSeconds");
        map
    };
    let now: Vec<_> = list(new, "spec.tolerations").iter().map(strip).collect();
    if list(old, "spec.tolerations")
        .iter()
        .any(|old| !now.contains(&strip(old)))
    {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden(&path.child("tolerations"), detail));
    }
}

fn gates(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    let known: Vec<&str> = list(old, "spec.schedulingGates")
        .iter()
        .map(|gate| text(gate, "name"))
        .collect();
    for (index, gate) in list(new, "spec.schedulingGates").iter().enumerate() {
        let name = text(gate, "name");
        if !known.contains(&name) {
            let detail =
                format!("only deletion is allowed, but found new scheduling gate '{name}'");
            let path = path.child("schedulingGates").index(index).child("name");
            errors.push(FieldError::forbidden(&path, detail));
        }
    }
}

/// Which members differ; the reference prints a diff of its own structs here.
fn difference(new: Option<&Map<String, Value>>, old: Option<&Value>) -> String {
    let empty = Map::new();
    let new = new.unwrap_or(&empty);
    let old = old.and_then(Value::as_object).unwrap_or(&empty);
    let mut names: Vec<&String> = new
        .keys()
        .chain(old.keys())
        .filter(|name| new.get(*name) != old.get(*name))
        .collect();
    names.sort();
    names.dedup();
    names.into_iter().fold(String::new(), |mut text, name| {
        text.push_str("  spec.");
        text.push_str(name);
        text.push('\n');
        text
    })
}
