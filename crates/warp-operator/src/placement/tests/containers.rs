//! Nodes that are one container at a cloud each: what cannot be one is not advised to tolerate their taint, and is told why.

use super::*;

fn container(name: &str) -> Arc<k8s_openapi::api::core::v1::Node> {
    let mut value = serde_json::to_value(&*node(name, 8, json!({}))).unwrap();
    value["spec"]["taints"] = json!([{"key": "gpu.warp.dev/container", "effect": "NoSchedule"}]);
    Arc::new(serde_json::from_value(value).unwrap())
}

/// One with a volume, which no container at a cloud has.
fn with_volume(name: &str, gpus: u32) -> Arc<GPUWorkload> {
    let template = json!({"spec": {
        "containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "data", "emptyDir": {}}]}});
    workload(
        name,
        json!({"image": null, "gpuCount": gpus, "podTemplate": template}),
    )
}

#[test]
fn what_can_be_a_container_is_placed_there() {
    let mut ledger = ledger::build(&[container("c")], &[], &[]);
    let decisions = decide(&mut ledger, &[workload("w", json!({}))]);
    assert_eq!(chosen(&decisions[0]).as_deref(), Some("c"));
}

#[test]
fn what_cannot_be_a_container_is_told_why_instead_of_to_tolerate_its_taint() {
    let gang = workload("gang", json!({"replicas": 2}));
    for (wanted, why) in [
        (
            with_volume("one", 1),
            "a cloud's container has no volume data",
        ),
        (gang, "it is 2 pods that run together"),
    ] {
        let mut ledger = ledger::build(&[container("c")], &[], &[]);
        let decisions = decide(&mut ledger, &[wanted]);
        let (found, message) = verdict(&decisions[0]);
        assert_eq!(found, reason::NEVER_FITS, "{message}");
        assert!(message.contains(why), "{message}");
        assert!(!message.contains("tolerate"), "{message}");
    }
}

#[test]
fn advice_about_other_nodes_goes_before_a_container_that_never_helps() {
    let mut held = serde_json::to_value(&*node("t", 8, json!({}))).unwrap();
    held["spec"]["taints"] = json!([{"key": "team", "value": "a", "effect": "NoSchedule"}]);
    let held = Arc::new(serde_json::from_value(held).unwrap());
    let mut ledger = ledger::build(&[container("c"), held], &[], &[]);
    let decisions = decide(&mut ledger, &[with_volume("one", 1)]);
    let (found, message) = verdict(&decisions[0]);
    assert_eq!(found, reason::NODES_TAINTED, "{message}");
    assert!(message.contains("tolerate team=a:NoSchedule"), "{message}");
    assert!(!message.contains("take the taint off c"), "{message}");
}

#[test]
fn the_smallest_change_of_what_cannot_be_a_container_is_no_toleration_of_it() {
    let nodes = [node("full", 2, json!({})), container("c")];
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let decisions = decide(&mut ledger, &[with_volume("one", 1), with_volume("two", 2)]);
    let (found, message) = verdict(&decisions[1]);
    assert_eq!(found, reason::WAITING_FOR_CAPACITY, "{message}");
    assert!(message.contains("ask for 1 GPU"), "{message}");
    assert!(!message.contains("tolerate"), "{message}");
}
