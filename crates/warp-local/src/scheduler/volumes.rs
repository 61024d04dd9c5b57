//! What a pod's claims mean for where it may run.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use warp_api::pod::volumes::reach;
use warp_core::fleet::{Reach, Request};

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
        if !places.is_empty() {
            let request = constrained.get_or_insert_with(|| request.clone());
            request.constraints.volumes.extend(places);
        }
    }
    Ok(constrained)
}

/// Where the volume of a claim can be reached; empty means everywhere.
fn places(caches: &Caches, namespace: &str, claim: &str) -> Result<Vec<Reach>, String> {
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
    Ok(reach(claim, &volume))
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
