//! What a kubelet tells users about its pods, as Kubernetes events.

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};

use super::super::facts::{Event, Facts};
use super::super::lifecycle::Action;
use crate::controllers::plan::Note;

/// The note about an event, and whether it is worth making when only trouble is told.
pub(super) fn about_event(pod: &Pod, facts: &Facts, event: &Event) -> Option<Note> {
    let (warning, reason, message, container) = match event {
        Event::PrepareFailed { message, .. } => (true, "FailedMount", message.clone(), None),
        Event::PullFailed {
            message,
            container,
            reason,
            ..
        } => {
            let told = match reason.as_str() {
                "InvalidImageName" => "InspectFailed",
                "ErrImageNeverPull" => "ErrImageNeverPull",
                _ => "Failed",
            };
            (true, told, message.clone(), Some(container))
        }
        Event::Misconfigured {
            message, container, ..
        } => (true, "Failed", format!("Error: {message}"), Some(container)),
        Event::Evicted { message } => (true, "Evicted", message.clone(), None),
        Event::Pulling { container, message } => {
            (false, "Pulling", message.clone(), Some(container))
        }
        Event::Pulled { container, .. } => (
            false,
            "Pulled",
            format!("Container image of \"{container}\" is present"),
            Some(container),
        ),
        Event::Started { container, .. } => (
            false,
            "Started",
            "Container started".to_owned(),
            Some(container),
        ),
        Event::Probed {
            container,
            kind,
            ok: false,
            message,
            ..
        } => (
            true,
            "Unhealthy",
            format!("{} probe failed: {message}", kind.word()),
            Some(container),
        ),
        Event::Exited {
            container, exit, ..
        } if exit.reason == "StartError" => {
            let why = exit.message.clone().unwrap_or_default();
            (true, "Failed", format!("Error: {why}"), Some(container))
        }
        Event::Exited {
            container, exit, ..
        } if exit.code != 0 && restarted_before(facts, container) => (
            true,
            "BackOff",
            format!("Back-off restarting failed container {container}"),
            Some(container),
        ),
        _ => return None,
    };
    Some(note(
        pod,
        container.map(String::as_str),
        warning,
        reason,
        message,
    ))
}

pub(super) fn about_action(pod: &Pod, action: &Action) -> Option<Note> {
    match action {
        Action::Stop { container, .. } => Some(note(
            pod,
            Some(container),
            false,
            "Killing",
            format!("Stopping container {container}"),
        )),
        _ => None,
    }
}

/// What a node's object asks for that means nothing.
pub(super) fn about_node(node: &Node, message: &str) -> Note {
    Note {
        about: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: node.metadata.name.clone(),
            uid: node.metadata.uid.clone(),
            ..ObjectReference::default()
        },
        warning: true,
        reason: "UnknownAnnotation".to_owned(),
        action: None,
        message: message.to_owned(),
    }
}

pub(super) fn warning(pod: &Pod, reason: &str, message: String) -> Note {
    note(pod, None, true, reason, message)
}

pub(super) fn about_refusal(pod: &Pod, reason: &str, message: &str) -> Note {
    note(pod, None, true, reason, message.to_owned())
}

fn restarted_before(facts: &Facts, container: &str) -> bool {
    facts
        .container(container)
        .is_some_and(|seen| seen.restarts.tries() > 0)
}

fn note(pod: &Pod, container: Option<&str>, warning: bool, reason: &str, message: String) -> Note {
    Note {
        about: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            uid: pod.metadata.uid.clone(),
            field_path: container.map(|name| format!("spec.containers{{{name}}}")),
            ..ObjectReference::default()
        },
        warning,
        reason: reason.to_owned(),
        action: None,
        message,
    }
}
