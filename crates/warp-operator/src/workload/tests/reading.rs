//! How the tests read a plan, and pods in the states they need.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use warp_api::{GPUWorkload, Phase, condition};
use warp_runtime::plan::Action;

use super::super::Seen;
use super::super::assess::{Placeable, placeable};
use super::super::course::Course;
use super::super::plan::plan;
use super::{job, node, now, pod};
use crate::config::Settings;

pub(super) const READY_NODE: &str = "2026-11-15T10:00:00Z";

pub(super) fn planned(workload: &GPUWorkload, seen: &Seen) -> Course {
    planned_at(workload, seen, now())
}

pub(super) fn planned_at(workload: &GPUWorkload, seen: &Seen, at: Timestamp) -> Course {
    plan(workload, seen, &Settings::default(), at)
}

/// Whether the workload may be placed.
pub(super) fn may(workload: &GPUWorkload, seen: &Seen) -> Placeable {
    let status = workload.status.as_ref();
    placeable(workload, status, seen, &Settings::default(), now())
}

/// Phase, `Ready` reason and whether it is true.
pub(super) fn said(plan: &Course) -> (Phase, String, bool) {
    let status = plan.status.as_ref().expect("a status");
    let ready = condition::find(&status.conditions, condition::READY).expect("Ready");
    assert_eq!(
        status.conditions[0].type_,
        condition::READY,
        "Ready comes first"
    );
    assert_eq!(status.observed_generation, Some(3));
    (
        status.phase.expect("a phase"),
        ready.reason.clone(),
        ready.status == "True",
    )
}

pub(super) fn message(plan: &Course) -> String {
    plan.status
        .as_ref()
        .and_then(|status| status.message.clone())
        .unwrap_or_default()
}

/// The deadline in the status.
pub(super) fn deadline(plan: &Course) -> Option<String> {
    let status = plan.status.as_ref()?;
    Some(status.deadline.as_ref()?.0.to_string())
}

pub(super) fn deletes(plan: &Course) -> Vec<(String, String)> {
    let deleted = plan.steps.actions.iter().filter_map(|action| match action {
        Action::Delete { kind, key, .. } => Some((kind.kind.clone(), key.name.to_string())),
        _ => None,
    });
    deleted.collect()
}

pub(super) fn one_pod(pod: Arc<Pod>) -> Seen {
    Seen {
        jobs: vec![job(0, json!([]))],
        pods: vec![pod],
        nodes: BTreeMap::from([("gpu-1".to_owned(), node("True", READY_NODE))]),
        ..Default::default()
    }
}

pub(super) fn waiting(reason: &str, message: &str) -> Value {
    json!({"phase": "Pending", "containerStatuses": [{
        "name": "main", "image": "img:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": reason, "message": message}}
    }]})
}

pub(super) fn ended(code: i32, reason: &str) -> Value {
    json!({"phase": "Failed", "containerStatuses": [{
        "name": "main", "image": "img:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "reason": reason}}
    }]})
}

pub(super) fn unschedulable(message: &str) -> Arc<Pod> {
    let status = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]});
    pod(json!({}), json!({"nodeName": null}), status)
}

pub(super) fn failed_job(reason: &str) -> Value {
    json!([{"type": "Failed", "status": "True", "reason": reason}])
}
