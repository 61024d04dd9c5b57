//! ControllerRevision: what a StatefulSet looked like once. The data never changes, the number may.

use serde_json::{Value, json};

use super::super::{Described, columns, describe, typed};
use crate::kinds::checks::{Errors, immutable, not_negative};
use crate::kinds::fields::{list, number, text};
use crate::registry::resource::Strategy;
use crate::schema::{FieldError, Path};

pub(super) fn descriptor() -> Described {
    let with = columns::with;
    describe("apps", "v1", "ControllerRevision", "controllerrevisions")
        .columns(vec![
            columns::name(),
            with("Controller", "string", 0, |object, _| {
                json!(controller(object))
            }),
            with("Revision", "string", 0, |object, _| {
                json!(number(object, "revision").unwrap_or(0))
            }),
            columns::age(),
        ])
        .strategy(Strategy {
            default: |object| typed::round_trip("apps.ControllerRevision", object),
            validate,
            validate_update: |new, old| {
                let mut errors = Vec::new();
                immutable(new, old, "data", &mut errors);
                errors
            },
            ..Strategy::default()
        })
}

/// The controller as `statefulset.apps/name`.
fn controller(object: &Value) -> String {
    let owner = list(object, "metadata.ownerReferences")
        .iter()
        .find(|owner| owner["controller"] == true);
    let Some(owner) = owner else {
        return "<none>".to_owned();
    };
    let kind = text(owner, "kind").to_lowercase();
    let group = text(owner, "apiVersion").split_once('/');
    match group {
        Some((group, _)) => format!("{kind}.{group}/{}", text(owner, "name")),
        None => format!("{kind}/{}", text(owner, "name")),
    }
}

fn validate(object: &Value) -> Errors {
    let mut errors = Vec::new();
    not_negative(object, "revision", &Path::root(), &mut errors);
    let path = Path::new("data");
    match object.get("data") {
        None | Some(Value::Null) => {
            errors.push(FieldError::required(&path, "data is mandatory"));
        }
        Some(Value::Object(_)) => {}
        Some(_) => {
            let detail = "data must be a valid JSON object";
            errors.push(FieldError::required(&path, detail));
        }
    }
    errors
}
