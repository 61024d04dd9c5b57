//! Pools of different GPUs that serve one model together, and what a spec means for each.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::EnvVar;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{InferenceServiceSpec, Parallelism};
use crate::workload::GpuRequirement;

/// GPUs that some of the copies are served by. The first in the list that has room is preferred.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Accelerator {
    /// Names its Deployment, together with the service, and its line in the status.
    #[schemars(
        length(min = 1, max = 16),
        regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Which GPUs will do. Absent: any NVIDIA GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuRequirement>,
    /// Whole GPUs of one copy, all on one node. Absent: as many as `parallelism` takes, else 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16))]
    pub gpu_count: Option<i32>,
    /// How the model is split over them. Absent: every layer over all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<Parallelism>,
    /// What of `spec.engine` is different here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<AcceleratorEngine>,
    /// Copies it has before others get any.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000))]
    pub min: i32,
    /// Most copies it has. Absent: as many as are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub max: Option<i32>,
}

/// What of the engine is different on one pool of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AcceleratorEngine {
    /// Instead of `spec.engine.version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 128),
        regex(pattern = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
    )]
    pub version: Option<String>,
    /// Instead of `spec.engine.image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Beside those of `spec.engine.args`; one of the same name wins.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, String>,
    /// After those of `spec.engine.advanced`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub advanced: Vec<String>,
    /// Beside those of `spec.engine.env`; one of the same name wins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
}

/// What one pool of GPUs serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AcceleratorStatus {
    /// Its name in `spec.accelerators`.
    pub name: String,
    /// What a copy asks for, such as `1 amd MI300X GPU`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<String>,
    /// Copies it is to have.
    #[serde(default)]
    pub replicas: i32,
    /// Copies that answer.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Copies of the spec as it is now.
    #[serde(default)]
    pub updated_replicas: i32,
    /// A copy got no place here though GPUs looked free: they are kept for others, or are more than the tenant has. Until
    /// then copies go to the pools after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_room_until: Option<Time>,
    /// Why it has fewer than it could, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl InferenceServiceSpec {
    /// What it means for the copies on one pool of GPUs.
    #[must_use]
    pub fn on(&self, pool: &Accelerator) -> Self {
        let mut spec = Self {
            gpu: pool.gpu.clone(),
            gpu_count: pool.gpu_count,
            parallelism: pool.parallelism,
            accelerators: Vec::new(),
            ..self.clone()
        };
        let Some(other) = &pool.engine else {
            return spec;
        };
        let engine = &mut spec.engine;
        engine.version = other.version.clone().or(engine.version.take());
        engine.image = other.image.clone().or(engine.image.take());
        engine.args.extend(other.args.clone());
        engine.advanced.extend(other.advanced.iter().cloned());
        let given = |name: &str| other.env.iter().any(|one| one.name == name);
        engine.env.retain(|one| !given(&one.name));
        engine.env.extend(other.env.iter().cloned());
        spec
    }
}
