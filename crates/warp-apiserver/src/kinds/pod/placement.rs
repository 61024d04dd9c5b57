//! Checks of what decides where a pod goes: affinity, spread, tolerations, gates.

use std::collections::HashSet;

use serde_json::Value;

use crate::kinds::checks::{Errors, named, one_of, one_of_if_set};
use crate::kinds::fields::{at, entries, list, number, text};
use crate::kinds::metadata;
use crate::schema::{FieldError, Path};

pub(super) fn affinity(spec: &Value, path: &Path, errors: &mut Errors) {
    let Some(affinity) = at(spec, "affinity") else {
        return;
    };
    let path = path.child("affinity");
    if let Some(node) = at(affinity, "nodeAffinity") {
        node_affinity(node, &path.child("nodeAffinity"), errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(terms) = at(affinity, kind) else {
            continue;
        };
        let path = path.child(kind);
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        for (index, term) in list(terms, required).iter().enumerate() {
            pod_term(term, &path.child(required).index(index), errors);
        }
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        for (index, term) in list(terms, preferred).iter().enumerate() {
            let path = path.child(preferred).index(index);
            weight(term, &path, errors);
            let inner = term.get("podAffinityTerm").unwrap_or(&Value::Null);
            pod_term(inner, &path.child("podAffinityTerm"), errors);
        }
    }
}

fn weight(term: &Value, path: &Path, errors: &mut Errors) {
    let weight = number(term, "weight").unwrap_or(0);
    if !(1..=100).contains(&weight) {
        let detail = "must be in the range 1-100";
        errors.push(FieldError::invalid(&path.child("weight"), weight, detail));
    }
}

fn node_affinity(node: &Value, path: &Path, errors: &mut Errors) {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    if let Some(selector) = at(node, required) {
        node_selector(selector, &path.child(required), errors);
    }
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    for (index, term) in list(node, preferred).iter().enumerate() {
        let path = path.child(preferred).index(index);
        let given = number(term, "weight").unwrap_or(0);
        if !(1..=100).contains(&given) {
            let detail = "must be in the range 1-100";
            errors.push(FieldError::invalid(&path.child("weight"), given, detail));
        }
        let preference = term.get("preference").unwrap_or(&Value::Null);
        node_term(preference, &path.child("preference"), errors);
    }
}

/// A node selector: at least one term.
pub(in crate::kinds) fn node_selector(selector: &Value, path: &Path, errors: &mut Errors) {
    let terms = list(selector, "nodeSelectorTerms");
    let path = path.child("nodeSelectorTerms");
    if terms.is_empty() {
        let detail = "must have at least one node selector term";
        errors.push(FieldError::required(&path, detail));
    }
    for (index, term) in terms.iter().enumerate() {
        node_term(term, &path.index(index), errors);
    }
}

fn node_term(term: &Value, path: &Path, errors: &mut Errors) {
    for (index, expression) in list(term, "matchExpressions").iter().enumerate() {
        let path = path.child("matchExpressions").index(index);
        node_requirement(expression, &path, errors);
    }
    for (index, expression) in list(term, "matchFields").iter().enumerate() {
        let path = path.child("matchFields").index(index);
        let values = list(expression, "values");
        if !matches!(text(expression, "operator"), "In" | "NotIn") {
            let detail = "not a valid selector operator";
            let operator = text(expression, "operator");
            errors.push(FieldError::invalid(
                &path.child("operator"),
                operator,
                detail,
            ));
        } else if values.len() != 1 {
            let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node \
                          field selector";
            errors.push(FieldError::required(&path.child("values"), detail));
        }
        if text(expression, "key") != "metadata.name" {
            let detail = "not a valid field selector key";
            errors.push(FieldError::invalid(
                &path.child("key"),
                text(expression, "key"),
                detail,
            ));
        }
    }
}

fn node_requirement(expression: &Value, path: &Path, errors: &mut Errors) {
    let values = list(expression, "values");
    let path_values = path.child("values");
    match text(expression, "operator") {
        "In" | "NotIn" if values.is_empty() => {
            let detail = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.push(FieldError::required(&path_values, detail));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(&path_values, detail));
        }
        "Gt" | "Lt" if values.len() != 1 => {
            let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errors.push(FieldError::required(&path_values, detail));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => {
            let detail = "not a valid selector operator";
            errors.push(FieldError::invalid(&path.child("operator"), other, detail));
        }
    }
    let key = text(expression, "key");
    named(
        metadata::qualified_name(key),
        key,
        &path.child("key"),
        errors,
    );
    for (index, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or_default();
        named(
            metadata::label_value(value),
            value,
            &path_values.index(index),
            errors,
        );
    }
}

fn pod_term(term: &Value, path: &Path, errors: &mut Errors) {
    for name in ["labelSelector", "namespaceSelector"] {
        if let Some(selector) = at(term, name) {
            metadata::label_selector(selector, &path.child(name), errors);
        }
    }
    for namespace in list(term, "namespaces") {
        let name = namespace.as_str().unwrap_or_default();
        named(
            metadata::dns1123_label(name),
            name,
            &path.child("namespace"),
            errors,
        );
    }
    match_label_keys(term, path, errors);
    let key = text(term, "topologyKey");
    let path = path.child("topologyKey");
    if key.is_empty() {
        errors.push(FieldError::required(&path, "can not be empty"));
    }
    named(metadata::qualified_name(key), key, &path, errors);
}

fn match_label_keys(term: &Value, path: &Path, errors: &mut Errors) {
    for name in ["matchLabelKeys", "mismatchLabelKeys"] {
        let keys = list(term, name);
        let path = path.child(name);
        if !keys.is_empty() && at(term, "labelSelector").is_none() {
            let detail = "must not be specified when labelSelector is not set";
            errors.push(FieldError::forbidden(&path, detail));
        }
        for (index, key) in keys.iter().enumerate() {
            let key = key.as_str().unwrap_or_default();
            named(
                metadata::qualified_name(key),
                key,
                &path.index(index),
                errors,
            );
            if entries(term, "labelSelector.matchLabels").any(|(known, _)| known == key) {
                let detail = format!("exists in both {name} and labelSelector");
                errors.push(FieldError::invalid(&path.index(index), key, detail));
            }
        }
    }
}

pub(super) fn scheduling_gates(spec: &Value, path: &Path, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (index, gate) in list(spec, "schedulingGates").iter().enumerate() {
        let name = text(gate, "name");
        let path = path.child("schedulingGates").index(index);
        named(metadata::qualified_name(name), name, &path, errors);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path, name));
        }
    }
}

pub(super) fn spread(spec: &Value, path: &Path, errors: &mut Errors) {
    let constraints = list(spec, "topologySpreadConstraints");
    for (index, constraint) in constraints.iter().enumerate() {
        let path = path.child("topologySpreadConstraints").index(index);
        let skew = number(constraint, "maxSkew").unwrap_or(0);
        if skew <= 0 {
            let detail = "must be greater than zero";
            errors.push(FieldError::invalid(&path.child("maxSkew"), skew, detail));
        }
        let key = text(constraint, "topologyKey");
        if key.is_empty() {
            errors.push(FieldError::required(
                &path.child("topologyKey"),
                "can not be empty",
            ));
        } else {
            named(
                metadata::qualified_name(key),
                key,
                &path.child("topologyKey"),
                errors,
            );
        }
        let actions = ["DoNotSchedule", "ScheduleAnyway"];
        one_of(constraint, "whenUnsatisfiable", &actions, &path, errors);
        let pair = |value: &Value| {
            (
                text(value, "topologyKey").to_owned(),
                text(value, "whenUnsatisfiable").to_owned(),
            )
        };
        if constraints[index + 1..]
            .iter()
            .any(|other| pair(other) == pair(constraint))
        {
            let (key, action) = pair(constraint);
            let path = path.child("{topologyKey, whenUnsatisfiable}");
            errors.push(FieldError::duplicate(&path, format!("{{{key}, {action}}}")));
        }
        if let Some(domains) = number(constraint, "minDomains") {
            let path = path.child("minDomains");
            if domains <= 0 {
                errors.push(FieldError::invalid(
                    &path,
                    domains,
                    "must be greater than zero",
                ));
            }
            if text(constraint, "whenUnsatisfiable") != "DoNotSchedule" {
                let detail = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}",
                    text(constraint, "whenUnsatisfiable")
                );
                errors.push(FieldError::invalid(&path, domains, detail));
            }
        }
        for name in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            one_of_if_set(constraint, name, &["Honor", "Ignore"], &path, errors);
        }
        match_label_keys(constraint, &path, errors);
        if let Some(selector) = at(constraint, "labelSelector") {
            metadata::label_selector(selector, &path.child("labelSelector"), errors);
        }
    }
}

pub(in crate::kinds) fn tolerations(spec: &Value, path: &Path, errors: &mut Errors) {
    for (index, toleration) in list(spec, "tolerations").iter().enumerate() {
        let path = path.child("tolerations").index(index);
        let (key, value) = (text(toleration, "key"), text(toleration, "value"));
        let operator = text(toleration, "operator");
        let effect = text(toleration, "effect");
        if !key.is_empty() {
            named(
                metadata::qualified_name(key),
                key,
                &path.child("key"),
                errors,
            );
        } else if operator != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all \
                          values and all keys\"";
            errors.push(FieldError::invalid(
                &path.child("operator"),
                operator,
                detail,
            ));
        }
        if at(toleration, "tolerationSeconds").is_some() && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(&path.child("effect"), effect, detail));
        }
        let operator_path = path.child("operator");
        match operator {
            "Equal" | "" => {
                let problems = metadata::label_value(value);
                if !problems.is_empty() {
                    let detail = problems.join(";");
                    errors.push(FieldError::invalid(&operator_path, value, detail));
                }
            }
            "Exists" if !value.is_empty() => {
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.push(FieldError::invalid(&operator_path, value, detail));
            }
            "Exists" => {}
            "Lt" | "Gt" => {
                let allowed = ["Equal", "Exists", "Lt", "Gt"];
                errors.push(FieldError::not_supported(
                    &operator_path,
                    operator,
                    &allowed,
                ));
            }
            other => {
                let allowed = ["Equal", "Exists"];
                errors.push(FieldError::not_supported(&operator_path, other, &allowed));
            }
        }
        if !effect.is_empty() {
            taint_effect(effect, &path.child("effect"), errors);
        }
    }
}

pub(in crate::kinds) fn taint_effect(effect: &str, path: &Path, errors: &mut Errors) {
    let allowed = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    if !allowed.contains(&effect) {
        errors.push(FieldError::not_supported(path, effect, &allowed));
    }
}
