//! `ModelCache`: a model's files, fetched once, verified and kept.
//!
//! The struct is the schema; [`RULES`] says what a schema cannot.

// The lint takes the columns of one `#[kube]` for one attribute said twice.
#![allow(clippy::duplicated_attributes)]

mod nodes;
mod source;

use k8s_openapi::api::core::v1::EnvVar;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::crd::Rule;
use crate::workload::WorkloadResources;
pub use nodes::{CopyPhase, NodeCopies, NodeCopy};
pub use source::{
    AzureSource, GcsSource, HttpFile, HttpSource, HuggingfaceSource, ModelSource, OciSource,
    PvcSource, S3Source,
};

/// Where a pod that uses a cache mounts its claim: `status.path` begins with it.
pub const MOUNT: &str = "/models";

/// A model's files, fetched once, verified and kept.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "gpu.warp.dev",
    version = "v1alpha1",
    kind = "ModelCache",
    plural = "modelcaches",
    singular = "modelcache",
    shortname = "mcache",
    category = "warp",
    namespaced,
    status = "ModelCacheStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A model's files, fetched once, verified and kept.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Source", type_ = "string", json_path = ".status.source"),
    printcolumn(name = "Bytes", type_ = "integer", json_path = ".status.bytes"),
    printcolumn(
        name = "Fetched",
        type_ = "string",
        json_path = ".status.progress.percent"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Commit",
        type_ = "string",
        json_path = ".status.commit",
        priority = 1
    ),
    printcolumn(
        name = "Copies",
        type_ = "string",
        json_path = ".status.copies",
        priority = 1
    ),
    printcolumn(
        name = "SharedFrom",
        type_ = "string",
        json_path = ".status.sharedFrom",
        priority = 1
    ),
    printcolumn(
        name = "LastUsed",
        type_ = "date",
        json_path = ".status.lastUsed",
        priority = 1
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ModelCacheSpec {
    /// Where the model comes from: exactly one place. A change is fetched beside what is there.
    pub source: ModelSource,
    /// Turns the fetched model into another one, such as one with smaller numbers, which is kept beside it and served
    /// instead. A change is run again; until it is done, and if it fails, what was served stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimize: Option<Optimize>,
    /// Only files that match one of these patterns (`*.json`, `original/*`); all where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub allow_patterns: Vec<String>,
    /// No file that matches one of these patterns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub ignore_patterns: Vec<String>,
    /// Also PyTorch and other weights of a model that has safetensors.
    #[serde(default)]
    pub all_formats: bool,
    /// Class of the volume; the cluster's default where there is none. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class: Option<String>,
    /// Size of the volume. Cannot be changed.
    #[serde(default = "default_size")]
    #[schemars(regex(pattern = r"^[1-9][0-9]{0,8}(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"))]
    pub size: String,
    /// How the volume may be mounted. `ReadWriteMany` lets pods on every node read it while it is written;
    /// `ReadWriteOnce` keeps all users on the node of the fetch. Cannot be changed.
    #[serde(default)]
    pub access_mode: AccessMode,
    /// Keeps a copy on the disk of every node that matches, instead of on a volume: `size`, `storageClass` and
    /// `accessMode` mean nothing then. Cannot be added or removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCopies>,
    /// Bytes a second at most, such as `100Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[1-9][0-9]{0,8}(Ki|Mi|Gi)?$"))]
    pub bandwidth: Option<String>,
    /// How often a fetch that failed is begun again, from where it stopped. What cannot be mended by trying again (no
    /// such model, no right to it, no room) is not.
    #[serde(default = "default_backoff_limit")]
    #[schemars(range(min = 0, max = 20))]
    pub backoff_limit: i32,
    /// A fetch that takes longer has failed: `90m`, `24h`. This and `backoffLimit` may be changed while it runs; another
    /// `bandwidth` begins it again from where it stopped.
    #[serde(default = "default_timeout")]
    #[schemars(
        regex(pattern = r"^([1-9][0-9]{0,5}h)?([1-9][0-9]{0,5}m)?([1-9][0-9]{0,5}s)?$"),
        length(min = 1, max = 24)
    )]
    pub timeout: String,
}

/// A program that turns one model into another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Optimize {
    /// Container image it runs in, as user 65532. `MODEL_PATH` is the folder of the fetched model, which cannot be
    /// written; what it leaves in the folder `OUTPUT_PATH` is the new model.
    #[schemars(length(min = 1, max = 1024))]
    pub image: String,
    /// Entry point instead of the image's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub command: Vec<String>,
    /// Arguments; `$(MODEL_PATH)` and `$(OUTPUT_PATH)` stand for the two folders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub args: Vec<String>,
    /// Its environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub env: Vec<EnvVar>,
    /// CPU, memory, GPUs and other resources it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<WorkloadResources>,
}

fn default_size() -> String {
    "100Gi".to_owned()
}

fn default_backoff_limit() -> i32 {
    3
}

fn default_timeout() -> String {
    "24h".to_owned()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AccessMode {
    #[default]
    ReadWriteMany,
    ReadWriteOnce,
}

impl AccessMode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadWriteMany => "ReadWriteMany",
            Self::ReadWriteOnce => "ReadWriteOnce",
        }
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ModelPhase {
    /// The fetch has not started.
    #[default]
    Pending,
    /// Files are being fetched.
    Fetching,
    /// The fetched model is being turned into the one `optimize` makes of it.
    Optimizing,
    /// The model the spec names is complete and verified.
    Ready,
    /// The fetch, or what is made of it, failed and is not tried again by itself.
    Failed,
}

/// What holds at the moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelCacheStatus {
    /// Generation of the spec this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How far it is.
    #[serde(default)]
    pub phase: ModelPhase,
    /// The source of the spec in one word, such as `hf://org/name@main`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The claim that holds the files. Pods mount it read-only at `/models`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// The ModelCache of this namespace that fetched the same content and on whose volume it lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_from: Option<String>,
    /// ModelCaches whose content lies on the volume of this one, in alphabetical order, and of many the first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_by: Vec<String>,
    /// The folder of nodes that holds the files, with `nodes`. Pods mount it read-only at `/models`, on nodes with the label
    /// `nodeLabel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// The label of nodes that have a complete copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_label: Option<String>,
    /// Copies that are complete, of those there are to be, such as `2/3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<String>,
    /// The copy of each node, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeCopy>,
    /// The folder of the complete model as a pod sees it that mounts the claim at `/models`. It names the last complete
    /// one while another is being fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The commit of the complete model; of an artifact, its SHA-256; for a source without either, its content's digest
    /// cut to the length of a commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// One digest over names, sizes and digests of the complete model's files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Bytes of the complete model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// Files of the complete model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<i64>,
    /// Of those, the ones whose content was compared with a digest or checksum the source has of it; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified_files: Option<i64>,
    /// When the complete model was verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetched_at: Option<Time>,
    /// Names what the complete model was fetched as: source, revision and patterns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_key: Option<String>,
    /// The claim it was fetched into; another of the same name is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_uid: Option<String>,
    /// What `optimize` made of a fetched model: served instead of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimized: Option<OptimizedModel>,
    /// The Job that fetches or optimizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_name: Option<String>,
    /// That Job fails if it is not complete by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// How far the fetch is, as it said last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ModelProgress>,
    /// Pods that mount the files, in alphabetical order, and of many the first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// How many pods those are.
    #[serde(default)]
    pub user_count: i64,
    /// When a pod last mounted the files: at most an hour ago while one does, then the time the last one ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used: Option<Time>,
    /// InferenceServices that name this cache, in alphabetical order, and of many the first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
    /// What is going on, or what needs attention, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `Ready`: the model the spec names is complete and verified.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// A model that was made of a fetched one, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OptimizedModel {
    /// Its folder as a pod sees it that mounts the claim at `/models`.
    pub path: String,
    /// Its content's digest cut to the length of a commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// One digest over names, sizes and digests of its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Its bytes.
    #[serde(default)]
    pub bytes: i64,
    /// Its files.
    #[serde(default)]
    pub files: i64,
    /// Commit of the model it was made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_commit: Option<String>,
    /// Image that made it.
    #[serde(default)]
    pub image: String,
    /// Command and arguments that made it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// When it was complete and verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Names what it was made of and how.
    #[serde(default)]
    pub key: String,
}

/// How far a fetch is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelProgress {
    /// Complete files.
    pub files: i64,
    /// Files the source has, of those the patterns select.
    pub files_total: i64,
    /// Bytes on the volume.
    pub bytes: i64,
    /// Bytes of all of them.
    pub bytes_total: i64,
    /// `bytes` of `bytesTotal`, such as `42%`.
    pub percent: String,
    /// Bytes a second, over this run.
    pub bytes_per_second: i64,
    /// Seconds until the end, at that rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<i64>,
    /// When the fetch said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<Time>,
}

impl ModelCache {
    /// The claim that holds the files.
    pub fn claim_name(name: &str) -> String {
        format!("{name}-model")
    }
}

impl ModelCacheStatus {
    /// The folder that is served: of the optimized model where there is one, else of the fetched one.
    pub fn served_path(&self) -> Option<&str> {
        let optimized = self.optimized.as_ref().map(|model| &model.path);
        optimized.or(self.path.as_ref()).map(String::as_str)
    }
}

/// Every rule with the place in the schema it hangs on.
pub const RULES: &[Rule] = &[
    Rule {
        at: "",
        rule: "size(self.metadata.name) <= 48",
        message: "a cache's name is at most 48 characters: its Jobs are named after it",
    },
    Rule {
        at: "spec.source",
        rule: "[has(self.huggingface), has(self.http), has(self.s3), has(self.oci), has(self.gcs), has(self.azure), has(self.pvc)].filter(given, given).size() == 1",
        message: "exactly one of huggingface, http, s3, oci, gcs, azure and pvc must be given",
    },
    Rule {
        at: "spec.source.http",
        rule: "has(self.files) || !self.url.endsWith('/')",
        message: "url must be the address of a file, unless files are listed",
    },
    Rule {
        at: "spec.source.http",
        rule: "!has(self.files) || (!has(self.sha256) && !self.url.contains('?'))",
        message: "with files, url is a folder: it has no question mark, and every file its own sha256",
    },
    Rule {
        at: "spec.source.http",
        rule: "!has(self.files) || !self.files.exists(file, file.path.split('/').exists(part, part == '..'))",
        message: "paths of files must stay below url: '..' is not allowed",
    },
    Rule {
        at: "spec.source.s3",
        rule: "!has(self.prefix) || !self.prefix.split('/').exists(part, part == '..')",
        message: "prefix must be a path in the bucket: '..' is not allowed",
    },
    Rule {
        at: "spec.source.gcs",
        rule: "!has(self.prefix) || !self.prefix.split('/').exists(part, part == '..')",
        message: "prefix must be a path in Google's bucket: '..' is not allowed",
    },
    Rule {
        at: "spec.source.azure",
        rule: "!has(self.prefix) || !self.prefix.split('/').exists(part, part == '..')",
        message: "prefix must be a path in the container: '..' is not allowed",
    },
    Rule {
        at: "spec.source.pvc",
        rule: "!has(self.path) || !self.path.split('/').exists(part, part == '..')",
        message: "path must stay on the volume: '..' is not allowed",
    },
    Rule {
        at: "spec.nodes",
        rule: "!self.path.split('/').exists(part, part == '..')",
        message: "path must be a folder of the node: '..' is not allowed",
    },
    Rule {
        at: "spec",
        rule: "!has(self.nodes) || !has(self.optimize)",
        message: "optimize makes its model on a volume: it cannot be given with nodes",
    },
    Rule {
        at: "spec",
        rule: "has(self.nodes) == has(oldSelf.nodes) && (!has(self.nodes) || self.nodes.path == oldSelf.nodes.path)",
        message: "nodes cannot be added, removed or given another path: make another cache",
    },
    Rule {
        at: "spec",
        rule: "self.size == oldSelf.size && self.accessMode == oldSelf.accessMode && has(self.storageClass) == has(oldSelf.storageClass) && (!has(self.storageClass) || self.storageClass == oldSelf.storageClass)",
        message: "size, accessMode and storageClass cannot be changed: make another cache",
    },
];
