//! Jobs and pods that somebody else suspends, deletes or disowns.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};
use warp_api::{Phase, reason};

use super::super::Seen;
use super::super::assess::Placeable;
use super::reading::{deadline, deletes, ended, failed_job, may, message, one_pod, planned, said};
use super::{job, pod, workload};

fn changed(attempt: i32, conditions: Value, change: &Value) -> Arc<Job> {
    let mut value = serde_json::to_value(&*job(attempt, conditions)).unwrap();
    for (part, fields) in change.as_object().into_iter().flatten() {
        for (key, field) in fields.as_object().into_iter().flatten() {
            value[part][key] = field.clone();
        }
    }
    Arc::new(serde_json::from_value(value).unwrap())
}

fn running() -> Value {
    json!({"phase": "Running", "jobName": "train-01234567-0", "assignedNode": "gpu-1", "retryCount": 0, "observedGeneration": 3})
}

#[test]
fn a_job_suspended_by_hand_is_said_and_keeps_no_gpu_and_no_deadline() {
    let suspended = changed(
        0,
        json!([{"type": "Suspended", "status": "True"}]),
        &json!({"spec": {"suspend": true}}),
    );
    let seen = Seen {
        jobs: vec![Arc::clone(&suspended)],
        ..Default::default()
    };
    let plan = planned(&workload(json!({}), running()), &seen);
    assert_eq!(
        said(&plan),
        (Phase::Pending, reason::JOB_SUSPENDED.to_owned(), false)
    );
    assert!(message(&plan).contains("kubectl patch job -n team train-01234567-0"));
    assert_eq!(deadline(&plan), None);
    let status = plan.status.as_ref().unwrap();
    assert_eq!(status.assigned_node, None);
    assert!(deletes(&plan).is_empty() && plan.place);
    let same = workload(json!({}), serde_json::to_value(status).unwrap());
    assert_eq!(may(&same, &seen), Placeable::No);
    assert_eq!(planned(&same, &seen).status.as_ref(), Some(status));

    // Its pod is still on its way out.
    let leaving =
        json!({"deletionTimestamp": "2026-11-15T12:00:20Z", "deletionGracePeriodSeconds": 30});
    let mut seen = one_pod(pod(leaving, json!({}), json!({"phase": "Running"})));
    seen.jobs = vec![suspended];
    let plan = planned(&workload(json!({}), running()), &seen);
    assert_eq!(said(&plan).1, reason::JOB_SUSPENDED);
    assert!(message(&plan).contains("when train-01234567-0-abcde has ended"));
}

#[test]
fn a_resumed_job_has_its_whole_time_to_start() {
    let resumed = changed(
        0,
        json!([{"type": "Suspended", "status": "False", "lastTransitionTime": "2026-11-15T11:59:30Z"}]),
        &json!({"metadata": {"creationTimestamp": "2026-11-15T08:00:00Z"}}),
    );
    let seen = Seen {
        jobs: vec![resumed],
        ..Default::default()
    };
    let plan = planned(&workload(json!({}), running()), &seen);
    assert_eq!(said(&plan).1, reason::PLACED);
    assert_eq!(deadline(&plan).as_deref(), Some("2026-11-15T12:29:30Z"));
}

#[test]
fn a_job_deleted_by_hand_is_said_and_made_again() {
    let plan = planned(&workload(json!({}), running()), &Seen::default());
    assert_eq!(
        said(&plan),
        (Phase::Pending, reason::JOB_DELETED.to_owned(), false)
    );
    assert_eq!(plan.events[0].reason, reason::JOB_DELETED);
    assert!(message(&plan).contains("train-01234567-0 was deleted by hand"));

    // While its pod still ends, and in the passes after.
    let leaving =
        json!({"deletionTimestamp": "2026-11-15T12:00:20Z", "deletionGracePeriodSeconds": 30});
    let mut seen = one_pod(pod(leaving, json!({}), json!({"phase": "Running"})));
    seen.jobs = Vec::new();
    let plan = planned(&workload(json!({}), running()), &seen);
    assert_eq!(said(&plan).1, reason::JOB_DELETED);
    let status = plan.status.as_ref().unwrap();
    assert_eq!(status.job_name, None);
    let next = workload(json!({}), serde_json::to_value(status).unwrap());
    assert_eq!(planned(&next, &seen).status.as_ref(), Some(status));
    assert!(planned(&next, &seen).events.is_empty());
}

fn left_behind(owner: Value, status: Value) -> Seen {
    let meta = json!({
        "ownerReferences": owner,
        "labels": {
            "gpu.warp.dev/workload": "train", "gpu.warp.dev/workload-uid": "0123456789abcdef",
            "gpu.warp.dev/attempt": "0", "batch.kubernetes.io/job-name": "train-01234567-0"
        }
    });
    let mut seen = one_pod(pod(meta, json!({}), status));
    seen.jobs = Vec::new();
    seen
}

#[test]
fn a_pod_left_without_its_job_is_followed_to_its_end() {
    let going = left_behind(json!([]), json!({"phase": "Running"}));
    let plan = planned(&workload(json!({}), running()), &going);
    assert_eq!(
        said(&plan),
        (Phase::Running, reason::JOB_ORPHANED.to_owned(), true)
    );
    let status = plan.status.as_ref().unwrap();
    assert_eq!(status.job_name.as_deref(), Some("train-01234567-0"));
    assert_eq!(deadline(&plan), None);
    let same = workload(json!({}), serde_json::to_value(status).unwrap());
    assert_eq!(may(&same, &going), Placeable::No);
    assert_eq!(planned(&same, &going).status.as_ref(), Some(status));

    let done = left_behind(json!([]), json!({"phase": "Succeeded"}));
    assert_eq!(said(&planned(&same, &done)).0, Phase::Succeeded);
    let failed = planned(&same, &left_behind(json!([]), ended(3, "Error")));
    assert_eq!(said(&failed).1, reason::RETRY_BACKOFF);
    assert!(message(&failed).contains("exit code 3"));

    // A Job that lost its owner still has its pod.
    let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-0", "controller": true}]);
    let mut disowned = left_behind(owner.clone(), json!({"phase": "Running"}));
    let collected = planned(&workload(json!({}), running()), &disowned);
    assert_eq!(
        said(&collected).1,
        reason::JOB_DELETED,
        "about to be collected"
    );
    // It is remembered until the garbage collector has decided, in whatever order that is heard of.
    let remembered = |seen: &Seen| {
        let plan = planned(&workload(json!({}), running()), seen);
        plan.status.and_then(|status| status.job_name).is_some()
    };
    assert!(remembered(&disowned));
    let mut deleting = Seen::default();
    let going = json!({"metadata": {"deletionTimestamp": "2026-11-15T11:59:59Z"}});
    deleting.jobs = vec![changed(0, json!([]), &going)];
    assert!(remembered(&deleting));
    assert!(!remembered(&Seen::default()));
    disowned.strays = vec![job(0, json!([]))];
    let plan = planned(&workload(json!({}), running()), &disowned);
    assert_eq!(said(&plan).1, reason::JOB_ORPHANED);
}

#[test]
fn a_pod_that_only_looks_like_ours_decides_nothing() {
    let forged = left_behind(json!([]), json!({"phase": "Succeeded"}));
    for status in [
        json!(null),
        json!({"phase": "Running", "jobName": "another", "retryCount": 0}),
    ] {
        let plan = planned(&workload(json!({}), status), &forged);
        assert_ne!(said(&plan).0, Phase::Succeeded);
    }
}

#[test]
fn max_runtime_is_never_retried_however_fast_the_pod_goes() {
    let spec = json!({"maxRuntime": "60s"});
    let limit = json!({
        "spec": {"activeDeadlineSeconds": 60},
        "status": {"startTime": "2026-11-15T11:58:30Z"}
    });
    let ran = |conditions: Value| changed(0, conditions, &limit);
    let too_long = |seen: &Seen, what: &str| {
        let plan = planned(&workload(spec.clone(), running()), seen);
        let want = (
            Phase::Failed,
            reason::MAX_RUNTIME_EXCEEDED.to_owned(),
            false,
        );
        assert_eq!(said(&plan), want, "{what}");
    };
    let at = "2026-11-15T11:59:30Z";
    let failed = |reason: &str| json!([{"type": "Failed", "status": "True", "reason": reason, "lastTransitionTime": at}]);
    // Deleted at once, before the Job said anything.
    let gone = json!({"deletionTimestamp": at, "deletionGracePeriodSeconds": 0});
    let mut seen = one_pod(pod(gone.clone(), json!({}), json!({"phase": "Running"})));
    seen.jobs = vec![ran(json!([]))];
    too_long(&seen, "pod deleted by force");
    // Killed for it, and the Job counted the pod before its own deadline.
    let mut seen = one_pod(pod(gone, json!({}), ended(137, "Error")));
    seen.jobs = vec![ran(failed("BackoffLimitExceeded"))];
    too_long(&seen, "killed");
    // The pod is gone altogether.
    for reason in ["DeadlineExceeded", "BackoffLimitExceeded"] {
        seen.pods.clear();
        seen.jobs = vec![ran(failed(reason))];
        too_long(&seen, reason);
    }
    // Gone, and the Job has not said anything yet: it is asked again, not placed again.
    seen.jobs = vec![ran(json!([]))];
    let plan = planned(&workload(spec.clone(), running()), &seen);
    assert!(plan.status.is_none() && plan.steps.again.is_some());
    // A failure of its own before the deadline stays one.
    let mut seen = one_pod(pod(json!({}), json!({}), ended(1, "Error")));
    seen.jobs = vec![changed(0, failed_job("BackoffLimitExceeded"), &limit)];
    let plan = planned(&workload(spec, running()), &seen);
    assert_eq!(plan.events[0].reason, reason::NON_ZERO_EXIT);
}
