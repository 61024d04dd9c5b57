use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node as KubeNode, Pod};
use proptest::prelude::*;
use serde_json::{Value, json};
use warp_core::fleet::{Fleet, NodeId, Work, WorkState};
use warp_core::schedule::fit::Filter;

use super::preempt::{Budgets, choose};
use super::verdict::Verdict;
use super::{request, score};

fn node(name: &str, cpu: u32) -> KubeNode {
    serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
        "status": { "allocatable": { "cpu": cpu.to_string(), "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8" } }
    }))
    .unwrap()
}

fn pod(name: &str, spec: &Value) -> Pod {
    let mut whole = json!({ "containers": [{ "name": "c" }] });
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    let meta = json!({ "name": name, "namespace": "n", "uid": name, "labels": { "app": "a" } });
    serde_json::from_value(json!({ "metadata": meta, "spec": whole })).unwrap()
}

fn asking(name: &str, cpu: u32, priority: i32) -> Pod {
    let container = json!({ "name": "c", "resources": { "requests": { "cpu": cpu.to_string() } } });
    pod(
        name,
        &json!({ "priority": priority, "containers": [container] }),
    )
}

fn bind(fleet: &mut Fleet, pod: &Pod, node: &str) {
    let work = Work {
        id: pod.metadata.uid.as_deref().unwrap().into(),
        request: Arc::new(request::request(pod)),
        node: node.into(),
        gpus: None,
        since: 0,
        state: WorkState::Running,
    };
    fleet.bind(work).unwrap();
}

#[test]
fn pods_without_requests_are_spread_over_equal_nodes() {
    let mut fleet = Fleet::new();
    for name in ["a", "b", "c", "d"] {
        fleet.set_node(request::node(&node(name, 64)));
    }
    let nodes: Vec<NodeId> = fleet.nodes().map(|(id, _)| id).collect();
    for number in 0..14 {
        let pod = pod(&format!("silent-{number}"), &json!({}));
        let best = score::best(&fleet, &request::request(&pod), &nodes).unwrap();
        let name = fleet.node(best).unwrap().name.clone();
        bind(&mut fleet, &pod, &name);
    }
    let counts: Vec<usize> = nodes.iter().map(|id| fleet.works_on(*id).count()).collect();
    assert_eq!(counts, [4, 4, 3, 3]);
}

#[test]
fn a_refusal_is_worded_as_kube_scheduler_words_it() {
    let mut fleet = Fleet::new();
    fleet.set_node(request::node(&node("a", 2)));
    let mut tainted = node("b", 64);
    tainted.spec = Some(
        serde_json::from_value(json!({ "taints": [{ "key": "k", "effect": "NoSchedule" }] }))
            .unwrap(),
    );
    fleet.set_node(request::node(&tainted));
    let verdict = Verdict::new(&fleet, &request::request(&asking("p", 4, 0)));
    assert_eq!(
        verdict.message(&verdict.no_victims()),
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). no new claims to \
         deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    );
}

#[test]
fn the_cheapest_victims_are_chosen_and_a_budget_is_spared() {
    let mut fleet = Fleet::new();
    for name in ["a", "b"] {
        fleet.set_node(request::node(&node(name, 4)));
    }
    bind(&mut fleet, &asking("dear", 4, 50), "a");
    bind(&mut fleet, &asking("cheap", 4, 1), "b");
    let wanted = request::request(&asking("p", 3, 100));
    let verdict = Verdict::new(&fleet, &wanted);
    let before = fleet.clone();
    let chosen = choose(
        &mut fleet,
        &wanted,
        &verdict.candidates,
        &Budgets::default(),
    )
    .unwrap();
    assert_eq!(&*chosen.node, "b");
    assert!(fleet == before, "looking for victims changed the ledger");
    let guarded = Budgets {
        allowed: vec![0],
        covering: [("cheap".into(), vec![0])].into(),
    };
    let chosen = choose(&mut fleet, &wanted, &verdict.candidates, &guarded).unwrap();
    assert_eq!(&*chosen.node, "a");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Victims are all of lower priority, the pod fits without them, and with any one of them back it does not.
    #[test]
    fn victims_are_needed_every_one(
        pods in proptest::collection::vec((1..4u32, 0..3i32), 1..8), wanted in 1..8u32, priority in 0..4i32,
    ) {
        let mut fleet = Fleet::new();
        fleet.set_node(request::node(&node("a", 8)));
        let mut used = 0;
        for (number, (cpu, priority)) in pods.into_iter().enumerate() {
            if used + cpu <= 8 {
                used += cpu;
                bind(&mut fleet, &asking(&format!("w{number}"), cpu, priority), "a");
            }
        }
        let request = request::request(&asking("p", wanted, priority));
        let id = fleet.find("a").unwrap();
        prop_assume!(!Filter::new(&fleet, &request).fits(id));
        let before = fleet.clone();
        let chosen = choose(&mut fleet, &request, &[id], &Budgets::default());
        prop_assert!(fleet == before);
        if let Some(chosen) = chosen {
            prop_assert!(chosen.victims.iter().all(|victim| victim.request.priority < priority));
            for victim in &chosen.victims {
                fleet.release(&victim.id);
            }
            prop_assert!(Filter::new(&fleet, &request).fits(id));
            for victim in &chosen.victims {
                fleet.bind(victim.clone()).unwrap();
                prop_assert!(!Filter::new(&fleet, &request).fits(id), "{} could have stayed", victim.id);
                fleet.release(&victim.id);
            }
        }
    }
}
