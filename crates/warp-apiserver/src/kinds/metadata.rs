//! Names, labels and metadata: the checks every kind shares, in Kubernetes' words.

use serde_json::{Map, Value};

use crate::registry::name;
use crate::schema::{FieldError, Path, Schema};

pub use crate::registry::name::{label as dns1123_label, label_1035 as dns1035_label, subdomain};

const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric \
characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. \
'MyValue',  or 'my_value',  or '12345', regex used for validation is \
'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const NAME_PART: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and \
must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', \
regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const QUALIFIED: &str = "a qualified name must consist of alphanumeric characters, '-', '_' or \
'.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
'123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an \
optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";

fn is_word(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    text.bytes().all(inner)
        && text
            .bytes()
            .next()
            .is_some_and(|c| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .last()
            .is_some_and(|c| c.is_ascii_alphanumeric())
}

/// Problems of a label key, annotation key, resource name or finalizer.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let local = match parts.as_slice() {
        [local] => *local,
        [prefix, local] => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty".to_owned());
            } else {
                problems.extend(
                    subdomain(prefix)
                        .into_iter()
                        .map(|p| format!("prefix part {p}")),
                );
            }
            *local
        }
        _ => return vec![QUALIFIED.to_owned()],
    };
    if local.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if local.len() > 63 {
        problems.push("name part must be no more than 63 bytes".to_owned());
    }
    if !is_word(local) {
        problems.push(NAME_PART.to_owned());
    }
    problems
}

/// Problems of a label value.
pub fn label_value(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push("must be no more than 63 bytes".to_owned());
    }
    if !text.is_empty() && !is_word(text) {
        problems.push(LABEL_VALUE.to_owned());
    }
    problems
}

/// Problems of a key of a ConfigMap or Secret.
pub fn config_key(text: &str) -> Vec<String> {
    const WORDS: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or \
                         '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for \
                         validation is '[-._a-zA-Z0-9]+')";
    let mut problems = Vec::new();
    if text.len() > 253 {
        problems.push("must be no more than 253 bytes".to_owned());
    }
    if text.is_empty()
        || !text
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
    {
        problems.push(WORDS.to_owned());
    }
    match text {
        "." | ".." => problems.push(format!("must not be '{text}'")),
        text if text.starts_with("..") => problems.push("must not start with '..'".to_owned()),
        _ => {}
    }
    problems
}

/// Labels, or anything shaped like them.
pub fn labels(map: Option<&Value>, path: &Path, errors: &mut Vec<FieldError>) {
    for (key, value) in map.and_then(Value::as_object).into_iter().flatten() {
        for problem in qualified_name(key) {
            errors.push(FieldError::invalid(path, key.as_str(), problem));
        }
        let value = value.as_str().unwrap_or_default();
        for problem in label_value(value) {
            errors.push(FieldError::invalid(path, value, problem));
        }
    }
}

/// Annotations: keys like labels' (case does not matter), values free up to 256 KiB together.
pub fn annotations(map: Option<&Value>, path: &Path, errors: &mut Vec<FieldError>) {
    const LARGEST: usize = 256 * 1024;
    let mut size = 0;
    for (key, value) in map.and_then(Value::as_object).into_iter().flatten() {
        for problem in qualified_name(&key.to_lowercase()) {
            errors.push(FieldError::invalid(path, key.as_str(), problem));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > LARGEST {
        errors.push(FieldError::too_long(
            path,
            i64::try_from(LARGEST).unwrap_or(i64::MAX),
        ));
    }
}

/// The metadata of a pod template: labels, annotations, finalizers.
pub fn template(metadata: Option<&Value>, path: &Path, errors: &mut Vec<FieldError>) {
    let member = |name: &str| metadata.and_then(|metadata| metadata.get(name));
    labels(member("labels"), &path.child("labels"), errors);
    annotations(member("annotations"), &path.child("annotations"), errors);
}

/// A label selector; `empty` is refused unless allowed by the caller.
pub fn label_selector(selector: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    labels(
        selector.get("matchLabels"),
        &path.child("matchLabels"),
        errors,
    );
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    for (index, expression) in expressions.into_iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(index);
        let values = expression.get("values").and_then(Value::as_array);
        let empty = values.is_none_or(Vec::is_empty);
        match expression
            .get("operator")
            .and_then(Value::as_str)
            .unwrap_or_default()
        {
            "In" | "NotIn" => {
                if empty {
                    let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                    errors.push(FieldError::required(&path.child("values"), detail));
                }
            }
            "Exists" | "DoesNotExist" => {
                if !empty {
                    let detail =
                        "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                    errors.push(FieldError::forbidden(&path.child("values"), detail));
                }
            }
            other => {
                let detail = "not a valid selector operator";
                errors.push(FieldError::invalid(&path.child("operator"), other, detail));
            }
        }
        let key = expression
            .get("key")
            .and_then(Value::as_str)
            .unwrap_or_default();
        for problem in qualified_name(key) {
            errors.push(FieldError::invalid(&path.child("key"), key, problem));
        }
        for (index, value) in values.into_iter().flatten().enumerate() {
            let value = value.as_str().unwrap_or_default();
            for problem in label_value(value) {
                let path = path.child("values").index(index);
                errors.push(FieldError::invalid(&path, value, problem));
            }
        }
    }
}

/// Whether labels fit a selector. An absent selector matches nothing, an empty one everything.
pub fn selects(selector: Option<&Value>, labels: Option<&Value>) -> bool {
    let Some(selector) = selector.filter(|value| !value.is_null()) else {
        return false;
    };
    let label = |key: &str| {
        labels
            .and_then(|labels| labels.get(key))
            .and_then(Value::as_str)
    };
    let equal = selector
        .get("matchLabels")
        .and_then(Value::as_object)
        .is_none_or(|map| map.iter().all(|(key, value)| label(key) == value.as_str()));
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    equal
        && expressions.into_iter().flatten().all(|expression| {
            let key = expression
                .get("key")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let values = expression.get("values").and_then(Value::as_array);
            let listed = |value: &str| {
                values.is_some_and(|list| list.iter().any(|item| item.as_str() == Some(value)))
            };
            match expression
                .get("operator")
                .and_then(Value::as_str)
                .unwrap_or_default()
            {
                "In" => label(key).is_some_and(listed),
                "NotIn" => label(key).is_none_or(|value| !listed(value)),
                "Exists" => label(key).is_some(),
                "DoesNotExist" => label(key).is_none(),
                _ => false,
            }
        })
}

/// Metadata of an object embedded in a custom resource.
pub fn validate_embedded(metadata: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(problem) =
        Schema::builtin("meta", "v1", "ObjectMeta").and_then(|schema| schema.decode_error(metadata))
    {
        errors.push(FieldError::invalid(path, metadata.clone(), problem));
        return errors;
    }
    let Some(map) = metadata.as_object() else {
        return errors;
    };
    let text = |name: &str| map.get(name).and_then(Value::as_str).unwrap_or_default();
    for field in ["generateName", "name"] {
        let value = text(field);
        for problem in name::path_segment(value)
            .into_iter()
            .filter(|_| !value.is_empty())
        {
            errors.push(FieldError::invalid(&path.child(field), value, problem));
        }
    }
    let namespace = text("namespace");
    if !namespace.is_empty() {
        for problem in dns1123_label(namespace) {
            errors.push(FieldError::invalid(
                &path.child("namespace"),
                namespace,
                problem,
            ));
        }
    }
    labels(map.get("labels"), &path.child("labels"), &mut errors);
    annotations(
        map.get("annotations"),
        &path.child("annotations"),
        &mut errors,
    );
    owner_references(map, path, &mut errors);
    let finalizers = map.get("finalizers").and_then(Value::as_array);
    for finalizer in finalizers.into_iter().flatten() {
        let text = finalizer.as_str().unwrap_or_default();
        for problem in qualified_name(text) {
            errors.push(FieldError::invalid(
                &path.child("finalizers"),
                text,
                problem,
            ));
        }
    }
    errors
}

fn owner_references(map: &Map<String, Value>, path: &Path, errors: &mut Vec<FieldError>) {
    let owners = map.get("ownerReferences").and_then(Value::as_array);
    for (index, owner) in owners.into_iter().flatten().enumerate() {
        let path = path.child("ownerReferences").index(index);
        let version = owner
            .get("apiVersion")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if version.is_empty() {
            let detail = "version must not be empty";
            errors.push(FieldError::invalid(
                &path.child("apiVersion"),
                version,
                detail,
            ));
        }
        for (name, detail) in [
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if owner
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .is_empty()
            {
                errors.push(FieldError::invalid(&path.child(name), "", detail));
            }
        }
    }
}
