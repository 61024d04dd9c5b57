// `json!` at the call reads best by value.
#![allow(clippy::needless_pass_by_value)]

use serde_json::{Value, json};
use warp_core::fleet::{Load, SpreadRules};

use super::*;

fn read(spec: Value) -> Request {
    request(
        &ObjectMeta::default(),
        &serde_json::from_value(spec).unwrap(),
    )
}

fn container(cpu: &str) -> Value {
    json!({"name": "c", "resources": {"requests": {"cpu": cpu}}})
}

fn sidecar(cpu: &str) -> Value {
    json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}})
}

#[test]
fn a_pod_needs_what_it_needs_at_its_widest() {
    let cases = [
        // The hungriest init container counts when it needs more than everything after it.
        (
            json!({"containers": [container("2")], "initContainers": [container("5")]}),
            5000,
        ),
        (
            json!({"containers": [container("2"), container("1")]}),
            3000,
        ),
        // A sidecar runs beside the containers and beside every init container after it.
        (
            json!({"containers": [container("2")], "initContainers": [sidecar("1"), container("4")]}),
            5000,
        ),
        (
            json!({"containers": [container("2")], "initContainers": [container("1"), sidecar("1")]}),
            3000,
        ),
        (
            json!({"containers": [container("2")], "overhead": {"cpu": "250m"}}),
            2250,
        ),
        (
            json!({"containers": [container("2")], "resources": {"requests": {"cpu": "6"}}}),
            6000,
        ),
        // A limit alone is a request, whether an API server has said so yet or not.
        (
            json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "3"}}}]}),
            3000,
        ),
    ];
    for (spec, want) in cases {
        assert_eq!(read(spec.clone()).resources.cpu_milli, want, "{spec}");
    }
}

#[test]
fn every_container_that_asks_for_nothing_counts_a_little_in_scores_and_nothing_in_fit() {
    const MIB: i64 = 1 << 20;
    let silent = json!({"name": "c"});
    let cases = [
        (json!({"containers": [silent]}), (100, 200 * MIB)),
        (
            json!({"containers": [silent, container("2")]}),
            (2100, 400 * MIB),
        ),
        (
            json!({"containers": [container("2")], "initContainers": [silent]}),
            (2000, 200 * MIB),
        ),
        (
            json!({"containers": [silent], "resources": {"requests": {"memory": "1Mi"}}}),
            (100, MIB),
        ),
    ];
    for (spec, (cpu_milli, memory_bytes)) in cases {
        let load = Load {
            cpu_milli,
            memory_bytes,
        };
        assert_eq!(read(spec.clone()).load, Some(load), "{spec}");
    }
    let silent = read(json!({"containers": [silent]}));
    assert_eq!(silent.resources.cpu_milli, 0);
    assert_eq!(silent.resources.memory_bytes, 0);
}

#[test]
fn what_is_preferred_is_not_required() {
    let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}});
    let preferred = |kind: &str| json!({kind: [{"weight": 7, "podAffinityTerm": term}]});
    let read = read(json!({
        "containers": [],
        "affinity": {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 3, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}},
            ]},
            "podAffinity": preferred("preferredDuringSchedulingIgnoredDuringExecution"),
            "podAntiAffinity": preferred("preferredDuringSchedulingIgnoredDuringExecution"),
        },
        "topologySpreadConstraints": [
            {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
        ],
    }));
    assert_eq!(read.constraints, Constraints::default());
    let preferences = read.preferences;
    assert_eq!(preferences.node_affinity[0].weight, 3);
    assert_eq!(preferences.pod_affinity[0].weight, 7);
    assert_eq!(&*preferences.pod_anti_affinity[0].term.topology_key, "zone");
    assert_eq!(preferences.spread[0].max_skew, 2);
    assert_eq!(preferences.spread_by, SpreadRules::Own);
}
