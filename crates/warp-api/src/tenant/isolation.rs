//! Who runs a tenant's namespaces, and how these are shut off from others.

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::label;

/// Somebody who may work in a tenant's namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantOwner {
    /// What the name is of.
    pub kind: OwnerKind,
    /// The user, group or service account, as the API server knows it.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of a service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub namespace: Option<String>,
}

/// What an owner is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OwnerKind {
    #[default]
    User,
    Group,
    ServiceAccount,
}

impl OwnerKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "User",
            Self::Group => "Group",
            Self::ServiceAccount => "ServiceAccount",
        }
    }
}

/// What owners may do in the tenant's namespaces: a ClusterRole every cluster has. No other can be named: who may write
/// tenants could hand out any right by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OwnersRole {
    View,
    #[default]
    Edit,
    Admin,
}

impl OwnersRole {
    /// The ClusterRole.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Edit => "edit",
            Self::Admin => "admin",
        }
    }
}

/// How a tenant's namespaces are shut off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantIsolation {
    /// Only pods of the tenant's own namespaces reach its pods, by a NetworkPolicy in each; the cluster's network has to
    /// enforce those. Policies of others beside it may let more in.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub network: bool,
    /// Pod Security level that its namespaces enforce. Absent: theirs is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_security: Option<PodSecurity>,
}

/// A level of the Pod Security Standards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PodSecurity {
    Privileged,
    Baseline,
    Restricted,
}

impl PodSecurity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// The labels a namespace gives back when its tenant no longer says its Pod Security level, as a merge patch has them. A
/// level that somebody else has set since stays.
pub fn released(tenant: &str, namespace: &Namespace) -> Option<Value> {
    let there = namespace.labels();
    if there.get(label::TENANT).map(String::as_str) != Some(tenant) {
        return None;
    }
    let set = there.get(label::TENANT_POD_SECURITY)?;
    let mut labels = json!({label::TENANT: null, label::TENANT_POD_SECURITY: null});
    if there.get(label::POD_SECURITY) == Some(set) {
        labels[label::POD_SECURITY] = Value::Null;
    }
    Some(labels)
}
