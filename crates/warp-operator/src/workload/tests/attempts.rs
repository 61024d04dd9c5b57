//! The status remembers where attempts were and what came of them.

use serde_json::{Value, json};
use warp_api::reason;
use warp_api::workload::{ATTEMPTS, WorkloadAttempt};

use super::super::Seen;
use super::reading::{failed_job, one_pod, planned};
use super::{job, pod, workload};

/// A Job that says which provider its node is of.
fn placed(attempt: i32, conditions: Value) -> Seen {
    let mut own = (*job(attempt, conditions)).clone();
    let annotations = own.metadata.annotations.get_or_insert_default();
    annotations.insert("gpu.warp.dev/provider".to_owned(), "cloud".to_owned());
    Seen {
        jobs: vec![own.into()],
        ..Seen::default()
    }
}

fn with_pod(mut seen: Seen, status: Value) -> Seen {
    let with = one_pod(pod(json!({}), json!({}), status));
    (seen.pods, seen.nodes) = (with.pods, with.nodes);
    seen
}

/// What the status says of attempts after a pass.
fn after(status: Value, seen: &Seen) -> Vec<WorkloadAttempt> {
    let course = planned(&workload(json!({}), status), seen);
    course.status.expect("a status").recent_attempts
}

fn running() -> Value {
    json!({"phase": "Running", "startTime": "2026-11-15T11:59:10Z", "containerStatuses": [
        {"name": "main", "image": "img:1", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {"startedAt": "2026-11-15T11:59:30Z"}}}]})
}

#[test]
fn an_attempt_is_told_from_its_place_to_its_end() {
    let [open] = &after(json!(null), &placed(0, json!([])))[..] else {
        panic!("one attempt")
    };
    assert_eq!((open.number, open.provider.as_str()), (0, "cloud"));
    assert_eq!((&open.started_at, &open.ended_at), (&None, &None));
    let known = json!({"recentAttempts": [open]});
    let [started] = &after(known, &with_pod(placed(0, json!([])), running()))[..] else {
        panic!("one attempt")
    };
    assert!(started.started_at.is_some() && started.ended_at.is_none());
    let known = json!({"recentAttempts": [started], "phase": "Running"});
    let complete = placed(0, json!([{"type": "Complete", "status": "True"}]));
    let [ended] = &after(known, &complete)[..] else {
        panic!("one attempt")
    };
    assert_eq!(ended.started_at, started.started_at);
    assert_eq!(ended.reason.as_deref(), Some(reason::SUCCEEDED));
}

#[test]
fn one_that_the_kubelet_refused_says_so_and_the_next_is_another() {
    let refused = json!({"phase": "Failed", "reason": "OutOfnvidia.com/gpu"});
    let seen = with_pod(placed(0, failed_job("PodFailurePolicy")), refused);
    let told = after(json!(null), &seen);
    assert_eq!(told[0].reason.as_deref(), Some(reason::REFUSED_BY_NODE));
    let next = after(
        json!({"recentAttempts": told, "disruptions": 1}),
        &placed(1, json!([])),
    );
    let numbers: Vec<i32> = next.iter().map(|one| one.number).collect();
    assert_eq!(numbers, [0, 1]);
    assert_eq!(next[0], told[0]);
}

#[test]
fn a_place_that_was_given_up_before_anything_started_is_forgotten() {
    let open = after(json!(null), &placed(0, json!([])));
    let known =
        json!({"recentAttempts": open, "jobName": "train-01234567-0", "phase": "Scheduling"});
    let suspended = workload(json!({"suspend": true}), known);
    let course = planned(&suspended, &placed(0, json!([])));
    assert!(course.status.expect("a status").recent_attempts.is_empty());
}

#[test]
fn as_many_are_kept_as_the_schema_allows() {
    let old = |number: usize| {
        json!({"number": number, "provider": "cloud", "placedAt": "2026-11-15T11:00:00Z",
               "endedAt": "2026-11-15T11:01:00Z", "reason": "NodeLost"})
    };
    let old: Vec<Value> = (0..ATTEMPTS).map(old).collect();
    let next = i32::try_from(ATTEMPTS).unwrap();
    let kept = after(
        json!({"recentAttempts": old, "disruptions": ATTEMPTS}),
        &placed(next, json!([])),
    );
    assert_eq!(kept.len(), ATTEMPTS);
    assert_eq!((kept[0].number, kept[ATTEMPTS - 1].number), (1, next));
}
