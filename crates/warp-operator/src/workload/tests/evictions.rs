//! What becomes of an attempt that makes room for work of higher priority.

use std::sync::Arc;

use serde_json::{Value, json};
use warp_api::{Phase, reason};
use warp_runtime::plan::Action;

use super::super::evict::Running;
use super::super::{Given, Seen};
use super::reading::{failed_job, message, one_pod, planned, said};
use super::{job, now, pod, workload};
use crate::placement::Runner;

fn asked_to_end(conditions: Value) -> Arc<k8s_openapi::api::batch::v1::Job> {
    let mut job = (*job(0, conditions)).clone();
    let annotations = job.metadata.annotations.get_or_insert_default();
    annotations.insert(
        "gpu.warp.dev/evicted-for".to_owned(),
        "team/urgent".to_owned(),
    );
    Arc::new(job)
}

fn running(meta: Value) -> Seen {
    let status = json!({"phase": "Running", "startTime": "2026-11-15T11:50:00Z"});
    let mut seen = one_pod(pod(meta, json!({}), status));
    seen.jobs = vec![asked_to_end(json!([]))];
    seen
}

fn evictions(plan: &super::super::course::Course) -> usize {
    let evicts = |action: &&Action| {
        matches!(
            action,
            Action::Sub {
                sub: "eviction",
                ..
            }
        )
    };
    plan.steps.actions.iter().filter(evicts).count()
}

#[test]
fn its_pod_is_evicted_once_and_it_says_for_whom() {
    let plan = planned(&workload(json!({}), json!(null)), &running(json!({})));
    assert_eq!(
        said(&plan),
        (Phase::Running, reason::EVICTING.to_owned(), true)
    );
    assert!(message(&plan).contains("team/urgent"), "{}", message(&plan));
    assert_eq!(evictions(&plan), 1);
    // One that only carries its labels is somebody else's.
    let mut seen = running(json!({}));
    let owners = json!({"name": "stranger", "ownerReferences": []});
    let status = json!({"phase": "Running"});
    seen.pods.push(pod(owners, json!({}), status));
    let plan = planned(&workload(json!({}), json!(null)), &seen);
    assert_eq!(evictions(&plan), 1, "{:?}", plan.steps.actions);
    let ending =
        json!({"deletionTimestamp": "2026-11-15T12:00:20Z", "deletionGracePeriodSeconds": 30});
    let plan = planned(&workload(json!({}), json!(null)), &running(ending));
    assert_eq!(evictions(&plan), 0);
    assert!(message(&plan).contains("it has until 2026-11-15T12:00:20Z"));
    let late =
        json!({"deletionTimestamp": "2026-11-15T11:59:00Z", "deletionGracePeriodSeconds": 30});
    let plan = planned(&workload(json!({}), json!(null)), &running(late));
    assert!(
        message(&plan).contains("should have ended by"),
        "{}",
        message(&plan)
    );
}

#[test]
fn what_it_lost_is_counted_and_no_retry_is_used() {
    let target = json!({"phase": "Failed", "conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]});
    let mut seen = one_pod(pod(json!({}), json!({}), target));
    seen.jobs = vec![asked_to_end(failed_job("PodFailurePolicy"))];
    let status = json!({"startTime": "2026-11-15T11:50:00Z", "lostGpuSeconds": 7});
    let plan = planned(&workload(json!({}), status), &seen);
    assert_eq!(
        said(&plan),
        (Phase::Pending, reason::DISRUPTED.to_owned(), false)
    );
    assert_eq!(plan.events[0].reason, reason::PREEMPTED);
    let status = plan.status.as_ref().unwrap();
    // Two GPUs for ten minutes.
    assert_eq!(status.lost_gpu_seconds, Some(7 + 1200));
    assert_eq!((status.retry_count, status.disruptions), (Some(0), Some(1)));
    let text = message(&plan);
    assert!(
        text.contains("team/urgent, of higher priority, took its place"),
        "{text}"
    );
    assert!(text.contains("no retry is used"), "{text}");
}

#[test]
fn only_work_whose_pods_are_all_on_their_nodes_can_make_room() {
    let one = Arc::new(workload(json!({}), json!(null)));
    let mut owned = (*job(0, json!([]))).clone();
    let owner = json!([{"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "name": "train",
        "uid": "0123456789abcdef", "controller": true}]);
    owned.metadata.owner_references = serde_json::from_value(owner).unwrap();
    let jobs = [Arc::new(owned)];
    let status = json!({"phase": "Running", "startTime": "2026-11-15T11:50:00Z"});
    let bound = pod(json!({}), json!({}), status.clone());
    let runs = Running::of(
        &one,
        &jobs,
        std::slice::from_ref(&bound),
        (Given::default(), &Arc::default()),
        now(),
    )
    .unwrap();
    assert_eq!(runs.runs().works.len(), 1);
    assert_eq!(runs.runs().gpus, 2);
    assert!(runs.runs().evicted_for.is_none());
    assert!(Running::of(&one, &jobs, &[], (Given::default(), &Arc::default()), now()).is_none());
    let unbound = pod(
        json!({}),
        json!({"nodeName": null}),
        json!({"phase": "Pending"}),
    );
    assert!(
        Running::of(
            &one,
            &jobs,
            &[unbound],
            (Given::default(), &Arc::default()),
            now()
        )
        .is_none()
    );
    assert!(
        Running::of(
            &one,
            &[job(0, json!([]))],
            &[bound],
            (Given::default(), &Arc::default()),
            now()
        )
        .is_none(),
        "of another"
    );
}
