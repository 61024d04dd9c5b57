//! What controllers ask of a pod.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending")
}

pub(crate) fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

pub(crate) fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Neither finished nor being deleted.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !is_terminating(pod)
}

pub(crate) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status
        .as_ref()?
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == type_)
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Since when it has been ready.
pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = condition(pod, "Ready").filter(|ready| ready.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

/// Ready for at least `seconds`; otherwise when it will be.
pub(crate) fn is_available(
    pod: &Pod,
    seconds: i32,
    now: Timestamp,
) -> Result<(), Option<Timestamp>> {
    if !is_ready(pod) {
        return Err(None);
    }
    if seconds == 0 {
        return Ok(());
    }
    let Some(since) = ready_since(pod) else {
        return Err(None);
    };
    let from = since + jiff::SignedDuration::from_secs(i64::from(seconds));
    if from <= now { Ok(()) } else { Err(Some(from)) }
}

pub(crate) fn node(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()?
        .node_name
        .as_deref()
        .filter(|name| !name.is_empty())
}

pub(crate) fn restarts(pod: &Pod) -> i32 {
    let status = pod.status.as_ref();
    status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten())
        .map(|status| status.restart_count)
        .max()
        .unwrap_or(0)
}

pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// A pod made from a template for its controller; the server chooses the end of its name.
pub(crate) fn from_template(
    template: &PodTemplateSpec,
    namespace: &str,
    owner_name: &str,
    owner: OwnerReference,
) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    // Room for the five characters the server adds.
    let mut prefix = format!("{owner_name}-");
    prefix.truncate(58);
    Pod {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            generate_name: Some(prefix),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Which pod to lose first: lower goes first. Unassigned, then pending, not ready, ready for the shorter time, more
/// restarts, younger; `doubled` counts the pods of the same owner on the pod's node, and the fuller node loses first.
pub(crate) fn deletion_rank(pod: &Pod, doubled: usize, now: Timestamp) -> impl Ord + use<> {
    let assigned = node(pod).is_some();
    let phase = match phase(pod) {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    let cost: i64 = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get("controller.kubernetes.io/pod-deletion-cost"))
        .and_then(|cost| cost.parse().ok())
        .unwrap_or(0);
    let ready_for = ready_since(pod).map(|since| log_age(since, now));
    let created = pod
        .metadata
        .creation_timestamp
        .as_ref()
        .map_or(now, |time| time.0);
    (
        assigned,
        phase,
        is_ready(pod),
        cost,
        std::cmp::Reverse(doubled),
        ready_for,
        std::cmp::Reverse(restarts(pod)),
        log_age(created, now),
        pod.metadata.uid.clone(),
    )
}

/// Ages compare by order of magnitude, so that among pods started together the choice is not always the same.
fn log_age(since: Timestamp, now: Timestamp) -> u32 {
    let seconds = u64::try_from(now.duration_since(since).as_secs()).unwrap_or(0);
    u64::BITS - seconds.leading_zeros()
}
