//! Everything a tenant's plan needs, read from the caches. No decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use warp_api::workload::GpuAsk;
use warp_api::{GPUWorkload, Tenant, label};
use warp_core::fleet::{Part, Unit};
use warp_core::gpu::{Catalogue, Device, Profile, Vendor};
use warp_core::tenancy::GPU;
use warp_runtime::cache::{Cache, Key};

use super::Tenants;
use crate::budget::Purse;
use crate::context::Context;
use crate::ledger::{self, finished, node_of};
use crate::queuedjob;

/// What is known about all tenants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) tenants: Vec<Arc<Tenant>>,
    /// The GPU models that are known, an administrator's too, and those that nodes show.
    pub(crate) gpus: Arc<Catalogue>,
    pub(crate) models: BTreeSet<String>,
    pub(crate) namespaces: Vec<Arc<Namespace>>,
    pub(crate) usage: Arc<BTreeMap<String, Usage>>,
    /// What was made for tenants in their namespaces; none where this operator may not make it.
    pub(crate) walls: Option<Walls>,
    /// The money of tenants; nobody's where none of them has a budget.
    pub(crate) purse: Purse,
}

/// What shuts namespaces off.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walls {
    pub(crate) bindings: Vec<Arc<RoleBinding>>,
    pub(crate) policies: Vec<Arc<NetworkPolicy>>,
}

/// Thousandths of GPUs of one namespace by model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) in_use: BTreeMap<String, i64>,
    pub(crate) waiting: BTreeMap<String, i64>,
}

pub(super) fn see(kind: &Tenants) -> Seen {
    let tenants = kind.all.all();
    let limited = tenants.iter().any(|tenant| tenant.spec.budget.is_some());
    let purse = if limited {
        let requests = kind.cx.requests.get();
        let requests = requests.map(Cache::all).unwrap_or_default();
        Purse::read(&kind.cx, &requests, kind.cx.clock.now())
    } else {
        Purse::Nobodys
    };
    let gpus = kind.cx.gpus.catalogue();
    Seen {
        purse,
        models: models(&kind.cx, &tenants, &gpus),
        gpus,
        tenants,
        namespaces: kind.cx.namespaces.all(),
        walls: kind.walls.as_ref().map(|walls| Walls {
            bindings: walls.bindings.all(),
            policies: walls.policies.all(),
        }),
        usage: kind.usage.get(&kind.cx),
    }
}

/// The models that nodes show, where a tenant names one the catalogue does not know.
fn models(cx: &Context, tenants: &[Arc<Tenant>], known: &Catalogue) -> BTreeSet<String> {
    let strange = |name: &String| known.named(name).is_empty();
    let mut named = tenants.iter().flat_map(|tenant| {
        let lines = tenant.spec.quota.iter().map(|line| &line.gpu);
        lines.chain(&tenant.spec.allowed_models)
    });
    if !named.any(strange) {
        return BTreeSet::new();
    }
    let nodes = cx.nodes.all();
    let shown = nodes.iter().flat_map(|node| devices(node, known));
    shown
        .map(|device| ledger::model_name(&device).clone())
        .collect()
}

/// What every namespace uses, counted once after each change however many tenants there are.
#[derive(Debug, Default)]
pub(crate) struct UsageByNamespace {
    changes: AtomicU64,
    counted: Mutex<Option<Counted>>,
}

/// A count, the number of the last change in it, and the GPU models known then.
type Counted = (u64, Arc<Catalogue>, Arc<Counts>);
/// What is used, by namespace.
type Counts = BTreeMap<String, Usage>;

impl UsageByNamespace {
    pub(super) fn outdated(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    fn get(&self, cx: &Context) -> Arc<BTreeMap<String, Usage>> {
        let mut counted = self.counted.lock();
        // Read before the caches are: a change in between is counted by the next pass.
        let changes = self.changes.load(Ordering::SeqCst);
        let gpus = cx.gpus.catalogue();
        if let Some((at, known, usage)) = &*counted
            && *at == changes
            && *known == gpus
        {
            return Arc::clone(usage);
        }
        let node = |name: &str| cx.nodes.get(&Key::new("", name));
        let mut usage = count(&cx.pods.all(), &cx.workloads.all(), node, &gpus);
        for job in cx.queued.all() {
            wait_for_job(&mut usage, &job);
        }
        let usage = Arc::new(usage);
        *counted = Some((changes, gpus, Arc::clone(&usage)));
        usage
    }
}

/// GPUs that are counted of one pod at most: a quantity may be any number, and the sums of many must stay one.
const MOST: i64 = 1_000_000_000;

/// Counts what bound pods hold, and what open workloads and unbound pods ask for.
pub(super) fn count(
    pods: &[Arc<Pod>],
    workloads: &[Arc<GPUWorkload>],
    node: impl Fn(&str) -> Option<Arc<Node>>,
    gpus: &Catalogue,
) -> BTreeMap<String, Usage> {
    let mut all: BTreeMap<String, Usage> = BTreeMap::new();
    let mut placed = BTreeSet::new();
    // A label is anybody's to write: it counts for a workload of the pod's own namespace only.
    let place = |workload: &Arc<GPUWorkload>| (workload.namespace(), workload.uid());
    let known: BTreeSet<_> = workloads.iter().map(place).collect();
    for pod in pods {
        let uid = pod.labels().get(label::WORKLOAD_UID).cloned();
        let owner = Some((pod.namespace(), uid)).filter(|owner| known.contains(owner));
        let Some(spec) = pod.spec.as_ref().filter(|_| !finished(pod)) else {
            continue;
        };
        let usage = all.entry(pod.namespace().unwrap_or_default()).or_default();
        let request = ledger::request(&pod.metadata, spec);
        let asked = request.resources.extended.iter();
        let asked = asked.filter_map(|(resource, count)| {
            let vendor = Vendor::of_units(resource)?;
            Some((vendor, resource, (*count).min(MOST)))
        });
        match node_of(pod) {
            Some(name) => {
                placed.extend(owner);
                let node = node(name);
                let devices = node.as_deref().map(|node| devices(node, gpus));
                let devices = devices.unwrap_or_default();
                for (vendor, resource, count) in asked {
                    let Some((model, unit)) = described(&devices, resource) else {
                        *usage.in_use.entry(vendor.as_str().to_owned()).or_default() += count * GPU;
                        continue;
                    };
                    // A card that goes with a part is counted by the part.
                    if devices.iter().any(|other| {
                        other.beside.as_deref() == Some(resource)
                            && request.resources.extended(&other.resource) > 0
                    }) {
                        continue;
                    }
                    let model = model.unwrap_or_else(|| vendor.as_str().to_owned());
                    let each = unit.map_or(GPU, |unit| i64::from(unit.share_of(&request)));
                    *usage.in_use.entry(model).or_default() += count * each;
                }
            }
            // A workload's own pods are counted with the workload.
            None if owner.is_some() => {}
            None => {
                for (vendor, _, count) in asked {
                    let model = vendor.as_str().to_owned();
                    *usage.waiting.entry(model).or_default() += count * GPU;
                }
            }
        }
    }
    for workload in workloads {
        let phase = workload.status.as_ref().and_then(|status| status.phase);
        let over = phase.is_some_and(warp_api::Phase::is_final);
        let going = workload.meta().deletion_timestamp.is_some();
        if over || going || workload.spec.suspend || placed.contains(&place(workload)) {
            continue;
        }
        let usage = all
            .entry(workload.namespace().unwrap_or_default())
            .or_default();
        let count = i64::from(workload.spec.total_gpus()) * asked_milli(workload);
        *usage.waiting.entry(asked_model(workload)).or_default() += count;
    }
    all
}

/// Adds what a queued Job asks for that has no place.
fn wait_for_job(all: &mut Counts, job: &queuedjob::Queued) {
    let waits = queuedjob::waits(job);
    if let Some(ask) = waits.then(|| queuedjob::ask(job).ok()).flatten() {
        let usage = all.entry(job.namespace().unwrap_or_default()).or_default();
        let model = ask.vendor.as_str().to_owned();
        let count = i64::try_from(ask.total_gpus()).map_or(MOST, |count| count.min(MOST));
        *usage.waiting.entry(model).or_default() += count * GPU;
    }
}

/// Thousandths of a GPU that each of those a waiting workload asks for counts as: its fraction, and of a part of a GPU what
/// its profile says. How large a seat is its node will tell: until then it counts whole.
fn asked_milli(workload: &GPUWorkload) -> i64 {
    let Ok(ask) = GpuAsk::of(&workload.spec) else {
        return GPU;
    };
    let named = match &ask.part {
        Part::Partition { name, .. } => Profile::read(name),
        _ => None,
    };
    let model = ask.names.iter().flat_map(|name| &name.models).next();
    let part = named.map(|profile| profile.milli(model.copied(), 1));
    i64::from(part.unwrap_or(ask.milli))
}

/// What a waiting workload asks for: its models, else its vendor.
fn asked_model(workload: &GPUWorkload) -> String {
    let gpu = workload.spec.gpu.as_ref();
    match gpu {
        Some(gpu) if !gpu.models.is_empty() => gpu.models.join("+"),
        _ => {
            let vendor = gpu.and_then(|gpu| gpu.vendor);
            let text = vendor.and_then(|vendor| serde_json::to_value(vendor).ok());
            let text = text.as_ref().and_then(serde_json::Value::as_str);
            text.unwrap_or(Vendor::Nvidia.as_str()).to_owned()
        }
    }
}

/// The devices of a node.
fn devices(node: &Node, known: &Catalogue) -> Vec<Device> {
    let allocatable = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    let counts = allocatable
        .into_iter()
        .flatten()
        .filter_map(|(name, amount)| Some((name.clone(), amount.0.parse().ok()?)));
    known.read(node.labels(), &counts.collect()).devices
}

/// The model of the devices under one resource name, and what one of its units is.
fn described(devices: &[Device], resource: &str) -> Option<(Option<String>, Option<Unit>)> {
    let device = devices.iter().find(|device| device.resource == resource)?;
    let model = Some(ledger::model_name(device)).filter(|name| !name.is_empty());
    Some((model, Unit::of(device)))
}
