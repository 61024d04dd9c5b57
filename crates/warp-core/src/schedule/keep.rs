//! Room kept for work that fits nowhere now: the nodes that lack least until other work has ended there. What "has
//! ended" leaves free is asked of the filters themselves, on a copy of the fleet. Who may be kept room, and who has to
//! keep off, is the caller's.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::fleet::{Fleet, NodeId, Request, Work, WorkState};

use super::fit::{Filter, reasons};
use super::planner::{Planner, Scope};
use super::reason::{Obstacle, Reason};
use super::strategy::Policy;

/// What the claim's own pods are called on the copy of the fleet.
const OWN: &str = "kept/";

/// When a piece of work gives its room back, in seconds of the caller's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// By then at the latest.
    By(i64),
    /// Some day.
    Unknown,
    /// Nobody may count on it.
    Never,
}

/// Nodes that hold a claim once enough of the work on them has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// One for each request; a node that takes several is named once.
    pub nodes: Vec<Arc<str>>,
    /// When that work has ended at the latest, where all of it says so.
    pub by: Option<i64>,
    /// Whole cards of that work: how much is lacking.
    pub cards: u64,
}

/// Room on one node: what has to end first.
struct Opening {
    node: NodeId,
    victims: Vec<Arc<str>>,
    /// Cards of theirs, and when the last of them ends.
    cards: u64,
    last: Ending,
}

/// The nodes that lack least for all of `requests`, of those `eligible` lets through. None where work that ends would
/// not be enough.
pub fn keep(
    fleet: &Fleet,
    requests: &[Request],
    ending: &dyn Fn(&Work) -> Ending,
    eligible: &dyn Fn(&str) -> bool,
) -> Option<Kept> {
    keep_in(&mut fleet.clone(), requests, ending, eligible)
}

/// The same without a copy: what is tried on the fleet is undone.
pub fn keep_in(
    fleet: &mut Fleet,
    requests: &[Request],
    ending: &dyn Fn(&Work) -> Ending,
    eligible: &dyn Fn(&str) -> bool,
) -> Option<Kept> {
    let mut tried = Vec::new();
    let kept = try_out(fleet, requests, ending, eligible, &mut tried);
    for tried in tried.into_iter().rev() {
        match tried {
            Tried::Bound(id) => drop(fleet.release(&id)),
            // It was there a moment ago, and what took its place is gone.
            Tried::Released(work) => drop(fleet.bind(work)),
        }
    }
    kept
}

/// A change that is to be undone.
enum Tried {
    Bound(Arc<str>),
    Released(Work),
}

fn try_out(
    fleet: &mut Fleet,
    requests: &[Request],
    ending: &dyn Fn(&Work) -> Ending,
    eligible: &dyn Fn(&str) -> bool,
    tried: &mut Vec<Tried>,
) -> Option<Kept> {
    // Nobody waits for those that are kept room together with it.
    let ending = &|work: &Work| {
        if work.id.starts_with(OWN) {
            Ending::Never
        } else {
            ending(work)
        }
    };
    let mut nodes: Vec<Arc<str>> = Vec::new();
    let mut last = Ending::By(i64::MIN);
    let mut cards = 0;
    for (member, request) in requests.iter().enumerate() {
        let opening = best(fleet, request, ending, eligible)?;
        for victim in &opening.victims {
            tried.extend(fleet.release(victim).map(Tried::Released));
        }
        let scope = Scope::Only(&[opening.node]);
        let mut planner = Planner::new(Policy::BestFit, 0);
        let placement = planner.choose_within(fleet, request, scope)?;
        let id: Arc<str> = Arc::from(format!("{OWN}{member}"));
        let name = Arc::clone(&placement.node);
        let request = Arc::new(request.clone());
        let work = placement.work(Arc::clone(&id), request, 0, WorkState::Reserved);
        fleet.bind(work).ok()?;
        tried.push(Tried::Bound(id));
        if !nodes.contains(&name) {
            nodes.push(name);
        }
        last = last.max(opening.last);
        cards += opening.cards;
    }
    let by = match last {
        Ending::By(at) => Some(at),
        _ => None,
    };
    Some(Kept { nodes, by, cards })
}

/// Whether nothing but other work keeps a request off a node.
pub fn waits_for_work(reasons: &[Reason]) -> bool {
    reasons
        .iter()
        .all(|reason| reason.obstacle() == Obstacle::Work)
}

fn best(
    fleet: &mut Fleet,
    request: &Request,
    ending: &dyn Fn(&Work) -> Ending,
    eligible: &dyn Fn(&str) -> bool,
) -> Option<Opening> {
    let filter = Filter::new(fleet, request);
    let mut candidates: Vec<(u64, NodeId)> = Vec::new();
    for (id, node) in fleet.nodes() {
        if eligible(&node.name) && waits_for_work(&filter.reasons(id)) {
            candidates.push((lacking(fleet, request, id), id));
        }
    }
    candidates.sort_unstable();
    let mut best: Option<Opening> = None;
    for (least, node) in candidates {
        // Those that follow lack even more.
        if best.as_ref().is_some_and(|best| best.cards < least) {
            break;
        }
        // Nothing ends there before what is waited for already.
        let soonest = fleet.works_on(node).map(ending).min();
        let no_sooner = |best: &Opening| {
            least > 0 && best.cards <= least && soonest.is_none_or(|soonest| best.last <= soonest)
        };
        if best.as_ref().is_some_and(no_sooner) {
            continue;
        }
        let Some(found) = opening(fleet, request, node, ending) else {
            continue;
        };
        let better = |best: &Opening| (found.cards, found.last) < (best.cards, best.last);
        if best.as_ref().is_none_or(better) {
            best = Some(found);
        }
    }
    best
}

/// Cards that have to come free at least.
pub(super) fn lacking(fleet: &Fleet, request: &Request, node: NodeId) -> u64 {
    let wanted = request.gpu.as_ref().map_or(0, |gpu| u64::from(gpu.count));
    let idle = fleet.free(node).map_or(0, |free| {
        let pools = free.pools.iter();
        pools
            .map(|pool| pool.idle_cards() as u64)
            .max()
            .unwrap_or(0)
    });
    wanted.saturating_sub(idle)
}

/// What has to end on a node before a request fits there; those that are known to end first go first, and nobody is
/// waited for in vain.
fn opening(
    fleet: &mut Fleet,
    request: &Request,
    node: NodeId,
    ending: &dyn Fn(&Work) -> Ending,
) -> Option<Opening> {
    let mut ends: Vec<(Ending, Reverse<u64>, Arc<str>)> = fleet
        .works_on(node)
        .map(|work| (ending(work), Reverse(cards(work)), Arc::clone(&work.id)))
        .filter(|(ending, ..)| *ending != Ending::Never)
        .collect();
    ends.sort_unstable();
    let mut released: Vec<(Ending, Work)> = Vec::new();
    let mut fits = reasons(fleet, request, node).is_empty();
    for (ending, _, id) in ends {
        if fits {
            break;
        }
        released.extend(fleet.release(&id).map(|work| (ending, work)));
        fits = reasons(fleet, request, node).is_empty();
    }
    let mut needed = Vec::new();
    // The last that ended was needed; of those before it, some may have freed nothing of use.
    while let Some((ending, work)) = released.pop() {
        let id = Arc::clone(&work.id);
        fleet.bind(work.clone()).ok()?;
        if fits && !reasons(fleet, request, node).is_empty() {
            fleet.release(&id);
            needed.push((ending, work));
        }
    }
    for (_, work) in &needed {
        fleet.bind(work.clone()).ok()?;
    }
    fits.then(|| Opening {
        node,
        cards: needed.iter().map(|(_, work)| cards(work)).sum(),
        last: needed
            .iter()
            .map(|(ending, _)| *ending)
            .max()
            .unwrap_or(Ending::By(i64::MIN)),
        victims: needed
            .into_iter()
            .map(|(_, work)| Arc::clone(&work.id))
            .collect(),
    })
}

/// Whole cards a piece of work holds, by what it asks for.
pub(super) fn cards(work: &Work) -> u64 {
    let asked = work.request.gpu.as_ref().map(|gpu| u64::from(gpu.count));
    asked.unwrap_or_else(|| {
        let named = work.request.resources.extended.iter();
        let gpus = named.filter(|(name, _)| name.ends_with("/gpu"));
        gpus.map(|(_, count)| u64::try_from(*count).unwrap_or(0))
            .sum()
    })
}

#[cfg(test)]
mod tests;
