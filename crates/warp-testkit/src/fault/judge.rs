//! What must hold at every moment of a history, whatever went wrong, and at its end.
//!
//! The history is replayed change by change; a check looks at the change and at the state it led to. Owns
//! what holds on every Kubernetes cluster; what the kinds of a controller must keep besides is brought
//! along by its tests ([`Invariants`]).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use warp_apiserver::store::EventKind;

use super::history::{Change, text};
use super::layer::Record;

/// What a kind must keep.
#[derive(Clone, Copy, Debug)]
pub struct Invariants {
    /// Looked at after every change, with the state it led to.
    pub at_every_change: fn(&Change, &Moment, &mut Vec<String>),
    pub at_the_end: fn(&Moment, &mut Vec<String>),
}

impl Invariants {
    /// Nothing but what holds on every cluster.
    pub const NONE: Self = Self {
        at_every_change: |_, _, _| {},
        at_the_end: |_, _| {},
    };
}

/// Everything that was wrong in a history, in order. With a `rival`, a second controller that may be
/// behind, what is said of a Job may be true of an earlier one of its name.
pub fn violations(changes: &[Change], dawn: u64, rival: bool, kinds: &Invariants) -> Vec<String> {
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
            (kinds.at_every_change)(change, &moment, &mut wrong);
            found.extend(
                wrong
                    .into_iter()
                    .map(|what| format!("at revision {}: {what}", change.revision)),
            );
        }
    }
    at_the_end(&moment, &mut found);
    (kinds.at_the_end)(&moment, &mut found);
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
#[derive(Debug, Default)]
pub struct Moment {
    /// By uid.
    pub now: BTreeMap<String, Value>,
    /// Jobs that ever said they were complete, and those a pod of which ever ran, by uid.
    pub completed: BTreeSet<String>,
    pub ran: BTreeSet<String>,
    /// Names of Jobs ever seen, with their namespace, and their uids, the newest last.
    pub jobs: BTreeMap<(String, String), Vec<String>>,
    pub rival: bool,
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

    /// Every object of a kind.
    pub fn all<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.now
            .values()
            .filter(move |object| text(object, "/kind") == kind)
    }

    /// Pods whose controller has this uid.
    pub fn owned_pods<'a>(&'a self, owner: &'a str) -> impl Iterator<Item = &'a Value> {
        self.all("Pod")
            .filter(move |pod| controller(pod).is_some_and(|(_, uid)| uid == owner))
    }

    /// The node of a name.
    pub fn node(&self, name: &str) -> Option<&Value> {
        self.all("Node")
            .find(|node| text(node, "/metadata/name") == name)
    }
}

/// Whether a pod has ended.
pub fn over(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// Whether an object is being deleted.
pub fn ending(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

/// Whether a condition is true.
pub fn condition(object: &Value, kind: &str) -> bool {
    object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|found| found["type"] == kind && found["status"] == "True")
}

/// Kind and uid of the controller.
pub fn controller(object: &Value) -> Option<(&str, &str)> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    Some((text(owner, "/kind"), text(owner, "/uid")))
}

/// What an object is called where something is said of it.
pub fn name(object: &Value) -> String {
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
        ("ResourceQuota", EventKind::Modified) => within_quota(&change.object, wrong),
        ("PersistentVolume", EventKind::Added | EventKind::Modified) => {
            one_claim(&change.object, moment, wrong);
        }
        _ => {}
    }
    if change.of() == "Pod" && change.kind != EventKind::Deleted {
        bound(change, moment, wrong);
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
