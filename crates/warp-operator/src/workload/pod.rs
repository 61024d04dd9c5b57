//! What one pod's status says. Pure.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{Resource, ResourceExt};
use warp_api::reason;

/// Container states that mean the image cannot be had.
const IMAGE_ERRORS: &[&str] = &[
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "ImageInspectError",
];

/// Container states that mean it cannot be made.
const CREATE_ERRORS: &[&str] = &[
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PreCreateHookError",
];

/// What keeps a container from starting, as the kubelet says it.
pub(super) fn container_trouble(pod: &Pod) -> Option<(&'static str, String)> {
    containers(pod).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let why = waiting.reason.as_deref()?;
        let said = waiting.message.as_deref().unwrap_or(why);
        let (image, name) = (&container.image, &container.name);
        if why == "InvalidImageName" {
            let message = format!("image '{image}' of container {name} is not a valid name; correct it in a new workload");
            return Some((reason::INVALID_IMAGE_NAME, message));
        }
        if IMAGE_ERRORS.contains(&why) {
            let message = format!(
                "image '{image}' of container {name} cannot be pulled ({why}): {said}; check its name, tag and pull secret"
            );
            return Some((reason::IMAGE_PULL_FAILED, message));
        }
        CREATE_ERRORS.contains(&why).then(|| {
            let message = format!(
                "container {name} cannot be created ({why}): {said}; create what it refers to, or correct the workload"
            );
            (reason::CONTAINER_CREATE_FAILED, message)
        })
    })
}

/// Statuses of all containers, main ones first.
pub(super) fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let main = status.and_then(|status| status.container_statuses.as_ref());
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    main.into_iter().flatten().chain(init.into_iter().flatten())
}

/// When its first container began to run, whether it still does or not.
pub(crate) fn started(pod: &Pod) -> Option<Timestamp> {
    let since = containers(pod).filter_map(|container| {
        let state = container.state.as_ref()?;
        let running = state.running.as_ref().map(|state| &state.started_at);
        let ended = || state.terminated.as_ref().map(|state| &state.started_at);
        running.or_else(ended)?.as_ref().map(|time| time.0)
    });
    since
        .min()
        .or_else(|| pod.status.as_ref()?.start_time.as_ref().map(|time| time.0))
}

pub(super) fn pod_phase(pod: &Pod) -> Option<&str> {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
}

pub(super) fn ended(pod: &Pod) -> bool {
    matches!(pod_phase(pod), Some("Succeeded" | "Failed"))
}

pub(super) fn made_by(job: &Job, pod: &Pod) -> bool {
    let uid = job.meta().uid.as_deref();
    pod.owner_references()
        .iter()
        .any(|owner| Some(owner.uid.as_str()) == uid)
}
