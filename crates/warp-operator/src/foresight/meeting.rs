//! One workload meets the fleet at its turn: what fits, what does not and why, who is in the way, what would help.
//! Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use kube::{Resource, ResourceExt};
use warp_api::{GPUWorkload, label};
use warp_core::explain::{Explanation, Nearest, smallest_changes};
use warp_core::fleet::{
    Cards, Expression, Fleet, Node as FleetNode, NodeId, Operator, PoolFree, Request,
};
use warp_core::schedule::Reason;
use warp_core::schedule::fit::Filter;

use super::{Cluster, Evidence, GangChanges, Group, Holder, InLine, Look, Outlook, QueuedJob};
use crate::ledger::{Ledger, provider_of};
use crate::placement::{
    Claim, Closed, KEPT, REFUSED, base_request, can_be_made, elsewhere, never_a_container,
    off_limits, require, shut_off,
};

/// One workload and the fleet at its turn.
pub(super) struct Meeting<'a> {
    cluster: &'a Cluster,
    ledger: &'a Ledger,
    workload: &'a GPUWorkload,
    request: Request,
    refused: Vec<Arc<str>>,
    /// Nodes kept for those before it.
    kept: Vec<Arc<str>>,
    /// Providers it has to keep off, and why.
    closed: Closed,
    /// Its tenant leaves it every kind of GPU it asks for.
    free: bool,
    /// It could be one container at a cloud.
    could_be_container: bool,
}

impl<'a> Meeting<'a> {
    pub(super) fn new(
        cluster: &'a Cluster,
        ledger: &'a Ledger,
        workload: &'a GPUWorkload,
        claim: &'a Claim,
        (mut kept, closed): (Vec<Arc<str>>, Closed),
    ) -> Option<Self> {
        let pod = claim.pods.first()?;
        let mut request = base_request(ledger, pod);
        // Kinds its tenant may not have now would be no help; when it may have none, the outlook says so.
        let narrowed =
            cluster
                .tenancy(ledger)
                .narrow(&ledger.fleet, &mut request, claim.pods.len());
        let named: Vec<Arc<str>> = claim
            .providers
            .iter()
            .flatten()
            .map(|name| Arc::from(name.as_str()))
            .collect();
        kept.extend(off_limits(&ledger.fleet, &closed));
        let any = named.iter().any(|name| **name == *label::PROVIDER_ANY);
        if !named.is_empty() && !any {
            let here = Expression {
                key: Arc::from(label::PROVIDER),
                operator: Operator::In,
                values: named,
            };
            require(&mut request, Some(&here), None);
        }
        Some(Self {
            cluster,
            ledger,
            workload,
            request,
            refused: claim.avoided.clone(),
            kept,
            closed,
            free: matches!(narrowed, Ok(false)),
            could_be_container: never_a_container(claim).is_none(),
        })
    }

    pub(super) fn look(
        &self,
        ahead: Vec<InLine>,
        jobs_ahead: Vec<QueuedJob>,
        outlook: Outlook,
    ) -> Look {
        let fleet = &self.ledger.fleet;
        let starts: &[String] = match &outlook {
            Outlook::Starts(start) => &start.nodes,
            _ => &[],
        };
        let explained = Explanation::new(fleet, &self.request);
        let waits = starts.is_empty();
        // What lets one member in does not let all in.
        let gang = self.workload.spec.is_gang();
        let nearest = explained.nearest.filter(|_| waits).map(|nearest| *nearest);
        let mut changes = Vec::new();
        if waits && self.free && !gang {
            let mut request = self.request.clone();
            if !self.kept.is_empty() {
                require(&mut request, None, Some(&elsewhere(&self.kept)));
            }
            changes = smallest_changes(fleet, &request);
            let template = self.workload.spec.pod_template.as_ref();
            let own = template.and_then(|template| template.spec.as_ref()?.affinity.as_ref());
            let own = own.is_some_and(|affinity| affinity.node_affinity.is_some());
            let own = own && self.kept.is_empty();
            changes.retain(|set| can_be_made(set, own, self.could_be_container));
        }
        Look {
            ahead,
            jobs_ahead,
            ask: self.workload.spec.describe_ask(),
            groups: self.groups(starts),
            evidence: self.evidence(),
            in_the_way: nearest
                .as_ref()
                .filter(|_| !gang)
                .map(|nearest| self.in_the_way(nearest))
                .unwrap_or_default(),
            nearest,
            changes,
            outlook,
            rent: None,
            preempts: None,
            gang: GangChanges::default(),
            tenant: None,
        }
    }

    /// The first reason of a node, if it does not fit.
    fn obstacle(&self, filter: &Filter<'_>, id: NodeId) -> Option<(String, String)> {
        let reasons = filter.reasons(id);
        if let Some(first) = reasons.first() {
            return Some((first.label(), Reason::numbers(first)));
        }
        let node = self.ledger.fleet.node(id)?;
        let (name, provider) = (&node.name, provider_of(node));
        if let Some(why) = self.closed.get(provider) {
            let label = shut_off(provider, why);
            return Some((label.clone(), label));
        }
        let refused = self.refused.contains(name).then_some(REFUSED);
        let kept = || self.kept.contains(name).then_some(KEPT);
        let label = refused.or_else(kept)?;
        Some((label.to_owned(), label.to_owned()))
    }

    fn evidence(&self) -> Vec<Evidence> {
        let filter = Filter::new(&self.ledger.fleet, &self.request);
        let mut folded: BTreeMap<String, Evidence> = BTreeMap::new();
        for (id, node) in self.ledger.fleet.nodes() {
            if let Some((reason, example)) = self.obstacle(&filter, id) {
                let entry = folded.entry(reason.clone()).or_insert_with(|| Evidence {
                    reason,
                    example,
                    nodes: Vec::new(),
                });
                entry.nodes.push(node.name.to_string());
            }
        }
        let mut list: Vec<Evidence> = folded.into_values().collect();
        list.sort_by(|one, other| {
            let more = other.nodes.len().cmp(&one.nodes.len());
            more.then_with(|| one.reason.cmp(&other.reason))
        });
        list
    }

    fn groups(&self, chosen: &[String]) -> Vec<Group> {
        let fleet = &self.ledger.fleet;
        let filter = Filter::new(fleet, &self.request);
        let mut groups: BTreeMap<(String, String), (Group, BTreeMap<String, usize>)> =
            BTreeMap::new();
        for (id, node) in fleet.nodes().filter(|(_, node)| !node.gpus.is_empty()) {
            let key = (provider_of(node).to_owned(), gpus_of(node));
            let (group, reasons) = groups.entry(key.clone()).or_insert_with(|| {
                let (provider, gpu) = key;
                let group = Group {
                    provider,
                    gpu,
                    nodes: 0,
                    fitting: 0,
                    idle: 0,
                    gpus: 0,
                    price_micros: None,
                    chosen: false,
                    reasons: Vec::new(),
                };
                (group, BTreeMap::new())
            });
            group.nodes += 1;
            let (idle, all) = cards(fleet, id, node);
            group.idle += idle;
            group.gpus += all;
            group.chosen |= chosen.iter().any(|name| **name == *node.name);
            if let Some(price) = node.price_per_gpu_hour_micros {
                let (low, high) = group.price_micros.unwrap_or((price, price));
                group.price_micros = Some((low.min(price), high.max(price)));
            }
            match self.obstacle(&filter, id) {
                Some((reason, _)) => *reasons.entry(reason).or_default() += 1,
                None => group.fitting += 1,
            }
        }
        let mut list: Vec<Group> = groups
            .into_values()
            .map(|(mut group, reasons)| {
                group.reasons = reasons.into_iter().collect();
                group
                    .reasons
                    .sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
                group
            })
            .collect();
        list.sort_by_key(|group| {
            (
                !group.chosen,
                Reverse(group.fitting),
                group.provider.clone(),
            )
        });
        list
    }

    /// Workloads on the nearest node of which each alone, taken off, would leave room: tried, not guessed.
    fn in_the_way(&self, nearest: &Nearest) -> Vec<Holder> {
        let mut found: Vec<Holder> = Vec::new();
        for holder in &nearest.holders {
            let mut without = self.ledger.fleet.clone();
            let Some(work) = without.release(&holder.id) else {
                continue;
            };
            let fits = without
                .find(&nearest.node)
                .is_some_and(|id| Filter::new(&without, &self.request).fits(id));
            let pod = self
                .cluster
                .pods
                .iter()
                .find(|pod| pod.meta().uid.as_deref() == Some(&*holder.id));
            let owner = pod.and_then(|pod| pod.labels().get(label::WORKLOAD));
            if let (true, Some(owner)) = (fits, owner) {
                found.push(Holder {
                    namespace: holder.namespace.to_string(),
                    name: owner.clone(),
                    node: work.node.to_string(),
                    gpus: holder.amount / 1000,
                });
            }
        }
        found
    }
}

/// The kinds of GPU of a node, for people.
fn gpus_of(node: &FleetNode) -> String {
    let names = node.gpus.iter().map(|pool| {
        let name = if pool.model.is_empty() {
            &pool.vendor
        } else {
            &pool.model
        };
        if pool.unit.is_whole() {
            name.to_string()
        } else {
            format!("{name} {}", pool.unit)
        }
    });
    names.collect::<Vec<_>>().join("+")
}

/// Idle and all GPUs of a node.
fn cards(fleet: &Fleet, id: NodeId, node: &FleetNode) -> (i64, i64) {
    let mut sums = (0, 0);
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    for (at, pool) in node.gpus.iter().enumerate() {
        let free = fleet.free(id);
        let (all, free) = match &pool.cards {
            Cards::Counted => {
                let free = free.map_or(0, |free| free.resources.extended(&pool.resource));
                (node.allocatable.extended(&pool.resource).max(0), free)
            }
            Cards::Each(cards) => {
                let left = free.and_then(|free| free.pools.get(at));
                let idle = left.map_or(0, PoolFree::idle_cards);
                (count(cards.len()), count(idle))
            }
        };
        sums = (sums.0 + free.clamp(0, all), sums.1 + all);
    }
    sums
}
