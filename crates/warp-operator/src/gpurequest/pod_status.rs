//! What a pod says that is a container at a cloud: that it runs, or how it ended. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use warp_api::gpurequest::RequestAttempt;
use warp_api::reason;
use warp_cloud::{Exit, Machine, State};
use warp_runtime::plan::{Plan, Seen};

/// Conditions of a pod that follow from its container.
const OF_CONTAINER: [&str; 4] = [
    "Initialized",
    "Ready",
    "ContainersReady",
    "DisruptionTarget",
];
/// What is told of a container of which nobody knows how it ended: not a code any program means.
const UNKNOWN_CODE: i32 = 255;

/// How a pod ended.
#[derive(Clone, Debug)]
pub(super) enum End<'a> {
    /// Its container ended by itself.
    Exit(Exit),
    /// It could not be a container, and nothing was bought.
    Refused(&'a str),
    /// It did nothing wrong: the cloud, a limit or somebody ended its container, or it was never begun.
    Lost(&'a str),
}

/// Writes that a pod runs, unless it says so.
pub(super) fn runs(
    plan: &mut Plan,
    pod: &Pod,
    image: &str,
    machine: &Machine,
    attempt: &RequestAttempt,
    now: Timestamp,
) {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let up = matches!(machine.state, State::Running | State::Degraded);
    if !up || phase == Some("Running") {
        return;
    }
    let since = attempt.billed_from.clone().unwrap_or(Time(now));
    let mut after = json!({
        "phase": "Running", "startTime": since,
        "conditions": conditions(pod, "True", None, now),
        "containerStatuses": [container(pod, image, true, &json!({"running": {"startedAt": since}}))],
    });
    let address = machine.private_ip.as_ref().or(machine.public_ip.as_ref());
    let address = address.filter(|text| text.parse::<std::net::IpAddr>().is_ok());
    if let Some(address) = address {
        after["podIP"] = json!(address);
        after["podIPs"] = json!([{"ip": address}]);
    }
    plan.merge_seen(Seen::of(pod), Some("status"), json!({ "status": after }));
    plan.because("its container at the cloud runs");
}

/// Writes how a pod ended.
pub(super) fn end(
    plan: &mut Plan,
    pod: &Pod,
    image: &str,
    end: &End<'_>,
    attempt: &RequestAttempt,
    now: Timestamp,
) {
    let (phase, reason, message) = match end {
        End::Exit(Exit { code: Some(0), .. }) => ("Succeeded", None, None),
        End::Exit(Exit { code: Some(_), .. }) => ("Failed", None, None),
        End::Exit(Exit { code: None, .. }) => {
            let text = format!(
                "{} says that the container ended, and not how: look at what it has written",
                attempt.provider
            );
            ("Failed", Some(reason::EXIT_UNKNOWN), Some(text))
        }
        End::Refused(why) => (
            "Failed",
            Some(reason::CONTAINER_REFUSED),
            Some(format!("not a container of {}: {why}", attempt.provider)),
        ),
        End::Lost(why) => (
            "Failed",
            Some(reason::CONTAINER_LOST),
            Some((*why).to_owned()),
        ),
    };
    let lost = matches!(end, End::Lost(_)).then(|| message.clone().unwrap_or_default());
    let mut after = json!({
        "phase": phase, "reason": reason, "message": message,
        "conditions": conditions(pod, "False", lost.as_deref(), now),
    });
    if let End::Exit(exit) = end {
        let code = exit.code.unwrap_or(UNKNOWN_CODE);
        let ended = json!({"terminated": {
            "exitCode": code,
            "reason": if exit.code == Some(0) { "Completed" } else { "Error" },
            "startedAt": attempt.billed_from,
            "finishedAt": exit.at.map_or(Time(now), Time),
        }});
        after["containerStatuses"] = json!([container(pod, image, false, &ended)]);
    }
    plan.merge_seen(Seen::of(pod), Some("status"), json!({ "status": after }));
    plan.because("its container at the cloud is over");
}

/// The conditions of a pod, those of others kept. `lost`: it ended for no fault of its own.
fn conditions(pod: &Pod, ready: &str, lost: Option<&str>, now: Timestamp) -> Vec<Value> {
    let known = pod.status.iter().flat_map(|status| &status.conditions);
    let known = known
        .flatten()
        .filter(|one| !OF_CONTAINER.contains(&one.type_.as_str()));
    let mut all: Vec<Value> = known
        .filter_map(|one| serde_json::to_value(one).ok())
        .collect();
    let mut say = |kind: &str, status: &str, reason: Option<&str>, message: Option<&str>| {
        all.push(json!({
            "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": Time(now),
        }));
    };
    say("Initialized", "True", None, None);
    say("Ready", ready, None, None);
    say("ContainersReady", ready, None, None);
    if let Some(why) = lost {
        say(
            "DisruptionTarget",
            "True",
            Some(reason::CONTAINER_LOST),
            Some(why),
        );
    }
    all
}

fn container(pod: &Pod, image: &str, runs: bool, state: &Value) -> Value {
    let spec = pod.spec.as_ref();
    let name = spec.and_then(|spec| spec.containers.first());
    let name = name.map(|container| container.name.clone());
    json!({
        "name": name, "image": image, "imageID": "", "restartCount": 0,
        "ready": runs, "started": runs, "state": state,
    })
}
