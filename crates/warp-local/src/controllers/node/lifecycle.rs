//! Notices nodes that fell silent, and keeps the taints that say what state a node is in.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;
use serde_json::json;

use crate::controllers::{PODS_BY_NODE, Shared, pods, wired};
use warp_runtime::cache::Key;
use warp_runtime::driver::{Controller, SyncError};
use warp_runtime::plan::{Action, Encoding, Kind, Plan, about};

const LEASES: &str = "kube-node-lease";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// A condition and the taint that follows from one of its values.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    (
        "MemoryPressure",
        "True",
        "node.kubernetes.io/memory-pressure",
    ),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    (
        "NetworkUnavailable",
        "True",
        "node.kubernetes.io/network-unavailable",
    ),
];
const CORDONED: &str = "node.kubernetes.io/unschedulable";
/// How often a node that is not ready is looked at.
const UNREADY_LOOK: SignedDuration = SignedDuration::from_secs(5);
/// The conditions a kubelet posts.
const POSTED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// A node's last sign of life, and when this process saw it: its own clock is not trusted.
#[derive(Clone, Debug, PartialEq)]
struct Sign {
    renewed: Option<Timestamp>,
    heartbeat: Option<Timestamp>,
    seen: Timestamp,
}

#[derive(Debug)]
pub(crate) struct Nodes {
    shared: Shared,
    signs: Arc<Mutex<BTreeMap<Key, Sign>>>,
}

impl Nodes {
    pub(crate) fn start(shared: &Shared) {
        let signs: Arc<Mutex<BTreeMap<Key, Sign>>> = Arc::default();
        let (heard, clock) = (signs.clone(), shared.clock.clone());
        // A renewal counts from when it was seen, not from when somebody next looks at the node.
        shared.caches.leases.listen(move |_, new| {
            let Some(lease) =
                new.filter(|lease| lease.metadata.namespace.as_deref() == Some(LEASES))
            else {
                return;
            };
            let key = Key::new("", lease.metadata.name.as_deref().unwrap_or_default());
            if let Some(sign) = heard.lock().get_mut(&key) {
                sign.renewed = renewed(lease);
                sign.seen = clock.now();
            }
        });
        let queue = wired(
            shared,
            Self {
                shared: shared.clone(),
                signs,
            },
        );
        shared
            .caches
            .nodes
            .on_key(&queue, |node| Some(Key::of(node)));
    }

    /// Remembers when the node last gave a sign of life.
    fn sign(&self, key: &Key, node: &Node, lease: Option<&Lease>, now: Timestamp) -> Sign {
        let renewed = lease.and_then(renewed);
        let heartbeat = condition(node, "Ready")
            .and_then(|ready| ready.last_heartbeat_time.as_ref())
            .map(|time| time.0);
        let mut signs = self.signs.lock();
        let sign = signs.entry(key.clone()).or_insert_with(|| Sign {
            renewed,
            heartbeat,
            seen: now,
        });
        if sign.renewed != renewed || sign.heartbeat != heartbeat {
            *sign = Sign {
                renewed,
                heartbeat,
                seen: now,
            };
        }
        sign.clone()
    }
}

fn renewed(lease: &Lease) -> Option<Timestamp> {
    let renewed = lease.spec.as_ref()?.renew_time.as_ref()?;
    Some(renewed.0)
}

impl Controller for Nodes {
    type Key = Key;
    const NAME: &'static str = "node-controller";

    async fn sync(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let caches = &self.shared.caches;
        let Some(node) = caches.nodes.get(key) else {
            self.signs.lock().remove(key);
            return Ok(None);
        };
        let now = self.shared.now();
        let lease = caches.leases.get(&Key::new(LEASES, &key.name));
        let sign = self.sign(key, &node, lease.as_deref(), now);
        let grace = SignedDuration::try_from(self.shared.options.node_grace)
            .unwrap_or(SignedDuration::from_secs(50));
        let others_up = caches
            .nodes
            .any(|other| is_ready(other) && other.metadata.name != node.metadata.name);
        let seen = Seen {
            node: &node,
            silent_since: (sign.seen + grace <= now).then_some(sign.seen),
            next_look: sign.seen + grace,
            others_ready: others_up,
        };
        let mut plan = plan(&seen, now);
        if lost(&seen) && is_ready(&node) {
            for pod in caches.pods.by(PODS_BY_NODE, &key.name) {
                mark_not_ready(&pod, now, &mut plan);
            }
        }
        self.shared.execute(Self::NAME, plan).await
    }
}

fn condition<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    node.status
        .as_ref()?
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == type_)
}

pub(crate) fn is_ready(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|ready| ready.status == "True")
}

pub(super) struct Seen<'a> {
    pub(super) node: &'a Node,
    /// Set when the node has been silent for longer than it may.
    pub(super) silent_since: Option<Timestamp>,
    pub(super) next_look: Timestamp,
    /// While no other node is ready, it is rather the network: nothing is evicted.
    pub(super) others_ready: bool,
}

fn lost(seen: &Seen<'_>) -> bool {
    seen.silent_since.is_some()
        && condition(seen.node, "Ready").is_none_or(|ready| ready.status != "Unknown")
}

pub(super) fn plan(seen: &Seen<'_>, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let node = seen.node;
    if node.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    if lost(seen) {
        // The taints follow in the pass this write brings about: they are written against what is there then.
        plan.status(node, node.status.as_ref(), &silenced(node, now));
        let name = node.metadata.name.as_deref().unwrap_or_default();
        plan.note(
            about(node),
            false,
            "NodeNotReady",
            format!("Node {name} status is now: NodeNotReady"),
        );
        return plan;
    }
    if seen.silent_since.is_none() {
        plan.look_again(seen.next_look);
    }
    if !is_ready(node) {
        // Whether its pods are evicted depends on other nodes, whose changes do not lead here.
        plan.look_again(now + UNREADY_LOOK);
    }
    let taints = taints(node, seen.others_ready, now);
    let known = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default();
    if taints != known {
        plan.push(Action::Patch {
            kind: Kind::of::<Node>(),
            key: Key::of(node),
            sub: None,
            encoding: Encoding::Merge,
            patch: json!({
                "metadata": { "resourceVersion": node.metadata.resource_version },
                "spec": { "taints": taints },
            }),
        });
    }
    plan
}

fn silenced(node: &Node, now: Timestamp) -> NodeStatus {
    let mut status = node.status.clone().unwrap_or_default();
    let conditions = status.conditions.get_or_insert_default();
    for type_ in POSTED {
        let unknown = |known: Option<&NodeCondition>| NodeCondition {
            type_: type_.to_owned(),
            status: "Unknown".to_owned(),
            reason: Some(
                if known.is_some() {
                    "NodeStatusUnknown"
                } else {
                    "NodeStatusNeverUpdated"
                }
                .to_owned(),
            ),
            message: Some(
                if known.is_some() {
                    "Kubelet stopped posting node status."
                } else {
                    "Kubelet never posted node status."
                }
                .to_owned(),
            ),
            last_heartbeat_time: known.map_or_else(
                || node.metadata.creation_timestamp.clone(),
                |known| known.last_heartbeat_time.clone(),
            ),
            last_transition_time: Some(Time(now)),
        };
        match conditions
            .iter_mut()
            .find(|condition| condition.type_ == type_)
        {
            Some(known) if known.status != "Unknown" => *known = unknown(Some(known)),
            Some(_) => {}
            None => conditions.push(unknown(None)),
        }
    }
    status
}

/// The node's taints as its state wants them; foreign ones stay.
fn taints(node: &Node, evict: bool, now: Timestamp) -> Vec<Taint> {
    let known = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default();
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    for (type_, value, key) in BY_CONDITION {
        if condition(node, type_).is_some_and(|condition| condition.status == value) {
            wanted.push((key, "NoSchedule"));
        }
    }
    // A node nobody has reported on yet is not ready.
    if condition(node, "Ready").is_none() {
        wanted.push((NOT_READY, "NoSchedule"));
    }
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        wanted.push((CORDONED, "NoSchedule"));
    }
    if let Some(ready) = condition(node, "Ready").filter(|_| evict) {
        match ready.status.as_str() {
            "False" => wanted.push((NOT_READY, "NoExecute")),
            "Unknown" => wanted.push((UNREACHABLE, "NoExecute")),
            _ => {}
        }
    }
    let managed = |taint: &Taint| {
        let by_condition = taint.effect == "NoSchedule"
            && BY_CONDITION.iter().any(|(_, _, key)| taint.key == *key);
        let evicting =
            taint.effect == "NoExecute" && (taint.key == NOT_READY || taint.key == UNREACHABLE);
        by_condition || evicting || (taint.effect == "NoSchedule" && taint.key == CORDONED)
    };
    let mut taints: Vec<Taint> = known
        .into_iter()
        .filter(|taint| {
            !managed(taint)
                || wanted
                    .iter()
                    .any(|(key, effect)| taint.key == *key && taint.effect == *effect)
        })
        .collect();
    for (key, effect) in wanted {
        if !taints
            .iter()
            .any(|taint| taint.key == key && taint.effect == effect)
        {
            taints.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                value: None,
                time_added: Some(Time(now)),
            });
        }
    }
    taints
}

/// The pods of a lost node are not ready, whatever they last said.
fn mark_not_ready(pod: &Pod, now: Timestamp, plan: &mut Plan) {
    if !pods::is_ready(pod) {
        return;
    }
    plan.push(Action::Patch {
        kind: Kind::of::<Pod>(),
        key: Key::of(pod),
        sub: Some("status"),
        encoding: Encoding::Strategic,
        patch: json!({
            "metadata": { "uid": pod.metadata.uid },
            "status": { "conditions": [{ "type": "Ready", "status": "False", "lastTransitionTime": Time(now) }] },
        }),
    });
    plan.note(
        about(pod),
        true,
        "NodeNotReady",
        "Node is not ready".to_owned(),
    );
}
