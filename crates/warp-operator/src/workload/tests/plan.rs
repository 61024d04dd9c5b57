//! The course of a workload that meets nothing worse than waiting.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};
use warp_api::{Phase, reason};
use warp_runtime::plan::Action;

use super::super::Seen;
use super::super::assess::Placeable;
use super::super::course::Course;
use super::super::plan::backoff;
use super::reading::{deletes, may, message, one_pod, planned, said, waiting};
use super::{job, node, pod, workload};
use crate::placement::Verdict;

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
        assert!(plan.steps.actions.is_empty(), "{name}");
    }
}

#[test]
fn a_refusal_reads_the_same_whatever_the_next_pod_would_be_called() {
    let told = |pod: &str| {
        let text = format!("Error creating: pods \"{pod}\" is forbidden: exceeded quota: gpus");
        let seen = Seen {
            jobs: vec![job(0, json!([]))],
            refusals: BTreeMap::from([("job-0".to_owned(), text)]),
            ..Default::default()
        };
        message(&planned(&workload(json!({}), json!(null)), &seen))
    };
    let first = told("train-01234567-0-abcde");
    assert_eq!(first, told("train-01234567-0-x2x4x"));
    assert!(
        first.contains("pods of job train-01234567-0 is forbidden: exceeded quota"),
        "{first}"
    );
}

#[test]
fn a_job_that_vanished_is_taken_from_the_status_before_another_is_made() {
    let running = json!({"phase": "Running", "jobName": "train-01234567-0", "retryCount": 0, "observedGeneration": 3});
    let workload = workload(json!({}), running);
    let nothing = Seen::default();
    assert_eq!(may(&workload, &nothing), Placeable::No);
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
    assert_eq!(may(&corrected, &nothing), Placeable::Now);
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
fn suspending_does_not_throw_away_work_that_has_just_ended() {
    let suspended = workload(json!({"suspend": true}), json!({"phase": "Running"}));
    let ended = one_pod(pod(json!({}), json!({}), json!({"phase": "Succeeded"})));
    let plan = planned(&suspended, &ended);
    assert_eq!((deletes(&plan), plan.status), (Vec::new(), None));
    let decided = Seen {
        jobs: vec![job(
            0,
            json!([{"type": "SuccessCriteriaMet", "status": "True"}]),
        )],
        ..one_pod(pod(json!({}), json!({}), json!({"phase": "Running"})))
    };
    assert_eq!(deletes(&planned(&suspended, &decided)), []);
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
    assert_eq!(may(&resumed, &Seen::default()), Placeable::Now);
}

#[test]
fn a_changed_run_time_reaches_the_job() {
    let seen = one_pod(pod(json!({}), json!({}), json!({"phase": "Running"})));
    let plan = planned(&workload(json!({"maxRuntime": "1h"}), json!(null)), &seen);
    let Action::Patch { patch, .. } = &plan.steps.actions[0] else {
        panic!("a patch")
    };
    assert_eq!(
        patch,
        &json!({
            "spec": {"activeDeadlineSeconds": 3600},
            "metadata": {"uid": "job-0", "resourceVersion": "9"},
        })
    );
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
        young.steps.again.map(|at| at.to_string()).as_deref(),
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
        &workload(json!({"gpu": {"models": ["1g.10gb"]}}), json!(null)),
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
    assert_eq!(planned(&gone, &seen), Course::default());
    assert_eq!(may(&gone, &Seen::default()), Placeable::No);
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
fn whoever_leaves_the_line_or_changes_makes_way_for_others() {
    use super::super::line_matters;
    let waits = workload(json!({}), json!({"phase": "Pending"}));
    let ended = workload(json!({}), json!({"phase": "Succeeded"}));
    let mut changed = waits.clone();
    changed.metadata.generation = Some(4);
    let mut leaving = waits.clone();
    leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
    assert!(line_matters(Some(&waits), None));
    assert!(line_matters(Some(&waits), Some(&changed)));
    assert!(line_matters(Some(&waits), Some(&leaving)));
    let told = workload(json!({}), json!({"phase": "Pending", "message": "x"}));
    assert!(!line_matters(Some(&waits), Some(&told)));
    assert!(!line_matters(Some(&ended), None) && !line_matters(None, Some(&waits)));
}
