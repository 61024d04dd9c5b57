//! Core's filters are kube-scheduler's: random fleets and pods, judged by the real one.

mod generate;

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use warp_core::schedule::fit::Filter;
use warp_operator::ledger;
use warp_testkit::FilterOracle;

use generate::Generator;

const NODES: usize = 14;
const BOUND: usize = 24;
const QUESTIONS: usize = 60;

/// What one fleet and its questions tell apart, as text for people.
async fn differences(seed: u64) -> Vec<String> {
    let oracle = FilterOracle::start().await.unwrap();
    let mut generator = Generator::new(seed);
    let (mut nodes, mut pods) = (Vec::<Arc<Node>>::new(), Vec::<Arc<Pod>>::new());
    for _ in 0..NODES {
        let node = serde_json::from_value(generator.node()).unwrap();
        nodes.push(Arc::new(oracle.add_node(&node).await.unwrap()));
    }
    let names: Vec<String> = nodes.iter().map(|node| node.name_any()).collect();
    for number in 0..BOUND {
        // Crowded at one end so that some nodes are full and some are empty.
        let place = number * number * names.len() / (BOUND * BOUND);
        let pod = serde_json::from_value(generator.bound_pod(&names[place])).unwrap();
        let added = oracle.add_pod(&pod).await.unwrap();
        let name = added.name_any();
        pods.push(Arc::new(match number % 6 {
            4 => oracle.end_pod(&name).await.unwrap(),
            5 => oracle.stop_pod(&name).await.unwrap(),
            _ => added,
        }));
    }
    oracle.settle().await.unwrap();
    let ledger = ledger::build(&nodes, &pods, &[]);
    let mut differing = Vec::new();
    let (mut somewhere, mut nowhere) = (0, 0);
    for _ in 0..QUESTIONS {
        let asked: Pod = serde_json::from_value(generator.question(&names)).unwrap();
        let (stored, theirs) = oracle.ask(&asked).await.unwrap();
        let request = ledger::request(&stored.metadata, stored.spec.as_ref().unwrap());
        let filter = Filter::new(&ledger.fleet, &request);
        let ours: BTreeSet<String> = ledger
            .fleet
            .nodes()
            .filter(|(id, _)| filter.fits(*id))
            .map(|(_, node)| node.name.to_string())
            .collect();
        if theirs.is_empty() {
            nowhere += 1;
        } else {
            somewhere += 1;
        }
        if ours != theirs {
            let pod = serde_json::to_string(&asked).unwrap();
            differing.push(format!(
                "seed {seed}: only kube-scheduler: {:?}, only warp: {:?}: {pod}",
                theirs.difference(&ours).collect::<Vec<_>>(),
                ours.difference(&theirs).collect::<Vec<_>>(),
            ));
        }
    }
    assert!(
        somewhere > QUESTIONS / 4 && nowhere > 0,
        "the questions are too easy or too hard: {somewhere} fit somewhere, {nowhere} nowhere"
    );
    differing
}

#[tokio::test(flavor = "multi_thread")]
async fn fit_is_what_kube_scheduler_says() {
    let mut all = Vec::new();
    for seed in 1..=3 {
        all.extend(differences(seed).await);
    }
    assert!(all.is_empty(), "{}\n{}", all.len(), all.join("\n"));
}
