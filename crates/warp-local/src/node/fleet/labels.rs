//! The labels real nodes carry for their devices, written the way each vendor's labeller writes them.

use std::collections::BTreeMap;

use warp_core::gpu::{Model, Vendor};

/// Product names whose spelling cannot be told from the model's name.
const PRODUCTS: [(&str, &str); 14] = [
    ("V100-16GB", "Tesla-V100-SXM2-16GB"),
    ("V100-32GB", "Tesla-V100-SXM2-32GB"),
    ("T4", "Tesla-T4"),
    ("A100-40GB", "NVIDIA-A100-SXM4-40GB"),
    ("A100-80GB", "NVIDIA-A100-SXM4-80GB"),
    ("H100-80GB", "NVIDIA-H100-80GB-HBM3"),
    ("H100-94GB", "NVIDIA-H100-NVL"),
    ("RTX-3090", "NVIDIA-GeForce-RTX-3090"),
    ("RTX-4090", "NVIDIA-GeForce-RTX-4090"),
    ("RTX-5090", "NVIDIA-GeForce-RTX-5090"),
    ("A6000", "NVIDIA-RTX-A6000"),
    ("Max-1550", "Max_1550"),
    ("Max-1100", "Max_1100"),
    ("Flex-170", "Flex_170"),
];

/// The product name as the vendor's label spells it.
pub fn product(model: &Model) -> String {
    if let Some((_, product)) = PRODUCTS.iter().find(|(name, _)| *name == model.name) {
        return (*product).to_owned();
    }
    match model.vendor {
        Vendor::Nvidia => format!("NVIDIA-{}", model.name),
        Vendor::Amd => format!("AMD_Instinct_{}_OAM", model.name),
        Vendor::Intel => model.name.replace('-', "_"),
        Vendor::Habana => model.name.to_owned(),
    }
}

/// The labels of a node with `count` devices of `model`.
pub fn of(model: &Model, count: u32) -> BTreeMap<String, String> {
    let gib = model.memory_gib;
    let pairs: Vec<(&str, String)> = match model.vendor {
        Vendor::Nvidia => vec![
            ("nvidia.com/gpu.present", "true".to_owned()),
            ("nvidia.com/gpu.product", product(model)),
            ("nvidia.com/gpu.count", count.to_string()),
            ("nvidia.com/gpu.replicas", "1".to_owned()),
            ("nvidia.com/gpu.memory", (u64::from(gib) * 1024).to_string()),
            ("nvidia.com/gpu.sharing-strategy", "none".to_owned()),
        ],
        Vendor::Amd => vec![
            ("feature.node.kubernetes.io/amd-gpu", "true".to_owned()),
            ("amd.com/gpu.product-name", product(model)),
            ("amd.com/gpu.vram", format!("{gib}G")),
            ("amd.com/gpu.family", "AI".to_owned()),
        ],
        Vendor::Intel => vec![
            ("intel.feature.node.kubernetes.io/gpu", "true".to_owned()),
            ("gpu.intel.com/product", product(model)),
            ("gpu.intel.com/device.count", count.to_string()),
        ],
        Vendor::Habana => vec![("habana.ai/gaudi.product", product(model))],
    };
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}
