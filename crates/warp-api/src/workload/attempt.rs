//! What a workload's status remembers of its attempts: where they were, and what came of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Attempts a status keeps: the latest.
pub const ATTEMPTS: usize = 8;
/// Nodes of an attempt that are named.
pub const ATTEMPT_NODES: usize = 8;

/// One attempt that has or had a place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadAttempt {
    /// Its number, from 0.
    #[schemars(range(min = 0))]
    pub number: i32,
    /// The provider of its node; those of a gang's nodes, separated by commas.
    pub provider: String,
    /// Its node; of a gang the first eight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub nodes: Vec<String>,
    /// When its place was chosen.
    pub placed_at: Time,
    /// When its container started; of a gang, the first one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
