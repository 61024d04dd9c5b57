// `json!` at the call reads best by value.
#![allow(clippy::needless_pass_by_value)]

mod attempts;
mod checkpoints;
mod disruptions;
mod edits;
mod estimates;
mod evictions;
mod failures;
mod gangs;
mod hands;
mod objects;
mod plan;
mod ranks;
mod reading;
mod refusals;
mod rent;
mod shown;
mod timeline;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use warp_api::GPUWorkload;

pub(super) fn now() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

pub(super) fn workload(spec: Value, status: Value) -> GPUWorkload {
    let mut object = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "metadata": {
            "name": "train", "namespace": "team", "uid": "0123456789abcdef", "generation": 3,
            "resourceVersion": "7", "creationTimestamp": "2026-11-15T11:00:00Z"
        },
        "spec": {"modelName": "org/model", "gpuCount": 2, "image": "img:1"},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    if !status.is_null() {
        object["status"] = status;
    }
    serde_json::from_value(object).unwrap()
}

pub(super) fn job(attempt: i32, conditions: Value) -> Arc<Job> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {
                "name": format!("train-01234567-{attempt}"), "namespace": "team",
                "uid": format!("job-{attempt}"), "resourceVersion": "9",
                "creationTimestamp": "2026-11-15T11:59:00Z",
                "labels": {
                    "gpu.warp.dev/workload": "train", "gpu.warp.dev/workload-uid": "0123456789abcdef",
                    "gpu.warp.dev/attempt": attempt.to_string()
                },
                "annotations": {"gpu.warp.dev/node": "gpu-1"}
            },
            "spec": {"template": {"spec": {"containers": []}}},
            "status": {"conditions": conditions}
        }))
        .unwrap(),
    )
}

/// A pod of attempt 0's Job, bound to `gpu-1` unless the spec says otherwise.
pub(super) fn pod(meta: Value, spec: Value, status: Value) -> Arc<Pod> {
    let mut object = json!({
        "metadata": {
            "name": "train-01234567-0-abcde", "namespace": "team", "uid": "pod-0",
            "labels": {"gpu.warp.dev/workload": "train", "gpu.warp.dev/workload-uid": "0123456789abcdef"},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-0"}]
        },
        "spec": {"containers": [], "nodeName": "gpu-1"},
        "status": status
    });
    for (key, value) in meta.as_object().into_iter().flatten() {
        object["metadata"][key] = value.clone();
    }
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    Arc::new(serde_json::from_value(object).unwrap())
}

pub(super) fn node(ready: &str, since: &str) -> Arc<Node> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": "gpu-1"},
            "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]}
        }))
        .unwrap(),
    )
}
