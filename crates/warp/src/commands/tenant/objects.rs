//! What a tenant is made of. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicySpec,
};
use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, LabelSelectorRequirement, ObjectMeta, OwnerReference,
};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};
use warp_api::Tenant;
use warp_api::tenant::{TenantNamespaces, TenantQuota, TenantSpec};

const GROUP: &str = "rbac.authorization.k8s.io";
/// The label every namespace has its name in.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// Marks what this verb made for which tenant.
const TENANT: &str = "gpu.warp.dev/tenant";

/// Who runs a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    User(String),
    Group(String),
    Account { namespace: String, name: String },
}

impl std::str::FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not user:NAME, group:NAME or account:NAMESPACE/NAME");
        let (kind, name) = text.split_once(':').ok_or_else(wrong)?;
        let account = name.split_once('/');
        match (kind, account) {
            (_, _) if name.is_empty() => Err(wrong()),
            ("user", _) => Ok(Self::User(name.to_owned())),
            ("group", _) => Ok(Self::Group(name.to_owned())),
            ("account", Some((namespace, name))) if !namespace.is_empty() && !name.is_empty() => {
                Ok(Self::Account {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                })
            }
            _ => Err(wrong()),
        }
    }
}

impl Owner {
    fn subject(&self) -> Subject {
        let subject = |kind: &str, name: &str| Subject {
            kind: kind.to_owned(),
            name: name.to_owned(),
            api_group: Some(GROUP.to_owned()),
            namespace: None,
        };
        match self {
            Self::User(name) => subject("User", name),
            Self::Group(name) => subject("Group", name),
            Self::Account { namespace, name } => Subject {
                api_group: None,
                namespace: Some(namespace.clone()),
                ..subject("ServiceAccount", name)
            },
        }
    }
}

/// A line of a quota from `GPU=N`.
pub(super) fn quota(text: &str) -> Result<TenantQuota, String> {
    let wrong = || format!("'{text}' is not GPU=NUMBER, such as H100-80GB=8 or amd=16");
    let (gpu, nominal) = text.split_once('=').ok_or_else(wrong)?;
    let nominal: i64 = nominal.parse().map_err(|_| wrong())?;
    if gpu.is_empty() || nominal < 0 {
        return Err(wrong());
    }
    Ok(TenantQuota {
        gpu: gpu.to_owned(),
        nominal,
        ..TenantQuota::default()
    })
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodSecurity {
    Privileged,
    Baseline,
    Restricted,
}

impl PodSecurity {
    fn level(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// A tenant as it was asked for.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) name: String,
    pub(super) namespaces: BTreeSet<String>,
    pub(super) owners: Vec<Owner>,
    pub(super) role: String,
    pub(super) isolate_network: bool,
    pub(super) pod_security: Option<PodSecurity>,
    pub(super) parent: Option<String>,
    pub(super) quota: Vec<TenantQuota>,
}

impl Shape {
    /// The name of everything made in its namespaces.
    pub(super) fn child_name(&self) -> String {
        format!("warp-tenant-{}", self.name)
    }

    /// Whether an object was made for this tenant.
    pub(super) fn made<K: Resource<DynamicType = ()>>(&self, object: &K) -> bool {
        object.labels().get(TENANT) == Some(&self.name)
    }

    pub(super) fn tenant(&self) -> Tenant {
        let namespaces = TenantNamespaces {
            names: self.namespaces.iter().cloned().collect(),
            selector: None,
        };
        let spec = TenantSpec {
            namespaces,
            parent: self.parent.clone(),
            quota: self.quota.clone(),
            ..TenantSpec::default()
        };
        Tenant::new(&self.name, spec)
    }

    pub(super) fn namespace(&self, name: &str) -> Namespace {
        let mut labels = BTreeMap::from([(TENANT.to_owned(), self.name.clone())]);
        if let Some(level) = self.pod_security {
            labels.insert(ENFORCE.to_owned(), level.level().to_owned());
        }
        Namespace {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        }
    }

    fn meta(&self, tenant: &Tenant, namespace: &str) -> ObjectMeta {
        let owner = OwnerReference {
            block_owner_deletion: Some(true),
            ..tenant.controller_owner_ref(&()).unwrap_or_default()
        };
        ObjectMeta {
            name: Some(self.child_name()),
            namespace: Some(namespace.to_owned()),
            labels: Some(BTreeMap::from([(TENANT.to_owned(), self.name.clone())])),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        }
    }

    /// Who may edit what is in a namespace; nothing where nobody is named.
    pub(super) fn binding(&self, tenant: &Tenant, namespace: &str) -> Option<RoleBinding> {
        (!self.owners.is_empty()).then(|| RoleBinding {
            metadata: self.meta(tenant, namespace),
            role_ref: RoleRef {
                api_group: GROUP.to_owned(),
                kind: "ClusterRole".to_owned(),
                name: self.role.clone(),
            },
            subjects: Some(self.owners.iter().map(Owner::subject).collect()),
        })
    }

    /// Nobody but the tenant's own pods reaches its pods.
    pub(super) fn policy(&self, tenant: &Tenant, namespace: &str) -> Option<NetworkPolicy> {
        let own = LabelSelector {
            match_labels: None,
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: NAME_LABEL.to_owned(),
                operator: "In".to_owned(),
                values: Some(self.namespaces.iter().cloned().collect()),
            }]),
        };
        self.isolate_network.then(|| NetworkPolicy {
            metadata: self.meta(tenant, namespace),
            spec: Some(NetworkPolicySpec {
                pod_selector: Some(LabelSelector::default()),
                policy_types: Some(vec!["Ingress".to_owned()]),
                ingress: Some(vec![NetworkPolicyIngressRule {
                    from: Some(vec![NetworkPolicyPeer {
                        namespace_selector: Some(own),
                        ..NetworkPolicyPeer::default()
                    }]),
                    ports: None,
                }]),
                egress: None,
            }),
        })
    }
}

/// The labels of an object that a manager has set.
pub(super) fn labels_of<K: Resource<DynamicType = ()>>(object: &K, manager: &str) -> Vec<String> {
    let entries = object.managed_fields().iter();
    let own = entries.filter(|entry| entry.manager.as_deref() == Some(manager));
    let labels = own.filter_map(|entry| {
        let fields = &entry.fields_v1.as_ref()?.0;
        fields.get("f:metadata")?.get("f:labels")?.as_object()
    });
    labels
        .flat_map(serde_json::Map::keys)
        .filter_map(|key| key.strip_prefix("f:").map(str::to_owned))
        .collect()
}

/// An object with its kind and version and without a status, as server-side apply wants it.
pub(super) fn typed<K>(object: &K) -> anyhow::Result<Value>
where
    K: Resource<DynamicType = ()> + Serialize,
{
    let mut value = serde_json::to_value(object)?;
    value["apiVersion"] = json!(K::api_version(&()));
    value["kind"] = json!(K::kind(&()));
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape {
            name: "red".to_owned(),
            namespaces: BTreeSet::from(["a".to_owned(), "b".to_owned()]),
            owners: vec![
                "user:anna".parse().unwrap(),
                "account:ci/bot".parse().unwrap(),
            ],
            role: "edit".to_owned(),
            isolate_network: true,
            pod_security: Some(PodSecurity::Restricted),
            parent: None,
            quota: Vec::new(),
        }
    }

    #[test]
    fn owners_are_read_and_what_is_none_is_refused() {
        assert_eq!("user:anna".parse(), Ok(Owner::User("anna".to_owned())));
        assert_eq!(
            "group:system:x".parse(),
            Ok(Owner::Group("system:x".to_owned()))
        );
        for text in ["anna", "user:", "account:bot", "account:/bot", "robot:x"] {
            let told = text.parse::<Owner>().unwrap_err();
            assert!(told.contains("user:NAME"), "{told}");
        }
    }

    #[test]
    fn only_pods_of_the_tenants_own_namespaces_are_let_in() {
        let policy = shape().policy(&shape().tenant(), "a").unwrap();
        let spec = serde_json::to_value(policy.spec).unwrap();
        let peers = &spec["ingress"][0]["from"][0]["namespaceSelector"]["matchExpressions"][0];
        assert_eq!(peers["values"], json!(["a", "b"]));
        assert_eq!(spec["podSelector"], json!({}));
    }

    #[test]
    fn a_service_account_is_named_with_its_namespace_and_a_user_with_the_group() {
        let binding = shape().binding(&shape().tenant(), "a").unwrap();
        let subjects = serde_json::to_value(binding.subjects).unwrap();
        assert_eq!(
            subjects,
            json!([
                {"kind": "User", "name": "anna", "apiGroup": GROUP},
                {"kind": "ServiceAccount", "name": "bot", "namespace": "ci"},
            ])
        );
        let nobody = Shape {
            owners: Vec::new(),
            ..shape()
        };
        assert_eq!(nobody.binding(&shape().tenant(), "a"), None);
    }
}
