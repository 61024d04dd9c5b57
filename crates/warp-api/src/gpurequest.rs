//! `GPURequest`: rent GPUs from a cloud, within a price.
//!
//! The struct is the schema; [`RULES`] says what a schema cannot.

// The lint takes the columns of one `#[kube]` for one attribute said twice.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cloudprovider::BootstrapType;
use crate::crd::Rule;
use crate::price::{self, Price};
use crate::workload::GpuVendor;

/// Rent a machine with GPUs from a cloud, within a price, and give it back.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "gpu.warp.dev",
    version = "v1alpha1",
    kind = "GPURequest",
    plural = "gpurequests",
    singular = "gpurequest",
    shortname = "gpur",
    category = "warp",
    namespaced,
    status = "GPURequestStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Rent a machine with GPUs from a cloud, within a price, and give it back.",
    printcolumn(name = "GPU", type_ = "string", json_path = ".status.gpu"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Provider", type_ = "string", json_path = ".status.provider"),
    printcolumn(
        name = "Per-Hour",
        type_ = "string",
        json_path = ".status.pricePerHour"
    ),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.nodeName"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason",
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
pub struct GPURequestSpec {
    /// The one CloudProvider to rent from, by its name or by its type. Absent: `providers`, else any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub provider: Option<String>,
    /// CloudProviders to rent from, by name or type. The cheapest offer of all of them is taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    pub providers: Vec<String>,
    /// The model, such as `H100`, as people or vendors write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub gpu_type: Option<String>,
    /// Models any of which will do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    pub gpu_models: Vec<String>,
    /// Whose GPUs, where no model is named. Absent: anybody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_vendor: Option<GpuVendor>,
    /// Least memory of one GPU in GiB, such as `40Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 16), regex(pattern = r"^[0-9]+Gi$"))]
    pub min_memory: Option<String>,
    /// GPUs, all in one machine. A machine with more is taken when it is the cheapest.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16))]
    pub gpu_count: i32,
    /// The one region to rent in, by the cloud's own name or by area such as `us-west`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub region: Option<String>,
    /// Regions to rent in, the best first: a later one is asked only when no earlier one has a machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    pub region_preference: Vec<String>,
    /// Rent a machine the cloud may take back, where that is sold and cheap enough.
    #[serde(default)]
    pub spot_instance: bool,
    /// Most US dollars an hour for such a machine; above it the request falls back to on demand. Absent: `maxPrice`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "price::schema")]
    pub max_spot_price: Option<Price>,
    /// How long to wait for such a machine before falling back to on demand, such as `10m`. Absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub spot_wait: Option<String>,
    /// Most US dollars an hour for all GPUs of the request, as a number or as text. Absent: whatever it costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "price::schema")]
    pub max_price: Option<Price>,
    /// Most US dollars for the whole life of the request: the machine is given back before more is spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "price::schema")]
    pub max_total_price: Option<Price>,
    /// The machine is given back this long after it was bought, such as `8h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub max_lifetime: Option<String>,
    /// The machine is given back when no pod has used its GPUs for this long, such as `30m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub idle_timeout: Option<String>,
    /// Requests whose machines are of use only together: nothing is bought before all of them can be, and what was bought
    /// is given back when one does not come in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<Together>,
    /// How the machine becomes a node, where it is not to be as its CloudProvider says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<RequestBootstrap>,
    /// The image to start from instead of the account's, in the cloud's words. The CloudProvider must allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// What the machine runs at its first start besides: cloud-init, or a script. `{{name}}` in it becomes the machine's
    /// name. The CloudProvider must allow it: it runs as root on a machine that joins the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 8192))]
    pub user_data: Option<String>,
}

/// Requests that are bought all or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Together {
    /// The same in all requests of the namespace that belong together.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// How many requests these are.
    #[schemars(range(min = 2, max = 16))]
    pub machines: i32,
    /// How long it may take until the nodes of all are ready; then those that came and that nobody uses are given back.
    /// Waiting for a budget does not count. Absent: `30m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub within: Option<String>,
}

/// How a machine becomes a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequestBootstrap {
    /// `none`: by what is in its image or its user data.
    #[serde(rename = "type")]
    pub kind: BootstrapType,
}

fn one() -> i32 {
    1
}

/// Where a request is between asked for and given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RequestPhase {
    /// No machine is bought.
    #[default]
    Pending,
    /// A machine is being bought.
    Provisioning,
    /// It is bought and starts.
    Booting,
    /// It runs and its node is not ready yet.
    Joining,
    /// Its node is ready.
    Ready,
    /// It is being given back.
    Terminating,
    /// It was given back as it was asked to be: idle, or at the end of its time or money.
    Ended,
    /// It will not come to anything; the message says why.
    Failed,
}

impl RequestPhase {
    /// Whether nothing more will happen.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Ended | Self::Failed)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Provisioning => "Provisioning",
            Self::Booting => "Booting",
            Self::Joining => "Joining",
            Self::Ready => "Ready",
            Self::Terminating => "Terminating",
            Self::Ended => "Ended",
            Self::Failed => "Failed",
        }
    }
}

/// What holds at the moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GPURequestStatus {
    /// Generation of the spec this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where the request is.
    #[serde(default)]
    pub phase: RequestPhase,
    /// What was tried, the newest last. One that came to nothing is forgotten after a while, and of those that were bought
    /// and are over the last ones are kept here: the ledger has all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<RequestAttempt>,
    /// What those came to that were bought and are kept no longer, by CloudProvider.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<EarlierAttempts>,
    /// How many attempts there were.
    #[serde(default)]
    pub attempt_count: u32,
    /// The GPUs of the machine, such as `8 x H100-80GB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// The CloudProvider of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The cloud's id of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// The machine's node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Where it is reached from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_ip: Option<String>,
    /// Where it is reached from inside its cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_ip: Option<String>,
    /// US dollars an hour: what the cloud says it bills, else what was agreed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<String>,
    /// US dollars spent by all attempts that are over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent: Option<String>,
    /// When the machine is given back at the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminates_at: Option<Time>,
    /// Since when nobody uses its GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Time>,
    /// When the next attempt is made at the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<Time>,
    /// Since when a spot machine is waited for; absent while one is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spot_wanted_since: Option<Time>,
    /// Unless all machines that are rented together are ready by then, they are given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together_until: Option<Time>,
    /// What needs attention, or how it stands, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `Ready`: the machine's node is ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Attempts that were bought and are kept no longer, in sum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EarlierAttempts {
    /// The CloudProvider.
    pub provider: String,
    /// How many.
    pub count: u32,
    /// US dollars they cost.
    pub spent: String,
    /// From when on the first of them was billed.
    pub billed_from: Time,
}

impl GPURequestStatus {
    /// From when on the first machine of the request was billed.
    pub fn first_billed(&self) -> Option<&Time> {
        let mut kept = self.attempts.iter();
        let earlier = self.earlier.iter().map(|earlier| &earlier.billed_from);
        let earlier = earlier.min_by_key(|from| from.0);
        earlier.or_else(|| kept.find_map(|attempt| attempt.billed_from.as_ref()))
    }
}

/// One try to rent one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequestAttempt {
    /// Counted from 1.
    pub number: u32,
    /// Name of the machine and of its node, the same for this attempt for ever.
    pub machine: String,
    /// The CloudProvider.
    pub provider: String,
    /// The model.
    pub gpu: String,
    /// GPUs of the machine.
    pub gpus: u32,
    /// The cloud's region.
    pub region: String,
    /// The cloud's name for this kind of machine.
    pub instance_type: String,
    /// As one the cloud may take back.
    #[serde(default)]
    pub spot: bool,
    /// US dollars an hour when the offer was chosen.
    pub price: String,
    /// The most it may cost an hour when it is bought.
    pub price_limit: String,
    /// The tenant whose money it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Who made the request, or the workload it was made for, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// When this was written, before the cloud was asked.
    pub intended_at: Time,
    /// The process of the operator that may ask the cloud for the machine: no other buys it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// Since when that process may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called_since: Option<Time>,
    /// The cloud's id of the machine, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// Since when it costs money.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billed_from: Option<Time>,
    /// Until when it cost money.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billed_until: Option<Time>,
    /// US dollars an hour that the cloud says it bills.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billed_price: Option<String>,
    /// How the machine was to become a node when this was written; absent: by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<BootstrapType>,
    /// The pod that is its container, where it is one; nothing is bought before there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<AttemptPod>,
    /// The CertificateSigningRequest that is approved for the machine: the first one its token asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_request: Option<String>,
    /// When it was approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_approved_at: Option<Time>,
    /// CertificateSigningRequests that were left alone, each told in an Event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored_certificates: Vec<String>,
    /// When the token it joined with was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_revoked_at: Option<Time>,
    /// When its node was first ready; of a container, when it first ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Time>,
    /// Since when its node, which was ready before, is not, or is gone. The machine is given back a quarter of an hour later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unready_since: Option<Time>,
    /// Since when the cloud says that it takes the machine back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noticed_at: Option<Time>,
    /// Why the machine is to go, once it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<String>,
    /// When the cloud was first to be asked to end it: what it costs after that is the cloud's doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending_since: Option<Time>,
    /// How it ended, in one word; absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// The cloud's own words where it refused, else ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// US dollars it cost, once it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<String>,
}

/// The pod that a rented container runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Which of that name.
    pub uid: String,
    /// When this was written, before the cloud was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

impl RequestAttempt {
    /// Whether it is a container, which is bought for a pod.
    pub fn is_container(&self) -> bool {
        self.bootstrap == Some(BootstrapType::Container)
    }

    /// From when on the cloud may have been asked for it; none while nothing is to be bought.
    pub fn sought_since(&self) -> Option<&Time> {
        if self.is_container() {
            self.pod.as_ref()?.since.as_ref()
        } else {
            Some(&self.intended_at)
        }
    }
}

/// Every rule with the place in the schema it hangs on.
pub const RULES: &[Rule] = &[
    Rule {
        at: "",
        rule: "size(self.metadata.name) <= 63",
        message: "a request's name is at most 63 characters: it is used as a label",
    },
    Rule {
        at: "spec",
        rule: "has(self.gpuType) || (has(self.gpuModels) && size(self.gpuModels) > 0) || has(self.minMemory) || has(self.gpuVendor)",
        message: "gpuType, gpuModels, gpuVendor or minMemory must be given: which GPU is wanted",
    },
    Rule {
        at: "spec",
        rule: "!(has(self.gpuType) && has(self.gpuModels) && size(self.gpuModels) > 0)",
        message: "gpuType and gpuModels say the same: give one of them",
    },
    Rule {
        at: "spec",
        rule: "!has(self.gpuVendor) || (!has(self.gpuType) && !(has(self.gpuModels) && size(self.gpuModels) > 0))",
        message: "gpuVendor belongs to a request without models: a model has one vendor",
    },
    Rule {
        at: "spec",
        rule: "!(has(self.provider) && has(self.providers) && size(self.providers) > 0)",
        message: "provider and providers say the same: give one of them",
    },
    Rule {
        at: "spec",
        rule: "!(has(self.region) && has(self.regionPreference) && size(self.regionPreference) > 0)",
        message: "region and regionPreference say the same: give one of them",
    },
    Rule {
        at: "spec",
        rule: "(has(self.spotInstance) && self.spotInstance) || !has(self.spotWait)",
        message: "spotWait belongs to spotInstance: true",
    },
];
