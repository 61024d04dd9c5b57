//! Shares and parts of GPUs: where they land, what their pods ask for, and what is said.

use k8s_openapi::api::core::v1::{Node, Pod};
use warp_core::check;

use super::tenancy::{red, under};
use super::*;

/// A node with these labels and amounts.
fn offering(name: &str, labels: Value, amounts: Value) -> Arc<Node> {
    let mut allocatable = json!({"cpu": "64", "memory": "512Gi", "pods": "110"});
    for (key, value) in amounts.as_object().into_iter().flatten() {
        allocatable[key] = value.clone();
    }
    let node = json!({
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    });
    Arc::new(serde_json::from_value(node).unwrap())
}

fn sliced(name: &str) -> Arc<Node> {
    let labels = json!({
        "nvidia.com/gpu.product": "NVIDIA-L4-SHARED", "nvidia.com/gpu.replicas": "4",
        "nvidia.com/gpu.sharing-strategy": "time-slicing",
    });
    offering(name, labels, json!({"nvidia.com/gpu": "4"}))
}

fn mps(name: &str) -> Arc<Node> {
    let labels = json!({
        "nvidia.com/gpu.product": "NVIDIA-L4-SHARED", "nvidia.com/gpu.replicas": "4",
        "nvidia.com/gpu.sharing-strategy": "mps",
    });
    offering(name, labels, json!({"nvidia.com/gpu": "4"}))
}

fn mig(name: &str) -> Arc<Node> {
    let labels = json!({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/mig.strategy": "mixed"});
    let amounts = json!({"nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "2"});
    offering(name, labels, amounts)
}

fn by_amount(name: &str) -> Arc<Node> {
    let labels = json!({"nvidia.com/gpu.product": "NVIDIA-L4"});
    let amounts =
        json!({"nvidia.com/gpu": "20", "nvidia.com/gpumem": "46000", "nvidia.com/gpucores": "200"});
    offering(name, labels, amounts)
}

fn cpx(name: &str) -> Arc<Node> {
    let labels = json!({
        "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
        "amd.com/gpu.compute-memory-partition": "cpx_nps4",
    });
    offering(name, labels, json!({"amd.com/gpu": "64"}))
}

fn tiles(name: &str) -> Arc<Node> {
    let labels = json!({"gpu.intel.com/product": "Max_1550", "gpu.intel.com/device.count": "2"});
    let amounts = json!({"gpu.intel.com/i915": "20", "gpu.intel.com/tiles": "4"});
    offering(name, labels, amounts)
}

fn fleet() -> Vec<Arc<Node>> {
    vec![
        node("whole", 8, json!({})),
        sliced("sliced"),
        mps("mps"),
        mig("mig"),
        by_amount("amount"),
        cpx("cpx"),
        tiles("tiles"),
    ]
}

/// Where one lands, and what its pod asks for of GPUs.
fn placed(nodes: &[Arc<Node>], gpu: Value) -> Result<(String, Value, String), String> {
    let mut ledger = ledger::build(nodes, &[], &[]);
    let wanted = workload("w", json!({"gpu": gpu}));
    let decision = decide(&mut ledger, &[Arc::clone(&wanted)]).remove(0);
    let Decision::Place(places) = decision else {
        return Err(verdict(&decision).1);
    };
    let job = asking(&wanted).job(&places).unwrap();
    let pod = job.spec.unwrap().template.spec.unwrap();
    let limits = pod.containers[0].resources.as_ref().unwrap().limits.clone();
    let limits = serde_json::to_value(limits).unwrap();
    Ok((places[0].node.clone(), limits, places[0].why.clone()))
}

#[test]
fn each_lands_where_its_kind_is_offered_and_its_pod_asks_for_that() {
    for (gpu, node, limits, says) in [
        (
            json!({}),
            "whole",
            json!({"nvidia.com/gpu": "1"}),
            "chose node whole",
        ),
        (
            json!({"partition": "1g.10gb"}),
            "mig",
            json!({"nvidia.com/mig-1g.10gb": "1"}),
            "1 1g.10gb partition, isolation hardware",
        ),
        (
            json!({"sharing": "shared", "isolation": "software"}),
            "mps",
            json!({"nvidia.com/gpu": "1"}),
            "1/4 of a GPU shared by MPS, isolation software",
        ),
        (
            json!({"fraction": "0.5"}),
            "amount",
            json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "11500", "nvidia.com/gpucores": "50"}),
            "0.5 of a GPU by amount, isolation software: a library holds it to 11500 MiB",
        ),
        (
            json!({"partition": "CPX"}),
            "cpx",
            json!({"amd.com/gpu": "1"}),
            "1 cpx_nps4 partition, isolation hardware",
        ),
        (
            json!({"partition": "tile"}),
            "tiles",
            json!({"gpu.intel.com/tiles": "1", "gpu.intel.com/i915": "1"}),
            "1 tile partition",
        ),
        (
            json!({"sharing": "shared", "vendor": "intel"}),
            "tiles",
            json!({"gpu.intel.com/i915": "1"}),
            "shared by its device plugin, isolation none",
        ),
    ] {
        let (on, asks, why) = placed(&fleet(), gpu.clone()).unwrap();
        assert_eq!((on.as_str(), asks), (node, limits), "{gpu}");
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn a_fraction_lands_where_nothing_enforces_it_only_when_that_is_asked_for() {
    let nodes = [sliced("a"), sliced("b")];
    let told = placed(&nodes, json!({"fraction": "0.25"})).unwrap_err();
    assert_eq!(
        told,
        "no node offers 0.25 of a shared nvidia GPU with software isolation; 2 nodes offer shared GPUs (1/4 each) of L4; with spec.gpu.isolation: none it could run on 2 nodes"
    );
    let (_, _, why) = placed(&nodes, json!({"fraction": "0.25", "isolation": "none"})).unwrap();
    assert!(
        why.contains("time slicing, isolation none: nothing keeps others off"),
        "{why}"
    );
    let told = placed(&nodes, json!({"fraction": "0.3", "isolation": "none"})).unwrap_err();
    assert!(told.contains("no node offers 0.3 of"), "{told}");
}

#[test]
fn a_profile_nobody_offers_is_told_with_those_that_are() {
    let nodes = [mig("a"), mig("b"), mig("c"), node("whole", 8, json!({}))];
    let told = placed(&nodes, json!({"partition": "2g.20gb"})).unwrap_err();
    assert_eq!(
        told,
        "no node offers MIG profile 2g.20gb; 3 nodes offer 1g.10gb of H100-80GB, 3 nodes offer 3g.40gb of H100-80GB, 1 node offers whole GPUs of H100-80GB"
    );
    let told = placed(&[sliced("a")], json!({"models": ["L4"]})).unwrap_err();
    assert_eq!(
        told,
        "no node has 1 nvidia L4 GPU; the cluster has: 4 nvidia L4 (shared GPUs (1/4 each))"
    );
    let told = placed(&[mig("a")], json!({"partition": "DPX"})).unwrap_err();
    assert_eq!(
        told,
        "no node offers partition dpx; the cluster has no amd GPU"
    );
}

#[test]
fn decisions_of_one_pass_fill_each_card_and_no_more() {
    let nodes = [by_amount("a")];
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let wanted: Vec<_> = (0..9)
        .map(|n| workload(&format!("w{n}"), json!({"gpu": {"fraction": "0.25"}})))
        .collect();
    let decisions = decide(&mut ledger, &wanted);
    assert_eq!(
        decisions.iter().filter(|one| chosen(one).is_some()).count(),
        8
    );
    assert_eq!(verdict(&decisions[8]).0, reason::WAITING_FOR_CAPACITY);
    assert_eq!(check::not_over_committed(&ledger.fleet), []);

    // The same as pods that are there already: what they hold is read from what they ask for.
    let pod = |at: usize| -> Arc<Pod> {
        let limits = json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "5750", "nvidia.com/gpucores": "25"});
        let pod = json!({
            "metadata": {"name": format!("p{at}"), "namespace": "default", "uid": format!("p{at}")},
            "spec": {"nodeName": "a", "containers": [{"name": "c", "resources": {"limits": limits}}]},
            "status": {"phase": "Running"},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    };
    let pods: Vec<_> = (0..7).map(pod).collect();
    let mut ledger = ledger::build(&nodes, &pods, &[]);
    let decisions = decide(&mut ledger, &wanted[..2]);
    assert!(chosen(&decisions[0]).is_some() && chosen(&decisions[1]).is_none());
}

#[test]
fn a_tenants_quota_counts_parts_as_what_they_are_of_a_gpu() {
    let quota =
        red(json!({"quota": [{"gpu": "L4", "nominal": 1}, {"gpu": "H100-80GB", "nominal": 1}]}));
    let halves: Vec<_> = (0..3)
        .map(|n| workload(&format!("w{n}"), json!({"gpu": {"fraction": "0.5"}})))
        .collect();
    let decisions = under(std::slice::from_ref(&quota), &[by_amount("a")], &halves);
    assert!(chosen(&decisions[0]).is_some() && chosen(&decisions[1]).is_some());
    let (reason, told) = verdict(&decisions[2]);
    assert_eq!(reason, reason::TENANT_QUOTA_EXCEEDED);
    assert!(
        told.contains("uses 1 of its 1 L4 GPUs and 0 more are left to it, 0.5 asked for"),
        "{told}"
    );

    let parts: Vec<_> = (0..3)
        .map(|n| {
            workload(
                &format!("w{n}"),
                json!({"gpuCount": 3, "gpu": {"partition": "1g.10gb"}}),
            )
        })
        .collect();
    let decisions = under(&[quota], &[mig("a"), mig("b")], &parts);
    let placed = decisions.iter().filter(|one| chosen(one).is_some()).count();
    assert_eq!(placed, 2, "six sevenths of the one H100 it may have");
}

#[test]
fn the_members_of_a_gang_of_shares_ask_for_the_same() {
    let small = offering(
        "small",
        json!({"nvidia.com/gpu.product": "Tesla-T4"}),
        json!({"nvidia.com/gpu": "10", "nvidia.com/gpumem": "15000", "nvidia.com/gpucores": "100"}),
    );
    let wanted = workload("w", json!({"replicas": 3, "gpu": {"fraction": "0.5"}}));
    let mut ledger = ledger::build(&[small, by_amount("large")], &[], &[]);
    let decision = decide(&mut ledger, &[Arc::clone(&wanted)]).remove(0);
    let Decision::Place(places) = &decision else {
        panic!("{decision:?}");
    };
    assert!(
        places.iter().all(|place| place.node == "large"),
        "{places:?}"
    );
    assert!(
        places[0].why.contains("isolation software"),
        "{}",
        places[0].why
    );
}
