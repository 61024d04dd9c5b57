//! The same for kinds whose templates stand elsewhere: one manifest of each, as people write it.

use super::*;
use crate::queuedjob::kinds::{KINDS, kind_named};

/// A pod template that asks for so many GPUs.
fn template(gpus: u32) -> Value {
    let limits = if gpus == 0 {
        json!({"cpu": "1"})
    } else {
        json!({"cpu": "1", "nvidia.com/gpu": gpus.to_string()})
    };
    json!({"spec": {"containers": [{"name": "main", "image": "trainer", "resources": {"limits": limits}}]}})
}

/// An object of one kind that waits in the queue, two pods of two GPUs and perhaps others.
fn waiting(kind: &str, more: &Value) -> Object {
    let suspended = json!({"conditions": [{"type": "Suspended", "status": "True"}]});
    let (spec, status) = match kind {
        "jobset" => (
            json!({"suspend": true, "replicatedJobs": [
                {"name": "leader", "replicas": 1, "template": {"spec": {"template": template(0)}}},
                {"name": "workers", "replicas": 1, "template": {"spec": {
                    "parallelism": 2, "completions": 2, "template": template(2),
                }}},
            ]}),
            suspended,
        ),
        "pytorchjob" => (
            json!({"runPolicy": {"suspend": true, "activeDeadlineSeconds": 60}, "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "restartPolicy": "Never", "template": template(2)},
                "Worker": {"replicas": 1, "restartPolicy": "Never", "template": template(2)},
            }}),
            suspended,
        ),
        "mpijob" => (
            json!({"slotsPerWorker": 2, "runPolicy": {"suspend": true}, "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": template(0)},
                "Worker": {"replicas": 2, "template": template(2)},
            }}),
            suspended,
        ),
        "rayjob" => (
            json!({"suspend": true, "shutdownAfterJobFinishes": true, "rayClusterSpec": {
                "headGroupSpec": {"rayStartParams": {}, "template": template(0)},
                "workerGroupSpecs": [{"groupName": "gpu", "replicas": 2, "rayStartParams": {}, "template": template(2)}],
            }}),
            json!({"jobDeploymentStatus": "Suspended"}),
        ),
        other => panic!("{other} is no kind of others"),
    };
    let mut manifest = json!({
        "metadata": {
            "name": "train", "namespace": "team", "uid": "u", "resourceVersion": "7", "generation": 1,
            "creationTimestamp": NOW.to_string(), "labels": {label::QUEUE: "true"},
        },
        "spec": spec,
        "status": status,
    });
    over(&mut manifest, more);
    object(kind_named(kind).unwrap(), manifest)
}

const OTHERS: [&str; 4] = ["jobset", "pytorchjob", "mpijob", "rayjob"];

/// The pods a controller makes of an object's templates that carry its mark.
fn pods_of(job: &Object) -> Vec<Arc<Pod>> {
    let mut pods = Vec::new();
    for group in &job.groups {
        let marked = group.meta.labels.iter().flatten().next().is_some();
        for _ in 0..if marked { group.pods } else { 0 } {
            let mut made = Pod::clone(&pod(&format!("p{}", pods.len()), &json!({})));
            made.metadata.labels.clone_from(&group.meta.labels);
            made.spec = Some(group.pod.clone());
            pods.push(Arc::new(made));
        }
    }
    pods
}

#[test]
fn every_kind_is_found_by_the_names_people_write() {
    for kind in KINDS {
        let (group, version) = kind.api_version.split_once('/').unwrap();
        for written in [
            kind.kind.to_owned(),
            kind.plural.to_owned(),
            format!("{}.{group}", kind.plural),
            format!("{}.{version}.{group}", kind.singular),
        ] {
            assert_eq!(kind_named(&written).unwrap().kind, kind.kind, "{written}");
        }
    }
    assert!(kind_named("jobs.kubeflow.org").is_none());
    assert!(kind_named("pods").is_none());
}

#[test]
fn pods_that_ask_for_gpus_are_placed_and_the_others_are_left_alone() {
    for kind in OTHERS {
        let before = waiting(kind, &json!({}));
        assert_eq!(standing(&before, &[]), Standing::Queued, "{kind}");
        let asked = ask(&before).unwrap();
        assert_eq!((asked.pods(), asked.total_gpus()), (2, 4), "{kind}");
        let after = placed(&before, &["n1", "n2"]);
        assert_eq!(standing(&after, &[]), Standing::Placed, "{kind}");
        assert!(!after.suspended());
        for group in &after.groups {
            let asks = asked.groups.iter();
            let mut asks = asks.map(|group| &after.groups[group.template].at);
            let gated = group.pod.scheduling_gates.is_some();
            assert_eq!(gated, asks.any(|at| *at == group.at), "{kind}");
        }
        assert_eq!(promises(&after, &[]).len(), 2, "{kind}");
        let pods = pods_of(&after);
        assert_eq!(pods.len(), 2, "{kind}");
        let mut nodes: Vec<String> = objects::to_let_go(&after, &pods)
            .into_iter()
            .map(|(_, node)| node)
            .collect();
        nodes.sort();
        assert_eq!(nodes, ["n1", "n2"], "{kind}");
        let back = patched(&after, &objects::leave(&after));
        let suspended = patched(&back, &objects::requeue(&back, "why", None));
        assert_eq!(
            suspended.manifest["spec"], before.manifest["spec"],
            "{kind}"
        );
    }
}

#[test]
fn one_that_makes_room_is_suspended_and_queued_as_it_was_whatever_its_kind() {
    for kind in OTHERS {
        let before = waiting(kind, &json!({}));
        let after = placed(&before, &["n1", "n2"]);
        let running = json!({"status": {"conditions": null, "jobDeploymentStatus": "Running"}});
        let after = patched(&after, &running);
        let runs = |pod: &Arc<Pod>| {
            let mut pod = Pod::clone(pod);
            let spec = pod.spec.as_mut().unwrap();
            spec.node_name = Some("n1".to_owned());
            spec.scheduling_gates = None;
            Arc::new(pod)
        };
        let pods: Vec<Arc<Pod>> = pods_of(&after).iter().map(runs).collect();
        let runner = Running::of(&after.queued, &pods, Priority::Low).unwrap();
        assert_eq!((runner.runs().gpus, runner.runs().works.len()), (4, 2));
        assert!(Running::of(&after.queued, &pods[..1], Priority::Low).is_none());
        let mut plan = Plan::default();
        runner.evict(&mut plan, asking(&before).claim(), Cause::Priority);
        let going = patched(&after, patch(&plan));
        assert!(going.suspended(), "{kind}");
        assert_eq!(standing(&going, &pods), Standing::Settling, "{kind}");
        let seen_suspended = json!({"status": before.manifest["status"]});
        let going = patched(&going, &seen_suspended);
        assert_eq!(
            standing(&going, &pods),
            Standing::Settling,
            "its pods still end"
        );
        assert_eq!(standing(&going, &[]), Standing::Leaving, "{kind}");
        let back = patched(&going, patch(&planned(&going, &seen(vec![]))));
        assert_eq!(standing(&back, &[]), Standing::Queued, "{kind}");
        assert_eq!(back.manifest["spec"], before.manifest["spec"], "{kind}");
    }
}

#[test]
fn a_pod_that_has_ended_well_needs_its_place_no_more_and_one_that_is_made_again_does() {
    let after = placed(&waiting("pytorchjob", &json!({})), &["n1", "n2"]);
    let pods = pods_of(&after);
    let ended = |phase: &str| {
        let mut pod = Pod::clone(&pods[1]);
        pod.status.as_mut().unwrap().phase = Some(phase.to_owned());
        Arc::new(pod)
    };
    let mut first = Pod::clone(&pods[0]);
    first.spec.as_mut().unwrap().node_name = Some("n1".to_owned());
    let first = Arc::new(first);
    assert!(promises(&after, &[Arc::clone(&first), ended("Succeeded")]).is_empty());
    let kept = promises(&after, &[Arc::clone(&first), ended("Failed")]);
    assert_eq!(kept.len(), 1, "its controller makes another");
    let all = [first, ended("Failed"), Arc::clone(&pods[1])];
    let again = objects::to_let_go(&after, &all);
    assert_eq!(again[0].1, "n2");
}

#[test]
fn how_each_kind_ends_is_read_from_where_it_says_so() {
    let condition = |kind: &str| json!({"status": {"conditions": [{"type": kind, "status": "True", "message": "m"}]}});
    let deployment =
        |status: &str| json!({"status": {"jobDeploymentStatus": status, "message": "m"}});
    for (kind, well, badly) in [
        ("jobset", condition("Completed"), condition("Failed")),
        ("pytorchjob", condition("Succeeded"), condition("Failed")),
        ("mpijob", condition("Succeeded"), condition("Failed")),
        ("rayjob", deployment("Complete"), deployment("Failed")),
    ] {
        use crate::queuedjob::End;
        assert_eq!(waiting(kind, &well).end, Some(End::Well), "{kind}");
        let failed = waiting(kind, &badly);
        assert_eq!(failed.end, Some(End::Badly("m".to_owned())), "{kind}");
        assert_eq!(standing(&failed, &[]), Standing::Aside);
        assert!(waiting(kind, &json!({})).end.is_none());
    }
}

#[test]
fn what_a_kind_cannot_be_queued_with_is_said_in_its_own_words() {
    let scales = json!({"spec": {"rayClusterSpec": {"enableInTreeAutoscaling": true}}});
    let elsewhere = json!({"spec": {"clusterSelector": {"ray.io/cluster": "c"}}});
    let no_pods = json!({"spec": {"mpiReplicaSpecs": {"Launcher": {"replicas": 0}, "Worker": {"replicas": 0}}}});
    let no_gpu = json!({"spec": {"pytorchReplicaSpecs": {"Master": {"template": template(0)}, "Worker": null}}});
    let unreadable = json!({"spec": {"replicatedJobs": [
        {"name": "w", "template": {"spec": {"template": {"spec": {"containers": "none"}}}}},
    ]}});
    for (kind, more, said) in [
        ("rayjob", scales, "enableInTreeAutoscaling"),
        ("rayjob", elsewhere, "clusterSelector"),
        ("mpijob", no_pods, "spec.mpiReplicaSpecs.*.replicas"),
        ("pytorchjob", no_gpu, "spec.pytorchReplicaSpecs.*.template"),
        ("jobset", unreadable, "cannot be read"),
    ] {
        let bad = waiting(kind, &more);
        let plan = planned(&bad, &seen(vec![]));
        assert_eq!(told(&plan), [reason::INVALID_SPEC], "{kind}");
        let waiting_for = &patch(&plan)["metadata"]["annotations"][label::WAITING_FOR];
        assert!(
            waiting_for.as_str().unwrap().contains(said),
            "{waiting_for}"
        );
    }
    let elsewhere = json!({"spec": {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}});
    assert_eq!(
        standing(&waiting("mpijob", &elsewhere), &[]),
        Standing::Aside
    );
}

#[test]
fn what_was_never_made_gives_its_places_back_in_time() {
    let after = placed(&waiting("jobset", &json!({})), &["n1", "n2"]);
    let plan = planned(&after, &seen(vec![]));
    let due = plan.again.expect("a time to look again");
    let late = plan::plan(&after, &seen(vec![]), &Settings::default(), due);
    assert_eq!(told(&late), [reason::PLACEMENT_REFUSED]);
    assert!(patched(&after, patch(&late)).suspended());
}
