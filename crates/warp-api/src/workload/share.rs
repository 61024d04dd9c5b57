//! Which GPUs a workload wants and how much of one: whole ones, a seat on a shared one, a fraction, or parts. The schema;
//! what it means is read in `ask.rs`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use warp_core::gpu::Isolation;

use super::{GpuRequirement, GpuVendor};

/// Which GPUs will do, and whether it wants them for itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadGpu {
    /// Whose GPUs. Absent: the vendor of `models` or `partition`, else `nvidia`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<GpuVendor>,
    /// Models that will do, such as `H100`, `A100-80GB` or `MI300X`, or products as the nodes' labels
    /// name them, such as `NVIDIA-H100-PCIe`; any of them. Empty: every model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    pub models: Vec<String>,
    /// Least memory of what it gets, as the node reports it, such as `40Gi`: of one GPU, of one part, or of its share
    /// where something limits that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub min_memory: Option<String>,
    /// `exclusive`: GPUs, or parts, of its own. `shared`: one that others use at the same time, where nodes offer such.
    /// Absent: `exclusive`, with `fraction` `shared`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<GpuSharing>,
    /// How much of one GPU, such as `"0.25"`. It runs only where something keeps each to its part, unless `isolation` is
    /// `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^0\.(00[1-9]|0[1-9][0-9]?|[1-9][0-9]{0,2})$"))]
    pub fraction: Option<String>,
    /// Parts that a GPU is cut into, by profile: MIG such as `1g.10gb`, AMD such as `CPX`, `DPX`, `QPX` or `cpx_nps4`,
    /// Intel `tile`. `gpuCount` is how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 32),
        regex(pattern = r"^[0-9A-Za-z][0-9A-Za-z._+-]*$")
    )]
    pub partition: Option<String>,
    /// The least that has to keep others off its memory: `none`, `software` (a limit that MPS or a library keeps) or
    /// `hardware` (the device itself). Absent: `software` with `fraction`, else `none`. What it got is said in the
    /// condition `Placed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<GpuIsolation>,
}

/// Whether it wants GPUs for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GpuSharing {
    Exclusive,
    Shared,
}

/// What keeps those who share a GPU off each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GpuIsolation {
    None,
    Software,
    Hardware,
}

impl From<GpuIsolation> for Isolation {
    fn from(isolation: GpuIsolation) -> Self {
        match isolation {
            GpuIsolation::None => Self::None,
            GpuIsolation::Software => Self::Software,
            GpuIsolation::Hardware => Self::Hardware,
        }
    }
}

impl From<GpuRequirement> for WorkloadGpu {
    fn from(gpu: GpuRequirement) -> Self {
        Self {
            vendor: gpu.vendor,
            models: gpu.models,
            min_memory: gpu.min_memory,
            ..Self::default()
        }
    }
}
