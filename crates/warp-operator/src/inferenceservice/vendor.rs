//! What a vendor's GPUs need: image, resource, environment, security, and which of the fleet's devices will do.

use warp_api::inferenceservice::EngineKind;
use warp_api::workload::GpuAsk;
use warp_core::gpu::{self, Device, Vendor};
use warp_core::resources::Resources;
use warp_core::size;

use super::observe::NodeGpus;

/// The vLLM this Warp was made for.
pub(super) const VLLM_VERSION: &str = "v0.32.0";

/// The SGLang this Warp was made for.
pub(super) const SGLANG_VERSION: &str = "v0.5.9";

/// SGLang's official image for a vendor; none: its images are made for single models of GPU, or there is none.
pub(super) fn sglang_image(vendor: Option<Vendor>, version: &str) -> Option<String> {
    (vendor == Some(Vendor::Nvidia)).then(|| format!("lmsysorg/sglang:{version}"))
}

/// vLLM's official image for a vendor; none: there is none.
pub(super) fn image(vendor: Option<Vendor>, version: &str) -> Option<String> {
    let name = match vendor {
        Some(Vendor::Nvidia) => "vllm/vllm-openai",
        Some(Vendor::Amd) => "vllm/vllm-openai-rocm",
        Some(Vendor::Intel) => "vllm/vllm-openai-xpu",
        Some(Vendor::Habana) => return None,
        None => "vllm/vllm-openai-cpu",
    };
    Some(format!("{name}:{version}"))
}

/// Environment that vLLM's own recipes set for a vendor. Which device is visible is the device plugin's affair.
pub(super) fn environment(vendor: Option<Vendor>) -> &'static [(&'static str, &'static str)] {
    match vendor {
        Some(Vendor::Amd) => &[
            ("HIP_FORCE_DEV_KERNARG", "1"),
            ("HSA_NO_SCRATCH_RECLAIM", "1"),
            ("SAFETENSORS_FAST_GPU", "1"),
        ],
        _ => &[],
    }
}

/// Whether the vendor's images need system calls the usual filter forbids.
pub(super) fn needs_unconfined(vendor: Option<Vendor>) -> bool {
    vendor == Some(Vendor::Amd)
}

/// Groups that may open the vendor's device files: `video` and `render`.
pub(super) fn groups(vendor: Option<Vendor>) -> &'static [i64] {
    match vendor {
        Some(Vendor::Amd | Vendor::Intel) => &[44, 109],
        _ => &[],
    }
}

/// Why a service cannot have the GPUs it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoGpu {
    /// vLLM runs on none of them, whatever is free.
    Unsupported(String),
    /// No node has such a GPU.
    Absent(String),
}

/// The devices that will do, and what to ask for. Which nodes have them is found out when a copy is placed: labels come and
/// go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Suitable {
    pub(super) resource: String,
    /// Copies that fit on what is free now.
    pub(super) spare: u32,
    /// Nodes with such GPUs, and the most that are free on one.
    pub(super) nodes: u32,
    pub(super) most_free: u64,
    /// Some node has such GPUs, and all nodes together, empty, have no place for a copy.
    pub(super) too_large: bool,
}

impl Suitable {
    /// What is asked for where no node has it.
    pub(super) fn none(ask: &GpuAsk) -> Self {
        Self {
            resource: ask.vendor.resources()[0].to_owned(),
            ..Self::default()
        }
    }
}

/// Finds them in the fleet, for copies that span some nodes and need `each` besides GPUs on every one of them.
pub(super) fn suitable(
    ask: &GpuAsk,
    (spans, each): (u32, &Resources),
    engine: EngineKind,
    nodes: &[NodeGpus],
) -> Result<Suitable, NoGpu> {
    named_support(ask, engine)?;
    let of_vendor: Vec<&NodeGpus> = nodes
        .iter()
        .filter(|node| node.device.vendor == ask.vendor)
        .collect();
    let refusal = |device: &Device| {
        let models = device.models.iter();
        let mut refused = models.filter_map(|model| unsupported(engine, model.name));
        refused.next()
    };
    let (mut fitting, mut refused) = (Vec::new(), None);
    for node in &of_vendor {
        if !ask.met_by(&node.device) {
            continue;
        }
        match refusal(&node.device) {
            Some(why) => refused = Some(why),
            None => fitting.push(*node),
        }
    }
    if fitting.is_empty() {
        if let Some(why) = refused {
            return Err(NoGpu::Unsupported(why));
        }
        if !ask.names.is_empty() || ask.min_memory_mib > 0 {
            return Err(NoGpu::Absent(format!(
                "no node has {}: {} nodes have {} GPUs; correct spec.gpu, or add such a node",
                ask.describe(),
                of_vendor.len(),
                ask.vendor
            )));
        }
    }
    let found = fitting.iter().find(|node| node.open);
    let found = found.or(fitting.first()).or(of_vendor.first());
    let resource = found.map_or_else(
        || ask.vendor.resources()[0].to_owned(),
        |node| node.device.resource.clone(),
    );
    let spans = u64::from(spans.max(1));
    let count = (u64::from(ask.count) / spans).max(1);
    let places = fitting
        .iter()
        .map(|node| (node.device.count / count).min(times(each, &node.offers)));
    let places = places.fold(0, u64::saturating_add);
    let too_large = !fitting.is_empty() && places < spans;
    fitting.retain(|node| node.open && node.device.resource == resource);
    let spare: u64 = fitting.iter().map(|node| node.free / count).sum();
    let spare = spare / spans;
    Ok(Suitable {
        resource,
        spare: u32::try_from(spare).unwrap_or(u32::MAX),
        nodes: u32::try_from(fitting.len()).unwrap_or(u32::MAX),
        most_free: fitting.iter().map(|node| node.free).max().unwrap_or(0),
        too_large,
    })
}

/// How often `each` goes into what an empty node offers. Of CPU and memory a node that says nothing may have enough.
fn times(each: &Resources, offers: &Resources) -> u64 {
    let into = |need: i64, offered: i64| u64::try_from(offered / need.max(1)).unwrap_or(0);
    let usual = [
        (each.cpu_milli, offers.cpu_milli),
        (each.memory_bytes, offers.memory_bytes),
    ];
    let usual = usual.into_iter().filter(|(_, offered)| *offered > 0);
    let others = each.extended.iter();
    let others = others.map(|(name, need)| (*need, offers.extended(name)));
    let all = usual.chain(others).filter(|(need, _)| *need > 0);
    all.map(|(need, offered)| into(need, offered))
        .min()
        .unwrap_or(u64::MAX)
}

/// A spec that names only GPUs the engine does not run on is refused before anything is looked at.
fn named_support(ask: &GpuAsk, engine: EngineKind) -> Result<(), NoGpu> {
    let models: Vec<&str> = ask
        .names
        .iter()
        .flat_map(|name| name.models.iter().map(|model| model.name))
        .collect();
    let refused: Vec<String> = models
        .iter()
        .filter_map(|model| unsupported(engine, model))
        .collect();
    match refused.first() {
        Some(why) if refused.len() == models.len() => Err(NoGpu::Unsupported(why.clone())),
        _ => Ok(()),
    }
}

/// The models of a vendor that an engine does not run on.
pub(super) fn unsupported_models(engine: EngineKind, vendor: Vendor) -> Vec<&'static str> {
    let models = gpu::MODELS.iter().filter(|model| model.vendor == vendor);
    models
        .filter(|model| unsupported(engine, model.name).is_some())
        .map(|model| model.name)
        .collect()
}

/// Why vLLM does not run on a model of GPU, if so.
fn unsupported(engine: EngineKind, model: &str) -> Option<String> {
    if engine != EngineKind::Vllm {
        return None;
    }
    let device = size::Device::known(model, 0);
    let refused = device.supports(None).err()?;
    Some(format!(
        "{refused}; name other GPUs in spec.gpu.models, or use a custom engine that supports them"
    ))
}
