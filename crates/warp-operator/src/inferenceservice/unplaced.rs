//! What a pass does about copies without a place: those that wait are looked at by the scheduler, those that the cluster's
//! scheduler refuses where they were placed go and leave that node out. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use warp_api::inferenceservice::LeftOutNode;
use warp_api::{InferenceService, InferenceServiceStatus, reason};
use warp_runtime::driver::later;
use warp_runtime::plan::{Plan, about};
use warp_runtime::sweep;

use super::copies;
use super::observe::Seen;
use crate::ledger::node_of;
use crate::placement;
use crate::queuedjob::refused as refused_by_scheduler;
use crate::workload::evict_pod;

/// How long a node is left out whose room was taken by somebody else meanwhile.
const ROOM: SignedDuration = SignedDuration::from_secs(10);
/// Nodes that are left out at once.
const LEFT_OUT: usize = 64;

/// Has the scheduler look at copies that wait and were not answered, or may be tried again.
pub(super) fn have_placed(plan: &mut Plan, seen: &Seen, now: Timestamp) {
    let mut due = false;
    for copy in &seen.waiting {
        match copy.held_until {
            Some(until) if until > now => plan.look_again(until),
            Some(_) => due = true,
            None => due |= copy.verdict.is_none(),
        }
    }
    if due {
        plan.wake.push(sweep::wake(placement::NAME));
    }
}

/// Copies that were let go to a node which the cluster's scheduler refuses, with that node and what it says.
fn refused_copies(seen: &Seen) -> impl Iterator<Item = (&Pod, String, String)> {
    let pods = seen.pods.iter().chain(&seen.workers);
    let pods = pods.map(|pod| &**pod);
    let open = pods.filter(|pod| !copies::goes(pod) && node_of(pod).is_none());
    open.filter_map(|pod| Some((pod, copies::place(pod)?, refused_by_scheduler(pod)?)))
}

/// The nodes that are left out for now.
pub(super) fn left_out(
    seen: &Seen,
    before: &InferenceServiceStatus,
    now: Timestamp,
) -> Vec<LeftOutNode> {
    let known = before.refused_nodes.iter();
    let mut nodes: Vec<LeftOutNode> = known.filter(|node| node.until.0 > now).cloned().collect();
    for (_, name, message) in refused_copies(seen) {
        if nodes.iter().any(|node| node.name == name) {
            continue;
        }
        // As soon as the ledger sees room again, the node is as good as any; of other reasons it may know nothing.
        let room = message.contains("Insufficient ");
        let wait = if room {
            seen.refusal_timeout.min(ROOM)
        } else {
            seen.refusal_timeout
        };
        let until = Time(later(now, wait));
        nodes.push(LeftOutNode {
            name,
            until,
            message,
        });
    }
    let surplus = nodes.len().saturating_sub(LEFT_OUT);
    nodes.drain(..surplus);
    nodes
}

/// A pod keeps the node it was let go to: one that is refused there goes, and the copy in its place gets another.
pub(super) fn give_back(plan: &mut Plan, service: &InferenceService, seen: &Seen) {
    for (pod, node, message) in refused_copies(seen) {
        evict_pod(plan, pod);
        let told = format!(
            "the cluster's scheduler did not put copy {} on {node}: {message}; another is placed elsewhere",
            pod.name_any()
        );
        plan.note(about(service), true, reason::PLACEMENT_REFUSED, told);
    }
}
