//! The GPU catalogue: which models exist, what people call them, what one device holds, and which
//! resource, taint and labels stand for it on a node.
//!
//! Owns names and numbers only. It decides nothing about placement (`schedule`) and knows no
//! Kubernetes type: labels and allocatable counts come in as ordered maps of text.

mod catalogue;
mod node;

pub use catalogue::{Form, MODELS, Model, form, named, partition, same_product, vendor_of};
pub use node::{Device, NodeGpus, PRICE_LABEL, Sharing, cheap, hourly_price, read};

use serde::{Deserialize, Serialize};

/// Who makes the device, which decides the resource name a pod has to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vendor {
    Nvidia,
    Amd,
    Intel,
    /// Gaudi: made by Intel, but with a device plugin and resource of its own.
    Habana,
}

impl Vendor {
    pub const ALL: [Self; 4] = [Self::Nvidia, Self::Amd, Self::Intel, Self::Habana];

    /// The resource names under which this vendor's device plugin offers whole devices, the usual
    /// one first. Intel has two because the kernel driver decides, not the model.
    pub fn resources(self) -> &'static [&'static str] {
        match self {
            Self::Nvidia => &["nvidia.com/gpu"],
            Self::Amd => &["amd.com/gpu"],
            Self::Intel => &["gpu.intel.com/i915", "gpu.intel.com/xe"],
            Self::Habana => &["habana.ai/gaudi"],
        }
    }

    /// The vendor whose whole devices a resource name counts.
    pub fn of_resource(resource: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|vendor| vendor.resources().contains(&resource))
    }

    /// Keys of the taints cluster operators put on this vendor's nodes: by convention the resource
    /// name itself, with effect `NoSchedule` and any value.
    pub fn taints(self) -> &'static [&'static str] {
        self.resources()
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia",
            Self::Amd => "amd",
            Self::Intel => "intel",
            Self::Habana => "habana",
        }
    }
}

impl std::fmt::Display for Vendor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests;
