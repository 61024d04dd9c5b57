//! `GPUWorkload`: run a job on n GPUs.
//!
//! The struct is the schema; [`RULES`] says what a schema cannot. Reading of its text fields is in
//! `workload/ask.rs`.

// The lint takes the columns of one `#[kube]` for one attribute said twice.
#![allow(clippy::duplicated_attributes)]

mod ask;
mod attempt;
mod checkpoint;
mod gang;
mod levels;
mod pending;
mod rent;
mod rules;
mod share;
mod timeline;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, PodSecurityContext, PodTemplateSpec, SecurityContext};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use warp_core::schedule::{Policy, strategy::UnknownPolicy};

pub use ask::{BadSpec, GpuAsk, Name, run_seconds};
pub use attempt::{ATTEMPT_NODES, ATTEMPTS, WorkloadAttempt};
pub use checkpoint::{Checkpoint, CheckpointEvidence, CheckpointSignal, LastCheckpoint};
pub use gang::{AssignedNode, Closeness, Mpi, Topology, fold_nodes, fold_ranks, nodes_in_words};
pub use levels::{BadLevels, TopologyLevel, TopologyLevels};
pub use pending::{ShownStatus, WhenPending};
pub use rent::{Rent, RentStatus};
pub use rules::{PLACED_FIELDS, RULES};
pub use share::{GpuIsolation, GpuSharing, WorkloadGpu};
pub use timeline::{TIMELINE_ENTRIES, TimelineEntry};

/// Run a job on n GPUs, on one node or as a gang on several, follow it to its end, try again when it fails.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "gpu.warp.dev",
    version = "v1alpha1",
    kind = "GPUWorkload",
    plural = "gpuworkloads",
    singular = "gpuworkload",
    shortname = "gpuw",
    category = "warp",
    namespaced,
    status = "GPUWorkloadStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Run a job on n GPUs, on one node or as a gang on several, follow it to its end, try again when it fails.",
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.modelName"),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".spec.gpuCount"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.assignedNode"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.ready",
        priority = 1
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason",
        priority = 1
    ),
    printcolumn(
        name = "Position",
        type_ = "integer",
        json_path = ".status.queuePosition",
        priority = 1
    ),
    printcolumn(
        name = "Start",
        type_ = "string",
        json_path = ".status.estimatedStart.at",
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
pub struct GPUWorkloadSpec {
    /// The model or job this runs, for people and dashboards; the container gets it as `MODEL_NAME`.
    #[schemars(length(min = 1, max = 255))]
    pub model_name: String,
    /// Whole GPUs, all on one node, or so many of `gpu.partition`; of a gang, those of each member. The container gets the
    /// number as `GPU_COUNT`.
    #[schemars(range(min = 1, max = 16))]
    pub gpu_count: i32,
    /// Pods that run together. Absent or 1: one pod. More: a gang, whose members all start or none does; when one
    /// fails, all of them are tried again. Each finds the others by `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 512))]
    pub replicas: Option<i32>,
    /// Makes the gang elastic: each attempt starts with as many members as fit at that moment, from this many up to
    /// `replicas`, instead of waiting for all of them; `WORLD_SIZE` says how many they are. One that runs does not change
    /// its size. Absent: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 512))]
    pub min_replicas: Option<i32>,
    /// How close together the members of a gang are. Absent: anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// Has the gang start by MPI: the first member runs the command, such as `mpirun ./train`, once every other answers over
    /// SSH, with keys of this gang alone and a hostfile of all members. The image needs `ssh`, `sshd` and an MPI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mpi: Option<Mpi>,
    /// Order among waiting workloads: higher first, then older first. Running work is stopped for it only where that is
    /// `preemptible` and of lower priority. Absent: what its tenant says for its work (`defaults.priority`), else `normal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// A PriorityClass of the cluster that decides instead of `priority`: a value above zero counts as high, below zero as
    /// low. Its pods get the class. One whose `preemptionPolicy` is `Never` evicts nobody. Absent: what `podTemplate` names,
    /// if `priority` is absent or normal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub priority_class_name: Option<String>,
    /// Whether work of higher priority may take its GPUs while it runs: it is evicted, waits, and is placed again
    /// without using up a retry. Absent: what its tenant says, else only work of priority `low`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<bool>,
    /// How a node is chosen among those that fit. Absent: the operator's `--default-strategy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_strategy: Option<SchedulingStrategy>,
    /// What happens when an attempt fails. Waiting for capacity is no failure.
    #[serde(default)]
    pub retry_policy: RetryPolicy,
    /// Which GPUs will do. Absent: any NVIDIA GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<WorkloadGpu>,
    /// Container image. Exactly one of `image` and `podTemplate` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Entry point; absent: the image's own. With `image` only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Arguments of the entry point. With `image` only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment of the container. With `image` only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// CPU, memory and other resources of the container; GPUs come from `gpuCount`. With `image`
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<WorkloadResources>,
    /// Volumes mounted into the container. With `image` only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub volumes: Vec<WorkloadVolume>,
    /// Security of the container, as in a pod. What is absent of `allowPrivilegeEscalation` (false),
    /// `capabilities` (drop ALL) and `seccompProfile` (RuntimeDefault) is filled in, unless it is
    /// privileged. In a namespace where PodSecurity enforces `restricted`, `runAsNonRoot: true` is
    /// added for the pod where nothing is said of it. With `image` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
    /// Security of the whole pod, such as `runAsNonRoot`, `runAsUser` and `fsGroup`. With `image`
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_security_context: Option<PodSecurityContext>,
    /// A whole pod template, for everything the fields above do not say (affinity, tolerations,
    /// topology spread, sidecars …). The GPUs are added to the container named `gpu-workload`, else
    /// to the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodTemplateSpec>,
    /// How long one attempt may take from the start of its Job, image pull included, such as
    /// `90m` or `1h30m`. A workload that takes longer fails and is not tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub max_runtime: Option<String>,
    /// How it saves its work. What it has saved is not lost when it is evicted, and its next attempt finds `RESUME=1` in its
    /// environment, and which attempt it is, counted from 0, in `ATTEMPT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// True stops the workload and gives its GPUs back; false places the same attempt again. No
    /// retry is used.
    #[serde(default)]
    pub suspend: bool,
    /// Who sees that it waits for room: `hold`, the default, nobody besides the line; `ungate` shows it to Cluster Autoscaler
    /// and Karpenter, as pods that ask for what it asks for and never run. Takes an operator with `--show-pending`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_pending: Option<WhenPending>,
    /// Rent a machine for it when it has waited for room too long. For work that is one pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rent: Option<Rent>,
    /// Delete the finished workload, with its Jobs, this many seconds after its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// Order among waiting workloads.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum Priority {
    Low,
    #[default]
    Normal,
    High,
}

impl Priority {
    /// What the value of a PriorityClass counts as.
    pub fn of_class(value: i32) -> Self {
        match value {
            1.. => Self::High,
            0 => Self::Normal,
            _ => Self::Low,
        }
    }
}

/// How a node is chosen among those that fit. Absent: the operator's `--default-strategy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SchedulingStrategy {
    /// Where the fleet keeps most room for what it usually runs.
    #[default]
    Warp,
    /// Most free GPUs.
    LeastLoaded,
    /// Any.
    Random,
    /// Lowest price per GPU-hour.
    CostOptimized,
    /// Least left over.
    BestFit,
    /// GPUs in use first, then nodes in use.
    Packing,
    /// Smallest product of what is asked for and what is free.
    DotProd,
    /// Beside work of the same size.
    Clustering,
    /// Least growth of GPUs that typical requests cannot use.
    Fgd,
}

impl SchedulingStrategy {
    pub fn as_str(self) -> &'static str {
        Policy::from(self).name()
    }
}

impl From<SchedulingStrategy> for Policy {
    fn from(strategy: SchedulingStrategy) -> Self {
        match strategy {
            SchedulingStrategy::Warp => Self::Warp,
            SchedulingStrategy::LeastLoaded => Self::LeastLoaded,
            SchedulingStrategy::Random => Self::Random,
            SchedulingStrategy::CostOptimized => Self::CostOptimized,
            SchedulingStrategy::BestFit => Self::BestFit,
            SchedulingStrategy::Packing => Self::Packing,
            SchedulingStrategy::DotProd => Self::DotProd,
            SchedulingStrategy::Clustering => Self::Clustering,
            SchedulingStrategy::Fgd => Self::Fgd,
        }
    }
}

impl From<Policy> for SchedulingStrategy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Warp => Self::Warp,
            Policy::LeastLoaded => Self::LeastLoaded,
            Policy::Random => Self::Random,
            Policy::CostOptimized => Self::CostOptimized,
            Policy::BestFit => Self::BestFit,
            Policy::Packing => Self::Packing,
            Policy::DotProd => Self::DotProd,
            Policy::Clustering => Self::Clustering,
            Policy::Fgd => Self::Fgd,
        }
    }
}

impl std::str::FromStr for SchedulingStrategy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<Policy>().map(Self::from)
    }
}

/// What happens when an attempt fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetryPolicy {
    /// Attempts after the first one. 0: none.
    #[serde(default = "default_retries")]
    #[schemars(range(min = 0, max = 10))]
    pub max_retries: i32,
    /// Wait before the first retry; it doubles with every further one up to 5 minutes, plus up to
    /// a tenth of jitter.
    #[serde(default = "default_backoff")]
    #[schemars(range(min = 1, max = 300))]
    pub backoff_seconds: i32,
    /// How often the cluster may take the workload off its node (drain, taint, preemption, a node
    /// that is lost or shut down) before it fails. No such disruption uses up a retry.
    #[serde(default = "default_disruptions")]
    #[schemars(range(min = 0, max = 1000))]
    pub max_disruptions: i32,
    /// What a member that fails by itself (it ends badly, or for want of memory) does to the gang; of a workload of one
    /// pod, that pod to the workload. Absent: `restart`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_member_failure: Option<MemberFailure>,
}

/// What a member that ends badly does to its gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MemberFailure {
    /// All members end and the gang is tried again, which uses a retry.
    Restart,
    /// All members end and the gang has failed, whatever retries are left. What the cluster does to it is still no failure.
    Fail,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: default_retries(),
            backoff_seconds: default_backoff(),
            max_disruptions: default_disruptions(),
            on_member_failure: None,
        }
    }
}

fn default_retries() -> i32 {
    3
}

fn default_backoff() -> i32 {
    30
}

fn default_disruptions() -> i32 {
    50
}

/// Which GPUs will do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuRequirement {
    /// Whose GPUs. Absent: the vendor of `models`, else `nvidia`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<GpuVendor>,
    /// Models that will do, such as `H100`, `A100-80GB` or `MI300X`, or products as the nodes' labels
    /// name them, such as `NVIDIA-H100-PCIe`; any of them. Empty: every model. Parts of a GPU (MIG
    /// profiles, AMD partitions) cannot be asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    pub models: Vec<String>,
    /// Least memory of one GPU as the node reports it, such as `40Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub min_memory: Option<String>,
}

/// Whose GPUs; decides the resource the pod asks for. Absent: the vendor of `models`, else `nvidia`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GpuVendor {
    Nvidia,
    Amd,
    Intel,
    /// Intel Gaudi, which has a resource of its own.
    Habana,
}

/// Resources of the container besides GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadResources {
    /// What the container is promised.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
    /// What it may not exceed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
}

/// A volume and where it is mounted. Exactly one source is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadVolume {
    /// Name, unique in the workload.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Where the container sees it. Absent: `/mnt/<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^/[^:]*$"))]
    pub mount_path: Option<String>,
    /// Mount it read-only.
    #[serde(default)]
    pub read_only: bool,
    /// A PersistentVolumeClaim of the workload's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<ClaimSource>,
    /// A directory that lives as long as the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<EmptyDirSource>,
    /// A directory of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<HostPathSource>,
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSource {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
}

/// A directory that lives as long as the pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EmptyDirSource {
    /// The pod is evicted when it holds more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_limit: Option<Quantity>,
    /// `Memory` keeps it in RAM (for example for `/dev/shm`); absent: on the node's disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<Medium>,
}

/// Where an emptyDir is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Medium {
    Memory,
}

/// A directory of the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostPathSource {
    /// Its path on the node.
    #[schemars(length(min = 1, max = 4096), regex(pattern = r"^/"))]
    pub path: String,
}

/// What the operator has seen and decided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GPUWorkloadStatus {
    /// Where it stands, derived from its Job and pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Node of the current attempt, of a workload that is one pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assigned_node: Option<String>,
    /// Nodes of the current attempt of a gang, each with the members it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assigned_nodes: Vec<AssignedNode>,
    /// Members of a gang that run, of how many, such as `3/4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// When a node was last chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<Time>,
    /// The priority it has: its own, that of its PriorityClass, or what its tenant says for work that says none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Whether work of higher priority may take its GPUs while it runs: by its own word, by its tenant's, or by its
    /// priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<bool>,
    /// Its place in line among all that wait, from 1. Behind the tenth it is told anew when it has moved by a tenth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub queue_position: Option<i64>,
    /// When it is expected to start, while it waits for GPUs. Told anew when it has moved by a tenth of the wait that is left,
    /// and by more than a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_start: Option<EstimatedStart>,
    /// What it waits for, in one sentence, while it waits for GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// When the operator first saw it, while it waits: of equals made within one second the one that came
    /// first goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<MicroTime>,
    /// Retries used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub retry_count: Option<i32>,
    /// How often the cluster took it off its node. Together with `retryCount` the number of the
    /// current attempt, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub disruptions: Option<i32>,
    /// When it last saved its work, as far as `spec.checkpoint` lets that be known. What follows from `period` alone is told
    /// when an attempt has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<LastCheckpoint>,
    /// GPU-seconds thrown away because other work took its place: those it had not saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub lost_gpu_seconds: Option<i64>,
    /// The next attempt is placed no earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_retry_time: Option<Time>,
    /// When the current wait (a start that does not happen, a lost node) is given up and the
    /// attempt counts as failed. Waiting for capacity has no deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// The sentence of the `Ready` condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Job of the current attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_name: Option<String>,
    /// When the container of the current attempt started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it finished for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Nodes the cluster's scheduler refused for this workload and until when they are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_nodes: Vec<RefusedNode>,
    /// How often in a row the cluster's scheduler refused the node chosen for it; the more often,
    /// the longer the next choice waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub refusals: Option<i32>,
    /// What stands in for it while it waits, where `whenPending` asks for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<ShownStatus>,
    /// What is rented for it, or when something will be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rent: Option<RentStatus>,
    /// Its latest attempts that had a place, the latest last. How providers are compared and left alone goes by them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub recent_attempts: Vec<WorkloadAttempt>,
    /// What happened to it, the latest last: changes of phase or reason, of the Job, and of the spec. `warp timeline`
    /// shows it with the Events. More than this is in the operator's log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub timeline: Vec<TimelineEntry>,
    /// Generation of the spec this status speaks about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready` first, then `Placed` and `Succeeded`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// When a workload is expected to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EstimatedStart {
    /// As likely earlier as later.
    pub at: Time,
    /// Hardly earlier.
    pub earliest: Time,
    /// Hardly later; never earlier than what the `maxRuntime` of the work before it promises.
    pub latest: Time,
}

/// A node the cluster's scheduler refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefusedNode {
    /// Its name.
    pub name: String,
    /// Uid of the Job it was refused for.
    pub job_uid: String,
    /// It may be chosen again from then on.
    pub until: Time,
    /// What the scheduler said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Where the workload stands, derived from its Job and pods.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Phase {
    /// Waits: for capacity, for the next retry, or because it is suspended or invalid.
    #[default]
    Pending,
    /// A node is chosen and the Job made; the pod is not bound yet.
    Scheduling,
    /// The pod is bound to its node; containers are being started.
    Scheduled,
    /// The container runs.
    Running,
    /// The container ended with exit code 0.
    Succeeded,
    /// Every attempt failed, or the failure cannot be cured by another one.
    Failed,
}

impl Phase {
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

#[cfg(test)]
mod tests;
