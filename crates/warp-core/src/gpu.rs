//! The GPU catalogue: which models exist, what people call them, what one device holds, and which
//! resource, taint and labels stand for it on a node.
//!
//! Owns names and numbers only. It decides nothing about placement (`schedule`) and knows no
//! Kubernetes type: labels and allocatable counts come in as ordered maps of text.

mod added;
mod catalogue;
mod node;
mod part;
mod sharing;

pub use added::{Catalogue, Row};
pub use catalogue::{Form, MODELS, Model, form, named, partition, same_product, vendor_of};
pub use node::{Device, NodeGpus, PRICE_LABEL, cheap, hourly_price, read};
pub use part::{Isolation, Profile};
pub use sharing::{Limits, Seats, SharedBy, Sharing};

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

/// Hardware generations, as far as it depends on them which weights a device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    Pascal,
    Volta,
    Turing,
    Ampere,
    Ada,
    Hopper,
    Blackwell,
    Vega,
    Cdna1,
    Cdna2,
    Cdna3,
    Cdna4,
    Rdna2,
    Rdna3,
    Rdna4,
    Xe,
    Gaudi,
}

impl Architecture {
    pub const ALL: [Self; 17] = [
        Self::Pascal,
        Self::Volta,
        Self::Turing,
        Self::Ampere,
        Self::Ada,
        Self::Hopper,
        Self::Blackwell,
        Self::Vega,
        Self::Cdna1,
        Self::Cdna2,
        Self::Cdna3,
        Self::Cdna4,
        Self::Rdna2,
        Self::Rdna3,
        Self::Rdna4,
        Self::Xe,
        Self::Gaudi,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pascal => "pascal",
            Self::Volta => "volta",
            Self::Turing => "turing",
            Self::Ampere => "ampere",
            Self::Ada => "ada",
            Self::Hopper => "hopper",
            Self::Blackwell => "blackwell",
            Self::Vega => "vega",
            Self::Cdna1 => "cdna1",
            Self::Cdna2 => "cdna2",
            Self::Cdna3 => "cdna3",
            Self::Cdna4 => "cdna4",
            Self::Rdna2 => "rdna2",
            Self::Rdna3 => "rdna3",
            Self::Rdna4 => "rdna4",
            Self::Xe => "xe",
            Self::Gaudi => "gaudi",
        }
    }

    pub fn vendor(self) -> Vendor {
        match self {
            Self::Pascal
            | Self::Volta
            | Self::Turing
            | Self::Ampere
            | Self::Ada
            | Self::Hopper
            | Self::Blackwell => Vendor::Nvidia,
            Self::Vega
            | Self::Cdna1
            | Self::Cdna2
            | Self::Cdna3
            | Self::Cdna4
            | Self::Rdna2
            | Self::Rdna3
            | Self::Rdna4 => Vendor::Amd,
            Self::Xe => Vendor::Intel,
            Self::Gaudi => Vendor::Habana,
        }
    }

    /// The architecture of this name, in any case.
    pub fn named(text: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|one| one.as_str().eq_ignore_ascii_case(text))
    }
}

#[cfg(test)]
mod tests;
