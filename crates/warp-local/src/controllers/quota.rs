//! ResourceQuotas: writes what is used. Refusing what is too much is the API server's affair.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaStatus,
    ScopedResourceSelectorRequirement, Service,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use warp_core::resources::Resources;

use super::{Caches, Shared, pods, wired};
use crate::scheduler::request;
use warp_runtime::cache::Key;
use warp_runtime::driver::{Controller, SyncError};
use warp_runtime::plan::Plan;

/// Objects change in crowds: one look a moment later sees them all.
const GATHER: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Quotas(Shared);

impl Quotas {
    pub(crate) fn start(shared: &Shared) {
        let queue = wired(shared, Self(shared.clone()));
        let caches = &shared.caches;
        caches.quotas.on_key(&queue, |quota| Some(Key::of(quota)));
        let (quotas, recount) = (caches.quotas.clone(), queue.clone());
        shared.object_counts.listen(move |namespace| {
            if !quotas.is_empty() {
                quotas
                    .in_namespace(namespace)
                    .iter()
                    .for_each(|quota| recount.add_after(Key::of(&**quota), GATHER));
            }
        });
        // A pod stops counting when it ends, not only when it goes.
        let quotas = caches.quotas.clone();
        caches.pods.listen(move |old, new| {
            let ended = |pod: Option<&Pod>| pod.is_none_or(pods::is_finished);
            if quotas.is_empty() || ended(old) == ended(new) {
                return;
            }
            let namespace = new
                .or(old)
                .and_then(|pod| pod.metadata.namespace.as_deref())
                .unwrap_or_default();
            quotas
                .in_namespace(namespace)
                .iter()
                .for_each(|quota| queue.add_after(Key::of(&**quota), GATHER));
        });
    }
}

impl Controller for Quotas {
    type Key = Key;
    const NAME: &'static str = "resourcequota-controller";

    async fn sync(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let Some(quota) = self.0.caches.quotas.get(key) else {
            return Ok(None);
        };
        let used = used(&quota, &self.0, &key.namespace);
        let mut plan = Plan::default();
        let hard = quota.spec.as_ref().and_then(|spec| spec.hard.clone());
        let status = ResourceQuotaStatus {
            hard,
            used: Some(used),
        };
        plan.status(&*quota, quota.status.as_ref(), &status);
        self.0.execute(Self::NAME, plan).await
    }
}

fn used(quota: &ResourceQuota, shared: &Shared, namespace: &str) -> BTreeMap<String, Quantity> {
    let caches = &shared.caches;
    let names = quota
        .spec
        .iter()
        .flat_map(|spec| spec.hard.iter().flatten())
        .map(|(name, _)| name);
    let pods: Vec<_> = caches
        .pods
        .in_namespace(namespace)
        .into_iter()
        .filter(|pod| !pods::is_finished(pod) && in_scope(quota, pod))
        .collect();
    let mut requests = Resources::default();
    let mut limits = Resources::default();
    for pod in &pods {
        requests.add(&request::request(pod).resources);
        limits.add(&request::limits(pod));
    }
    names
        .map(|name| {
            (
                name.clone(),
                amount(name, &pods, &requests, &limits, shared, namespace),
            )
        })
        .collect()
}

fn amount(
    name: &str,
    pods: &[Arc<Pod>],
    requests: &Resources,
    limits: &Resources,
    shared: &Shared,
    namespace: &str,
) -> Quantity {
    let caches = &shared.caches;
    let text = match name {
        "pods" => pods.len().to_string(),
        "cpu" | "requests.cpu" => milli(requests.cpu_milli),
        "memory" | "requests.memory" => bytes(requests.memory_bytes),
        "limits.cpu" => milli(limits.cpu_milli),
        "limits.memory" => bytes(limits.memory_bytes),
        "limits.ephemeral-storage" => bytes(limits.extended("ephemeral-storage")),
        "ephemeral-storage" | "requests.ephemeral-storage" => {
            bytes(requests.extended("ephemeral-storage"))
        }
        "services.loadbalancers" => services(caches, namespace, |service| {
            service_type(service) == "LoadBalancer"
        })
        .to_string(),
        "services.nodeports" => node_ports(caches, namespace).to_string(),
        "requests.storage" => bytes(storage(caches, namespace, None)),
        _ => other(name, requests, shared, namespace),
    };
    Quantity(text)
}

fn other(name: &str, requests: &Resources, shared: &Shared, namespace: &str) -> String {
    const CORE: [&str; 6] = [
        "configmaps",
        "secrets",
        "services",
        "persistentvolumeclaims",
        "replicationcontrollers",
        "resourcequotas",
    ];
    if CORE.contains(&name) {
        return shared
            .object_counts
            .count("", name, namespace)
            .unwrap_or(0)
            .to_string();
    }
    if let Some(resource) = name.strip_prefix("count/") {
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        return shared
            .object_counts
            .count(group, plural, namespace)
            .unwrap_or(0)
            .to_string();
    }
    if let Some((class, what)) = name.split_once(".storageclass.storage.k8s.io/") {
        let claims = claims(&shared.caches, namespace, Some(class));
        return if what == "persistentvolumeclaims" {
            claims.len().to_string()
        } else {
            bytes(storage(&shared.caches, namespace, Some(class)))
        };
    }
    match name.strip_prefix("requests.") {
        Some(resource) => requests.extended(resource).to_string(),
        None => "0".to_owned(),
    }
}

fn milli(value: i64) -> String {
    if value % 1000 == 0 {
        (value / 1000).to_string()
    } else {
        format!("{value}m")
    }
}

/// Bytes with the largest binary unit that keeps them exact.
fn bytes(value: i64) -> String {
    let units = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let mut value = value;
    let mut unit = 0;
    while value != 0 && value % 1024 == 0 && unit + 1 < units.len() {
        value /= 1024;
        unit += 1;
    }
    format!("{value}{}", units[unit])
}

fn service_type(service: &Service) -> &str {
    service
        .spec
        .as_ref()
        .and_then(|spec| spec.type_.as_deref())
        .unwrap_or("ClusterIP")
}

fn services(caches: &Caches, namespace: &str, wanted: impl Fn(&Service) -> bool) -> usize {
    caches
        .services
        .in_namespace(namespace)
        .iter()
        .filter(|service| wanted(service))
        .count()
}

fn node_ports(caches: &Caches, namespace: &str) -> usize {
    let ports = |service: &Arc<Service>| match service_type(service) {
        "NodePort" | "LoadBalancer" => service
            .spec
            .as_ref()
            .map_or(0, |spec| spec.ports.as_ref().map_or(0, Vec::len)),
        _ => 0,
    };
    caches
        .services
        .in_namespace(namespace)
        .iter()
        .map(ports)
        .sum()
}

fn claims(
    caches: &Caches,
    namespace: &str,
    class: Option<&str>,
) -> Vec<Arc<PersistentVolumeClaim>> {
    let of_class = |claim: &Arc<PersistentVolumeClaim>| {
        class.is_none()
            || claim
                .spec
                .as_ref()
                .and_then(|spec| spec.storage_class_name.as_deref())
                == class
    };
    caches
        .claims
        .in_namespace(namespace)
        .into_iter()
        .filter(of_class)
        .collect()
}

fn storage(caches: &Caches, namespace: &str, class: Option<&str>) -> i64 {
    let mut sum = Resources::default();
    for claim in claims(caches, namespace, class) {
        let mut one = Resources::default();
        let asked = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
        if let Some(asked) = asked
            && one.set("storage", &asked.0).is_ok()
        {
            sum.add(&one);
        }
    }
    sum.extended("storage")
}

fn is_best_effort(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.qos_class.as_deref())
        == Some("BestEffort")
}

/// Does a pod count towards a quota, by the quota's scopes?
fn in_scope(quota: &ResourceQuota, pod: &Pod) -> bool {
    let Some(spec) = &quota.spec else { return true };
    let plain = spec
        .scopes
        .iter()
        .flatten()
        .all(|scope| holds(scope, None, pod));
    let selected = spec
        .scope_selector
        .iter()
        .flat_map(|selector| selector.match_expressions.iter().flatten());
    plain
        && selected
            .into_iter()
            .all(|requirement| holds(&requirement.scope_name, Some(requirement), pod))
}

fn holds(scope: &str, requirement: Option<&ScopedResourceSelectorRequirement>, pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let ends = spec
        .and_then(|spec| spec.active_deadline_seconds)
        .is_some_and(|seconds| seconds >= 0);
    match scope {
        "Terminating" => ends,
        "NotTerminating" => !ends,
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "PriorityClass" => {
            let class = spec
                .and_then(|spec| spec.priority_class_name.clone())
                .filter(|class| !class.is_empty());
            let listed = requirement.is_some_and(|requirement| {
                class.as_ref().is_some_and(|class| {
                    requirement
                        .values
                        .iter()
                        .flatten()
                        .any(|value| value == class)
                })
            });
            match requirement.map(|requirement| requirement.operator.as_str()) {
                Some("In") => listed,
                Some("NotIn") => !listed,
                Some("DoesNotExist") => class.is_none(),
                _ => class.is_some(),
            }
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_exactly_and_short() {
        assert_eq!(
            (milli(1500), milli(2000)),
            ("1500m".to_owned(), "2".to_owned())
        );
        assert_eq!(
            (bytes(3 << 30), bytes(1500), bytes(0)),
            ("3Gi".to_owned(), "1500".to_owned(), "0".to_owned())
        );
    }

    #[test]
    fn scopes_choose_pods() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {}, "spec": { "containers": [], "activeDeadlineSeconds": 5, "priorityClassName": "high" },
            "status": { "qosClass": "BestEffort" }
        }))
        .unwrap();
        let requirement = |operator: &str, values: &[&str]| ScopedResourceSelectorRequirement {
            operator: operator.to_owned(),
            scope_name: "PriorityClass".to_owned(),
            values: Some(values.iter().map(|value| (*value).to_owned()).collect()),
        };
        assert!(
            holds("Terminating", None, &pod)
                && holds("BestEffort", None, &pod)
                && !holds("NotTerminating", None, &pod)
        );
        assert!(holds(
            "PriorityClass",
            Some(&requirement("In", &["high"])),
            &pod
        ));
        assert!(!holds(
            "PriorityClass",
            Some(&requirement("NotIn", &["high"])),
            &pod
        ));
    }
}
