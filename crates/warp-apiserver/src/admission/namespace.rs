//! Objects live in namespaces that exist and are not going away.

use serde_json::{Value, json};

use super::{Admission, AdmissionRequest, Operation, ReadState, Refusal, Warnings};
use crate::kinds::fields::{at, text};

/// Namespaces nothing works without.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

pub(super) struct Lifecycle;

impl Admission for Lifecycle {
    fn admit(
        &self,
        request: &mut AdmissionRequest<'_>,
        state: &dyn ReadState,
    ) -> Result<Warnings, Refusal> {
        if request.is(Operation::Delete, "namespaces") && IMMORTAL.contains(&request.name) {
            return Err(Refusal::forbidden("this namespace may not be deleted"));
        }
        let Some(namespace) = request.namespace.filter(|_| request.resource.namespaced) else {
            return Ok(Warnings::new());
        };
        if request.operation != Operation::Create {
            return Ok(Warnings::new());
        }
        let Some(found) = state.get("namespaces", None, namespace) else {
            return Err(Refusal::NotFound {
                group: String::new(),
                resource: "namespaces".to_owned(),
                name: namespace.to_owned(),
            });
        };
        let leaving = at(&found, "metadata.deletionTimestamp").is_some()
            || text(&found, "status.phase") == "Terminating";
        if leaving {
            let cause: Value = json!({
                "reason": "NamespaceTerminating",
                "message": format!("namespace {namespace} is being terminated"),
                "field": "metadata.namespace",
            });
            return Err(Refusal::Forbidden {
                why: format!(
                    "unable to create new content in namespace {namespace} because it is being \
                     terminated"
                ),
                causes: vec![cause],
            });
        }
        Ok(Warnings::new())
    }
}
