//! Providers, the groups of nodes with one value of `gpu.warp.dev/provider`: which are tried for a claim and in which
//! order, and which it has to keep off, with the reason. What their comparison is made of is `warp-core`'s. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use warp_api::label::PROVIDER_ANY;
use warp_api::providers::ProviderRules;
use warp_core::breaker::State;
use warp_core::fleet::{Fleet, Node, NodeId, WorkState};
use warp_core::provider::{BEST, Candidate, Scored, rank};

use super::Claim;
use super::history::{History, Standing};
use crate::ledger::{Ledger, provider_of};

/// What is said of providers, and how they stand.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Providers {
    rules: Arc<ProviderRules>,
    standings: BTreeMap<String, Standing>,
}

/// The providers to try, in order, and what those were given that were compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tries {
    pub(super) order: Vec<Option<String>>,
    pub(super) scored: Vec<Scored>,
}

/// Providers a claim has to keep off, each with why.
pub(crate) type Closed = BTreeMap<String, String>;

impl Providers {
    pub(crate) fn new(rules: Arc<ProviderRules>, history: &History, now: Timestamp) -> Self {
        Self {
            rules,
            standings: history.standings(now),
        }
    }

    /// Which providers are tried for a claim. Those it names come in its order; those it leaves open by their score, where
    /// anybody wants them compared. All pods of a gang have one of them then, and several where none has room for all.
    pub(super) fn tries(&self, ledger: &Ledger, claim: &Claim) -> Tries {
        let named: Vec<&str> = claim
            .providers
            .iter()
            .flatten()
            .map(String::as_str)
            .collect();
        let mut tries = Tries::default();
        for provider in &claim.providers {
            match provider.as_deref() {
                Some(name) if name != PROVIDER_ANY => tries.order.push(provider.clone()),
                None if self.rules.weights.is_none() => tries.order.push(None),
                _ => {
                    let mut scored = self.scored(ledger, claim);
                    scored.retain(|one| !named.contains(&&*one.name));
                    let names = scored.iter().map(|one| Some(one.name.to_string()));
                    tries.order.extend(names);
                    // Where there is nothing to compare, or a gang needs nodes of several, any will do.
                    if scored.is_empty() || (claim.pods.len() > 1 && scored.len() > 1) {
                        tries.order.push(None);
                    }
                    tries.scored = scored;
                }
            }
        }
        tries
    }

    /// The providers that have GPUs of the kind a claim asks for, the best first.
    fn scored(&self, ledger: &Ledger, claim: &Claim) -> Vec<Scored> {
        let Some(pod) = claim.pods.first() else {
            return Vec::new();
        };
        let mut found: BTreeMap<&str, Candidate> = BTreeMap::new();
        for (id, node) in ledger.fleet.nodes() {
            let gpus = ledger.gpus.get(&*node.name);
            let mut devices = gpus.into_iter().flat_map(|gpus| &gpus.devices);
            if !node.ready || node.unschedulable || !devices.any(|device| pod.gpus.met_by(device)) {
                continue;
            }
            let name = provider_of(node);
            let one = found.entry(name).or_insert_with(|| self.candidate(name));
            let (all, held) = units(&ledger.fleet, id, node);
            one.all += all / 1000;
            one.idle += all.saturating_sub(held) / 1000;
            let price = node.price_per_gpu_hour_micros;
            one.price_micros = one.price_micros.into_iter().chain(price).min();
        }
        let weights = self.rules.weights.unwrap_or_default();
        rank(&found.into_values().collect::<Vec<_>>(), weights)
    }

    fn candidate(&self, name: &str) -> Candidate {
        let standing = self.standings.get(name);
        let measured = standing.and_then(|standing| standing.start_seconds);
        let said = self.rules.providers.get(name);
        Candidate {
            name: Arc::from(name),
            price_micros: None,
            start_seconds: measured.or_else(|| said?.start_seconds),
            idle: 0,
            all: 0,
            health: standing.map_or(BEST, |standing| standing.health),
        }
    }

    /// The providers a claim has to keep off now.
    pub(crate) fn closed(&self, ledger: &Ledger, claim: &Claim) -> Closed {
        let left_alone = self.standings.iter().filter_map(|(name, standing)| {
            let why = match standing.state {
                State::Open => left_alone(standing),
                State::HalfOpen if standing.trying || expects_pods(&ledger.fleet, name) => format!(
                    "{}; what comes of one attempt there decides",
                    trouble(standing)
                ),
                State::Closed | State::HalfOpen => return None,
            };
            Some((name.clone(), why))
        });
        let full = self.rules.providers.iter().filter_map(|(name, rule)| {
            let most = rule.max_gpus?;
            let (all, held) = units_of(&ledger.fleet, name);
            // A limit that its nodes cannot reach says nothing that their room does not: who makes room there is within it.
            if u64::from(most) * 1000 >= all {
                return None;
            }
            let wanted = held.saturating_add(asked_milli(claim));
            let over = wanted > u64::from(most) * 1000;
            over.then(|| {
                let held = held.div_ceil(1000);
                (
                    name.clone(),
                    format!("limited to {most} GPUs at once, of which {held} are held"),
                )
            })
        });
        left_alone.chain(full).collect()
    }
}

/// The nodes of providers that are closed to a claim.
pub(crate) fn off_limits(fleet: &Fleet, closed: &Closed) -> Vec<Arc<str>> {
    if closed.is_empty() {
        return Vec::new();
    }
    let nodes = fleet.nodes();
    let shut = nodes.filter(|(_, node)| closed.contains_key(provider_of(node)));
    shut.map(|(_, node)| Arc::clone(&node.name)).collect()
}

fn trouble(standing: &Standing) -> String {
    let last = standing.last_failure.unwrap_or("a failure");
    format!(
        "{} failures of its nodes in a row, the last {last}",
        standing.failures
    )
}

fn left_alone(standing: &Standing) -> String {
    let until = standing.until;
    let until = until.map_or_else(String::new, |until| format!(" until {until:.0}"));
    format!("left alone{until}: {}", trouble(standing))
}

/// Whether a place of a provider was given away and nobody is there yet.
fn expects_pods(fleet: &Fleet, provider: &str) -> bool {
    let mut coming = fleet
        .works()
        .filter(|work| work.state == WorkState::Reserved && work.request.gpu.is_some());
    coming.any(|work| {
        let node = fleet.find(&work.node).and_then(|id| fleet.node(id));
        node.is_some_and(|node| provider_of(node) == provider)
    })
}

/// Thousandths of GPUs a claim asks for.
fn asked_milli(claim: &Claim) -> u64 {
    let each = claim.pods.iter().map(|pod| {
        let asked = pod.gpus.request();
        u64::from(asked.count) * u64::from(asked.milli)
    });
    each.sum()
}

/// Thousandths of GPUs that the nodes of a provider have, and that are held on them.
fn units_of(fleet: &Fleet, provider: &str) -> (u64, u64) {
    let nodes = fleet.nodes();
    let own = nodes.filter(|(_, node)| provider_of(node) == provider);
    own.map(|(id, node)| units(fleet, id, node))
        .fold((0, 0), |(all, held), (more, taken)| {
            (all + more, held + taken)
        })
}

/// Thousandths of GPUs a node has, and that are held.
fn units(fleet: &Fleet, id: NodeId, node: &Node) -> (u64, u64) {
    let free = fleet.free(id).into_iter().flat_map(|free| &free.pools);
    let pools = node.gpus.iter().zip(free);
    pools.fold((0, 0), |(all, held), (pool, free)| {
        let of_unit = |milli: u64| milli * u64::from(pool.unit.milli) / 1000;
        let size = free.cards.len() as u64 * 1000;
        let left = u64::try_from(free.milli()).unwrap_or(0).min(size);
        (all + of_unit(size), held + of_unit(size - left))
    })
}

/// How a provider came to be chosen among those that were compared.
pub(super) fn compared(scored: &[Scored], chosen: &str) -> Option<String> {
    let mine = scored.iter().find(|one| &*one.name == chosen)?;
    let others = scored.iter().filter(|one| &*one.name != chosen);
    let others: Vec<String> = others.take(RUNNERS_UP).map(ToString::to_string).collect();
    Some(match others.as_slice() {
        [] => format!("no other provider has such GPUs: {mine}"),
        others => format!(
            "of {} providers: {mine}; also {}",
            scored.len(),
            others.join("; ")
        ),
    })
}

/// Runners-up that are named.
const RUNNERS_UP: usize = 4;
