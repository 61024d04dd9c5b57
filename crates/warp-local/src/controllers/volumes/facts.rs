//! What is known of one claim or volume: sizes, classes, and whether the two fit. Decides nothing.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use warp_core::resources::Resources;

use super::{DEFAULT_CLASS, PROVISIONED_BY, PROVISIONER};
use crate::controllers::ownership::selects;

fn size(
    amounts: Option<
        &std::collections::BTreeMap<
            String,
            k8s_openapi::apimachinery::pkg::api::resource::Quantity,
        >,
    >,
) -> i64 {
    let mut resources = Resources::default();
    match amounts
        .and_then(|amounts| amounts.get("storage"))
        .map(|amount| resources.set("storage", &amount.0))
    {
        Some(Ok(())) => resources.extended("storage"),
        _ => 0,
    }
}

pub(super) fn capacity(volume: &PersistentVolume) -> i64 {
    size(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()))
}

fn asked(claim: &PersistentVolumeClaim) -> i64 {
    size(
        claim
            .spec
            .as_ref()
            .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()),
    )
}

pub(super) fn refers_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref())
        .is_some_and(|reference| {
            reference.name == claim.metadata.name
                && reference.namespace == claim.metadata.namespace
                && (reference.uid.is_none() || reference.uid == claim.metadata.uid)
        })
}

pub(super) fn fits(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let (Some(offered), Some(wanted)) = (&volume.spec, &claim.spec) else {
        return false;
    };
    let class = |name: Option<&String>| name.cloned().unwrap_or_default();
    let modes = offered.access_modes.as_deref().unwrap_or_default();
    let labelled = wanted
        .selector
        .as_ref()
        .is_none_or(|selector| selects(selector, volume.metadata.labels.as_ref()));
    offered.claim_ref.is_none()
        && volume.metadata.deletion_timestamp.is_none()
        && class(offered.storage_class_name.as_ref()) == class(wanted.storage_class_name.as_ref())
        && wanted
            .access_modes
            .iter()
            .flatten()
            .all(|mode| modes.contains(mode))
        && capacity(volume) >= asked(claim)
        && labelled
}

pub(super) fn is_default(class: &StorageClass) -> bool {
    class
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(DEFAULT_CLASS))
        .is_some_and(|value| value == "true")
}

pub(super) fn is_ours(volume: &PersistentVolume) -> bool {
    volume
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(PROVISIONED_BY))
        .is_some_and(|by| by == PROVISIONER)
}

pub(super) fn policy(volume: &PersistentVolume) -> &str {
    volume
        .spec
        .as_ref()
        .and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref())
        .unwrap_or("Retain")
}
