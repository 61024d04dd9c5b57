//! Who has to go so that a claim fits now. A plan exists only if the claim fits once its victims are gone: the filters
//! themselves say so, on a copy of the fleet, and no victim is named that the claim does not need. Who may be evicted, and
//! what that throws away, is the caller's.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::fleet::{Fleet, NodeId, Request, Work, WorkState};

use super::fit::{Filter, reasons};
use super::keep::{cards, lacking, waits_for_work};
use super::planner::{Planner, Scope};
use super::strategy::Policy;

/// What the claim's own pods are called on the copy of the fleet.
const OWN: &str = "evicting/";

/// Work that may be evicted. All of its pieces go, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Its pieces, by their ids in the fleet.
    pub works: Vec<Arc<str>>,
    /// Lower goes first.
    pub priority: i64,
    /// GPU-seconds that are thrown away with it.
    pub lost_gpu_seconds: u64,
}

/// Who goes, and where the claim fits then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Positions in the list of victims.
    pub victims: Vec<usize>,
    /// One for each request; a node that takes several is named once.
    pub nodes: Vec<Arc<str>>,
}

/// What room on one node costs: the highest priority that goes, then the work thrown away, then how many go.
type Cost = (i64, u64, usize);

/// The cheapest eviction found that lets all of `requests` run on nodes that `eligible` lets through.
pub fn evict(
    fleet: &Fleet,
    requests: &[Request],
    victims: &[Victim],
    eligible: &dyn Fn(&str) -> bool,
) -> Option<Eviction> {
    if victims.is_empty() {
        return None;
    }
    let mut draft = Draft {
        fleet: fleet.clone(),
        victims,
        gone: BTreeSet::new(),
    };
    let mut nodes: Vec<Arc<str>> = Vec::new();
    for (member, request) in requests.iter().enumerate() {
        let (node, going) = draft.cheapest(request, eligible)?;
        for victim in going {
            draft.release(victim);
            draft.gone.insert(victim);
        }
        let mut planner = Planner::new(Policy::BestFit, 0);
        let placement = planner.choose_within(&draft.fleet, request, Scope::Only(&[node]))?;
        let name = Arc::clone(&placement.node);
        let id = Arc::from(format!("{OWN}{member}"));
        let work = placement.work(id, Arc::new(request.clone()), 0, WorkState::Reserved);
        draft.fleet.bind(work).ok()?;
        if !nodes.contains(&name) {
            nodes.push(name);
        }
    }
    let victims: Vec<usize> = draft.gone.into_iter().collect();
    (!victims.is_empty()).then_some(Eviction { victims, nodes })
}

/// A copy of the fleet without those that go.
struct Draft<'a> {
    fleet: Fleet,
    victims: &'a [Victim],
    gone: BTreeSet<usize>,
}

impl Draft<'_> {
    /// The node where room for a request costs least, and who goes for it.
    fn cheapest(
        &mut self,
        request: &Request,
        eligible: &dyn Fn(&str) -> bool,
    ) -> Option<(NodeId, Vec<usize>)> {
        let filter = Filter::new(&self.fleet, request);
        let nodes = self.fleet.nodes();
        let nodes =
            nodes.filter(|(id, node)| eligible(&node.name) && waits_for_work(&filter.reasons(*id)));
        let nodes: Vec<NodeId> = nodes.map(|(id, _)| id).collect();
        let mut best: Option<(Cost, NodeId, Vec<usize>)> = None;
        for node in nodes {
            let Some((cost, going)) = self.room(request, node) else {
                continue;
            };
            if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                best = Some((cost, node, going));
            }
        }
        best.map(|(_, node, going)| (node, going))
    }

    /// Who has to go from a node for a request, and what that costs. The copy is as before afterwards.
    fn room(&mut self, request: &Request, node: NodeId) -> Option<(Cost, Vec<usize>)> {
        let mut here = self.on(node);
        let cards_here: u64 = here.iter().map(|victim| self.cards(*victim, node)).sum();
        if cards_here < lacking(&self.fleet, request, node) {
            return None;
        }
        here.sort_by_key(|victim| self.rank(*victim));
        let mut released: Vec<(usize, Vec<Work>)> = Vec::new();
        let mut fits = reasons(&self.fleet, request, node).is_empty();
        for victim in here {
            if fits {
                break;
            }
            released.push((victim, self.release(victim)));
            fits = reasons(&self.fleet, request, node).is_empty();
        }
        let mut going = Vec::new();
        let mut kept = Vec::new();
        // The dearest first: whoever need not go stays.
        while let Some((victim, works)) = released.pop() {
            self.bind(&works)?;
            if fits && !reasons(&self.fleet, request, node).is_empty() {
                self.release(victim);
                going.push(victim);
                kept.push(works);
            }
        }
        for works in &kept {
            self.bind(works)?;
        }
        let ranks = || going.iter().map(|victim| self.rank(*victim));
        let cost = (
            ranks()
                .map(|(priority, ..)| priority)
                .max()
                .unwrap_or(i64::MIN),
            ranks().map(|(_, lost, _)| lost).sum(),
            going.len(),
        );
        fits.then_some((cost, going))
    }

    /// Who may go from a node and has not yet.
    fn on(&self, node: NodeId) -> Vec<usize> {
        let here: BTreeSet<&str> = self.fleet.works_on(node).map(|work| &*work.id).collect();
        let victims = self.victims.iter().enumerate();
        victims
            .filter(|(at, victim)| {
                let mut works = victim.works.iter();
                !self.gone.contains(at) && works.any(|work| here.contains(&**work))
            })
            .map(|(at, _)| at)
            .collect()
    }

    fn rank(&self, victim: usize) -> (i64, u64, usize) {
        let one = &self.victims[victim];
        (one.priority, one.lost_gpu_seconds, victim)
    }

    fn cards(&self, victim: usize, node: NodeId) -> u64 {
        let works = self.fleet.works_on(node);
        let own = works.filter(|work| self.victims[victim].works.contains(&work.id));
        own.map(cards).sum()
    }

    fn release(&mut self, victim: usize) -> Vec<Work> {
        let (victims, fleet) = (self.victims, &mut self.fleet);
        let works = victims[victim].works.iter();
        works.filter_map(|work| fleet.release(work)).collect()
    }

    fn bind(&mut self, works: &[Work]) -> Option<()> {
        for work in works {
            self.fleet.bind(work.clone()).ok()?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
