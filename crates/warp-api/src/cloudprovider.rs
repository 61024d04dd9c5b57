//! `CloudProvider`: one account at one cloud that rents out GPUs.
//!
//! The struct is the schema; [`RULES`] says what a schema cannot.

// The lint takes the columns of one `#[kube]` for one attribute said twice.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::crd::Rule;
use crate::price::{self, Price};

/// One account at one cloud that rents out GPUs: its regions and limits, and what it has to offer.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "gpu.warp.dev",
    version = "v1alpha1",
    kind = "CloudProvider",
    plural = "cloudproviders",
    singular = "cloudprovider",
    shortname = "gpucp",
    category = "warp",
    status = "CloudProviderStatus",
    derive = "PartialEq",
    doc = "One account at one cloud that rents out GPUs: its regions and limits, and what it has to offer.",
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(name = "Offers", type_ = "integer", json_path = ".status.offerCount"),
    printcolumn(
        name = "Machines",
        type_ = "integer",
        json_path = ".status.machineCount"
    ),
    printcolumn(
        name = "Per-Hour",
        type_ = "string",
        json_path = ".status.pricePerHour"
    ),
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
    )
)]
#[serde(rename_all = "camelCase")]
pub struct CloudProviderSpec {
    /// Which cloud. `fake` rents out machines that exist only in its books, for fake money.
    #[serde(rename = "type")]
    pub kind: CloudProviderType,
    /// Who asks. Every cloud but `fake` needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<CloudProviderCredentials>,
    /// How machines of this account are set up, as far as the cloud has to be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<CloudProviderSettings>,
    /// How machines of this account become nodes. Absent: by what is in their image or their user data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<CloudProviderBootstrap>,
    /// What requests may set themselves. Both run as root on a machine that joins this cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub requests_may_set: Vec<RequestSetting>,
    /// Only these regions, by the cloud's own names or by area such as `us-west`. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    pub regions: Vec<String>,
    /// What this account may have at once, of all requests together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<CloudProviderLimits>,
    /// Among offers of the same price the provider with the lower number is asked first.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000))]
    pub priority: i32,
    /// False: nothing new is rented here. What runs goes on.
    #[serde(default = "yes")]
    pub enabled: bool,
}

fn yes() -> bool {
    true
}

/// Which cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CloudProviderType {
    /// A cloud that exists only in its books.
    Fake,
    /// Lambda Cloud: virtual machines on demand.
    Lambda,
    /// RunPod: containers on demand.
    Runpod,
    /// Vast.ai: containers on demand and by bid.
    Vast,
    /// Amazon EC2: virtual machines on demand and spot.
    Aws,
    /// Google Compute Engine: virtual machines on demand and spot.
    Gcp,
    /// Microsoft Azure: virtual machines on demand and spot.
    Azure,
    /// Paperspace: virtual machines on demand.
    Paperspace,
}

impl CloudProviderType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fake => "fake",
            Self::Lambda => "lambda",
            Self::Runpod => "runpod",
            Self::Vast => "vast",
            Self::Aws => "aws",
            Self::Gcp => "gcp",
            Self::Azure => "azure",
            Self::Paperspace => "paperspace",
        }
    }
}

/// Who asks a cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudProviderCredentials {
    /// A Secret in the operator's own namespace. Its keys are the cloud's: `apiKey` for lambda, runpod, vast and
    /// paperspace; `accessKeyId` and `secretAccessKey` for aws; `serviceAccount` for gcp; `tenantId`, `clientId` and
    /// `clientSecret` for azure. `userData` is cloud-init for new machines, in which `{{name}}` becomes the machine's
    /// name; `endpoint` replaces the cloud's address.
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: String,
}

/// How machines are set up, in the cloud's words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudProviderSettings {
    /// The image machines start from. lambda: an image id; runpod, vast: a container image that joins by itself; aws:
    /// an AMI of each region; gcp, azure: the path of an image; paperspace: a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// The name of an SSH key the cloud knows. lambda needs it, aws takes it; azure: the public key itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub ssh_key: Option<String>,
    /// aws: a subnet; gcp: a network; azure: the path of a subnet; paperspace: a private network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub network: Option<String>,
    /// aws: a security group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub security_group: Option<String>,
    /// The disk in GiB, where the cloud lets one choose.
    #[serde(default, rename = "diskGiB", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 16_000))]
    pub disk_gib: Option<u32>,
    /// gcp: the project. Taken from the service account unless it is said here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub project: Option<String>,
    /// azure: the subscription.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub subscription: Option<String>,
    /// azure: the resource group machines are made in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub resource_group: Option<String>,
}

/// How a machine becomes a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BootstrapType {
    /// By what is in its image or its user data.
    #[default]
    None,
    /// By `kubeadm join`.
    Kubeadm,
    /// As an agent of k3s.
    K3s,
    /// Not at all: the operator keeps a node for it, and the pod that is bound there becomes the cloud's container.
    /// Nothing is bought before that. Only for fake, runpod and vast.
    Container,
}

impl BootstrapType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Kubeadm => "kubeadm",
            Self::K3s => "k3s",
            Self::Container => "container",
        }
    }

    /// Whether a machine runs something that joins the cluster.
    pub fn joins(self) -> bool {
        matches!(self, Self::Kubeadm | Self::K3s)
    }
}

/// What a request may set itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RequestSetting {
    /// `spec.image`.
    Image,
    /// `spec.userData`.
    UserData,
}

/// How machines become nodes of this cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudProviderBootstrap {
    /// By what. Every machine that joins gets a token of its own, which is deleted when it has.
    #[serde(rename = "type")]
    pub kind: BootstrapType,
    /// Where rented machines reach the API server, such as `https://203.0.113.7:6443`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 9, max = 256),
        regex(pattern = r"^https://[A-Za-z0-9.:\[\]-]+$")
    )]
    pub server: Option<String>,
    /// The version of Kubernetes or k3s to install where the image has none, such as `v1.35.4` or `v1.35.4+k3s1`.
    /// Absent: that of the API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 4, max = 32),
        regex(pattern = r"^v1\.[0-9]+(\.[0-9]+)?([+-][A-Za-z0-9.+-]+)?$")
    )]
    pub version: Option<String>,
    /// A script the machine runs as root before it joins: drivers, mirrors, mounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 8192))]
    pub script: Option<String>,
    /// A machine that has not reached the API server for this long powers itself off, such as `30m`, which is what
    /// holds where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub power_off_after: Option<String>,
}

/// What an account may have at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudProviderLimits {
    /// Machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub machines: Option<u32>,
    /// US dollars an hour, as a number or as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "price::schema")]
    pub price_per_hour: Option<Price>,
}

/// What holds at the moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudProviderStatus {
    /// Generation of the spec this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What the account can rent: the cheapest few of each model, size and region, cheapest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offers: Vec<CloudOffer>,
    /// How many those are.
    #[serde(default)]
    pub offer_count: i64,
    /// When the cloud was last known to say so; renewed at the latest every half hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offers_checked_at: Option<Time>,
    /// Machines with this cluster's mark that the cloud says it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<CloudMachine>,
    /// How many those are.
    #[serde(default)]
    pub machine_count: i64,
    /// What they cost an hour together, in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<String>,
    /// Machines rented since the month began (UTC) that the cloud took back.
    #[serde(default)]
    pub interruptions_this_month: i64,
    /// Whether anything is rented here after what came of the last machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circuit: Option<CloudCircuit>,
    /// What needs attention, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `Ready`: the cloud lets us in and has been asked what it offers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// What came of the last machines of an account, of all requests together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudCircuit {
    /// Whether anything is rented.
    #[serde(default)]
    pub state: CircuitState,
    /// Machines and launches in a row that came to nothing for reasons of the cloud.
    #[serde(default)]
    pub failures: u32,
    /// Until when nothing is rented, since it opened last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// How the last of them ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
    /// Up to when attempts are counted in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_until: Option<Time>,
}

/// Whether anything is rented.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CircuitState {
    /// As usual.
    #[default]
    Closed,
    /// Nothing new, for a while.
    Open,
    /// One machine at a time: what comes of it decides.
    HalfOpen,
}

impl CircuitState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "Closed",
            Self::Open => "Open",
            Self::HalfOpen => "HalfOpen",
        }
    }
}

/// One machine one can rent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudOffer {
    /// The model, such as `H100-80GB`.
    pub gpu: String,
    /// GPUs of the machine.
    pub gpus: u32,
    /// The cloud's region.
    pub region: String,
    /// The cloud's name for this kind of machine.
    pub instance_type: String,
    /// US dollars an hour for the whole machine.
    pub price: String,
    /// The same for one the cloud may take back, where it sells that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spot_price: Option<String>,
    /// none, low, medium, high or unknown.
    pub availability: String,
}

/// One machine as the cloud describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudMachine {
    /// The cloud's id of it.
    pub id: String,
    /// Its name, which is also its node's.
    pub name: String,
    /// How the cloud says it is.
    pub state: String,
    /// The GPURequest it belongs to, as `namespace/name`; absent when it belongs to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// US dollars an hour, where the cloud says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<String>,
    /// Since when this operator knows that it belongs to none; it is ended some minutes later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unowned_since: Option<Time>,
}

/// Every rule with the place in the schema it hangs on.
pub const RULES: &[Rule] = &[
    Rule {
        at: "",
        rule: "size(self.metadata.name) <= 63",
        message: "a provider's name is at most 63 characters: it is used as a label",
    },
    Rule {
        at: "spec",
        rule: "self.type == 'fake' || has(self.credentials)",
        message: "this cloud needs spec.credentials.secretName: a Secret in the operator's namespace",
    },
    Rule {
        at: "spec",
        rule: "!has(self.bootstrap) || !(self.bootstrap.type in ['kubeadm', 'k3s']) || !(self.type in ['fake', 'runpod', 'vast'])",
        message: "bootstrap joins virtual machines: this cloud has none",
    },
    Rule {
        at: "spec",
        rule: "!has(self.bootstrap) || self.bootstrap.type != 'container' || self.type in ['fake', 'runpod', 'vast']",
        message: "bootstrap.type container is for clouds that sell containers: fake, runpod and vast",
    },
    Rule {
        at: "spec.bootstrap",
        rule: "!(self.type in ['kubeadm', 'k3s']) || has(self.server)",
        message: "bootstrap.server must be given: where machines reach the API server",
    },
    Rule {
        at: "spec",
        rule: "self.type == oldSelf.type",
        message: "type may not change: machines of the old one would be lost; make another CloudProvider",
    },
];
