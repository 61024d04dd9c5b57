//! What `kubectl get pods` shows.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::codec::table::age;
use crate::kinds::columns::{self, none_if_empty};
use crate::kinds::fields::{at, flag, list, number, text};
use crate::registry::resource::Column;

pub(super) fn columns() -> Vec<Column> {
    vec![
        columns::name(),
        columns::with("Ready", "string", 0, |pod, _| {
            let (ready, total, _, _) = counts(pod, None);
            json!(format!("{ready}/{total}"))
        }),
        columns::with("Status", "string", 0, |pod, _| json!(reason(pod))),
        columns::with("Restarts", "string", 0, |pod, now| {
            json!(restarts(pod, now))
        }),
        columns::age(),
        columns::with("IP", "string", 1, |pod, _| {
            none_if_empty(
                list(pod, "status.podIPs")
                    .first()
                    .map_or("", |ip| text(ip, "ip")),
            )
        }),
        columns::with("Node", "string", 1, |pod, _| {
            none_if_empty(text(pod, "spec.nodeName"))
        }),
        columns::with("Nominated Node", "string", 1, |pod, _| {
            none_if_empty(text(pod, "status.nominatedNodeName"))
        }),
        columns::with("Readiness Gates", "string", 1, |pod, _| json!(gates(pod))),
    ]
}

fn sidecars(pod: &Value) -> Vec<&str> {
    list(pod, "spec.initContainers")
        .iter()
        .filter(|container| text(container, "restartPolicy") == "Always")
        .map(|container| text(container, "name"))
        .collect()
}

/// Ready and all containers, restarts, and when the last restart was.
fn counts(pod: &Value, only_init: Option<bool>) -> (usize, usize, i64, Option<String>) {
    let sidecars = sidecars(pod);
    let (mut ready, mut restarts, mut last) = (0, 0, None::<String>);
    let total = list(pod, "spec.containers").len() + sidecars.len();
    let mut note = |status: &Value| {
        restarts += number(status, "restartCount").unwrap_or(0);
        let finished = text(status, "lastState.terminated.finishedAt");
        if !finished.is_empty() && last.as_deref().is_none_or(|known| known < finished) {
            last = Some(finished.to_owned());
        }
    };
    for status in list(pod, "status.initContainerStatuses") {
        let sidecar = sidecars.contains(&text(status, "name"));
        if only_init == Some(true) || sidecar {
            note(status);
        }
        if sidecar && flag(status, "started") && flag(status, "ready") {
            ready += 1;
        }
    }
    if only_init != Some(true) {
        for status in list(pod, "status.containerStatuses") {
            note(status);
            if flag(status, "ready") && at(status, "state.running").is_some() {
                ready += 1;
            }
        }
    }
    (ready, total, restarts, last)
}

/// The one word that says best what a pod is doing.
fn reason(pod: &Value) -> String {
    let mut reason = match text(pod, "status.reason") {
        "" => text(pod, "status.phase").to_owned(),
        reason => reason.to_owned(),
    };
    let gated = list(pod, "status.conditions").iter().any(|condition| {
        text(condition, "type") == "PodScheduled" && text(condition, "reason") == "SchedulingGated"
    });
    if gated {
        "SchedulingGated".clone_into(&mut reason);
    }
    let initializing = init_reason(pod);
    if let Some(found) = &initializing {
        reason.clone_from(found);
    }
    if initializing.is_none() || condition(pod, "Initialized") {
        let mut running = false;
        for status in list(pod, "status.containerStatuses").iter().rev() {
            let waiting = text(status, "state.waiting.reason");
            let terminated = at(status, "state.terminated");
            if !waiting.is_empty() {
                waiting.clone_into(&mut reason);
            } else if let Some(terminated) = terminated {
                reason = terminated_reason(terminated);
            } else if flag(status, "ready") && at(status, "state.running").is_some() {
                running = true;
            }
        }
        if reason == "Completed" && running {
            let ready = if condition(pod, "Ready") {
                "Running"
            } else {
                "NotReady"
            };
            ready.clone_into(&mut reason);
        }
    }
    if at(pod, "metadata.deletionTimestamp").is_some() {
        if text(pod, "status.reason") == "NodeLost" {
            return "Unknown".to_owned();
        }
        if !matches!(text(pod, "status.phase"), "Failed" | "Succeeded") {
            return "Terminating".to_owned();
        }
    }
    reason
}

fn condition(pod: &Value, kind: &str) -> bool {
    list(pod, "status.conditions")
        .iter()
        .any(|condition| text(condition, "type") == kind && text(condition, "status") == "True")
}

fn terminated_reason(terminated: &Value) -> String {
    let reason = text(terminated, "reason");
    if !reason.is_empty() {
        return reason.to_owned();
    }
    match number(terminated, "signal").unwrap_or(0) {
        0 => format!("ExitCode:{}", number(terminated, "exitCode").unwrap_or(0)),
        signal => format!("Signal:{signal}"),
    }
}

/// What initialisation is stuck at; `None` once it is over.
fn init_reason(pod: &Value) -> Option<String> {
    let sidecars = sidecars(pod);
    let all = list(pod, "spec.initContainers").len();
    for (index, status) in list(pod, "status.initContainerStatuses").iter().enumerate() {
        let terminated = at(status, "state.terminated");
        if terminated.is_some_and(|t| number(t, "exitCode").unwrap_or(0) == 0) {
            continue;
        }
        if sidecars.contains(&text(status, "name")) && flag(status, "started") {
            continue;
        }
        let waiting = text(status, "state.waiting.reason");
        return Some(if let Some(terminated) = terminated {
            format!("Init:{}", terminated_reason(terminated))
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            format!("Init:{waiting}")
        } else {
            format!("Init:{index}/{all}")
        });
    }
    None
}

fn restarts(pod: &Value, now: Timestamp) -> String {
    let initializing = init_reason(pod).is_some() && !condition(pod, "Initialized");
    let (_, _, count, last) = counts(pod, Some(initializing));
    match last {
        Some(last) if count > 0 => format!("{count} ({} ago)", age(&last, now)),
        _ => count.to_string(),
    }
}

fn gates(pod: &Value) -> String {
    let gates = list(pod, "spec.readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let met = gates
        .iter()
        .filter(|gate| condition(pod, text(gate, "conditionType")))
        .count();
    format!("{met}/{}", gates.len())
}
