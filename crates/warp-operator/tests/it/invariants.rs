//! What the operator's kinds must keep at every moment of a history, beside what holds on every cluster
//! ([`judge`](warp_testkit::fault::judge)): attempts, statuses and gangs. For faults and walks in virtual
//! time and for the end-to-end suite.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use warp_testkit::EventKind;
use warp_testkit::fault::history::{Change, text};
use warp_testkit::fault::judge::{Invariants, Moment, condition, controller, ending, name, over};

/// Label of Jobs and pods: uid of the workload they belong to.
const WORKLOAD_UID: &str = "/metadata/labels/gpu.warp.dev~1workload-uid";

/// How long a node may be silent before its pods count as ended; the operator's default.
const NODE_LOSS: SignedDuration = SignedDuration::from_mins(5);

pub(crate) const INVARIANTS: Invariants = Invariants {
    at_every_change: check,
    at_the_end: whole_gangs,
};

fn check(change: &Change, moment: &Moment, wrong: &mut Vec<String>) {
    match (change.of(), change.kind) {
        ("Pod", EventKind::Added) => after_earlier_attempts(&change.object, moment, wrong),
        ("Job", EventKind::Added) => one_attempt(&change.object, moment, wrong),
        ("GPUWorkload", EventKind::Added | EventKind::Modified) => {
            not_ahead(&change.object, moment, wrong);
            no_way_back(change, wrong);
        }
        _ => {}
    }
    if change.of() == "Pod" && change.kind != EventKind::Deleted {
        let_go(change, moment, wrong);
    }
}

/// Whether a pod may still be running somewhere.
fn can_run(pod: &Value, moment: &Moment, at: &str) -> bool {
    if over(pod) {
        return false;
    }
    let node = text(pod, "/spec/nodeName");
    if node.is_empty() {
        return text(pod, "/metadata/deletionTimestamp").is_empty();
    }
    moment.node(node).is_some_and(|node| !given_up(node, at))
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

/// A pod is made when none of an earlier attempt can still run.
fn after_earlier_attempts(pod: &Value, moment: &Moment, wrong: &mut Vec<String>) {
    let workload = text(pod, WORKLOAD_UID);
    let Some(("Job", job)) = controller(pod).filter(|_| !workload.is_empty()) else {
        return;
    };
    let others = moment.all("Pod").filter(|other| {
        text(other, WORKLOAD_UID) == workload
            // One that was orphaned has no controller, and runs all the same.
            && controller(other).is_none_or(|(_, other)| other != job)
            && can_run(other, moment, text(pod, "/metadata/creationTimestamp"))
    });
    for other in others {
        wrong.push(format!(
            "{} was made while {} of an earlier attempt can still run",
            name(pod),
            name(other)
        ));
    }
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

/// The gate the pods of a gang wait behind.
const GATE: &str = "gpu.warp.dev/gang";

fn is_gated(pod: &Value) -> bool {
    let gates = pod["spec"]["schedulingGates"].as_array();
    let mut gates = gates.into_iter().flatten();
    gates.any(|gate| gate["name"] == GATE)
}

/// How many members the Job of a gang has.
fn size(job: &Value) -> Option<u64> {
    let indexed = job["spec"]["completionMode"] == "Indexed";
    job["spec"]["completions"].as_u64().filter(|_| indexed)
}

/// A pod is let go only when all members are there, told its node, and to its own node.
fn let_go(change: &Change, moment: &Moment, wrong: &mut Vec<String>) {
    let pod = &change.object;
    let was_gated = change.previous.as_ref().is_some_and(is_gated);
    if !was_gated || is_gated(pod) {
        return;
    }
    let job = controller(pod).and_then(|(_, uid)| moment.now.get(uid));
    let Some((job, size)) = job.and_then(|job| Some((job, size(job)?))) else {
        return;
    };
    let uid = text(job, "/metadata/uid");
    let there = moment.owned_pods(uid).filter(|pod| !ending(pod)).count() as u64;
    if there < size {
        wrong.push(format!(
            "{} was let go while {there} of {size} members of {} are there",
            name(pod),
            name(job)
        ));
    }
    let nodes = text(job, "/metadata/annotations/gpu.warp.dev~1nodes");
    let rank = text(
        pod,
        "/metadata/labels/batch.kubernetes.io~1job-completion-index",
    );
    let node = rank
        .parse()
        .ok()
        .and_then(|rank| nodes.split(',').nth(rank));
    let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let terms = pod.pointer(terms).and_then(Value::as_array);
    let pinned = terms.is_some_and(|terms| {
        terms.iter().all(|term| {
            let fields = term["matchFields"].as_array();
            let mut fields = fields.into_iter().flatten();
            fields.any(|field| Some(text(field, "/values/0")) == node)
        })
    });
    if !pinned {
        wrong.push(format!("{} was let go and not to node {node:?}", name(pod)));
    }
}

/// No attempt that goes on is let go in part.
fn whole_gangs(moment: &Moment, wrong: &mut Vec<String>) {
    let open = |job: &&Value| {
        let over = ["Complete", "Failed"];
        size(job).is_some() && !over.iter().any(|kind| condition(job, kind))
    };
    for job in moment.all("Job").filter(open) {
        let pods = moment.owned_pods(text(job, "/metadata/uid"));
        let (gated, free): (Vec<&Value>, Vec<&Value>) = pods.partition(|pod| is_gated(pod));
        if !gated.is_empty() && !free.is_empty() {
            wrong.push(format!(
                "at the end: {} of the pods of {} wait behind their gate and {} do not",
                gated.len(),
                name(job),
                free.len()
            ));
        }
    }
}
