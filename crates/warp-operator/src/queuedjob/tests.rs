//! What is done about queued objects, from what is seen of them.

mod others;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use warp_api::workload::Priority;
use warp_api::{label, reason};
use warp_runtime::plan::{Action, Plan};

use super::kinds::{JOB, QueuedKind};
use super::observe::Seen;
use super::queued::Queued;
use super::standing::{Standing, standing};
use super::{Asking, Running, ask, objects, plan, priority, promises};
use crate::config::Settings;
use crate::estimates::Forecast;
use crate::placement::{Cause, Claimant, Place, Runner, Verdict};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// `base` with the fields of `more` put over it.
fn over(base: &mut Value, more: &Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                over(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, more) => base.clone_from(more),
    }
}

/// An object and the manifest it was read from.
#[derive(Clone, Debug)]
struct Object {
    manifest: Value,
    queued: Arc<Queued>,
}

impl std::ops::Deref for Object {
    type Target = Queued;

    fn deref(&self) -> &Queued {
        &self.queued
    }
}

fn object(kind: &'static QueuedKind, manifest: Value) -> Object {
    let queued = Arc::new(kind.read(&manifest).unwrap());
    Object { manifest, queued }
}

/// A Job of one pod with two GPUs that waits in the queue, changed by `more`.
fn job(more: &Value) -> Object {
    let mut base = json!({
        "metadata": {
            "name": "train", "namespace": "team", "uid": "u", "resourceVersion": "7", "generation": 1,
            "creationTimestamp": NOW.to_string(),
            "labels": {label::QUEUE: "true"},
        },
        "spec": {
            "suspend": true,
            "template": {"spec": {"restartPolicy": "Never", "containers": [
                {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "1"}}},
            ]}},
        },
        "status": {"conditions": [{"type": "Suspended", "status": "True"}]},
    });
    over(&mut base, more);
    object(JOB, base)
}

fn pod(name: &str, more: &Value) -> Arc<Pod> {
    let mut base = json!({
        "metadata": {
            "name": name, "namespace": "team", "uid": name, "resourceVersion": "1",
            "creationTimestamp": NOW.to_string(),
        },
        "spec": {"containers": []},
        "status": {"phase": "Pending"},
    });
    over(&mut base, more);
    Arc::new(serde_json::from_value(base).unwrap())
}

fn gated(name: &str) -> Arc<Pod> {
    pod(
        name,
        &json!({"spec": {"schedulingGates": [{"name": label::GANG_GATE}]}}),
    )
}

fn bound(name: &str, node: &str) -> Arc<Pod> {
    pod(name, &json!({"spec": {"nodeName": node}}))
}

fn seen(pods: Vec<Arc<Pod>>) -> Seen {
    Seen {
        pods,
        refusal: None,
        priority: Ok(Priority::Normal),
        verdict: None,
        held_until: None,
        position: None,
        arrived: None,
        forecast: None,
    }
}

fn at(nodes: &[&str]) -> Vec<Place> {
    let place = |node: &&str| Place {
        node: (*node).to_owned(),
        resource: "nvidia.com/gpu".to_owned(),
        extra: std::collections::BTreeMap::new(),
        milli: 1000,
        evidence: None,
        strategy: "warp",
        provider: "kubernetes".to_owned(),
        why: format!("warp chose node {node}"),
    };
    nodes.iter().map(place).collect()
}

fn planned(job: &Queued, seen: &Seen) -> Plan {
    plan::plan(job, seen, &Settings::default(), NOW)
}

/// The one patch of a plan.
fn patch(plan: &Plan) -> &Value {
    let mut patches = plan.actions.iter().filter_map(|action| match action {
        Action::Patch { patch, .. } => Some(patch),
        _ => None,
    });
    let first = patches.next().expect("a patch");
    assert!(patches.next().is_none(), "{plan:?}");
    first
}

fn told(plan: &Plan) -> Vec<&str> {
    let notes = plan.actions.iter().filter_map(|action| match action {
        Action::Note(note) => Some(note.reason.as_str()),
        _ => None,
    });
    notes.collect()
}

/// The object as the API server has it after a patch.
fn patched(job: &Object, patch: &Value) -> Object {
    fn merge(base: &mut Value, patch: &Value) {
        let (Value::Object(fields), Value::Object(patch)) = (&mut *base, patch) else {
            base.clone_from(patch);
            return;
        };
        for (key, value) in patch {
            if value.is_null() {
                fields.remove(key);
            } else {
                merge(fields.entry(key).or_insert(json!({})), value);
            }
        }
    }
    let mut manifest = job.manifest.clone();
    merge(&mut manifest, patch);
    object(job.kind, manifest)
}

fn asking(job: &Object) -> Asking {
    let asked = (Priority::Normal, false);
    Asking::new(None, Arc::clone(&job.queued), asked, NOW).unwrap()
}

fn placed(job: &Object, nodes: &[&str]) -> Object {
    let plan = asking(job).plan(&at(nodes), NOW);
    patched(job, patch(&plan))
}

#[test]
fn a_job_stands_where_it_and_its_pods_say() {
    let here = bound("p", "n");
    let nodes = json!({"metadata": {"annotations": {label::NODES: "n"}}});
    let running =
        json!({"spec": {"suspend": false}, "metadata": {"annotations": {label::NODES: "n"}}});
    let requeued =
        json!({"metadata": {"annotations": {label::NODES: "n", label::REQUEUED: "why"}}});
    let started = json!({
        "metadata": {"annotations": {label::REQUEUED: "why", label::NODES: "n"}},
        "status": {"startTime": NOW.to_string()},
    });
    let cases: [(Value, &[Arc<Pod>], Standing); 13] = [
        (json!({}), &[], Standing::Queued),
        (
            json!({"status": {"conditions": null}}),
            &[],
            Standing::Settling,
        ),
        (json!({}), std::slice::from_ref(&here), Standing::Settling),
        (json!({"spec": {"suspend": false}}), &[], Standing::Unheld),
        (
            json!({"status": {"startTime": NOW.to_string()}}),
            &[],
            Standing::Restarting,
        ),
        (running, &[], Standing::Placed),
        (nodes, &[], Standing::Stopped),
        (
            requeued.clone(),
            std::slice::from_ref(&here),
            Standing::Settling,
        ),
        (started, &[], Standing::Restarting),
        (requeued, &[], Standing::Leaving),
        (
            json!({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}),
            &[],
            Standing::Aside,
        ),
        (
            json!({"metadata": {"deletionTimestamp": NOW.to_string()}}),
            &[],
            Standing::Aside,
        ),
        (
            json!({"metadata": {"ownerReferences": [{
                "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "name": "w", "uid": "w", "controller": true,
            }]}}),
            &[],
            Standing::Aside,
        ),
    ];
    for (more, pods, wanted) in cases {
        assert_eq!(standing(&job(&more), pods), wanted, "{more}");
    }
}

#[test]
fn only_jobs_with_the_label_that_nobody_else_runs_are_queued() {
    let is_queued = |more: &Value| standing(&job(more), &[]) == Standing::Queued;
    assert!(is_queued(&json!({})));
    for more in [
        json!({"metadata": {"labels": {label::QUEUE: "false"}}}),
        json!({"metadata": {"labels": {label::WORKLOAD_UID: "w"}}}),
        json!({"spec": {"managedBy": "example.com/elsewhere"}}),
        json!({"metadata": {"ownerReferences": [{
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "s", "uid": "s", "controller": true,
        }]}}),
    ] {
        assert!(!is_queued(&more), "{more}");
    }
    let cron = json!({"metadata": {"ownerReferences": [{
        "apiVersion": "batch/v1", "kind": "CronJob", "name": "c", "uid": "c", "controller": true,
    }]}});
    assert!(is_queued(&cron), "a CronJob leaves suspend alone");
}

#[test]
fn what_a_job_asks_for_is_read_from_its_template() {
    let found = ask(&job(&json!({"spec": {"parallelism": 3, "completions": 2}}))).unwrap();
    assert_eq!((found.pods(), found.total_gpus()), (2, 4));
    assert_eq!(found.resource, "nvidia.com/gpu");
    let left = found.groups[0].without_gpus(found.resource);
    let left = left.containers[0].resources.as_ref().unwrap();
    let left: Vec<&String> = left.limits.iter().flatten().map(|(name, _)| name).collect();
    assert_eq!(left, ["cpu"], "the GPUs are counted once");
    for (more, said) in [
        (json!({"spec": {"parallelism": 0}}), "wants no pod"),
        (json!({"spec": {"parallelism": 513}}), "at most 512"),
        (
            json!({"spec": {"template": {"spec": {"containers": [{"name": "c"}]}}}}),
            "no whole GPU",
        ),
        (
            json!({"spec": {"template": {"spec": {"containers": [
                {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1", "amd.com/gpu": "1"}}},
            ]}}}}),
            "nvidia.com/gpu and amd.com/gpu",
        ),
    ] {
        let bad = ask(&job(&more)).unwrap_err();
        assert!(bad.contains(said), "{bad}");
    }
}

#[test]
fn a_priority_is_an_annotation_or_a_class() {
    let among = |more: Value, usual: Option<Priority>| {
        let class = |name: &str| match name {
            "urgent" => Some(1000),
            "idle" => Some(-5),
            _ => None,
        };
        priority(&job(&more), class, usual)
    };
    let of = |more: Value| among(more, None);
    let class = |name: &str| json!({"spec": {"template": {"spec": {"priorityClassName": name}}}});
    assert_eq!(of(json!({})), Ok(Priority::Normal));
    assert_eq!(of(class("urgent")), Ok(Priority::High));
    assert_eq!(of(class("idle")), Ok(Priority::Low));
    let usual = Some(Priority::Low);
    assert_eq!(among(json!({}), usual), usual.ok_or_else(String::new));
    assert_eq!(among(class("urgent"), usual), Ok(Priority::High));
    assert!(of(class("typo")).unwrap_err().contains("typo"));
    let said = |word: &str| json!({"metadata": {"annotations": {label::PRIORITY: word}}});
    assert_eq!(of(said("low")), Ok(Priority::Low));
    assert!(
        of(said("medium"))
            .unwrap_err()
            .contains("high, normal or low")
    );
}

#[test]
fn one_pod_is_pinned_by_one_write_of_this_version_and_what_its_owner_requires_stays() {
    let zone = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]);
    let required =
        json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zone}});
    let own = json!({"spec": {"template": {"spec": {"affinity": {"nodeAffinity": required}}}}});
    for before in [job(&json!({})), job(&own)] {
        let plan = asking(&before).plan(&at(&["n1"]), NOW);
        assert_eq!(patch(&plan)["metadata"]["resourceVersion"], "7");
        let after = patched(&before, patch(&plan));
        assert_eq!(standing(&after, &[]), Standing::Placed);
        let pinned = crate::ledger::pinned_to(&after.groups[0].pod);
        assert_eq!(pinned.as_deref(), Some("n1"));
        assert_eq!(told(&plan), [reason::EVENT_SCHEDULED]);
        // Taken off its node, it is what it was.
        let back = patched(&after, &objects::leave(&after));
        let pod = |job: &Object| job.groups[0].pod.clone();
        assert_eq!(pod(&back), pod(&before));
    }
}

#[test]
fn pods_of_a_wide_job_are_let_go_together_each_to_its_own_place() {
    let wide =
        job(&json!({"spec": {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}}));
    let after = placed(&wide, &["n1", "n2"]);
    let gates = |job: &Object| {
        let pod = &job.groups[0].pod;
        pod.scheduling_gates.iter().flatten().count()
    };
    assert_eq!(gates(&after), 1);
    assert!(planned(&after, &seen(vec![gated("a")])).actions.is_empty());
    let plan = planned(&after, &seen(vec![gated("b"), gated("a")]));
    let goes: Vec<(String, String)> = plan
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::Patch { key, patch, .. } => {
                let required = &patch["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
                let node = required.pointer("/nodeSelectorTerms/0/matchFields/0/values/0")?;
                Some((key.name.to_string(), node.as_str()?.to_owned()))
            }
            _ => None,
        })
        .collect();
    let wanted = [("a", "n1"), ("b", "n2")].map(|(pod, node)| (pod.to_owned(), node.to_owned()));
    assert_eq!(goes, wanted);
    assert!(!plan.premises.is_empty());
    // One that follows a member that failed gets the place that is free.
    let again = objects::to_let_go(&after, &[bound("a", "n2"), gated("c")])
        .remove(0)
        .1;
    assert_eq!(again, "n1");
    let back = patched(&after, &objects::leave(&after));
    assert_eq!(gates(&back), 0);
}

#[test]
fn a_job_that_has_outgrown_its_places_is_queued_again() {
    let wide = job(&json!({"spec": {"parallelism": 2, "completions": 4}}));
    let after = placed(&wide, &["n1", "n2"]);
    let two = vec![bound("a", "n1"), bound("b", "n2")];
    assert!(planned(&after, &seen(two.clone())).actions.is_empty());
    let wider = patched(&after, &json!({"spec": {"parallelism": 4}}));
    let four = two.into_iter().chain([gated("c"), gated("d")]);
    let plan = planned(&wider, &seen(four.collect()));
    let suspends = |action: &Action| matches!(action, Action::Patch { patch, .. } if patch["spec"]["suspend"] == true);
    assert!(plan.actions.iter().any(suspends), "{plan:?}");
    let said = format!("{plan:?}");
    assert!(
        said.contains("it wants 4 pods and was given 2 places"),
        "{said}"
    );
}

#[test]
fn a_place_is_kept_until_its_pod_has_it_and_no_longer() {
    let one = placed(&job(&json!({})), &["n1"]);
    let kept = promises(&one, &[]);
    assert_eq!(kept.len(), 1);
    assert!(!kept[0].counted);
    assert_eq!(
        crate::ledger::pinned_to(&kept[0].spec).as_deref(),
        Some("n1")
    );
    assert!(promises(&one, &[bound("a", "n1")]).is_empty());
    let wide = json!({"spec": {"parallelism": 3, "completions": 3}});
    let wide = placed(&job(&wide), &["n1", "n1", "n2"]);
    assert_eq!(promises(&wide, &[]).len(), 3);
    let kept = promises(&wide, &[bound("a", "n1"), gated("b")]);
    let counted: Vec<bool> = kept.iter().map(|promise| promise.counted).collect();
    assert_eq!(counted, [true, false], "quotas count the gated pod already");
    let done = patched(&wide, &json!({"status": {"succeeded": 2}}));
    assert!(promises(&done, &[bound("a", "n1")]).is_empty());
    let suspended = patched(&wide, &json!({"spec": {"suspend": true}}));
    assert!(promises(&suspended, &[]).is_empty());
}

#[test]
fn what_it_waits_for_is_written_once_and_told_when_the_reason_is_new() {
    let before = job(&json!({}));
    let plan = planned(&before, &seen(vec![]));
    assert!(plan.actions.is_empty());
    assert_eq!(plan.wake.len(), 1, "the scheduler has not looked at it");
    let waits = Seen {
        verdict: Some(Verdict {
            reason: reason::WAITING_FOR_CAPACITY,
            message: "tolerate a in spec.podTemplate".to_owned(),
        }),
        position: Some(3),
        arrived: Some(NOW + SignedDuration::from_micros(5)),
        ..seen(vec![])
    };
    let plan = planned(&before, &waits);
    let said = &patch(&plan)["metadata"]["annotations"];
    assert_eq!(said[label::QUEUE_POSITION], "3");
    assert_eq!(said[label::WAITING_FOR], "tolerate a in spec.template");
    assert_eq!(told(&plan), [reason::WAITING_FOR_CAPACITY]);
    let after = patched(&before, patch(&plan));
    assert_eq!(super::queued_at(&after), waits.arrived);
    assert!(planned(&after, &waits).is_idle());
    let further = Seen {
        position: Some(1),
        ..waits
    };
    let plan = planned(&after, &further);
    assert!(told(&plan).is_empty(), "the reason is the same");
    assert_eq!(
        patch(&plan)["metadata"]["annotations"][label::QUEUE_POSITION],
        "1"
    );
}

#[test]
fn what_cannot_be_queued_and_what_was_never_held_is_told_once() {
    let bad = job(&json!({"spec": {"parallelism": 0}}));
    let free = job(&json!({"spec": {"suspend": false}}));
    let stopped = job(&json!({"metadata": {"annotations": {label::NODES: "n"}}}));
    let typo = job(&json!({"metadata": {"labels": {label::QUEUE: "yes"}}}));
    for (job, reason) in [
        (typo, reason::INVALID_SPEC),
        (bad, reason::INVALID_SPEC),
        (free, reason::NOT_HELD),
        (stopped, reason::JOB_SUSPENDED),
    ] {
        let plan = planned(&job, &seen(vec![]));
        assert_eq!(told(&plan), [reason]);
        assert!(
            patch(&plan).pointer("/spec").is_none(),
            "suspend is not ours to change"
        );
        let after = patched(&job, patch(&plan));
        assert!(planned(&after, &seen(vec![])).is_idle(), "{reason}");
    }
}

#[test]
fn one_that_makes_room_is_suspended_ends_and_is_queued_as_it_was() {
    let before = job(&json!({}));
    let started = json!({
        "metadata": {"resourceVersion": "9"},
        "status": {"conditions": null, "startTime": NOW.to_string()},
    });
    let running = patched(&placed(&before, &["n1"]), &started);
    let pods = [bound("p", "n1")];
    let runner = Running::of(&running.queued, &pods, Priority::Low).unwrap();
    assert_eq!((runner.runs().gpus, runner.runs().works.len()), (2, 1));
    assert!(Running::of(&running.queued, &[], Priority::Low).is_none());
    let mut plan = Plan::default();
    runner.evict(&mut plan, asking(&before).claim(), Cause::Priority);
    assert_eq!(told(&plan), [reason::PREEMPTED]);
    let going = patched(&running, patch(&plan));
    assert_eq!(standing(&going, &pods), Standing::Settling);
    // Its pods still end: nobody else has to go for them.
    let still = Running::of(&going.queued, &pods, Priority::Low).unwrap();
    assert!(still.runs().evicted_for.is_some());
    let suspended = json!([{"type": "Suspended", "status": "True"}]);
    let going = patched(&going, &json!({"status": {"conditions": suspended}}));
    let plan = planned(&going, &seen(vec![]));
    assert_eq!(patch(&plan)["status"], json!({"startTime": null}));
    let ended = patched(&going, patch(&plan));
    let plan = planned(&ended, &seen(vec![]));
    let back = patched(&ended, patch(&plan));
    assert_eq!(standing(&back, &[]), Standing::Queued);
    assert_eq!(back.manifest["spec"], before.manifest["spec"]);
}

#[test]
fn a_job_that_its_node_does_not_take_is_queued_again_elsewhere() {
    let settled = json!({"status": {"conditions": null}});
    let running = patched(&placed(&job(&json!({})), &["n1"]), &settled);
    let pinned = running.manifest["spec"]["template"]["spec"].clone();
    let refused = json!({"spec": {"affinity": pinned["affinity"]}, "status": {"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"},
    ]}});
    let open = json!({"spec": {"affinity": pinned["affinity"]}});
    let plan = planned(&running, &seen(vec![pod("p", &open)]));
    assert!(
        plan.again.is_some(),
        "it is looked at again when it is late"
    );
    assert!(plan.actions.is_empty());
    let plan = planned(&running, &seen(vec![pod("p", &refused)]));
    assert_eq!(told(&plan), [reason::PLACEMENT_REFUSED]);
    let after = patched(&running, patch(&plan));
    assert!(after.suspended());
    let back = patched(&after, &objects::leave(&after));
    assert_eq!(&*asking(&back).claim().avoided[0], "n1");
}

#[test]
fn what_a_hand_can_change_of_it_is_known() {
    use crate::foresight::{Hold, hold_of};
    let of = |more: &Value| hold_of(&job(more));
    let unread = json!({"metadata": {"labels": {label::QUEUE: "perhaps"}}});
    let left = json!({"metadata": {"labels": {label::QUEUE: "false"}}});
    assert_eq!(of(&json!({})), Hold::Waits);
    assert_eq!(of(&left), Hold::OutOfLine);
    assert_eq!(of(&unread), Hold::Foreign);
    assert_eq!(of(&json!({"spec": {"suspend": false}})), Hold::Runs);
    let placed = json!({"metadata": {"annotations": {label::NODES: "a"}}});
    assert_eq!(of(&placed), Hold::Stopped, "by hand");
    assert_eq!(
        job(&json!({})).hold(true),
        json!({"spec": {"suspend": true}})
    );
}

#[test]
fn when_it_starts_is_an_annotation_that_is_written_when_it_has_moved() {
    let before = job(&json!({}));
    let waits = |reason: &'static str, forecast: Option<Forecast>| Seen {
        verdict: Some(Verdict {
            reason,
            message: "full".to_owned(),
        }),
        forecast,
        ..seen(vec![])
    };
    let soon = |minutes: i64| {
        let times = [minutes - 5, minutes, minutes + 9].map(|minute| minute * 60);
        waits(reason::WAITING_FOR_CAPACITY, Some(Forecast::at(NOW, times)))
    };
    let plan = planned(&before, &soon(60));
    let after = patched(&before, patch(&plan));
    let told = after.estimated_start().expect("a start");
    assert_eq!(told.at.0, NOW + SignedDuration::from_mins(60));
    assert!(planned(&after, &soon(61)).is_idle(), "nearly the same");
    let unasked = waits(reason::WAITING_FOR_CAPACITY, None);
    assert!(planned(&after, &unasked).is_idle(), "what was said holds");
    let moved = patched(&after, patch(&planned(&after, &soon(120))));
    assert!(moved.estimated_start().expect("a start").at.0 > told.at.0);
    let barred = waits(reason::TENANT_QUOTA_EXCEEDED, None);
    let barred = patched(&after, patch(&planned(&after, &barred)));
    assert_eq!(barred.estimated_start(), None, "nobody can tell");
}
