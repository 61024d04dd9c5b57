//! Small checks that many kinds share. Each adds what it finds to `errors`.

use serde_json::Value;

use super::fields::{at, text};
use super::metadata;
use super::{Quantity, resources};
use crate::schema::{FieldError, Path};

pub(super) type Errors = Vec<FieldError>;

pub(super) const NEGATIVE: &str = "must be greater than or equal to 0";
pub(super) const IMMUTABLE: &str = "field is immutable";

/// Problems found by a name check, at a path.
pub(super) fn named(problems: Vec<String>, value: &str, path: &Path, errors: &mut Errors) {
    for problem in problems {
        errors.push(FieldError::invalid(path, value, problem));
    }
}

/// A member that must be there and be a DNS label.
pub(super) fn required_label(value: &str, path: &Path, errors: &mut Errors) {
    if value.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else {
        named(metadata::dns1123_label(value), value, path, errors);
    }
}

pub(super) fn required(value: &str, path: &Path, errors: &mut Errors) {
    if value.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
}

/// A number that is absent or not negative.
pub(super) fn not_negative(object: &Value, name: &str, path: &Path, errors: &mut Errors) {
    if let Some(number) = at(object, name)
        .and_then(Value::as_i64)
        .filter(|number| *number < 0)
    {
        errors.push(FieldError::invalid(&path.child(name), number, NEGATIVE));
    }
}

/// A member with a closed set of values; an empty one is required.
pub(super) fn one_of(
    object: &Value,
    name: &str,
    allowed: &[&str],
    path: &Path,
    errors: &mut Errors,
) {
    let value = text(object, name);
    if value.is_empty() {
        errors.push(FieldError::required(&path.child(name), ""));
    } else {
        one_of_if_set(object, name, allowed, path, errors);
    }
}

/// A member with a closed set of values that may be absent.
pub(super) fn one_of_if_set(
    object: &Value,
    name: &str,
    allowed: &[&str],
    path: &Path,
    errors: &mut Errors,
) {
    let Some(value) = at(object, name).and_then(Value::as_str) else {
        return;
    };
    if !allowed.contains(&value) {
        errors.push(FieldError::not_supported(&path.child(name), value, allowed));
    }
}

/// A member that may not change.
pub(super) fn immutable(new: &Value, old: &Value, member: &str, errors: &mut Errors) {
    if at(new, member) != at(old, member) {
        let value = at(new, member).cloned().unwrap_or(Value::Null);
        errors.push(FieldError::invalid(&Path::new(member), value, IMMUTABLE));
    }
}

pub(super) fn port_number(number: i64, path: &Path, errors: &mut Errors) {
    if !(1..=65535).contains(&number) {
        let detail = "must be between 1 and 65535, inclusive";
        errors.push(FieldError::invalid(path, number, detail));
    }
}

/// Problems of a port name.
pub(super) fn port_name(name: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if name.len() > 15 {
        problems.push("must be no more than 15 bytes".to_owned());
    }
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.chars().all(word) {
        problems.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !name.chars().any(|c| c.is_ascii_lowercase()) {
        problems.push("must contain at least one letter (a-z)".to_owned());
    }
    if name.contains("--") {
        problems.push("must not contain consecutive hyphens".to_owned());
    }
    if name.starts_with('-') || name.ends_with('-') {
        problems.push("must not begin or end with a hyphen".to_owned());
    }
    problems
}

/// A port given by number or by name.
pub(super) fn port(value: Option<&Value>, path: &Path, errors: &mut Errors) {
    match value {
        Some(Value::String(name)) => named(port_name(name), name, path, errors),
        other => port_number(other.and_then(Value::as_i64).unwrap_or(0), path, errors),
    }
}

/// Problems of an environment variable name.
pub(super) fn env_name(name: &str) -> Vec<String> {
    let printable = |c: char| (' '..='~').contains(&c) && c != '=';
    if name.chars().all(printable) {
        Vec::new()
    } else {
        vec![
            "a valid environment variable name must consist only of printable ASCII characters \
             other than '='"
                .to_owned(),
        ]
    }
}

pub(super) fn is_standard_container_resource(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
}

/// A name without a domain, or in Kubernetes' own.
pub(super) fn is_native_resource(name: &str) -> bool {
    !name.contains('/')
        || name
            .split('/')
            .next()
            .is_some_and(|d| d.ends_with("kubernetes.io"))
}

/// Extended resources are whole things of somebody's domain.
pub(super) fn is_extended_resource(name: &str) -> bool {
    !is_native_resource(name)
        && !name.starts_with("requests.")
        && metadata::qualified_name(&format!("requests.{name}")).is_empty()
}

pub(super) fn overcommit_allowed(name: &str) -> bool {
    is_native_resource(name) && !name.starts_with("hugepages-")
}

fn is_whole_resource(name: &str) -> bool {
    const COUNTED: [&str; 9] = [
        "pods",
        "services",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    ];
    COUNTED.contains(&name) || is_extended_resource(name)
}

/// The amount of one resource: not negative, and whole where halves make no sense.
pub(super) fn amount(name: &str, value: &Value, path: &Path, errors: &mut Errors) {
    let Some(quantity) = Quantity::of(value) else {
        return;
    };
    if quantity.is_negative() {
        errors.push(FieldError::invalid(path, quantity.canonical(), NEGATIVE));
    }
    if is_whole_resource(name) && !quantity.is_whole() {
        errors.push(FieldError::invalid(
            path,
            quantity.canonical(),
            "must be an integer",
        ));
    }
}

fn container_resource_name(name: &str, path: &Path, errors: &mut Errors) {
    let problems = metadata::qualified_name(name);
    if !problems.is_empty() {
        named(problems, name, path, errors);
    } else if !name.contains('/') && !is_standard_resource(name) {
        let detail = "must be a standard resource type or fully qualified";
        errors.push(FieldError::invalid(path, name, detail));
    }
    if !name.contains('/') {
        if !is_standard_container_resource(name) {
            let detail = "must be a standard resource for containers";
            errors.push(FieldError::invalid(path, name, detail));
        }
    } else if !is_native_resource(name) && !is_extended_resource(name) {
        let detail = "doesn't follow extended resource name standard";
        errors.push(FieldError::invalid(path, name, detail));
    }
}

fn is_standard_resource(name: &str) -> bool {
    const KNOWN: [&str; 19] = [
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "storage",
        "requests.storage",
        "services.nodeports",
    ];
    KNOWN.contains(&name)
        || name == "services.loadbalancers"
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

/// Requests and limits of a container.
pub(super) fn container_resources(value: Option<&Value>, path: &Path, errors: &mut Errors) {
    let Some(value) = value else { return };
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    let limits = value.get("limits");
    let member = |which: Option<&Value>| -> Vec<(String, Value)> {
        let map = which
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        let mut members: Vec<_> = map.into_iter().collect();
        members.sort_by(|a, b| a.0.cmp(&b.0));
        members
    };
    let mut compute = false;
    let mut pages = false;
    for (name, quantity) in member(limits) {
        let path = limits_path.key(&name);
        container_resource_name(&name, &path, errors);
        amount(&name, &quantity, &path, errors);
        compute |= matches!(name.as_str(), "cpu" | "memory");
        pages |= name.starts_with("hugepages-");
    }
    let known = resources::amounts(limits);
    for (name, quantity) in member(value.get("requests")) {
        let path = requests_path.key(&name);
        container_resource_name(&name, &path, errors);
        amount(&name, &quantity, &path, errors);
        compute |= matches!(name.as_str(), "cpu" | "memory");
        pages |= name.starts_with("hugepages-");
        let Some(asked) = Quantity::of(&quantity) else {
            continue;
        };
        match known.get(&name) {
            Some(limit) if asked != *limit && !overcommit_allowed(&name) => {
                let detail = format!("must be equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(
                    &requests_path,
                    asked.canonical(),
                    detail,
                ));
            }
            Some(limit) if asked > *limit => {
                let detail = format!("must be less than or equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(
                    &requests_path,
                    asked.canonical(),
                    detail,
                ));
            }
            None if !overcommit_allowed(&name) => {
                let detail = "Limit must be set for non overcommitable resources";
                errors.push(FieldError::required(&limits_path, detail));
            }
            _ => {}
        }
    }
    if pages && !compute {
        errors.push(FieldError::forbidden(
            path,
            "HugePages require cpu or memory",
        ));
    }
}

/// A path inside a volume: relative, without steps up.
pub(super) fn descending_path(value: &str, path: &Path, errors: &mut Errors) {
    if value.starts_with('/') {
        errors.push(FieldError::invalid(path, value, "must be a relative path"));
    }
    no_back_steps(value, path, errors);
}

pub(super) fn no_back_steps(value: &str, path: &Path, errors: &mut Errors) {
    if value.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(path, value, "must not contain '..'"));
    }
}

/// A count or a share: `3` or `25%`.
pub(super) fn count_or_percent(value: Option<&Value>, path: &Path, errors: &mut Errors) {
    match value {
        Some(Value::String(text)) => {
            let digits = text.strip_suffix('%');
            let valid =
                digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()));
            if !valid {
                let detail = "a valid percent string must be a numeric string followed by an \
                              ending '%' (e.g. '1%',  or '93%', regex used for validation is \
                              '[0-9]+%')";
                errors.push(FieldError::invalid(path, text.as_str(), detail));
            }
        }
        Some(Value::Number(number)) => {
            if let Some(number) = number.as_i64().filter(|number| *number < 0) {
                errors.push(FieldError::invalid(path, number, NEGATIVE));
            }
        }
        _ => {}
    }
}

/// A share over 100 % makes no sense.
pub(super) fn not_over_whole(value: Option<&Value>, path: &Path, errors: &mut Errors) {
    let percent = value
        .and_then(Value::as_str)
        .and_then(|text| text.strip_suffix('%'));
    if let (Some(percent), Some(value)) = (percent, value)
        && percent.parse::<i64>().is_ok_and(|percent| percent > 100)
    {
        errors.push(FieldError::invalid(
            path,
            value.clone(),
            "must not be greater than 100%",
        ));
    }
}
