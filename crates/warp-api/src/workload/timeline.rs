//! What a workload's status remembers of what happened to it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Entries a status keeps: the latest.
pub const TIMELINE_ENTRIES: usize = 20;

/// Something that happened to a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimelineEntry {
    /// When it was written down.
    pub time: Time,
    /// The field manager of the controller that did.
    pub actor: String,
    /// The field manager that had last written the spec by then.
    pub cause: String,
    /// The reason of `Ready` from then on.
    pub reason: String,
    /// The beginning of its sentence.
    #[schemars(length(max = 256))]
    pub message: String,
    /// The id of the pass that wrote it, by which the operator's log tells the rest.
    pub correlation: String,
}
