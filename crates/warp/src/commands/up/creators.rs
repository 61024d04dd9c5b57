//! Who made a workload or a request: the API server knows it and writes it on the object, so that nobody can name another.
//! Owns the annotation on this engine; on a cluster a policy (`deploy/creators`) refuses other names.

use serde_json::{Value, json};
use warp_api::label;
use warp_apiserver::admission::{
    Admission, AdmissionRequest, Operation, ReadState, Refusal, Warnings,
};

const GROUP: &str = "gpu.warp.dev";
const KINDS: [&str; 2] = ["gpuworkloads", "gpurequests"];

/// Writes the annotation when an object is made, and keeps it as it was.
pub(super) struct Creators;

impl Admission for Creators {
    fn admit(
        &self,
        request: &mut AdmissionRequest<'_>,
        _state: &dyn ReadState,
    ) -> Result<Warnings, Refusal> {
        let resource = request.resource;
        let ours = resource.group == GROUP && KINDS.contains(&resource.plural.as_str());
        if ours && request.subresource.is_none() {
            let user = match request.operation {
                Operation::Create => Some(json!(request.user)),
                Operation::Update => request.old.and_then(written).cloned(),
                _ => return Ok(Warnings::new()),
            };
            write(request.object, user);
        }
        Ok(Warnings::new())
    }
}

fn written(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("annotations")?.get(label::USER)
}

fn write(object: &mut Value, user: Option<Value>) {
    let annotations = &mut object["metadata"]["annotations"];
    match user {
        Some(user) => annotations[label::USER] = user,
        None => {
            if let Some(said) = annotations.as_object_mut() {
                said.remove(label::USER);
            }
        }
    }
    if annotations.is_null() {
        // Reading it has made it.
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("annotations");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_object_says_itself_is_written_over_or_taken_out() {
        let mut object =
            json!({"metadata": {"name": "a", "annotations": {label::USER: "eve", "b": "c"}}});
        write(&mut object, Some(json!("ada")));
        assert_eq!(
            object["metadata"]["annotations"],
            json!({label::USER: "ada", "b": "c"})
        );
        write(&mut object, None);
        assert_eq!(object["metadata"]["annotations"], json!({"b": "c"}));
        let mut bare = json!({"metadata": {"name": "a"}});
        write(&mut bare, None);
        assert_eq!(bare, json!({"metadata": {"name": "a"}}));
        write(&mut bare, Some(json!("ada")));
        assert_eq!(written(&bare), Some(&json!("ada")));
    }
}
