//! Nodes that refuse what was placed on them.

use std::sync::Arc;

use serde_json::json;
use warp_api::{Phase, label, reason};

use super::super::Seen;
use super::reading::{deletes, one_pod, planned, planned_at, said, unschedulable};
use super::{now, pod, workload};

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
    assert!(plan.steps.actions.is_empty());
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
            assert_eq!(later.steps.again, Some(next));
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
