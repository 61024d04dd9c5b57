//! A fleet of simulated nodes as a file: pools of equal nodes, and the node objects they become.

mod labels;
mod parts;
mod read;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::faults::Fault;
use super::simulated::Defaults;

pub use labels::{of as device_labels, product};
pub use read::FleetError;

/// The label every node of ours carries: who provides it.
pub const PROVIDER_LABEL: &str = "gpu.warp.dev/provider";

/// One node before it is an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    pub name: String,
    pub provider: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// Everything but devices.
    pub capacity: BTreeMap<String, Quantity>,
    /// Devices, or parts or shares of them, by resource name.
    pub devices: BTreeMap<String, u32>,
    pub address: String,
    /// For `status.nodeInfo`.
    pub runtime: String,
}

/// Nodes and the times of pods that set none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fleet {
    pub nodes: Vec<Shape>,
    pub defaults: Defaults,
    /// What happens to the nodes, and when.
    pub faults: Vec<Fault>,
}

impl Fleet {
    /// Reads a fleet file; `name` is what errors call it.
    pub fn parse(text: &str, name: &str) -> Result<Self, FleetError> {
        read::fleet(text, name)
    }

    /// The mixed fleet of `warp up --demo`.
    pub fn demo() -> Self {
        Self::parse(include_str!("fleet/demo.yaml"), "demo fleet")
            .expect("the demo fleet is parsed in the tests")
    }

    /// `count` nodes with `gpus` devices of one model each, for tests and benchmarks.
    pub fn uniform(count: u32, model: &str, gpus: u32) -> Result<Self, FleetError> {
        let text = format!(
            "pools:\n- name: {}\n  count: {count}\n  gpu: {model}\n  gpus: {gpus}\n",
            model.to_ascii_lowercase()
        );
        Self::parse(&text, "uniform fleet")
    }
}

impl Shape {
    /// Resources with the given number of healthy devices.
    pub fn resources(&self, devices: &BTreeMap<String, u32>) -> BTreeMap<String, Quantity> {
        let mut all = self.capacity.clone();
        for (resource, count) in devices {
            all.insert(resource.clone(), Quantity(count.to_string()));
        }
        all
    }

    /// The object as a kubelet registers it.
    pub fn object(&self, healthy: &BTreeMap<String, u32>, now: &Time) -> Node {
        Node {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(self.labels.clone()),
                annotations: (!self.annotations.is_empty()).then(|| self.annotations.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                provider_id: Some(format!("{}://{}", self.provider, self.name)),
                taints: (!self.taints.is_empty()).then(|| self.taints.clone()),
                ..NodeSpec::default()
            }),
            status: Some(self.status(healthy, now)),
        }
    }

    pub fn status(&self, healthy: &BTreeMap<String, u32>, now: &Time) -> NodeStatus {
        NodeStatus {
            capacity: Some(self.resources(&self.devices)),
            allocatable: Some(self.resources(healthy)),
            conditions: Some(conditions(now)),
            addresses: Some(vec![
                address("InternalIP", &self.address),
                address("Hostname", &self.name),
            ]),
            node_info: Some(NodeSystemInfo {
                architecture: self.label("kubernetes.io/arch", "amd64"),
                operating_system: self.label("kubernetes.io/os", "linux"),
                kubelet_version: "v1.35.4+warp".to_owned(),
                container_runtime_version: self.runtime.clone(),
                ..NodeSystemInfo::default()
            }),
            ..NodeStatus::default()
        }
    }

    fn label(&self, key: &str, default: &str) -> String {
        self.labels
            .get(key)
            .map_or(default, String::as_str)
            .to_owned()
    }
}

fn address(kind: &str, value: &str) -> NodeAddress {
    NodeAddress {
        type_: kind.to_owned(),
        address: value.to_owned(),
    }
}

/// The conditions of a healthy node.
pub fn conditions(now: &Time) -> Vec<NodeCondition> {
    [
        (
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        (
            "DiskPressure",
            "False",
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure",
        ),
        (
            "PIDPressure",
            "False",
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
        ),
        (
            "Ready",
            "True",
            "KubeletReady",
            "kubelet is posting ready status",
        ),
    ]
    .into_iter()
    .map(|(kind, status, reason, message)| NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now.clone()),
    })
    .collect()
}
