//! `Tenant`: namespaces that belong together, and what they use.
//!
//! The struct is the schema; [`RULES`] says what a schema cannot.

// The lint takes the columns of one `#[kube]` for one attribute said twice.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::crd::Rule;

/// Namespaces that belong together, and the GPUs they use and wait for.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "gpu.warp.dev",
    version = "v1alpha1",
    kind = "Tenant",
    plural = "tenants",
    singular = "tenant",
    shortname = "gten",
    category = "warp",
    status = "TenantStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Namespaces that belong together, and the GPUs they use and wait for.",
    printcolumn(
        name = "Namespaces",
        type_ = "integer",
        json_path = ".status.namespaceCount"
    ),
    printcolumn(name = "In-Use", type_ = "integer", json_path = ".status.gpusInUse"),
    printcolumn(name = "Waiting", type_ = "integer", json_path = ".status.gpusWaiting"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
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
pub struct TenantSpec {
    /// Which namespaces belong to it. A namespace belongs to one tenant at most: one that two claim
    /// counts for neither, and both say so.
    pub namespaces: TenantNamespaces,
}

/// Namespaces by name, by label, or both: those that either names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantNamespaces {
    /// Names of namespaces. One that does not exist yet belongs to the tenant when it does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 256),
        inner(
            length(min = 1, max = 63),
            regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
        )
    )]
    pub names: Vec<String>,
    /// Every namespace whose labels match. An empty selector matches all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// What holds at the moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantStatus {
    /// Generation of the spec this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Namespaces that exist and belong to this tenant alone, in alphabetical order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// How many those are.
    #[serde(default)]
    pub namespace_count: i64,
    /// GPUs by model, in alphabetical order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<TenantGpus>,
    /// GPUs in use, of all models.
    #[serde(default)]
    pub gpus_in_use: i64,
    /// GPUs waited for, of all models.
    #[serde(default)]
    pub gpus_waiting: i64,
    /// What needs attention, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `Ready`: the tenant has namespaces and shares none of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// GPUs of one model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantGpus {
    /// The model, such as `H100-80GB`; the vendor where the model is unknown or any will do.
    pub model: String,
    /// Held by pods on nodes.
    #[serde(default)]
    pub in_use: i64,
    /// Asked for by what has no node yet.
    #[serde(default)]
    pub waiting: i64,
}

/// Every rule with the place in the schema it hangs on.
pub const RULES: &[Rule] = &[
    Rule {
        at: "",
        rule: "size(self.metadata.name) <= 63",
        message: "a tenant's name is at most 63 characters: it is used as a label",
    },
    Rule {
        at: "spec.namespaces",
        rule: "(has(self.names) && size(self.names) > 0) || has(self.selector)",
        message: "names or selector must be given: a tenant without namespaces means nothing",
    },
];
