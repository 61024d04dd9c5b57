//! What a workload's status remembers of what happened to it. An entry goes with a status that is written anyway: it is
//! never the reason for a write. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use warp_api::workload::{TIMELINE_ENTRIES, TimelineEntry};
use warp_api::{GPUWorkloadStatus, condition};
use warp_runtime::pass::Pass;
use warp_runtime::plan::{Action, Plan};

/// Characters of a message that are kept.
const MESSAGE: usize = 256;

/// Adds what happened between two statuses to the second, if that is worth remembering. A place in line or a sentence
/// that counts other nodes is not.
pub(super) fn remember(before: &GPUWorkloadStatus, after: &mut GPUWorkloadStatus, now: Timestamp) {
    if events_of(before) == events_of(after) {
        return;
    }
    let Some(ready) = condition::find(&after.conditions, condition::READY) else {
        return;
    };
    // On whose behalf is not known to whoever decides: see `sign`.
    let entry = TimelineEntry {
        time: Time(now),
        actor: String::new(),
        cause: String::new(),
        reason: ready.reason.clone(),
        message: ready.message.chars().take(MESSAGE).collect(),
        correlation: String::new(),
    };
    after.timeline.push(entry);
    let over = after.timeline.len().saturating_sub(TIMELINE_ENTRIES);
    after.timeline.drain(..over);
}

/// What of a status is an event when it changes.
fn events_of(status: &GPUWorkloadStatus) -> Value {
    let ready = condition::find(&status.conditions, condition::READY);
    json!([
        status.phase,
        ready.map(|ready| &ready.reason),
        status.job_name,
        status.retry_count,
        status.disruptions,
        status.observed_generation,
    ])
}

/// Says of the entry a plan adds who writes it, because of whom, and in which pass.
pub(super) fn sign(pass: &Pass, plan: &mut Plan) {
    for action in &mut plan.actions {
        let Action::Status(status) = action else {
            continue;
        };
        let entries = status.after["timeline"].as_array_mut();
        let last = entries.and_then(|entries| entries.last_mut());
        if let Some(last) = last.filter(|last| last["correlation"] == "") {
            last["actor"] = json!(pass.manager.unwrap_or(pass.component));
            last["cause"] = json!(pass.cause);
            last["correlation"] = json!(pass.correlation);
        }
    }
}
