//! Who a pod of a StatefulSet is: its ordinal, its name, its host name below the set's service, its claims.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume};
use serde_json::json;

use super::claims;
use crate::controllers::ownership::controller_reference;
use crate::controllers::pods;
use warp_runtime::plan::{Encoding, Plan, about};

pub(super) const REVISION: &str = "controller-revision-hash";
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// The set and the ordinal a pod's name speaks of.
pub(super) fn parse(pod: &str) -> Option<(&str, i32)> {
    let (parent, digits) = pod.rsplit_once('-')?;
    let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| digits.parse().ok())
        .flatten()
        .map(|ordinal| (parent, ordinal))
}

pub(super) fn name_of(set: &StatefulSet) -> &str {
    set.metadata.name.as_deref().unwrap_or_default()
}

/// The first ordinal, and how many there are.
pub(super) fn range(set: &StatefulSet) -> (i32, i32) {
    let spec = set.spec.as_ref();
    let start = spec
        .and_then(|spec| spec.ordinals.as_ref())
        .and_then(|ordinals| ordinals.start);
    let size = spec.and_then(|spec| spec.replicas).unwrap_or(1);
    (start.unwrap_or(0), size.max(0))
}

pub(super) fn is_in_range(set: &StatefulSet, ordinal: i32) -> bool {
    let (start, size) = range(set);
    ordinal >= start && i64::from(ordinal) < i64::from(start) + i64::from(size)
}

pub(super) fn revision(pod: &Pod) -> &str {
    pod.metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(REVISION))
        .map(String::as_str)
        .unwrap_or_default()
}

/// The pod of one ordinal, made from the template of one revision.
pub(super) fn pod(
    set: &StatefulSet,
    template: &PodTemplateSpec,
    revision: &str,
    ordinal: i32,
) -> Pod {
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    let owner = controller_reference(set);
    let mut pod = pods::from_template(template, namespace, name_of(set), owner);
    let name = format!("{}-{ordinal}", name_of(set));
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.to_owned(), name.clone());
    labels.insert(POD_INDEX.to_owned(), ordinal.to_string());
    labels.insert(REVISION.to_owned(), revision.to_owned());
    pod.metadata.name = Some(name.clone());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name);
    spec.subdomain = set.spec.as_ref().and_then(|spec| spec.service_name.clone());
    let templates = claims::templates(set);
    if !templates.is_empty() {
        let mut volumes: Vec<Volume> = templates
            .iter()
            .map(|claim| Volume {
                name: claims::template_name(claim).to_owned(),
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: claims::name(set, claim, ordinal),
                    read_only: None,
                }),
                ..Volume::default()
            })
            .collect();
        let own = spec.volumes.take().unwrap_or_default();
        let replaced = |volume: &Volume| {
            templates
                .iter()
                .any(|claim| claims::template_name(claim) == volume.name)
        };
        volumes.extend(own.into_iter().filter(|volume| !replaced(volume)));
        spec.volumes = Some(volumes);
    }
    pod
}

/// Puts back the label by which a pod is found under its own name.
pub(super) fn keep(set: &StatefulSet, pod: &Pod, ordinal: i32, plan: &mut Plan) {
    let name = pods::name(pod);
    let labels = pod.metadata.labels.as_ref();
    if labels
        .and_then(|labels| labels.get(POD_NAME))
        .map(String::as_str)
        == Some(name)
    {
        return;
    }
    let labels = json!({ POD_NAME: name, POD_INDEX: ordinal.to_string() });
    plan.patch(
        pod,
        Encoding::Strategic,
        json!({ "metadata": { "labels": labels } }),
    );
    let told = format!(
        "Update Pod {name} in StatefulSet {} successful",
        name_of(set)
    );
    plan.note(about(set), false, "SuccessfulUpdate", told);
}
