use std::collections::BTreeMap;

use super::*;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn allocatable(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), *value))
        .collect()
}

fn names(text: &str) -> Vec<&'static str> {
    named(text).iter().map(|model| model.name).collect()
}

fn only(pairs: &[(&str, &str)], resource: &str) -> Device {
    let mut devices = read(&labels(pairs), &allocatable(&[(resource, 8)])).devices;
    assert_eq!(devices.len(), 1, "one resource, one device group");
    devices.remove(0)
}

#[test]
fn every_model_is_found_by_its_own_name_and_only_that() {
    for model in MODELS {
        assert_eq!(names(model.name), [model.name], "{}", model.name);
        assert_eq!(
            names(&model.name.to_lowercase().replace('-', " ")),
            [model.name]
        );
    }
}

#[test]
fn names_people_and_labels_write_are_read() {
    let cases: &[(&str, &[&str])] = &[
        ("nvidia-tesla-v100", &["V100-16GB", "V100-32GB"]),
        ("Tesla-V100-SXM2-32GB", &["V100-32GB"]),
        ("Tesla-T4", &["T4"]),
        ("NVIDIA-A10G", &["A10"]),
        ("a100", &["A100-40GB", "A100-80GB"]),
        ("A100-80", &["A100-80GB"]),
        ("NVIDIA-A100-SXM4-40GB", &["A100-40GB"]),
        ("A100-SXM4-80GB", &["A100-80GB"]),
        ("NVIDIA-L4", &["L4"]),
        ("NVIDIA-L40S", &["L40S"]),
        ("NVIDIA-H100-80GB-HBM3", &["H100-80GB"]),
        ("NVIDIA-H100-NVL", &["H100-94GB"]),
        ("NVIDIA-H200", &["H200"]),
        ("NVIDIA-GeForce-RTX-3090", &["RTX-3090"]),
        ("rtx4090", &["RTX-4090"]),
        ("NVIDIA-RTX-A6000", &["A6000"]),
        ("AMD_Instinct_MI300X_OAM", &["MI300X"]),
        ("amd-mi100", &["MI100"]),
        ("MI250", &["MI250X"]),
        ("Max_1550", &["Max-1550"]),
        ("Flex_170", &["Flex-170"]),
        ("gaudi3", &["Gaudi3"]),
        ("NVIDIA-RTX-6000-Ada-Generation", &["RTX-6000-Ada"]),
        (
            "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
            &["RTX-PRO-6000"],
        ),
        ("NVIDIA-L40", &["L40"]),
        ("NVIDIA-GB200", &["GB200"]),
        ("NVIDIA-GH200-480GB", &["GH200"]),
        ("NVIDIA-B300-SXM6-AC", &["B300"]),
        ("NVIDIA-H200-NVL", &["H200"]),
        ("Tesla-P100-PCIE-16GB", &["P100-16GB"]),
        ("AMD_Instinct_MI300A", &["MI300A"]),
        ("AMD_Radeon_PRO_W7900", &["Radeon-PRO-W7900"]),
        ("NVIDIA-B200", &["B200"]),
        ("NVIDIA-GB300", &["GB300"]),
        ("NVIDIA-GB10", &["GB10"]),
        ("NVIDIA-RTX-4000-SFF-Ada-Generation", &["RTX-4000-Ada"]),
        ("NVIDIA-RTX-PRO-4000-Blackwell", &["RTX-PRO-4000"]),
        ("NVIDIA-GeForce-RTX-5080", &["RTX-5080"]),
        ("AMD_Instinct_MI325X_VF", &["MI325X"]),
        ("AMD_Instinct_MI350X", &["MI350X"]),
        ("AMD_Instinct_MI355X_OAM", &["MI355X"]),
        ("AMD_Radeon_RX_7900_XTX", &["Radeon-RX-7900-XTX"]),
        ("Intel_Data_Center_GPU_Max_1100", &["Max-1100"]),
        ("Intel_Arc_Pro_B50_Graphics", &["Arc-Pro-B50"]),
        ("Intel_Arc_Pro_B60_Graphics", &["Arc-Pro-B60"]),
        ("HL-225H", &["Gaudi2"]),
        ("HL-325L", &["Gaudi3"]),
        // The six names of the second origin.
        ("nvidia-tesla-a100", &["A100-40GB", "A100-80GB"]),
        ("nvidia-tesla-t4", &["T4"]),
        ("amd-mi200", &["MI210", "MI250X"]),
        ("MI200", &["MI210", "MI250X"]),
        // Other products that carry a known name inside.
        ("NVIDIA-GeForce-RTX-3090-Ti", &[]),
        ("NVIDIA-GeForce-RTX-4090-D", &[]),
        ("Quadro-RTX-6000", &[]),
        ("H1000", &[]),
        ("", &[]),
    ];
    for (text, want) in cases {
        assert_eq!(names(text), *want, "{text}");
    }
}

#[test]
fn a_family_of_intel_is_every_card_of_it() {
    for text in ["intel-xe", "Intel Xe"] {
        let found = named(text);
        assert!(found.iter().all(|model| model.vendor == Vendor::Intel));
        let all = MODELS.iter().filter(|model| model.vendor == Vendor::Intel);
        assert_eq!(found.len(), all.count(), "{text}");
    }
}

#[test]
fn a_part_of_a_device_is_known_for_one() {
    for (text, want) in [
        ("1g.10gb", Some("1g.10gb")),
        ("H100-MIG-1g.10gb", Some("1g.10gb")),
        ("nvidia.com/mig-1g.10gb", Some("1g.10gb")),
        ("A100 MIG 3g.20gb", Some("3g.20gb")),
        ("mig", Some("MIG")),
        ("MI300X-CPX", Some("CPX")),
        ("cpx_nps4", Some("CPX")),
        ("NVIDIA-H100-80GB-HBM3", None),
        ("A100-80GB", None),
        ("Flex_170", None),
    ] {
        assert_eq!(partition(text).as_deref(), want, "{text}");
    }
}

#[test]
fn a_nvidia_node_is_read_from_its_feature_labels() {
    let device = only(
        &[
            ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
            ("nvidia.com/gpu.memory", "81559"),
        ],
        "nvidia.com/gpu",
    );
    assert_eq!(device.models[0].name, "H100-80GB");
    assert_eq!(device.memory_mib, Some(81559));
    assert_eq!(device.sharing, Sharing::Exclusive);
    assert_eq!(
        device.evidence,
        Some((
            "nvidia.com/gpu.product".to_owned(),
            "NVIDIA-H100-80GB-HBM3".to_owned()
        ))
    );
}

#[test]
fn an_open_size_is_settled_by_the_memory_the_node_reports() {
    for (memory, want) in [("40960", "A100-40GB"), ("81920", "A100-80GB")] {
        let device = only(
            &[
                ("nvidia.com/gpu.product", "NVIDIA-A100"),
                ("nvidia.com/gpu.memory", memory),
            ],
            "nvidia.com/gpu",
        );
        assert_eq!(
            device.models.iter().map(|m| m.name).collect::<Vec<_>>(),
            [want]
        );
    }
}

#[test]
fn a_uniform_amd_node_is_read_in_rounded_gib() {
    let device = only(
        &[
            ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM"),
            ("amd.com/gpu.vram", "192G"),
            ("amd.com/gpu.family", "AI"),
        ],
        "amd.com/gpu",
    );
    assert_eq!(device.models[0].name, "MI300X");
    assert_eq!(device.memory_mib, Some(192 * 1024));
}

#[test]
fn a_mixed_amd_node_may_hand_out_any_of_its_models() {
    let device = only(
        &[
            ("amd.com/gpu.product-name.AMD_Instinct_MI210", "4"),
            ("amd.com/gpu.product-name.AMD_Instinct_MI300X_OAM", "4"),
            ("amd.com/gpu.vram.64G", "4"),
            ("amd.com/gpu.vram.192G", "4"),
        ],
        "amd.com/gpu",
    );
    assert_eq!(
        device.models.iter().map(|m| m.name).collect::<Vec<_>>(),
        ["MI210", "MI300X"]
    );
    assert_eq!(
        device.memory_mib,
        Some(64 * 1024),
        "the smallest it may hand out"
    );
    assert_eq!(
        device.evidence, None,
        "no label pins a mixed node to one model"
    );
}

#[test]
fn amd_device_ids_stand_in_for_missing_product_names() {
    let device = only(&[("beta.amd.com/gpu.device-id.74a5", "8")], "amd.com/gpu");
    assert_eq!(device.models[0].name, "MI325X");
    assert_eq!(device.memory_mib, Some(256 * 1024), "from the catalogue");
}

#[test]
fn one_mi250x_is_two_devices_of_half_its_memory() {
    let device = only(&[("amd.com/gpu.device-id", "7408")], "amd.com/gpu");
    assert_eq!(
        (device.models[0].name, device.models[0].devices_per_card),
        ("MI250X", 2)
    );
    assert_eq!(device.memory_mib, Some(64 * 1024));
}

#[test]
fn intel_devices_come_under_either_driver() {
    for resource in ["gpu.intel.com/i915", "gpu.intel.com/xe"] {
        let device = only(&[("gpu.intel.com/product", "Max_1550")], resource);
        assert_eq!(
            (device.vendor, device.models[0].name),
            (Vendor::Intel, "Max-1550")
        );
        assert_eq!(device.resource, resource);
    }
}

#[test]
fn a_label_of_another_vendor_names_no_model() {
    let device = only(
        &[("nvidia.com/gpu.product", "AMD_Instinct_MI300X")],
        "nvidia.com/gpu",
    );
    assert!(device.models.is_empty());
}

#[test]
fn unlabelled_devices_are_counted_with_unknown_model() {
    let device = only(&[], "nvidia.com/gpu");
    assert_eq!(
        (device.count, device.models.len(), device.memory_mib),
        (8, 0, None)
    );
}

#[test]
fn prices_are_decimal_and_anything_else_is_no_price() {
    let price = |text: &str| hourly_price(&labels(&[("gpu.warp.dev/gpu-hour-price", text)]));
    assert_eq!(price("2.49"), Some(2_490_000));
    assert_eq!(price("3"), Some(3_000_000));
    assert_eq!(price("0"), Some(0));
    for bad in [
        "",
        "-1",
        "1e3",
        ".5",
        "1.2345678",
        "1,5",
        "free",
        "99999999999999999999",
    ] {
        assert_eq!(price(bad), None, "{bad}");
    }
    assert!(cheap(&labels(&[("gpu-orchestrator/cheap-node", "true")])));
    assert!(!cheap(&labels(&[("gpu-orchestrator/cheap-node", "no")])));
}

mod sharing;
