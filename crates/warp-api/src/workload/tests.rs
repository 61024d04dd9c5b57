use super::*;

fn spec(gpu: GpuRequirement) -> GPUWorkloadSpec {
    GPUWorkloadSpec {
        model_name: "m".to_owned(),
        gpu_count: 2,
        gpu: Some(gpu),
        ..Default::default()
    }
}

fn models(names: &[&str]) -> GpuRequirement {
    GpuRequirement {
        models: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Default::default()
    }
}

#[test]
fn the_vendor_follows_from_the_models_and_is_nvidia_without_any() {
    let vendor = |gpu| GpuAsk::of(&spec(gpu)).map(|ask| ask.vendor.as_str());
    assert_eq!(vendor(models(&["MI300X"])), Ok("amd"));
    assert_eq!(vendor(GpuRequirement::default()), Ok("nvidia"));
    let asked = GpuRequirement {
        vendor: Some(GpuVendor::Habana),
        ..Default::default()
    };
    assert_eq!(vendor(asked), Ok("habana"));
}

#[test]
fn contradictions_name_what_to_change() {
    let refused = |gpu| GpuAsk::of(&spec(gpu)).expect_err("a contradiction").0;
    assert!(refused(models(&["H100", "MI300X"])).contains("several vendors"));
    assert!(refused(models(&["Z9000"])).contains("'Z9000'"));
    let both = GpuRequirement {
        vendor: Some(GpuVendor::Amd),
        ..models(&["H100"])
    };
    assert!(refused(both).contains("drop one"));
    let memory = GpuRequirement {
        min_memory: Some("lots".to_owned()),
        ..Default::default()
    };
    assert!(refused(memory).contains("'lots'"));
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
