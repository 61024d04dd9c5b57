//! Attempts the cluster takes off their node: no failure, and no retry.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use warp_api::{Phase, reason};

use super::super::assess::Placeable;
use super::super::plan::plan;
use super::super::{Seen, attempt};
use super::reading::{deletes, ended, failed_job, may, message, one_pod, planned, said};
use super::{job, node, now, pod, workload};
use crate::config::Settings;

fn target(why: &str) -> Value {
    json!({"phase": "Failed", "conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": why}]})
}

/// The attempt's Job failed and its pod says so.
fn failed(status: Value) -> Seen {
    let mut seen = one_pod(pod(json!({}), json!({}), status));
    seen.jobs = vec![job(0, failed_job("PodFailurePolicy"))];
    seen
}

#[test]
fn a_disruption_uses_no_retry_and_names_itself_and_the_node() {
    let kubelet = json!({"phase": "Failed", "reason": "NodeShutdown", "conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]});
    let refused = json!({"phase": "Failed", "reason": "OutOfnvidia.com/gpu"});
    let cases = [
        (target("EvictionByEvictionAPI"), reason::EVICTED, "drain"),
        (target("DeletionByTaintManager"), reason::EVICTED, "taint"),
        (
            target("PreemptionByScheduler"),
            reason::PREEMPTED,
            "priority",
        ),
        (target("DeletionByPodGC"), reason::NODE_LOST, "lost"),
        (target("SomethingNew"), reason::EVICTED, "SomethingNew"),
        (kubelet, reason::EVICTED, "NodeShutdown"),
        (refused, reason::REFUSED_BY_NODE, "OutOfnvidia.com/gpu"),
    ];
    for (status, want, words) in cases {
        let plan = planned(&workload(json!({}), json!(null)), &failed(status));
        assert_eq!(
            said(&plan),
            (Phase::Pending, reason::DISRUPTED.to_owned(), false)
        );
        let text = message(&plan);
        for part in [
            words,
            "gpu-1",
            "no retry is used",
            "disruption 1 of at most 50",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(plan.events[0].reason, want);
        let status = plan.status.as_ref().expect("a status");
        assert_eq!(status.retry_count, Some(0));
        assert_eq!(status.disruptions, Some(1));
        assert_eq!(status.job_name, None);
    }
}

#[test]
fn what_the_job_recorded_outlives_its_pod() {
    let seen = Seen {
        jobs: vec![job(0, failed_job("PodFailurePolicy"))],
        ..Default::default()
    };
    let plan = planned(&workload(json!({}), json!(null)), &seen);
    assert_eq!(said(&plan).1, reason::DISRUPTED);
    assert!(message(&plan).contains("gpu-1"), "{}", message(&plan));
}

#[test]
fn a_taint_on_a_node_that_does_not_answer_is_a_lost_node() {
    let mut seen = failed(target("DeletionByTaintManager"));
    seen.nodes = BTreeMap::from([("gpu-1".to_owned(), node("Unknown", "2026-11-15T11:59:00Z"))]);
    let plan = planned(&workload(json!({}), json!(null)), &seen);
    assert_eq!(plan.events[0].reason, reason::NODE_LOST);
}

#[test]
fn the_next_attempt_has_a_number_of_its_own_and_starts_at_once() {
    let seen = failed(target("EvictionByEvictionAPI"));
    let plan = planned(&workload(json!({}), json!({"retryCount": 0})), &seen);
    let next = workload(json!({}), serde_json::to_value(plan.status).unwrap());
    assert_eq!(attempt(&next), 1);
    assert_eq!(may(&next, &seen), Placeable::Now);
    let again = planned(&next, &seen);
    assert!(again.place, "the scheduler is woken");
    // A failure later on counts its retries from the first.
    let mut seen = one_pod(pod(
        json!({"ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-1"}]}),
        json!({}),
        ended(3, "Error"),
    ));
    seen.jobs = vec![job(1, failed_job("BackoffLimitExceeded"))];
    let failed = planned(&next, &seen);
    assert!(
        message(&failed).starts_with("attempt 2 failed")
            && message(&failed).contains("retry 1 of 3"),
        "{}",
        message(&failed)
    );
    assert_eq!(failed.status.and_then(|status| status.disruptions), Some(1));
}

#[test]
fn a_job_of_a_disrupted_attempt_that_still_runs_is_deleted() {
    // The node is silent for too long; its Job is unfinished.
    let mut seen = one_pod(pod(json!({}), json!({}), json!({"phase": "Running"})));
    seen.nodes = BTreeMap::from([("gpu-1".to_owned(), node("Unknown", "2026-11-15T11:50:00Z"))]);
    let lost = planned(&workload(json!({}), json!(null)), &seen);
    assert_eq!(said(&lost).1, reason::DISRUPTED);
    assert!(deletes(&lost).is_empty(), "the count is written down first");
    let next = workload(json!({}), serde_json::to_value(lost.status).unwrap());
    assert_eq!(deletes(&planned(&next, &seen)).len(), 1);
}

#[test]
fn disruptions_are_bounded_by_their_own_limit_and_slow_down() {
    let spec = json!({"retryPolicy": {"maxDisruptions": 20}});
    let mut waits = Vec::new();
    let mut status = json!(null);
    for count in 0..=20 {
        let mut seen = failed(target("PreemptionByScheduler"));
        seen.jobs = vec![job(count, failed_job("PodFailurePolicy"))];
        let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": format!("job-{count}")}]);
        seen.pods = vec![pod(
            json!({"ownerReferences": owner}),
            json!({}),
            target("PreemptionByScheduler"),
        )];
        let plan = plan(
            &workload(spec.clone(), status),
            &seen,
            &Settings::default(),
            now(),
        );
        if count == 20 {
            assert_eq!(
                said(&plan),
                (Phase::Failed, reason::PREEMPTED.to_owned(), false)
            );
            assert_eq!(plan.events[0].reason, reason::EVENT_MAX_DISRUPTIONS);
            assert!(message(&plan).contains("maxDisruptions"));
            return;
        }
        let next = plan
            .status
            .as_ref()
            .and_then(|status| status.next_retry_time.clone());
        waits.push(next.map_or(0, |next| next.0.duration_since(now()).as_secs()));
        status = serde_json::to_value(plan.status).unwrap();
        assert_eq!(waits.len(), usize::try_from(count).unwrap() + 1);
        if count == 19 {
            assert_eq!(waits[..8], [0; 8], "{waits:?}");
            assert!(waits.is_sorted() && waits[19] == 600, "{waits:?}");
        }
    }
}
