//! A node as the fleet sees it.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use warp_api::workload::TopologyLevels;
use warp_api::{label, pod};
use warp_core::fleet::{self, Cards, DEFAULT_PODS, GpuPool, Topology, Unit};
use warp_core::gpu::{self, Catalogue, Device, NodeGpus, SharedBy, Sharing};
use warp_core::resources::Resources;

pub(super) fn translate(
    node: &Node,
    known: &Catalogue,
    levels: &TopologyLevels,
) -> (fleet::Node, NodeGpus) {
    let spec = node.spec.as_ref();
    let allocatable = allocatable(node);
    let gpus = known.read(node.labels(), &counts(&allocatable));
    let mut labels = pod::labels(node.metadata.labels.as_ref());
    // A node that names no provider has one all the same; requests restrict it by this label.
    labels
        .entry(Arc::from(label::PROVIDER))
        .or_insert_with(|| Arc::from(label::PROVIDER_DEFAULT));
    let taints = spec
        .and_then(|spec| spec.taints.as_ref())
        .into_iter()
        .flatten()
        .filter_map(pod::taint);
    let pools = gpus.devices.iter().filter_map(pool);
    let of_level = |name: &str| labels.get(levels.label(name)?).cloned();
    let topology = Topology {
        block: of_level("block").or_else(|| of_level("zone")),
        rack: of_level("rack"),
    };
    let own = node.labels();
    let domains = levels.domains(|key| own.get(key).map(String::as_str));
    labels.extend(domains.map(|(level, domain)| (Arc::from(level), Arc::from(domain))));
    let described = fleet::Node {
        name: Arc::from(node.name_any()),
        taints: taints.collect(),
        unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
        ready: is_ready(node),
        pods: allocatable
            .extended
            .get("pods")
            .copied()
            .unwrap_or(DEFAULT_PODS),
        gpus: pools.collect(),
        price_per_gpu_hour_micros: gpu::hourly_price(node.labels()),
        cheap: gpu::cheap(node.labels()),
        labels,
        allocatable,
        topology,
    };
    (described, gpus)
}

/// The GPUs of a node.
pub(crate) fn devices(node: &Node, known: &Catalogue) -> Vec<Device> {
    known
        .read(node.labels(), &counts(&allocatable(node)))
        .devices
}

/// The provider of a node.
pub(crate) fn provider_of(node: &fleet::Node) -> &str {
    node.labels
        .get(label::PROVIDER)
        .map_or(label::PROVIDER_DEFAULT, |provider| provider)
}

/// The name a group of devices has in the fleet: the catalogue's, else the node's own. A mixed group is
/// a kind of its own: its device plugin, not the pod, picks the model.
pub(crate) fn model_name(device: &Device) -> String {
    if device.models.is_empty() {
        return device.product.clone().unwrap_or_default();
    }
    let names: Vec<&str> = device.models.iter().map(|model| model.name).collect();
    names.join("+")
}

/// None for parts that nobody can name.
fn pool(device: &Device) -> Option<GpuPool> {
    // Cards whose parts are asked for by amount are known one by one: what is left of each decides.
    let cards = match &device.sharing {
        Sharing::Shared(seats) => match &seats.by {
            SharedBy::Limits(limits) => Cards::each(limits.devices as usize),
            _ => Cards::Counted,
        },
        _ => Cards::Counted,
    };
    Some(GpuPool {
        resource: Arc::from(device.resource.as_str()),
        vendor: Arc::from(device.vendor.as_str()),
        model: Arc::from(model_name(device)),
        memory_bytes: device.memory_mib.unwrap_or(0) << 20,
        unit: Unit::of(device)?,
        cards,
    })
}

/// Whether a node says that it is ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|found| found.type_ == "Ready" && found.status == "True")
}

/// Whether pods are put on a node: it is ready and open.
pub(crate) fn takes_pods(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    let cordoned = spec.is_some_and(|spec| spec.unschedulable == Some(true));
    is_ready(node) && !cordoned
}

/// Reads what can be read: one odd quantity must not hide a node's GPUs.
pub(crate) fn allocatable(node: &Node) -> Resources {
    let mut all = Resources::default();
    let offered = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    for (name, amount) in offered.into_iter().flatten() {
        if let Err(error) = all.set(name, &amount.0) {
            tracing::warn!(node = node.name_any(), resource = name, error = %error, "ignored");
        }
    }
    all
}

fn counts(allocatable: &Resources) -> BTreeMap<String, u64> {
    let counts = allocatable.extended.iter();
    counts
        .map(|(name, count)| (name.to_string(), u64::try_from(*count).unwrap_or(0)))
        .collect()
}
