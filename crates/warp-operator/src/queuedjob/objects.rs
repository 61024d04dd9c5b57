//! What is written into a queued object: its place, that it leaves it, and which of its pods goes where. Pure.
//!
//! A Job of one pod is pinned by its template. The pods of a wider one are born gated, as a gang's are: one template
//! cannot pin them to different nodes. Pods of other kinds always are, and carry whose they are: others stand between
//! them and the object. Places are remembered on the object, in the order of its templates.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSchedulingGate, PodSpec};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use warp_api::{label, reason};

use warp_runtime::plan::merge_difference;

use super::ask::{Ask, GroupAsk, ask, wanted};
use super::queued::Queued;
use crate::ledger::{Promise, finished, node_of, pin, pinned_to};
use crate::placement::Place;
use crate::workload::is_gated;

/// The nodes a Job was given, one for each of its pods.
pub(super) fn nodes(job: &Queued) -> Option<Vec<&str>> {
    let said = job.annotations().get(label::NODES)?;
    Some(said.split(',').collect())
}

/// Takes out what pins a template to the place it was given before. What its owner requires stays.
pub(super) fn unpin(pod: &mut PodSpec, nodes: &[&str], by_template: bool) {
    if nodes.is_empty() {
        return;
    }
    if let Some(gates) = pod.scheduling_gates.as_mut() {
        gates.retain(|gate| gate.name != label::GANG_GATE);
        if gates.is_empty() {
            pod.scheduling_gates = None;
        }
    }
    let Some(affinity) = pod.affinity.as_mut().filter(|_| by_template) else {
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

/// The change that gives an object its places and resumes it.
pub(super) fn place(job: &Queued, ask: &Ask, places: &[Place], now: Timestamp) -> Value {
    let nodes: Vec<&str> = places.iter().map(|place| place.node.as_str()).collect();
    let first = places.first();
    let mut patch = json!({
        "metadata": {"annotations": {
            label::NODES: nodes.join(","),
            label::STRATEGY: first.map(|place| place.strategy),
            label::PLACEMENT: first.map(|place| place.why.as_str()),
            label::PLACED_AT: now.to_string(),
            label::QUEUE_REASON: reason::PLACED,
            label::QUEUE_POSITION: null,
            label::WAITING_FOR: null,
            label::REQUEUED: null,
        }},
    });
    let templates = match ask.groups.as_slice() {
        [only] if job.kind.is_job() => {
            let mut pod = only.pod.clone();
            match places {
                [only] => pin(&mut pod, Some(&only.node), None),
                _ => pod.scheduling_gates.get_or_insert_default().push(gate()),
            }
            json!({"spec": {"template": {"spec": directions(&pod)}}})
        }
        groups => {
            let uid = job.uid().unwrap_or_default();
            rewritten(job, |at, template| {
                if groups.iter().any(|group| group.template == at) {
                    mark(template, &uid, at);
                }
            })
        }
    };
    put_over(&mut patch, templates);
    put_over(&mut patch, job.hold(false));
    patch
}

fn gate() -> PodSchedulingGate {
    PodSchedulingGate {
        name: label::GANG_GATE.to_owned(),
    }
}

/// Has the pods of a template carry whose they are, and wait at the gate.
fn mark(template: &mut Value, uid: &str, at: usize) {
    put_over(
        template,
        json!({"metadata": {"labels": {label::QUEUED_UID: uid, label::POD_GROUP: at.to_string()}}}),
    );
    let gates = &mut template["spec"]["schedulingGates"];
    let mut all = gates.as_array().cloned().unwrap_or_default();
    all.push(json!(gate()));
    *gates = Value::Array(all);
}

/// Makes a template what it was before it was marked.
fn unmark(template: &mut Value) {
    let Some(template) = template.as_object_mut() else {
        return;
    };
    if let Some(meta) = template.get_mut("metadata").and_then(Value::as_object_mut) {
        if let Some(labels) = meta.get_mut("labels").and_then(Value::as_object_mut) {
            labels.remove(label::QUEUED_UID);
            labels.remove(label::POD_GROUP);
            if labels.is_empty() {
                meta.remove("labels");
            }
        }
        if meta.is_empty() {
            template.remove("metadata");
        }
    }
    if let Some(pod) = template.get_mut("spec").and_then(Value::as_object_mut)
        && let Some(gates) = pod.get_mut("schedulingGates").and_then(Value::as_array_mut)
    {
        gates.retain(|gate| gate["name"] != label::GANG_GATE);
        if gates.is_empty() {
            pod.remove("schedulingGates");
        }
    }
}

/// The change of an object's spec after `edit` has been at each of its templates. Lists are written whole.
fn rewritten(job: &Queued, edit: impl Fn(usize, &mut Value)) -> Value {
    let before = json!({"spec": job.spec});
    let mut after = before.clone();
    for (at, group) in job.groups.iter().enumerate() {
        if let Some(template) = after.pointer_mut(&group.at) {
            edit(at, template);
        }
    }
    merge_difference(&before, &after).unwrap_or_else(|| json!({}))
}

/// Puts the fields of `more` over those of `base`.
fn put_over(base: &mut Value, more: Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (name, value) in more {
                put_over(base.entry(name).or_insert(Value::Null), value);
            }
        }
        (base, more) => *base = more,
    }
}

/// The change that takes an object off its nodes, to be queued again.
pub(super) fn requeue(job: &Queued, why: &str, refused: Option<String>) -> Value {
    let mut annotations = json!({label::REQUEUED: why});
    if let Some(refused) = refused {
        annotations[label::REFUSED_NODES] = json!(refused);
    }
    let mut patch = json!({"metadata": {"annotations": annotations}});
    put_over(&mut patch, job.hold(true));
    patch
}

/// The change that makes the templates of an object as they were before it had its place.
pub(super) fn leave(job: &Queued) -> Value {
    let mut patch = json!({
        "metadata": {"annotations": {
            label::NODES: null,
            label::STRATEGY: null,
            label::PLACEMENT: null,
            label::PLACED_AT: null,
            label::REQUEUED: null,
        }},
    });
    let templates = if job.kind.is_job() {
        let mut pod = job.groups.first().map(|group| group.pod.clone());
        let pod = pod.get_or_insert_default();
        unpin(pod, &nodes(job).unwrap_or_default(), true);
        json!({"spec": {"template": {"spec": directions(pod)}}})
    } else {
        rewritten(job, |_, template| unmark(template))
    };
    put_over(&mut patch, templates);
    patch
}

/// Most refused nodes remembered at once.
const REFUSED: usize = 16;

/// The nodes that did not take a Job and are still left out, each with the end of that.
pub(super) fn refused_nodes(job: &Queued, now: Timestamp) -> Vec<(&str, Timestamp)> {
    let said = job.annotations().get(label::REFUSED_NODES);
    let said = said.into_iter().flat_map(|said| said.split(", "));
    let known = said.filter_map(|one| {
        let (node, until) = one.split_once(" until ")?;
        Some((node, until.parse().ok()?))
    });
    known.filter(|(_, until)| *until > now).collect()
}

/// What a Job says of those once one more has not taken it.
pub(super) fn refusing(job: &Queued, node: &str, until: Timestamp, now: Timestamp) -> String {
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

/// Which template of an object a pod was made from.
pub(super) fn group_of(job: &Queued, pod: &Pod) -> Option<usize> {
    if job.kind.is_job() {
        return Some(0);
    }
    pod.labels().get(label::POD_GROUP)?.parse().ok()
}

/// Pods of one template that stay.
fn staying_of<'a>(job: &Queued, template: usize, pods: &'a [Arc<Pod>]) -> Vec<&'a Arc<Pod>> {
    let mut staying = staying(pods);
    staying.retain(|pod| group_of(job, pod) == Some(template));
    staying
}

/// The places of one template that no pod of it has yet.
fn places_left(job: &Queued, ask: &Ask, of: &GroupAsk, staying: &[&Arc<Pod>]) -> Vec<String> {
    let nodes = nodes(job).unwrap_or_default();
    let before = ask.groups.iter();
    let before = before.take_while(|group| group.template != of.template);
    let before: usize = before.map(|group| group.pods).sum();
    // A Job wants fewer pods as some end well, and has its places still.
    let pods = if job.kind.is_job() {
        nodes.len()
    } else {
        of.pods
    };
    let own = nodes.into_iter().skip(before).take(pods);
    let mut left: Vec<String> = own.map(str::to_owned).collect();
    for node in staying.iter().filter_map(|pod| held(pod)) {
        if let Some(at) = left.iter().position(|place| *place == node) {
            left.remove(at);
        }
    }
    left
}

/// The pods to be let go, each with its node: all of a template that are gated, once as many are there as are wanted. All
/// places are kept meanwhile, so those of another template may come later.
pub(super) fn to_let_go<'a>(job: &Queued, pods: &'a [Arc<Pod>]) -> Vec<(&'a Arc<Pod>, String)> {
    let Ok(ask) = ask(job) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for group in &ask.groups {
        let staying = staying_of(job, group.template, pods);
        if staying.len() < wanted(job, group.template, pods) {
            continue;
        }
        let mut gated: Vec<&Arc<Pod>> = staying
            .iter()
            .filter(|pod| is_gated(pod))
            .copied()
            .collect();
        let rank = |pod: &Pod| -> Option<usize> { pod.labels().get(label::RANK)?.parse().ok() };
        gated.sort_by_key(|pod| (rank(pod), pod.name_any()));
        let mut left = places_left(job, &ask, group, &staying).into_iter();
        all.extend(gated.into_iter().map_while(|pod| {
            // One that is pinned already keeps its node: a write may have been cut off after it.
            let node = pod
                .spec
                .as_ref()
                .and_then(pinned_to)
                .or_else(|| left.next());
            Some((pod, node?))
        }));
    }
    all
}

/// Why places do not do for an object: more of its pods wait to be let go than there are places, all that are wanted being
/// there. Somebody has asked for more pods since it was placed.
pub(super) fn outgrown(job: &Queued, pods: &[Arc<Pod>]) -> Option<String> {
    let ask = ask(job).ok()?;
    let all = |group: &GroupAsk| {
        let staying = staying_of(job, group.template, pods);
        staying.len() >= wanted(job, group.template, pods)
    };
    let gated = staying(pods).iter().filter(|pod| is_gated(pod)).count();
    let placed = to_let_go(job, pods).len();
    let grown = gated > placed && ask.groups.iter().all(all);
    grown.then(|| {
        let pods: usize = ask.groups.iter().map(|group| group.pods).sum();
        let places = nodes(job).unwrap_or_default().len();
        format!("it wants {pods} pods and was given {places} places")
    })
}

/// What an object that has been given its places is promised for pods that do not have theirs yet.
pub(crate) fn promises(job: &Queued, pods: &[Arc<Pod>]) -> Vec<Promise> {
    let (Some(uid), false, Ok(ask)) = (job.uid(), job.suspended(), ask(job)) else {
        return Vec::new();
    };
    let mut all: Vec<Promise> = Vec::new();
    for group in &ask.groups {
        let staying = staying_of(job, group.template, pods);
        let holding = staying.iter().filter(|pod| held(pod).is_some()).count();
        let missing = wanted(job, group.template, pods).saturating_sub(holding);
        let there = staying.len() - holding;
        let left = places_left(job, &ask, group, &staying).into_iter();
        for (at, node) in left.take(missing).enumerate() {
            let mut spec = group.pod.clone();
            pin(&mut spec, Some(&node), None);
            all.push(Promise {
                owner: promise_id(&uid, all.len()),
                meta: group.meta.clone(),
                spec,
                counted: at < there,
            });
        }
    }
    all
}

/// What a place that is kept for a Job is called in the ledger.
pub(super) fn promise_id(uid: &str, at: usize) -> String {
    format!("{uid}/place/{at}")
}
