//! What a node's labels and allocatable counts say about its devices.
//!
//! The readers follow what each vendor's labeller really writes, not what its documentation says:
//! see the cases in the tests.

use std::collections::BTreeMap;

use super::sharing::{Facts, Offer, Sharing};
use super::{Catalogue, Model, Vendor};

/// Price of one GPU for one hour, decimal, no currency.
pub const PRICE_LABEL: &str = "gpu.warp.dev/gpu-hour-price";
/// The first design's way of saying "cheap"; honoured where no price is given.
const CHEAP_LABEL: &str = "gpu-orchestrator/cheap-node";
const AMD_PREFIXES: [&str; 2] = ["amd.com/gpu.", "beta.amd.com/gpu."];

type Labels = BTreeMap<String, String>;

/// The devices a node offers under one resource name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub vendor: Vendor,
    pub resource: String,
    /// Allocatable units.
    pub count: u64,
    /// Every model the units may be. More than one only on mixed nodes, where the device plugin,
    /// not the pod, chooses: a request is met only when all of them meet it. Empty = unknown.
    pub models: Vec<&'static Model>,
    /// The product as the node's label names it, without what it says about sharing. None where no
    /// label says it, or several products share the resource.
    pub product: Option<String>,
    /// Memory of the smallest unit in MiB, where labels or the catalogue tell. Of a device whose parts are asked for by
    /// amount, the memory of the device.
    pub memory_mib: Option<u64>,
    pub sharing: Sharing,
    /// Thousandths of a device that one unit counts as.
    pub milli: u32,
    /// Another resource of which one goes with each request.
    pub beside: Option<String>,
    /// The label that told the model, for pinning a pod to what was seen.
    pub evidence: Option<(String, String)>,
}

/// What `read` found on one node, ordered by resource name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeGpus {
    pub devices: Vec<Device>,
}

impl NodeGpus {
    /// The vendor's devices a pod may hold alone.
    pub fn exclusive(&self, vendor: Vendor) -> Option<&Device> {
        self.devices.iter().find(|device| {
            device.vendor == vendor && device.count > 0 && device.sharing == Sharing::Exclusive
        })
    }
}

/// Reads a node's labels and its allocatable counts by resource name.
pub fn read(labels: &Labels, allocatable: &BTreeMap<String, u64>) -> NodeGpus {
    read_by(&Catalogue::default(), labels, allocatable)
}

pub(super) fn read_by(
    known: &Catalogue,
    labels: &Labels,
    allocatable: &BTreeMap<String, u64>,
) -> NodeGpus {
    let devices = allocatable
        .iter()
        .filter_map(|(resource, &count)| {
            let offer = Offer::of(resource)?;
            let told = match offer.vendor {
                Vendor::Nvidia => nvidia(known, labels),
                Vendor::Amd => amd(known, labels),
                Vendor::Intel => intel(known, labels),
                Vendor::Habana => habana(known, labels),
            };
            Some(told.device(offer, resource, count, labels, allocatable))
        })
        .collect();
    NodeGpus { devices }
}

/// The node's price per GPU and hour in millionths of the currency unit.
pub fn hourly_price(labels: &Labels) -> Option<u64> {
    decimal_micros(labels.get(PRICE_LABEL)?)
}

/// Whether the node is marked cheap the way the first design did it.
pub fn cheap(labels: &Labels) -> bool {
    labels.get(CHEAP_LABEL).is_some_and(|value| value == "true")
}

/// What one vendor's labels say, before counts are known.
#[derive(Default)]
struct Told {
    models: Vec<&'static Model>,
    product: Option<String>,
    memory_mib: Option<u64>,
    /// The part that one unit of the usual resource is.
    profile: Option<String>,
    /// Units of the usual resource are shared.
    shared: bool,
    evidence: Option<(String, String)>,
}

impl Told {
    fn device(
        mut self,
        offer: Offer,
        resource: &str,
        count: u64,
        labels: &Labels,
        allocatable: &BTreeMap<String, u64>,
    ) -> Device {
        let vendor = offer.vendor;
        self.models.retain(|model| model.vendor == vendor);
        // A label that leaves the size open ("A100") is settled by the memory the node reports, unless that is a part's.
        if self.models.len() > 1
            && let Some(memory) = self.memory_mib
            && self.profile.is_none()
            && same_family(&self.models)
        {
            let nearest = self
                .models
                .iter()
                .copied()
                .min_by_key(|model| (u64::from(model.memory_gib) * 1024).abs_diff(memory));
            self.models = nearest.into_iter().collect();
        }
        let from_table = || {
            let smallest = self.models.iter().map(|model| model.memory_gib).min()?;
            Some(u64::from(smallest) * 1024)
        };
        // What a label says of the usual resource is not said of parts that have a resource of their own.
        let usual = offer.profile.is_none();
        let facts = Facts {
            resource,
            count,
            labels,
            allocatable,
            model: self.models.first().copied(),
            labelled: self.profile.as_deref().filter(|_| usual),
            shared: self.shared && usual,
            memory_mib: self.memory_mib.or_else(from_table),
            offer,
        };
        let units = facts.units();
        Device {
            vendor,
            resource: resource.to_owned(),
            count,
            memory_mib: units.memory_mib,
            models: self.models,
            product: self.product,
            sharing: units.sharing,
            milli: units.milli,
            beside: units.beside,
            evidence: self.evidence,
        }
    }
}

/// Sizes of one family share the words before the size (`A100-40GB`, `A100-80GB`).
fn same_family(models: &[&'static Model]) -> bool {
    let family = |model: &Model| model.name.split('-').next().map(str::to_owned);
    models
        .windows(2)
        .all(|pair| family(pair[0]) == family(pair[1]))
}

/// GPU feature discovery: product with suffixes `-SHARED` and `-MIG-<profile>`, memory in MiB (of
/// the slice, on MIG nodes). Clouds that label before it runs are the fallback.
fn nvidia(known: &Catalogue, labels: &Labels) -> Told {
    const PRODUCT: &str = "nvidia.com/gpu.product";
    const FALLBACKS: [&str; 2] = ["cloud.google.com/gke-accelerator", "accelerator"];
    let product = labels
        .get(PRODUCT)
        .map(|value| (PRODUCT, value))
        .or_else(|| {
            FALLBACKS
                .iter()
                .find_map(|key| labels.get(*key).map(|value| (*key, value)))
        });
    let Some((key, product)) = product else {
        return Told::default();
    };
    let (rest, shared) = match product.strip_suffix("-SHARED") {
        Some(rest) => (rest, true),
        None => (product.as_str(), false),
    };
    let (plain, profile) = match rest.split_once("-MIG-") {
        Some((plain, profile)) => (plain, Some(profile.to_owned())),
        None => (rest, None),
    };
    Told {
        models: known.named(plain),
        product: Some(plain.to_owned()),
        memory_mib: labels
            .get("nvidia.com/gpu.memory")
            .and_then(|text| text.parse().ok()),
        profile,
        shared,
        evidence: Some((key.to_owned(), product.clone())),
    }
}

/// AMD's labeller writes `X=VALUE` only where all devices agree, `X.VALUE=COUNT` on mixed nodes,
/// and the `beta.` form always. Memory is rounded GiB with a G; `family` is "AI" for every
/// Instinct and says nothing.
fn amd(known: &Catalogue, labels: &Labels) -> Told {
    let (products, evidence) = amd_values(labels, "product-name");
    let (ids, id_evidence) = amd_values(labels, "device-id");
    let mut models: Vec<&'static Model> =
        products.iter().flat_map(|text| known.named(text)).collect();
    let mut evidence = evidence;
    if models.is_empty() {
        models = ids.iter().filter_map(|id| amd_device(known, id)).collect();
        evidence = id_evidence;
    }
    models.dedup_by_key(|model| model.name);
    let (sizes, _) = amd_values(labels, "vram");
    Told {
        models,
        product: match products.as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        },
        memory_mib: sizes
            .iter()
            .filter_map(|text| gibibytes(text))
            .min()
            .map(|gib| gib * 1024),
        profile: labels.get("amd.com/gpu.compute-memory-partition").cloned(),
        shared: false,
        evidence,
    }
}

/// All values of one AMD property with the label that pins it (only where the node is uniform).
fn amd_values(labels: &Labels, property: &str) -> (Vec<String>, Option<(String, String)>) {
    let uniform = format!("{}{property}", AMD_PREFIXES[0]);
    if let Some(value) = labels.get(&uniform) {
        return (vec![value.clone()], Some((uniform, value.clone())));
    }
    let values = AMD_PREFIXES
        .iter()
        .map(|prefix| format!("{prefix}{property}."))
        .map(|prefix| {
            let found = labels.keys().filter_map(|key| key.strip_prefix(&prefix));
            found.map(str::to_owned).collect::<Vec<_>>()
        })
        .find(|found| !found.is_empty());
    (values.unwrap_or_default(), None)
}

/// PCI device ids of the Instinct line, virtual functions included.
fn amd_device(known: &Catalogue, id: &str) -> Option<&'static Model> {
    let name = match id.to_ascii_lowercase().trim_start_matches("0x") {
        "738c" => "MI100",
        "7408" | "740c" => "MI250X",
        "74a0" | "74b4" => "MI300A",
        "740f" => "MI210",
        "74a1" | "74b5" | "74a9" | "74bd" => "MI300X",
        "74a2" | "74a8" | "74b6" => "MI308X",
        "74a5" | "74b9" => "MI325X",
        "75a0" | "75b0" => "MI350X",
        "75a3" | "75b3" => "MI355X",
        _ => return None,
    };
    known.models().find(|model| model.name == name)
}

/// Intel's labels carry a product name and no memory.
fn intel(known: &Catalogue, labels: &Labels) -> Told {
    const PRODUCT: &str = "gpu.intel.com/product";
    let Some(product) = labels.get(PRODUCT) else {
        return Told::default();
    };
    Told {
        models: known.named(product),
        product: Some(product.clone()),
        evidence: Some((PRODUCT.to_owned(), product.clone())),
        ..Told::default()
    }
}

fn habana(known: &Catalogue, labels: &Labels) -> Told {
    const PRODUCT: &str = "habana.ai/gaudi.product";
    let Some(product) = labels.get(PRODUCT) else {
        return Told::default();
    };
    Told {
        models: known.named(product),
        product: Some(product.clone()),
        evidence: Some((PRODUCT.to_owned(), product.clone())),
        ..Told::default()
    }
}

/// `192G` → 192.
fn gibibytes(text: &str) -> Option<u64> {
    text.trim_end_matches(['B', 'b'])
        .trim_end_matches('i')
        .trim_end_matches(['G', 'g'])
        .parse()
        .ok()
}

/// `2.49` → 2_490_000. More than six decimals, signs and exponents are no price.
fn decimal_micros(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > 6 {
        return None;
    }
    let part: u64 = format!("{part:0<6}").parse().ok()?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000_000)?
        .checked_add(part)
}
