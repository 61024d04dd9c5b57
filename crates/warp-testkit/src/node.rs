//! Shapes of simulated nodes.
//!
//! Owns: the labels, taints and resources that real nodes of a vendor carry once its device plugin
//! and feature discovery have run. Must not start or watch nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use serde_json::json;

/// What a node looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeShape {
    /// Nodes of this shape are called `<name>-<number>`.
    name: String,
    /// KWOK process that plays this node's kubelet; a group is lost as a whole.
    group: String,
    resources: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    taints: Vec<(String, String, String)>,
}

/// The group of nodes that no test loses.
pub const STEADY: &str = "steady";

impl NodeShape {
    /// A machine without accelerators: 32 cores, 128 GiB.
    pub fn cpu() -> Self {
        Self {
            name: "cpu".to_owned(),
            group: STEADY.to_owned(),
            resources: BTreeMap::new(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
        }
        .resource("cpu", "32")
        .resource("memory", "128Gi")
        .resource("ephemeral-storage", "500Gi")
        .resource("pods", "110")
        .label("kubernetes.io/os", "linux")
        .label("kubernetes.io/arch", "amd64")
    }

    /// A machine with `count` NVIDIA devices, labelled as GPU feature discovery does it.
    pub fn nvidia(name: &str, product: &str, memory_mib: u32, family: &str, count: u32) -> Self {
        Self::cpu()
            .named(name)
            .resource("cpu", "192")
            .resource("memory", "2Ti")
            .resource("nvidia.com/gpu", &count.to_string())
            .label("nvidia.com/gpu.present", "true")
            .label("nvidia.com/gpu.product", product)
            .label("nvidia.com/gpu.memory", &memory_mib.to_string())
            .label("nvidia.com/gpu.family", family)
            .label("nvidia.com/gpu.count", &count.to_string())
            .label("nvidia.com/gpu.replicas", "1")
            .label("nvidia.com/gpu.sharing-strategy", "none")
            .label("nvidia.com/mig.strategy", "single")
    }

    pub fn h100(count: u32) -> Self {
        Self::nvidia("h100", "NVIDIA-H100-80GB-HBM3", 81_559, "hopper", count)
    }

    pub fn a100_40(count: u32) -> Self {
        Self::nvidia("a100", "NVIDIA-A100-SXM4-40GB", 40_960, "ampere", count)
    }

    pub fn l4(count: u32) -> Self {
        Self::nvidia("l4", "NVIDIA-L4", 23_034, "ada-lovelace", count)
    }

    /// A machine with `count` AMD MI300X, labelled as AMD's node labeller does it on a node whose
    /// devices are all alike.
    pub fn mi300x(count: u32) -> Self {
        Self::cpu()
            .named("mi300x")
            .resource("cpu", "192")
            .resource("memory", "2Ti")
            .resource("amd.com/gpu", &count.to_string())
            .label("feature.node.kubernetes.io/amd-gpu", "true")
            .label("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM")
            .label("amd.com/gpu.device-id", "74a1")
            .label("amd.com/gpu.family", "AI")
            .label("amd.com/gpu.vram", "192G")
            .label("amd.com/gpu.cu-count", "304")
            .label(
                "beta.amd.com/gpu.product-name.AMD_Instinct_MI300X_OAM",
                &count.to_string(),
            )
    }

    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Puts the node into a group that a test may lose (see [`crate::Cluster::lose`]).
    #[must_use]
    pub fn in_group(mut self, group: &str) -> Self {
        group.clone_into(&mut self.group);
        self
    }

    #[must_use]
    pub fn resource(mut self, name: &str, quantity: &str) -> Self {
        self.resources.insert(name.to_owned(), quantity.to_owned());
        self
    }

    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    #[must_use]
    pub fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        self.taints
            .push((key.to_owned(), value.to_owned(), effect.to_owned()));
        self
    }

    pub(crate) fn group(&self) -> &str {
        &self.group
    }

    pub fn name_of(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    /// The object to create; its status is set by a second request, as kubelets do it.
    pub(crate) fn node(&self, number: usize) -> serde_json::Result<Node> {
        let name = self.name_of(number);
        let mut labels = self.labels.clone();
        labels.insert("kubernetes.io/hostname".to_owned(), name.clone());
        labels.insert(GROUP_LABEL.to_owned(), self.group.clone());
        let taints: Vec<_> = self
            .taints
            .iter()
            .map(|(key, value, effect)| json!({"key": key, "value": value, "effect": effect}))
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints},
            "status": {"capacity": self.resources, "allocatable": self.resources},
        }))
    }
}

/// Which KWOK process manages the node.
pub(crate) const GROUP_LABEL: &str = "testbed.warp.dev/group";
