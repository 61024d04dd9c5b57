//! Which set is the current one, what a new one looks like, and the annotations that make a rollback possible.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::replicas;
use crate::controllers::ownership::{Labels, controller_reference};
use warp_runtime::plan::as_json;

pub(super) const HASH: &str = "pod-template-hash";
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
pub(super) const HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub(super) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(super) const MOST: &str = "deployment.kubernetes.io/max-replicas";
const OWN: [&str; 6] = [
    REVISION,
    HISTORY,
    DESIRED,
    MOST,
    "kubectl.kubernetes.io/last-applied-configuration",
    "deprecated.deployment.rollback.to",
];

fn template_of(set: &ReplicaSet) -> PodTemplateSpec {
    let mut template = set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.clone())
        .unwrap_or_default();
    if let Some(labels) = template
        .metadata
        .as_mut()
        .and_then(|meta| meta.labels.as_mut())
    {
        labels.remove(HASH);
    }
    template
}

fn normal(mut template: PodTemplateSpec) -> PodTemplateSpec {
    let meta = template.metadata.get_or_insert_default();
    meta.labels.get_or_insert_default();
    meta.creation_timestamp = None;
    template
}

/// The set made from the Deployment's present template: the oldest, should there be several.
pub(super) fn current<'a>(
    deployment: &Deployment,
    sets: &'a [Arc<ReplicaSet>],
) -> Option<&'a Arc<ReplicaSet>> {
    let template = normal(
        deployment
            .spec
            .as_ref()
            .map(|spec| spec.template.clone())
            .unwrap_or_default(),
    );
    sets.iter()
        .filter(|set| normal(template_of(set)) == template)
        .min_by_key(|set| age(set))
}

/// Orders sets from the oldest to the newest.
pub(super) fn age(set: &ReplicaSet) -> (Option<jiff::Timestamp>, Option<String>) {
    (
        set.metadata.creation_timestamp.as_ref().map(|time| time.0),
        set.metadata.name.clone(),
    )
}

pub(super) fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(name).map(String::as_str)
}

pub(super) fn revision(set: &ReplicaSet) -> i64 {
    annotation(&set.metadata, REVISION)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// The annotations a set should have, given those it has.
pub(super) fn annotations(
    deployment: &Deployment,
    set: Option<&ReplicaSet>,
    revision: i64,
) -> BTreeMap<String, String> {
    let mut all = set
        .and_then(|set| set.metadata.annotations.clone())
        .unwrap_or_default();
    let theirs = deployment
        .metadata
        .annotations
        .iter()
        .flatten()
        .filter(|(name, _)| !OWN.contains(&name.as_str()));
    all.extend(theirs.map(|(name, value)| (name.clone(), value.clone())));
    let before = all.get(REVISION).and_then(|text| text.parse::<i64>().ok());
    if before.is_none_or(|before| before < revision) {
        if let Some(before) = before {
            let history = all.entry(HISTORY.to_owned()).or_default();
            let said = before.to_string();
            if !history.split(',').any(|known| known == said) {
                *history = if history.is_empty() {
                    said
                } else {
                    format!("{history},{said}")
                };
            }
        }
        all.insert(REVISION.to_owned(), revision.to_string());
    }
    all.insert(DESIRED.to_owned(), replicas::wanted(deployment).to_string());
    all.insert(MOST.to_owned(), replicas::most(deployment).to_string());
    all
}

/// A short name for a template, from letters and digits that spell no words.
pub(in crate::controllers) fn hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let text = as_json(template).to_string()
        + &collisions
            .map(|count| count.to_string())
            .unwrap_or_default();
    let fnv = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    fnv.to_string()
        .bytes()
        .map(|digit| char::from(LETTERS[usize::from(digit) % LETTERS.len()]))
        .collect()
}

pub(super) fn new_set(deployment: &Deployment, size: i32, revision: i64) -> ReplicaSet {
    let spec = deployment.spec.clone().unwrap_or_default();
    let hash = hash(
        &spec.template,
        deployment
            .status
            .as_ref()
            .and_then(|status| status.collision_count),
    );
    let mut template = spec.template;
    let labels = template
        .metadata
        .get_or_insert_default()
        .labels
        .get_or_insert_default();
    labels.insert(HASH.to_owned(), hash.clone());
    let labels: Labels = labels.clone();
    let mut selector: LabelSelector = spec.selector;
    selector
        .match_labels
        .get_or_insert_default()
        .insert(HASH.to_owned(), hash.clone());
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{hash}")),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations(deployment, None, revision)),
            owner_references: Some(vec![controller_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(size),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    }
}
