//! What the status remembers of what happened.

use serde_json::{Value, json};
use warp_runtime::pass::Pass;
use warp_runtime::plan::{Action, Plan};

use super::super::Seen;
use super::super::timeline::sign;
use super::reading::{one_pod, planned};
use super::{now, pod, workload};

/// The status a pass writes, signed; none where it writes none.
fn written(status: Value, seen: &Seen) -> Option<Value> {
    let workload = workload(json!({}), status);
    let mut plan: Plan = planned(&workload, seen).into_plan(&workload, now());
    let pass = Pass {
        manager: Some("warp-workload"),
        cause: "kubectl".to_owned(),
        correlation: "one-7".to_owned(),
        ..Pass::default()
    };
    sign(&pass, &mut plan);
    plan.actions.into_iter().find_map(|action| match action {
        Action::Status(status) => Some(status.after),
        _ => None,
    })
}

fn running() -> Seen {
    one_pod(pod(json!({}), json!({}), json!({"phase": "Running"})))
}

fn failed() -> Seen {
    let mut seen = running();
    let job = super::job(0, super::reading::failed_job("BackoffLimitExceeded"));
    (seen.jobs, seen.pods) = (vec![job], Vec::new());
    seen
}

#[test]
fn what_happened_is_remembered_with_who_wrote_it_and_because_of_whom() {
    let first = written(json!(null), &running()).expect("a status");
    let entry = json!({
        "time": "2026-11-15T12:00:00Z", "actor": "warp-workload", "cause": "kubectl",
        "reason": "Running", "message": "running on node gpu-1", "correlation": "one-7",
    });
    assert_eq!(first["timeline"], json!([entry]));
    let second = written(first, &failed()).expect("a status");
    let reasons: Vec<&Value> = (second["timeline"].as_array().into_iter().flatten())
        .map(|entry| &entry["reason"])
        .collect();
    assert_eq!(reasons, ["Running", "RetryBackoff"]);
    assert_eq!(second["timeline"][0], entry, "what is written stays");
}

#[test]
fn nothing_is_written_for_the_sake_of_the_timeline() {
    let first = written(json!(null), &running()).expect("a status");
    assert_eq!(written(first.clone(), &running()), None);
    // A status from before there was one is not written either.
    let mut bare = first;
    bare.as_object_mut().expect("fields").remove("timeline");
    assert_eq!(written(bare, &running()), None);
}

#[test]
fn a_sentence_that_changes_is_no_event() {
    let mut first = written(json!(null), &running()).expect("a status");
    first["message"] = json!("another");
    let second = written(first.clone(), &running()).expect("a status");
    assert_eq!(second["timeline"], first["timeline"]);
}

#[test]
fn the_latest_twenty_are_kept_and_long_messages_are_cut() {
    let mut status = written(json!(null), &running()).expect("a status");
    let old = status["timeline"][0].clone();
    let many = (0..20).map(|number| {
        let mut entry = old.clone();
        entry["correlation"] = json!(format!("old-{number}"));
        entry
    });
    status["timeline"] = json!(many.collect::<Vec<_>>());
    let next = written(status, &failed()).expect("a status");
    let entries = next["timeline"].as_array().expect("entries");
    assert_eq!(entries.len(), 20);
    assert_eq!(entries[0]["correlation"], "old-1");
    assert_eq!(entries[19]["correlation"], "one-7");
    let length = |entry: &Value| entry["message"].as_str().map(|text| text.chars().count());
    assert!(entries.iter().all(|entry| length(entry) <= Some(256)));
}
