//! What becomes of work that was saved.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use warp_api::workload::CheckpointEvidence;

use super::super::evict::Running;
use super::super::objects::shell;
use super::super::{Given, Seen};
use super::reading::{failed_job, message, one_pod, planned};
use super::{job, now, pod, workload};
use crate::placement::{Place, Runner};

fn place() -> Place {
    Place {
        node: "gpu-1".to_owned(),
        resource: "nvidia.com/gpu".to_owned(),
        extra: std::collections::BTreeMap::new(),
        milli: 1000,
        evidence: None,
        strategy: "warp",
        provider: "p".to_owned(),
        why: "because".to_owned(),
    }
}

/// The Job of an attempt of a workload that saves its work, as the API server gets it.
fn made(spec: Value, status: Value, attempt: i32) -> Value {
    let it = workload(spec, status);
    let shell = shell(&it, &warp_core::gpu::Catalogue::default()).unwrap();
    serde_json::to_value(shell.job(&it, attempt, &place())).unwrap()
}

fn env(job: &Value, name: &str) -> Option<String> {
    let env = job.pointer("/spec/template/spec/containers/0/env")?;
    let found = env.as_array()?.iter().find(|one| one["name"] == name)?;
    found["value"].as_str().map(str::to_owned)
}

#[test]
fn a_pod_is_told_how_it_is_asked_to_end_and_which_attempt_it_is() {
    let saves = json!({"checkpoint": {"signal": "SIGUSR1", "gracePeriod": "2m", "annotation": "a/saved", "path": "/saved"}});
    let first = made(saves.clone(), json!(null), 0);
    let template = &first["spec"]["template"];
    let pod = &template["spec"];
    assert_eq!(pod["terminationGracePeriodSeconds"], 120);
    assert_eq!(pod["containers"][0]["lifecycle"]["stopSignal"], "SIGUSR1");
    assert_eq!(pod["os"]["name"], "linux");
    let named = &template["metadata"]["annotations"]["gpu.warp.dev/checkpoint-annotation"];
    assert_eq!(named, "a/saved");
    let path = &template["metadata"]["annotations"]["gpu.warp.dev/checkpoint-path"];
    assert_eq!(path, "/saved");
    assert_eq!(env(&first, "ATTEMPT").as_deref(), Some("0"));
    assert_eq!(env(&first, "RESUME"), None, "there is nothing to resume");
    let second = made(saves.clone(), json!({"disruptions": 1}), 1);
    assert_eq!(env(&second, "ATTEMPT").as_deref(), Some("1"));
    assert_eq!(env(&second, "RESUME").as_deref(), Some("1"));
    // Suspended and placed again, it is the same attempt.
    let saved = json!({"lastCheckpoint": {"time": "2026-11-15T11:00:00Z", "by": "signal"}});
    let again = made(saves, saved, 0);
    assert_eq!(env(&again, "RESUME").as_deref(), Some("1"));
    let plain = made(json!({}), json!({"disruptions": 1}), 1);
    assert_eq!(
        (env(&plain, "ATTEMPT"), env(&plain, "RESUME")),
        (None, None)
    );
    let term = made(json!({"checkpoint": {"signal": "SIGTERM"}}), json!(null), 0);
    assert!(term["spec"]["template"]["spec"]["os"].is_null());
}

#[test]
fn what_the_owner_sets_in_the_environment_stays() {
    let spec =
        json!({"checkpoint": {"period": "1m"}, "env": [{"name": "RESUME", "value": "never"}]});
    let second = made(spec, json!({"disruptions": 1}), 1);
    assert_eq!(env(&second, "RESUME").as_deref(), Some("never"));
}

fn evicted(mut seen: Seen) -> Seen {
    let mut job = (*job(0, failed_job("PodFailurePolicy"))).clone();
    let annotations = job.metadata.annotations.get_or_insert_default();
    annotations.insert(
        "gpu.warp.dev/evicted-for".to_owned(),
        "team/urgent".to_owned(),
    );
    seen.jobs = vec![Arc::new(job)];
    seen
}

/// A pod that was evicted and ended with a code at a time.
fn ended(code: i32, annotations: Value) -> Arc<Pod> {
    let meta = json!({"annotations": annotations, "labels": {
        "gpu.warp.dev/workload": "train", "gpu.warp.dev/workload-uid": "0123456789abcdef",
        "gpu.warp.dev/attempt": "0"}});
    let status = json!({
        "phase": "Failed",
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}],
        "containerStatuses": [{
            "name": "main", "image": "img:1", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": code, "finishedAt": "2026-11-15T11:59:50Z"}}}],
    });
    pod(meta, json!({}), status)
}

/// How it is known that work was saved, when, and what the eviction cost in GPU-seconds; two GPUs ran for ten minutes.
fn after(
    checkpoint: Value,
    ended: Option<Arc<Pod>>,
    deadline: Value,
) -> (Option<(CheckpointEvidence, String)>, Option<i64>) {
    let mut status = json!({"startTime": "2026-11-15T11:50:00Z"});
    status["deadline"] = deadline;
    let it = workload(json!({"checkpoint": checkpoint}), status);
    let gone = Seen::default;
    let seen = evicted(ended.map_or_else(gone, one_pod));
    let plan = planned(&it, &seen);
    let status = plan.status.unwrap();
    let last = status
        .last_checkpoint
        .map(|last| (last.by, last.time.0.to_string()));
    (last, status.lost_gpu_seconds)
}

#[test]
fn whoever_saves_at_the_signal_and_ends_in_time_loses_nothing() {
    let signal = || json!({"signal": "SIGTERM", "period": "4m"});
    let at = |time: &str| Some((CheckpointEvidence::Signal, time.to_owned()));
    let (last, lost) = after(signal(), Some(ended(143, json!({}))), json!(null));
    assert_eq!((last, lost), (at("2026-11-15T11:59:50Z"), None));
    // Killed, it was too slow: what it saved by itself is left, eight minutes of ten.
    let (last, lost) = after(signal(), Some(ended(137, json!({}))), json!(null));
    let period = Some((
        CheckpointEvidence::Period,
        "2026-11-15T11:58:00Z".to_owned(),
    ));
    assert_eq!((last, lost), (period.clone(), Some(240)));
    // Gone before its time was over, and after.
    let (last, lost) = after(signal(), None, json!("2026-11-15T12:00:20Z"));
    assert_eq!((last, lost), (at("2026-11-15T12:00:00Z"), None));
    let (last, lost) = after(signal(), None, json!("2026-11-15T11:59:00Z"));
    assert_eq!((last, lost), (period, Some(240)));
}

#[test]
fn what_a_pod_says_is_known_better_than_what_its_period_promises() {
    let said = |time: &str| Some(ended(143, json!({"a/saved": time})));
    let both = || json!({"period": "1m", "annotation": "a/saved"});
    let (last, lost) = after(both(), said("2026-11-15T11:55:00Z"), json!(null));
    let told = (
        CheckpointEvidence::Annotation,
        "2026-11-15T11:55:00Z".to_owned(),
    );
    assert_eq!((last, lost), (Some(told), Some(600)));
    // A clock that is ahead, and what is no time at all.
    let (last, lost) = after(both(), said("2027-01-01T00:00:00Z"), json!(null));
    let told = (
        CheckpointEvidence::Annotation,
        "2026-11-15T12:00:00Z".to_owned(),
    );
    assert_eq!((last, lost), (Some(told), None));
    let (last, _) = after(both(), said("just now"), json!(null));
    assert_eq!(last.unwrap().0, CheckpointEvidence::Period);
    // What its node saw counts where it says nothing itself, and only where it names a path.
    let seen = || {
        let file = "gpu.warp.dev/checkpoint-file-time";
        Some(ended(143, json!({file: "2026-11-15T11:57:00Z"})))
    };
    let by_file = json!({"period": "1m", "annotation": "a/saved", "path": "/saved"});
    let (last, lost) = after(by_file, seen(), json!(null));
    let told = (CheckpointEvidence::File, "2026-11-15T11:57:00Z".to_owned());
    assert_eq!((last, lost), (Some(told), Some(360)));
    let (last, _) = after(both(), seen(), json!(null));
    assert_eq!(last.unwrap().0, CheckpointEvidence::Period);
    let never = json!({"period": "1h"});
    assert_eq!(
        after(never, Some(ended(143, json!({}))), json!(null)),
        (None, Some(1200))
    );
}

/// Running since ten minutes.
fn running(annotations: Value, meta: Value) -> Arc<Pod> {
    let mut all = json!({"annotations": annotations, "labels": {
        "gpu.warp.dev/workload": "train", "gpu.warp.dev/workload-uid": "0123456789abcdef",
        "gpu.warp.dev/attempt": "0"}});
    for (key, value) in meta.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    let status = json!({"phase": "Running", "startTime": "2026-11-15T11:50:00Z"});
    pod(all, json!({}), status)
}

#[test]
fn the_cost_of_an_eviction_is_what_is_not_saved() {
    let mut owned = (*job(0, json!([]))).clone();
    let owner = json!([{"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "name": "train",
        "uid": "0123456789abcdef", "controller": true}]);
    owned.metadata.owner_references = serde_json::from_value(owner).unwrap();
    let jobs: [Arc<Job>; 1] = [Arc::new(owned)];
    let pods = [running(
        json!({"a/saved": "2026-11-15T11:59:00Z"}),
        json!({}),
    )];
    let lost = |checkpoint: Value| {
        let it = Arc::new(workload(json!({"checkpoint": checkpoint}), json!(null)));
        let runs = Running::of(
            &it,
            &jobs,
            &pods,
            (Given::default(), &Arc::default()),
            now(),
        )
        .unwrap();
        runs.runs().lost_gpu_seconds(now())
    };
    assert_eq!(lost(json!(null)), 1200);
    assert_eq!(lost(json!({"period": "7m"})), 2 * 3 * 60);
    assert_eq!(lost(json!({"annotation": "a/saved"})), 2 * 60);
    assert_eq!(lost(json!({"signal": "SIGTERM"})), 0);
}

#[test]
fn what_runs_tells_its_checkpoint_and_the_signal_it_does_not_get() {
    let spec =
        json!({"checkpoint": {"signal": "SIGUSR2", "annotation": "a/saved", "period": "1m"}});
    let it = workload(spec, json!(null));
    let silent = planned(&it, &one_pod(running(json!({}), json!({}))));
    let status = silent.status.clone().unwrap();
    assert_eq!(
        status.last_checkpoint, None,
        "a period alone is not worth a write"
    );
    assert!(
        message(&silent).contains("instead of SIGUSR2"),
        "{}",
        message(&silent)
    );
    let told = running(json!({"a/saved": "2026-11-15T11:59:00Z"}), json!({}));
    let status = planned(&it, &one_pod(told)).status.unwrap();
    assert_eq!(
        status.last_checkpoint.unwrap().by,
        CheckpointEvidence::Annotation
    );
    let mut seen = one_pod(running(json!({}), json!({})));
    let mut kept = (*job(0, json!([]))).clone();
    let pod = json!({"containers": [{"name": "main", "lifecycle": {"stopSignal": "SIGUSR2"}}]});
    kept.spec.get_or_insert_default().template.spec = serde_json::from_value(pod).unwrap();
    seen.jobs = vec![Arc::new(kept)];
    assert!(!message(&planned(&it, &seen)).contains("instead of"));
}

#[test]
fn whoever_is_suspended_is_waited_for_to_know_whether_it_saved() {
    let spec = json!({"suspend": true, "checkpoint": {"signal": "SIGTERM"}});
    let status = json!({"startTime": "2026-11-15T11:50:00Z", "phase": "Running"});
    let ending =
        json!({"deletionTimestamp": "2026-11-15T12:00:20Z", "deletionGracePeriodSeconds": 30});
    let plan = planned(
        &workload(spec.clone(), status.clone()),
        &one_pod(running(json!({}), ending)),
    );
    let status = plan.status.unwrap();
    assert_eq!(status.last_checkpoint, None, "it has not ended");
    assert_eq!(
        status.deadline.clone().unwrap().0.to_string(),
        "2026-11-15T12:00:20Z"
    );
    let status = serde_json::to_value(status).unwrap();
    let plan = planned(&workload(spec, status), &Seen::default());
    let status = plan.status.unwrap();
    assert_eq!(
        status.last_checkpoint.unwrap().by,
        CheckpointEvidence::Signal
    );
    assert_eq!((status.deadline, status.start_time), (None, None));
}
