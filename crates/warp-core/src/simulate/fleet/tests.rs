use super::{Scenario, ScenarioError};
use crate::schedule::Policy;

fn scenario(text: &str) -> Scenario {
    serde_json::from_str(text).unwrap()
}

const HALL: &str = r#"{
  "nodes": [
    {"name": "a", "count": 2, "allocatable": {"cpu": "32", "memory": "256Gi"}, "pricePerGpuHour": 2.5,
     "gpus": [{"count": 4, "model": "A100", "memory": "80Gi"}], "topology": {"rack": "r1"}},
    {"name": "t", "allocatable": {"cpu": "16", "memory": "64Gi"},
     "gpus": [{"count": 2, "model": "T4", "memory": "16Gi", "sick": [1]}]}
  ],
  "requests": [
    {"name": "low", "gpu": {"count": 4}, "resources": {"cpu": "1"}},
    {"name": "train", "priority": 5, "count": 2, "gang": {"required": "rack"},
     "gpu": {"count": 3, "minMemory": "40Gi"}, "resources": {"cpu": "8", "memory": "64Gi"}},
    {"name": "half", "count": 2, "gpu": {"fraction": 0.5, "models": ["T4"]}, "resources": {"cpu": "1"}}
  ]
}"#;

#[test]
fn requests_are_placed_by_priority_and_the_rest_explained() {
    let outcome = scenario(HALL).run(Policy::Warp, 1).unwrap();
    let node = |name: &str| {
        &*outcome
            .placed
            .iter()
            .find(|placed| &*placed.request == name)
            .unwrap()
            .node
    };
    assert_ne!(node("train-0"), node("train-1"));
    assert_eq!((node("half-0"), node("half-1")), ("t", "t"));
    assert_eq!(outcome.refused.len(), 1);
    let refused = &outcome.refused[0];
    assert_eq!(&*refused.request, "low");
    assert!(
        refused.reason.starts_with("0 of 3 nodes fit"),
        "{}",
        refused.reason
    );
    assert_eq!(refused.changes, ["ask for 1 GPU"]);
    assert!((outcome.cost_per_hour - 15.0).abs() < 1e-9);
    assert!(
        (outcome.allocated - 70.0).abs() < 1e-9,
        "{}",
        outcome.allocated
    );
}

#[test]
fn what_cannot_be_read_is_named() {
    let with = |text: &str| scenario(text).run(Policy::Warp, 1).unwrap_err();
    let twice = r#"{"nodes": [{"name": "a"}, {"name": "a"}]}"#;
    assert!(matches!(with(twice), ScenarioError::Duplicate(_)));
    let memory = r#"{"nodes": [{"name": "a", "gpus": [{"count": 1, "memory": "80GB"}]}]}"#;
    assert!(with(memory).to_string().contains("80GB"));
    let fraction = r#"{"requests": [{"name": "r", "gpu": {"fraction": 1.5}}]}"#;
    assert!(with(fraction).to_string().contains("1.5"));
    let count = r#"{"requests": [{"name": "r", "count": 0}]}"#;
    assert!(with(count).to_string().contains("count is 0"));
    assert!(serde_json::from_str::<Scenario>(r#"{"nods": []}"#).is_err());
}

#[test]
fn a_contradictory_request_gets_its_reason() {
    let text = r#"{"nodes": [{"name": "a"}], "requests": [{"name": "r", "gpu": {"count": 0}}]}"#;
    let outcome = scenario(text).run(Policy::Warp, 1).unwrap();
    assert!(
        outcome.refused[0].reason.contains("0 GPUs"),
        "{}",
        outcome.refused[0].reason
    );
}
