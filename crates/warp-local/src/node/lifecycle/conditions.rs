//! The pod conditions a kubelet owns, with the reasons and messages it uses. Conditions of others are
//! left alone: the status is merged by condition type.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodCondition, PodStatus};

use super::super::facts::Sandbox;
use super::status::time;
use super::{Plan, is_sidecar};

struct Verdict {
    kind: &'static str,
    holds: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Verdict {
    fn holds(kind: &'static str) -> Self {
        Self {
            kind,
            holds: true,
            reason: None,
            message: None,
        }
    }

    fn fails(kind: &'static str, reason: &'static str, message: Option<String>) -> Self {
        Self {
            kind,
            holds: false,
            reason: Some(reason),
            message,
        }
    }
}

pub(super) fn conditions(plan: &Plan<'_>, status: &PodStatus) -> Vec<PodCondition> {
    let phase = status.phase.as_deref().unwrap_or_default();
    let containers_ready = containers_ready(plan, status, phase);
    let verdicts = [
        sandbox(plan),
        initialized(plan, status, phase),
        ready(plan, &containers_ready),
        containers_ready,
        Verdict::holds("PodScheduled"),
    ];
    verdicts
        .into_iter()
        .map(|verdict| condition(plan, verdict))
        .collect()
}

fn condition(plan: &Plan<'_>, verdict: Verdict) -> PodCondition {
    let status = if verdict.holds { "True" } else { "False" };
    PodCondition {
        type_: verdict.kind.to_owned(),
        status: status.to_owned(),
        reason: verdict.reason.map(str::to_owned),
        message: verdict.message,
        last_transition_time: Some(time(since(plan, verdict.kind, status))),
        last_probe_time: None,
        observed_generation: plan.pod.metadata.generation,
    }
}

/// The time the condition took this value: kept while the value is kept.
fn since(plan: &Plan<'_>, kind: &str, status: &str) -> Timestamp {
    plan.facts
        .reported
        .iter()
        .chain(&plan.pod.status)
        .filter_map(|reported| reported.conditions.as_ref())
        .find_map(|known| known.iter().find(|condition| condition.type_ == kind))
        .filter(|known| known.status == status)
        .and_then(|known| known.last_transition_time.as_ref())
        .map_or(plan.now, |time| time.0)
}

fn sandbox(plan: &Plan<'_>) -> Verdict {
    let there = matches!(plan.facts.sandbox, Sandbox::Ready | Sandbox::TearingDown);
    Verdict {
        holds: there && plan.facts.refused.is_none(),
        ..Verdict::holds("PodReadyToStartContainers")
    }
}

fn initialized(plan: &Plan<'_>, status: &PodStatus, phase: &str) -> Verdict {
    const KIND: &str = "Initialized";
    if plan.has_initialized() {
        return if phase == "Succeeded" {
            Verdict {
                reason: Some("PodCompleted"),
                ..Verdict::holds(KIND)
            }
        } else {
            Verdict::holds(KIND)
        };
    }
    let incomplete = unready(
        plan.init().iter(),
        status.init_container_statuses.as_deref(),
    );
    if incomplete.is_empty() {
        return Verdict::holds(KIND);
    }
    let message = format!(
        "containers with incomplete status: [{}]",
        incomplete.join(" ")
    );
    Verdict::fails(KIND, "ContainersNotInitialized", Some(message))
}

fn containers_ready(plan: &Plan<'_>, status: &PodStatus, phase: &str) -> Verdict {
    const KIND: &str = "ContainersReady";
    match phase {
        "Succeeded" => return Verdict::fails(KIND, "PodCompleted", None),
        "Failed" => return Verdict::fails(KIND, "PodFailed", None),
        _ => {}
    }
    let sidecars = plan.init().iter().filter(|container| is_sidecar(container));
    let mut waiting = unready(sidecars, status.init_container_statuses.as_deref());
    waiting.extend(unready(
        plan.spec.containers.iter(),
        status.container_statuses.as_deref(),
    ));
    if waiting.is_empty() {
        return Verdict::holds(KIND);
    }
    let message = format!("containers with unready status: [{}]", waiting.join(" "));
    Verdict::fails(KIND, "ContainersNotReady", Some(message))
}

fn ready(plan: &Plan<'_>, containers: &Verdict) -> Verdict {
    const KIND: &str = "Ready";
    if !containers.holds {
        return Verdict {
            kind: KIND,
            holds: false,
            reason: containers.reason,
            message: containers.message.clone(),
        };
    }
    let known = plan
        .pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let complaints: Vec<String> = plan
        .spec
        .readiness_gates
        .iter()
        .flatten()
        .filter_map(|gate| {
            let name = &gate.condition_type;
            let found =
                known.and_then(|known| known.iter().find(|condition| condition.type_ == *name));
            match found {
                None => Some(format!(
                    "corresponding condition of pod readiness gate \"{name}\" does not exist."
                )),
                Some(condition) if condition.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{name}\" is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if complaints.is_empty() {
        return Verdict::holds(KIND);
    }
    Verdict::fails(KIND, "ReadinessGatesNotReady", Some(complaints.join(", ")))
}

fn unready<'a>(
    containers: impl Iterator<Item = &'a Container>,
    statuses: Option<&[ContainerStatus]>,
) -> Vec<&'a str> {
    containers
        .filter(|container| {
            !statuses
                .unwrap_or_default()
                .iter()
                .any(|status| status.name == container.name && status.ready)
        })
        .map(|container| container.name.as_str())
        .collect()
}
