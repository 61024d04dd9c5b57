//! What the ResourceQuotas of a namespace leave for a claim's pods. Pure.
//!
//! Looks at what a quota counts of every pod (pods, CPU, memory, ephemeral storage, extended resources
//! and limits) under the scopes a pod's own spec decides, and at the Job a claim is placed by. What else a quota may count, and what admission
//! adds to a pod, stays the API server's to refuse.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PodSpec, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use warp_api::reason;
use warp_core::resources::{Quantity, Resources};

use super::Verdict;
use crate::ledger::{self, Promise};

/// Thousandths of a unit, as `limits.cpu` needs them.
type Amounts = BTreeMap<String, i128>;
/// One object.
const ONE: i128 = 1000;
/// What quotas call the number of Jobs.
const JOBS: &str = "count/jobs.batch";

/// The quotas of all namespaces and what they will count soon.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    by_namespace: BTreeMap<String, Vec<Arc<ResourceQuota>>>,
    /// Pods that no quota counts yet because they are not there yet.
    coming: BTreeMap<String, Vec<PodSpec>>,
    /// Jobs that no quota counts yet, in thousandths.
    jobs: BTreeMap<String, i128>,
}

impl Quotas {
    pub(crate) fn new<'a>(
        quotas: Vec<Arc<ResourceQuota>>,
        promises: impl IntoIterator<Item = &'a Promise>,
    ) -> Self {
        let mut found = Self::default();
        for quota in quotas {
            let namespace = quota.namespace().unwrap_or_default();
            found.by_namespace.entry(namespace).or_default().push(quota);
        }
        if found.by_namespace.is_empty() {
            return found;
        }
        for promise in promises.into_iter().filter(|promise| !promise.counted) {
            let namespace = promise.meta.namespace.as_deref().unwrap_or_default();
            found.promise(namespace, promise.spec.clone());
        }
        found
    }

    /// Whether anything limits a namespace.
    pub(super) fn limits(&self, namespace: &str) -> bool {
        self.by_namespace.contains_key(namespace)
    }

    /// Counts a pod that is about to be made.
    pub(crate) fn promise(&mut self, namespace: &str, pod: PodSpec) {
        if self.by_namespace.contains_key(namespace) {
            let coming = self.coming.entry(namespace.to_owned()).or_default();
            coming.push(pod);
        }
    }

    /// Counts a Job that is about to be made.
    pub(crate) fn promise_job(&mut self, namespace: &str) {
        if self.by_namespace.contains_key(namespace) {
            *self.jobs.entry(namespace.to_owned()).or_default() += ONE;
        }
    }

    /// Why no further Job is let in, if it is not. Scopes are of pods: a quota that has some counts no Jobs.
    pub(crate) fn blocks_job(&self, namespace: &str) -> Option<Verdict> {
        let coming = self.jobs.get(namespace).copied().unwrap_or_default();
        self.by_namespace.get(namespace)?.iter().find_map(|quota| {
            let spec = quota.spec.as_ref()?;
            let scoped = spec.scopes.is_some() || spec.scope_selector.is_some();
            let over = || left(namespace, quota, JOBS, coming, ONE);
            (!scoped).then(over).flatten()
        })
    }

    /// Why pods that come together are not let in, if they are not.
    pub(crate) fn blocks(&mut self, namespace: &str, pods: &[PodSpec]) -> Option<Verdict> {
        if !self.by_namespace.contains_key(namespace) {
            return None;
        }
        let before = self.coming.get(namespace).map_or(0, Vec::len);
        let mut found = None;
        for pod in pods {
            found = self.blocks_one(namespace, pod);
            if found.is_some() {
                break;
            }
            self.promise(namespace, pod.clone());
        }
        if let Some(coming) = self.coming.get_mut(namespace) {
            coming.truncate(before);
        }
        found
    }

    fn blocks_one(&self, namespace: &str, pod: &PodSpec) -> Option<Verdict> {
        let quotas = self.by_namespace.get(namespace)?;
        quotas
            .iter()
            .find_map(|quota| self.over(namespace, quota, pod))
    }

    fn over(&self, namespace: &str, quota: &ResourceQuota, pod: &PodSpec) -> Option<Verdict> {
        if !covers(quota, pod)? {
            return None;
        }
        let coming = self.coming.get(namespace).into_iter().flatten();
        let coming: Vec<Amounts> = coming
            .filter(|other| covers(quota, other) == Some(true))
            .map(asked)
            .collect();
        asked(pod).into_iter().find_map(|(name, needed)| {
            let promised = coming.iter().filter_map(|amounts| amounts.get(&name)).sum();
            left(namespace, quota, &name, promised, needed)
        })
    }
}

/// Why a quota leaves too little of what it counts under a name, if it does.
fn left(
    namespace: &str,
    quota: &ResourceQuota,
    name: &str,
    promised: i128,
    needed: i128,
) -> Option<Verdict> {
    let status = quota.status.as_ref()?;
    let hard = status.hard.as_ref()?.get(name)?;
    // A number beyond all counting limits nothing.
    let most = milli(hard)?;
    let counted = status.used.as_ref()?.get(name).map_or(Some(0), milli)?;
    if needed <= 0 || counted + promised + needed <= most {
        return None;
    }
    let next = if needed > most {
        "ask for less, or have the quota raised"
    } else {
        "it is placed when other work of the namespace ends, or the quota is raised"
    };
    Some(Verdict {
        reason: reason::QUOTA_EXCEEDED,
        message: format!(
            "quota {} of namespace {namespace} leaves too little {name}: {} of {} used, {} needed; {next}",
            quota.name_any(),
            shown(name, counted + promised),
            hard.0,
            shown(name, needed),
        ),
    })
}

/// Whether a quota counts a pod; `None` when only the API server knows.
fn covers(quota: &ResourceQuota, pod: &PodSpec) -> Option<bool> {
    let spec = quota.spec.as_ref()?;
    let mut scopes: Vec<&str> = spec.scopes.iter().flatten().map(String::as_str).collect();
    let selector = spec.scope_selector.as_ref();
    let expressions = selector.and_then(|selector| selector.match_expressions.as_ref());
    for expression in expressions.into_iter().flatten() {
        if expression.operator != "Exists" {
            return None;
        }
        scopes.push(&expression.scope_name);
    }
    let best_effort = asked(pod).keys().all(|name| {
        let name = name
            .trim_start_matches("requests.")
            .trim_start_matches("limits.");
        !matches!(name, "cpu" | "memory")
    });
    let ends = pod.active_deadline_seconds.is_some();
    let mut all = true;
    for scope in scopes {
        all &= match scope {
            "Terminating" => ends,
            "NotTerminating" => !ends,
            "BestEffort" => best_effort,
            "NotBestEffort" => !best_effort,
            _ => return None,
        };
    }
    Some(all)
}

/// What quotas count of a pod, under every name they may use for it.
fn asked(pod: &PodSpec) -> Amounts {
    let mut all = Amounts::from([("pods".to_owned(), ONE), ("count/pods".to_owned(), ONE)]);
    let Resources {
        cpu_milli,
        memory_bytes,
        extended,
        ..
    } = ledger::request(&ObjectMeta::default(), pod).resources;
    let mut add = |names: [&str; 2], amount: i128| {
        if amount > 0 {
            all.extend(names.map(|name| (name.to_owned(), amount)));
        }
    };
    add(["cpu", "requests.cpu"], i128::from(cpu_milli));
    add(
        ["memory", "requests.memory"],
        i128::from(memory_bytes) * 1000,
    );
    for (name, amount) in extended {
        let requests = format!("requests.{name}");
        let plain = if &*name == "ephemeral-storage" {
            &*name
        } else {
            requests.as_str()
        };
        add([plain, &requests], i128::from(amount) * 1000);
    }
    for (name, amount) in limits(pod) {
        all.insert(format!("limits.{name}"), amount);
    }
    all
}

/// Limits of the containers that run together; those of init containers count where they are larger.
fn limits(pod: &PodSpec) -> Amounts {
    let of = |container: &k8s_openapi::api::core::v1::Container| -> Amounts {
        let limits = container
            .resources
            .as_ref()
            .and_then(|all| all.limits.as_ref());
        let limits = limits.into_iter().flatten();
        limits
            .filter_map(|(name, amount)| Some((name.clone(), milli(amount)?)))
            .collect()
    };
    let mut total = Amounts::new();
    for (name, amount) in pod.containers.iter().flat_map(of) {
        *total.entry(name).or_default() += amount;
    }
    for (name, amount) in pod.init_containers.iter().flatten().flat_map(of) {
        let have = total.entry(name).or_default();
        *have = (*have).max(amount);
    }
    total
}

fn milli(text: &Text) -> Option<i128> {
    let quantity = text.0.parse::<Quantity>().ok()?;
    quantity.milli().ok().map(i128::from)
}

fn shown(name: &str, milli: i128) -> String {
    if name.ends_with("memory") || name.ends_with("ephemeral-storage") {
        return format!("{} MiB", (milli / 1000) >> 20);
    }
    match milli % 1000 {
        0 => (milli / 1000).to_string(),
        _ => format!("{milli}m"),
    }
}
