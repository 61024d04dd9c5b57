//! What should happen to one queued Job besides being placed, which is the scheduler's. Pure.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;
use warp_api::{label, reason};
use warp_runtime::driver::later;
use warp_runtime::plan::Plan;
use warp_runtime::sweep;

use super::ask::{ask, wanted};
use super::objects::{leave, outgrown, refusing, requeue, staying, to_let_go};
use super::observe::Seen;
use super::queued::Queued;
use super::say::{Say, in_words_of, say};
use super::standing::{Standing, standing};
use crate::config::Settings;
use crate::ledger::{finished, node_of, pinned_to, waits_for_volume};
use crate::placement;
use crate::workload::{is_gated, let_go};

/// How long a node is left out whose room was taken by somebody else meanwhile.
const ROOM: SignedDuration = SignedDuration::from_secs(10);

/// Its places, as a JSON pointer.
const NODES: &str = "/metadata/annotations/gpu.warp.dev~1nodes";

pub(super) fn plan(job: &Queued, seen: &Seen, settings: &Settings, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    match standing(job, &seen.pods) {
        // Its pods, or the Job controller, are heard of when they have gone on.
        Standing::Aside | Standing::Settling => {}
        Standing::Queued => queued(&mut plan, job, seen, now),
        Standing::Restarting => begin_again(&mut plan, job),
        Standing::Leaving => {
            let why = job.annotations().get(label::REQUEUED);
            let why = why.cloned().unwrap_or_default();
            let waits = Say {
                reason: reason::QUEUED,
                waiting_for: Some(format!("it was queued again: {why}")),
                position: None,
                start: None,
                told: None,
            };
            say(&mut plan, job, waits, Some(leave(job)));
            "it is to be placed anew".clone_into(&mut plan.why);
        }
        Standing::Stopped => stopped(&mut plan, job),
        Standing::Unheld => {
            let held = Say {
                reason: reason::NOT_HELD,
                waiting_for: None,
                position: None,
                start: None,
                told: Some(format!(
                    "it asks to be queued ({}) and was not suspended when it came, or was resumed by hand: it runs wherever the cluster's scheduler puts it, and is not stopped; create it with {}: true to have it placed",
                    label::QUEUE,
                    dotted(job.kind.suspend)
                )),
            };
            say(&mut plan, job, held, None);
        }
        Standing::Placed => placed(&mut plan, job, seen, settings, now),
        Standing::Mislabelled => {
            let said = job.labels().get(label::QUEUE);
            let message = format!(
                "its label {} is '{}', which asks for nothing: write \"true\" to have it queued, \"false\" or no label to leave it alone",
                label::QUEUE,
                said.map_or("", String::as_str)
            );
            let told = Say {
                reason: reason::INVALID_SPEC,
                waiting_for: None,
                position: None,
                start: None,
                told: Some(message),
            };
            say(&mut plan, job, told, None);
        }
    }
    if plan.why.is_empty() {
        "it is told how it stands in the queue".clone_into(&mut plan.why);
    }
    plan
}

/// It waits for its place: says for what, and has the scheduler look at it.
fn queued(plan: &mut Plan, job: &Queued, seen: &Seen, now: Timestamp) {
    let bad = ask(job).err().or_else(|| seen.priority.clone().err());
    if let Some(bad) = bad {
        return say(plan, job, Say::waits(reason::INVALID_SPEC, bad), None);
    }
    let held = seen.held_until.filter(|until| *until > now);
    match held {
        Some(until) => plan.look_again(until),
        None if seen.verdict.is_none() || seen.held_until.is_some() => {
            plan.wake.push(sweep::wake(placement::NAME));
        }
        None => {}
    }
    let Some(verdict) = &seen.verdict else { return };
    let told = job.estimated_start();
    let room = verdict.reason == reason::WAITING_FOR_CAPACITY;
    let start = match &seen.forecast {
        Some(forecast) => forecast.start_after(told.as_ref(), now),
        // Nobody has asked yet: what was said before holds.
        None => told,
    };
    let start = start.filter(|_| room);
    let waits = Say {
        position: seen.position,
        start: start.and_then(|start| serde_json::to_string(&start).ok()),
        ..Say::waits(verdict.reason, in_words_of(job.kind, &verdict.message))
    };
    let came = seen.arrived.filter(|_| super::queued_at(job).is_none());
    let more =
        came.map(|came| json!({"metadata": {"annotations": {label::QUEUED_AT: came.to_string()}}}));
    say(plan, job, waits, more);
}

/// The start time of an earlier run is taken back, as the Job controller does it when it resumes a Job.
fn begin_again(plan: &mut Plan, job: &Queued) {
    plan.merge_seen(
        job.seen(),
        Some("status"),
        json!({"status": {"startTime": null}}),
    );
    "its pods can be told their node only before it has started".clone_into(&mut plan.why);
}

fn stopped(plan: &mut Plan, job: &Queued) {
    let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
    let kind = job.kind.singular;
    let message = format!(
        "it was suspended by hand after it had been placed, and is left so; resume it where it was (kubectl patch {kind} -n {namespace} {name} --type=merge -p '{}'), or have it queued again (kubectl annotate {kind} -n {namespace} {name} {}=by-hand)",
        job.hold(false),
        label::REQUEUED
    );
    say(plan, job, Say::waits(reason::JOB_SUSPENDED, message), None);
}

/// It has its places: its pods are let go when all are there; one that nobody takes gives its places back.
fn placed(plan: &mut Plan, job: &Queued, seen: &Seen, settings: &Settings, now: Timestamp) {
    match given_back(job, seen, settings, now) {
        Some(Back::Now { why, node }) => {
            // As soon as the ledger sees room again, the node is as good as any; of other reasons it may know nothing.
            let room = why.contains("Insufficient ");
            let wait = seconds(settings.refusal_timeout);
            let wait = if room { wait.min(ROOM) } else { wait };
            let refused = node.map(|node| refusing(job, &node, later(now, wait), now));
            let waits = Say {
                reason: reason::PLACEMENT_REFUSED,
                waiting_for: Some(why.clone()),
                position: None,
                start: None,
                told: Some(format!("{why}; it is suspended and queued again")),
            };
            say(plan, job, waits, Some(requeue(job, &why, refused)));
            plan.why = why;
            return;
        }
        Some(Back::At(time)) => plan.look_again(time),
        None => {}
    }
    let free = to_let_go(job, &seen.pods);
    if !free.is_empty() {
        let nodes = job.annotations().get(label::NODES);
        job.only_if_shows(plan, &[(NODES, json!(nodes))]);
        for (pod, node) in free {
            plan.merge(&**pod, let_go(pod, &node));
        }
        "all its pods are there".clone_into(&mut plan.why);
        return;
    }
    // Resumed by hand after it was suspended by us: it has its old places.
    let stale = job.annotations().contains_key(label::REQUEUED);
    let more = stale.then(|| json!({"metadata": {"annotations": {label::REQUEUED: null}}}));
    let holds = Say {
        reason: reason::PLACED,
        waiting_for: None,
        position: None,
        start: None,
        told: None,
    };
    say(plan, job, holds, more);
}

/// When a Job gives its places back.
enum Back {
    Now { why: String, node: Option<String> },
    At(Timestamp),
}

/// Whether a placed Job is to be queued again: it wants more pods than it has places, a pod of it is refused by the cluster's
/// scheduler while none of them runs, or does not come to its node in time.
fn given_back(job: &Queued, seen: &Seen, settings: &Settings, now: Timestamp) -> Option<Back> {
    let patience = seconds(settings.start_timeout);
    let pods = staying(&seen.pods);
    let bound = pods.iter().any(|pod| node_of(pod).is_some());
    let open = pods.iter().filter(|pod| node_of(pod).is_none());
    let open: Vec<&&Arc<Pod>> = open.filter(|pod| !is_gated(pod)).collect();
    let node = |pod: &Pod| pod.spec.as_ref().and_then(pinned_to);
    if let Some(why) = outgrown(job, &seen.pods) {
        return Some(Back::Now { why, node: None });
    }
    for pod in open.iter().filter(|_| !bound) {
        if let Some(message) = refused(pod) {
            let node = node(pod);
            let on = node.as_deref().unwrap_or("its node");
            let why = format!("the cluster's scheduler did not put it on {on}: {message}");
            return Some(Back::Now { why, node });
        }
    }
    let made = open.iter().map(|pod| {
        let time = pod.creation_timestamp().map(|time| time.0);
        let node = node(pod);
        let on = node.clone().unwrap_or_default();
        let why = format!("pod {} was not bound to node {on} in time", pod.name_any());
        (time, why, node)
    });
    let begun = job.succeeded > 0 || job.failed > 0 || seen.pods.iter().any(|pod| finished(pod));
    let wanted: usize = ask(job).map_or(0, |ask| {
        let groups = ask.groups.iter();
        groups
            .map(|group| wanted(job, group.template, &seen.pods))
            .sum()
    });
    let short = !begun && pods.len() < wanted;
    let given = job.annotations().get(label::PLACED_AT);
    let given = given.and_then(|time| time.parse().ok());
    let resumed: Option<Timestamp> = job.started.max(given);
    let missing = short.then(|| {
        let why = match &seen.refusal {
            Some(refusal) => format!("its pods are refused: {refusal}"),
            None => "its pods were never created".to_owned(),
        };
        (resumed, why, None)
    });
    let all: Vec<_> = made.chain(missing).collect();
    let due = |since: Timestamp| later(since, patience);
    let times = all.iter().filter_map(|(since, ..)| since.map(due));
    let first = times.min()?;
    if first > now {
        return Some(Back::At(first));
    }
    let late = all.into_iter();
    let mut late = late.filter(|(since, ..)| since.map(due).is_some_and(|due| due <= now));
    late.next().map(|(_, why, node)| Back::Now { why, node })
}

/// What the cluster's scheduler says against a pod. One it makes room for is on its way, and a volume may yet come.
pub(crate) fn refused(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let found = conditions.find(|found| {
        found.type_ == "PodScheduled"
            && found.status == "False"
            && found.reason.as_deref() == Some("Unschedulable")
    })?;
    let making_room = status.nominated_node_name.is_some();
    (!making_room && !waits_for_volume(pod)).then(|| found.message.clone().unwrap_or_default())
}

/// A JSON pointer as people write a field.
fn dotted(pointer: &str) -> String {
    pointer.trim_start_matches('/').replace('/', ".")
}

fn seconds(duration: std::time::Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
