//! What one node has, who holds it, and whether a pod fits: checked once more when a pod arrives, as a
//! kubelet does, because a pod may be bound by hand or by a scheduler that saw an older state.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use warp_core::fleet::{Constraints, Labels};
use warp_core::resources::Resources;

use super::super::checks;
use super::super::devices::Ledger;
use super::super::facts::Facts;
use super::super::fleet::Shape;
use super::super::runtime::{Refusal, Runtime};
use super::nodes;
use crate::scheduler::request;

pub(super) struct Room {
    pub(super) shape: Shape,
    pub(super) ledger: Ledger,
    all: Resources,
    /// What pods that have not ended ask for, by uid.
    held: BTreeMap<String, Resources>,
    /// The node's labels as last seen: they may be changed while it runs.
    labels: Labels,
}

impl Room {
    pub(super) fn new(shape: Shape) -> Self {
        let mut all = Resources::default();
        for (name, amount) in &shape.capacity {
            if let Err(error) = all.set(name, &amount.0) {
                tracing::warn!(node = shape.name, name, %error, "capacity ignored");
            }
        }
        Self {
            ledger: Ledger::new(shape.devices.clone()),
            all,
            labels: request::labels(Some(&shape.labels)),
            shape,
            held: BTreeMap::new(),
        }
    }

    /// Whether the node takes the pod, and which devices it gets. A pod that already ran here keeps what
    /// it has.
    pub(super) fn admit(
        &mut self,
        runtime: &dyn Runtime,
        uid: &str,
        pod: &Pod,
        facts: &mut Facts,
        known: bool,
    ) -> Option<Refusal> {
        let spec = pod.spec.as_ref()?;
        let request = request::request(pod);
        let wanted = request.resources;
        if !known && let Some(refusal) = self.too_little(&wanted) {
            return Some(refusal);
        }
        if !known && !self.is_chosen_by(&request.constraints) {
            return Some(Refusal {
                reason: "NodeAffinity".to_owned(),
                message: "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector".to_owned(),
            });
        }
        if !known && let Some(refusal) = checks::refusal(pod) {
            return Some(refusal);
        }
        if !known && let Err(refusal) = runtime.admit(pod) {
            return Some(refusal);
        }
        let held = known.then(|| runtime.held_devices(pod)).flatten();
        if let Some(held) = held {
            self.ledger.retake(uid, &held);
            facts.devices = held;
        } else {
            match self.ledger.take(uid, spec) {
                Ok(devices) => facts.devices = devices,
                Err(_) if known => {}
                Err(unavailable) => {
                    return Some(Refusal {
                        reason: "UnexpectedAdmissionError".to_owned(),
                        message: unavailable.to_string(),
                    });
                }
            }
        }
        self.held.insert(uid.to_owned(), wanted);
        None
    }

    pub(super) fn relabel(&mut self, seen: &Node) {
        self.labels = request::labels(seen.metadata.labels.as_ref());
    }

    /// Do the pod's node selector and its required node affinity name this node?
    fn is_chosen_by(&self, constraints: &Constraints) -> bool {
        let selected = constraints
            .node_selector
            .iter()
            .all(|(key, value)| self.labels.get(key) == Some(value));
        selected
            && constraints.node_affinity.as_ref().is_none_or(|terms| {
                terms
                    .iter()
                    .any(|term| term.matches(&self.shape.name, &self.labels))
            })
    }

    pub(super) fn release(&mut self, uid: &str) {
        self.ledger.release(uid);
        self.held.remove(uid);
    }

    /// The status the node should have, when the one it has says something else.
    pub(super) fn correction(&self, seen: &Node, now: &Time) -> Option<NodeStatus> {
        nodes::correction(&self.shape, &self.ledger.healthy(), seen, now)
    }

    /// The first resource there is not enough of. Devices are handed out one by one, not counted here;
    /// what others wrote into the node's status is not this node's to count, as with a kubelet.
    fn too_little(&self, wanted: &Resources) -> Option<Refusal> {
        let mut used = Resources::default();
        for held in self.held.values() {
            used.add(held);
        }
        let pods = i64::try_from(self.held.len()).unwrap_or(i64::MAX);
        let mut checks = vec![
            ("pods", 1, pods, self.all.extended("pods")),
            ("cpu", wanted.cpu_milli, used.cpu_milli, self.all.cpu_milli),
            (
                "memory",
                wanted.memory_bytes,
                used.memory_bytes,
                self.all.memory_bytes,
            ),
        ];
        checks.extend(
            wanted
                .extended
                .iter()
                .filter(|(name, _)| !self.shape.devices.contains_key(&***name))
                .filter(|(name, _)| self.all.extended.contains_key(*name))
                .map(|(name, &amount)| {
                    (
                        &**name,
                        amount,
                        used.extended(name),
                        self.all.extended(name),
                    )
                }),
        );
        let (name, asked, used, all) = checks
            .into_iter()
            .find(|(_, asked, used, all)| *asked > 0 && used.saturating_add(*asked) > *all)?;
        Some(Refusal {
            reason: format!("OutOf{name}"),
            message: format!(
                "Pod was rejected: Node didn't have enough resource: {name}, requested: {asked}, used: {used}, capacity: {all}"
            ),
        })
    }
}
