//! Fleet files: what they become, and what is said about the ones that are wrong.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use warp_core::gpu;

use super::{Fleet, PROVIDER_LABEL};

#[test]
fn every_model_of_the_catalogue_is_read_back_from_its_node_labels() {
    for model in gpu::MODELS {
        let fleet = Fleet::uniform(1, model.name, 4).unwrap();
        let shape = &fleet.nodes[0];
        let counts = shape
            .devices
            .iter()
            .map(|(name, count)| (name.clone(), u64::from(*count)))
            .collect();
        let seen = gpu::read(&shape.labels, &counts);
        let device = seen.exclusive(model.vendor).unwrap();
        let names: Vec<&str> = device.models.iter().map(|found| found.name).collect();
        assert_eq!(names, [model.name]);
        assert_eq!(device.count, 4);
    }
}

#[test]
fn the_demo_fleet_mixes_vendors_and_every_node_names_its_provider() {
    let fleet = Fleet::demo();
    let vendors: std::collections::BTreeSet<&String> = fleet
        .nodes
        .iter()
        .flat_map(|node| node.devices.keys())
        .collect();
    assert!(vendors.len() > 1);
    for shape in &fleet.nodes {
        assert_eq!(
            shape.labels.get(PROVIDER_LABEL).map(String::as_str),
            Some("simulated")
        );
        let object = shape.object(&shape.devices, &Time(jiff::Timestamp::UNIX_EPOCH));
        let status = object.status.unwrap();
        assert_eq!(status.capacity, status.allocatable);
    }
}

/// `costOptimized` is part of the first tour, and means nothing without prices.
#[test]
fn every_gpu_of_the_demo_fleet_has_a_price() {
    let fleet = Fleet::demo();
    let with_gpus = fleet.nodes.iter().filter(|node| !node.devices.is_empty());
    let mut asked = 0;
    for shape in with_gpus {
        let price = shape.labels.get(warp_api::label::GPU_HOUR_PRICE);
        let price: f64 = price
            .and_then(|price| price.parse().ok())
            .unwrap_or_else(|| panic!("{} has no price", shape.name));
        assert!(price > 0.0, "{}", shape.name);
        asked += 1;
    }
    assert!(asked > 0);
}

#[test]
fn a_wrong_file_is_answered_with_line_field_and_nearest_name() {
    let cases = [
        (
            "pools:\n- name: a\n  gpuss: 4\n",
            "line 3",
            "did you mean \"gpus\"?",
        ),
        (
            "pools:\n- name: a\n  gpu: H10O-80GB\n",
            "line 3",
            "did you mean \"H100-80GB\"?",
        ),
        (
            "pools:\n- name: a\n  gpu: A100\n",
            "line 3",
            "A100-40GB or A100-80GB",
        ),
        ("pools:\n- name: a\n  gpus: 4\n", "line 3", "gpu: L4"),
        ("pools:\n- name: a\n  memory: 12 GB\n", "line 3", "64Gi"),
        ("pools:\n- name: A_b\n", "line 2", "lower-case"),
        ("pools:\n- name: a\n- name: a\n", "line 2", "two pools"),
        ("pools:\n- count: 3\n", "line 2", "\"name\" is missing"),
        ("pools: []\n", "line 1", "no nodes"),
        (
            "pools:\n- name: a\n  count: 99999999\n",
            "line 3",
            "more than",
        ),
        (
            "pools:\n- name: a\n  taints:\n  - key: x\n    effect: NoShedule\n",
            "line 5",
            "did you mean \"NoSchedule\"?",
        ),
        (
            "defaults:\n  runTime: soon\npools:\n- name: a\n",
            "line 2",
            "1h30m",
        ),
        (
            "pools:\n- name: a\nfaults:\n- {after: 1m, on: elsewhere, lose: node}\n",
            "line 4",
            "known are a, a-0",
        ),
        (
            "pools:\n- name: abc\nfaults:\n- {after: 1m, on: abd, lose: node}\n",
            "line 4",
            "did you mean \"abc\"?",
        ),
        (
            "pools:\n- name: a\nfaults:\n- {after: soon, on: a, lose: node}\n",
            "line 4",
            "after: \"soon\"",
        ),
        (
            "pools:\n- name: a\nfaults:\n- {after: 1m, on: a, lose: nodes}\n",
            "line 4",
            "did you mean \"node\"?",
        ),
        (
            "pools:\n- name: a\nfaults:\n- {after: 1m, on: a, pods: {pull-eror: x}}\n",
            "line 4",
            "did you mean \"pull-error\"?",
        ),
        (
            "pools:\n- name: a\nfaults:\n- {after: 1m, on: a}\n",
            "line 2",
            "what happens",
        ),
        ("pools: {\n", "fleet.yaml", ""),
        ("", "fleet.yaml", ""),
    ];
    for (text, place, what) in cases {
        let error = Fleet::parse(text, "fleet.yaml").unwrap_err().to_string();
        assert!(
            error.contains(place) && error.contains(what),
            "{text:?} gave {error:?}"
        );
    }
}

#[test]
fn faults_hit_a_node_or_every_node_of_a_pool() {
    let text = "pools:\n- name: a\n  count: 3\n- name: a-1\nfaults:\n\
        - {after: 30s, on: a, lose: gpus, gpus: \"0,2\", for: 1m}\n\
        - {after: 2m, on: a-1-0, lose: node}\n\
        - {after: 3m, on: a-2, pods: {oom-after: 5s, fail-first: 2}}\n";
    let faults = Fleet::parse(text, "fleet.yaml").unwrap().faults;
    assert_eq!(faults[0].nodes, ["a-0", "a-1", "a-2"]);
    assert_eq!(faults[0].set["lost-gpus"], "0,2");
    assert_eq!(
        (
            faults[0].after.as_secs(),
            faults[0].lasts.map(|time| time.as_secs())
        ),
        (30, Some(60))
    );
    assert_eq!((faults[1].nodes.len(), faults[1].lasts), (1, None));
    assert_eq!(faults[1].set["node-lost"], "true");
    assert_eq!(faults[2].nodes, ["a-2"]);
    assert_eq!(faults[2].set["fail-first"], "2");
}

#[test]
fn shared_and_cut_pools_show_what_their_vendors_plugins_show() {
    let fleet = Fleet::parse(
        "pools:
- {name: amount, gpu: L4, gpus: 2, share: {by: amount}}
- {name: mps, gpu: L4, gpus: 1, share: {by: mps, each: 4}}
- {name: mig, gpu: H100-80GB, gpus: 1, partitions: {1g.10gb: 7, 3g.40gb: 2}}
- {name: cpx, gpu: MI300X, partitions: {cpx_nps4: 64}}
- {name: tiles, gpu: Max-1550, partitions: {tile: 4}}
- {name: xe, gpu: Max-1100, gpus: 2, share: {by: time-slicing, each: 3}}
",
        "parts",
    )
    .unwrap();
    let read = |at: usize| {
        let shape = &fleet.nodes[at];
        let counts = shape.resources(&shape.devices);
        let counts = counts
            .into_iter()
            .filter_map(|(name, amount)| Some((name, amount.0.parse().ok()?)));
        let devices = gpu::read(&shape.labels, &counts.collect()).devices;
        let units = devices.iter().map(|device| {
            let unit = warp_core::fleet::Unit::of(device).unwrap();
            (device.resource.clone(), device.count, unit.to_string())
        });
        units.collect::<Vec<_>>()
    };
    let want =
        |resource: &str, count: u64, unit: &str| (resource.to_owned(), count, unit.to_owned());
    assert_eq!(
        read(0),
        [want("nvidia.com/gpu", 20, "shared GPUs by amount")]
    );
    assert_eq!(
        read(1),
        [want("nvidia.com/gpu", 4, "shared GPUs (1/4 each)")]
    );
    assert_eq!(
        read(2),
        [
            want("nvidia.com/gpu", 1, "whole GPUs"),
            want("nvidia.com/mig-1g.10gb", 7, "1g.10gb"),
            want("nvidia.com/mig-3g.40gb", 2, "3g.40gb"),
        ]
    );
    assert_eq!(read(3), [want("amd.com/gpu", 64, "cpx_nps4")]);
    assert_eq!(read(4)[1], want("gpu.intel.com/tiles", 4, "tile"));
    assert_eq!(
        read(5),
        [want("gpu.intel.com/i915", 6, "shared GPUs (1/3 each)")]
    );
}

#[test]
fn a_pool_that_cannot_be_shared_or_cut_so_is_told_why() {
    for (pool, says) in [
        ("gpu: L4, share: {by: turns}", "\"turns\" is not known"),
        ("gpu: L4, share: {by: mps, each: 1}", "2 to 100"),
        (
            "gpu: MI300X, share: {by: mps, each: 2}",
            "no plugin shares amd GPUs by mps",
        ),
        ("gpu: L4, partitions: {cpx: 8}", "no part of a L4"),
        ("gpu: MI300X, partitions: {CPX: 64}", "such as CPX_nps1"),
        ("share: {by: mps}", "name the model"),
        (
            "gpu: A30, share: {by: mps}, partitions: {1g.6gb: 4}",
            "make two pools",
        ),
    ] {
        let text = format!("pools:\n- {{name: a, {pool}}}\n");
        let told = Fleet::parse(&text, "it").unwrap_err().to_string();
        assert!(told.contains(says), "{told}");
    }
}
