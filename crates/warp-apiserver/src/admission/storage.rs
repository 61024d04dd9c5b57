//! Claims without a storage class get the default one.

use serde_json::{Value, json};

use super::{Admission, AdmissionRequest, Operation, ReadState, Refusal, Warnings};
use crate::kinds::fields::{at, text};

const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

pub(super) struct DefaultClass;

impl Admission for DefaultClass {
    fn admit(
        &self,
        request: &mut AdmissionRequest<'_>,
        state: &dyn ReadState,
    ) -> Result<Warnings, Refusal> {
        let open = request.is(Operation::Create, "persistentvolumeclaims")
            && at(request.object, "spec.storageClassName").is_none();
        if !open {
            return Ok(Warnings::new());
        }
        let is_default = |class: &Value| {
            let annotations = class.pointer("/metadata/annotations");
            annotations
                .and_then(|map| map.get(DEFAULT))
                .is_some_and(|value| value == "true")
        };
        // The newest default wins; of equally new ones the first by name.
        let chosen = state
            .list("storageclasses.storage.k8s.io", None)
            .into_iter()
            .filter(is_default)
            .max_by(|a, b| {
                let created = |class: &Value| text(class, "metadata.creationTimestamp").to_owned();
                created(a)
                    .cmp(&created(b))
                    .then_with(|| text(b, "metadata.name").cmp(text(a, "metadata.name")))
            });
        if let Some(class) = chosen {
            request.object["spec"]["storageClassName"] = json!(text(&class, "metadata.name"));
        }
        Ok(Warnings::new())
    }
}
