//! What is written into a queued Job: its place, that it leaves it, and which of its pods goes where. Pure.
//!
//! A Job of one pod is pinned by its template. The pods of a wider one are born gated, as a gang's are: one template
//! cannot pin them to different nodes. Places are remembered on the Job.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, PodSchedulingGate, PodSpec};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use warp_api::{label, reason};

use super::ask::{ask, wanted};
use crate::ledger::{Promise, finished, node_of, pin, pinned_to};
use crate::placement::Place;
use crate::workload::{is_gated, suspended};

/// The nodes a Job was given, one for each of its pods.
pub(super) fn nodes(job: &Job) -> Option<Vec<&str>> {
    let said = job.annotations().get(label::NODES)?;
    Some(said.split(',').collect())
}

/// Takes out what pins a template to the place it was given before. What its owner requires stays.
pub(super) fn unpin(pod: &mut PodSpec, nodes: &[&str]) {
    if nodes.is_empty() {
        return;
    }
    if let Some(gates) = pod.scheduling_gates.as_mut() {
        gates.retain(|gate| gate.name != label::GANG_GATE);
        if gates.is_empty() {
            pod.scheduling_gates = None;
        }
    }
    let Some(affinity) = pod.affinity.as_mut() else {
        return;
    };
    let Some(on_nodes) = affinity.node_affinity.as_mut() else {
        return;
    };
    let required = &mut on_nodes.required_during_scheduling_ignored_during_execution;
    let [node] = nodes else { return };
    let mut bare = false;
    for term in required
        .iter_mut()
        .flat_map(|all| &mut all.node_selector_terms)
    {
        let fields = term.match_fields.get_or_insert_default();
        // The pin is what was added last; one before it is the owner's.
        let own = fields.last().is_some_and(|last| {
            last.key == "metadata.name"
                && last.operator == "In"
                && last.values.as_deref() == Some(&[(*node).to_owned()])
        });
        if own {
            fields.pop();
        }
        if fields.is_empty() {
            term.match_fields = None;
        }
        bare |= own && term.match_fields.is_none() && term.match_expressions.is_none();
    }
    if bare {
        *required = None;
    }
    if on_nodes
        .preferred_during_scheduling_ignored_during_execution
        .is_none()
        && on_nodes
            .required_during_scheduling_ignored_during_execution
            .is_none()
    {
        affinity.node_affinity = None;
    }
    if *affinity == k8s_openapi::api::core::v1::Affinity::default() {
        pod.affinity = None;
    }
}

/// The part of a template that says where pods go, as a merge patch.
fn directions(pod: &PodSpec) -> Value {
    let affinity = pod.affinity.as_ref();
    let on_nodes = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let required = on_nodes.and_then(|all| {
        all.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let affinity = match (affinity, on_nodes, required) {
        (None, _, _) => Value::Null,
        (_, None, _) => json!({"nodeAffinity": null}),
        _ => json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}),
    };
    json!({"affinity": affinity, "schedulingGates": pod.scheduling_gates})
}

/// The change that gives a Job its places and resumes it.
pub(super) fn place(pod: &PodSpec, places: &[Place]) -> Value {
    let mut pod = pod.clone();
    match places {
        [only] => pin(&mut pod, Some(&only.node), None),
        _ => pod
            .scheduling_gates
            .get_or_insert_default()
            .push(PodSchedulingGate {
                name: label::GANG_GATE.to_owned(),
            }),
    }
    let nodes: Vec<&str> = places.iter().map(|place| place.node.as_str()).collect();
    let first = places.first();
    json!({
        "metadata": {"annotations": {
            label::NODES: nodes.join(","),
            label::STRATEGY: first.map(|place| place.strategy),
            label::PLACEMENT: first.map(|place| place.why.as_str()),
            label::QUEUE_REASON: reason::PLACED,
            label::QUEUE_POSITION: null,
            label::WAITING_FOR: null,
            label::REQUEUED: null,
        }},
        "spec": {"suspend": false, "template": {"spec": directions(&pod)}},
    })
}

/// The change that takes a Job off its nodes, to be queued again.
pub(super) fn requeue(why: &str, refused: Option<String>) -> Value {
    let mut annotations = json!({label::REQUEUED: why});
    if let Some(refused) = refused {
        annotations[label::REFUSED_NODES] = json!(refused);
    }
    json!({"metadata": {"annotations": annotations}, "spec": {"suspend": true}})
}

/// The change that makes the template of a Job as it was before it had its place.
pub(super) fn leave(job: &Job) -> Value {
    let mut pod = job
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.clone());
    let pod = pod.get_or_insert_default();
    unpin(pod, &nodes(job).unwrap_or_default());
    json!({
        "metadata": {"annotations": {
            label::NODES: null,
            label::STRATEGY: null,
            label::PLACEMENT: null,
            label::REQUEUED: null,
        }},
        "spec": {"template": {"spec": directions(pod)}},
    })
}

/// Most refused nodes remembered at once.
const REFUSED: usize = 16;

/// The nodes that did not take a Job and are still left out, each with the end of that.
pub(super) fn refused_nodes(job: &Job, now: Timestamp) -> Vec<(&str, Timestamp)> {
    let said = job.annotations().get(label::REFUSED_NODES);
    let said = said.into_iter().flat_map(|said| said.split(", "));
    let known = said.filter_map(|one| {
        let (node, until) = one.split_once(" until ")?;
        Some((node, until.parse().ok()?))
    });
    known.filter(|(_, until)| *until > now).collect()
}

/// What a Job says of those once one more has not taken it.
pub(super) fn refusing(job: &Job, node: &str, until: Timestamp, now: Timestamp) -> String {
    let mut all = refused_nodes(job, now);
    all.retain(|(known, _)| *known != node);
    all.push((node, until));
    let spare = all.len().saturating_sub(REFUSED);
    let said = all.into_iter().skip(spare);
    let said = said.map(|(node, until)| format!("{node} until {until:.0}"));
    said.collect::<Vec<_>>().join(", ")
}

/// Pods of a Job that stay: they have not ended and are not being deleted.
pub(super) fn staying(pods: &[Arc<Pod>]) -> Vec<&Arc<Pod>> {
    let staying = |pod: &&Arc<Pod>| pod.meta().deletion_timestamp.is_none() && !finished(pod);
    pods.iter().filter(staying).collect()
}

/// The node a pod is on or is pinned to.
fn held(pod: &Pod) -> Option<String> {
    let pinned = || pod.spec.as_ref().and_then(pinned_to);
    node_of(pod).map(str::to_owned).or_else(pinned)
}

/// The places of a Job that no pod of it has yet.
fn places_left(job: &Job, staying: &[&Arc<Pod>]) -> Vec<String> {
    let nodes = nodes(job).unwrap_or_default();
    let mut left: Vec<String> = nodes.into_iter().map(str::to_owned).collect();
    for node in staying.iter().filter_map(|pod| held(pod)) {
        if let Some(at) = left.iter().position(|place| *place == node) {
            left.remove(at);
        }
    }
    left
}

/// The pods to be let go, each with its node: all that are gated, once as many are there as are wanted.
pub(super) fn to_let_go<'a>(job: &Job, pods: &'a [Arc<Pod>]) -> Vec<(&'a Arc<Pod>, String)> {
    let staying = staying(pods);
    if staying.len() < wanted(job, staying.len()) {
        return Vec::new();
    }
    let mut gated: Vec<&Arc<Pod>> = staying
        .iter()
        .filter(|pod| is_gated(pod))
        .copied()
        .collect();
    let rank = |pod: &Pod| -> Option<usize> { pod.labels().get(label::RANK)?.parse().ok() };
    gated.sort_by_key(|pod| (rank(pod), pod.name_any()));
    let mut left = places_left(job, &staying).into_iter();
    let goes = gated.into_iter().map_while(|pod| {
        // One that is pinned already keeps its node: a write may have been cut off after it.
        let node = pod
            .spec
            .as_ref()
            .and_then(pinned_to)
            .or_else(|| left.next());
        Some((pod, node?))
    });
    goes.collect()
}

/// What a Job that has been given its places is promised for pods that do not have theirs yet.
pub(crate) fn promises(job: &Job, pods: &[Arc<Pod>]) -> Vec<Promise> {
    let (Some(uid), false, Ok(ask)) = (job.uid(), suspended(job), ask(job)) else {
        return Vec::new();
    };
    let staying = staying(pods);
    let holding = staying.iter().filter(|pod| held(pod).is_some()).count();
    let missing = wanted(job, staying.len()).saturating_sub(holding);
    let there = staying.len() - holding;
    let left = places_left(job, &staying).into_iter();
    let kept = left.take(missing).enumerate().map(|(at, node)| {
        let mut spec = ask.pod.clone();
        pin(&mut spec, Some(&node), None);
        Promise {
            owner: promise_id(&uid, at),
            meta: ask.meta.clone(),
            spec,
            counted: at < there,
        }
    });
    kept.collect()
}

/// What a place that is kept for a Job is called in the ledger.
pub(super) fn promise_id(uid: &str, at: usize) -> String {
    format!("{uid}/place/{at}")
}
