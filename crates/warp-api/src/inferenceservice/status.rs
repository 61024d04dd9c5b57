//! What an InferenceService says of itself.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AcceleratorStatus;

/// What the operator has seen and decided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferenceServiceStatus {
    /// Generation of the spec this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where it stands, derived from its Deployment and pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ServicePhase>,
    /// Why it stands there, in one sentence with numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Copies wanted at the moment.
    #[serde(default)]
    pub replicas: i32,
    /// Copies that answer.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Copies of the spec as it is now.
    #[serde(default)]
    pub updated_replicas: i32,
    /// Copies it has had a place for at once, of those wanted now. One that is lost or replaced is placed again before
    /// all other work, up to the number nobody may take from it.
    #[serde(default)]
    pub placed_replicas: i32,
    /// Selects the pods, for `kubectl scale` and autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Where clients reach it inside the cluster: the base of OpenAI's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Name to ask for at that address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// Addresses of the copies that answer, at most eight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// GPUs of one copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_replica: Option<i32>,
    /// Nodes one copy spans, where that is more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_per_replica: Option<i32>,
    /// The pools of `spec.accelerators`, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub accelerators: Vec<AcceleratorStatus>,
    /// The copies, where each spans nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub groups: Vec<GroupStatus>,
    /// The start of the newest copy, step by step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<TimelineStep>,
    /// What the last look at the engines said. Absent: there is no answer yet, which is not the same as nothing to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<ServiceLoad>,
    /// What it costs, where the nodes of all copies say what a GPU costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<ServiceCost>,
    /// How many tokens a copy's attention cache holds, as its engine says and as it was estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheSize>,
    /// The adapters of `model.adapters`, each with whether the copies that answer have it loaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub adapters: Vec<AdapterStatus>,
    /// Copies were too many since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub too_many_since: Option<Time>,
    /// Nodes that did not take a copy placed there, and until when they are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub refused_nodes: Vec<LeftOutNode>,
    /// GPUs look free since then and no copy gets them: they are kept for others, or are more than the tenant has. Ten
    /// seconds later copies are replaced in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_room_since: Option<Time>,
    /// How copies are replaced by those of a new spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<String>,
    /// `Ready`: enough copies answer. `Accepted`: the spec can be carried out. `HandedOver`: its autoscaler was told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Where a service stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServicePhase {
    /// The spec cannot be carried out.
    Refused,
    /// No copy has a place yet.
    Pending,
    /// Copies start: image, weights, compilation.
    Starting,
    /// All copies wanted answer.
    Ready,
    /// Some answer, fewer than wanted.
    Degraded,
    /// Copies of a new spec take the place of old ones.
    Updating,
    /// Copies end again and again before they answer.
    Failing,
    /// No copies are wanted.
    Stopped,
}

/// One step of a start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimelineStep {
    /// `created`, `scheduled`, `started` or `ready`.
    pub step: String,
    /// When it was reached.
    pub at: Time,
    /// Seconds since the step before.
    #[serde(default)]
    pub seconds: i64,
}

/// A copy that spans nodes: it answers when all of its pods run, and is started again as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupStatus {
    /// Name of its leader's StatefulSet.
    pub name: String,
    /// It answers.
    #[serde(default)]
    pub ready: bool,
    /// The nodes its pods have, the leader's first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub nodes: Vec<String>,
    /// Times it was started again as a whole because a member failed, since it last answered for ten minutes.
    #[serde(default)]
    pub restarts: i32,
    /// When it was last started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<Time>,
}

/// Whether an adapter can be asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdapterStatus {
    /// Name clients ask for.
    pub name: String,
    /// Every copy that answers has it loaded.
    pub ready: bool,
    /// `Loaded`, `NotLoaded` (some copy answers without it), `NoAnswer` (no copy has said what it serves) or `NoCopies`
    /// (none answers).
    pub reason: String,
    /// Copies that have it loaded, as far as they have said.
    #[serde(default)]
    pub copies: i32,
}

/// A node the cluster's scheduler refused for a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeftOutNode {
    /// Its name.
    pub name: String,
    /// It may be chosen again from then on.
    pub until: Time,
    /// What the scheduler said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What engines report, together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceLoad {
    /// Copies that answered.
    #[serde(default)]
    pub copies: i32,
    /// Requests being answered.
    #[serde(default)]
    pub running: i64,
    /// Requests waiting.
    #[serde(default)]
    pub waiting: i64,
    /// Mean share of the attention cache in use, in percent.
    #[serde(default)]
    pub cache_percent: i64,
    /// Tokens generated a second between the last two looks, by all copies, to two digits. Absent: not measured yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<i64>,
    /// Milliseconds in which nine of ten answers began between the last two looks. Absent: none began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_ms: Option<i64>,
    /// Milliseconds in which nine of ten tokens followed the one before. Absent: none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_tokens_ms: Option<i64>,
}

/// What a service costs, in the currency of the nodes' prices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceCost {
    /// An hour of all copies that have a node: their GPUs at the price the nodes' label
    /// `gpu.warp.dev/gpu-hour-price` names.
    pub per_hour: String,
    /// A million generated tokens at the pace of `load.tokensPerSecond`. Absent: nothing is generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_million_tokens: Option<String>,
}

/// The size of an attention cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CacheSize {
    /// Tokens the smallest cache of the copies that answered holds.
    pub tokens: i64,
    /// Tokens `warp serve` estimated for this model on these GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_tokens: Option<i64>,
    /// `tokens` in percent of the estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent_of_estimate: Option<i64>,
}
