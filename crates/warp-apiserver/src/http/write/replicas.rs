//! The numbers and the selector a custom resource's scale is read from: whatever its schema says, they must be what a scale
//! can show.

use serde_json::{Value, json};

use super::Mode;
use crate::registry::{Resource, Subresource};
use crate::schema::{FieldError, Path};

/// What is wrong with them; a change of the status is only judged by what it can change.
pub(super) fn check(resource: &Resource, object: &Value, mode: Mode) -> Vec<FieldError> {
    let paths = resource
        .subresources
        .iter()
        .find_map(|subresource| match subresource {
            Subresource::Scale(paths) => Some(paths),
            _ => None,
        });
    let Some(paths) = paths else {
        return Vec::new();
    };
    let mut errors = Vec::new();
    if mode != Mode::Status {
        errors.extend(replicas(object, &paths.spec_replicas));
    }
    errors.extend(replicas(object, &paths.status_replicas));
    if let Some(path) = &paths.selector {
        let problem = match at(object, path) {
            Ok(None | Some(Value::String(_))) => None,
            Ok(Some(other)) => Some(unexpected(path, other, "string")),
            Err(problem) => Some(problem),
        };
        errors.extend(problem.map(|problem| FieldError::invalid(&Path::new(path), "", problem)));
    }
    errors
}

fn replicas(object: &Value, path: &str) -> Option<FieldError> {
    let (shown, problem) = match at(object, path) {
        Ok(None) => return None,
        Ok(Some(value)) => match value.as_i64() {
            None => (0, unexpected(path, value, "int64")),
            Some(count @ ..0) => (count, "should be a non-negative integer".to_owned()),
            Some(count) if count > i64::from(i32::MAX) => {
                let most = i32::MAX;
                (count, format!("should be less than or equal to {most}"))
            }
            Some(_) => return None,
        },
        Err(problem) => (0, problem),
    };
    Some(FieldError::invalid(&Path::new(path), json!(shown), problem))
}

fn at<'a>(object: &'a Value, path: &str) -> Result<Option<&'a Value>, String> {
    let mut at = object;
    let mut here = String::new();
    for step in path.split('.').filter(|step| !step.is_empty()) {
        here = format!("{here}.{step}");
        match at {
            Value::Null => return Ok(None),
            Value::Object(map) => match map.get(step) {
                Some(value) => at = value,
                None => return Ok(None),
            },
            other => return Err(unexpected(&here, other, "map[string]interface{}")),
        }
    }
    Ok(Some(at))
}

/// As Kubernetes words it, with Go's names of the types.
fn unexpected(path: &str, found: &Value, wanted: &str) -> String {
    let (shown, kind) = match found {
        Value::Null => ("<nil>".to_owned(), "<nil>"),
        Value::Bool(flag) => (flag.to_string(), "bool"),
        Value::Number(number) if number.is_f64() => (number.to_string(), "float64"),
        Value::Number(number) => (number.to_string(), "int64"),
        Value::String(text) => (text.clone(), "string"),
        Value::Array(_) => (found.to_string(), "[]interface {}"),
        Value::Object(_) => (found.to_string(), "map[string]interface {}"),
    };
    format!("{path} accessor error: {shown} is of the type {kind}, expected {wanted}")
}
