//! Who has to be moved so that a gang fits now. Nobody is named who would not fit elsewhere once the gang is in its place: it
//! is tried on a copy of the fleet, with those that move taken out, the gang put in, and each of them put in again. Who may
//! be moved, and where to, is the caller's.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::fleet::{Fleet, NodeId, Request, WorkState};

use super::evict::{Victim, evict};
use super::keep::cards;
use super::planner::{Planner, Scope};
use super::strategy::Policy;

/// Choices of who moves that are tried: each leaves one out that found no other place.
const TRIES: usize = 8;

/// Work that may be moved, with what it asks for when it is placed again.
#[derive(Clone, Debug)]
pub struct Movable {
    pub victim: Victim,
    pub request: Request,
}

/// Who moves, and where the gang fits then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moves {
    /// Positions in the list of those that may.
    pub moved: Vec<usize>,
    pub nodes: Vec<Arc<str>>,
}

/// The cheapest moves found that let all of `requests` run on nodes that `eligible` lets through, and everybody who is moved
/// run elsewhere.
pub fn defragment(
    fleet: &Fleet,
    requests: &[Request],
    movable: &[Movable],
    eligible: &dyn Fn(&str) -> bool,
) -> Option<Moves> {
    let mut left: Vec<usize> = (0..movable.len()).collect();
    for _ in 0..TRIES {
        let victims: Vec<Victim> = left.iter().map(|at| movable[*at].victim.clone()).collect();
        let found = evict(fleet, requests, &victims, eligible)?;
        let moved: Vec<usize> = found.victims.iter().map(|at| left[*at]).collect();
        match proved(fleet, requests, &found.nodes, movable, &moved) {
            Ok(()) => {
                return Some(Moves {
                    moved,
                    nodes: found.nodes,
                });
            }
            Err(stuck) => {
                let stuck = stuck?;
                left.retain(|at| *at != stuck);
            }
        }
    }
    None
}

/// Whether the gang and all that move have a place; else the one of them that has none, or nobody where it is the gang.
fn proved(
    fleet: &Fleet,
    requests: &[Request],
    nodes: &[Arc<str>],
    movable: &[Movable],
    moved: &[usize],
) -> Result<(), Option<usize>> {
    let mut draft = fleet.clone();
    let mut order: Vec<(u64, usize)> = Vec::new();
    for at in moved {
        let works: Vec<_> = movable[*at].victim.works.iter().collect();
        let released = works.into_iter().filter_map(|work| draft.release(work));
        order.push((released.map(|work| cards(&work)).sum(), *at));
    }
    let ids: BTreeSet<NodeId> = nodes.iter().filter_map(|name| draft.find(name)).collect();
    let ids: Vec<NodeId> = ids.into_iter().collect();
    for (member, request) in requests.iter().enumerate() {
        let id = format!("gang/{member}");
        put(&mut draft, request, Scope::Only(&ids), &id).ok_or(None)?;
    }
    // The largest first: small work fits beside it.
    order.sort_by_key(|(cards, at)| (Reverse(*cards), *at));
    for (_, at) in order {
        let placed = put(
            &mut draft,
            &movable[at].request,
            Scope::All,
            &format!("moved/{at}"),
        );
        if placed.is_none() {
            return Err(Some(at));
        }
    }
    Ok(())
}

/// Enters a request into a fleet; none when it does not fit.
fn put(fleet: &mut Fleet, request: &Request, scope: Scope<'_>, id: &str) -> Option<()> {
    let mut planner = Planner::new(Policy::BestFit, 0);
    let placement = planner.choose_within(fleet, request, scope)?;
    let work = placement.work(
        Arc::from(id),
        Arc::new(request.clone()),
        0,
        WorkState::Reserved,
    );
    fleet.bind(work).ok()
}

#[cfg(test)]
mod tests;
