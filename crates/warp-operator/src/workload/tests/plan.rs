use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::{Value, json};
use warp_api::{GPUWorkload, GPUWorkloadStatus, Phase, condition, label, reason};

use super::super::plan::{backoff, plan};
use super::super::{Seen, Wish, wish};
use super::{job, node, now, pod, workload};
use crate::config::Settings;
use crate::plan::{Change, Plan};
use crate::scheduler::Verdict;

const READY_NODE: &str = "2026-11-15T10:00:00Z";

fn planned(workload: &GPUWorkload, seen: &Seen) -> Plan<GPUWorkloadStatus> {
    planned_at(workload, seen, now())
}

fn planned_at(workload: &GPUWorkload, seen: &Seen, at: Timestamp) -> Plan<GPUWorkloadStatus> {
    plan(workload, seen, &Settings::default(), at)
}

/// Phase, `Ready` reason and whether it is true.
fn said(plan: &Plan<GPUWorkloadStatus>) -> (Phase, String, bool) {
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

fn message(plan: &Plan<GPUWorkloadStatus>) -> String {
    plan.status
        .as_ref()
        .and_then(|status| status.message.clone())
        .unwrap_or_default()
}

fn deletes(plan: &Plan<GPUWorkloadStatus>) -> Vec<(String, String)> {
    let deleted = plan.writes.iter().filter_map(|write| match &write.what {
        Change::Delete(target) => Some((target.resource.kind.clone(), target.name.clone())),
        _ => None,
    });
    deleted.collect()
}

fn one_pod(pod: Arc<Pod>) -> Seen {
    Seen {
        jobs: vec![job(0, json!([]))],
        pods: vec![pod],
        nodes: BTreeMap::from([("gpu-1".to_owned(), node("True", READY_NODE))]),
        ..Default::default()
    }
}

fn waiting(reason: &str, message: &str) -> Value {
    json!({"phase": "Pending", "containerStatuses": [{
        "name": "main", "image": "img:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": reason, "message": message}}
    }]})
}

fn ended(code: i32, reason: &str) -> Value {
    json!({"phase": "Failed", "containerStatuses": [{
        "name": "main", "image": "img:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "reason": reason}}
    }]})
}

fn unschedulable(message: &str) -> Arc<Pod> {
    let status = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]});
    pod(json!({}), json!({"nodeName": null}), status)
}

fn failed_job(reason: &str) -> Value {
    json!([{"type": "Failed", "status": "True", "reason": reason}])
}

#[test]
fn phases_follow_the_job_and_its_pod() {
    let bound = json!({"nodeName": null});
    let cases: [(&str, Seen, (Phase, &str, bool)); 6] = [
        (
            "no pod yet",
            Seen {
                jobs: vec![job(0, json!([]))],
                ..Default::default()
            },
            (Phase::Scheduling, reason::PLACED, false),
        ),
        (
            "not bound",
            one_pod(pod(json!({}), bound, json!({"phase": "Pending"}))),
            (Phase::Scheduling, reason::PLACED, false),
        ),
        (
            "starting",
            one_pod(pod(json!({}), json!({}), waiting("ContainerCreating", ""))),
            (Phase::Scheduled, reason::STARTING, false),
        ),
        (
            "running",
            one_pod(pod(json!({}), json!({}), json!({"phase": "Running"}))),
            (Phase::Running, reason::RUNNING, true),
        ),
        (
            "complete",
            Seen {
                jobs: vec![job(0, json!([{"type": "Complete", "status": "True"}]))],
                ..Default::default()
            },
            (Phase::Succeeded, reason::SUCCEEDED, true),
        ),
        (
            "refused by admission",
            Seen {
                jobs: vec![job(0, json!([]))],
                refusals: BTreeMap::from([("job-0".to_owned(), "exceeded quota: gpus".to_owned())]),
                ..Default::default()
            },
            (Phase::Scheduling, reason::PODS_REFUSED, false),
        ),
    ];
    for (name, seen, (phase, reason, ready)) in cases {
        let plan = planned(&workload(json!({}), json!(null)), &seen);
        assert_eq!(said(&plan), (phase, reason.to_owned(), ready), "{name}");
        let status = plan.status.as_ref().expect("a status");
        assert_eq!(status.assigned_node.as_deref(), Some("gpu-1"), "{name}");
        assert!(plan.writes.is_empty(), "{name}");
    }
}

#[test]
fn a_job_that_vanished_is_taken_from_the_status_before_another_is_made() {
    let running = json!({"phase": "Running", "jobName": "train-01234567-0", "retryCount": 0, "observedGeneration": 3});
    let workload = workload(json!({}), running);
    let nothing = Seen::default();
    let settings = Settings::default();
    assert_eq!(wish(&workload, &nothing, &settings, now()), Wish::No);
    let plan = planned(&workload, &nothing);
    assert!(plan.place, "the scheduler is woken once that is written");
    let mut corrected = workload.clone();
    corrected.status = plan.status;
    assert_eq!(
        corrected
            .status
            .as_ref()
            .and_then(|status| status.job_name.as_ref()),
        None
    );
    assert_eq!(wish(&corrected, &nothing, &settings, now()), Wish::Now);
}

#[test]
fn a_run_that_nobody_watched_has_a_beginning_all_the_same() {
    let began = "2026-11-15T11:30:00Z";
    let state = json!({"terminated": {"exitCode": 0, "startedAt": began}});
    let status = json!({"phase": "Succeeded", "startTime": "2026-11-15T11:29:00Z", "containerStatuses": [
        {"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state},
    ]});
    let seen = Seen {
        jobs: vec![job(0, json!([{"type": "Complete", "status": "True"}]))],
        ..one_pod(pod(json!({}), json!({}), status))
    };
    let start = |status: Value| {
        let plan = planned(&workload(json!({}), status), &seen);
        let start = plan.status.and_then(|status| status.start_time);
        start.map(|time| time.0.to_string())
    };
    assert_eq!(start(json!(null)).as_deref(), Some(began));
    // Once said it stays.
    let said = "2026-11-15T11:30:01Z";
    assert_eq!(
        start(json!({"phase": "Running", "startTime": said})).as_deref(),
        Some(said)
    );
}

#[test]
fn trouble_at_the_start_names_cause_next_step_and_deadline() {
    let cases = [
        (
            waiting("ErrImagePull", "not found"),
            reason::IMAGE_PULL_FAILED,
            "check its name",
        ),
        (
            waiting("ImagePullBackOff", "Back-off"),
            reason::IMAGE_PULL_FAILED,
            "img:1",
        ),
        (
            waiting("CreateContainerConfigError", "secret \"s\" not found"),
            reason::CONTAINER_CREATE_FAILED,
            "secret",
        ),
    ];
    for (status, want, words) in cases {
        let plan = planned(
            &workload(json!({}), json!(null)),
            &one_pod(pod(json!({}), json!({}), status)),
        );
        assert_eq!(said(&plan), (Phase::Scheduled, want.to_owned(), false));
        assert!(message(&plan).contains(words), "{}", message(&plan));
        let deadline = plan
            .status
            .as_ref()
            .and_then(|status| status.deadline.clone());
        assert_eq!(
            deadline.map(|time| time.0.to_string()).as_deref(),
            Some("2026-11-15T12:29:00Z")
        );
    }
    let missing = planned(
        &workload(json!({}), json!(null)),
        &one_pod(unschedulable(
            "0/3 nodes are available: persistentvolumeclaim \"set\" not found",
        )),
    );
    assert_eq!(said(&missing).1, reason::VOLUME_NOT_READY);
    assert!(deletes(&missing).is_empty(), "another node would not help");
}

#[test]
fn a_pull_error_is_written_once_although_the_kubelet_alternates() {
    let first = planned(
        &workload(json!({}), json!(null)),
        &one_pod(pod(
            json!({}),
            json!({}),
            waiting("ErrImagePull", "not found"),
        )),
    );
    let status = serde_json::to_value(first.status.as_ref()).unwrap();
    let second = planned(
        &workload(json!({}), status),
        &one_pod(pod(
            json!({}),
            json!({}),
            waiting("ImagePullBackOff", "Back-off"),
        )),
    );
    assert_eq!(second.status, first.status);
}

#[test]
fn a_start_that_takes_too_long_fails_the_attempt() {
    let old = |mut seen: Seen| {
        let mut job = (*seen.jobs[0]).clone();
        job.metadata.creation_timestamp =
            serde_json::from_value(json!("2026-11-15T11:29:59Z")).unwrap();
        seen.jobs[0] = Arc::new(job);
        seen
    };
    let pull = old(one_pod(pod(
        json!({}),
        json!({}),
        waiting("ErrImagePull", "not found"),
    )));
    let plan = planned(&workload(json!({}), json!(null)), &pull);
    assert_eq!(
        said(&plan),
        (Phase::Pending, reason::RETRY_BACKOFF.to_owned(), false)
    );
    assert!(
        deletes(&plan).is_empty(),
        "the count is written down before the Job goes"
    );
    assert_eq!(plan.again, Some(now()));
    let next = workload(json!({}), serde_json::to_value(plan.status).unwrap());
    assert_eq!(
        deletes(&planned(&next, &pull)),
        [("Job".to_owned(), "train-01234567-0".to_owned())]
    );
}

#[test]
fn failures_are_explained_and_retried_with_the_deadline_in_status() {
    let cases = [
        (ended(3, "Error"), reason::NON_ZERO_EXIT, "exit code 3"),
        (ended(137, "OOMKilled"), reason::OUT_OF_MEMORY, "memory"),
        (
            json!({"phase": "Failed", "reason": "Evicted"}),
            reason::EVICTED,
            "Evicted",
        ),
        (
            json!({"phase": "Failed", "conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]}),
            reason::NODE_LOST,
            "gpu-1",
        ),
    ];
    for (status, want, words) in cases {
        let mut seen = one_pod(pod(json!({}), json!({}), status));
        seen.jobs = vec![job(0, failed_job("BackoffLimitExceeded"))];
        let plan = planned(&workload(json!({}), json!(null)), &seen);
        assert_eq!(
            said(&plan),
            (Phase::Pending, reason::RETRY_BACKOFF.to_owned(), false)
        );
        assert!(
            message(&plan).contains(words) && message(&plan).contains("retry 1 of 3"),
            "{}",
            message(&plan)
        );
        assert_eq!(plan.events[0].reason, want);
        let status = plan.status.as_ref().expect("a status");
        assert_eq!(status.retry_count, Some(1));
        let next = status.next_retry_time.as_ref().expect("a time").0;
        assert!((30..=33).contains(&next.duration_since(now()).as_secs()));
        // A restart reads the same from the status and waits for the same moment.
        let again = workload(json!({}), serde_json::to_value(status).unwrap());
        assert_eq!(
            wish(&again, &seen, &Settings::default(), now()),
            Wish::Later(next)
        );
        assert_eq!(
            planned(&again, &seen).status.as_ref(),
            Some(status),
            "nothing to write"
        );
    }
}

#[test]
fn the_last_retry_and_hopeless_failures_end_in_failed() {
    let mut seen = one_pod(pod(
        json!({"ownerReferences": []}),
        json!({}),
        ended(1, "Error"),
    ));
    seen.jobs = vec![job(3, failed_job("BackoffLimitExceeded"))];
    let used = workload(json!({}), json!({"phase": "Running", "retryCount": 3}));
    let plan = planned(&used, &seen);
    assert_eq!(said(&plan).0, Phase::Failed);
    assert_eq!(plan.events[0].reason, reason::EVENT_MAX_RETRIES);
    assert!(
        plan.status
            .as_ref()
            .is_some_and(|status| status.completion_time.is_some())
    );

    seen.jobs = vec![job(0, failed_job("DeadlineExceeded"))];
    let late = planned(&workload(json!({"maxRuntime": "1h"}), json!(null)), &seen);
    assert_eq!(
        said(&late),
        (
            Phase::Failed,
            reason::MAX_RUNTIME_EXCEEDED.to_owned(),
            false
        )
    );
    assert!(message(&late).contains("1h"));

    let invalid = one_pod(pod(
        json!({}),
        json!({}),
        waiting("InvalidImageName", "bad"),
    ));
    let plan = planned(&workload(json!({}), json!(null)), &invalid);
    assert_eq!(
        said(&plan),
        (Phase::Failed, reason::INVALID_IMAGE_NAME.to_owned(), false)
    );
    // Its Job still holds GPUs; the pass after the one that wrote the end lets them go.
    let over = workload(json!({}), serde_json::to_value(plan.status).unwrap());
    assert_eq!(deletes(&planned(&over, &invalid)).len(), 1);
}

#[test]
fn a_refused_placement_is_written_down_then_undone_and_costs_no_retry() {
    let seen = one_pod(unschedulable(
        "0/3 nodes are available: 1 Insufficient nvidia.com/gpu",
    ));
    let first = planned(&workload(json!({}), json!(null)), &seen);
    assert_eq!(
        said(&first),
        (Phase::Pending, reason::PLACEMENT_REFUSED.to_owned(), false)
    );
    assert!(deletes(&first).is_empty());
    let status = first.status.expect("a status");
    assert_eq!(
        (status.refused_nodes[0].name.as_str(), status.retry_count),
        ("gpu-1", Some(0))
    );
    let second = planned(
        &workload(json!({}), serde_json::to_value(&status).unwrap()),
        &seen,
    );
    assert_eq!(deletes(&second).len(), 1);
    assert_eq!(second.status, Some(status), "nothing further to write");
}

#[test]
fn a_silent_node_gets_a_deadline_and_only_then_counts_as_lost() {
    let running = pod(json!({}), json!({}), json!({"phase": "Running"}));
    let silent = |since: &str| Seen {
        nodes: BTreeMap::from([("gpu-1".to_owned(), node("Unknown", since))]),
        ..one_pod(Arc::clone(&running))
    };
    let plan = planned(
        &workload(json!({}), json!(null)),
        &silent("2026-11-15T11:58:00Z"),
    );
    assert_eq!(
        said(&plan),
        (Phase::Running, reason::NODE_LOST.to_owned(), false)
    );
    let deadline = plan
        .status
        .as_ref()
        .and_then(|status| status.deadline.clone());
    assert_eq!(
        deadline.map(|time| time.0.to_string()).as_deref(),
        Some("2026-11-15T12:03:00Z")
    );

    let lost = planned(
        &workload(json!({}), json!(null)),
        &silent("2026-11-15T11:54:00Z"),
    );
    assert_eq!(said(&lost).1, reason::RETRY_BACKOFF);
    assert_eq!(lost.events[0].reason, reason::NODE_LOST);
}

#[test]
fn the_next_attempt_waits_until_the_last_one_provably_cannot_run() {
    let due = json!({"phase": "Pending", "retryCount": 1, "nextRetryTime": "2026-11-15T11:59:59Z"});
    let retry = workload(json!({}), due);
    let leaving =
        json!({"deletionTimestamp": "2026-11-15T11:59:00Z", "deletionGracePeriodSeconds": 30});
    let forced =
        json!({"deletionTimestamp": "2026-11-15T11:59:00Z", "deletionGracePeriodSeconds": 0});
    let running = json!({"phase": "Running"});
    let out = Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": "gpu-1"},
            "spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}
        }))
        .unwrap(),
    );
    let cases = [
        (
            "still running",
            pod(json!({}), json!({}), running.clone()),
            Some(node("True", READY_NODE)),
            Wish::No,
        ),
        (
            "terminating",
            pod(leaving, json!({}), running.clone()),
            Some(node("True", READY_NODE)),
            Wish::No,
        ),
        (
            "deleted by force",
            pod(forced, json!({}), running.clone()),
            Some(node("True", READY_NODE)),
            Wish::Now,
        ),
        (
            "ended",
            pod(json!({}), json!({}), ended(1, "Error")),
            Some(node("True", READY_NODE)),
            Wish::Now,
        ),
        (
            "node gone",
            pod(json!({}), json!({}), running.clone()),
            None,
            Wish::Now,
        ),
        (
            "out of service",
            pod(json!({}), json!({}), running.clone()),
            Some(out),
            Wish::Now,
        ),
        (
            "silent",
            pod(json!({}), json!({}), running.clone()),
            Some(node("Unknown", "2026-11-15T11:58:00Z")),
            Wish::No,
        ),
        (
            "silent too long",
            pod(json!({}), json!({}), running),
            Some(node("Unknown", "2026-11-15T11:50:00Z")),
            Wish::Now,
        ),
    ];
    for (name, pod, node, want) in cases {
        let nodes = node
            .map(|node| ("gpu-1".to_owned(), node))
            .into_iter()
            .collect();
        let seen = Seen {
            pods: vec![pod],
            nodes,
            ..Default::default()
        };
        assert_eq!(
            wish(&retry, &seen, &Settings::default(), now()),
            want,
            "{name}"
        );
    }
    let unfinished = Seen {
        jobs: vec![job(0, json!([]))],
        ..Default::default()
    };
    assert_eq!(
        wish(&retry, &unfinished, &Settings::default(), now()),
        Wish::No,
        "its old job still exists"
    );
}

#[test]
fn suspending_gives_the_gpus_back_and_resuming_uses_no_retry() {
    let running = one_pod(pod(json!({}), json!({}), json!({"phase": "Running"})));
    let plan = planned(
        &workload(json!({"suspend": true}), json!({"retryCount": 1})),
        &Seen {
            jobs: vec![job(1, json!([]))],
            ..running.clone()
        },
    );
    assert_eq!(
        said(&plan),
        (Phase::Pending, reason::SUSPENDED.to_owned(), false)
    );
    assert_eq!(
        deletes(&plan),
        [("Job".to_owned(), "train-01234567-1".to_owned())]
    );
    let status = plan.status.expect("a status");
    assert_eq!(
        (status.retry_count, status.assigned_node.as_deref()),
        (Some(1), None)
    );
    let resumed = workload(json!({}), serde_json::to_value(status).unwrap());
    assert_eq!(
        wish(&resumed, &Seen::default(), &Settings::default(), now()),
        Wish::Now
    );
}

#[test]
fn a_changed_run_time_reaches_the_job() {
    let seen = one_pod(pod(json!({}), json!({}), json!({"phase": "Running"})));
    let plan = planned(&workload(json!({"maxRuntime": "1h"}), json!(null)), &seen);
    let Change::Merge(target, patch) = &plan.writes[0].what else {
        panic!("a patch")
    };
    assert_eq!(target.resource_version, "9");
    assert_eq!(patch, &json!({"spec": {"activeDeadlineSeconds": 3600}}));
}

#[test]
fn a_finished_workload_is_deleted_when_its_time_has_passed_and_not_before() {
    let done = |ended: &str| json!({"phase": "Succeeded", "completionTime": ended, "observedGeneration": 3});
    let spec = json!({"ttlSecondsAfterFinished": 60});
    let old = planned(
        &workload(spec.clone(), done("2026-11-15T11:59:00Z")),
        &Seen::default(),
    );
    assert_eq!(
        deletes(&old),
        [("GPUWorkload".to_owned(), "train".to_owned())]
    );
    let young = planned(
        &workload(spec, done("2026-11-15T11:59:30Z")),
        &Seen::default(),
    );
    assert!(deletes(&young).is_empty());
    assert_eq!(
        young.again.map(|at| at.to_string()).as_deref(),
        Some("2026-11-15T12:00:30Z")
    );
}

#[test]
fn waiting_shows_the_schedulers_verdict_and_uses_no_retry() {
    let verdict = Verdict {
        reason: reason::NEVER_FITS,
        message: "12 on 8".to_owned(),
    };
    let seen = Seen {
        verdict: Some(verdict),
        ..Default::default()
    };
    let plan = planned(&workload(json!({}), json!(null)), &seen);
    assert_eq!(
        said(&plan),
        (Phase::Pending, reason::NEVER_FITS.to_owned(), false)
    );
    assert!(plan.place);
    assert_eq!(plan.status.and_then(|status| status.retry_count), Some(0));
    let bad = planned(
        &workload(json!({"gpu": {"models": ["Z9"]}}), json!(null)),
        &Seen::default(),
    );
    assert_eq!(said(&bad).1, reason::INVALID_SPEC);
    assert!(!bad.place);
}

#[test]
fn a_workload_under_deletion_is_left_to_the_garbage_collector() {
    let mut gone = workload(json!({}), json!(null));
    gone.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-11-15T12:00:00Z")).unwrap();
    let seen = one_pod(pod(json!({}), json!({}), json!({"phase": "Running"})));
    assert_eq!(planned(&gone, &seen), Plan::nothing());
    assert_eq!(
        wish(&gone, &Seen::default(), &Settings::default(), now()),
        Wish::No
    );
}

proptest! {
    #[test]
    fn backoff_doubles_within_its_bounds_and_is_reproducible(base in 1..=300_i32, used in 0..=20_i32, uid in "[a-f0-9]{8}") {
        let wait = backoff(base, used, &uid);
        let plain = i64::from(base).saturating_mul(1 << used.min(10)).min(300);
        prop_assert!(wait >= plain && wait <= plain + plain / 10);
        prop_assert_eq!(wait, backoff(base, used, &uid));
    }

    /// Whatever was seen, a pass repeated on what it wrote writes the same status and adds nothing.
    #[test]
    fn a_repeated_pass_settles(
        phase in prop::sample::select(vec!["Pending", "Running", "Failed", "Succeeded"]),
        waits in prop::sample::select(vec!["", "ErrImagePull", "InvalidImageName", "ContainerCreating"]),
        job_says in prop::sample::select(vec!["", "Complete", "Failed", "FailureTarget"]),
        bound in any::<bool>(),
        suspend in any::<bool>(),
        ready in prop::sample::select(vec!["True", "Unknown"]),
        retries in 0..4_i32,
    ) {
        let conditions = if job_says.is_empty() { json!([]) } else { json!([{"type": job_says, "status": "True"}]) };
        let mut status = if waits.is_empty() { json!({}) } else { waiting(waits, "x") };
        status["phase"] = json!(phase);
        let spec = if bound { json!({}) } else { json!({"nodeName": null}) };
        let seen = Seen {
            jobs: vec![job(retries, conditions)],
            nodes: BTreeMap::from([("gpu-1".to_owned(), node(ready, "2026-11-15T11:58:00Z"))]),
            ..one_pod(pod(json!({"ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": format!("job-{retries}")}]}), spec, status))
        };
        let mut current = workload(json!({"suspend": suspend}), json!({"retryCount": retries}));
        for _ in 0..3 {
            let plan = planned(&current, &seen);
            if let Some(status) = plan.status {
                current.status = Some(status);
            }
        }
        let settled = planned(&current, &seen);
        prop_assert_eq!(settled.status.or_else(|| current.status.clone()), current.status.clone());
    }
}

#[test]
fn a_pod_deleted_by_force_on_a_healthy_node_is_no_lost_node() {
    let gone = json!({
        "deletionTimestamp": "2026-11-15T11:59:30Z", "deletionGracePeriodSeconds": 0,
    });
    let seen = one_pod(pod(gone, json!({}), json!({"phase": "Running"})));
    let plan = planned(&workload(json!({}), json!(null)), &seen);
    assert_eq!(said(&plan).1, reason::RETRY_BACKOFF);
    assert!(
        message(&plan).contains("deleted by force"),
        "{}",
        message(&plan)
    );
}

#[test]
fn a_pod_the_scheduler_makes_room_for_is_waited_for() {
    let mut nominated =
        (*unschedulable("0/1 nodes are available: 1 Insufficient nvidia.com/gpu")).clone();
    let status = nominated.status.as_mut().expect("a status");
    status.nominated_node_name = Some("gpu-1".to_owned());
    let plan = planned(
        &workload(json!({}), json!(null)),
        &one_pod(Arc::new(nominated)),
    );
    assert_eq!(
        said(&plan),
        (Phase::Scheduling, reason::PLACED.to_owned(), false)
    );
    assert!(plan.writes.is_empty());
}

#[test]
fn a_node_that_lacked_room_is_left_out_only_for_a_moment() {
    for (message, seconds) in [
        ("0/1 nodes are available: 1 Insufficient nvidia.com/gpu", 10),
        (
            "0/1 nodes are available: 1 node(s) had volume node affinity conflict",
            300,
        ),
    ] {
        let plan = planned(
            &workload(json!({}), json!(null)),
            &one_pod(unschedulable(message)),
        );
        let status = plan.status.as_ref().expect("a status");
        let until = status.refused_nodes[0].until.0;
        assert_eq!(until.duration_since(now()).as_secs(), seconds, "{message}");
    }
}

/// Refusals one after the other, each of another of `nodes` nodes; when each was tried, in seconds.
fn refused_again_and_again(times: usize, nodes: usize, message: &str) -> Vec<i64> {
    let mut at = now();
    let mut status = json!(null);
    let mut tried = Vec::new();
    for number in 0..times {
        tried.push(at.duration_since(now()).as_secs());
        let mut seen = one_pod(unschedulable(message));
        let job = Arc::make_mut(&mut seen.jobs[0]);
        job.metadata.uid = Some(format!("job-{number}"));
        let annotations = job.metadata.annotations.get_or_insert_default();
        let node = format!("gpu-{}", number % nodes);
        annotations.insert(label::NODE.to_owned(), node);
        for pod in &mut seen.pods {
            let owners = Arc::make_mut(pod).metadata.owner_references.as_mut();
            owners.unwrap()[0].uid = format!("job-{number}");
        }
        let plan = planned_at(&workload(json!({}), status.clone()), &seen, at);
        assert_eq!(said(&plan).1, reason::PLACEMENT_REFUSED, "{plan:?}");
        let after = plan.status.expect("a status");
        assert!(after.refused_nodes.len() <= 16);
        let next = after.next_retry_time.as_ref().map_or(at, |time| time.0);
        status = serde_json::to_value(&after).unwrap();
        // Its Job is gone: it waits until then, and says why.
        let later = planned_at(&workload(json!({}), status.clone()), &Seen::default(), at);
        if next > at {
            assert_eq!(later.again, Some(next));
            assert_eq!(said(&later).1, reason::PLACEMENT_REFUSED);
            assert_eq!(later.status, Some(after), "nothing further to write");
        }
        at = at.max(next);
    }
    tried
}

#[test]
fn a_workload_refused_everywhere_tries_ever_less_often() {
    for message in ["Insufficient memory", "node(s) were unhappy"] {
        // More nodes than are remembered, and one alone.
        for nodes in [24, 1] {
            let tried = refused_again_and_again(24, nodes, message);
            assert_eq!(tried[..8], [0; 8], "others are tried at once");
            let waits: Vec<i64> = tried.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(waits.is_sorted(), "{waits:?}");
            assert_eq!(waits.last(), Some(&600), "{waits:?}");
        }
    }
}

#[test]
fn refusals_are_forgotten_when_it_runs_and_after_an_hour() {
    let message = "Insufficient memory";
    let refused = |until: &str| {
        json!({"phase": "Pending", "refusals": 20,
            "refusedNodes": [{"name": "gpu-9", "jobUid": "old", "until": until}]})
    };
    for (until, refusals) in [("2026-11-15T10:59:59Z", 1), ("2026-11-15T11:59:59Z", 21)] {
        let seen = one_pod(unschedulable(message));
        let plan = planned(&workload(json!({}), refused(until)), &seen);
        assert_eq!(plan.status.expect("a status").refusals, Some(refusals));
    }
    let running = one_pod(pod(json!({}), json!({}), json!({"phase": "Running"})));
    let status = refused("2026-11-15T11:59:59Z");
    let plan = planned(&workload(json!({}), status), &running);
    assert_eq!(plan.status.expect("a status").refusals, None);
}

#[test]
fn a_job_that_is_about_to_say_how_it_failed_is_not_deleted() {
    let target =
        json!([{"type": "FailureTarget", "status": "True", "reason": "BackoffLimitExceeded"}]);
    let seen = |attempt| Seen {
        jobs: vec![job(attempt, target.clone())],
        ..Default::default()
    };
    let over = json!({"phase": "Failed", "completionTime": "2026-11-15T11:59:59Z"});
    assert!(deletes(&planned(&workload(json!({}), over), &seen(0))).is_empty());
    let second = json!({"phase": "Pending", "retryCount": 1});
    assert!(deletes(&planned(&workload(json!({}), second), &seen(0))).is_empty());
}
