//! The planner: one decision after another over a fleet that changes between them.
//!
//! Ratings are remembered per request shape and node, each with the fingerprint of the node it was
//! computed on; a decision walks the remembered ratings and recomputes those whose node changed.
//! The memory never decides anything: the node that wins is checked again before it is returned.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fit::{Filter, usable_pools};
use super::score;
use super::strategy::{Ask, Policy, Spot, Strategy, Weights};
use crate::explain::Explanation;
use crate::fleet::{Cards, Fleet, NodeId, PoolFree, Request, Slot, Taken, WHOLE, Work, WorkState};
use crate::random::{Fingerprint, mix};

/// Where a request goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    pub node_id: NodeId,
    pub node: Arc<str>,
    pub gpus: Option<Taken>,
    pub score: f64,
}

impl Placement {
    /// The work this placement becomes when bound or reserved.
    pub fn work(&self, id: Arc<str>, request: Arc<Request>, since: i64, state: WorkState) -> Work {
        let (node, gpus) = (Arc::clone(&self.node), self.gpus.clone());
        Work {
            id,
            request,
            node,
            gpus,
            since,
            state,
        }
    }
}

/// Decides one request with a fresh planner. A loop of decisions is faster with a `Planner`.
pub fn place(
    fleet: &Fleet,
    request: &Request,
    policy: Policy,
    seed: u64,
) -> Result<Placement, Explanation> {
    Planner::new(policy, seed).place(fleet, request)
}

#[derive(Debug)]
pub struct Planner {
    strategy: Box<dyn Strategy>,
    seed: u64,
    boards: BTreeMap<u64, Board>,
    decisions: u64,
}

/// The ratings of one request shape, one entry per node in each list. Lists apart, because the walk
/// over all nodes reads mostly the values.
#[derive(Debug, Default)]
struct Board {
    epoch: u64,
    last_used: u64,
    /// The node's fingerprint a rating was computed on; 0 = never.
    prints: Vec<u64>,
    /// `UNFIT` where the request does not fit.
    values: Vec<f64>,
    rows: Vec<Row>,
}

const UNFIT: f64 = f64::NEG_INFINITY;

/// The rest of one node's rating.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    extra: f32,
    before: u16,
    after: u16,
    rank: u32,
    kind: u16,
    pool: u16,
}

impl Board {
    fn reset(&mut self, epoch: u64) {
        self.prints.fill(0);
        self.epoch = epoch;
    }

    fn resize(&mut self, nodes: usize) {
        self.prints.resize(nodes, 0);
        self.values.resize(nodes, UNFIT);
        self.rows.resize(nodes, Row::default());
    }
}

/// Request shapes remembered at once. A fleet sees a few hundred; the bound keeps a stream of
/// unique shapes from eating the memory.
const BOARDS: usize = 1024;

/// Which nodes a decision may choose from.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    All,
    Only(&'a [NodeId]),
}

struct Best {
    score: f64,
    rank: u64,
    at: usize,
    /// The least raw score that still equals `score` once cut to quanta.
    bar: f64,
}

impl Planner {
    pub fn new(policy: Policy, seed: u64) -> Self {
        Self::with_strategy(policy.strategy(seed), seed)
    }

    pub fn with_strategy(strategy: Box<dyn Strategy>, seed: u64) -> Self {
        Self {
            strategy,
            seed,
            boards: BTreeMap::new(),
            decisions: 0,
        }
    }

    pub fn policy(&self) -> Policy {
        self.strategy.policy()
    }

    /// The best place for a request, or why there is none.
    pub fn place(&mut self, fleet: &Fleet, request: &Request) -> Result<Placement, Explanation> {
        self.choose(fleet, request)
            .ok_or_else(|| Explanation::new(fleet, request))
    }

    /// The best place for a request that was offered before: a request that waits is decided again
    /// and again, but arrived once, and only arrivals say what to expect.
    pub fn place_again(
        &mut self,
        fleet: &Fleet,
        request: &Request,
    ) -> Result<Placement, Explanation> {
        let again = self.decide(fleet, request, Scope::All, false);
        again.ok_or_else(|| Explanation::new(fleet, request))
    }

    /// The best place for a request, if it fits anywhere.
    pub fn choose(&mut self, fleet: &Fleet, request: &Request) -> Option<Placement> {
        self.choose_within(fleet, request, Scope::All)
    }

    /// The best place among some nodes.
    pub fn choose_within(
        &mut self,
        fleet: &Fleet,
        request: &Request,
        scope: Scope<'_>,
    ) -> Option<Placement> {
        self.decide(fleet, request, scope, true)
    }

    pub(super) fn decide(
        &mut self,
        fleet: &Fleet,
        request: &Request,
        scope: Scope<'_>,
        arrived: bool,
    ) -> Option<Placement> {
        let ask = Ask::new(fleet, request);
        let filter = Filter::new(fleet, request);
        // Nothing is remembered of it: a sound request may have the same shape.
        if !filter.is_sound() {
            return None;
        }
        if arrived {
            self.strategy.arrived(fleet, &ask);
        }
        let preferred = preferred(fleet, request, &filter, scope);
        let scope = preferred.as_deref().map_or(scope, Scope::Only);
        let epoch = self.strategy.epoch(fleet);
        self.decisions += 1;
        let mut board = self.boards.remove(&ask.print).unwrap_or_default();
        if board.epoch != epoch {
            board.reset(epoch);
        }
        board.resize(fleet.prints().len());
        board.last_used = self.decisions;
        let mut search = Search {
            fleet,
            request,
            ask: &ask,
            filter: &filter,
            strategy: &mut *self.strategy,
            seed: self.seed,
            others: filter.watches_others(),
        };
        let found = search.run(&mut board, scope);
        let placement = found.and_then(|best| search.settle(&board, &best));
        debug_assert!(
            placement.is_some() || crate::check::refusal(fleet, request, scope).is_empty(),
            "refused what fits: {:?}",
            crate::check::refusal(fleet, request, scope)
        );
        self.boards.insert(ask.print, board);
        self.forget();
        placement
    }

    fn forget(&mut self) {
        if self.boards.len() > BOARDS {
            let oldest = self.boards.iter().min_by_key(|(_, board)| board.last_used);
            if let Some((&print, _)) = oldest {
                self.boards.remove(&print);
            }
        }
    }
}

/// The nodes to choose from when anything states a preference: it comes before the strategy.
fn preferred(
    fleet: &Fleet,
    request: &Request,
    filter: &Filter<'_>,
    scope: Scope<'_>,
) -> Option<Vec<NodeId>> {
    if !score::has_preferences(fleet, request) {
        return None;
    }
    let fits = |node: &NodeId| filter.fits(*node);
    let fitting: Vec<NodeId> = match scope {
        Scope::All => fleet.nodes().map(|(id, _)| id).filter(fits).collect(),
        Scope::Only(nodes) => nodes.iter().copied().filter(fits).collect(),
    };
    (!fitting.is_empty()).then(|| score::preferred(fleet, request, &fitting))
}

struct Search<'a> {
    fleet: &'a Fleet,
    request: &'a Request,
    ask: &'a Ask,
    filter: &'a Filter<'a>,
    strategy: &'a mut dyn Strategy,
    seed: u64,
    others: bool,
}

impl Search<'_> {
    fn run(&mut self, board: &mut Board, scope: Scope<'_>) -> Option<Best> {
        match scope {
            Scope::All => {
                self.refresh(board);
                let weights = self.strategy.weights(self.fleet, self.ask);
                self.best(board, &weights, 0..board.values.len())
            }
            Scope::Only(nodes) => {
                let nodes = nodes.iter().map(|node| node.index());
                let at: Vec<_> = nodes.filter(|&at| at < board.values.len()).collect();
                for &at in &at {
                    self.refresh_one(board, at);
                }
                let weights = self.strategy.weights(self.fleet, self.ask);
                self.best(board, &weights, at.into_iter())
            }
        }
    }

    /// Rates again every node that changed since it was rated.
    fn refresh(&mut self, board: &mut Board) {
        const STEP: usize = 32;
        let nodes = board.prints.len();
        for from in (0..nodes).step_by(STEP) {
            let range = from..nodes.min(from + STEP);
            if board.prints[range.clone()] != self.fleet.prints()[range.clone()] {
                range.for_each(|at| self.refresh_one(board, at));
            }
        }
    }

    fn refresh_one(&mut self, board: &mut Board, at: usize) {
        let print = self.fleet.prints()[at];
        if board.prints[at] != print {
            let rated = self.rate(at);
            board.prints[at] = print;
            board.values[at] = rated.map_or(UNFIT, |(value, _)| value);
            board.rows[at] = rated.map(|(_, row)| row).unwrap_or_default();
        }
    }

    fn best(
        &self,
        board: &Board,
        weights: &Weights,
        nodes: impl Iterator<Item = usize>,
    ) -> Option<Best> {
        let plain = weights.extra == 0.0
            && weights.standings.is_empty()
            && weights.penalty.iter().all(|&penalty| penalty == 0.0);
        let mut best: Option<Best> = None;
        let mut bar = f64::MIN;
        for at in nodes {
            let mut raw = board.values[at];
            if !plain {
                let row = &board.rows[at];
                let penalty = weights
                    .penalty
                    .get(usize::from(row.kind))
                    .copied()
                    .unwrap_or(0.0);
                let standing = |at: u16| weights.standings.get(usize::from(at)).copied();
                let kept = standing(row.after).unwrap_or(0.0) - standing(row.before).unwrap_or(0.0);
                raw += weights.extra * f64::from(row.extra) + kept - penalty;
            }
            if raw < bar {
                continue;
            }
            let found = ranked(weights, raw, &board.rows[at], at);
            let better = best.as_ref().is_none_or(|best| {
                found.score > best.score || (found.rank, at) < (best.rank, best.at)
            });
            if better && self.fits_now(at) {
                bar = found.bar;
                best = Some(found);
            }
        }
        best
    }

    /// What a row does not remember: memory and other pods.
    fn fits_now(&self, at: usize) -> bool {
        node_at(at).is_some_and(|node| {
            self.filter.fits_memory(node) && (!self.others || self.filter.fits_others(node))
        })
    }

    /// The value and the rest of a node's rating, if the request fits it.
    fn rate(&mut self, at: usize) -> Option<(f64, Row)> {
        let id = node_at(at)?;
        let slot = self.fleet.slot(id)?;
        if !self.filter.fits_but_for_memory(id) {
            return None;
        }
        let rank = Fingerprint::default()
            .word(self.seed)
            .word(slot.name_print)
            .get();
        let row = Row {
            rank: (rank >> 32) as u32,
            ..Row::default()
        };
        let free = &slot.free;
        let Some(gpu) = &self.request.gpu else {
            let spot = spot(self.fleet, id, slot, free.pools.first());
            let rating = self.strategy.rate(&spot, self.ask);
            return Some((
                rating.value,
                Row {
                    extra: coarse(rating.extra),
                    before: rating.standings.0,
                    after: rating.standings.1,
                    ..row
                },
            ));
        };
        let mut best = None;
        for pool in usable_pools(&slot.node, free, gpu, self.filter.kinds()) {
            let spot = spot(self.fleet, id, slot, Some(&free.pools[pool]));
            let rating = self.strategy.rate(&spot, self.ask);
            if best.is_none_or(|(value, _)| rating.value > value) {
                let kind = u16::try_from(free.pools[pool].kind.index()).unwrap_or(u16::MAX);
                let pool = u16::try_from(pool).unwrap_or(u16::MAX);
                best = Some((
                    rating.value,
                    Row {
                        extra: coarse(rating.extra),
                        before: rating.standings.0,
                        after: rating.standings.1,
                        kind,
                        pool,
                        ..row
                    },
                ));
            }
        }
        best
    }

    /// Turns the winning row into a placement: checks it against the fleet and picks the cards.
    fn settle(&mut self, board: &Board, best: &Best) -> Option<Placement> {
        let id = node_at(best.at)?;
        let slot = self.fleet.slot(id)?;
        debug_assert!(
            self.filter.fits(id),
            "a remembered rating outlived its node"
        );
        let pool = usize::from(board.rows[best.at].pool);
        let gpus = match &self.request.gpu {
            None => None,
            Some(gpu) => Some(Taken {
                pool,
                cards: match slot.node.gpus.get(pool)?.cards {
                    Cards::Counted => Vec::new(),
                    Cards::Each(_) if gpu.is_fraction() => {
                        let spot = spot(self.fleet, id, slot, slot.free.pools.get(pool));
                        vec![u16::try_from(self.strategy.card(&spot, self.ask)?).ok()?]
                    }
                    Cards::Each(_) => idle_cards(&slot.free.pools[pool].cards, gpu.count),
                },
            }),
        };
        let placement = Placement {
            node_id: id,
            node: Arc::clone(&slot.node.name),
            gpus,
            score: best.score,
        };
        debug_assert_eq!(
            crate::check::placement(self.fleet, self.request, &placement),
            []
        );
        Some(placement)
    }
}

fn ranked(weights: &Weights, raw: f64, row: &Row, at: usize) -> Best {
    // The nudge keeps a score that is a whole number of quanta from falling below it by
    // rounding.
    const NUDGE: f64 = 1e-6;
    let quantum = weights.quantum;
    let rank = u64::from(row.rank);
    if let Some(dice) = weights.dice {
        return Best {
            score: 0.0,
            rank: mix(dice ^ rank),
            at,
            bar: f64::MIN,
        };
    }
    if quantum > 0.0 {
        let score = (raw / quantum + NUDGE).floor();
        return Best {
            score,
            rank,
            at,
            bar: (score - NUDGE) * quantum,
        };
    }
    Best {
        score: raw,
        rank,
        at,
        bar: raw,
    }
}

fn spot<'a>(fleet: &'a Fleet, id: NodeId, slot: &'a Slot, pool: Option<&'a PoolFree>) -> Spot<'a> {
    Spot {
        fleet,
        id,
        node: &slot.node,
        free: &slot.free,
        pool,
    }
}

/// Half the width is enough for a term that is scaled and then cut to quanta.
#[expect(
    clippy::cast_possible_truncation,
    reason = "precision is not needed here"
)]
const fn coarse(value: f64) -> f32 {
    value as f32
}

/// The first `count` fully idle cards.
fn idle_cards(cards: &[i32], count: u32) -> Vec<u16> {
    let idle = (0_u16..)
        .zip(cards)
        .filter(|(_, left)| **left >= WHOLE.cast_signed());
    idle.map(|(at, _)| at).take(count as usize).collect()
}

fn node_at(at: usize) -> Option<NodeId> {
    u32::try_from(at).ok().map(NodeId::at)
}
