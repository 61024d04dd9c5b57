//! The claims of a StatefulSet's pods: made before the pod, kept when it goes, unless the set says otherwise.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use super::identity;
use crate::controllers::ownership::controller_reference;
use crate::controllers::pods;
use warp_runtime::plan::{Outcome, Plan, about};

pub(super) type Lookup<'a> = &'a (dyn Fn(&str) -> Option<Arc<PersistentVolumeClaim>> + Sync);

pub(super) fn templates(set: &StatefulSet) -> &[PersistentVolumeClaim] {
    set.spec
        .as_ref()
        .and_then(|spec| spec.volume_claim_templates.as_deref())
        .unwrap_or_default()
}

pub(super) fn template_name(claim: &PersistentVolumeClaim) -> &str {
    claim.metadata.name.as_deref().unwrap_or_default()
}

pub(super) fn name(set: &StatefulSet, claim: &PersistentVolumeClaim, ordinal: i32) -> String {
    format!(
        "{}-{}-{ordinal}",
        template_name(claim),
        identity::name_of(set)
    )
}

/// Could a claim of this name be one of the set's?
pub(super) fn may_be_of(set: &StatefulSet, claim: &str) -> bool {
    templates(set).iter().any(|template| {
        let prefix = format!("{}-{}-", template_name(template), identity::name_of(set));
        claim.starts_with(&prefix)
    })
}

/// May the claims go with the pod that scaling down takes, and with the set? By default they stay.
fn policy(set: &StatefulSet) -> (bool, bool) {
    let policy = set
        .spec
        .as_ref()
        .and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
    let goes = |value: Option<&String>| value.is_some_and(|value| value == "Delete");
    (
        goes(policy.and_then(|policy| policy.when_scaled.as_ref())),
        goes(policy.and_then(|policy| policy.when_deleted.as_ref())),
    )
}

/// What keeps a pod from being made: a claim of its own that is on its way out.
pub(super) fn obstacle(set: &StatefulSet, ordinal: i32, claim: Lookup<'_>) -> bool {
    let pod = format!("{}-{ordinal}", identity::name_of(set));
    let (scaled, _) = policy(set);
    templates(set)
        .iter()
        .filter_map(|template| claim(&name(set, template, ordinal)))
        .any(|claim| {
            let stale = claim
                .metadata
                .owner_references
                .iter()
                .flatten()
                .any(|owner| owner.kind == "Pod" && owner.name == pod);
            claim.metadata.deletion_timestamp.is_some() || scaled && stale
        })
}

/// Makes the claims of an ordinal that are not there.
pub(super) fn make(set: &StatefulSet, ordinal: i32, claim: Lookup<'_>, plan: &mut Plan) {
    let selector = set.spec.as_ref().map(|spec| spec.selector.clone());
    let labels = selector.and_then(|selector| selector.match_labels);
    for template in templates(set) {
        let claim_name = name(set, template, ordinal);
        if claim(&claim_name).is_some() {
            continue;
        }
        let mut made = template.clone();
        made.metadata.name = Some(claim_name.clone());
        made.metadata.namespace.clone_from(&set.metadata.namespace);
        made.status = None;
        if let Some(labels) = &labels {
            let own = made.metadata.labels.get_or_insert_default();
            own.extend(labels.clone());
        }
        let (set_name, pod) = (
            identity::name_of(set),
            format!("{}-{ordinal}", identity::name_of(set)),
        );
        let done = format!("Create Claim {claim_name} Pod {pod} in StatefulSet {set_name} success");
        let failed = format!(
            "Create Claim {claim_name} for Pod {pod} in StatefulSet {set_name} failed error: {{}}"
        );
        let outcome = Outcome {
            about: about(set),
            done: ("SuccessfulCreate", done.into()),
            failed: ("FailedCreate", failed.into()),
        };
        plan.create(&made, Some(outcome));
    }
}

/// Makes the owners of a pod's claims what the set's policy says: nobody, the set, or a pod that scaling down takes.
/// Claims that somebody else controls are left alone.
pub(super) fn own(set: &StatefulSet, pod: &Pod, ordinal: i32, claim: Lookup<'_>, plan: &mut Plan) {
    let (scaled, deleted) = policy(set);
    let outside = !identity::is_in_range(set, ordinal);
    let by_pod = scaled && outside;
    let by_set = deleted && !by_pod;
    for template in templates(set) {
        let Some(claim) = claim(&name(set, template, ordinal)) else {
            continue;
        };
        let owners = claim.metadata.owner_references.clone().unwrap_or_default();
        let is_set = |owner: &OwnerReference| {
            owner.kind == "StatefulSet" && owner.name == identity::name_of(set)
        };
        let is_pod = |owner: &OwnerReference| owner.kind == "Pod" && owner.name == pods::name(pod);
        let stale = owners.iter().any(|owner| {
            is_set(owner) && Some(&owner.uid) != set.metadata.uid.as_ref()
                || is_pod(owner) && Some(&owner.uid) != pod.metadata.uid.as_ref()
        });
        let foreign = |owner: &OwnerReference| {
            owner.controller == Some(true) && !is_set(owner) && !is_pod(owner)
        };
        if stale || (by_pod || by_set) && owners.iter().any(foreign) {
            continue;
        }
        let mut wanted: Vec<OwnerReference> = owners
            .iter()
            .filter(|owner| !is_set(owner) && !is_pod(owner))
            .cloned()
            .collect();
        if by_pod {
            wanted.push(controller_reference(pod));
        } else if by_set {
            wanted.push(controller_reference(set));
        }
        if wanted != owners {
            plan.merge(
                &*claim,
                json!({ "metadata": { "ownerReferences": wanted } }),
            );
        }
    }
}
