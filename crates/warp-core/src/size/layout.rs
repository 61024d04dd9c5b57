//! Ways to split a model over devices: which fit, why the others do not, and what would make them fit.

use serde::Serialize;

use super::architecture::Architecture;
use super::cache::CacheType;
use super::device::{Device, Link};

const GIB: u64 = 1 << 30;

/// A model to be served.
#[derive(Clone, Debug)]
pub struct Model {
    pub architecture: Architecture,
    /// Bytes of all weights as they lie in their files.
    pub weights_bytes: u64,
}

/// What it must be able to hold at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Tokens of one sequence: prompt and answer.
    pub context: u64,
    /// Sequences under way at once.
    pub sequences: u64,
    pub cache: CacheType,
    /// Thousandths of a device's memory the engine may take.
    pub utilization_permille: u32,
}

impl Load {
    /// The share of memory vLLM takes unless told otherwise.
    pub const UTILIZATION_PERMILLE: u32 = 920;
}

/// Bytes on the fullest device of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    pub weights_bytes: u64,
    pub cache_bytes: u64,
    /// What the runtime takes besides: context, activations, communication, graphs.
    pub runtime_bytes: u64,
    pub usable_bytes: u64,
}

impl Memory {
    pub fn needed_bytes(&self) -> u64 {
        self.weights_bytes
            .saturating_add(self.cache_bytes)
            .saturating_add(self.runtime_bytes)
    }

    pub fn fits(&self) -> bool {
        self.needed_bytes() <= self.usable_bytes
    }
}

/// One way to serve a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Layout {
    pub gpu: String,
    /// Devices it takes.
    pub count: u32,
    pub tensor_parallel: u32,
    pub pipeline_parallel: u32,
    /// Machines it takes.
    pub nodes: u32,
    pub fits: bool,
    /// One sentence with the numbers.
    pub reason: String,
    /// What would make it fit, where anything would.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    pub memory: Memory,
    /// Sequences of the asked context that its cache holds.
    pub sequences: u64,
}

/// The layouts of `model` on `device` in machines of `per_node` devices, at most `nodes` of them: smallest first, and
/// among equals the one that suits how the devices are connected.
pub fn layouts(
    model: &Model,
    load: Load,
    device: &Device,
    per_node: u32,
    nodes: u32,
) -> Vec<Layout> {
    let mut found: Vec<Layout> = splits(device.link, per_node.max(1), nodes.max(1))
        .into_iter()
        .map(|split| judge(model, load, device, split))
        .collect();
    found.sort_by_key(|layout| {
        let suits = match device.link {
            Link::Fast => layout.pipeline_parallel,
            Link::Pcie => layout.tensor_parallel,
        };
        (layout.count, suits)
    });
    found
}

/// The smallest power of two of devices over which every layer can be split so that it fits.
pub fn smallest_tensor_parallel(
    model: &Model,
    load: Load,
    device: &Device,
    limit: u32,
) -> Option<u32> {
    let mut width = 1;
    while width <= limit {
        let split = Split {
            tensor: width,
            pipeline: 1,
            nodes: 1,
        };
        if judge(model, load, device, split).fits {
            return Some(width);
        }
        width *= 2;
    }
    None
}

#[derive(Clone, Copy, Debug)]
struct Split {
    tensor: u32,
    pipeline: u32,
    nodes: u32,
}

/// Layers are split inside a machine, chains of layers go over machines; on PCIe a chain inside a machine as well.
fn splits(link: Link, per_node: u32, nodes: u32) -> Vec<Split> {
    let widths = || {
        std::iter::successors(Some(1_u32), |width| Some(width * 2))
            .take_while(|width| *width <= per_node)
    };
    let mut found = Vec::new();
    for tensor in widths() {
        let chains = match link {
            Link::Fast => 1,
            Link::Pcie => per_node / tensor,
        };
        for pipeline in 1..=chains.min(8) {
            found.push(Split {
                tensor,
                pipeline,
                nodes: 1,
            });
        }
    }
    let widest = widths().last().unwrap_or(1);
    found.extend((2..=nodes).map(|nodes| Split {
        tensor: widest,
        pipeline: nodes,
        nodes,
    }));
    found
}

fn judge(model: &Model, load: Load, device: &Device, split: Split) -> Layout {
    let memory = memory(model, load, device, split);
    let obstacle = obstacle(model, device, split);
    let sequences = match obstacle {
        None => most(load.sequences.max(1).saturating_mul(64), |sequences| {
            self::memory(model, Load { sequences, ..load }, device, split).fits()
        }),
        Some(_) => 0,
    };
    let fits = obstacle.is_none() && memory.fits();
    let advice = (obstacle.is_none() && !fits)
        .then(|| advice(model, load, device, split, sequences))
        .flatten();
    let (needed, usable) = (gib(memory.needed_bytes()), gib(memory.usable_bytes));
    let parts = format!(
        "weights {}, cache {}, runtime {}",
        gib(memory.weights_bytes),
        gib(memory.cache_bytes),
        gib(memory.runtime_bytes)
    );
    let reason = match &obstacle {
        Some(obstacle) => obstacle.clone(),
        None if fits => format!("each GPU needs {needed} of {usable} GiB ({parts})"),
        None => format!("each GPU would need {needed} GiB ({parts}), {usable} are usable"),
    };
    Layout {
        gpu: device.name.clone(),
        count: split.tensor * split.pipeline,
        tensor_parallel: split.tensor,
        pipeline_parallel: split.pipeline,
        nodes: split.nodes,
        fits,
        reason,
        advice,
        memory,
        sequences,
    }
}

/// What no amount of memory helps against.
fn obstacle(model: &Model, device: &Device, split: Split) -> Option<String> {
    let architecture = &model.architecture;
    if let Err(unsupported) = device.supports(architecture.quantization.as_deref()) {
        return Some(unsupported.to_string());
    }
    let heads = architecture.attention_heads;
    if !heads.is_multiple_of(split.tensor) {
        return Some(format!(
            "its {heads} attention heads cannot be split over {} GPUs",
            split.tensor
        ));
    }
    let layers = architecture.layer_count();
    (layers < split.pipeline as usize).then(|| {
        format!(
            "its {layers} layers cannot make a chain of {} GPUs",
            split.pipeline
        )
    })
}

/// Files are a little smaller than what they become in memory (2 %). The runtime's share is a constant and a part that
/// grows with the weights of a device.
fn memory(model: &Model, load: Load, device: &Device, split: Split) -> Memory {
    let share = model
        .weights_bytes
        .div_ceil(u64::from(split.tensor * split.pipeline));
    Memory {
        weights_bytes: permille(share, 1020),
        cache_bytes: model.architecture.cache_bytes(
            load.cache,
            load.context,
            load.sequences,
            split.tensor,
            split.pipeline,
        ),
        runtime_bytes: GIB * 23 / 10 + permille(share, 50),
        usable_bytes: permille(device.memory_bytes, load.utilization_permille),
    }
}

/// The least that would have to change: fewer sequences, a shorter context, a smaller cache.
fn advice(
    model: &Model,
    load: Load,
    device: &Device,
    split: Split,
    sequences: u64,
) -> Option<String> {
    let fits = |load: Load| memory(model, load, device, split).fits();
    if sequences > 0 {
        return Some(format!(
            "fits with --concurrency {sequences} at this context"
        ));
    }
    let context = most(load.context, |context| {
        fits(Load {
            context,
            sequences: 1,
            ..load
        })
    });
    if context >= 1024 {
        let context = context / 1024;
        return Some(format!("fits with --concurrency 1 --context {context}k"));
    }
    let small = Load {
        cache: CacheType::Fp8,
        sequences: 1,
        ..load
    };
    (load.cache != CacheType::Fp8 && fits(small))
        .then(|| "fits with --concurrency 1 --kv-cache-dtype fp8".to_owned())
}

/// The largest value up to `limit` that holds; 0 when none does. What holds for a value holds for all below it.
fn most(limit: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, limit);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

fn permille(amount: u64, permille: u32) -> u64 {
    let exact = u128::from(amount) * u128::from(permille) / 1000;
    u64::try_from(exact).unwrap_or(u64::MAX)
}

/// GiB with one decimal.
fn gib(bytes: u64) -> String {
    let tenths = u128::from(bytes) * 10 / u128::from(GIB);
    format!("{}.{}", tenths / 10, tenths % 10)
}
