//! What must hold at every moment of a history, whatever went wrong, and at its end.
//!
//! The history is replayed change by change; a check looks at the change and at the state it led to.

mod gangs;
mod machines;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use warp_apiserver::store::EventKind;

use super::history::{Change, text};
use super::layer::Record;

/// Label of Jobs and pods: uid of the workload they belong to.
const WORKLOAD_UID: &str = "/metadata/labels/gpu.warp.dev~1workload-uid";

/// How long a node may be silent before its pods count as ended; the operator's default.
const NODE_LOSS: SignedDuration = SignedDuration::from_mins(5);

/// Everything that was wrong in a history, in order. With a `rival` who may be behind, what is said of
/// a Job may be true of an earlier one of its name: late is no lie.
pub fn violations(changes: &[Change], dawn: u64, rival: bool) -> Vec<String> {
    let mut moment = Moment {
        rival,
        ..Moment::default()
    };
    let mut found = Vec::new();
    for change in changes {
        moment.take(change);
        if change.revision > dawn {
            let mut wrong = Vec::new();
            check(change, &moment, &mut wrong);
            found.extend(
                wrong
                    .into_iter()
                    .map(|what| format!("at revision {}: {what}", change.revision)),
            );
        }
    }
    at_the_end(&moment, &mut found);
    found.dedup();
    found
}

/// What requests must be like: no controller deletes by name alone.
pub fn careless(records: &[Record]) -> Vec<String> {
    let deletes = records.iter().filter(|record| record.call.verb == "delete");
    deletes
        .filter(|record| {
            let body: Value = serde_json::from_slice(&record.body).unwrap_or_default();
            text(&body, "/preconditions/uid").is_empty()
        })
        .map(|record| format!("{} has no precondition", record.call))
        .collect()
}

/// The state after a change, and what is known of the past.
#[derive(Default)]
struct Moment {
    /// By uid.
    now: BTreeMap<String, Value>,
    /// Jobs that ever said they were complete, and those a pod of which ever ran, by uid.
    completed: BTreeSet<String>,
    ran: BTreeSet<String>,
    /// Names of Jobs ever seen, with their namespace, and their uids, the newest last.
    jobs: BTreeMap<(String, String), Vec<String>>,
    rival: bool,
}

impl Moment {
    fn take(&mut self, change: &Change) {
        let uid = change.uid().to_owned();
        let object = &change.object;
        match change.of() {
            "Job" => {
                let at = (
                    text(object, "/metadata/namespace").to_owned(),
                    text(object, "/metadata/name").to_owned(),
                );
                let uids = self.jobs.entry(at).or_default();
                if uids.last() != Some(&uid) {
                    uids.push(uid.clone());
                }
                if condition(object, "Complete") {
                    self.completed.insert(uid.clone());
                }
            }
            "Pod"
                if matches!(
                    text(object, "/status/phase"),
                    "Running" | "Succeeded" | "Failed"
                ) =>
            {
                self.ran
                    .extend(controller(object).map(|(_, job)| job.to_owned()));
            }
            _ => {}
        }
        if change.kind == EventKind::Deleted {
            self.now.remove(&uid);
        } else {
            self.now.insert(uid, object.clone());
        }
    }

    fn all<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.now
            .values()
            .filter(move |object| text(object, "/kind") == kind)
    }

    fn owned_pods<'a>(&'a self, owner: &'a str) -> impl Iterator<Item = &'a Value> {
        self.all("Pod")
            .filter(move |pod| controller(pod).is_some_and(|(_, uid)| uid == owner))
    }

    fn node(&self, name: &str) -> Option<&Value> {
        self.all("Node")
            .find(|node| text(node, "/metadata/name") == name)
    }

    /// Whether a pod may still be running somewhere.
    fn can_run(&self, pod: &Value, at: &str) -> bool {
        if over(pod) {
            return false;
        }
        let node = text(pod, "/spec/nodeName");
        if node.is_empty() {
            return text(pod, "/metadata/deletionTimestamp").is_empty();
        }
        self.node(node).is_some_and(|node| !given_up(node, at))
    }
}

/// Whether a node has been silent for so long that what was on it counts as ended.
fn given_up(node: &Value, at: &str) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|found| found["type"] == "Ready");
    let Some(ready) = ready.filter(|ready| ready["status"] != "True") else {
        return false;
    };
    let since = text(ready, "/lastTransitionTime").parse::<Timestamp>();
    let (Ok(since), Ok(at)) = (since, at.parse::<Timestamp>()) else {
        return true;
    };
    at.duration_since(since) >= NODE_LOSS
}

fn over(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

fn ending(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

fn condition(object: &Value, kind: &str) -> bool {
    object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|found| found["type"] == kind && found["status"] == "True")
}

/// Kind and uid of the controller.
fn controller(object: &Value) -> Option<(&str, &str)> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    Some((text(owner, "/kind"), text(owner, "/uid")))
}

fn name(object: &Value) -> String {
    format!(
        "{} {}/{}",
        text(object, "/kind"),
        text(object, "/metadata/namespace"),
        text(object, "/metadata/name")
    )
}

fn check(change: &Change, moment: &Moment, wrong: &mut Vec<String>) {
    match (change.of(), change.kind) {
        ("Pod", EventKind::Added) => made(&change.object, moment, wrong),
        ("Job", EventKind::Added) => one_attempt(&change.object, moment, wrong),
        ("GPUWorkload", EventKind::Added | EventKind::Modified) => {
            not_ahead(&change.object, moment, wrong);
            no_way_back(change, wrong);
        }
        ("ConfigMap", EventKind::Added | EventKind::Modified) => {
            machines::bought(change, moment, wrong);
        }
        ("GPURequest", EventKind::Deleted) => machines::left(&change.object, moment, wrong),
        ("ResourceQuota", EventKind::Modified) => within_quota(&change.object, wrong),
        ("PersistentVolume", EventKind::Added | EventKind::Modified) => {
            one_claim(&change.object, moment, wrong);
        }
        _ => {}
    }
    if change.of() == "Pod" && change.kind != EventKind::Deleted {
        bound(change, moment, wrong);
        gangs::let_go(change, moment, wrong);
    }
}

/// A pod is made for an owner that is there, wants it, and has not too many already.
fn made(pod: &Value, moment: &Moment, wrong: &mut Vec<String>) {
    let Some((kind, uid)) = controller(pod) else {
        return;
    };
    let Some(owner) = moment.now.get(uid) else {
        wrong.push(format!("{} was made for a {kind} that is gone", name(pod)));
        return;
    };
    if condition(owner, "Complete") || condition(owner, "Failed") {
        wrong.push(format!(
            "{} was made for {}, which is finished",
            name(pod),
            name(owner)
        ));
    }
    let most = match kind {
        "Job" => owner["spec"]["parallelism"].as_u64().unwrap_or(1),
        "ReplicaSet" => owner["spec"]["replicas"].as_u64().unwrap_or(1),
        _ => return,
    };
    let live = moment
        .owned_pods(uid)
        .filter(|pod| !over(pod) && !ending(pod))
        .count() as u64;
    if live > most {
        wrong.push(format!(
            "{} has {live} live pods where {most} are wanted",
            name(owner)
        ));
    }
    if kind == "Job" {
        let workload = text(pod, WORKLOAD_UID);
        let others = moment.all("Pod").filter(|other| {
            !workload.is_empty()
                && text(other, WORKLOAD_UID) == workload
                // One that was orphaned has no controller, and runs all the same.
                && controller(other).is_none_or(|(_, other)| other != uid)
                && moment.can_run(other, text(pod, "/metadata/creationTimestamp"))
        });
        for other in others {
            wrong.push(format!(
                "{} was made while {} of an earlier attempt can still run",
                name(pod),
                name(other)
            ));
        }
    }
}

/// A pod stays where it was bound, and fits there when it is.
fn bound(change: &Change, moment: &Moment, wrong: &mut Vec<String>) {
    let pod = &change.object;
    let here = text(pod, "/spec/nodeName");
    let before = change
        .previous
        .as_ref()
        .map_or("", |before| text(before, "/spec/nodeName"));
    if !before.is_empty() && before != here {
        wrong.push(format!("{} moved from node {before} to {here}", name(pod)));
    }
    if here.is_empty() || !before.is_empty() {
        return;
    }
    let Some(node) = moment.node(here) else {
        return;
    };
    let mut used: BTreeMap<&str, f64> = BTreeMap::new();
    let on_node = moment
        .all("Pod")
        .filter(|pod| text(pod, "/spec/nodeName") == here && !over(pod));
    for pod in on_node {
        for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
            let resources = &container["resources"];
            let asked = resources["requests"]
                .as_object()
                .or(resources["limits"].as_object());
            for (resource, amount) in asked.into_iter().flatten() {
                *used.entry(resource).or_default() += quantity(amount);
            }
        }
    }
    let room = &node["status"]["allocatable"];
    for (resource, used) in used {
        let room = quantity(&room[resource]);
        if used > room * 1.000_001 {
            wrong.push(format!(
                "node {here} was given {used} of {resource} and has {room}"
            ));
        }
    }
}

fn quantity(value: &Value) -> f64 {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let split = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = match unit {
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1024.0_f64.powi(2),
        "Gi" => 1024.0_f64.powi(3),
        "Ti" => 1024.0_f64.powi(4),
        _ => 1.0,
    };
    number.parse::<f64>().unwrap_or(0.0) * unit
}

/// A workload has one attempt that is not given up.
fn one_attempt(job: &Value, moment: &Moment, wrong: &mut Vec<String>) {
    let workload = text(job, WORKLOAD_UID);
    if workload.is_empty() {
        return;
    }
    let owner = moment.now.get(workload);
    let why_not = match owner.map(|owner| text(owner, "/status/phase")) {
        None => Some("is gone"),
        Some("Succeeded" | "Failed") => Some("has ended"),
        _ if owner.is_some_and(ending) => Some("is being deleted"),
        _ if owner.is_some_and(|owner| owner["spec"]["suspend"] == true) => Some("is suspended"),
        _ => None,
    };
    if let Some(why_not) = why_not {
        wrong.push(format!(
            "{} was made for a workload that {why_not}",
            name(job)
        ));
    }
    let going = moment.all("Job").filter(|other| {
        text(other, WORKLOAD_UID) == workload
            && !["Complete", "Failed", "FailureTarget"]
                .iter()
                .any(|kind| condition(other, kind))
            && !ending(other)
    });
    let going: Vec<String> = going.map(name).collect();
    if going.len() > 1 {
        wrong.push(format!(
            "one workload has {} attempts at once: {}",
            going.len(),
            going.join(", ")
        ));
    }
}

/// A status tells of what has happened, not of what is about to.
fn not_ahead(workload: &Value, moment: &Moment, wrong: &mut Vec<String>) {
    let status = &workload["status"];
    let (phase, job) = (text(status, "/phase"), text(status, "/jobName"));
    let generation = workload["metadata"]["generation"]
        .as_i64()
        .unwrap_or_default();
    if status["observedGeneration"].as_i64().unwrap_or_default() > generation {
        wrong.push(format!(
            "{} has observed a generation it never had",
            name(workload)
        ));
    }
    if job.is_empty() {
        if matches!(phase, "Scheduled" | "Running" | "Succeeded") {
            wrong.push(format!("{} is {phase} without a job", name(workload)));
        }
        return;
    }
    let at = (
        text(workload, "/metadata/namespace").to_owned(),
        job.to_owned(),
    );
    let Some(uids) = moment.jobs.get(&at) else {
        wrong.push(format!(
            "{} names job {job}, which was never made",
            name(workload)
        ));
        return;
    };
    let since = if moment.rival { 0 } else { uids.len() - 1 };
    let meant = &uids[since..];
    let node = text(status, "/assignedNode");
    let pin = meant
        .last()
        .and_then(|uid| moment.now.get(uid))
        .map(|job| text(job, "/metadata/annotations/gpu.warp.dev~1node"));
    if pin.is_some_and(|pin| pin != node) && !moment.rival {
        wrong.push(format!(
            "{} says node {node:?} and {job} is for {pin:?}",
            name(workload)
        ));
    }
    match phase {
        "Running" if !meant.iter().any(|uid| moment.ran.contains(uid)) => {
            wrong.push(format!(
                "{} is Running and no pod of {job} ever ran",
                name(workload)
            ));
        }
        "Succeeded" if !meant.iter().any(|uid| moment.completed.contains(uid)) => {
            wrong.push(format!(
                "{} is Succeeded and {job} never completed",
                name(workload)
            ));
        }
        _ => {}
    }
}

/// What has ended stays ended, as it did; what is counted is never forgotten.
fn no_way_back(change: &Change, wrong: &mut Vec<String>) {
    let Some(before) = change.previous.as_ref().map(|before| &before["status"]) else {
        return;
    };
    let after = &change.object["status"];
    for field in ["retryCount", "disruptions", "observedGeneration"] {
        let count = |status: &Value| status[field].as_i64().unwrap_or_default();
        if count(after) < count(before) {
            wrong.push(format!(
                "{field} of {} went from {} back to {}",
                name(&change.object),
                count(before),
                count(after)
            ));
        }
    }
    if matches!(text(before, "/phase"), "Succeeded" | "Failed") {
        for field in ["phase", "completionTime", "jobName"] {
            if before[field] != after[field] {
                wrong.push(format!(
                    "{} had ended, and its {field} went from {} to {}",
                    name(&change.object),
                    before[field],
                    after[field]
                ));
            }
        }
    }
}

fn within_quota(quota: &Value, wrong: &mut Vec<String>) {
    for (resource, hard) in quota["status"]["hard"].as_object().into_iter().flatten() {
        let used = quantity(&quota["status"]["used"][resource]);
        if used > quantity(hard) {
            wrong.push(format!("{} has {used} of {resource} in use", name(quota)));
        }
    }
}

/// No two volumes are given to one claim.
fn one_claim(volume: &Value, moment: &Moment, wrong: &mut Vec<String>) {
    let claim = text(volume, "/spec/claimRef/uid");
    if claim.is_empty() {
        return;
    }
    let volumes = moment
        .all("PersistentVolume")
        .filter(|other| text(other, "/spec/claimRef/uid") == claim)
        .count();
    if volumes > 1 {
        wrong.push(format!(
            "{volumes} volumes are given to one claim, {} among them",
            name(volume)
        ));
    }
}

/// Nothing is left behind, and every status speaks of the newest spec.
fn at_the_end(moment: &Moment, wrong: &mut Vec<String>) {
    gangs::whole(moment, wrong);
    for object in moment.now.values() {
        if let Some((kind, owner)) = controller(object)
            && !moment.now.contains_key(owner)
        {
            wrong.push(format!(
                "at the end: {} is left of a {kind} that is gone",
                name(object)
            ));
        }
        if ending(object) {
            wrong.push(format!(
                "at the end: {} is still being deleted",
                name(object)
            ));
        }
        let observed = object["status"]["observedGeneration"].as_i64();
        let generation = object["metadata"]["generation"].as_i64();
        if observed.is_some() && observed != generation {
            wrong.push(format!(
                "at the end: the status of {} speaks of generation {observed:?} of {generation:?}",
                name(object)
            ));
        }
    }
}
