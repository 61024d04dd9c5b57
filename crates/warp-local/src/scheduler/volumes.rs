//! What a pod's claims mean for where it may run.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use warp_core::fleet::{NodeTerm, Request};

use super::request::terms;
use crate::controllers::Caches;
use crate::informer::Key;

/// The request with the places of the pod's volumes added; none when nothing is added. An error says what it waits for.
pub(super) fn constrain(
    caches: &Caches,
    pod: &Pod,
    request: &Request,
) -> Result<Option<Request>, String> {
    let mut constrained: Option<Request> = None;
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    for volume in volumes {
        let claim = match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => claim.claim_name.clone(),
            (None, Some(_)) => format!(
                "{}-{}",
                pod.metadata.name.as_deref().unwrap_or_default(),
                volume.name
            ),
            (None, None) => continue,
        };
        let places = places(caches, &request.namespace, &claim)?;
        if let Some(places) = places {
            let request = constrained.get_or_insert_with(|| request.clone());
            let wanted = request.constraints.node_affinity.take();
            request.constraints.node_affinity = Some(both(wanted, &places));
        }
    }
    Ok(constrained)
}

/// Where the volume of a claim can be reached; none means everywhere.
fn places(caches: &Caches, namespace: &str, claim: &str) -> Result<Option<Vec<NodeTerm>>, String> {
    let Some(found) = caches.claims.get(&Key::new(namespace, claim)) else {
        return Err(format!("persistentvolumeclaim \"{claim}\" not found"));
    };
    if found.metadata.deletion_timestamp.is_some() {
        return Err(format!(
            "persistentvolumeclaim \"{claim}\" is being deleted"
        ));
    }
    if !is_bound(&found) {
        return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
    }
    let name = found
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.as_deref())
        .unwrap_or_default();
    let Some(volume) = caches.volumes.get(&Key::new("", name)) else {
        return Err(format!(
            "persistentvolumeclaim \"{claim}\" bound to non-existent persistentvolume \"{name}\""
        ));
    };
    let affinity = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    Ok(affinity.map(terms))
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.as_ref())
        .is_some_and(|name| !name.is_empty())
        && claim
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            == Some("Bound")
}

/// One of the first and one of the second: every pair of alternatives.
fn both(first: Option<Vec<NodeTerm>>, second: &[NodeTerm]) -> Vec<NodeTerm> {
    let Some(first) = first else {
        return second.to_vec();
    };
    let joined = first.iter().flat_map(|one| {
        second.iter().map(|other| NodeTerm {
            match_expressions: one
                .match_expressions
                .iter()
                .chain(&other.match_expressions)
                .cloned()
                .collect(),
            match_fields: one
                .match_fields
                .iter()
                .chain(&other.match_fields)
                .cloned()
                .collect(),
        })
    });
    joined.collect()
}
