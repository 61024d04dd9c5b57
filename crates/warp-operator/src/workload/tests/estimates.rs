//! What a waiting workload is told of its start, and when that is taken back.

use serde_json::{Value, json};
use warp_api::reason;

use super::super::Seen;
use super::reading::{one_pod, planned};
use super::{now, pod, workload};
use crate::estimates::Forecast;
use crate::placement::Verdict;

fn told() -> Value {
    json!({
        "phase": "Pending", "queuePosition": 2, "waitingFor": "2 nvidia GPUs; 1 is ahead",
        "estimatedStart": {
            "at": "2026-11-15T13:00:00Z", "earliest": "2026-11-15T12:10:00Z", "latest": "2026-11-15T14:00:00Z"
        },
    })
}

fn waits(forecast: Option<Forecast>) -> Seen {
    Seen {
        verdict: Some(Verdict {
            reason: reason::WAITING_FOR_CAPACITY,
            message: "no room".to_owned(),
        }),
        position: Some(2),
        forecast,
        ..Seen::default()
    }
}

#[test]
fn a_start_is_told_and_told_again_writes_nothing() {
    let forecast = Forecast::at(now(), [600, 3600, 7200]);
    let seen = waits(Some(forecast));
    let mut one = workload(json!({}), json!(null));
    let course = planned(&one, &seen);
    let status = course.status.expect("it is told");
    let start = status.estimated_start.as_ref().expect("a start");
    assert_eq!(start.at.0.to_string(), "2026-11-15T13:00:00Z");
    assert!(status.waiting_for.is_some());
    one.status = Some(status.clone());
    let again = planned(&one, &seen);
    assert_eq!(again.status, Some(status));
}

#[test]
fn an_operator_that_has_just_started_keeps_what_was_told() {
    let one = workload(json!({}), told());
    for seen in [Seen::default(), waits(None)] {
        let course = planned(&one, &seen);
        let status = course.status.or(one.status.clone()).unwrap_or_default();
        let before = one.status.clone().unwrap_or_default();
        assert_eq!(status.estimated_start, before.estimated_start);
        assert_eq!(status.waiting_for, before.waiting_for);
    }
}

#[test]
fn a_start_is_taken_back_when_it_is_placed_suspended_or_waits_for_something_else() {
    let running = one_pod(pod(json!({}), json!({}), json!({"phase": "Running"})));
    let mut quota = waits(Some(Forecast::at(now(), [600, 3600, 7200])));
    quota.verdict = Some(Verdict {
        reason: reason::QUOTA_EXCEEDED,
        message: "no quota".to_owned(),
    });
    let cases = [
        ("running", json!({}), running),
        ("suspended", json!({"suspend": true}), Seen::default()),
        ("over its quota", json!({}), quota),
    ];
    for (name, spec, seen) in cases {
        let course = planned(&workload(spec, told()), &seen);
        let status = course.status.expect(name);
        assert_eq!(status.estimated_start, None, "{name}");
        assert_eq!(status.waiting_for, None, "{name}");
    }
}
