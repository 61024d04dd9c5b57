//! What a StatefulSet looked like at each change of its template: one ControllerRevision each, numbered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};

use super::identity;
use crate::controllers::deployment::template_hash;
use crate::controllers::ownership::{controller_of, controller_reference};
use warp_runtime::plan::{Encoding, Plan, Removal, as_json};

const HASH: &str = "controller.kubernetes.io/hash";

pub(super) fn name(revision: &ControllerRevision) -> &str {
    revision.metadata.name.as_deref().unwrap_or_default()
}

/// The template a revision keeps.
pub(super) fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let kept = revision.data.as_ref()?.0.pointer("/spec/template")?;
    serde_json::from_value(kept.clone()).ok()
}

fn present(set: &StatefulSet) -> PodTemplateSpec {
    set.spec
        .as_ref()
        .map(|spec| spec.template.clone())
        .unwrap_or_default()
}

/// Which revisions a pass goes by.
pub(super) enum Which {
    /// What pods were last all made from, and what they are to be made from.
    Known {
        current: Arc<ControllerRevision>,
        update: Arc<ControllerRevision>,
    },
    /// The template is new: this is to be made.
    New(Box<ControllerRevision>),
    /// The template is an old one again: its revision becomes the newest.
    Again(Arc<ControllerRevision>, i64),
}

/// `revisions` stand from the oldest to the newest.
pub(super) fn which(set: &StatefulSet, revisions: &[Arc<ControllerRevision>]) -> Which {
    let wanted = present(set);
    let next = revisions.last().map_or(1, |last| last.revision + 1);
    let equal = revisions
        .iter()
        .rev()
        .find(|revision| template(revision).as_ref() == Some(&wanted));
    let Some(update) = equal else {
        return Which::New(Box::new(new(set, next)));
    };
    if revisions
        .last()
        .is_some_and(|last| last.revision != update.revision)
    {
        return Which::Again(update.clone(), next);
    }
    let status = set.status.as_ref();
    let said = status.and_then(|status| status.current_revision.as_deref());
    let current = revisions
        .iter()
        .find(|revision| Some(name(revision)) == said);
    Which::Known {
        current: current.unwrap_or(update).clone(),
        update: update.clone(),
    }
}

fn new(set: &StatefulSet, number: i64) -> ControllerRevision {
    let template = present(set);
    let collisions = set
        .status
        .as_ref()
        .and_then(|status| status.collision_count);
    let hash = template_hash(&template, collisions.filter(|count| *count > 0));
    let mut labels = template
        .metadata
        .as_ref()
        .and_then(|meta| meta.labels.clone())
        .unwrap_or_default();
    labels.insert(HASH.to_owned(), hash.clone());
    // A restored template replaces the present one instead of being merged into it.
    let mut data = as_json(&template);
    data["$patch"] = Value::from("replace");
    let mut prefix = identity::name_of(set).to_owned();
    prefix.truncate(223);
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{prefix}-{hash}")),
            namespace: set.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: set.metadata.annotations.clone(),
            owner_references: Some(vec![controller_reference(set)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(sorted(
            json!({ "spec": { "template": data } }),
        ))),
        revision: number,
    }
}

/// Members in the order of their names: a real server compares the text it stored with what a patch makes of it, which is
/// in that order, and takes any other for a change of what never changes.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let members: BTreeMap<String, Value> = map.into_iter().collect();
            let members = members
                .into_iter()
                .map(|(name, value)| (name, sorted(value)));
            Value::Object(members.collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(sorted).collect()),
        other => other,
    }
}

/// Is what was found the set's own and says the same?
pub(super) fn is_same(
    set: &StatefulSet,
    found: &ControllerRevision,
    wanted: &ControllerRevision,
) -> bool {
    controller_of(&found.metadata).map(|owner| &owner.uid) == set.metadata.uid.as_ref()
        && template(found) == template(wanted)
}

pub(super) fn renumber(revision: &ControllerRevision, number: i64, plan: &mut Plan) {
    plan.patch(revision, Encoding::Merge, json!({ "revision": number }));
}

/// Deletes the oldest revisions that nothing goes by, beyond as many as the set keeps.
pub(super) fn forget(
    set: &StatefulSet,
    revisions: &[Arc<ControllerRevision>],
    live: &BTreeSet<&str>,
    plan: &mut Plan,
) {
    let limit = set
        .spec
        .as_ref()
        .and_then(|spec| spec.revision_history_limit);
    let Ok(limit) = usize::try_from(limit.unwrap_or(10)) else {
        return;
    };
    let past: Vec<_> = revisions
        .iter()
        .filter(|revision| !live.contains(name(revision)))
        .collect();
    for revision in past.iter().take(past.len().saturating_sub(limit)) {
        plan.delete(&***revision, Removal::default(), None);
    }
}
