//! What a node needs from whatever runs its containers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};

use super::devices::Devices;
use super::facts::{Event, Facts};
use super::lifecycle::Action;

/// An event that is known to happen at a time. Runtimes that only learn of their events when they
/// happen send them through the channel they were made with instead.
#[derive(Clone, Debug, PartialEq)]
pub struct Due {
    pub at: Timestamp,
    pub event: Event,
}

/// An event of one pod, sent by a runtime as it happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub uid: String,
    pub event: Event,
}

/// Why a node does not take a pod, in the terms of a pod status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    pub message: String,
}

/// What is wrong with a node at the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Cut off: it neither renews its lease nor reports on its pods.
    pub lost: bool,
    /// Devices that broke, by resource.
    pub broken: BTreeMap<String, BTreeSet<u32>>,
    /// What its object asks of the runtime that means nothing here.
    pub unknown: Vec<String>,
}

/// Runs containers. `act` must not block: slow work goes to a task that reports later.
pub trait Runtime: Send + Sync + std::fmt::Debug + 'static {
    /// The first word of the container ids and of the node's runtime version.
    fn name(&self) -> &'static str;

    /// Whether it reads what a pod names (ConfigMaps, Secrets, claims) to lay it out, and tells what is
    /// missing; the host looks for those that do not.
    fn reads_contents(&self) -> bool {
        false
    }

    /// Whether an image name that no registry knows means something here.
    fn is_own_image(&self, _image: &str) -> bool {
        false
    }

    /// Whether its devices may break without anybody saying so in the API.
    fn has_real_devices(&self) -> bool {
        true
    }

    /// Whether every container of this runtime runs as root, whatever its pod says.
    fn runs_as_root(&self) -> bool {
        false
    }

    /// Whether this runtime can run the pod at all.
    fn admit(&self, pod: &Pod) -> Result<(), Refusal>;

    fn act(&self, pod: &Arc<Pod>, facts: &Facts, action: &Action, now: Timestamp) -> Vec<Due>;

    /// A pod that was under way when this process started: reports what became of its containers.
    fn adopt(&self, pod: &Arc<Pod>, facts: &Facts, now: Timestamp) -> Vec<Due>;

    /// The pod's annotations were changed while it is under way: everything that will happen to it by
    /// itself, in place of what was said before. `None`: nothing this runtime said depends on them.
    fn changed(&self, _pod: &Arc<Pod>, _facts: &Facts, _now: Timestamp) -> Option<Vec<Due>> {
        None
    }

    /// The devices a pod under way was given before this process started.
    fn held_devices(&self, pod: &Pod) -> Option<Devices>;

    /// The pod's object is gone: end what is left of it and drop its logs.
    fn forget(&self, pod: &Pod);

    /// The pods the API knows on this host's nodes: whatever else is here is a leftover and is ended.
    fn keep_only(&self, known: &BTreeSet<String>);

    /// Health as the node object and the machine tell it.
    fn health(&self, node: &Node) -> Health;

    /// A device of the pod broke while the pod ran.
    fn device_lost(
        &self,
        pod: &Arc<Pod>,
        facts: &Facts,
        containers: &[String],
        now: Timestamp,
    ) -> Vec<Due>;
}
