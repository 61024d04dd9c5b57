//! A machine that its cloud takes back: since when that is known, and its node emptied while there is time. Pure.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::json;
use warp_api::gpurequest::RequestAttempt;
use warp_cloud::Machine;
use warp_cloud::join::TAKEN_BACK;
use warp_runtime::plan::Plan;

use super::choose::later;
use super::observe::Open;
use crate::workload::evict_pod;

/// On a node's taints: nothing new is placed there.
const TAINT: &str = "gpu.warp.dev/taken-back";
/// No cloud leaves a machine this long after it has said that it takes it back.
pub(super) const LIMIT: SignedDuration = SignedDuration::from_mins(5);
/// How often it is looked whether the node is empty.
const LOOK: SignedDuration = SignedDuration::from_secs(1);

/// Takes into the attempt that the cloud takes its machine back: it says so itself, or the machine has heard it.
pub(super) fn learn(
    attempt: &mut RequestAttempt,
    open: &Open,
    machine: Option<&Machine>,
    now: Timestamp,
) {
    let told = machine.is_some_and(|machine| machine.taken_back.is_some());
    let node = open.node.as_deref();
    let heard = node.is_some_and(|node| node.annotations().contains_key(TAKEN_BACK));
    if (told || heard) && attempt.noticed_at.is_none() && attempt.spot {
        attempt.noticed_at = Some(Time(now));
    }
}

/// Whether a machine that is taken back can go: nothing runs there any more, or its time is over.
pub(super) fn is_over(attempt: &RequestAttempt, open: &Open, now: Timestamp) -> bool {
    let Some(since) = &attempt.noticed_at else {
        return false;
    };
    later(since.0, LIMIT) <= now || (open.pods.is_empty() && !open.used)
}

/// Asks the cluster to take a node's pods away in the time that is left. By then the attempt says that the machine goes:
/// the scheduler places nothing there any more. A node that joined by us is closed to others' pods too.
pub(super) fn drain(plan: &mut Plan, attempt: &RequestAttempt, open: &Open, now: Timestamp) {
    if attempt.noticed_at.is_none() {
        return;
    }
    plan.look_again(later(now, LOOK));
    if let Some(node) = open.node.as_deref().filter(|_| attempt.bootstrap.is_some()) {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
        let mut taints = taints.unwrap_or_default();
        if taints.iter().all(|taint| taint.key != TAINT) {
            let taint = json!({"key": TAINT, "effect": "NoSchedule"});
            taints.extend(serde_json::from_value::<Taint>(taint));
            plan.merge(node, json!({"spec": {"taints": taints}}));
            plan.because("the cloud takes the machine back");
            return;
        }
    }
    let stays = |pod: &&Arc<Pod>| pod.metadata.deletion_timestamp.is_none();
    for pod in open.pods.iter().filter(stays) {
        evict_pod(plan, pod);
        plan.because("the cloud takes the machine under it back");
    }
}
