//! How nodes that share or cut their devices are read.

use super::{allocatable, labels, only};
use crate::gpu::{Device, Isolation, Profile, SharedBy, Sharing, Vendor, read};

fn profile(name: &str) -> Profile {
    Profile::read(name).unwrap()
}

fn all(pairs: &[(&str, &str)], counts: &[(&str, u64)]) -> Vec<Device> {
    read(&labels(pairs), &allocatable(counts)).devices
}

fn shared_by(device: &Device) -> SharedBy {
    match &device.sharing {
        Sharing::Shared(seats) => seats.by.clone(),
        other => panic!("not shared: {other:?}"),
    }
}

#[test]
fn profiles_are_read_in_every_spelling() {
    for (text, want) in [
        ("1g.10gb", "1g.10gb"),
        ("MIG-3g.40gb", "3g.40gb"),
        ("1g.10gb+me", "1g.10gb.me"),
        ("CPX", "cpx"),
        ("cpx_nps4", "cpx_nps4"),
        ("DPX-NPS2", "dpx_nps2"),
        ("tiles", "tile"),
    ] {
        assert_eq!(profile(text).to_string(), want, "{text}");
    }
    for text in [
        "",
        "1g",
        "0g.10gb",
        "1c.2g.10gb",
        "cpx_4",
        "half",
        "8g.80gb",
        "1g.10gb.",
    ] {
        assert_eq!(Profile::read(text), None, "{text}");
    }
    assert!(profile("cpx").covers(&profile("cpx_nps4")));
    assert!(!profile("cpx_nps1").covers(&profile("cpx_nps4")));
    assert!(!profile("1g.10gb").covers(&profile("1g.10gb.me")));
}

#[test]
fn time_sliced_devices_are_seats_that_nothing_keeps_apart() {
    let renamed = all(
        &[
            ("nvidia.com/gpu.product", "Tesla-T4"),
            ("nvidia.com/gpu.replicas", "4"),
            ("nvidia.com/gpu.sharing-strategy", "time-slicing"),
        ],
        &[("nvidia.com/gpu.shared", 8)],
    );
    let suffixed = all(
        &[
            ("nvidia.com/gpu.product", "Tesla-T4-SHARED"),
            ("nvidia.com/gpu.count", "2"),
        ],
        &[("nvidia.com/gpu", 8)],
    );
    for device in renamed.iter().chain(&suffixed) {
        assert_eq!(shared_by(device), SharedBy::TimeSlicing);
        assert_eq!(device.milli, 250);
        assert_eq!(device.sharing.isolation(), Isolation::None);
        assert_eq!(device.models[0].name, "T4");
        assert_eq!(device.memory_mib, Some(16 * 1024), "each sees all of it");
    }
    let untold = only(
        &[("nvidia.com/gpu.product", "Tesla-T4-SHARED")],
        "nvidia.com/gpu",
    );
    assert_eq!(untold.milli, 1000, "nobody says how many sit on one device");
}

#[test]
fn mps_seats_have_an_even_part_of_the_memory() {
    for memory in ["81559", "20389"] {
        let device = only(
            &[
                ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3-SHARED"),
                ("nvidia.com/gpu.memory", memory),
                ("nvidia.com/gpu.replicas", "4"),
                ("nvidia.com/gpu.sharing-strategy", "mps"),
            ],
            "nvidia.com/gpu",
        );
        assert_eq!(shared_by(&device), SharedBy::Mps);
        assert_eq!(device.memory_mib, Some(20389));
        assert_eq!(device.sharing.isolation(), Isolation::Software);
    }
}

#[test]
fn mig_is_read_from_the_product_or_from_the_resource() {
    let single = only(
        &[
            ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"),
            ("nvidia.com/gpu.memory", "4864"),
        ],
        "nvidia.com/gpu",
    );
    assert_eq!(single.sharing, Sharing::Slice(profile("1g.5gb")));
    assert_eq!((single.memory_mib, single.milli), (Some(4864), 142));
    assert_eq!(single.models[0].name, "A100-40GB");
    let mixed = all(
        &[
            ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
            ("nvidia.com/gpu.memory", "81559"),
            ("nvidia.com/mig-1g.10gb.memory", "9856"),
        ],
        &[
            ("nvidia.com/gpu", 4),
            ("nvidia.com/mig-1g.10gb", 7),
            ("nvidia.com/mig-3g.40gb", 2),
        ],
    );
    assert_eq!(mixed[0].sharing, Sharing::Exclusive);
    assert_eq!(mixed[1].sharing, Sharing::Slice(profile("1g.10gb")));
    assert_eq!((mixed[1].memory_mib, mixed[1].milli), (Some(9856), 142));
    assert_eq!(mixed[2].sharing, Sharing::Slice(profile("3g.40gb")));
    assert_eq!(
        (mixed[2].memory_mib, mixed[2].milli),
        (Some(40 * 1024), 500),
        "by its memory"
    );
    let odd = only(
        &[("nvidia.com/gpu.product", "NVIDIA-B900-MIG-huge")],
        "nvidia.com/gpu",
    );
    assert_eq!(odd.sharing, Sharing::Unknown("huge".to_owned()));
}

#[test]
fn amd_partitions_come_under_the_usual_name_or_their_own() {
    let product = ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM");
    let single = only(
        &[
            product,
            ("amd.com/gpu.compute-memory-partition", "cpx_nps4"),
        ],
        "amd.com/gpu",
    );
    assert_eq!(single.sharing, Sharing::Slice(profile("cpx_nps4")));
    assert_eq!((single.memory_mib, single.milli), (Some(24 * 1024), 125));
    assert_eq!(single.sharing.isolation(), Isolation::Hardware);
    let mixed = all(
        &[product],
        &[
            ("amd.com/cpx_nps1", 8),
            ("amd.com/dpx_nps1", 2),
            ("amd.com/spx_nps1", 7),
        ],
    );
    assert_eq!(
        mixed[0].sharing.isolation(),
        Isolation::None,
        "NPS1: one memory for all"
    );
    assert_eq!(mixed[1].sharing, Sharing::Slice(profile("dpx_nps1")));
    assert_eq!(
        mixed[2].sharing,
        Sharing::Exclusive,
        "SPX is the whole device"
    );
    let whole = only(
        &[
            product,
            ("amd.com/gpu.compute-memory-partition", "spx_nps1"),
        ],
        "amd.com/gpu",
    );
    assert_eq!(whole.sharing, Sharing::Exclusive);
}

#[test]
fn intel_devices_are_shared_when_more_are_offered_than_there_are() {
    let pairs = [
        ("gpu.intel.com/product", "Max_1550"),
        ("gpu.intel.com/device.count", "4"),
    ];
    let own = all(&pairs, &[("gpu.intel.com/i915", 4)]);
    assert_eq!(own[0].sharing, Sharing::Exclusive);
    let shared = all(&pairs, &[("gpu.intel.com/i915", 16)]);
    assert_eq!(shared_by(&shared[0]), SharedBy::Plugin);
    assert_eq!(shared[0].milli, 250);
    let tiles = all(
        &pairs,
        &[("gpu.intel.com/i915", 40), ("gpu.intel.com/tiles", 8)],
    );
    assert_eq!(tiles[1].sharing, Sharing::Slice(Profile::Tile));
    assert_eq!(
        (tiles[1].memory_mib, tiles[1].milli),
        (Some(64 * 1024), 500)
    );
    assert_eq!(tiles[1].beside.as_deref(), Some("gpu.intel.com/i915"));
}

#[test]
fn limits_by_amount_are_known_by_their_resources() {
    let counts = [
        ("nvidia.com/gpu", 20),
        ("nvidia.com/gpumem", 2 * 24_000),
        ("nvidia.com/gpucores", 200),
    ];
    let devices = all(&[("nvidia.com/gpu.product", "NVIDIA-L4")], &counts);
    let SharedBy::Limits(limits) = shared_by(&devices[0]) else {
        panic!("{devices:?}");
    };
    assert_eq!((limits.devices, limits.device_mib), (2, 24_000));
    assert_eq!(devices.len(), 1, "amounts are no devices");
}

#[test]
fn resources_of_parts_belong_to_their_vendor() {
    for (resource, vendor) in [
        ("nvidia.com/mig-1g.10gb", Some(Vendor::Nvidia)),
        ("nvidia.com/mig-1g.10gb.shared", Some(Vendor::Nvidia)),
        ("nvidia.com/gpu.shared", Some(Vendor::Nvidia)),
        ("amd.com/cpx_nps4", Some(Vendor::Amd)),
        ("gpu.intel.com/tiles", Some(Vendor::Intel)),
        ("nvidia.com/gpumem", None),
        ("amd.com/1g.10gb", None),
        ("gpu.intel.com/monitoring", None),
    ] {
        assert_eq!(Vendor::of_units(resource), vendor, "{resource}");
    }
}
