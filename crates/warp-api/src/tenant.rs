//! `Tenant`: namespaces that belong together, what they may have, and what they use.
//!
//! The struct is the schema; [`RULES`] says what a schema cannot. What the limits mean to decisions is in
//! `tenant/limits.rs`.

// The lint takes the columns of one `#[kube]` for one attribute said twice.
#![allow(clippy::duplicated_attributes)]

mod budget;
mod isolation;
mod limits;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::crd::Rule;
use crate::workload::{Priority, SchedulingStrategy};

pub use budget::{AtLimit, BudgetStatus, TenantBudget};
pub use isolation::{OwnerKind, OwnersRole, PodSecurity, TenantIsolation, TenantOwner, released};
pub use limits::covers;

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
    /// GPUs promised to it, by model or vendor. Without a line for a GPU, here or at a parent, its number is not
    /// limited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub quota: Vec<TenantQuota>,
    /// The tenant it hangs below. Those of one tree lend each other what they do not use of their quota, and a
    /// line of a parent limits everything below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub parent: Option<String>,
    /// Its part of what it and others of its tree borrow, against theirs. Absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: Option<i32>,
    /// Nothing of it is placed while this is true; what runs goes on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// Models its work may use, such as `H100` or `MI300X`, or vendors; any of them. Empty: every one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    pub allowed_models: Vec<String>,
    /// Priorities its work may ask for. Empty: every one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3))]
    pub priorities: Vec<Priority>,
    /// Longest `maxRuntime` its work may ask for, such as `24h`; work without one waits. Services run until they are stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 16),
        regex(pattern = r"^([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?$")
    )]
    pub max_runtime: Option<String>,
    /// What it may spend on rented machines. Absent: what its parents may, else anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<TenantBudget>,
    /// What its work gets where it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defaults: Option<TenantDefaults>,
    /// Who may work in its namespaces: a RoleBinding in each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub owners: Vec<TenantOwner>,
    /// What the owners may do there. Absent: `edit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owners_role: Option<OwnersRole>,
    /// How its namespaces are shut off from those of others. Absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<TenantIsolation>,
}

/// GPUs promised to a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantQuota {
    /// A model such as `H100-80GB` or `H100`, or a vendor: `nvidia`, `amd`, `intel`, `habana`. Where a model has a
    /// line and its vendor too, both hold.
    #[schemars(length(min = 1, max = 63))]
    pub gpu: String,
    /// GPUs it can count on.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub nominal: i64,
    /// Most it may have beyond them while others of its tree do not use theirs. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub borrow_limit: Option<i64>,
    /// Most of them that others may have while it does not use them. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub lend_limit: Option<i64>,
}

/// What work gets where it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantDefaults {
    /// The priority of work that says none, neither by itself nor by a PriorityClass: of workloads and queued Jobs. What is
    /// served has its own. Absent: normal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// How a node is chosen for work that names no strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_strategy: Option<SchedulingStrategy>,
    /// Whether work of higher priority may take the place of running work that does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<bool>,
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
    /// Where it stands under each line of a quota that binds it, its own and its parents'.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quota: Vec<TenantStanding>,
    /// What it has spent on rented machines and what is reserved, where it has a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetStatus>,
    /// GPUs in use, of all models.
    #[serde(default)]
    pub gpus_in_use: i64,
    /// GPUs waited for, of all models.
    #[serde(default)]
    pub gpus_waiting: i64,
    /// What needs attention, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `Ready`: the tenant has namespaces and shares none of them. `WithinBudget`: no limit of its budget is reached.
    /// `Isolated`: `owners` and `isolation` hold in every namespace.
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

/// Where a tenant stands under one line of a quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantStanding {
    /// What the line covers.
    pub gpu: String,
    /// GPUs it can count on.
    #[serde(default)]
    pub nominal: i64,
    /// GPUs it uses.
    #[serde(default)]
    pub used: i64,
    /// Of these, borrowed from others.
    #[serde(default)]
    pub borrowed: i64,
    /// GPUs it could still have now.
    #[serde(default)]
    pub available: i64,
}

/// Every rule with the place in the schema it hangs on.
pub const RULES: &[Rule] = &[
    Rule {
        at: "",
        rule: "size(self.metadata.name) <= 63",
        message: "a tenant's name is at most 63 characters: it is used as a label",
    },
    Rule {
        at: "",
        rule: "!has(self.spec.parent) || self.spec.parent != self.metadata.name",
        message: "a tenant cannot be its own parent",
    },
    Rule {
        at: "spec",
        rule: "!has(self.quota) || self.quota.all(line, self.quota.exists_one(other, other.gpu == line.gpu))",
        message: "a quota has one line for each gpu",
    },
    Rule {
        at: "spec",
        rule: "!has(self.defaults) || !has(self.defaults.priority) || !has(self.priorities) || size(self.priorities) == 0 || self.defaults.priority in self.priorities",
        message: "defaults.priority must be one of priorities: work that says nothing could never start",
    },
    Rule {
        at: "spec.owners[]",
        rule: "(self.kind == 'ServiceAccount') == has(self.__namespace__)",
        message: "namespace is given for a ServiceAccount, and for nobody else",
    },
    Rule {
        at: "spec.namespaces",
        rule: "(has(self.names) && size(self.names) > 0) || has(self.selector)",
        message: "names or selector must be given: a tenant without namespaces means nothing",
    },
];
