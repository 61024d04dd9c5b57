//! Invariants over fleets and decisions: what must never happen, whoever decided.
//!
//! Tests run these over every decision; debug builds run them inside the planner.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::fleet::{Cards, Fleet, Level, NodeId, Request, WHOLE, Work};
use crate::schedule::fit::{Filter, reasons};
use crate::schedule::reclaim::held;
use crate::schedule::{Gang, GangPlacement, Placement, Scope};

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The node, request or work it is about.
    pub object: Arc<str>,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.what)
    }
}

fn violation(object: &Arc<str>, what: impl Into<String>) -> Violation {
    Violation {
        object: Arc::clone(object),
        what: what.into(),
    }
}

/// No card, CPU, memory or named resource given out twice.
pub fn not_over_committed(fleet: &Fleet) -> Vec<Violation> {
    let mut found = Vec::new();
    for (id, node) in fleet.nodes() {
        let Some(free) = fleet.free(id) else { continue };
        let mut sum = |name: &str, left: i64| {
            if left < 0 {
                found.push(violation(
                    &node.name,
                    format!("{name} over-committed by {}", -left),
                ));
            }
        };
        sum("cpu", free.resources.cpu_milli);
        sum("memory", free.resources.memory_bytes);
        sum("pods", free.pods);
        free.resources
            .extended
            .iter()
            .for_each(|(name, &left)| sum(name, left));
        for pool in &free.pools {
            pool.cards
                .iter()
                .for_each(|&left| sum("a card", i64::from(left)));
        }
    }
    found
}

/// A request that was refused fits none of the nodes it could have had.
pub fn refusal(fleet: &Fleet, request: &Request, scope: Scope<'_>) -> Vec<Violation> {
    let filter = Filter::new(fleet, request);
    let fits = |node: NodeId| {
        let fitting = fleet.node(node).filter(|_| filter.fits(node));
        fitting.map(|node| violation(&request.name, format!("refused, but fits {}", node.name)))
    };
    match scope {
        Scope::All => fleet.nodes().filter_map(|(id, _)| fits(id)).collect(),
        Scope::Only(nodes) => nodes.iter().filter_map(|node| fits(*node)).collect(),
    }
}

/// What work holds of each node's GPUs, as quotas count it, is no more than the node's GPUs: seats and parts add up to
/// whole devices at most.
pub fn shares_within_devices(fleet: &Fleet) -> Vec<Violation> {
    let mut found = Vec::new();
    for (id, node) in fleet.nodes() {
        let held = fleet.works_on(id).flat_map(|work| held(fleet, work));
        let held: i64 = held.map(|(_, milli)| milli).sum();
        let most = node.gpus.iter().map(|pool| match &pool.cards {
            Cards::Counted => {
                let units = node.allocatable.extended(&pool.resource).max(0);
                units.saturating_mul(i64::from(pool.unit.milli))
            }
            Cards::Each(cards) => {
                let cards = i64::try_from(cards.len()).unwrap_or(i64::MAX);
                cards.saturating_mul(i64::from(WHOLE))
            }
        });
        let most: i64 = most.sum();
        if held > most {
            let what = format!("{held} thousandths of its GPUs are held, it has {most}");
            found.push(violation(&node.name, what));
        }
    }
    found
}

/// Thousandths of GPU: what is free and what work holds add up to what healthy cards have, pool by
/// pool, for pools known card by card.
pub fn gpus_conserved(fleet: &Fleet) -> Vec<Violation> {
    let mut found = Vec::new();
    for (id, node) in fleet.nodes() {
        for (at, pool) in node.gpus.iter().enumerate() {
            let Cards::Each(cards) = &pool.cards else {
                continue;
            };
            // Of cards cut by amount a pod does not say which one it holds.
            if pool.unit.limits.is_some() {
                continue;
            }
            let mut left = vec![i64::from(WHOLE); cards.len()];
            for work in fleet.works_on(id) {
                let (Some(gpu), Some(taken)) = (&work.request.gpu, &work.gpus) else {
                    continue;
                };
                for &card in taken.cards.iter().filter(|_| taken.pool == at) {
                    if let Some(left) = left.get_mut(usize::from(card)) {
                        *left -= i64::from(gpu.milli);
                    }
                }
            }
            let shown = fleet
                .free(id)
                .map(|free| free.pools[at].cards.clone())
                .unwrap_or_default();
            for ((card, left), shown) in cards.iter().zip(left).zip(shown) {
                let expected = if card.healthy { left } else { left.min(0) };
                if expected != i64::from(shown) {
                    let what = format!("a card shows {shown} free, its work leaves {expected}");
                    found.push(violation(&node.name, what));
                }
            }
        }
    }
    found
}

/// A placement is one the fleet can carry out now: the node fits and the cards exist and have room.
pub fn placement(fleet: &Fleet, request: &Request, placement: &Placement) -> Vec<Violation> {
    let about = |what: String| vec![violation(&request.name, what)];
    let Some(id) = fleet.find(&placement.node) else {
        return about(format!("placed on unknown node {}", placement.node));
    };
    if let Some(reason) = reasons(fleet, request, id).first() {
        return about(format!(
            "placed on {}, which is {}",
            placement.node,
            reason.label()
        ));
    }
    let (Some(gpu), Some(taken)) = (&request.gpu, &placement.gpus) else {
        return match (&request.gpu, &placement.gpus) {
            (None, None) => Vec::new(),
            _ => about("cards given and cards asked for disagree".into()),
        };
    };
    let (Some(node), Some(free)) = (fleet.node(id), fleet.free(id)) else {
        return Vec::new();
    };
    let Some(pool) = node.gpus.get(taken.pool) else {
        return about(format!("no pool {} on {}", taken.pool, node.name));
    };
    if pool.cards == Cards::Counted {
        return Vec::new();
    }
    let distinct: BTreeSet<_> = taken.cards.iter().collect();
    let room = |&&card: &&u16| {
        let left = free.pools[taken.pool].cards.get(usize::from(card));
        left.is_some_and(|&left| i64::from(left) >= i64::from(gpu.milli))
    };
    let sound = distinct.len() == gpu.count as usize
        && taken.cards.len() == distinct.len()
        && distinct.iter().all(room);
    if sound {
        Vec::new()
    } else {
        about(format!("cards {:?} cannot serve it", taken.cards))
    }
}

/// All members or none, inside one domain of the level the placement claims, and not wider than
/// required.
pub fn gang(fleet: &Fleet, gang: &Gang, placed: &GangPlacement) -> Vec<Violation> {
    let mut found = Vec::new();
    let wanted: usize = gang
        .members
        .iter()
        .map(|member| member.count as usize)
        .sum();
    if placed.members.len() != wanted {
        found.push(violation(
            &gang.name,
            format!("{} of {wanted} placed", placed.members.len()),
        ));
    }
    if gang.required.is_some() && (placed.level.is_none() || placed.level > gang.required) {
        found.push(violation(
            &gang.name,
            "wider than the required topology level",
        ));
    }
    if let Some(near) = &gang.near
        && (near.required || placed.domain.is_some())
    {
        let value = |member: &crate::schedule::PlacedMember, key: &str| {
            let node = fleet.node(fleet.find(&member.placement.node)?)?;
            node.labels.get(key).cloned()
        };
        let shares = |key: &Arc<str>| {
            let mut values = placed.members.iter().map(|member| value(member, key));
            placed.domain.is_some() && values.all(|value| value == placed.domain)
        };
        let then = near.then.iter().filter(|_| !near.required);
        if !std::iter::once(&near.key).chain(then).any(shares) {
            let problem = format!("its nodes do not share one value of {}", near.key);
            found.push(violation(&gang.name, problem));
        }
    }
    if let Some(level) = placed.level {
        let domain = |at: usize| domain_of(fleet, &placed.members[at].placement, level);
        if (1..placed.members.len()).any(|at| domain(at) != domain(0)) {
            found.push(violation(
                &gang.name,
                format!("spans several domains of level {level}"),
            ));
        }
    }
    let mut after = fleet.clone();
    for (at, member) in placed.members.iter().enumerate() {
        let request = &gang.members[member.member].request;
        found.extend(placement(&after, request, &member.placement));
        let id = Arc::from(format!("{}/{at}", gang.name));
        let work = member.placement.work(
            id,
            Arc::clone(request),
            0,
            crate::fleet::WorkState::Reserved,
        );
        if let Err(error) = after.bind(work) {
            found.push(violation(&gang.name, error.to_string()));
        }
    }
    found
}

fn domain_of(fleet: &Fleet, placement: &Placement, level: Level) -> Option<(Arc<str>, Arc<str>)> {
    Some(fleet.node(fleet.find(&placement.node)?)?.domain(level))
}

/// An eviction must buy something: the request did not fit before, and fits once the victims left.
pub fn preemption_helps(fleet: &Fleet, request: &Request, victims: &[&str]) -> Vec<Violation> {
    let fits = |fleet: &Fleet| {
        let filter = Filter::new(fleet, request);
        fleet.nodes().any(|(id, _)| filter.fits(id))
    };
    let mut found = Vec::new();
    if fits(fleet) {
        found.push(violation(&request.name, "evicts although it fits without"));
    }
    let mut after = fleet.clone();
    let gone: Vec<Option<Work>> = victims.iter().map(|victim| after.release(victim)).collect();
    if let Some(at) = gone.iter().position(Option::is_none) {
        found.push(violation(
            &request.name,
            format!("evicts {}, which does not run", victims[at]),
        ));
    }
    if !fits(&after) {
        found.push(violation(
            &request.name,
            "does not fit although its victims left",
        ));
    }
    found
}
