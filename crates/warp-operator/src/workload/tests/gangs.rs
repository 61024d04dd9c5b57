//! Gangs: what is made for them, when their pods are let go, and what one member means for all.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use warp_api::{GPUWorkload, Phase, reason};
use warp_core::gpu::Catalogue;
use warp_runtime::plan::{Action, Premise};

use super::super::course::Course;
use super::super::objects::{job_name, shell};
use super::super::{Seen, gang};
use super::reading::{READY_NODE, deletes, ended, failed_job, message, planned, said};
use super::{node, workload};
use crate::placement::Place;

const NODES: [&str; 3] = ["gpu-1", "gpu-2", "gpu-2"];

fn three() -> GPUWorkload {
    workload(json!({"replicas": 3}), json!(null))
}

fn places() -> Vec<Place> {
    let place = |node: &str| Place {
        node: node.to_owned(),
        resource: "nvidia.com/gpu".to_owned(),
        extra: BTreeMap::new(),
        milli: 1000,
        evidence: Some(("nvidia.com/gpu.product".to_owned(), "H100".to_owned())),
        strategy: "warp",
        provider: "kubernetes".to_owned(),
        why: "warp chose gpu-1 (1), gpu-2 (2) for 3 members".to_owned(),
    };
    NODES.map(place).into()
}

#[test]
fn members_of_an_elastic_gang_are_told_how_many_they_are() {
    let elastic = workload(json!({"replicas": 8, "minReplicas": 2}), json!(null));
    assert_eq!(elastic.spec.least_members(), 2);
    assert_eq!(elastic.spec.describe_ask(), "2-8 × 2 nvidia GPUs");
    let shell = shell(&elastic, &Catalogue::default()).unwrap();
    let job = shell.gang_job(&elastic, 0, &places()).unwrap();
    let spec = job.spec.unwrap();
    assert_eq!((spec.completions, spec.parallelism), (Some(3), Some(3)));
    let containers = spec.template.spec.unwrap().containers;
    let value = |wanted: &str| {
        let mut env = containers[0].env.iter().flatten();
        env.find(|variable| variable.name == wanted)
            .and_then(|variable| variable.value.clone())
    };
    assert_eq!(value("WORLD_SIZE").as_deref(), Some("3"));
    assert_eq!(value("PET_NNODES").as_deref(), Some("3"));
}

/// The Job of the first attempt as the API server has it.
fn made(conditions: &Value) -> Arc<Job> {
    let workload = three();
    let shell = shell(&workload, &Catalogue::default()).unwrap();
    let mut job = shell.gang_job(&workload, 0, &places()).unwrap();
    job.metadata.uid = Some("job-0".to_owned());
    job.metadata.resource_version = Some("9".to_owned());
    job.metadata.creation_timestamp =
        serde_json::from_value(json!("2026-11-15T11:59:00Z")).unwrap();
    job.status = serde_json::from_value(json!({"conditions": conditions})).unwrap();
    Arc::new(job)
}

/// A member's pod as the Job controller makes it, changed by `more`.
fn member(rank: usize, more: &Value) -> Arc<Pod> {
    let job = made(&json!([]));
    let template = &job.spec.as_ref().unwrap().template;
    let mut pod = json!({
        "metadata": template.metadata, "spec": template.spec, "status": {"phase": "Pending"},
    });
    let own = json!({
        "name": format!("train-{rank}"), "namespace": "team", "uid": format!("pod-{rank}"),
        "resourceVersion": "1",
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-0", "controller": true}],
    });
    for (key, value) in own.as_object().into_iter().flatten() {
        pod["metadata"][key] = value.clone();
    }
    pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = json!(rank.to_string());
    for part in ["metadata", "spec", "status"] {
        for (key, value) in more[part].as_object().into_iter().flatten() {
            pod[part][key] = value.clone();
        }
    }
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// A member that was let go and is in this state.
fn released(rank: usize, status: Value) -> Arc<Pod> {
    let spec = json!({"schedulingGates": null, "nodeName": NODES[rank]});
    member(rank, &json!({"spec": spec, "status": status}))
}

fn runs(rank: usize) -> Arc<Pod> {
    released(rank, json!({"phase": "Running"}))
}

fn seen(pods: Vec<Arc<Pod>>) -> Seen {
    let names = ["gpu-1", "gpu-2"];
    let nodes = names.map(|name| {
        let mut found = (*node("True", READY_NODE)).clone();
        found.metadata.name = Some(name.to_owned());
        (name.to_owned(), Arc::new(found))
    });
    Seen {
        jobs: vec![made(&json!([]))],
        pods,
        nodes: BTreeMap::from(nodes),
        ..Default::default()
    }
}

/// The pods a plan lets go, by name, and where to.
fn let_go(plan: &Course) -> Vec<(String, String)> {
    let patched = plan.steps.actions.iter().filter_map(|action| match action {
        Action::Patch { kind, key, patch, .. } if kind.kind == "Pod" => {
            let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
            assert_eq!(patch["spec"]["schedulingGates"], Value::Null, "the gate goes");
            assert_ne!(patch["metadata"]["resourceVersion"], Value::Null);
            let terms = patch.pointer(terms).and_then(Value::as_array).unwrap();
            let node = terms[0]["matchFields"][0]["values"][0].as_str();
            assert_eq!(terms[0]["matchExpressions"][0]["values"], json!(["H100"]), "what was required stays");
            Some((key.name.to_string(), node.unwrap_or_default().to_owned()))
        }
        _ => None,
    });
    patched.collect()
}

#[test]
fn a_gang_becomes_one_indexed_job_whose_pods_are_born_gated() {
    insta::assert_yaml_snapshot!(made(&json!([])).spec);
    insta::assert_yaml_snapshot!(gang::service(&three()));
}

#[test]
fn names_of_members_are_names_of_hosts() {
    for (name, begins) in [
        ("train", "train-"),
        ("3d.v2", "g3d-v2-"),
        (&*"x".repeat(63), "xxx"),
    ] {
        let mut gang = three();
        gang.metadata.name = Some(name.to_owned());
        for attempt in [0, 1049] {
            let host = format!("{}-511", job_name(&gang, attempt));
            assert!(host.starts_with(begins) && host.len() <= 63, "{host}");
            assert!(!host.contains('.'), "{host}");
            assert!(
                host.ends_with(&format!("-01234567-{attempt}-511")),
                "{host}"
            );
        }
    }
    // A workload of one pod keeps the name it had.
    assert_eq!(
        job_name(&workload(json!({"replicas": 1}), json!(null)), 2),
        "train-01234567-2"
    );
}

#[test]
fn a_template_that_names_its_pods_is_refused() {
    let template = json!({"spec": {"subdomain": "mine", "containers": [{"name": "a"}]}});
    let bad = json!({"image": null, "replicas": 2, "podTemplate": template});
    let refused = shell(&workload(bad, json!(null)), &Catalogue::default())
        .unwrap_err()
        .0;
    assert!(refused.contains("subdomain"), "{refused}");
}

#[test]
fn pods_are_let_go_only_when_all_are_there() {
    let two = seen(vec![member(0, &json!({})), member(2, &json!({}))]);
    let plan = planned(&three(), &two);
    assert_eq!(let_go(&plan), []);
    assert_eq!(
        said(&plan),
        (Phase::Scheduling, reason::PLACED.to_owned(), false)
    );
    let all = seen((0..3).map(|rank| member(rank, &json!({}))).collect());
    let plan = planned(&three(), &all);
    let want = [
        ("train-0", "gpu-1"),
        ("train-1", "gpu-2"),
        ("train-2", "gpu-2"),
    ];
    let want = want.map(|(pod, node)| (pod.to_owned(), node.to_owned()));
    assert_eq!(let_go(&plan), want);
    let asked = plan.steps.premises.iter();
    let asked = asked.filter(|premise| matches!(premise, Premise::Shows(..)));
    assert_eq!(asked.count(), 1, "the workload still wants it");
    let status = plan.status.unwrap();
    assert_eq!(status.ready.as_deref(), Some("0/3"));
    assert_eq!(status.places().as_deref(), Some("gpu-1 (1), gpu-2 (2)"));
    assert_eq!(status.assigned_node, None);
}

#[test]
fn a_release_that_was_cut_short_goes_on_where_it_stopped() {
    let half = seen(vec![runs(0), member(1, &json!({})), member(2, &json!({}))]);
    let plan = planned(&three(), &half);
    assert_eq!(let_go(&plan).len(), 2);
    // Not when one that was let go cannot be bound: all go back.
    let refused = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "taken"}]});
    let spec = json!({"schedulingGates": null});
    let refused = member(0, &json!({"spec": spec, "status": refused}));
    let half = seen(vec![refused, member(1, &json!({})), member(2, &json!({}))]);
    let plan = planned(&three(), &half);
    assert_eq!(let_go(&plan), []);
    assert_eq!(said(&plan).1, reason::PLACEMENT_REFUSED);
    assert!(message(&plan).contains("gpu-1"), "{}", message(&plan));
    let next = workload(
        json!({"replicas": 3}),
        serde_json::to_value(plan.status).unwrap(),
    );
    assert_eq!(deletes(&planned(&next, &half)).len(), 1, "its Job goes");
}

#[test]
fn nothing_is_let_go_while_a_member_is_being_deleted() {
    let going = json!({"metadata": {"deletionTimestamp": "2026-11-15T11:59:59Z"}});
    let pods = vec![
        member(0, &going),
        member(1, &json!({})),
        member(2, &json!({})),
    ];
    assert_eq!(let_go(&planned(&three(), &seen(pods))), []);
}

#[test]
fn a_gang_runs_when_all_of_it_does_and_says_how_many_do() {
    let plan = planned(&three(), &seen(vec![runs(0), runs(1), runs(2)]));
    assert_eq!(
        said(&plan),
        (Phase::Running, reason::RUNNING.to_owned(), true)
    );
    assert_eq!(message(&plan), "3/3 members run on gpu-1 (1), gpu-2 (2)");
    let starting = released(2, json!({"phase": "Pending"}));
    let plan = planned(&three(), &seen(vec![runs(0), runs(1), starting]));
    assert_eq!(
        said(&plan),
        (Phase::Scheduled, reason::STARTING.to_owned(), false)
    );
    assert!(message(&plan).starts_with("2 of 3 members run"));
    // One that has ended well is no longer waited for.
    let done = released(0, json!({"phase": "Succeeded"}));
    let plan = planned(&three(), &seen(vec![done, runs(1), runs(2)]));
    assert_eq!(said(&plan).1, reason::RUNNING);
    assert_eq!(plan.status.unwrap().ready.as_deref(), Some("2/3"));
}

#[test]
fn trouble_of_one_member_is_told_with_its_number() {
    let waits = super::reading::waiting("ErrImagePull", "not found");
    let plan = planned(&three(), &seen(vec![runs(0), released(1, waits), runs(2)]));
    assert_eq!(said(&plan).1, reason::IMAGE_PULL_FAILED);
    assert!(message(&plan).starts_with("member 1 (train-1): "));
}

#[test]
fn the_first_to_end_is_why_a_gang_failed() {
    let exit = |code: i32, at: &str| {
        let mut status = ended(code, "Error");
        status["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = json!(at);
        status
    };
    let deleted =
        json!({"deletionTimestamp": "2026-11-15T12:00:20Z", "deletionGracePeriodSeconds": 30});
    let cause = exit(3, "2026-11-15T11:59:50Z");
    // The Job deleted the others for it, in the same second.
    let killed = |rank| {
        let spec = json!({"schedulingGates": null, "nodeName": NODES[rank]});
        let more =
            json!({"metadata": deleted, "spec": spec, "status": exit(143, "2026-11-15T11:59:51Z")});
        member(rank, &more)
    };
    let mut all = seen(vec![killed(0), released(1, cause.clone()), killed(2)]);
    all.jobs = vec![made(&failed_job("BackoffLimitExceeded"))];
    let plan = planned(&three(), &all);
    assert_eq!(said(&plan).1, reason::RETRY_BACKOFF);
    assert!(message(&plan).contains("exit code 3"), "{}", message(&plan));
    // A member that was evicted first makes the others fail: no retry.
    let mut evicted = exit(143, "2026-11-15T11:59:49Z");
    evicted["conditions"] = json!([{"type": "DisruptionTarget", "status": "True",
        "reason": "EvictionByEvictionAPI", "lastTransitionTime": "2026-11-15T11:59:40Z"}]);
    all.pods = vec![released(1, cause), released(0, evicted), killed(2)];
    let plan = planned(&three(), &all);
    assert_eq!(said(&plan).1, reason::DISRUPTED);
}

#[test]
fn a_member_that_is_taken_away_takes_the_gang_with_it_at_once() {
    let target = json!({"phase": "Running", "conditions": [{"type": "DisruptionTarget", "status": "True",
        "reason": "EvictionByEvictionAPI"}]});
    let spec = json!({"schedulingGates": null, "nodeName": "gpu-1"});
    let meta =
        json!({"deletionTimestamp": "2026-11-15T12:00:20Z", "deletionGracePeriodSeconds": 30});
    let leaving = member(
        0,
        &json!({"metadata": meta, "spec": spec, "status": target}),
    );
    let all = seen(vec![leaving, runs(1), runs(2)]);
    let plan = planned(&three(), &all);
    assert_eq!(said(&plan).1, reason::DISRUPTED);
    let status = plan.status.unwrap();
    assert_eq!((status.disruptions, status.retry_count), (Some(1), Some(0)));
    assert!(status.assigned_nodes.is_empty() && status.ready.is_none());
    let next = workload(
        json!({"replicas": 3}),
        serde_json::to_value(status).unwrap(),
    );
    assert_eq!(deletes(&planned(&next, &all)).len(), 1);
}

#[test]
fn a_lost_node_of_one_member_disrupts_the_gang() {
    let mut all = seen(vec![runs(0), runs(1), runs(2)]);
    all.nodes.remove("gpu-1");
    let plan = planned(&three(), &all);
    assert_eq!(said(&plan).1, reason::DISRUPTED);
    assert_eq!(plan.events[0].reason, reason::NODE_LOST);
}

#[test]
fn places_are_kept_until_pods_hold_them() {
    let owners = |pods: &[Arc<Pod>]| -> Vec<(String, bool)> {
        let kept = gang::promises(&made(&json!([])), pods).into_iter();
        kept.map(|promise| (promise.owner, promise.counted))
            .collect()
    };
    let of = |rank: usize, counted| (format!("job-0/{rank}"), counted);
    assert_eq!(owners(&[]), [of(0, false), of(1, false), of(2, false)]);
    // A gated pod holds nothing, and quotas count it.
    let gated = member(1, &json!({}));
    assert_eq!(owners(&[gated]), [of(0, false), of(1, true), of(2, false)]);
    assert_eq!(owners(&[runs(0), runs(1)]), [of(2, false)]);
    // Once one has ended nothing more is coming.
    let done = released(0, json!({"phase": "Succeeded"}));
    assert_eq!(owners(&[done]), []);
}
