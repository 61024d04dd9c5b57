//! The pods of a service: which are its copies, which wait behind the gate, which have a place, and which may make room
//! for other work. Pure.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use warp_api::workload::Priority;
use warp_api::{InferenceService, label};
use warp_core::scale::{self, Step};

use super::assess::is_ready;
use super::group::{self, Role};
use super::pools;
use crate::ledger::{finished, is_behind, node_of, pinned_to};
use crate::workload::{Class, Rank};

/// A label is anybody's to write: a copy belongs to a ReplicaSet of the service's Deployment, or leads a group.
pub(super) fn is_copy(pod: &Pod, name: &str) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    let own = pools::deployment_name(name, pools::said(pod));
    owners
        .filter(|owner| owner.controller == Some(true))
        .any(|owner| {
            let of_name = owner
                .name
                .rsplit_once('-')
                .is_some_and(|(deployment, _)| deployment == own);
            owner.kind == "ReplicaSet" && of_name
        })
        || group::member_of(pod, name).is_some_and(|(_, role)| role == Role::Leader)
}

/// Whether a copy is on its way out.
pub(super) fn goes(pod: &Pod) -> bool {
    pod.meta().deletion_timestamp.is_some()
}

/// Whether a copy waits for the scheduler to give it a node.
pub(super) fn waits(pod: &Pod) -> bool {
    !goes(pod) && !finished(pod) && is_behind(pod, label::SERVING_GATE)
}

/// The node a copy has: it is bound to it, or was let go to it.
pub(super) fn place(pod: &Pod) -> Option<String> {
    if finished(pod) {
        return None;
    }
    let bound = node_of(pod).map(str::to_owned);
    let open = !is_behind(pod, label::SERVING_GATE);
    let pinned = || pod.spec.as_ref().and_then(pinned_to);
    bound.or_else(|| open.then(pinned).flatten())
}

/// Copies that have a place: those that are going, or those that stay.
pub(super) fn placed(pods: &[Arc<Pod>], going: bool) -> usize {
    let with_place = pods.iter().filter(|pod| goes(pod) == going);
    with_place.filter(|pod| place(pod).is_some()).count()
}

/// Those that wait, the first to be placed first.
pub(super) fn waiting(pods: &[Arc<Pod>]) -> Vec<&Arc<Pod>> {
    let mut waiting: Vec<&Arc<Pod>> = pods.iter().filter(|pod| waits(pod)).collect();
    waiting.sort_by_key(|pod| (pod.creation_timestamp(), pod.name_any()));
    waiting
}

/// What the claim of a copy is called. Not by the pod's uid alone: that is what the pod itself is called in the ledger.
pub(super) fn claim_id(pod: &Pod) -> String {
    format!("{}/copy", pod.meta().uid.as_deref().unwrap_or_default())
}

/// Where its copies stand in the line, by the class it names as far as that is there; the error says that it is not.
pub(super) fn rank(service: &InferenceService, class: Option<Class>) -> Result<Rank, String> {
    match (&service.spec.priority_class_name, class) {
        (None, _) => Ok(Rank {
            priority: service.spec.priority.unwrap_or(Priority::High),
            patient: false,
        }),
        (Some(_), Some(class)) => Ok(class.into()),
        (Some(name), None) => Err(format!(
            "the PriorityClass {name} does not exist; create it, or name another in spec.priorityClassName"
        )),
    }
}

/// Copies wanted, as the operator last said.
pub(super) fn wanted(service: &InferenceService) -> usize {
    let status = service.status.as_ref();
    let told = status.filter(|status| status.observed_generation.is_some());
    let wanted = told.map_or(service.spec.replicas, |status| status.replicas);
    usize::try_from(wanted).unwrap_or(0)
}

/// Copies as a number that is not below zero.
fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// The steps of its schedule.
fn steps(service: &InferenceService) -> Vec<Step> {
    let scaling = service.spec.scaling.iter();
    let steps = scaling.flat_map(|scaling| &scaling.schedule);
    let steps = steps.filter_map(|step| {
        Some(Step {
            minute: step.minute()?,
            min: count(step.min),
        })
    });
    steps.collect()
}

/// When the least number of copies may be another.
pub(super) fn next_step(service: &InferenceService, now: Timestamp) -> Option<Timestamp> {
    let at = scale::next_step(&steps(service), now.as_second())?;
    Timestamp::from_second(at).ok()
}

/// The least copies at a time of the day.
pub(super) fn least(service: &InferenceService, now: Timestamp) -> Option<u32> {
    let scaling = service.spec.scaling.as_ref()?;
    let steps = steps(service);
    let least = scale::least(count(scaling.min), &steps, now.as_second());
    Some(least.min(count(scaling.max)))
}

/// Copies that nobody takes from it.
fn floor(service: &InferenceService, now: Timestamp) -> usize {
    match service.spec.preemptible {
        Some(true) => 0,
        Some(false) => usize::MAX,
        None => least(service, now).map_or_else(|| wanted(service), |least| least as usize),
    }
}

/// Copies it has had a place for and that nobody may take from it: one that is missing of those is to be there again before
/// anything else is placed, or a replacement in place would lose its GPU to whoever waits.
pub(super) fn kept(service: &InferenceService, now: Timestamp) -> usize {
    let status = service.status.as_ref();
    let had = status.map_or(0, |status| status.placed_replicas);
    let had = usize::try_from(had).unwrap_or(0);
    had.min(floor(service, now)).min(wanted(service))
}

/// The copies that may make room: those beyond its floor, of which those that do not answer yet and then the youngest go
/// first, and those that go already because they were asked to.
pub(super) fn surplus<'a>(
    service: &InferenceService,
    pods: &'a [Arc<Pod>],
    now: Timestamp,
) -> Vec<&'a Arc<Pod>> {
    let bound = pods
        .iter()
        .filter(|pod| node_of(pod).is_some() && !finished(pod));
    let (going, mut staying): (Vec<_>, Vec<_>) = bound.partition(|pod| goes(pod));
    staying.sort_by_key(|pod| {
        let created = pod.creation_timestamp();
        (is_ready(pod), Reverse(created), pod.name_any())
    });
    let beyond = staying.len().saturating_sub(floor(service, now));
    staying.truncate(beyond);
    staying.extend(going.into_iter().filter(|pod| was_evicted(pod)));
    staying
}

/// Whether somebody asked the cluster to take a pod off its node.
pub(super) fn was_evicted(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    goes(pod) && conditions.any(|found| found.type_ == "DisruptionTarget" && found.status == "True")
}
