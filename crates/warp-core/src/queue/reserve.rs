//! Reservation and backfill: the first waiting job that does not fit reserves the nodes that are
//! expected to be free for it soonest; others start off those nodes, or on them when they are
//! expected to be gone in time.

use crate::estimate::Durations;

use super::hold::Hold;
use super::job::{Need, Seconds, Shape};
use super::node_set::NodeSet;
use super::order::Blocked;
use super::pool::{ClassId, NodeId, chunks};
use super::state::State;

/// Nodes kept for one job, and when it is expected to have them.
#[derive(Clone, Debug)]
pub struct Reservation {
    pub nodes: NodeSet,
    pub at: Seconds,
}

/// The nodes, off `avoid`, that are expected to hold the need soonest. `None` only if the need
/// can never be met there.
pub fn reserve(
    state: &mut State,
    durations: &mut Durations,
    need: &Need,
    avoid: Option<&NodeSet>,
) -> Option<Reservation> {
    let single = state.pool().single_node_classes(need);
    let classes = if single.is_empty() {
        &need.accepts
    } else {
        &single
    };
    let mut best: Option<Reservation> = None;
    for class in classes {
        let found = reserve_in(state, durations, *class, need.shape, avoid);
        if let Some(found) = found
            && best.as_ref().is_none_or(|b| found.at < b.at)
        {
            best = Some(found);
        }
    }
    best
}

fn reserve_in(
    state: &mut State,
    durations: &mut Durations,
    class: ClassId,
    shape: Shape,
    avoid: Option<&NodeSet>,
) -> Option<Reservation> {
    let mut nodes = NodeSet::default();
    let mut at = state.now;
    for (count, gpus) in chunks(shape, state.pool().class_size(class)) {
        let mut openings: Vec<(Seconds, NodeId)> = Vec::new();
        for position in 0..state.pool().class_nodes(class).len() {
            let node = state.pool().class_nodes(class)[position];
            if !nodes.contains(node) && !avoid.is_some_and(|a| a.contains(node)) {
                node_openings(state, durations, node, (count, gpus), &mut openings);
            }
        }
        let count = count as usize;
        if openings.len() < count || count == 0 {
            return None;
        }
        let earlier =
            |a: &(Seconds, NodeId), b: &(Seconds, NodeId)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        openings.select_nth_unstable_by(count - 1, earlier);
        at = at.max(openings[count - 1].0);
        for (_, node) in &openings[..count] {
            nodes.insert(*node);
        }
    }
    Some(Reservation { nodes, at })
}

/// When a node is expected to have room for one, two, … up to `count` members of `gpus`.
fn node_openings(
    state: &mut State,
    durations: &mut Durations,
    node: NodeId,
    (count, gpus): (u32, u32),
    openings: &mut Vec<(Seconds, NodeId)>,
) {
    let (now, mut free) = (state.now, state.pool().free_on(node));
    let mut room = 0;
    let mut note = |free: u32, time: Seconds, openings: &mut Vec<(Seconds, NodeId)>| {
        while room < count && free >= (room + 1) * gpus {
            room += 1;
            openings.push((time, node));
        }
        room == count
    };
    if note(free, now, openings) {
        return;
    }
    for (end, held) in state.outlook(node, durations) {
        free += held;
        if note(free, end.max(now), openings) {
            return;
        }
    }
}

/// One pass over the line with a reservation for the first that does not fit. Everybody keeps off
/// the nodes of a hold that binds them.
pub fn backfill(state: &mut State, durations: &mut Durations, hold: Option<&Hold>) {
    let mut reservation: Option<Reservation> = None;
    // The same nodes with those of the hold.
    let mut kept = NodeSet::default();
    let mut off = Blocked::none(state);
    let mut on = Blocked::none(state);
    let mut index = 0;
    while index < state.pending().len() {
        let waiting = state.waiting(index);
        let avoid = hold.and_then(|hold| hold.against(waiting.priority));
        let Some(Reservation { nodes, at }) = &reservation else {
            if !state.try_start(index, avoid) {
                let need = state.need(waiting.need).clone();
                reservation = reserve(state, durations, &need, avoid);
                if let Some(found) = &reservation {
                    kept = found.nodes.clone();
                    if let Some(held) = hold.and_then(|hold| hold.against(i32::MIN)) {
                        kept.extend(held);
                    }
                }
                off.set(waiting.need);
                on.set(waiting.need);
                index += 1;
            }
            continue;
        };
        let reserved = if avoid.is_some() { &kept } else { nodes };
        let mut started = false;
        if !off.has(waiting.need) {
            started = state.try_start(index, Some(reserved));
            if !started {
                off.set(waiting.need);
            }
        }
        let in_time = state.now + waiting.rest <= *at;
        if !started && in_time && !on.has(waiting.need) {
            started = state.try_start(index, avoid);
            if !started {
                on.set(waiting.need);
            }
        }
        if !started && off.has(waiting.need) && in_time && on.all(state) {
            return;
        }
        if !started {
            index += 1;
        }
    }
}
