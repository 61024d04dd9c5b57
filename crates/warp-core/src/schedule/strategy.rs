//! Strategies: which of the nodes that fit is best. Each is one file; adding one means its file, and its place in `Policy`
//! here: the name, `ALL` and the strategy it stands for.
//!
//! A strategy splits its score in two so that a decision need not rate the whole fleet again:
//! `rate` depends on the request's shape and one node and is remembered until that node changes;
//! `weights` is what the whole fleet contributes, computed once per decision.

mod best_fit;
mod clustering;
mod cost_optimized;
mod dot_prod;
mod fgd;
mod least_loaded;
mod packing;
mod price;
mod random;
mod warp;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use fgd::Fragmentation;
pub use price::{BadPriceWeight, PriceWeight};
pub use warp::{FillValue, Tuning};

use super::mix::Mix;
use crate::fleet::{Fleet, Free, KindSet, Node, NodeId, PoolFree, Request, WHOLE};
use crate::random::Fingerprint;

/// A request reduced to what a score depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    /// Cards; 0 for work without GPUs.
    pub count: u32,
    /// Thousandths of each card.
    pub milli: u32,
    pub kinds: KindSet,
    /// Whether the request says which kinds it accepts.
    pub typed: bool,
    /// Equal for requests that rate equally on every node.
    pub print: u64,
}

impl Ask {
    pub fn new(fleet: &Fleet, request: &Request) -> Self {
        let gpu = request.gpu.as_ref();
        let kinds = gpu.map(|gpu| fleet.accepted(gpu)).unwrap_or_default();
        let print = Fingerprint::default().word(request.fingerprint());
        let print = kinds
            .words()
            .iter()
            .fold(print, |print, &word| print.word(word))
            .get();
        Self {
            cpu_milli: request.resources.cpu_milli,
            memory_bytes: request.resources.memory_bytes,
            count: gpu.map_or(0, |gpu| gpu.count),
            milli: gpu.map_or(0, |gpu| gpu.milli),
            typed: gpu.is_some_and(|gpu| {
                !gpu.models.is_empty()
                    || gpu.min_memory_bytes > 0
                    || gpu.vendor.is_some()
                    || gpu.resource.is_some()
            }),
            kinds,
            print,
        }
    }

    pub fn gpu_milli(&self) -> i64 {
        i64::from(self.count) * i64::from(self.milli)
    }

    pub fn is_fraction(&self) -> bool {
        self.count == 1 && self.milli < WHOLE
    }
}

/// A node that fits, and the pool the cards would come from.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'a> {
    pub fleet: &'a Fleet,
    pub id: NodeId,
    pub node: &'a Node,
    pub free: &'a Free,
    pub pool: Option<&'a PoolFree>,
}

impl Spot<'_> {
    pub fn cards(&self) -> &[i32] {
        self.pool
            .map(|pool| pool.cards.as_slice())
            .unwrap_or_default()
    }

    /// The card with the smallest remainder that suffices.
    pub fn tightest_card(&self, milli: u32) -> Option<usize> {
        let fits = |&(_, &left): &(usize, &i32)| i64::from(left) >= i64::from(milli);
        self.cards()
            .iter()
            .enumerate()
            .filter(fits)
            .min_by_key(|&(_, &left)| left)
            .map(|(at, _)| at)
    }
}

/// What a node is worth to a request: the higher the better.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rating {
    pub value: f64,
    /// Scaled by `Weights::extra`.
    pub extra: f64,
    /// The node's standing before and after, as positions in `Weights::standings`.
    pub standings: (u16, u16),
}

impl From<f64> for Rating {
    fn from(value: f64) -> Self {
        Self {
            value,
            extra: 0.0,
            standings: (0, 0),
        }
    }
}

/// The fleet's part of a score: `value + extra · rating.extra + standings[after] − standings[before]
/// − penalty[kind]`, cut to multiples of `quantum`. Nodes of equal score are taken in one fixed random order per seed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights {
    pub extra: f64,
    /// What nodes are worth by their standing; a missing entry is 0.
    pub standings: Vec<f64>,
    /// By kind number; a missing entry is 0.
    pub penalty: Vec<f64>,
    /// 0 = scores are compared exactly.
    pub quantum: f64,
    /// Ignore ratings and take any node that fits, by this number.
    pub dice: Option<u64>,
}

pub trait Strategy: fmt::Debug + Send {
    fn policy(&self) -> Policy;

    /// Sees every request before it is placed, whether it fits or not.
    fn arrived(&mut self, _fleet: &Fleet, _ask: &Ask) {}

    /// Changes when remembered ratings are no longer true.
    fn epoch(&self, _fleet: &Fleet) -> u64 {
        0
    }

    /// Rates a node on which the request fits.
    fn rate(&mut self, spot: &Spot<'_>, ask: &Ask) -> Rating;

    /// Called once per decision, after `rate`.
    fn weights(&mut self, _fleet: &Fleet, _ask: &Ask) -> Weights {
        Weights::default()
    }

    /// The card for a fraction, on the node that was chosen.
    fn card(&mut self, spot: &Spot<'_>, ask: &Ask) -> Option<usize> {
        spot.tightest_card(ask.milli)
    }
}

/// The strategies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Policy {
    /// Keep what the future can fill: the default.
    Warp,
    LeastLoaded,
    Random,
    CostOptimized,
    BestFit,
    Packing,
    DotProd,
    Clustering,
    Fgd,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("failed to find strategy {0:?}: use one of {names}", names = Policy::names())]
pub struct UnknownPolicy(String);

impl Policy {
    pub const ALL: [Self; 9] = [
        Self::Warp,
        Self::LeastLoaded,
        Self::Random,
        Self::CostOptimized,
        Self::BestFit,
        Self::Packing,
        Self::DotProd,
        Self::Clustering,
        Self::Fgd,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Warp => "warp",
            Self::LeastLoaded => "leastLoaded",
            Self::Random => "random",
            Self::CostOptimized => "costOptimized",
            Self::BestFit => "bestFit",
            Self::Packing => "packing",
            Self::DotProd => "dotProd",
            Self::Clustering => "clustering",
            Self::Fgd => "fgd",
        }
    }

    /// Whether its choices depend on the requests it saw before.
    pub const fn learns(self) -> bool {
        matches!(self, Self::Warp | Self::Fgd)
    }

    fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// The policy with the user's weight of prices. Only `warp` has a use for it: `costOptimized`
    /// looks at nothing but prices, the others at everything else.
    pub const fn weighing(self, price: PriceWeight) -> Weighed {
        Weighed {
            policy: self,
            price,
        }
    }

    /// The strategy, knowing nothing of the requests to come.
    pub fn strategy(self, seed: u64) -> Box<dyn Strategy> {
        Weighed::from(self).strategy(seed)
    }

    /// The strategy, told beforehand which requests to expect.
    pub fn informed(self, seed: u64, fleet: &Fleet, mix: &Mix) -> Box<dyn Strategy> {
        Weighed::from(self).informed(seed, fleet, mix)
    }

    /// The strategy for a running cluster, told what is there now: work leaves as it comes.
    pub fn live(self, seed: u64, fleet: &Fleet, mix: &Mix) -> Box<dyn Strategy> {
        Weighed::from(self).live(seed, fleet, mix)
    }
}

/// A policy with what its user weighs in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighed {
    pub policy: Policy,
    pub price: PriceWeight,
}

impl From<Policy> for Weighed {
    fn from(policy: Policy) -> Self {
        policy.weighing(PriceWeight::IGNORED)
    }
}

impl Weighed {
    fn tuning(self) -> Tuning {
        Tuning {
            price: self.price,
            ..Tuning::default()
        }
    }

    /// The strategy, knowing nothing of the requests to come.
    pub fn strategy(self, seed: u64) -> Box<dyn Strategy> {
        match self.policy {
            Policy::Warp => Box::new(FillValue::learning(self.tuning(), seed)),
            Policy::LeastLoaded => Box::new(least_loaded::LeastLoaded),
            Policy::Random => Box::new(random::AnyNode::new(seed)),
            Policy::CostOptimized => Box::new(cost_optimized::CostOptimized),
            Policy::BestFit => Box::new(best_fit::BestFit),
            Policy::Packing => Box::new(packing::Packing),
            Policy::DotProd => Box::new(dot_prod::DotProd),
            Policy::Clustering => Box::new(clustering::Clustering),
            Policy::Fgd => Box::new(fgd::Fgd::learning()),
        }
    }

    /// The strategy, told beforehand which requests to expect.
    pub fn informed(self, seed: u64, fleet: &Fleet, mix: &Mix) -> Box<dyn Strategy> {
        match self.policy {
            Policy::Warp => Box::new(FillValue::informed(self.tuning(), seed, fleet, mix)),
            Policy::Fgd => Box::new(fgd::Fgd::informed(mix)),
            _ => self.strategy(seed),
        }
    }

    /// The strategy for a running cluster, told what is there now: work leaves as it comes.
    pub fn live(self, seed: u64, fleet: &Fleet, mix: &Mix) -> Box<dyn Strategy> {
        match self.policy {
            Policy::Warp => Box::new(FillValue::steady(self.tuning(), seed, fleet, mix)),
            _ => self.informed(seed, fleet, mix),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}
