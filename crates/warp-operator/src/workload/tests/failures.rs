//! Attempts that fail, and when the next one may start.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use warp_api::{Phase, reason};
use warp_runtime::cache::Key;
use warp_runtime::plan::{Kind, Premise};

use super::super::Seen;
use super::super::assess::Placeable;
use super::reading::{
    READY_NODE, deadline, deletes, ended, failed_job, may, message, one_pod, planned, said,
    unschedulable, waiting,
};
use super::{job, node, now, pod, workload};

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
        assert_eq!(deadline(&plan).as_deref(), Some("2026-11-15T12:29:00Z"));
    }
    let missing = planned(
        &workload(json!({}), json!(null)),
        &one_pod(unschedulable(
            "0/3 nodes are available: persistentvolumeclaim \"set\" not found",
        )),
    );
    assert_eq!(said(&missing).1, reason::VOLUME_NOT_READY);
    assert!(deletes(&missing).is_empty(), "another node would not help");
    // As kube-scheduler says it: nothing is said twice.
    let twice = planned(
        &workload(json!({}), json!(null)),
        &one_pod(unschedulable(
            "0/3 nodes are available: persistentvolumeclaim \"set\" not found. not found",
        )),
    );
    assert_eq!(message(&twice), message(&missing));
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
    assert_eq!(plan.steps.again, Some(now()));
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
            json!({"phase": "Failed", "reason": "Evicted", "message": "Usage of EmptyDir volume \"scratch\" exceeds the limit"}),
            reason::EVICTED,
            "exceeds the limit",
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
        assert_eq!(may(&again, &seen), Placeable::From(next));
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
    assert_eq!(deadline(&plan).as_deref(), Some("2026-11-15T12:03:00Z"));

    let lost = planned(
        &workload(json!({}), json!(null)),
        &silent("2026-11-15T11:54:00Z"),
    );
    assert_eq!(said(&lost).1, reason::DISRUPTED);
    assert_eq!(lost.events[0].reason, reason::NODE_LOST);
}

#[test]
fn a_node_nobody_told_of_yet_is_asked_for_before_its_pod_counts_as_lost() {
    let running = pod(json!({}), json!({}), json!({"phase": "Running"}));
    let seen = Seen {
        nodes: BTreeMap::new(),
        ..one_pod(running)
    };
    let plan = planned(&workload(json!({}), json!(null)), &seen);
    assert_eq!(plan.events[0].reason, reason::NODE_LOST);
    let gone = Premise::Absent(Kind::of::<Node>(), Key::new("", "gpu-1"));
    assert_eq!(plan.steps.premises, [gone]);
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
            Placeable::No,
        ),
        (
            "terminating",
            pod(leaving, json!({}), running.clone()),
            Some(node("True", READY_NODE)),
            Placeable::No,
        ),
        (
            "deleted by force",
            pod(forced, json!({}), running.clone()),
            Some(node("True", READY_NODE)),
            Placeable::Now,
        ),
        (
            "ended",
            pod(json!({}), json!({}), ended(1, "Error")),
            Some(node("True", READY_NODE)),
            Placeable::Now,
        ),
        (
            "node gone",
            pod(json!({}), json!({}), running.clone()),
            None,
            Placeable::Now,
        ),
        (
            "out of service",
            pod(json!({}), json!({}), running.clone()),
            Some(out),
            Placeable::Now,
        ),
        (
            "silent",
            pod(json!({}), json!({}), running.clone()),
            Some(node("Unknown", "2026-11-15T11:58:00Z")),
            Placeable::No,
        ),
        (
            "silent too long",
            pod(json!({}), json!({}), running),
            Some(node("Unknown", "2026-11-15T11:50:00Z")),
            Placeable::Now,
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
        assert_eq!(may(&retry, &seen), want, "{name}");
    }
    let unfinished = Seen {
        jobs: vec![job(0, json!([]))],
        ..Default::default()
    };
    assert_eq!(
        may(&retry, &unfinished),
        Placeable::No,
        "its old job still exists"
    );
}

#[test]
fn a_pod_deleted_by_hand_is_called_that() {
    let gone = json!({
        "deletionTimestamp": "2026-11-15T11:59:30Z", "deletionGracePeriodSeconds": 0,
    });
    let seen = one_pod(pod(gone, json!({}), json!({"phase": "Running"})));
    let plan = planned(&workload(json!({}), json!(null)), &seen);
    assert_eq!(said(&plan).1, reason::RETRY_BACKOFF);
    assert_eq!(plan.events[0].reason, reason::POD_DELETED);

    // Gracefully: the container was killed for it, which is not its own failure.
    let leaving =
        json!({"deletionTimestamp": "2026-11-15T11:59:50Z", "deletionGracePeriodSeconds": 30});
    let killed = |finished: &str| {
        let mut status = ended(137, "Error");
        status["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = json!(finished);
        let mut seen = one_pod(pod(leaving.clone(), json!({}), status));
        seen.jobs = vec![job(0, failed_job("BackoffLimitExceeded"))];
        planned(&workload(json!({}), json!(null)), &seen)
    };
    let plan = killed("2026-11-15T11:59:25Z");
    assert_eq!(plan.events[0].reason, reason::POD_DELETED);
    assert!(message(&plan).contains("deleted by hand"));
    // One that had failed before somebody tidied it away failed by itself.
    let plan = killed("2026-11-15T11:59:00Z");
    assert_eq!(plan.events[0].reason, reason::NON_ZERO_EXIT);
}

#[test]
fn a_kubelets_last_delete_does_not_hide_that_a_pod_was_deleted() {
    // It puts its own time, a second after the container's end, in the place of the first one's.
    let gone =
        json!({"deletionTimestamp": "2026-11-15T11:59:06Z", "deletionGracePeriodSeconds": 0});
    let told = |code: i32, finished: &str| {
        let mut status = ended(code, "Error");
        status["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = json!(finished);
        let mut seen = one_pod(pod(gone.clone(), json!({}), status));
        seen.jobs = vec![job(0, failed_job("BackoffLimitExceeded"))];
        let plan = planned(&workload(json!({}), json!(null)), &seen);
        plan.events[0].reason
    };
    for code in [137, 143] {
        assert_eq!(told(code, "2026-11-15T11:59:05Z"), reason::POD_DELETED);
    }
    // What it was not told to do it did by itself, and so it did long before.
    assert_eq!(told(3, "2026-11-15T11:59:05Z"), reason::NON_ZERO_EXIT);
    assert_eq!(told(137, "2026-11-15T11:58:00Z"), reason::NON_ZERO_EXIT);
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
