//! Controller references and label selectors: which object controls which, and which may be adopted.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, LabelSelectorRequirement, ObjectMeta, OwnerReference,
};
use kube::Resource;
use serde_json::json;

use warp_runtime::plan::{Encoding, Plan};

pub(crate) type Labels = BTreeMap<String, String>;

pub(crate) fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
}

/// What caches index by: the uid of an object's controller, or the orphans of its namespace.
#[allow(clippy::unnecessary_wraps, reason = "the signature of an index")]
pub(crate) fn controller_uid<K: Resource>(object: &K) -> Option<String> {
    let meta = object.meta();
    Some(controller_of(meta).map_or_else(
        || orphans_of(meta.namespace.as_deref().unwrap_or_default()),
        |owner| owner.uid.clone(),
    ))
}

/// Where the index by controller keeps the objects of a namespace that nobody controls.
pub(crate) fn orphans_of(namespace: &str) -> String {
    format!("orphans/{namespace}")
}

/// The reference that makes `owner` the controller of something.
pub(crate) fn controller_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn requirement_holds(requirement: &LabelSelectorRequirement, labels: &Labels) -> bool {
    let value = labels.get(&requirement.key);
    let listed = |value: &String| {
        requirement
            .values
            .iter()
            .flatten()
            .any(|wanted| wanted == value)
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

/// Does `selector` choose `labels`? An empty selector chooses everything.
pub(crate) fn selects(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    let empty = Labels::new();
    let labels = labels.unwrap_or(&empty);
    selector
        .match_labels
        .iter()
        .flatten()
        .all(|(name, value)| labels.get(name) == Some(value))
        && selector
            .match_expressions
            .iter()
            .flatten()
            .all(|requirement| requirement_holds(requirement, labels))
}

pub(crate) fn is_empty(selector: &LabelSelector) -> bool {
    selector
        .match_labels
        .as_ref()
        .is_none_or(BTreeMap::is_empty)
        && selector
            .match_expressions
            .as_ref()
            .is_none_or(Vec::is_empty)
}

/// What a claim over candidates decided.
#[derive(Debug)]
pub(crate) struct Claimed<T> {
    /// Controlled by the owner and chosen by its selector, adopted ones included.
    pub(crate) mine: Vec<T>,
}

/// Sorts candidates into the owner's own; adopts orphans it selects and releases what it no longer selects. An owner
/// that is being deleted adopts nothing.
pub(crate) fn claim<O, K, T>(
    owner: &O,
    selector: &LabelSelector,
    candidates: Vec<T>,
    plan: &mut Plan,
    finalizer: Option<&str>,
) -> Claimed<T>
where
    O: Resource<DynamicType = ()>,
    K: Resource<DynamicType = ()>,
    T: AsRef<K>,
{
    let uid = owner.meta().uid.as_deref();
    let ending = owner.meta().deletion_timestamp.is_some();
    let mut mine = Vec::new();
    for candidate in candidates {
        let meta = candidate.as_ref().meta();
        let selected = selects(selector, meta.labels.as_ref());
        match controller_of(meta) {
            Some(controller) if Some(controller.uid.as_str()) == uid => {
                if selected {
                    mine.push(candidate);
                } else if !ending {
                    release::<K>(candidate.as_ref(), &controller.uid, finalizer, plan);
                }
            }
            Some(_) => {}
            None => {
                if selected && !ending && meta.deletion_timestamp.is_none() {
                    let mut metadata = json!({ "ownerReferences": [controller_reference(owner)] });
                    if let Some(finalizer) = finalizer {
                        metadata["finalizers"] = json!([finalizer]);
                    }
                    plan.patch(
                        candidate.as_ref(),
                        Encoding::Strategic,
                        json!({ "metadata": metadata }),
                    );
                    mine.push(candidate);
                }
            }
        }
    }
    Claimed { mine }
}

fn release<K: Resource<DynamicType = ()>>(
    object: &K,
    owner: &str,
    finalizer: Option<&str>,
    plan: &mut Plan,
) {
    let mut metadata = json!({ "ownerReferences": [{ "$patch": "delete", "uid": owner }] });
    if let Some(finalizer) = finalizer {
        metadata["$deleteFromPrimitiveList/finalizers"] = json!([finalizer]);
    }
    plan.patch(object, Encoding::Strategic, json!({ "metadata": metadata }));
}
