//! Eviction plans. A plan exists only if the preemptor runs once its victims are gone: the plan
//! carries the placement that proves it, and no victim that the placement does not need. Victims
//! are those whose eviction throws the least work away. A job never evicts one that evicted it.

use crate::queue::job::{Job, Need, Seconds, Shape};
use crate::queue::node_set::{End, NodeSet};
use crate::queue::pool::{ClassId, NodeId, Placement, Pool, chunks};
use crate::queue::state::{Slot, State};

/// When one job may evict another of its own priority class. Lower classes may be evicted at any
/// time, higher ones never; only checkpointed work is evicted at all.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How many times worse the victim's rank must be.
    pub factor: f64,
    /// How long it must have run since it last started.
    pub min_run: Seconds,
}

/// Who goes, and where the preemptor runs then.
#[derive(Clone, Debug)]
pub struct Plan {
    pub victims: Vec<Slot>,
    pub placement: Placement,
}

/// Whether `victim` may be evicted for `preemptor`.
pub fn may_evict(state: &State, preemptor: &Job, rank: f64, victim: &Job, terms: &Terms) -> bool {
    let Some(run) = &victim.run else { return false };
    if victim.checkpoint.is_none() || preemptor.evicted_by.contains(&victim.id) {
        return false;
    }
    match victim.priority.cmp(&preemptor.priority) {
        std::cmp::Ordering::Less => true,
        // Whoever has saved something since it started gets on, however often it is evicted.
        std::cmp::Ordering::Equal => {
            run.rank > terms.factor * rank
                && state.now - run.since >= terms.min_run
                && victim.kept(state.now) > 0.0
        }
        std::cmp::Ordering::Greater => false,
    }
}

/// The cheapest plan found that lets `preemptor` run now off the nodes of `avoid`.
pub fn plan(
    state: &State,
    preemptor: &Job,
    rank: f64,
    terms: &Terms,
    avoid: Option<&NodeSet>,
) -> Option<Plan> {
    let need = state.need(preemptor.need);
    let mut evictable: Vec<Option<f64>> = Vec::new();
    let mut gpus = 0;
    for slot in state.running() {
        let victim = state.job(*slot);
        if may_evict(state, preemptor, rank, victim, terms) {
            if evictable.len() <= slot.index() {
                evictable.resize(slot.index() + 1, None);
            }
            evictable[slot.index()] = victim.eviction_cost(state.now);
            gpus += u64::from(victim.gpus);
        }
    }
    if gpus == 0 || gpus + state.pool().free() < u64::from(need.shape.gpus()) {
        return None;
    }
    let draft = Draft {
        state,
        evictable: &evictable,
        avoid,
    };
    let single = state.pool().single_node_classes(need);
    let choice = if single.is_empty() {
        let gangs = need
            .accepts
            .iter()
            .filter_map(|class| draft.gang(*class, need.shape));
        gangs.min_by(|a, b| a.0.total_cmp(&b.0))
    } else {
        let nodes = single
            .iter()
            .flat_map(|class| state.pool().class_nodes(*class));
        draft
            .cheapest(nodes.copied(), need.shape.gpus(), &Freed::default())
            .map(|(cost, _, v)| (cost, v))
    };
    let (_, victims) = choice?;
    prove(state, need, victims, &evictable, (avoid, preemptor.end))
}

/// Evicts on a copy, drops victims that are not needed (the dearest first) and keeps the proof.
fn prove(
    state: &State,
    need: &Need,
    mut victims: Vec<Slot>,
    evictable: &[Option<f64>],
    (avoid, end): (Option<&NodeSet>, End),
) -> Option<Plan> {
    let mut pool = state.pool().clone();
    for victim in &victims {
        move_parts(&mut pool, state.job(*victim), true);
    }
    pool.fit(need, avoid, end)?;
    let cost = |slot: &Slot| evictable[slot.index()].unwrap_or(f64::INFINITY);
    victims.sort_by(|a, b| cost(b).total_cmp(&cost(a)).then(a.cmp(b)));
    victims.retain(|victim| {
        move_parts(&mut pool, state.job(*victim), false);
        let needed = pool.fit(need, avoid, end).is_none();
        if needed {
            move_parts(&mut pool, state.job(*victim), true);
        }
        needed
    });
    let placement = pool.fit(need, avoid, end)?;
    Some(Plan { victims, placement })
}

fn move_parts(pool: &mut Pool, job: &Job, give: bool) {
    let parts = job
        .run
        .as_ref()
        .map_or(&[][..], |run| run.placement.parts());
    for (node, gpus) in parts {
        if give {
            pool.give(*node, *gpus);
        } else {
            pool.take(*node, *gpus);
        }
    }
}

/// What a half-made plan has freed and used already.
#[derive(Clone, Debug, Default)]
struct Freed {
    victims: Vec<Slot>,
    used: Vec<(NodeId, u32)>,
}

struct Draft<'a> {
    state: &'a State,
    evictable: &'a [Option<f64>],
    avoid: Option<&'a NodeSet>,
}

impl Draft<'_> {
    /// The node where room for `gpus` costs least: (cost, node, victims there).
    fn cheapest(
        &self,
        nodes: impl Iterator<Item = NodeId>,
        gpus: u32,
        freed: &Freed,
    ) -> Option<(f64, NodeId, Vec<Slot>)> {
        let mut best: Option<(f64, NodeId, Vec<Slot>)> = None;
        for node in nodes {
            if self.avoid.is_some_and(|a| a.contains(node)) {
                continue;
            }
            if let Some((cost, victims)) = self.room(node, gpus, freed)
                && best.as_ref().is_none_or(|(least, ..)| cost < *least)
            {
                best = Some((cost, node, victims));
            }
        }
        best
    }

    /// Cost and victims of room for `gpus` on one node, beside what the plan has done already.
    fn room(&self, node: NodeId, gpus: u32, freed: &Freed) -> Option<(f64, Vec<Slot>)> {
        let mut free = self.state.pool().free_on(node);
        let mut candidates: Vec<(f64, Slot, u32)> = Vec::new();
        for slot in self.state.on_node(node) {
            let here = self.held(*slot, node);
            if freed.victims.contains(slot) {
                free += here;
            } else if let Some(Some(cost)) = self.evictable.get(slot.index()) {
                candidates.push((*cost, *slot, here));
            }
        }
        let used: u32 = freed
            .used
            .iter()
            .filter(|(n, _)| *n == node)
            .map(|(_, g)| g)
            .sum();
        free = free.saturating_sub(used);
        if free >= gpus {
            return Some((0.0, Vec::new()));
        }
        if free + candidates.iter().map(|(.., here)| here).sum::<u32>() < gpus {
            return None;
        }
        candidates.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut chosen: Vec<(f64, Slot, u32)> = Vec::new();
        for candidate in candidates {
            if free >= gpus {
                break;
            }
            free += candidate.2;
            chosen.push(candidate);
        }
        for index in (0..chosen.len()).rev() {
            if free - chosen[index].2 >= gpus {
                free -= chosen[index].2;
                chosen.remove(index);
            }
        }
        let cost = chosen.iter().map(|(cost, ..)| cost).sum();
        Some((cost, chosen.into_iter().map(|(_, slot, _)| slot).collect()))
    }

    fn held(&self, slot: Slot, node: NodeId) -> u32 {
        let run = self.state.job(slot).run.as_ref();
        let parts = run.map_or(&[][..], |run| run.placement.parts());
        parts
            .iter()
            .filter(|(n, _)| *n == node)
            .map(|(_, g)| g)
            .sum()
    }

    /// Member by member, always where the next one costs least.
    fn gang(&self, class: ClassId, shape: Shape) -> Option<(f64, Vec<Slot>)> {
        let mut freed = Freed::default();
        let mut total = 0.0;
        for (count, gpus) in chunks(shape, self.state.pool().class_size(class)) {
            for _ in 0..count {
                let nodes = self.state.pool().class_nodes(class).iter().copied();
                let (cost, node, victims) = self.cheapest(nodes, gpus, &freed)?;
                total += cost;
                freed.victims.extend(victims);
                freed.used.push((node, gpus));
            }
        }
        Some((total, freed.victims))
    }
}

#[cfg(test)]
mod tests;
