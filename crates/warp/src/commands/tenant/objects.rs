//! What a tenant is made of, as flags say it. Pure.

use kube::Resource;
use serde::Serialize;
use serde_json::{Value, json};
use warp_api::tenant::{
    OwnerKind, OwnersRole, PodSecurity, TenantIsolation, TenantNamespaces, TenantOwner,
    TenantQuota, TenantSpec,
};
use warp_api::{Tenant, condition};

use super::Create;

/// An owner from `user:NAME`, `group:NAME` or `account:NAMESPACE/NAME`.
pub(super) fn owner(text: &str) -> Result<TenantOwner, String> {
    let wrong = || format!("'{text}' is not user:NAME, group:NAME or account:NAMESPACE/NAME");
    let (kind, name) = text.split_once(':').ok_or_else(wrong)?;
    let owner = |kind, name: &str, namespace: Option<&str>| TenantOwner {
        kind,
        name: name.to_owned(),
        namespace: namespace.map(str::to_owned),
    };
    match (kind, name.split_once('/')) {
        (_, _) if name.is_empty() => Err(wrong()),
        ("user", _) => Ok(owner(OwnerKind::User, name, None)),
        ("group", _) => Ok(owner(OwnerKind::Group, name, None)),
        ("account", Some((namespace, name))) if !namespace.is_empty() && !name.is_empty() => {
            Ok(owner(OwnerKind::ServiceAccount, name, Some(namespace)))
        }
        _ => Err(wrong()),
    }
}

/// What owners may do.
pub(super) fn role(text: &str) -> Result<OwnersRole, String> {
    one_of(
        text,
        &[OwnersRole::View, OwnersRole::Edit, OwnersRole::Admin],
        OwnersRole::as_str,
    )
}

/// A level of the Pod Security Standards.
pub(super) fn pod_security(text: &str) -> Result<PodSecurity, String> {
    let all = [
        PodSecurity::Privileged,
        PodSecurity::Baseline,
        PodSecurity::Restricted,
    ];
    one_of(text, &all, PodSecurity::as_str)
}

fn one_of<T: Copy>(text: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T, String> {
    let found = all.iter().copied().find(|one| name(*one) == text);
    found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().copied().map(name).collect();
        format!("'{text}' is not one of {}", names.join(", "))
    })
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

/// The tenant that was asked for.
pub(super) fn tenant(asked: Create) -> Tenant {
    let mut names = asked.namespaces;
    names.sort_unstable();
    names.dedup();
    let isolation = TenantIsolation {
        network: asked.isolate_network,
        pod_security: asked.pod_security,
    };
    let spec = TenantSpec {
        namespaces: TenantNamespaces {
            names,
            selector: None,
        },
        parent: asked.parent,
        quota: asked.quota,
        owners_role: asked.role.filter(|_| !asked.owners.is_empty()),
        owners: asked.owners,
        isolation: Some(isolation).filter(|asked| *asked != TenantIsolation::default()),
        ..TenantSpec::default()
    };
    Tenant::new(&asked.name, spec)
}

/// What of a generation of a tenant is not in place yet.
pub(super) fn missing(tenant: &Tenant, generation: i64) -> Option<String> {
    let status = tenant.status.clone().unwrap_or_default();
    if status.observed_generation.unwrap_or_default() < generation {
        return Some("the operator has not looked at it yet: `warp doctor` says why".to_owned());
    }
    let isolated = condition::find(&status.conditions, condition::ISOLATED);
    let late = isolated.filter(|found| found.status != "True");
    late.map(|found| found.message.clone()).or(status.message)
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

    #[test]
    fn owners_are_read_and_what_is_none_is_refused() {
        let anna = owner("user:anna").unwrap();
        assert_eq!((anna.kind, anna.name.as_str()), (OwnerKind::User, "anna"));
        let group = owner("group:system:x").unwrap();
        assert_eq!(group.name, "system:x");
        let bot = owner("account:ci/bot").unwrap();
        assert_eq!(
            (bot.name.as_str(), bot.namespace.as_deref()),
            ("bot", Some("ci"))
        );
        for text in ["anna", "user:", "account:bot", "account:/bot", "robot:x"] {
            let told = owner(text).unwrap_err();
            assert!(told.contains("user:NAME"), "{told}");
        }
    }

    #[test]
    fn a_role_or_level_nobody_knows_is_refused_with_those_there_are() {
        assert_eq!(role("admin"), Ok(OwnersRole::Admin));
        assert_eq!(
            role("cluster-admin").unwrap_err(),
            "'cluster-admin' is not one of view, edit, admin"
        );
        assert_eq!(pod_security("baseline"), Ok(PodSecurity::Baseline));
        assert!(pod_security("none").is_err());
    }
}
