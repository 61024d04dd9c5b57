//! Places for a claim of several pods: all of them or none, under one name of the GPU resource, close together if asked;
//! and why there are none. Which places is `warp-core`'s. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warp_api::reason;
use warp_api::workload::nodes_in_words;
use warp_core::fleet::{Expression, Fleet, GpuPool, Node, Operator, Request, Taint, WorkState};
use warp_core::schedule::{
    self, Gang, GangRefusal, Member, Near, Obstacle, PlacedMember, Planner, Policy, Reason,
};

use super::decide::{Desk, release, work_id};
use super::explain::{LeftOut, explain, held_back, never_a_container};
use super::request::{elsewhere, require, restricted};
use super::{Claim, Place, PodClaim, Verdict};
use crate::ledger::Ledger;

impl Desk<'_> {
    /// Places for all pods of a claim at one provider, entered into the ledger; or why not, and the ledger as it was.
    pub(super) fn choose_gang(
        &mut self,
        ledger: &mut Ledger,
        claim: &Claim,
        asked: &[Request],
        provider: Option<&str>,
        kept: &[Arc<str>],
    ) -> Result<Vec<schedule::Placement>, Verdict> {
        if let Some(verdict) = self.no_such_level(ledger, claim) {
            return Err(verdict);
        }
        let asked: Vec<Request> = asked
            .iter()
            .map(|request| restricted(request, provider))
            .collect();
        let mut furthest: Option<(GangRefusal, Vec<Request>)> = None;
        for here in by_resource(ledger, &asked) {
            let gang = gang(claim, &without(&here, claim, kept));
            let found = self.planning(ledger, claim, |planner| {
                planner.place_gang(&ledger.fleet, &gang)
            });
            match found {
                Ok(placed) => {
                    let places = by_rank(placed.members);
                    if enter(ledger, claim, &asked, &places) {
                        return Ok(places);
                    }
                }
                Err(refusal) => {
                    let further = |(known, _): &(GangRefusal, _)| refusal.placed > known.placed;
                    if furthest.as_ref().is_none_or(further) {
                        furthest = Some((refusal, here));
                    }
                }
            }
        }
        let (refusal, asked) = furthest.unzip();
        let asked = asked.unwrap_or_default();
        Err(self.refused(ledger, claim, &asked, refusal.as_ref(), provider, kept))
    }

    /// Why a gang waits whose members must be close together on a level that no node says anything of.
    fn no_such_level(&self, ledger: &Ledger, claim: &Claim) -> Option<Verdict> {
        let near = claim.near.as_ref().filter(|near| near.required)?;
        let mut nodes = ledger.fleet.nodes();
        if nodes.any(|(_, node)| node.labels.contains_key(near.key.as_str())) {
            return None;
        }
        let levels = self.levels();
        Some(Verdict {
            reason: reason::NO_SUCH_LEVEL,
            message: format!(
                "needs {} members in one {}, but no node has the label {}; the levels of this cluster are {levels}: correct spec.topology.level, label the nodes, or name the level in the operator's --topology-levels",
                claim.pods.len(),
                near.name,
                near.label
            ),
        })
    }

    /// Why a gang fits nowhere, and what keeps its next member off.
    fn refused(
        &mut self,
        ledger: &mut Ledger,
        claim: &Claim,
        asked: &[Request],
        refusal: Option<&GangRefusal>,
        provider: Option<&str>,
        kept: &[Arc<str>],
    ) -> Verdict {
        let (Some(request), Some(pod)) = (asked.first(), claim.pods.first()) else {
            return Verdict {
                reason: reason::WAITING_FOR_CAPACITY,
                message: "no place was found for all of its pods".to_owned(),
            };
        };
        let of = (claim, provider, kept);
        let came_furthest = refusal.and_then(|refusal| refusal.domain.as_deref());
        let (mut next, mut entered, mut found) =
            self.next_member(ledger, of, (pod, request), came_furthest);
        let mut empty = None;
        if came_furthest.is_some() && found.reason != reason::WAITING_FOR_CAPACITY {
            // The domain that is emptiest now may be one that never does: what counts is where it would fit.
            let fleet = empty.insert(emptied(&ledger.fleet));
            if let Some(home) = home(fleet, &gang(claim, asked)) {
                (next, entered, found) = self.next_member(ledger, of, (pod, request), Some(&*home));
            }
        }
        let members = claim.pods.len();
        let ask = pod.gpus.describe();
        let near = claim.near.as_ref().filter(|near| near.required);
        let together = near.map_or_else(String::new, |near| format!(" in one {}", near.name));
        let said = format!(
            "needs {members} × {ask}{together}: {entered} of {members} members fit; for the next one {}",
            found.message
        );
        if found.reason != reason::WAITING_FOR_CAPACITY {
            return Verdict {
                reason: found.reason,
                message: said,
            };
        }
        let empty = empty.unwrap_or_else(|| emptied(&ledger.fleet));
        let (reason, advice) = match in_the_way(&empty, &gang(claim, asked)) {
            Obstacle::Work => {
                return Verdict {
                    reason: found.reason,
                    message: said,
                };
            }
            Obstacle::Request | Obstacle::Storage => (
                reason::NEVER_FITS,
                "ask for fewer replicas or add nodes".to_owned(),
            ),
            held => held_back(&empty, &next, held, never_a_container(claim).as_deref()),
        };
        Verdict {
            reason,
            message: format!("{said}; they would not fit if nothing else ran either: {advice}"),
        }
    }
}

impl Desk<'_> {
    /// What keeps the next member off, in one domain where one is named: as many as fit are entered for a moment. Returns
    /// what it asks for there, how many fit before it, and why it does not.
    fn next_member(
        &mut self,
        ledger: &mut Ledger,
        (claim, provider, kept): (&Claim, Option<&str>, &[Arc<str>]),
        (pod, request): (&PodClaim, &Request),
        domain: Option<&str>,
    ) -> (Request, usize, Verdict) {
        let mut request = request.clone();
        if let (Some(near), Some(domain)) = (&claim.near, domain) {
            let here = Expression::new(&near.key, Operator::In, &[domain]);
            require(&mut request, Some(&here), None);
        }
        let mut entered = 0;
        while entered < claim.pods.len() {
            let Some(place) = self.choose_elsewhere(ledger, claim, &request, kept) else {
                break;
            };
            let id = work_id(claim, entered);
            let work = place.work(id, Arc::new(request.clone()), 0, WorkState::Reserved);
            if ledger.fleet.bind(work).is_err() {
                break;
            }
            entered += 1;
        }
        let no_container = never_a_container(claim);
        let left_out = LeftOut {
            no_container: no_container.as_deref(),
            refused: &claim.avoided,
            kept,
            within: claim
                .near
                .as_ref()
                .map(|near| near.key.as_str())
                .zip(domain),
            closed: self.closed(),
        };
        let found = explain(ledger, &request, &pod.gpus, provider, &left_out);
        release(ledger, claim, entered);
        (request, entered, found)
    }
}

/// The domain that would take a gang if nothing else ran.
fn home(empty: &Fleet, gang: &Gang) -> Option<Arc<str>> {
    let mut planner = Planner::new(Policy::BestFit, 0);
    planner.place_gang(empty, gang).ok()?.domain
}

/// The gang a claim is to the core. Pods that ask alike are one kind of member.
fn gang(claim: &Claim, asked: &[Request]) -> Gang {
    let kinds = asked.chunk_by(|one, other| one == other);
    let members = kinds.map(|kind| Member {
        request: Arc::new(kind[0].clone()),
        count: u32::try_from(kind.len()).unwrap_or(u32::MAX),
    });
    Gang {
        name: Arc::from(claim.uid.as_str()),
        members: members.collect(),
        near: claim.near.as_ref().map(|near| Near {
            key: Arc::from(near.key.as_str()),
            required: near.required,
            then: near
                .wider
                .iter()
                .map(|key| Arc::from(key.as_str()))
                .collect(),
        }),
        ..Gang::default()
    }
}

/// The same requests on none of the nodes that are left out for now.
fn without(asked: &[Request], claim: &Claim, kept: &[Arc<str>]) -> Vec<Request> {
    let left_out: Vec<Arc<str>> = claim.avoided.iter().chain(kept).cloned().collect();
    let mut asked = asked.to_vec();
    if !left_out.is_empty() {
        let elsewhere = elsewhere(&left_out);
        for request in &mut asked {
            require(request, None, Some(&elsewhere));
        }
    }
    asked
}

/// Places in the order of the claim's pods. Members of one node follow each other: neighbours talk most.
fn by_rank(mut members: Vec<PlacedMember>) -> Vec<schedule::Placement> {
    let mut first: BTreeMap<Arc<str>, usize> = BTreeMap::new();
    for (at, member) in members.iter().enumerate() {
        first
            .entry(Arc::clone(&member.placement.node))
            .or_insert(at);
    }
    members.sort_by_key(|member| (member.member, first.get(&member.placement.node).copied()));
    members.into_iter().map(|member| member.placement).collect()
}

/// Enters a gang into the ledger; nothing of it when one member cannot be.
fn enter(
    ledger: &mut Ledger,
    claim: &Claim,
    asked: &[Request],
    places: &[schedule::Placement],
) -> bool {
    for (member, (place, request)) in places.iter().zip(asked).enumerate() {
        let (id, request) = (work_id(claim, member), Arc::new(request.clone()));
        let work = place.work(id, request, 0, WorkState::Reserved);
        if let Err(error) = ledger.fleet.bind(work) {
            tracing::error!(error = %error, "a decision was not entered into the ledger");
            release(ledger, claim, member);
            return false;
        }
    }
    true
}

/// The fleet if nothing ran.
fn emptied(fleet: &Fleet) -> Fleet {
    let mut empty = fleet.clone();
    for work in fleet.works() {
        empty.release(&work.id);
    }
    empty
}

/// The least that keeps a gang off a fleet where nothing runs: `Work` where all of it fits, `Request` where it would not
/// with every node in service either.
fn in_the_way(empty: &Fleet, gang: &Gang) -> Obstacle {
    let fits = |fleet: &Fleet| {
        let mut planner = Planner::new(Policy::BestFit, 0);
        planner.place_gang(fleet, gang).is_ok()
    };
    if fits(empty) {
        return Obstacle::Work;
    }
    let mut fleet = empty.clone();
    for obstacle in [Obstacle::Cordon, Obstacle::Health, Obstacle::Taint] {
        lift(&mut fleet, obstacle);
        if fits(&fleet) {
            return obstacle;
        }
    }
    Obstacle::Request
}

/// Puts every node into service that an obstacle holds back, or a smaller one.
fn lift(fleet: &mut Fleet, obstacle: Obstacle) {
    let nodes: Vec<Arc<Node>> = fleet.nodes().map(|(_, node)| Arc::clone(node)).collect();
    for node in nodes {
        let mut node = Node::clone(&node);
        node.unschedulable &= obstacle < Obstacle::Cordon;
        node.ready |= obstacle >= Obstacle::Health;
        let stays = |taint: &Taint| Reason::Taint(taint.clone()).obstacle() > obstacle;
        node.taints.retain(stays);
        fleet.set_node(node);
    }
}

/// Where pods are made from one template, the GPUs of all have one resource name: the requests on the nodes of each name.
/// Most fleets have one, and nothing is added.
fn by_resource(ledger: &Ledger, asked: &[Request]) -> Vec<Vec<Request>> {
    let Some(gpu) = asked.first().and_then(|request| request.gpu.as_ref()) else {
        return vec![asked.to_vec()];
    };
    let vendor = gpu.vendor.clone();
    let names_of = |node: &Node| -> BTreeSet<Arc<str>> {
        let pools = node.gpus.iter();
        let asked = pools.filter(|pool| {
            vendor.as_ref().is_none_or(|name| *name == pool.vendor) && pool.unit.serves(gpu)
        });
        // What goes with the name is in the template too.
        let name = |pool: &GpuPool| {
            let extras = pool.unit.extras(gpu).into_iter();
            let name = pool.resource.to_string();
            let full = extras.fold(name, |name, (more, amount)| {
                format!("{name} {more}={amount}")
            });
            Arc::from(full)
        };
        asked.map(name).collect()
    };
    let nodes: Vec<_> = ledger
        .fleet
        .nodes()
        .map(|(_, node)| (Arc::clone(&node.name), names_of(node)))
        .collect();
    let names: BTreeSet<&Arc<str>> = nodes.iter().flat_map(|(_, names)| names).collect();
    if names.len() < 2 {
        return vec![asked.to_vec()];
    }
    let of_name = |name: &Arc<str>| {
        let only =
            |(_, names): &&(Arc<str>, BTreeSet<Arc<str>>)| names.len() == 1 && names.contains(name);
        let here = Expression {
            key: Arc::from("metadata.name"),
            operator: Operator::In,
            values: nodes
                .iter()
                .filter(only)
                .map(|(node, _)| Arc::clone(node))
                .collect(),
        };
        let mut asked = asked.to_vec();
        for request in &mut asked {
            require(request, None, Some(&here));
        }
        asked
    };
    names.into_iter().map(of_name).collect()
}

/// The requests of a claim in each place that could hold all of them: where it must be close together, in each domain.
pub(super) fn alternatives(
    ledger: &Ledger,
    claim: &Claim,
    asked: Vec<Request>,
) -> Vec<Vec<Request>> {
    if asked.len() < 2 {
        return vec![asked];
    }
    let named = by_resource(ledger, &asked);
    let Some(near) = claim.near.as_ref().filter(|near| near.required) else {
        return named;
    };
    let nodes = ledger.fleet.nodes();
    let domains: BTreeSet<&Arc<str>> = nodes
        .filter_map(|(_, node)| node.labels.get(near.key.as_str()))
        .collect();
    let within = |domain: &Arc<str>| {
        let here = Expression::new(&near.key, Operator::In, &[domain]);
        let mut named = named.clone();
        for request in named.iter_mut().flatten() {
            require(request, Some(&here), None);
        }
        named
    };
    domains.into_iter().flat_map(within).collect()
}

/// Puts the decision for several pods in one sentence.
pub(super) fn tell(places: &mut [Place], claim: &Claim) {
    let [first, _, ..] = &*places else {
        return;
    };
    let nodes = nodes_in_words(places.iter().map(|place| place.node.as_str()));
    let near = claim.near.as_ref();
    let near = near.map_or_else(String::new, |near| {
        let how = if near.required {
            "required"
        } else {
            "preferred"
        };
        format!(", one {} {how}", near.name)
    });
    let passed_over = first.why.split_once("; ").map(|(_, more)| more.to_owned());
    let passed_over = passed_over.map_or_else(String::new, |more| format!("; {more}"));
    let why = format!(
        "{} chose {} for {} members{near}{passed_over}",
        first.strategy,
        nodes,
        places.len()
    );
    // What comes of a gang on nodes of several says nothing of one of them.
    let providers: BTreeSet<&str> = places.iter().map(|place| &*place.provider).collect();
    let providers = providers.into_iter().collect::<Vec<_>>().join(",");
    for place in places {
        place.why.clone_from(&why);
        place.provider.clone_from(&providers);
    }
}
