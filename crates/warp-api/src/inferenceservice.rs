//! `InferenceService`: serve a model.
//!
//! The struct is the schema; [`RULES`] says what a schema cannot.

// The lint takes the columns of one `#[kube]` for one attribute said twice.
#![allow(clippy::duplicated_attributes)]

mod accelerator;
mod rules;
mod status;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::EnvVar;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::workload::{
    BadSpec, GPUWorkloadSpec, GpuAsk, GpuRequirement, Priority, WorkloadResources,
};
pub use accelerator::{Accelerator, AcceleratorEngine, AcceleratorStatus};
pub use rules::RULES;
pub use status::{
    AdapterStatus, CacheSize, GroupStatus, InferenceServiceStatus, LeftOutNode, ServiceCost,
    ServiceLoad, ServicePhase, TimelineStep,
};

/// Serve a model on GPUs with an engine that speaks OpenAI's API, and keep it served.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "gpu.warp.dev",
    version = "v1alpha1",
    kind = "InferenceService",
    plural = "inferenceservices",
    singular = "inferenceservice",
    shortname = "isvc",
    category = "warp",
    namespaced,
    status = "InferenceServiceStatus",
    derive = "PartialEq",
    derive = "Default",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    doc = "Serve a model on GPUs with an engine that speaks OpenAI's API, and keep it served.",
    printcolumn(name = "Model", type_ = "string", json_path = ".status.modelName"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "URL", type_ = "string", json_path = ".status.url"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Tokens/s",
        type_ = "integer",
        json_path = ".status.load.tokensPerSecond",
        priority = 1
    ),
    printcolumn(
        name = "Cost/h",
        type_ = "string",
        json_path = ".status.cost.perHour",
        priority = 1
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct InferenceServiceSpec {
    /// What is served.
    pub model: ModelReference,
    /// What serves it.
    #[serde(default)]
    pub engine: EngineSpec,
    /// Whole GPUs of one replica, all on one node unless `multiNode` spreads them. Absent: as many as `parallelism`
    /// takes, else 1; 0 serves without a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 16))]
    pub gpu_count: Option<i32>,
    /// Which GPUs will do. Absent: any NVIDIA GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuRequirement>,
    /// How the model is split over the GPUs of a replica. Absent: every layer over all of them. `warp model plan` says
    /// what fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<Parallelism>,
    /// Whether a replica may span nodes. Absent: `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multi_node: Option<MultiNode>,
    /// Pools of different GPUs that serve the model together, instead of `gpu`, `gpuCount` and `parallelism`: copies go to
    /// the first that has room. Copies that run stay where they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub accelerators: Vec<Accelerator>,
    /// Copies that serve at once. With `scaling`, the number to begin with.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i32,
    /// Lets the operator, or an autoscaler of others, choose the number of copies by what the engines report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
    /// Order among all that waits for GPUs, workloads included: higher first, then older first. Running work of lower
    /// priority that is `preemptible` is stopped for a copy. Absent: high, which is more than workloads have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// A PriorityClass of the cluster that decides instead of `priority`: a value above zero counts as high, below zero as
    /// low. Its pods get the class. One whose `preemptionPolicy` is `Never` evicts nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub priority_class_name: Option<String>,
    /// Whether work of higher priority may take the GPUs of copies: `true` of all of them, `false` of none. Absent: of
    /// those beyond `scaling.min`, if its tenant lets it, else only of a service of priority `low`. One that is evicted
    /// waits for another place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<bool>,
    /// CPU, memory and other resources of a replica; GPUs come from `gpuCount`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<WorkloadResources>,
    /// Port the engine listens on and the Service offers.
    #[serde(default = "default_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Seconds a replica may take from its start until it answers, such as `30m`. One that takes longer is started
    /// again.
    #[serde(default = "default_start_limit")]
    #[schemars(length(min = 1, max = 16))]
    pub start_limit: String,
    /// Time that requests under way get when a replica is asked to end, such as `60s`.
    #[serde(default = "default_drain")]
    #[schemars(length(min = 1, max = 16))]
    pub drain: String,
}

fn one() -> i32 {
    1
}

fn default_port() -> i32 {
    8000
}

fn default_start_limit() -> String {
    "1h".to_owned()
}

fn default_drain() -> String {
    "45s".to_owned()
}

/// What is served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelReference {
    /// Where the weights are: `hf://org/name` (or `org/name`) on a hub, or `pvc://claim/folder` on a volume. The
    /// simulated engine takes any name, as it has no weights. Either this or `cache`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[A-Za-z0-9][^\s]*$"))]
    pub source: Option<String>,
    /// `ModelCache` of the same namespace whose files are served, offline and read-only. Copies start when it is
    /// ready; when it has another complete model, they are replaced by copies that serve that one. When the fetch of
    /// another failed, the complete one it still holds is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 48),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub cache: Option<String>,
    /// Commit, tag or branch of the hub. A commit makes every replica serve the same weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[A-Za-z0-9][^\s]*$"))]
    pub revision: Option<String>,
    /// Name clients ask for. Absent: the part of `source` after its scheme, or the name of the cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[A-Za-z0-9][^\s]*$"))]
    pub name: Option<String>,
    /// LoRA adapters that are served beside the model, each under its own name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub adapters: Vec<Adapter>,
}

/// A LoRA adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Adapter {
    /// Name clients ask for.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[A-Za-z0-9][^\s=]*$"))]
    pub name: String,
    /// Where it is: `hf://org/name` (or `org/name`) on a hub, or a path in the container.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[A-Za-z0-9/][^\s]*$"))]
    pub source: String,
}

/// What serves the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EngineSpec {
    /// Which engine.
    #[serde(default, rename = "type")]
    pub kind: EngineKind,
    /// Version of the engine's own image, such as `v0.32.0`. Absent: the one this Warp was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 128),
        regex(pattern = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
    )]
    pub version: Option<String>,
    /// Container image instead of the engine's own. A custom engine needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Entry point instead of the image's own. For a custom engine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Arguments of the engine by name, without the dashes, such as `max-model-len: "32768"`; `"true"` and `"false"`
    /// turn flags on and off. Names the engine does not know are refused, as are those that other fields decide.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, String>,
    /// Further arguments, word by word and unchecked, after all others. All arguments of a custom engine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub advanced: Vec<String>,
    /// Environment of the engine. What is given here wins over what Warp would set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Path that answers with 200 once the model can be asked.
    #[serde(default = "default_health")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^/"))]
    pub health_path: String,
}

impl Default for EngineSpec {
    fn default() -> Self {
        Self {
            kind: EngineKind::default(),
            version: None,
            image: None,
            command: Vec::new(),
            args: BTreeMap::new(),
            advanced: Vec::new(),
            env: Vec::new(),
            health_path: default_health(),
        }
    }
}

fn default_health() -> String {
    "/health".to_owned()
}

/// Which engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// vLLM, in its official image for the vendor of the GPUs.
    #[default]
    Vllm,
    /// SGLang, in its official image for NVIDIA's GPUs; for others `image` names one.
    Sglang,
    /// `warp engine`: the same API without weights, for trials.
    Simulated,
    /// Any image that listens on `port`.
    Custom,
}

impl EngineKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Simulated => "simulated",
            Self::Custom => "custom",
        }
    }
}

/// How the model is split over the GPUs of a replica. Together they take all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Parallelism {
    /// GPUs every layer is split over. Divides the number of attention heads.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16))]
    pub tensor: i32,
    /// GPUs that each hold some of the layers.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16))]
    pub pipeline: i32,
    /// Whole copies inside one replica.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16))]
    pub data: i32,
}

impl Default for Parallelism {
    fn default() -> Self {
        Self {
            tensor: 1,
            pipeline: 1,
            data: 1,
        }
    }
}

impl Parallelism {
    /// GPUs it takes.
    pub fn gpus(self) -> i32 {
        self.tensor
            .saturating_mul(self.pipeline)
            .saturating_mul(self.data)
    }
}

/// Whether a replica may span nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MultiNode {
    /// When no node that is there has all GPUs of a replica, its pipeline stages are spread over as few nodes as will do.
    /// Every layer stays on one node. For vLLM and the simulated engine.
    #[default]
    Auto,
    /// A replica waits for one node that has all its GPUs.
    Never,
}

/// How many copies serve, chosen by what the engines report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scaling {
    /// Least copies. 0 is refused as long as nothing holds the requests that come meanwhile.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub min: i32,
    /// Most copies.
    #[schemars(range(min = 1, max = 1000))]
    pub max: i32,
    /// Who chooses the number. An autoscaler of others writes `spec.replicas`, through the service's scale, and the operator
    /// makes the object that tells it how; on a cluster that takes an operator with `--autoscalers`.
    #[serde(default)]
    pub by: ScalingBy,
    /// Where the Prometheus answers that KEDA asks, such as `http://prometheus.monitoring:9090`. With `by: keda` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 1024),
        regex(pattern = r"^https?://[^/?#@\s]+(/[^?#\s]*)?$")
    )]
    pub prometheus: Option<String>,
    /// What is looked at.
    #[serde(default)]
    pub metric: ScalingMetric,
    /// What one copy should carry: requests for `inFlight` and `queue`, percent for `cache`; or how long nine of ten
    /// should wait at most: milliseconds for `firstToken` and `betweenTokens`.
    #[schemars(range(min = 1, max = 100_000))]
    pub target: i32,
    /// Copies are given up only after they were too many for this long, such as `5m`.
    #[serde(default = "default_window")]
    #[schemars(length(min = 1, max = 16))]
    pub window: String,
    /// Other numbers in the place of `min` from a time of the day on, until the next of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 48))]
    pub schedule: Vec<ScheduleStep>,
}

/// The least copies from a time of the day on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleStep {
    /// When it begins to hold, every day, in UTC: `08:00`.
    #[schemars(
        length(min = 5, max = 5),
        regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$")
    )]
    pub at: String,
    /// Least copies from then on.
    #[schemars(range(min = 1, max = 1000))]
    pub min: i32,
}

impl ScheduleStep {
    /// Minutes after midnight.
    pub fn minute(&self) -> Option<u32> {
        let (hours, minutes) = self.at.split_once(':')?;
        Some(hours.parse::<u32>().ok()? * 60 + minutes.parse::<u32>().ok()?)
    }
}

fn default_window() -> String {
    "5m".to_owned()
}

/// Who chooses the number of copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScalingBy {
    /// The operator.
    #[default]
    Warp,
    /// The cluster's HorizontalPodAutoscaler, by the external metrics API.
    Hpa,
    /// KEDA, by a query of Prometheus.
    Keda,
}

/// What the number of copies follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ScalingMetric {
    /// Requests running and waiting.
    #[default]
    InFlight,
    /// Requests waiting.
    Queue,
    /// Share of the attention cache in use.
    Cache,
    /// Time until the first token, as the engine's histogram of it says.
    FirstToken,
    /// Time between two tokens.
    BetweenTokens,
}

impl ModelReference {
    /// What the engine is told to load, without the scheme of a hub.
    pub fn plain_source(&self) -> &str {
        let source = self.source.as_deref().unwrap_or_default();
        source.strip_prefix("hf://").unwrap_or(source)
    }

    /// The claim and the folder in it, when the weights are on a volume.
    pub fn claim(&self) -> Option<(&str, &str)> {
        let place = self.source.as_deref()?.strip_prefix("pvc://")?;
        Some(place.split_once('/').unwrap_or((place, "")))
    }

    /// Where the weights come from, in one word.
    pub fn word(&self) -> String {
        match (&self.cache, &self.source) {
            (Some(cache), _) => format!("cache://{cache}"),
            (None, source) => source.clone().unwrap_or_default(),
        }
    }

    /// The name clients ask for.
    pub fn served_name(&self) -> &str {
        if let Some(name) = self.name.as_ref().or(self.cache.as_ref()) {
            return name;
        }
        let source = self.source.as_deref().unwrap_or_default();
        source.split_once("://").map_or(source, |(_, rest)| rest)
    }
}

impl InferenceServiceSpec {
    /// How a replica's GPUs are used.
    pub fn split(&self) -> Parallelism {
        self.parallelism.unwrap_or(Parallelism {
            tensor: self.gpu_count.unwrap_or(1).max(1),
            ..Parallelism::default()
        })
    }

    /// GPUs of one replica.
    pub fn gpus_per_replica(&self) -> i32 {
        self.gpu_count.unwrap_or_else(|| self.split().gpus())
    }

    /// The GPUs one replica asks for; none: it serves without.
    pub fn ask(&self) -> Result<Option<GpuAsk>, BadSpec> {
        let count = self.gpus_per_replica();
        if count == 0 {
            return Ok(None);
        }
        let like = GPUWorkloadSpec {
            gpu: self.gpu.clone().map(Into::into),
            gpu_count: count,
            ..GPUWorkloadSpec::default()
        };
        GpuAsk::of(&like).map(Some)
    }
}
