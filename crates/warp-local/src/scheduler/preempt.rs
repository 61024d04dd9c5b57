//! Preemption: which pods of lower priority must go so that a pod fits, and on which node it costs least.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use warp_core::fleet::{Fleet, NodeId, Request, Work};
use warp_core::schedule::fit::Filter;

/// How many more disruptions each budget allows, and which work it covers.
#[derive(Clone, Debug, Default)]
pub(super) struct Budgets {
    pub(super) allowed: Vec<i32>,
    /// Work id → the budgets that cover it.
    pub(super) covering: BTreeMap<Arc<str>, Vec<usize>>,
}

impl Budgets {
    /// Takes one disruption of `work` out of the budgets; true when one of them does not allow it.
    fn spend(&mut self, work: &str) -> bool {
        let mut violated = false;
        for &budget in self.covering.get(work).into_iter().flatten() {
            self.allowed[budget] -= 1;
            violated |= self.allowed[budget] < 0;
        }
        violated
    }
}

/// A node made free for a pod.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) node: Arc<str>,
    pub(super) victims: Vec<Work>,
}

/// The most nodes examined: beyond that the difference is not worth the time.
const EXAMINED: usize = 100;

/// Finds the node where the least is lost. The fleet is changed while looking and left as it was.
pub(super) fn choose(
    fleet: &mut Fleet,
    request: &Request,
    candidates: &[NodeId],
    budgets: &Budgets,
) -> Option<Chosen> {
    let mut best: Option<(_, Chosen)> = None;
    let mut examined = 0;
    for &id in candidates {
        if examined == EXAMINED {
            break;
        }
        let Some((victims, violations)) = victims(fleet, request, id, budgets) else {
            continue;
        };
        examined += 1;
        let Some(node) = fleet.node(id).map(|node| node.name.clone()) else {
            continue;
        };
        let highest = victims.iter().map(|work| work.request.priority).max();
        let sum: i64 = victims
            .iter()
            .map(|work| i64::from(work.request.priority) + i64::from(i32::MAX) + 1)
            .sum();
        let oldest = victims
            .iter()
            .filter(|work| Some(work.request.priority) == highest)
            .map(|work| work.since)
            .min();
        let cost = (violations, highest, sum, victims.len(), Reverse(oldest));
        if best.as_ref().is_none_or(|(known, _)| cost < *known) {
            best = Some((cost, Chosen { node, victims }));
        }
    }
    best.map(|(_, chosen)| chosen)
}

/// The fewest pods of lower priority whose end lets the request onto the node, and how many budgets that breaks.
fn victims(
    fleet: &mut Fleet,
    request: &Request,
    id: NodeId,
    budgets: &Budgets,
) -> Option<(Vec<Work>, usize)> {
    let lower: Vec<Arc<str>> = fleet
        .works_on(id)
        .filter(|work| work.request.priority < request.priority)
        .map(|work| work.id.clone())
        .collect();
    if lower.is_empty() {
        return None;
    }
    let mut out: Vec<Work> = lower
        .iter()
        .filter_map(|work| fleet.release(work))
        .collect();
    let fits = |fleet: &Fleet| Filter::new(fleet, request).fits(id);
    if !fits(fleet) {
        put_back(fleet, out);
        return None;
    }
    // The most important first: each that still fits stays. Pods whose budget would break get the first chance.
    out.sort_by_key(|work| (Reverse(work.request.priority), work.since));
    let mut budgets = budgets.clone();
    let (breaking, harmless): (Vec<_>, Vec<_>) =
        out.into_iter().partition(|work| budgets.spend(&work.id));
    let mut victims = Vec::new();
    let mut violations = 0;
    for (work, breaks) in breaking
        .into_iter()
        .map(|work| (work, true))
        .chain(harmless.into_iter().map(|work| (work, false)))
    {
        let name = work.id.clone();
        if fleet.bind(work.clone()).is_err() {
            continue;
        }
        if !fits(fleet) {
            fleet.release(&name);
            violations += usize::from(breaks);
            victims.push(work);
        }
    }
    put_back(fleet, victims.clone());
    (!victims.is_empty()).then_some((victims, violations))
}

fn put_back(fleet: &mut Fleet, works: Vec<Work>) {
    for work in works {
        if let Err(error) = fleet.bind(work) {
            tracing::warn!(%error, "the ledger lost a pod while looking for victims");
        }
    }
}
