//! Core's filters and scores are kube-scheduler's: random fleets and pods, judged by the real one.

mod generate;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use warp_core::fleet::{Labels, NodeId};
use warp_core::schedule::fit::Filter;
use warp_core::schedule::score::Rule;
use warp_operator::ledger;
use warp_testkit::SchedulerOracle;
use warp_testkit::oracle::NAMESPACE;

use generate::Generator;

const NODES: usize = 14;
const BOUND: usize = 24;
const QUESTIONS: usize = 60;

/// What one fleet and its questions tell apart, as text for people.
async fn differences(seed: u64) -> Vec<String> {
    let oracle = SchedulerOracle::start().await.unwrap();
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
    let mut ledger = ledger::build(&nodes, &pods, &[]);
    let name = ("kubernetes.io/metadata.name".into(), NAMESPACE.into());
    ledger.fleet.set_namespace(NAMESPACE, Labels::from([name]));
    let mut differing = Vec::new();
    let (mut somewhere, mut nowhere, mut scored) = (0, 0, 0);
    for _ in 0..QUESTIONS {
        let asked: Pod = serde_json::from_value(generator.question(&names)).unwrap();
        let (stored, theirs) = oracle.ask(&asked).await.unwrap();
        let request = ledger::request(&stored.metadata, stored.spec.as_ref().unwrap());
        let filter = Filter::new(&ledger.fleet, &request);
        let fitting: Vec<NodeId> = ledger
            .fleet
            .nodes()
            .map(|(id, _)| id)
            .filter(|id| filter.fits(*id))
            .collect();
        let name = |id: &NodeId| ledger.fleet.node(*id).unwrap().name.to_string();
        let ours: BTreeSet<String> = fitting.iter().map(name).collect();
        let (answer, theirs) = (&theirs, &theirs.fits);
        if theirs.is_empty() {
            nowhere += 1;
        } else {
            somewhere += 1;
        }
        if ours != *theirs {
            let pod = serde_json::to_string(&asked).unwrap();
            differing.push(format!(
                "seed {seed}: only kube-scheduler: {:?}, only warp: {:?}: {pod}",
                theirs.difference(&ours).collect::<Vec<_>>(),
                ours.difference(theirs).collect::<Vec<_>>(),
            ));
            continue;
        }
        scored += usize::from(!answer.scores.is_empty());
        for rule in Rule::ALL {
            let scores = rule.scores(&ledger.fleet, &request, &fitting);
            // A plugin with nothing to say of a pod is left out; ours gives 0.
            let ours: BTreeMap<String, i64> = fitting
                .iter()
                .map(name)
                .zip(scores)
                .filter(|(_, score)| *score != 0)
                .collect();
            let said = answer.plugins.iter();
            let theirs: BTreeMap<String, i64> = said
                .filter(|((plugin, _), score)| plugin == rule.name() && **score != 0)
                .map(|((_, node), score)| (node.clone(), *score))
                .collect();
            if !answer.scores.is_empty() && ours != theirs {
                let pod = serde_json::to_string(&asked).unwrap();
                differing.push(format!(
                    "seed {seed}: {} by kube-scheduler: {theirs:?}, by warp: {ours:?}: {pod}",
                    rule.name()
                ));
            }
        }
    }
    assert!(
        somewhere > QUESTIONS / 4 && scored > QUESTIONS / 4 && nowhere > 0,
        "the questions are too easy or too hard: {somewhere} fit somewhere, {nowhere} nowhere, {scored} had a choice"
    );
    differing
}

#[tokio::test(flavor = "multi_thread")]
async fn fit_and_scores_are_what_kube_scheduler_says() {
    let mut all = Vec::new();
    for seed in 1..=3 {
        all.extend(Box::pin(differences(seed)).await);
    }
    assert!(all.is_empty(), "{}\n{}", all.len(), all.join("\n"));
}
