//! What a tenant's owners and isolation come to: a RoleBinding and a NetworkPolicy in each of its namespaces, and the Pod
//! Security level these enforce. Pure.
//!
//! A namespace that two tenants claim keeps what it has and gets nothing: a second claim must not open it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicySpec,
};
use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, LabelSelectorRequirement, ObjectMeta, OwnerReference,
};
use kube::{Resource, ResourceExt};
use serde_json::{Map, Value, json};
use warp_api::tenant::{OwnerKind, TenantOwner, TenantSpec, released};
use warp_api::{Tenant, condition, label, reason};
use warp_runtime::cache::Key;
use warp_runtime::plan::{Encoding, Plan, is_controlled_by};
use warp_runtime::reconcile::Reconcile;

use super::Tenants;
use super::observe::Seen;

const GROUP: &str = "rbac.authorization.k8s.io";
/// The label every namespace has its name in.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// What is said where the operator runs without it.
const NOT_OURS: &str = "this operator does not hand out rights: owners and isolation wait until an administrator installs it with `warp install --print --isolate-tenants` or `kubectl apply -k deploy/isolation`";

/// The namespaces of a tenant.
pub(super) struct Namespaces<'a> {
    /// Its own.
    pub(super) own: &'a BTreeSet<String>,
    /// All it claims, also those that another claims too.
    pub(super) claimed: &'a BTreeSet<String>,
}

/// The namespaces where something is still to be done.
#[derive(Default)]
struct Undone {
    /// What is asked for is not there, or says something else.
    missing: BTreeSet<String>,
    /// What is no longer asked for is there.
    left: BTreeSet<String>,
}

/// Plans what is missing and takes back what is too much; the condition says how far it is. None where nothing is asked
/// for and nothing is there.
pub(super) fn plan(
    plan: &mut Plan,
    tenant: &Tenant,
    namespaces: &Namespaces,
    seen: &Seen,
) -> Option<condition::State> {
    let Some(walls) = &seen.walls else {
        return asks(&tenant.spec).then(|| condition::State {
            kind: condition::ISOLATED,
            status: "False",
            reason: reason::NOT_ALLOWED,
            message: NOT_OURS.to_owned(),
        });
    };
    let owner = tenant.controller_owner_ref(&())?;
    let mut undone = Undone::default();
    let bindings = namespaces
        .own
        .iter()
        .filter_map(|name| binding(tenant, name));
    let policies = namespaces
        .own
        .iter()
        .filter_map(|name| policy(tenant, name, namespaces.own));
    children(
        plan,
        &owner,
        namespaces,
        bindings,
        &walls.bindings,
        |one, other| (&one.subjects, &one.role_ref) == (&other.subjects, &other.role_ref),
        &mut undone,
    );
    children(
        plan,
        &owner,
        namespaces,
        policies,
        &walls.policies,
        |one, other| one.spec == other.spec,
        &mut undone,
    );
    for namespace in &seen.namespaces {
        let name = namespace.name_any();
        let wanted = level(&tenant.spec);
        let (labels, undone) = if namespaces.own.contains(&name) && wanted.is_some() {
            (enforced(tenant, namespace, wanted), &mut undone.missing)
        } else if namespaces.claimed.contains(&name) && wanted.is_some() {
            continue;
        } else {
            (released(&tenant.name_any(), namespace), &mut undone.left)
        };
        if let Some(labels) = labels {
            undone.insert(name);
            let patch = json!({"metadata": {"labels": labels}});
            plan.patch(&**namespace, Encoding::Merge, patch);
        }
    }
    said(tenant, namespaces.own, &undone)
}

/// Applies what is wanted of one kind and prunes the rest, except where another tenant contests the namespace.
fn children<K>(
    plan: &mut Plan,
    owner: &OwnerReference,
    namespaces: &Namespaces,
    wanted: impl Iterator<Item = K>,
    there: &[Arc<K>],
    same: impl Fn(&K, &K) -> bool,
    undone: &mut Undone,
) where
    K: Resource<DynamicType = ()> + serde::Serialize,
{
    let contested =
        |name: &str| namespaces.claimed.contains(name) && !namespaces.own.contains(name);
    let ours = there.iter().map(|child| &**child).filter(|child| {
        is_controlled_by(*child, &owner.uid)
            && !contested(child.meta().namespace.as_deref().unwrap_or_default())
    });
    let ours: BTreeMap<Key, &K> = ours.map(|child| (Key::of(child), child)).collect();
    let mut keep = BTreeSet::new();
    for child in wanted {
        let key = Key::of(&child);
        if !ours.get(&key).is_some_and(|found| same(found, &child)) {
            undone.missing.insert(key.namespace.to_string());
        }
        plan.apply(Tenants::MANAGER, &child);
        keep.insert(key);
    }
    let left = ours.keys().filter(|key| !keep.contains(key));
    undone
        .left
        .extend(left.map(|key| key.namespace.to_string()));
    plan.prune(owner, ours.into_values(), &keep);
}

/// What is no longer asked for is told of until it is gone: rights that are still there are rights.
fn said(tenant: &Tenant, own: &BTreeSet<String>, undone: &Undone) -> Option<condition::State> {
    let state = |status, reason, message| condition::State {
        kind: condition::ISOLATED,
        status,
        reason,
        message,
    };
    let names = |names: &BTreeSet<String>| -> String {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.join(", ")
    };
    let refused = "where this stays, the operator's log names the refusal: its roles must be those that `warp install --print --isolate-tenants` prints";
    if !undone.missing.is_empty() {
        let text = format!("not yet in {}; {refused}", names(&undone.missing));
        return Some(state("False", reason::ISOLATING, text));
    }
    if !undone.left.is_empty() {
        let text = format!(
            "what is no longer asked for is still in {}; {refused}",
            names(&undone.left)
        );
        return Some(state("False", reason::TAKING_BACK, text));
    }
    asks(&tenant.spec).then(|| {
        let text = format!("in {} of {} namespaces", own.len(), own.len());
        state("True", reason::ISOLATION_IN_PLACE, text)
    })
}

/// Whether a tenant asks for anything of this.
fn asks(spec: &TenantSpec) -> bool {
    !spec.owners.is_empty() || networked(spec) || level(spec).is_some()
}

fn networked(spec: &TenantSpec) -> bool {
    spec.isolation.as_ref().is_some_and(|asked| asked.network)
}

/// The Pod Security level asked for.
fn level(spec: &TenantSpec) -> Option<&'static str> {
    let level = spec.isolation.as_ref()?.pod_security?;
    Some(level.as_str())
}

/// The labels a namespace still lacks for the level its tenant wants.
fn enforced(tenant: &Tenant, namespace: &Namespace, level: Option<&str>) -> Option<Value> {
    let wanted = [
        (label::TENANT, Some(tenant.name_any())),
        (label::TENANT_POD_SECURITY, level.map(str::to_owned)),
        (label::POD_SECURITY, level.map(str::to_owned)),
    ];
    let there = namespace.labels();
    let lacks: Map<String, Value> = wanted
        .into_iter()
        .filter(|(name, value)| there.get(*name) != value.as_ref())
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect();
    (!lacks.is_empty()).then_some(Value::Object(lacks))
}

fn meta(tenant: &Tenant, namespace: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(format!("warp-tenant-{}", tenant.name_any())),
        namespace: Some(namespace.to_owned()),
        labels: Some(BTreeMap::from([(
            label::TENANT.to_owned(),
            tenant.name_any(),
        )])),
        owner_references: tenant.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// Who may work in a namespace; nothing where nobody is named.
fn binding(tenant: &Tenant, namespace: &str) -> Option<RoleBinding> {
    let owners = &tenant.spec.owners;
    let role = tenant.spec.owners_role.unwrap_or_default();
    // The role of a binding cannot be changed: another role is another binding.
    let mut metadata = meta(tenant, namespace);
    metadata.name = metadata
        .name
        .map(|name| format!("{name}-{}", role.as_str()));
    (!owners.is_empty()).then_some(RoleBinding {
        metadata,
        role_ref: RoleRef {
            api_group: GROUP.to_owned(),
            kind: "ClusterRole".to_owned(),
            name: role.as_str().to_owned(),
        },
        subjects: Some(owners.iter().map(subject).collect()),
    })
}

fn subject(owner: &TenantOwner) -> Subject {
    let account = owner.kind == OwnerKind::ServiceAccount;
    Subject {
        kind: owner.kind.as_str().to_owned(),
        name: owner.name.clone(),
        api_group: (!account).then(|| GROUP.to_owned()),
        namespace: owner.namespace.clone().filter(|_| account),
    }
}

/// Nobody but the tenant's own pods reaches its pods.
fn policy(tenant: &Tenant, namespace: &str, own: &BTreeSet<String>) -> Option<NetworkPolicy> {
    let peers = LabelSelector {
        match_labels: None,
        match_expressions: Some(vec![LabelSelectorRequirement {
            key: NAME_LABEL.to_owned(),
            operator: "In".to_owned(),
            values: Some(own.iter().cloned().collect()),
        }]),
    };
    networked(&tenant.spec).then(|| NetworkPolicy {
        metadata: meta(tenant, namespace),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector::default()),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(vec![NetworkPolicyIngressRule {
                from: Some(vec![NetworkPolicyPeer {
                    namespace_selector: Some(peers),
                    ..NetworkPolicyPeer::default()
                }]),
                ports: None,
            }]),
            egress: None,
        }),
    })
}
