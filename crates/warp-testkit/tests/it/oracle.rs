//! The scheduler's answer is complete and changes nothing.

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use warp_testkit::SchedulerOracle;

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
async fn the_scheduler_names_and_scores_every_node_that_fits_and_binds_none() {
    let oracle = SchedulerOracle::start().await.unwrap();
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
        let (_, answer) = oracle.ask(&pod(cpu, &selector)).await.unwrap();
        let passed: Vec<_> = answer.fits.iter().collect();
        assert_eq!(passed, fits, "{cpu} {selector}");
        // Scores are given where there is a choice, and the choice is one of the best.
        let scored: Vec<_> = answer.scores.keys().collect();
        assert_eq!(scored, if fits.len() > 1 { passed } else { vec![] });
        let chosen = answer.chosen.iter();
        assert!(chosen.clone().all(|node| answer.best().contains(node)));
        assert_eq!(chosen.count(), fits.len().min(1), "{cpu} {selector}");
    }
}
