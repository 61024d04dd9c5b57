//! What happens to a workload while it waits for room, besides waiting.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who sees that a workload waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum WhenPending {
    /// The line alone: nothing of it exists on the cluster until it has a place.
    Hold,
    /// Cluster Autoscaler and Karpenter too: pods stand in for it that ask for what it asks for and never run.
    Ungate,
}

/// That pods stand in for a workload that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShownStatus {
    /// Since when. Nodes that come later, and that it can use, are kept for it for ten minutes.
    pub since: Time,
    /// The Job of the pods that stand in for it.
    pub job_name: String,
}
