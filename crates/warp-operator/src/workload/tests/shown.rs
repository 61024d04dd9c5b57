//! A workload that waits and asks for it is shown to the cluster's autoscaler.

use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};
use warp_api::{GPUWorkload, reason};
use warp_runtime::plan::Action;

use super::super::Seen;
use super::super::course::Course;
use super::super::plan::plan;
use super::super::shown::Shown;
use super::reading::deletes;
use super::{now, pod, workload};
use crate::config::Settings;
use crate::placement::Verdict;

fn settings() -> Settings {
    Settings {
        show_pending: true,
        ..Settings::default()
    }
}

/// It waits for room, and the scheduler has said so.
fn waits(shown: Shown) -> Seen {
    let verdict = Verdict {
        reason: reason::WAITING_FOR_CAPACITY,
        message: "0 of 2 nodes fit".to_owned(),
    };
    Seen {
        verdict: Some(verdict),
        shown,
        ..Seen::default()
    }
}

fn asking(more: Value) -> GPUWorkload {
    let mut spec = json!({"whenPending": "ungate"});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    workload(spec, json!(null))
}

fn planned(workload: &GPUWorkload, seen: &Seen) -> Course {
    plan(workload, seen, &settings(), now())
}

fn made(course: &Course) -> Vec<Value> {
    let made = course
        .steps
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::Create { object, .. } => Some(object.clone()),
            _ => None,
        });
    made.collect()
}

/// The Job that is made for it, as the cluster shows it.
fn stand_in(workload: &GPUWorkload, shown: Shown) -> Job {
    let made = made(&planned(workload, &waits(shown)));
    let mut job = made[0].clone();
    job["metadata"]["uid"] = json!("shown-0");
    job["metadata"]["resourceVersion"] = json!("5");
    serde_json::from_value(job).expect("a Job")
}

#[test]
fn pods_that_ask_for_the_same_and_are_never_bound_stand_in_for_it() {
    let selector = json!({"pool": "gpu"});
    let template = json!({"image": null, "replicas": 2, "podTemplate": {"spec": {
        "nodeSelector": selector,
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "containers": [{"name": "main", "image": "img:1", "command": ["train"], "resources": {"requests": {"cpu": "4"}},
                        "env": [{"name": "TOKEN", "value": "x"}]}],
    }}});
    let unfit = [(
        "nvidia.com/gpu.product".to_owned(),
        ["Tesla-T4".to_owned()].into(),
    )];
    let shown = Shown {
        unfit: unfit.into(),
        ..Shown::default()
    };
    let workload = asking(template);
    let course = planned(&workload, &waits(shown.clone()));
    let job = &made(&course)[0];
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(job["spec"]["parallelism"], 2);
    assert_eq!(job["metadata"]["ownerReferences"][0]["name"], "train");
    assert_eq!(pod["schedulerName"], "gpu.warp.dev/never");
    assert_eq!(pod["nodeSelector"], selector);
    let keys: Vec<&Value> = pod["tolerations"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| &one["key"])
        .collect();
    assert!(keys.contains(&&json!("team")) && keys.contains(&&json!("nvidia.com/gpu")));
    let container = &pod["containers"][0];
    assert_eq!(
        container["resources"]["requests"],
        json!({"cpu": "4", "nvidia.com/gpu": "2"})
    );
    assert_eq!(container["image"], settings().stand_in_image);
    // Nothing of the program is in it.
    assert_eq!(
        (&container["command"], &container["env"]),
        (&Value::Null, &Value::Null)
    );
    let terms = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"];
    assert_eq!(
        terms[0]["matchExpressions"],
        json!([{"key": "nvidia.com/gpu.product", "operator": "NotIn", "values": ["Tesla-T4"]}])
    );
    let status = course.status.expect("a status");
    let told = status.shown.expect("shown");
    assert_eq!(job["metadata"]["name"], told.job_name.as_str());
    assert_eq!(told.since.0, now());
    let message = status.message.unwrap_or_default();
    assert!(
        message.contains("shows it to the cluster's autoscaler"),
        "{message}"
    );
}

#[test]
fn its_pods_are_marked_once_and_nothing_is_made_twice() {
    let workload = asking(json!({}));
    let job = stand_in(&workload, Shown::default());
    let fresh = pod(
        json!({"ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "s", "uid": "shown-0", "controller": true}]}),
        json!({"nodeName": null}),
        json!({"phase": "Pending"}),
    );
    let mut shown = Shown {
        jobs: vec![job.into()],
        pods: vec![fresh],
        ..Shown::default()
    };
    let course = planned(&workload, &waits(shown.clone()));
    let [Action::Patch { sub, patch, .. }] = &course.steps.actions[..] else {
        panic!("{:?}", course.steps.actions)
    };
    assert_eq!(*sub, Some("status"));
    let condition = &patch["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("PodScheduled"), &json!("Unschedulable"))
    );
    let mut marked = (*shown.pods[0]).clone();
    marked.status = serde_json::from_value(json!({"conditions": [condition]})).unwrap();
    shown.pods = vec![marked.into()];
    assert_eq!(planned(&workload, &waits(shown)).steps.actions, []);
}

#[test]
fn it_goes_when_nobody_waits_any_more_or_asks_for_it() {
    let told = asking(json!({}));
    let job = stand_in(&told, Shown::default());
    let name = job.metadata.name.clone().unwrap_or_default();
    let shown = Shown {
        jobs: vec![job.into()],
        ..Shown::default()
    };
    let known = json!({"shown": {"since": now(), "jobName": name}});
    let placed = Seen {
        jobs: vec![super::job(0, json!([]))],
        shown: shown.clone(),
        ..Seen::default()
    };
    let took_back = workload(json!({}), known.clone());
    let suspended = workload(
        json!({"whenPending": "ungate", "suspend": true}),
        known.clone(),
    );
    let waiting = workload(json!({"whenPending": "ungate"}), known);
    for (workload, seen) in [
        (&waiting, placed),
        (&took_back, waits(shown.clone())),
        (&suspended, waits(shown)),
    ] {
        let course = planned(workload, &seen);
        assert_eq!(deletes(&course), [("Job".to_owned(), name.clone())]);
        assert_eq!(course.status.expect("a status").shown, None);
    }
}

#[test]
fn what_cannot_be_shown_says_why() {
    let workload = asking(json!({}));
    let without = plan(
        &workload,
        &waits(Shown::default()),
        &Settings::default(),
        now(),
    );
    assert_eq!(made(&without), [] as [Value; 0]);
    let counted = Shown {
        counted_by: Some("team-quota".to_owned()),
        ..Shown::default()
    };
    let counted = planned(&workload, &waits(counted));
    assert_eq!(made(&counted), [] as [Value; 0]);
    for (course, words) in [
        (without, "--show-pending"),
        (counted, "ResourceQuota team-quota"),
    ] {
        let status = course.status.expect("a status");
        assert_eq!(status.shown, None);
        let message = status.message.unwrap_or_default();
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn work_that_does_not_ask_has_nothing_of_it() {
    let course = planned(&workload(json!({}), json!(null)), &waits(Shown::default()));
    assert!(made(&course).is_empty());
    let held = asking(json!({"whenPending": "hold"}));
    assert!(made(&planned(&held, &waits(Shown::default()))).is_empty());
}
