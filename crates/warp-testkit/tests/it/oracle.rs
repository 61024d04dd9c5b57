//! The scheduler's verdict is complete and changes nothing.

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use warp_testkit::FilterOracle;

fn node(name: &str, cpu: &str, taints: &Value) -> Node {
    let amount = json!({"cpu": cpu, "memory": "8Gi", "pods": "10"});
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"zone": name}},
        "spec": {"taints": taints},
        "status": {
            "capacity": amount, "allocatable": amount,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }))
    .unwrap()
}

fn pod(cpu: &str, selector: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"generateName": "ask-"},
        "spec": {
            "nodeSelector": selector,
            "containers": [{
                "name": "main", "image": "image:1", "resources": {"requests": {"cpu": cpu}},
            }],
        },
    }))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scheduler_names_every_node_that_fits_and_binds_none() {
    let oracle = FilterOracle::start().await.unwrap();
    let taint = json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]);
    oracle
        .add_node(&node("large", "4", &json!([])))
        .await
        .unwrap();
    oracle
        .add_node(&node("small", "1", &json!([])))
        .await
        .unwrap();
    oracle
        .add_node(&node("tainted", "4", &taint))
        .await
        .unwrap();
    oracle.settle().await.unwrap();
    for (cpu, selector, fits) in [
        ("500m", json!({}), vec!["large", "small"]),
        ("2", json!({}), vec!["large"]),
        ("500m", json!({"zone": "small"}), vec!["small"]),
        ("500m", json!({"zone": "nowhere"}), vec![]),
        ("64", json!({}), vec![]),
        // Asked again: nothing was taken by the questions before.
        ("4", json!({}), vec!["large"]),
    ] {
        let (_, passed) = oracle.ask(&pod(cpu, &selector)).await.unwrap();
        assert_eq!(
            passed.into_iter().collect::<Vec<_>>(),
            fits,
            "{cpu} {selector}"
        );
    }
}
