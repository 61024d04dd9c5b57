//! Pods to be near to and pods to be away from, by the wish of either side.

use std::collections::BTreeMap;

use crate::fleet::{Fleet, Node, NodeId, PodTerm, Request, Work};
use crate::schedule::fit::pods::{Side, selects};

use super::{FULL, each};

/// A pod whose own affinity requires others nearby is a mild reason for them to come.
const REQUIRED_NEARBY: i64 = 1;

/// Sums of weights by topology key and value.
type Domains<'a> = BTreeMap<(&'a str, &'a str), i64>;

pub(super) fn scores(fleet: &Fleet, request: &Request, nodes: &[NodeId]) -> Vec<i64> {
    let domains = domains(fleet, request);
    let mut scores = each(fleet, nodes, |_, node| {
        let here = domains
            .iter()
            .filter(|((key, value), _)| node.labels.get(*key).is_some_and(|own| **own == **value));
        here.map(|(_, weight)| *weight).sum()
    });
    let (least, most) = (
        scores.iter().copied().min().unwrap_or(0),
        scores.iter().copied().max().unwrap_or(0),
    );
    for score in &mut scores {
        *score = share(*score - least, most - least);
    }
    scores
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "the score is cut to a hundredth, as kube-scheduler cuts it"
)]
fn share(part: i64, whole: i64) -> i64 {
    if whole == 0 {
        return 0;
    }
    (FULL as f64 * (part as f64 / whole as f64)) as i64
}

/// Whether work that is there already makes some domain better or worse for the request.
pub(super) fn is_swayed(fleet: &Fleet, request: &Request) -> bool {
    let selected = |work: &Work| {
        stated(&work.request)
            .any(|(term, _)| selects(fleet, term, Side::Bound, &work.request, request))
    };
    fleet.swaying().any(selected)
}

fn domains<'a>(fleet: &'a Fleet, request: &'a Request) -> Domains<'a> {
    let mut domains = Domains::new();
    if request.preferences.speak_of_pods() {
        for work in fleet.works() {
            let Some(node) = node_of(fleet, work) else {
                continue;
            };
            for (term, weight) in preferred(request) {
                if selects(fleet, term, Side::Asking, request, &work.request) {
                    add(&mut domains, term, node, weight);
                }
            }
        }
    }
    for work in fleet.swaying() {
        let Some(node) = node_of(fleet, work) else {
            continue;
        };
        for (term, weight) in stated(&work.request) {
            if selects(fleet, term, Side::Bound, &work.request, request) {
                add(&mut domains, term, node, weight);
            }
        }
    }
    domains
}

fn node_of<'a>(fleet: &'a Fleet, work: &Work) -> Option<&'a Node> {
    let id = fleet.find(&work.node)?;
    fleet.node(id).map(|node| &**node)
}

fn add<'a>(domains: &mut Domains<'a>, term: &'a PodTerm, node: &'a Node, weight: i64) {
    if let Some(value) = node.labels.get(&term.topology_key) {
        *domains.entry((&*term.topology_key, &**value)).or_default() += weight;
    }
}

/// The preferred terms with their weights, those against below zero.
fn preferred(request: &Request) -> impl Iterator<Item = (&PodTerm, i64)> {
    let preferences = &request.preferences;
    let near = preferences
        .pod_affinity
        .iter()
        .map(|one| (&one.term, i64::from(one.weight)));
    let apart = preferences
        .pod_anti_affinity
        .iter()
        .map(|one| (&one.term, -i64::from(one.weight)));
    near.chain(apart)
}

/// Everything a bound pod says of pods that come after it.
fn stated(request: &Request) -> impl Iterator<Item = (&PodTerm, i64)> {
    let required = &request.constraints.pod_affinity;
    preferred(request).chain(required.iter().map(|term| (term, REQUIRED_NEARBY)))
}
