//! The planner: one decision after another over a fleet that changes between them.
//!
//! Ratings are remembered per request shape and node, each with the fingerprint of the node it was
//! computed on; a decision walks the remembered ratings and recomputes those whose node changed.
//! The memory never decides anything: the node that wins is checked again before it is returned.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fit::{Filter, usable_pools};
use super::strategy::{Ask, Policy, Spot, Strategy, Weights};
use crate::explain::Explanation;
use crate::fleet::{Cards, Fleet, NodeId, Request, Taken, WHOLE, Work, WorkState};
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

/// The ratings of one request shape.
#[derive(Debug, Default)]
struct Board {
    epoch: u64,
    last_used: u64,
    rows: Vec<Row>,
}

/// One node's rating; `print` 0 means never computed.
#[derive(Clone, Copy, Debug)]
struct Row {
    print: u64,
    value: f64,
    extra: f32,
    rank: u32,
    kind: u32,
    pool: u16,
    fits: bool,
}

const UNRATED: Row = Row {
    print: 0,
    value: 0.0,
    extra: 0.0,
    rank: 0,
    kind: u32::MAX,
    pool: 0,
    fits: false,
};

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
        let ask = Ask::new(fleet, request);
        let filter = Filter::new(fleet, request);
        self.strategy.arrived(fleet, &ask);
        let weights = self.strategy.weights(fleet, &ask);
        let epoch = self.strategy.epoch(fleet);
        self.decisions += 1;
        let mut board = self.boards.remove(&ask.print).unwrap_or_default();
        if board.epoch != epoch {
            board.rows.clear();
            board.epoch = epoch;
        }
        board.rows.resize(fleet.prints().len(), UNRATED);
        board.last_used = self.decisions;
        let mut search = Search {
            fleet,
            request,
            ask: &ask,
            filter: &filter,
            weights: &weights,
            strategy: &mut *self.strategy,
            seed: self.seed,
            others: filter.watches_others(),
        };
        let found = search.run(&mut board, scope);
        let placement = found.and_then(|best| search.settle(&board, &best));
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

struct Search<'a> {
    fleet: &'a Fleet,
    request: &'a Request,
    ask: &'a Ask,
    filter: &'a Filter<'a>,
    weights: &'a Weights,
    strategy: &'a mut dyn Strategy,
    seed: u64,
    others: bool,
}

impl Search<'_> {
    fn run(&mut self, board: &mut Board, scope: Scope<'_>) -> Option<Best> {
        let mut best = None;
        match scope {
            Scope::All => {
                for at in 0..board.rows.len() {
                    self.consider(&mut board.rows[at], at, &mut best);
                }
            }
            Scope::Only(nodes) => {
                for node in nodes {
                    if let Some(row) = board.rows.get_mut(node.index()) {
                        self.consider(row, node.index(), &mut best);
                    }
                }
            }
        }
        best
    }

    fn consider(&mut self, row: &mut Row, at: usize, best: &mut Option<Best>) {
        let print = self.fleet.prints()[at];
        if row.print != print {
            *row = self.rate(at, print);
        }
        if !row.fits {
            return;
        }
        let (score, rank) = match self.weights.dice {
            Some(dice) => (0.0, mix(dice ^ at as u64)),
            None => (self.score(row), u64::from(row.rank)),
        };
        let better = best.as_ref().is_none_or(|best| {
            score > best.score || (score >= best.score && (rank, at) < (best.rank, best.at))
        });
        if better && (!self.others || self.fits_others(at)) {
            *best = Some(Best { score, rank, at });
        }
    }

    fn score(&self, row: &Row) -> f64 {
        let penalty = self
            .weights
            .penalty
            .get(row.kind as usize)
            .copied()
            .unwrap_or(0.0);
        let score = row.value + self.weights.extra * f64::from(row.extra) - penalty;
        if self.weights.quantum > 0.0 {
            // The nudge keeps a score that is a whole number of quanta from falling below it by
            // rounding.
            (score / self.weights.quantum + 1e-6).floor()
        } else {
            score
        }
    }

    fn fits_others(&self, at: usize) -> bool {
        node_at(at).is_some_and(|node| self.filter.fits_others(node))
    }

    fn rate(&mut self, at: usize, print: u64) -> Row {
        let mut row = Row { print, ..UNRATED };
        let Some(id) = node_at(at) else { return row };
        let Some(slot) = self.fleet.slot(id) else {
            return row;
        };
        if !self.filter.fits_alone(id) {
            return row;
        }
        row.rank = (Fingerprint::default()
            .word(self.seed)
            .text(&slot.node.name)
            .get()
            >> 32) as u32;
        row.fits = true;
        let (node, free) = (&*slot.node, &slot.free);
        let Some(gpu) = &self.request.gpu else {
            let spot = Spot {
                node,
                free,
                pool: free.pools.first(),
            };
            let rating = self.strategy.rate(&spot, self.ask);
            row.value = rating.value;
            row.extra = rating.extra as f32;
            return row;
        };
        let mut first = true;
        for pool in usable_pools(node, free, gpu, self.filter.kinds()) {
            let spot = Spot {
                node,
                free,
                pool: Some(&free.pools[pool]),
            };
            let rating = self.strategy.rate(&spot, self.ask);
            if first || rating.value > row.value {
                first = false;
                row.value = rating.value;
                row.extra = rating.extra as f32;
                row.kind = u32::try_from(free.pools[pool].kind.index()).unwrap_or(u32::MAX);
                row.pool = u16::try_from(pool).unwrap_or(u16::MAX);
            }
        }
        row.fits = !first;
        row
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
                        let free = &slot.free;
                        let spot = Spot {
                            node: &slot.node,
                            free,
                            pool: free.pools.get(pool),
                        };
                        vec![u16::try_from(self.strategy.card(&spot, self.ask)?).ok()?]
                    }
                    Cards::Each(_) => idle_cards(&slot.free.pools[pool].cards, gpu.count),
                },
            }),
        };
        Some(Placement {
            node_id: id,
            node: Arc::clone(&slot.node.name),
            gpus,
            score: best.score,
        })
    }
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
