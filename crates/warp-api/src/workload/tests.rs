use super::*;

fn spec(gpu: WorkloadGpu) -> GPUWorkloadSpec {
    GPUWorkloadSpec {
        model_name: "m".to_owned(),
        gpu_count: 2,
        gpu: Some(gpu),
        ..Default::default()
    }
}

fn models(names: &[&str]) -> WorkloadGpu {
    WorkloadGpu {
        models: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Default::default()
    }
}

#[test]
fn the_vendor_follows_from_the_models_and_is_nvidia_without_any() {
    let vendor = |gpu| GpuAsk::of(&spec(gpu)).map(|ask| ask.vendor.as_str());
    assert_eq!(vendor(models(&["MI300X"])), Ok("amd"));
    assert_eq!(vendor(WorkloadGpu::default()), Ok("nvidia"));
    let asked = WorkloadGpu {
        vendor: Some(GpuVendor::Habana),
        ..Default::default()
    };
    assert_eq!(vendor(asked), Ok("habana"));
}

#[test]
fn contradictions_name_what_to_change() {
    let refused = |gpu| GpuAsk::of(&spec(gpu)).expect_err("a contradiction").0;
    assert!(refused(models(&["H100", "MI300X"])).contains("several vendors"));
    let both = WorkloadGpu {
        vendor: Some(GpuVendor::Amd),
        ..models(&["H100"])
    };
    assert!(refused(both).contains("drop one"));
    let memory = WorkloadGpu {
        min_memory: Some("lots".to_owned()),
        ..Default::default()
    };
    assert!(refused(memory).contains("'lots'"));
}

#[test]
fn a_part_in_a_models_name_is_told_where_it_belongs() {
    for name in [
        "1g.10gb",
        "H100-MIG-1g.10gb",
        "nvidia.com/mig-1g.10gb",
        "A100 MIG 3g.20gb",
        "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
        "CPX",
        "MI300X-CPX",
    ] {
        let refused = GpuAsk::of(&spec(models(&[name]))).expect_err("a part");
        assert!(refused.0.contains("spec.gpu.partition"), "{}", refused.0);
    }
}

fn node(labels: &[(&str, &str)], resource: &str) -> warp_core::gpu::Device {
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let counts = BTreeMap::from([(resource.to_owned(), 8)]);
    warp_core::gpu::read(&labels, &counts).devices.remove(0)
}

#[test]
fn the_label_of_shared_gpus_is_no_model() {
    for name in ["NVIDIA-A100-SXM4-80GB-SHARED", "l4-shared"] {
        let refused = GpuAsk::of(&spec(models(&[name]))).expect_err("a seat").0;
        assert!(refused.contains("spec.gpu.sharing: shared"), "{refused}");
    }
}

#[test]
fn a_product_the_catalogue_does_not_know_is_asked_for_by_its_label() {
    let product = |text| node(&[("nvidia.com/gpu.product", text)], "nvidia.com/gpu");
    let met = |name: &str, device: &warp_core::gpu::Device| {
        GpuAsk::of(&spec(models(&[name])))
            .expect("a name")
            .met_by(device)
    };
    let unknown = product("NVIDIA-X9000-Ultra");
    assert!(met("NVIDIA-X9000-Ultra", &unknown));
    assert!(met("x9000 ultra", &unknown));
    assert!(!met("X9000", &unknown));
    assert!(!met("X9000-Ultra", &product("NVIDIA-X9000-Ultra-SHARED")));
    // Another vendor's is told by its name, or by spec.gpu.vendor.
    let amd = node(
        &[("amd.com/gpu.product-name", "AMD_Instinct_MI999")],
        "amd.com/gpu",
    );
    assert!(met("AMD_Instinct_MI999", &amd));

    // A name that states a form gets that form; the bare model gets any.
    let (sxm, pcie) = (
        product("NVIDIA-H100-80GB-HBM3"),
        product("NVIDIA-H100-PCIe"),
    );
    assert!(met("H100", &sxm) && met("H100", &pcie));
    assert!(met("NVIDIA-H100-PCIe", &pcie) && !met("NVIDIA-H100-PCIe", &sxm));
    assert!(met("NVIDIA-H100-80GB-HBM3", &sxm) && !met("NVIDIA-H100-80GB-HBM3", &pcie));
    assert!(met("H100-SXM5", &sxm) && !met("H100-SXM5", &pcie));
}

#[test]
fn a_mixed_node_meets_an_ask_only_if_every_model_does() {
    use warp_core::gpu::read;
    let labels = [
        ("amd.com/gpu.product-name.AMD_Instinct_MI210", "4"),
        ("amd.com/gpu.product-name.AMD_Instinct_MI300X_OAM", "4"),
    ];
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let node = read(&labels, &BTreeMap::from([("amd.com/gpu".to_owned(), 8)]));
    let met = |names: &[&str]| {
        GpuAsk::of(&spec(models(names)))
            .expect("known")
            .met_by(&node.devices[0])
    };
    assert!(!met(&["MI300X"]));
    assert!(met(&["MI300X", "MI210"]));
}

#[test]
fn run_times_are_read_as_the_schema_writes_them() {
    let cases = [
        ("90m", Some(5400)),
        ("1h30m", Some(5400)),
        ("45s", Some(45)),
        ("0s", None),
    ];
    for (text, want) in cases {
        assert_eq!(run_seconds(text), want, "{text}");
    }
    for bad in ["", "5", "m", "1d", "-1h", "1h30", "99999999999999999999h"] {
        assert_eq!(run_seconds(bad), None, "{bad}");
    }
}

#[test]
fn a_strategy_is_read_by_its_api_name() {
    assert_eq!(
        "costOptimized".parse(),
        Ok(SchedulingStrategy::CostOptimized)
    );
    assert!("cheapest".parse::<SchedulingStrategy>().is_err());
}

fn asked(gpu: &serde_json::Value) -> Result<GpuAsk, String> {
    let gpu = serde_json::from_value(gpu.clone()).expect("fields");
    let spec = GPUWorkloadSpec {
        gpu_count: 1,
        ..spec(gpu)
    };
    GpuAsk::of(&spec).map_err(|bad| bad.0)
}

#[test]
fn shares_and_parts_are_described_as_they_were_asked_for() {
    use serde_json::json;
    for (gpu, want) in [
        (json!({"sharing": "exclusive"}), "1 nvidia GPU"),
        (json!({"sharing": "shared"}), "a shared nvidia GPU"),
        (
            json!({"fraction": "0.25", "models": ["L4"]}),
            "0.25 of a shared nvidia L4 GPU with software isolation",
        ),
        (
            json!({"fraction": "0.5", "isolation": "none"}),
            "0.5 of a shared nvidia GPU",
        ),
        (
            json!({"partition": "MIG-1g.10gb", "models": ["H100"], "minMemory": "8Gi"}),
            "1 nvidia H100-80GB or H100-94GB 1g.10gb partition with at least 8Gi each",
        ),
        (json!({"partition": "CPX"}), "1 amd cpx partition"),
        (
            json!({"partition": "tile", "isolation": "hardware"}),
            "1 intel tile partition with hardware isolation",
        ),
    ] {
        assert_eq!(asked(&gpu).expect("an ask").describe(), want, "{gpu}");
    }
}

#[test]
fn a_part_that_cannot_be_is_refused_with_what_to_write() {
    use serde_json::json;
    for (gpu, says) in [
        (
            json!({"partition": "half"}),
            "write a MIG profile such as 1g.10gb",
        ),
        (json!({"partition": "spx_nps1"}), "the whole GPU"),
        (
            json!({"partition": "CPX", "models": ["H100"]}),
            "a part of amd GPUs",
        ),
        (
            json!({"partition": "1g.10gb", "vendor": "amd"}),
            "spec.gpu.partition names nvidia",
        ),
        (json!({"fraction": "0.0"}), "such as 0.25"),
        (json!({"fraction": "1.5"}), "such as 0.25"),
    ] {
        let told = asked(&gpu).expect_err("no such part");
        assert!(told.contains(says), "{told}");
    }
}

#[test]
fn the_resources_of_an_ask_are_those_nodes_offer_it_under() {
    use serde_json::json;
    for (gpu, want) in [
        (json!({}), vec!["nvidia.com/gpu"]),
        (
            json!({"fraction": "0.1"}),
            vec!["nvidia.com/gpu", "nvidia.com/gpu.shared"],
        ),
        (
            json!({"partition": "2g.20gb"}),
            vec!["nvidia.com/gpu", "nvidia.com/mig-2g.20gb"],
        ),
        (
            json!({"partition": "cpx_nps4"}),
            vec!["amd.com/gpu", "amd.com/cpx_nps4"],
        ),
        (json!({"partition": "tile"}), vec!["gpu.intel.com/tiles"]),
    ] {
        assert_eq!(asked(&gpu).expect("an ask").resources(), want, "{gpu}");
    }
}
