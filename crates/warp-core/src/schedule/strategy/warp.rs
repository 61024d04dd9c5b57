//! Fill-value: how much of a node will *eventually* be filled, now and after the placement.
//!
//! A node is worth what random sequences of expected requests would put on it. A placement is good
//! where the node loses little of that worth beyond what the request itself uses. On top of that:
//! slots for multi-GPU requests are kept, the more the fewer are left (`slots`), CPU is spared while
//! it is scarcer than GPUs (`extra`), and requests that accept any kind stay off kinds that others
//! insist on (`penalty`). The expected requests are given, or learnt from those that arrived.

mod slots;
mod worth;

use super::fgd::take;
use super::{Ask, Policy, PriceWeight, Rating, Spot, Strategy, Weights};
use crate::fleet::Fleet;
use crate::random::Fingerprint;
use crate::schedule::mix::{Learning, Mix};
use worth::{Value, Worth};

/// The constants of the policy. One set serves every fleet and mix; the price weight is the user's.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// Sequences per node value.
    pub lists: usize,
    /// Requests with GPUs per sequence.
    pub length: usize,
    /// CPU-only requests per sequence.
    pub cpu_length: usize,
    /// What a lost slot for multi-GPU requests counts, against its expected use.
    pub slots: f64,
    /// What a lost slot counts, against its size, once all that are left will be needed. On a fleet
    /// that only fills up, the last whole nodes are best used in parts; where as much leaves as comes,
    /// a broken node is hard to regain, and a slot counts in full.
    pub scarce_slots: f64,
    /// What a lost slot counts, against its expected use, while the mix is unknown: rare large
    /// requests are learnt last.
    pub doubtful_slots: f64,
    /// How much more often than by its share a request that insists on few kinds is expected there.
    pub insistence: f64,
    /// Thousandths of GPU that a core counts when CPU is the scarcer resource.
    pub core_gpu: f64,
    /// The same, for requests without GPUs.
    pub core_cpu: f64,
    /// Scores closer than this (thousandths of GPU) are equal.
    pub quantum: f64,
    pub price: PriceWeight,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            lists: 32,
            length: 40,
            cpu_length: 25,
            slots: 0.02,
            scarce_slots: 0.5,
            doubtful_slots: 0.15,
            insistence: 0.5,
            core_gpu: 10.0,
            core_cpu: 20.0,
            quantum: 60.0,
            price: PriceWeight::IGNORED,
        }
    }
}

/// Arrivals after which what was learnt and what is doubted weigh the same.
const DOUBT: f64 = 2000.0;

/// How little is known of a mix, from 1 (nothing) towards 0.
fn doubt(mix: &Mix) -> f64 {
    DOUBT / (DOUBT + mix.weight())
}

#[derive(Debug)]
pub struct FillValue {
    tuning: Tuning,
    seed: u64,
    worth: Worth,
    learning: Option<Learning>,
    cards: Vec<i32>,
    turnover: Turnover,
}

/// How much of what comes is matched by what leaves, over the last arrivals.
#[derive(Clone, Copy, Debug, Default)]
struct Turnover {
    /// Free GPU at the last arrival.
    free: Option<f64>,
    came: f64,
    left: f64,
}

impl Turnover {
    /// As much leaves as comes.
    const fn steady(milli: f64) -> Self {
        Self {
            free: None,
            came: milli,
            left: milli,
        }
    }

    fn note(&mut self, free: f64) {
        /// What an arrival still counts after the next one.
        const FADE: f64 = 0.999;
        let change = self.free.replace(free).map_or(0.0, |before| free - before);
        self.came = self.came * FADE + (-change).max(0.0);
        self.left = self.left * FADE + change.max(0.0);
    }

    /// 0 on a fleet that only fills up, 1 where as much leaves as comes.
    fn share(&self) -> f64 {
        (self.left / self.came.max(1.0)).min(1.0)
    }
}

/// What will still be asked for.
#[derive(Clone, Copy, Debug)]
struct Coming {
    /// Thousandths of GPU that are free: requests will come for them.
    free: f64,
    /// Thousandths that are held and come back to be asked for again.
    renewed: f64,
}

impl Coming {
    /// Thousandths of GPU that requests with this share of all, of this size each, will ask for
    /// beyond what they hold. They get their part of what is free; and where work leaves and comes
    /// again, how many run at once varies by its square root: two deviations are expected.
    fn asked(&self, share: f64, size: f64) -> f64 {
        const DEVIATIONS: f64 = 2.0;
        share * self.free + DEVIATIONS * (share * self.renewed * size).sqrt()
    }
}

impl FillValue {
    /// Knows nothing at first and learns from every arrival.
    pub fn learning(tuning: Tuning, seed: u64) -> Self {
        let worth = Worth::new(&tuning, seed, &Fleet::new(), &Mix::default(), 1.0);
        Self {
            tuning,
            seed,
            worth,
            learning: Some(Learning::default()),
            cards: Vec::new(),
            turnover: Turnover::default(),
        }
    }

    /// Expects this mix for ever.
    pub fn informed(tuning: Tuning, seed: u64, fleet: &Fleet, mix: &Mix) -> Self {
        let worth = Worth::new(&tuning, seed, fleet, mix, 0.0);
        Self {
            tuning,
            seed,
            worth,
            learning: None,
            cards: Vec::new(),
            turnover: Turnover::default(),
        }
    }

    /// Expects the mix it is shown, on a fleet where as much work leaves as comes. It remembers
    /// nothing between decisions, so a live loop that is rebuilt from its snapshot decides the same.
    pub fn steady(tuning: Tuning, seed: u64, fleet: &Fleet, mix: &Mix) -> Self {
        let worth = Worth::new(&tuning, seed, fleet, mix, doubt(mix));
        Self {
            worth,
            turnover: Turnover::steady(fleet.totals().gpu_milli() as f64),
            ..Self::informed(tuning, seed, fleet, mix)
        }
    }

    /// What the node is worth as it is.
    fn now(&mut self, spot: &Spot<'_>) -> Value {
        let resources = &spot.free.resources;
        let kind = spot.pool.map(|pool| pool.kind);
        self.worth.of(
            kind,
            resources.cpu_milli,
            resources.memory_bytes,
            spot.cards(),
        )
    }

    /// What the fleet gains (negative: loses) by the placement, in thousandths of GPU and in cores.
    fn gain(&mut self, spot: &Spot<'_>, ask: &Ask, card: Option<usize>, before: &Value) -> Rating {
        let resources = &spot.free.resources;
        let kind = spot.pool.map(|pool| pool.kind);
        let memory = self.worth.typical_memory(ask);
        self.cards.clear();
        self.cards.extend_from_slice(spot.cards());
        take(&mut self.cards, ask, card);
        let after = self.worth.of(
            kind,
            resources.cpu_milli - ask.cpu_milli,
            (resources.memory_bytes - memory).max(0),
            &self.cards,
        );
        Rating {
            value: after.gpu - before.gpu + ask.gpu_milli() as f64,
            extra: after.cores - before.cores,
            standings: (before.standing, after.standing),
        }
    }

    /// The card whose use gains most; the smallest remainder among equals.
    fn best_card(&mut self, spot: &Spot<'_>, ask: &Ask) -> Option<(usize, Rating)> {
        let before = self.now(spot);
        let mut best: Option<(usize, i32, Rating)> = None;
        for (at, &left) in spot.cards().iter().enumerate() {
            let seen = || spot.cards()[..at].contains(&left);
            if i64::from(left) < i64::from(ask.milli) || seen() {
                continue;
            }
            let gain = self.gain(spot, ask, Some(at), &before);
            let better = best.is_none_or(|(_, known_left, known)| {
                gain.value > known.value || (gain.value >= known.value && left < known_left)
            });
            if better {
                best = Some((at, left, gain));
            }
        }
        best.map(|(at, _, gain)| (at, gain))
    }
}

impl Strategy for FillValue {
    fn policy(&self) -> Policy {
        Policy::Warp
    }

    fn arrived(&mut self, fleet: &Fleet, ask: &Ask) {
        self.turnover.note(fleet.totals().free_gpu_milli() as f64);
        if let Some(learning) = &mut self.learning
            && learning.see(ask)
        {
            let mix = learning.mix();
            self.worth = Worth::new(&self.tuning, self.seed, fleet, mix, doubt(mix));
        }
    }

    fn epoch(&self, fleet: &Fleet) -> u64 {
        let learnt = self.learning.as_ref().map_or(0, Learning::epoch);
        let prices = self.tuning.price.epoch(fleet);
        Fingerprint::default().word(learnt).word(prices).get()
    }

    fn rate(&mut self, spot: &Spot<'_>, ask: &Ask) -> Rating {
        let mut gain = if ask.is_fraction() {
            self.best_card(spot, ask)
                .map(|(_, gain)| gain)
                .unwrap_or_default()
        } else {
            let before = self.now(spot);
            self.gain(spot, ask, None, &before)
        };
        gain.value -= self.tuning.price.cost(spot, ask);
        gain
    }

    fn weights(&mut self, fleet: &Fleet, ask: &Ask) -> Weights {
        let totals = fleet.totals();
        let free_gpu = totals.free_gpu_milli() as f64;
        let scarcity = self.worth.cpu_per_gpu * free_gpu / (totals.free_cpu_milli as f64).max(1.0);
        let core = if ask.count == 0 {
            self.tuning.core_cpu
        } else {
            self.tuning.core_gpu
        };
        let turnover = self.turnover.share();
        let coming = Coming {
            free: free_gpu,
            renewed: turnover * (totals.gpu_milli() as f64 - free_gpu),
        };
        // Whoever can go elsewhere stays off kinds that others insist on, the more the scarcer they
        // are.
        let asked = ask.gpu_milli() as f64;
        let of = |(kind, _)| {
            let insisted = self.worth.insisted(kind);
            let wanted = coming.asked(insisted.share, insisted.size);
            let free = totals.free_gpu_milli_of(kind) as f64;
            asked * (wanted / free.max(1.0)).min(1.0).powi(2)
        };
        let penalty = if ask.count == 0 {
            Vec::new()
        } else {
            fleet.kinds().map(of).collect()
        };
        let whole = self.tuning.scarce_slots + (1.0 - self.tuning.scarce_slots) * turnover;
        Weights {
            standings: self.worth.slots.prices(fleet, &coming, whole),
            extra: core * ((scarcity - 0.9) / 0.1).clamp(0.0, 1.0),
            penalty,
            quantum: self.tuning.quantum,
            dice: None,
        }
    }

    fn card(&mut self, spot: &Spot<'_>, ask: &Ask) -> Option<usize> {
        self.best_card(spot, ask).map(|(at, _)| at)
    }
}
