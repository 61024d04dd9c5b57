//! Gangs: all members or none.

use serde_json::Value;

use super::{Change, Moment, condition, controller, ending, name, text};

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
pub(super) fn let_go(change: &Change, moment: &Moment, wrong: &mut Vec<String>) {
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
pub(super) fn whole(moment: &Moment, wrong: &mut Vec<String>) {
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
