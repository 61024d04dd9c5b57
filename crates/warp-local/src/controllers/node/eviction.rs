//! Deletes the pods that do not tolerate a `NoExecute` taint of their node, or no longer do.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use crate::controllers::{PODS_BY_NODE, Shared, pods, wired};
use warp_runtime::cache::Key;
use warp_runtime::driver::{Controller, SyncError, later};
use warp_runtime::plan::{Action, Encoding, Kind, Plan, Removal, about};

#[derive(Debug)]
pub(crate) struct TaintEviction(Shared);

impl TaintEviction {
    pub(crate) fn start(shared: &Shared) {
        let queue = wired(shared, Self(shared.clone()));
        shared.caches.nodes.on_key(&queue, |node| {
            (!executing(node).is_empty()).then(|| Key::of(node))
        });
        let nodes = shared.caches.nodes.clone();
        shared.caches.pods.listen(move |old, new| {
            let Some(name) = new.and_then(|pod| pods::node(pod)) else {
                return;
            };
            let bound_now = old.is_none_or(|old| pods::node(old).is_none());
            let key = Key::new("", name);
            if bound_now
                && nodes
                    .get(&key)
                    .is_some_and(|node| !executing(&node).is_empty())
            {
                queue.add(key);
            }
        });
    }
}

impl Controller for TaintEviction {
    type Key = Key;
    const NAME: &'static str = "taint-eviction-controller";

    async fn sync(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let caches = &self.0.caches;
        let Some(node) = caches.nodes.get(key) else {
            return Ok(None);
        };
        let mut plan = Plan::default();
        let taints = executing(&node);
        for pod in caches.pods.by(PODS_BY_NODE, &key.name) {
            plan_pod(&pod, &taints, self.0.now(), &mut plan);
        }
        self.0.execute(Self::NAME, plan).await
    }
}

fn executing(node: &Node) -> Vec<&Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints
        .into_iter()
        .flatten()
        .filter(|taint| taint.effect == "NoExecute")
        .collect()
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration
        .effect
        .as_deref()
        .is_none_or(|effect| effect.is_empty() || effect == taint.effect);
    let key = toleration
        .key
        .as_deref()
        .is_none_or(|key| key.is_empty() || key == taint.key);
    let exists = toleration.operator.as_deref() == Some("Exists");
    effect
        && key
        && (exists
            || toleration.value.as_deref().unwrap_or_default()
                == taint.value.as_deref().unwrap_or_default())
}

/// When a pod must go: never, or at a time.
pub(super) fn leaves_at(pod: &Pod, taints: &[&Taint], now: Timestamp) -> Option<Timestamp> {
    let tolerations = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default();
    let mut earliest: Option<Timestamp> = None;
    for taint in taints {
        let tolerating: Vec<_> = tolerations
            .iter()
            .filter(|toleration| tolerates(toleration, taint))
            .collect();
        let added = taint.time_added.as_ref().map_or(now, |time| time.0);
        let at = if tolerating.is_empty() {
            Some(now)
        } else {
            let seconds = tolerating
                .iter()
                .filter_map(|toleration| toleration.toleration_seconds)
                .min();
            seconds.map(|seconds| later(added, SignedDuration::from_secs(seconds.max(0))))
        };
        earliest = match (earliest, at) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
    earliest
}

fn plan_pod(pod: &Pod, taints: &[&Taint], now: Timestamp, plan: &mut Plan) {
    if pods::is_terminating(pod) {
        return;
    }
    let Some(at) = leaves_at(pod, taints, now) else {
        return;
    };
    if at > now {
        return plan.look_again(at);
    }
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
        "message": "Taint manager: deleting due to NoExecute taint", "lastProbeTime": null, "lastTransitionTime": Time(now),
    });
    if !pods::is_finished(pod) {
        plan.push(Action::Patch {
            kind: Kind::of::<Pod>(),
            key: Key::of(pod),
            sub: Some("status"),
            encoding: Encoding::Strategic,
            patch: json!({ "metadata": { "uid": pod.metadata.uid }, "status": { "conditions": [condition] } }),
        });
    }
    let name = Key::of(pod);
    plan.note(
        about(pod),
        false,
        "TaintManagerEviction",
        format!("Marking for deletion Pod {name}"),
    );
    plan.delete(pod, Removal::default(), None);
}
