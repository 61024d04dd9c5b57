//! Removes pods nobody will end any more: bound to a node that is gone, deleted before they were bound, or finished and
//! far too many.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use parking_lot::Mutex;
use serde_json::json;

use super::{Shared, pods, wired};
use warp_runtime::cache::Key;
use warp_runtime::driver::{Controller, SyncError};
use warp_runtime::plan::{Action, Encoding, Kind, Plan, Removal};

const PERIOD: SignedDuration = SignedDuration::from_secs(20);
/// How long a node must be missing before its pods are taken as lost.
const QUARANTINE: SignedDuration = SignedDuration::from_secs(40);

#[derive(Debug)]
pub(crate) struct PodGc {
    shared: Shared,
    missing: Mutex<BTreeMap<String, Timestamp>>,
}

impl PodGc {
    pub(crate) fn start(shared: &Shared) {
        let queue = wired(
            shared,
            Self {
                shared: shared.clone(),
                missing: Mutex::default(),
            },
        );
        queue.add(());
    }

    /// Since when each node that pods name has been missing.
    fn missing(&self, pods: &[Arc<Pod>], now: Timestamp) -> BTreeMap<String, Timestamp> {
        let nodes = &self.shared.caches.nodes;
        let named = pods.iter().filter_map(|pod| pods::node(pod));
        let mut missing = self.missing.lock();
        let mut found = BTreeMap::new();
        for name in named {
            if !found.contains_key(name) && nodes.get(&Key::new("", name)).is_none() {
                found.insert(name.to_owned(), missing.get(name).copied().unwrap_or(now));
            }
        }
        missing.clone_from(&found);
        found
    }

    /// Leaves out nodes that are there after all: a watch may be behind, and a pod ended by mistake does not come back.
    async fn confirm(
        &self,
        missing: &mut BTreeMap<String, Timestamp>,
        now: Timestamp,
    ) -> Result<(), SyncError> {
        let nodes: Api<Node> = Api::all(self.shared.client().clone());
        let due = missing.iter().filter(|(_, since)| lost(**since, now));
        let due: Vec<String> = due.map(|(name, _)| name.clone()).collect();
        for name in due {
            let found = nodes.get_metadata_opt(&name).await;
            let found = found.map_err(|source| SyncError::Read {
                what: format!("node {name}"),
                source: Box::new(source),
            })?;
            if found.is_some() {
                missing.remove(&name);
            }
        }
        Ok(())
    }
}

/// Whether a node missing since then counts as lost.
fn lost(since: Timestamp, now: Timestamp) -> bool {
    since + QUARANTINE <= now
}

impl Controller for PodGc {
    type Key = ();
    const NAME: &'static str = "pod-garbage-collector";
    const WORKERS: usize = 1;

    async fn sync(&self, (): &()) -> Result<Option<Timestamp>, SyncError> {
        let now = self.shared.now();
        let all = self.shared.caches.pods.all();
        let mut missing = self.missing(&all, now);
        self.confirm(&mut missing, now).await?;
        let mut plan = plan(&all, &missing, self.shared.options.terminated_pods, now);
        let nodes = &self.shared.caches.nodes;
        for pod in all.iter().filter(|pod| pods::is_terminating(pod)) {
            let node = pods::node(pod).and_then(|name| nodes.get(&Key::new("", name)));
            let out_of_service = node.is_some_and(|node| {
                let taints = node
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.taints.as_deref())
                    .unwrap_or_default();
                !super::node::lifecycle::is_ready(&node)
                    && taints
                        .iter()
                        .any(|taint| taint.key == "node.kubernetes.io/out-of-service")
            });
            if out_of_service {
                end(
                    pod,
                    "PodGC: pod was terminating on an out-of-service node",
                    now,
                    &mut plan,
                );
            }
        }
        plan.look_again(now + PERIOD);
        self.shared.execute(Self::NAME, plan).await
    }
}

fn plan(
    all: &[Arc<Pod>],
    missing: &BTreeMap<String, Timestamp>,
    most: usize,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    let mut finished: Vec<_> = all
        .iter()
        .filter(|pod| pods::is_finished(pod) && !pods::is_terminating(pod))
        .collect();
    if finished.len() > most {
        finished.sort_by_key(|pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0));
        for pod in finished.iter().take(finished.len() - most) {
            plan.delete(
                &***pod,
                Removal {
                    grace_seconds: Some(0),
                    propagation: None,
                },
                None,
            );
        }
    }
    for pod in all {
        let gone = pods::node(pod)
            .and_then(|node| missing.get(node))
            .is_some_and(|since| lost(*since, now));
        if gone {
            end(pod, "PodGC: node no longer exists", now, &mut plan);
        } else if pods::is_terminating(pod) && pods::node(pod).is_none() {
            end(pod, "", now, &mut plan);
        }
    }
    plan
}

/// Marks a pod as failed and removes it at once.
fn end(pod: &Pod, message: &str, now: Timestamp, plan: &mut Plan) {
    if !pods::is_finished(pod) && !message.is_empty() {
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": message,
            "lastProbeTime": null, "lastTransitionTime": Time(now),
        });
        plan.push(Action::Patch {
            kind: Kind::of::<Pod>(),
            key: Key::of(pod),
            sub: Some("status"),
            encoding: Encoding::Strategic,
            patch: json!({ "metadata": { "uid": pod.metadata.uid }, "status": { "phase": "Failed", "conditions": [condition] } }),
        });
    }
    plan.delete(
        pod,
        Removal {
            grace_seconds: Some(0),
            propagation: None,
        },
        None,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: Option<&str>, phase: &str, second: i64) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": { "name": name, "uid": name, "creationTimestamp": Timestamp::from_second(second).unwrap() },
                "spec": { "containers": [], "nodeName": node },
                "status": { "phase": phase }
            }))
            .unwrap(),
        )
    }

    fn deleted(plan: &Plan) -> Vec<String> {
        let name = |action: &Action| match action {
            Action::Delete { key, .. } => Some(key.name.to_string()),
            _ => None,
        };
        plan.actions.iter().filter_map(name).collect()
    }

    #[test]
    fn the_oldest_finished_pods_go_beyond_the_limit() {
        let pods = [
            pod("new", None, "Failed", 9),
            pod("old", None, "Succeeded", 1),
            pod("runs", None, "Running", 0),
        ];
        assert_eq!(
            deleted(&plan(&pods, &BTreeMap::new(), 1, Timestamp::UNIX_EPOCH)),
            ["old"]
        );
    }

    #[test]
    fn pods_of_a_missing_node_go_after_the_quarantine() {
        let pods = [pod("p", Some("gone"), "Running", 0)];
        let missing = BTreeMap::from([("gone".to_owned(), Timestamp::UNIX_EPOCH)]);
        assert!(deleted(&plan(&pods, &missing, 9, Timestamp::UNIX_EPOCH)).is_empty());
        let later = Timestamp::UNIX_EPOCH + QUARANTINE;
        assert_eq!(deleted(&plan(&pods, &missing, 9, later)), ["p"]);
    }
}
