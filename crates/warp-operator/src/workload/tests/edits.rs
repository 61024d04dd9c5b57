//! A spec that changes while a Job made from the one before exists.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use warp_api::workload::PLACED_FIELDS;
use warp_api::{Phase, label, reason};
use warp_runtime::plan::Premise;

use super::super::Seen;
use super::super::spec_hash::spec_hash;
use super::reading::{deletes, message, one_pod, planned, said, unschedulable, waiting};
use super::{job, pod, workload};

/// The same, with a Job that was made from this spec.
fn made_from(mut seen: Seen, spec: Value) -> Seen {
    let hash = spec_hash(&workload(spec, json!(null)).spec);
    let job = Arc::make_mut(&mut seen.jobs[0]);
    let annotations = job.metadata.annotations.get_or_insert_default();
    annotations.insert(label::SPEC_HASH.to_owned(), hash);
    seen
}

fn suspended_job() -> Seen {
    let mut job = (*job(0, json!([]))).clone();
    job.spec.get_or_insert_default().suspend = Some(true);
    Seen {
        jobs: vec![Arc::new(job)],
        ..Default::default()
    }
}

/// Every state in which a Job exists and nothing of it runs.
fn not_started() -> Vec<(&'static str, Seen)> {
    let no_pod = || Seen {
        jobs: vec![job(0, json!([]))],
        ..Default::default()
    };
    let refusal = BTreeMap::from([("job-0".to_owned(), "violates PodSecurity".to_owned())]);
    let pending = json!({"phase": "Pending"});
    vec![
        ("no pod yet", no_pod()),
        (
            "pods refused",
            Seen {
                refusals: refusal,
                ..no_pod()
            },
        ),
        (
            "not bound",
            one_pod(pod(json!({}), json!({"nodeName": null}), pending)),
        ),
        (
            "node refused",
            one_pod(unschedulable("0/1 nodes are available")),
        ),
        (
            "starting",
            one_pod(pod(json!({}), json!({}), waiting("ContainerCreating", ""))),
        ),
        (
            "no such image",
            one_pod(pod(json!({}), json!({}), waiting("ImagePullBackOff", "no"))),
        ),
        ("suspended by hand", suspended_job()),
    ]
}

#[test]
fn a_job_of_an_older_spec_that_has_not_started_is_replaced_without_a_retry() {
    let changed = workload(
        json!({"image": "img:2"}),
        json!({"phase": "Scheduled", "jobName": "train-01234567-0", "retryCount": 0}),
    );
    for (name, seen) in not_started() {
        let plan = planned(&changed, &made_from(seen, json!({})));
        assert_eq!(
            said(&plan),
            (Phase::Pending, reason::SPEC_CHANGED.to_owned(), false),
            "{name}"
        );
        let job = ("Job".to_owned(), "train-01234567-0".to_owned());
        assert_eq!(deletes(&plan), [job], "{name}");
        let status = plan.status.as_ref().expect("a status");
        assert_eq!(
            (&status.job_name, status.retry_count),
            (&None, Some(0)),
            "{name}"
        );
        // Whoever is behind must not take the Job of the newest spec for one of an older.
        let mut premises = plan.steps.premises.iter();
        assert!(
            premises.any(|premise| matches!(premise, Premise::Unchanged(_))),
            "{name}"
        );
    }
}

#[test]
fn a_job_of_the_same_spec_stays_whatever_steers_it() {
    let steered = json!({
        "priority": "high", "preemptible": true, "maxRuntime": "1h", "ttlSecondsAfterFinished": 9,
        "retryPolicy": {"maxRetries": 9},
    });
    for (name, seen) in not_started() {
        let plan = planned(
            &workload(steered.clone(), json!(null)),
            &made_from(seen, json!({})),
        );
        assert_ne!(said(&plan).1, reason::SPEC_CHANGED, "{name}");
        assert!(deletes(&plan).is_empty(), "{name}");
    }
}

#[test]
fn what_runs_goes_on_and_says_that_it_is_of_the_spec_before() {
    let running = one_pod(pod(json!({}), json!({}), json!({"phase": "Running"})));
    let changed = workload(json!({"image": "img:2"}), json!(null));
    let plan = planned(&changed, &made_from(running.clone(), json!({})));
    assert_eq!(said(&plan).0, Phase::Running);
    assert!(deletes(&plan).is_empty());
    assert!(
        message(&plan).contains("the spec before its last change"),
        "{}",
        message(&plan)
    );
    let same = planned(&changed, &made_from(running, json!({"image": "img:2"})));
    assert_eq!(message(&same), "running on node gpu-1");
}

#[test]
fn a_job_that_does_not_say_what_it_was_made_from_stays() {
    for (name, seen) in not_started() {
        let plan = planned(&workload(json!({"image": "img:2"}), json!(null)), &seen);
        assert!(deletes(&plan).is_empty(), "{name}");
    }
}

#[test]
fn a_gang_of_an_older_spec_is_not_let_go() {
    let gang = json!({"replicas": 2});
    let mut job = (*job(0, json!([]))).clone();
    let annotations = job.metadata.annotations.get_or_insert_default();
    annotations.insert(label::NODES.to_owned(), "gpu-1,gpu-1".to_owned());
    let spec = job.spec.get_or_insert_default();
    spec.completion_mode = Some("Indexed".to_owned());
    (spec.completions, spec.parallelism) = (Some(2), Some(2));
    let member = |rank: &str| {
        let labels = json!({
            "gpu.warp.dev/workload": "train", "gpu.warp.dev/workload-uid": "0123456789abcdef",
            "batch.kubernetes.io/job-completion-index": rank,
        });
        let gates = json!({"nodeName": null, "schedulingGates": [{"name": label::GANG_GATE}]});
        let meta = json!({"name": format!("m-{rank}"), "uid": rank, "labels": labels});
        pod(meta, gates, json!({"phase": "Pending"}))
    };
    let seen = Seen {
        jobs: vec![Arc::new(job)],
        pods: vec![member("0"), member("1")],
        ..Default::default()
    };
    let seen = made_from(seen, gang.clone());
    let same = planned(&workload(gang.clone(), json!(null)), &seen);
    assert_eq!(same.steps.actions.len(), 2, "both are let go");
    let changed = workload(json!({"replicas": 2, "image": "img:2"}), json!(null));
    let plan = planned(&changed, &seen);
    assert_eq!(said(&plan).1, reason::SPEC_CHANGED);
    assert_eq!((plan.steps.actions.len(), deletes(&plan).len()), (1, 1));
}

#[test]
fn every_field_that_makes_a_job_is_in_the_hash_and_no_other() {
    let plain = spec_hash(&workload(json!({}), json!(null)).spec);
    let changes = json!({
        "modelName": "other", "gpuCount": 3, "replicas": 2, "topology": {"level": "zone"},
        "schedulingStrategy": "random", "gpu": {"models": ["H100"]}, "image": "img:2",
        "command": ["run"], "args": ["x"], "env": [{"name": "A", "value": "1"}],
        "resources": {"limits": {"cpu": "1"}}, "volumes": [{"name": "v", "emptyDir": {}}],
        "securityContext": {"runAsUser": 1}, "podSecurityContext": {"runAsUser": 1},
        "podTemplate": {"spec": {"containers": [{"name": "c"}]}},
        "checkpoint": {"period": "10m"}, "priorityClassName": "urgent",
        "minReplicas": 1, "mpi": {},
    });
    for field in PLACED_FIELDS {
        let changed = workload(json!({*field: changes[field]}), json!(null));
        assert_ne!(spec_hash(&changed.spec), plain, "{field}");
    }
}
