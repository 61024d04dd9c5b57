use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::eviction::leaves_at;
use super::lifecycle::{Seen, plan};
use warp_runtime::plan::{Action, Plan};

fn node(ready: &str, taints: &serde_json::Value) -> Node {
    serde_json::from_value(json!({
        "metadata": { "name": "n" },
        "spec": { "taints": taints },
        "status": { "conditions": [{ "type": "Ready", "status": ready }] }
    }))
    .unwrap()
}

fn seen(node: &Node, silent: bool) -> Seen<'_> {
    let now = Timestamp::UNIX_EPOCH;
    Seen {
        node,
        silent_since: silent.then_some(now),
        next_look: now,
        others_ready: true,
    }
}

fn written_taints(plan: &Plan) -> Vec<(String, String)> {
    let patch = plan.actions.iter().find_map(|action| match action {
        Action::Patch {
            sub: None, patch, ..
        } => Some(patch["spec"]["taints"].clone()),
        _ => None,
    });
    let taints: Vec<Taint> = patch
        .map(|taints| serde_json::from_value(taints).unwrap())
        .unwrap_or_default();
    taints
        .into_iter()
        .map(|taint| (taint.key, taint.effect))
        .collect()
}

fn pair(key: &str, effect: &str) -> (String, String) {
    (key.to_owned(), effect.to_owned())
}

#[test]
fn a_ready_node_loses_the_taint_it_was_born_with_and_keeps_foreign_ones() {
    let taints = json!([
        { "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" },
        { "key": "mine", "effect": "NoSchedule" }
    ]);
    let plan = plan(&seen(&node("True", &taints), false), Timestamp::UNIX_EPOCH);
    assert_eq!(written_taints(&plan), [pair("mine", "NoSchedule")]);
}

#[test]
fn a_silent_node_becomes_unknown_first_and_unreachable_in_the_next_pass() {
    let first = plan(
        &seen(&node("True", &json!([])), true),
        Timestamp::UNIX_EPOCH,
    );
    assert!(first.actions.iter().any(|action| matches!(
        action,
        Action::Patch {
            sub: Some("status"),
            ..
        }
    )));
    assert_eq!(written_taints(&first), []);
    let next = plan(
        &seen(&node("Unknown", &json!([])), true),
        Timestamp::UNIX_EPOCH,
    );
    let unreachable = "node.kubernetes.io/unreachable";
    assert_eq!(
        written_taints(&next),
        [
            pair(unreachable, "NoSchedule"),
            pair(unreachable, "NoExecute")
        ]
    );
}

#[test]
fn the_only_node_is_not_emptied_when_it_falls_silent() {
    let lost = node("Unknown", &json!([]));
    let alone = Seen {
        others_ready: false,
        ..seen(&lost, true)
    };
    assert_eq!(
        written_taints(&plan(&alone, Timestamp::UNIX_EPOCH)),
        [pair("node.kubernetes.io/unreachable", "NoSchedule")]
    );
}

#[test]
fn a_pod_leaves_when_its_shortest_toleration_ends() {
    let now = Timestamp::UNIX_EPOCH;
    let taint = Taint {
        key: "k".to_owned(),
        effect: "NoExecute".to_owned(),
        value: None,
        time_added: Some(Time(now)),
    };
    let pod = |tolerations: serde_json::Value| -> Pod {
        serde_json::from_value(
            json!({ "metadata": {}, "spec": { "containers": [], "tolerations": tolerations } }),
        )
        .unwrap()
    };
    assert_eq!(leaves_at(&pod(json!([])), &[&taint], now), Some(now));
    assert_eq!(
        leaves_at(
            &pod(json!([{ "key": "k", "operator": "Exists" }])),
            &[&taint],
            now
        ),
        None
    );
    let bounded = pod(
        json!([{ "operator": "Exists", "tolerationSeconds": 30 }, { "operator": "Exists", "tolerationSeconds": 20 }]),
    );
    assert_eq!(
        leaves_at(&bounded, &[&taint], now),
        Some(now + SignedDuration::from_secs(20))
    );
}

#[test]
fn a_toleration_without_end_never_ends() {
    let now = Timestamp::UNIX_EPOCH;
    let taint = Taint {
        key: "k".to_owned(),
        effect: "NoExecute".to_owned(),
        value: None,
        time_added: Some(Time(now)),
    };
    let pod: Pod = serde_json::from_value(
        json!({ "metadata": {}, "spec": { "containers": [], "tolerations": [
        { "key": "k", "operator": "Exists", "tolerationSeconds": i64::MAX }
    ] } }),
    )
    .unwrap();
    assert_eq!(leaves_at(&pod, &[&taint], now), Some(Timestamp::MAX));
}
