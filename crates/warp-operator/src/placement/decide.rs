//! Decisions of one pass, in queue order, each seeing the ones before it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use warp_api::workload::{GpuAsk, SchedulingStrategy, TopologyLevels};
use warp_api::{label, reason};
use warp_core::fleet::{
    Expression, Fleet, GpuRequest, NodeTerm, Operator, Request, WHOLE, WorkState,
};
use warp_core::gpu;
use warp_core::schedule::fit::Filter;
use warp_core::schedule::keep::waits_for_work;
use warp_core::schedule::reclaim::Lent;
use warp_core::schedule::{self, Ask, Mix, Planner, Policy};

use super::explain::{LeftOut, explain, fold, hint};
use super::gang::{self, alternatives};
use super::part;
use super::quota::Quotas;
use super::tenancy::{Reserved, Tenancy};
use super::{
    Cause, Claim, Claimant, Evictable, Held, Line, Order, Place, PodClaim, Rented, Runner, Runs,
    Verdict,
};
use crate::config::Settings;
use crate::ledger::{Ledger, model_name, provider_of};

/// Claims told the smallest change in one pass: finding it looks at every node many times.
const HINTS: usize = 8;

/// What happens to one claim.
#[derive(Clone, Debug)]
pub(crate) enum Decision {
    /// One place for each of its pods.
    Place(Vec<Place>),
    Wait(Verdict),
    /// It waits for these, which are to be asked to end, or were asked before.
    Evict(Vec<Arc<dyn Runner>>, Cause, Verdict),
    /// The ledger and the choice disagree: a defect, and said so in the log.
    Skip,
}

/// What the decisions of one pass share.
pub(crate) struct Desk<'a> {
    /// Those who ask, all of them.
    wanted: &'a [Arc<dyn Claimant>],
    /// What is asked for: the queue and what runs already. Counted when it is first needed.
    mix: Option<Mix>,
    planners: BTreeMap<Policy, Planner>,
    /// Claims that may still be told the smallest change in this pass.
    hints: usize,
    /// What the namespaces' quotas leave.
    quotas: Quotas,
    /// What the namespaces' tenants let them have.
    tenancy: Tenancy,
    /// Who is kept room.
    line: Line<'a>,
    /// Who may be evicted for others.
    evictable: Evictable,
    /// Nodes that were rented for somebody.
    rented: Rented,
    /// Whom work goes for that is of the same priority.
    order: Option<&'a Order>,
    /// Whoever is decided for has just been told why it waits: only whether that is still so is found out.
    brief: bool,
    settings: &'a Settings,
}

impl<'a> Desk<'a> {
    pub(crate) fn new(
        wanted: &'a [Arc<dyn Claimant>],
        quotas: Quotas,
        tenancy: Tenancy,
        line: Line<'a>,
        settings: &'a Settings,
    ) -> Self {
        Self {
            wanted,
            mix: None,
            planners: BTreeMap::new(),
            hints: HINTS,
            quotas,
            tenancy,
            line,
            evictable: Evictable::default(),
            rented: Rented::default(),
            order: None,
            brief: false,
            settings,
        }
    }

    /// From now on explains only where the reason may be another, or all there is to say.
    pub(super) fn set_brief(&mut self, brief: bool) {
        self.brief = brief;
    }

    /// Lets running work be evicted for its equals where the order says so.
    pub(crate) fn ordered_by(mut self, order: &'a Order) -> Self {
        self.order = Some(order);
        self
    }

    /// Lets running work be evicted.
    pub(crate) fn evicting(mut self, evictable: Evictable) -> Self {
        self.evictable = evictable;
        self
    }

    /// Tells what is asked for, where that has been counted already.
    pub(crate) fn expecting(mut self, mix: Mix) -> Self {
        self.mix = Some(mix);
        self
    }

    /// Keeps rented nodes for those they were rented for.
    pub(crate) fn keeping(mut self, rented: Rented) -> Self {
        self.rented = rented;
        self
    }

    /// The line as it stands now.
    pub(crate) fn line(&mut self) -> &mut Line<'a> {
        &mut self.line
    }

    /// What is kept for others so far in this pass.
    pub(crate) fn held(&self) -> &Arc<Vec<Held>> {
        self.line.held()
    }

    pub(super) fn tenancy(&self) -> &Tenancy {
        &self.tenancy
    }

    pub(super) fn tenancy_mut(&mut self) -> &mut Tenancy {
        &mut self.tenancy
    }

    pub(super) fn evictable_mut(&mut self) -> &mut Evictable {
        &mut self.evictable
    }

    /// Running work that may be asked back.
    pub(super) fn lent(&self) -> Vec<(usize, Lent)> {
        self.evictable.lent(&self.tenancy)
    }

    /// What is kept of tenants' shares so far in this pass.
    pub(crate) fn reserved(&self) -> &Arc<Vec<Reserved>> {
        self.tenancy.reserved()
    }

    /// A claim waits as before: what was kept for it stays.
    pub(crate) fn still_waits(&mut self, claim: &Claim, reserved: Option<&Reserved>) {
        self.line.still_waits(claim);
        if let Some(reserved) = reserved {
            self.tenancy.reserve(reserved.clone());
        }
    }

    /// The levels of the cluster.
    pub(super) fn levels(&self) -> &TopologyLevels {
        &self.settings.topology_levels
    }

    /// Decides for one claim. A placement is entered into the ledger. One that is elastic gets as many places as there are
    /// now, and waits for the fewest it starts with.
    pub(crate) fn decide(&mut self, ledger: &mut Ledger, claimant: &dyn Claimant) -> Decision {
        let claim = claimant.claim();
        if !claim.is_elastic() || self.fits(ledger, claimant) {
            return self.decide_whole(ledger, claimant);
        }
        // Fits, and does not.
        let (mut fits, mut too_many) = (claim.least, claim.pods.len());
        let mut found = claimant.narrowed(claim.least);
        if !(found.as_ref()).is_some_and(|found| self.fits(ledger, &**found)) {
            return match found {
                Some(least) => self.decide_whole(ledger, &*least),
                None => self.decide_whole(ledger, claimant),
            };
        }
        while too_many - fits > 1 {
            let middle = fits.midpoint(too_many);
            match claimant.narrowed(middle) {
                Some(wider) if self.fits(ledger, &*wider) => {
                    (fits, found) = (middle, Some(wider));
                }
                _ => too_many = middle,
            }
        }
        match found {
            Some(found) => self.decide_whole(ledger, &*found),
            None => self.decide_whole(ledger, claimant),
        }
    }

    /// Whether a claim would be placed now, with nothing done about it.
    fn fits(&mut self, ledger: &mut Ledger, claimant: &dyn Claimant) -> bool {
        let claim = claimant.claim();
        let barred = self.tenancy.bars(claim).or_else(|| self.barred(claimant));
        let Ok((asked, _)) = self.asked(ledger, claim) else {
            return false;
        };
        if barred.is_some() {
            return false;
        }
        let mut kept = self.line.off_limits(claim);
        kept.extend(self.rented.off_limits(claim));
        claim.providers.iter().any(|provider| {
            let found = match asked.as_slice() {
                [_] => self.choose_all(ledger, claim, &asked, provider.as_deref(), &kept),
                _ => self.choose_gang(ledger, claim, &asked, provider.as_deref(), &kept),
            };
            if let Ok(chosen) = &found {
                release(ledger, claim, chosen.len());
            }
            found.is_ok()
        })
    }

    /// Decides for all pods of a claim.
    fn decide_whole(&mut self, ledger: &mut Ledger, claimant: &dyn Claimant) -> Decision {
        let claim = claimant.claim();
        let barred = self.tenancy.bars(claim).or_else(|| self.barred(claimant));
        if let Some(verdict) = barred {
            return Decision::Wait(verdict);
        }
        let mut kept = self.line.off_limits(claim);
        kept.extend(self.rented.off_limits(claim));
        let (asked, narrowed) = match self.asked(ledger, claim) {
            Ok(asked) => asked,
            Err(verdict) => {
                let taken = self.take_back(ledger, claim, &kept, &verdict);
                return taken.unwrap_or_else(|| {
                    self.stand_in_line_of_tenant(ledger, claim, &verdict);
                    Decision::Wait(verdict)
                });
            }
        };
        let mut tried = Vec::new();
        for provider in &claim.providers {
            let found = match asked.as_slice() {
                [_] => self.choose_all(ledger, claim, &asked, provider.as_deref(), &kept),
                _ => self.choose_gang(ledger, claim, &asked, provider.as_deref(), &kept),
            };
            match found {
                Ok(chosen) => {
                    let decision = self.placed(ledger, claimant, &chosen, &tried);
                    if matches!(decision, Decision::Skip) {
                        release(ledger, claim, chosen.len());
                    } else {
                        let members = (0..chosen.len()).map(|member| work_id(claim, member));
                        self.line.placed(claim, members);
                    }
                    return decision;
                }
                Err(verdict) => tried.push((provider.clone(), verdict)),
            }
        }
        let mut verdict = fold(tried);
        if verdict.reason == reason::WAITING_FOR_CAPACITY {
            let room = self.make_room(ledger, claimant, &asked, &kept, &verdict);
            let room = room.or_else(|| self.take_back(ledger, claim, &kept, &verdict));
            if let Some(decision) = room {
                return decision;
            }
            // What the tenant does not let it have now would be among the changes.
            let hint = (!narrowed && !self.brief)
                .then(|| self.hint(ledger, claim, &asked, &kept))
                .flatten();
            let kept = self.stand_in_line(ledger, claim, &asked);
            let more = kept.into_iter().chain(hint);
            verdict.message = more.fold(verdict.message, |said, more| format!("{said}; {more}"));
        }
        Decision::Wait(verdict)
    }

    /// The smallest change that would place it now, for the first in line.
    fn hint(
        &mut self,
        ledger: &Ledger,
        claim: &Claim,
        asked: &[Request],
        kept: &[Arc<str>],
    ) -> Option<String> {
        let ([provider], [pod], [request]) = (&*claim.providers, &*claim.pods, asked) else {
            return None;
        };
        self.hints = self.hints.checked_sub(1)?;
        let mut request = restricted(request, provider.as_deref());
        if !kept.is_empty() {
            require(&mut request, None, Some(&elsewhere(kept)));
        }
        let affinity = pod.spec.affinity.as_ref();
        let own = affinity.is_some_and(|affinity| affinity.node_affinity.is_some());
        // Without any affinity it would be on the nodes that are kept.
        hint(ledger, &request, own && kept.is_empty())
    }

    /// Makes room for a claim by evicting running work, and keeps it for the claim.
    fn make_room(
        &mut self,
        ledger: &Ledger,
        claimant: &dyn Claimant,
        asked: &[Request],
        kept: &[Arc<str>],
        verdict: &Verdict,
    ) -> Option<Decision> {
        let claim = claimant.claim();
        let asked = by_provider(ledger, claim, asked);
        let left_out: Vec<_> = claim.avoided.iter().chain(kept).cloned().collect();
        let tenancy = &self.tenancy;
        let preemptible = |namespace: &str| tenancy.preemptible(namespace);
        let fleet = &ledger.fleet;
        let now = self.evictable.now();
        let equals = self
            .order
            .and_then(|order| Some((order, order.equals(claimant, now)?)));
        let gives_way =
            equals.map(|(order, equals)| move |runs: &Runs| order.gives_way(runs, equals, now));
        let gives_way = gives_way
            .as_ref()
            .map(|gives_way| gives_way as &dyn Fn(&Runs) -> bool);
        let evictable = &mut self.evictable;
        let room = evictable.make_room(fleet, claim, &asked, &left_out, &preemptible, gives_way)?;
        let equal = |one: &Arc<dyn Runner>| one.runs().priority == claim.priority;
        let (cause, whose) = if room.going.iter().any(equal) {
            (Cause::Rank, "ranked far worse by the queue policy")
        } else {
            (Cause::Priority, "of lower priority")
        };
        let names = room.going.iter().map(|one| one.runs().key.to_string());
        let names = names.collect::<Vec<_>>().join(", ");
        let nodes = room.nodes.join(", ");
        self.line.hold(claim, room.nodes);
        let fresh = |one: &Arc<dyn Runner>| one.runs().evicted_for.is_none();
        let going = room.going.into_iter().filter(fresh).collect();
        let message = format!(
            "{}; it takes the place of {names} on {nodes}, {whose}, as soon as that has ended",
            verdict.message
        );
        let reason = reason::PREEMPTING;
        let verdict = Verdict { reason, message };
        Some(Decision::Evict(going, cause, verdict))
    }

    /// Keeps room for a claim whose turn it is; says where.
    fn stand_in_line(
        &mut self,
        ledger: &mut Ledger,
        claim: &Claim,
        asked: &[Request],
    ) -> Option<String> {
        let mut asked = by_provider(ledger, claim, asked);
        let rented = self.rented.off_limits(claim);
        if !rented.is_empty() {
            // No room is kept where it may never be.
            for request in asked.iter_mut().flatten() {
                require(request, None, Some(&elsewhere(&rented)));
            }
        }
        let nodes = self.line.waits(&mut ledger.fleet, claim, &asked)?;
        Some(match nodes.as_slice() {
            [node] => {
                format!("it is next: node {node} is kept for it until enough work there has ended")
            }
            [first, ..] => format!(
                "it is next: {} nodes ({first} and others) are kept for it until enough work there has ended",
                nodes.len()
            ),
            [] => return None,
        })
    }

    /// Keeps what a claim waits for of its tenant's quota from later work of the tenant, or a stream of small work would
    /// hold wide work up for good.
    fn stand_in_line_of_tenant(&mut self, ledger: &Ledger, claim: &Claim, verdict: &Verdict) {
        if verdict.reason != reason::TENANT_QUOTA_EXCEEDED || !self.line.keeps_for(claim) {
            return;
        }
        let first = claim.pods.first().map(|pod| base_request(ledger, pod));
        let Some(gpu) = first.and_then(|request| request.gpu) else {
            return;
        };
        if let Some(kept) = self.tenancy.first_in_line(&ledger.fleet, claim, &gpu) {
            self.tenancy.reserve(kept);
        }
    }

    /// What each pod asks for, of the GPUs the tenant may have now, and whether that leaves any out; or why none is left.
    fn asked(&self, ledger: &Ledger, claim: &Claim) -> Result<(Vec<Request>, bool), Verdict> {
        let mut narrowed = false;
        let mut asked = Vec::new();
        for pod in &claim.pods {
            let mut request = base_request(ledger, pod);
            narrowed |= self
                .tenancy
                .narrow(&ledger.fleet, &mut request, claim.pods.len())?;
            asked.push(request);
        }
        Ok((asked, narrowed))
    }

    /// Why a quota does not let it in, if none does. The node decides the resource's name where a vendor has several:
    /// one that is left will do.
    fn barred(&mut self, claimant: &dyn Claimant) -> Option<Verdict> {
        let claim = claimant.claim();
        if claimant.is_counted() {
            return None;
        }
        let job = claim
            .makes_job
            .then(|| self.quotas.blocks_job(&claim.key.namespace));
        if let Some(verdict) = job.flatten() {
            return Some(verdict);
        }
        let resources = claim.pods.first()?.gpus.resources();
        let mut first = None;
        for resource in &resources {
            let members = 0..claim.pods.len();
            let pods: Vec<_> = members.map(|each| claimant.pod(each, resource)).collect();
            let verdict = self.quotas.blocks(&claim.key.namespace, &pods)?;
            first.get_or_insert(verdict);
        }
        first
    }

    /// Places for all pods of a claim at one provider, entered into the ledger; or why one of them has none, and the
    /// ledger as it was.
    fn choose_all(
        &mut self,
        ledger: &mut Ledger,
        claim: &Claim,
        asked: &[Request],
        provider: Option<&str>,
        kept: &[Arc<str>],
    ) -> Result<Vec<schedule::Placement>, Verdict> {
        let mut chosen = Vec::new();
        for (pod, request) in claim.pods.iter().zip(asked) {
            let request = restricted(request, provider);
            let found = self.choose_elsewhere(ledger, claim, &request, kept);
            let entered = found.and_then(|placement| {
                let work = placement.work(
                    work_id(claim, chosen.len()),
                    Arc::new(request.clone()),
                    0,
                    WorkState::Reserved,
                );
                match ledger.fleet.bind(work) {
                    Ok(()) => Some(placement),
                    Err(error) => {
                        tracing::error!(error = %error, "a decision was not entered into the ledger");
                        None
                    }
                }
            });
            if let Some(placement) = entered {
                chosen.push(placement);
                continue;
            }
            release(ledger, claim, chosen.len());
            let left_out = LeftOut {
                refused: &claim.avoided,
                kept,
            };
            if self.brief && some_node_waits_for_work(ledger, &request) {
                return Err(Verdict {
                    reason: reason::WAITING_FOR_CAPACITY,
                    message: BRIEF.to_owned(),
                });
            }
            let verdict = explain(ledger, &request, &pod.gpus, provider, &left_out);
            return Err(verdict);
        }
        Ok(chosen)
    }

    /// The best place that is neither left out for now nor kept for somebody else.
    pub(super) fn choose_elsewhere(
        &mut self,
        ledger: &Ledger,
        claim: &Claim,
        request: &Request,
        kept: &[Arc<str>],
    ) -> Option<schedule::Placement> {
        if claim.avoided.is_empty() && kept.is_empty() {
            return self.choose(ledger, claim, request);
        }
        let left_out: Vec<_> = claim.avoided.iter().chain(kept).cloned().collect();
        let mut request = request.clone();
        require(&mut request, None, Some(&elsewhere(&left_out)));
        self.choose(ledger, claim, &request)
    }

    fn choose(
        &mut self,
        ledger: &Ledger,
        claim: &Claim,
        request: &Request,
    ) -> Option<schedule::Placement> {
        if !has_idle_cards(&ledger.fleet, request) {
            return None;
        }
        self.planning(ledger, claim, |planner| {
            planner.choose(&ledger.fleet, request)
        })
    }

    /// Asks the planner of a claim's strategy.
    pub(super) fn planning<T>(
        &mut self,
        ledger: &Ledger,
        claim: &Claim,
        ask: impl FnOnce(&mut Planner) -> T,
    ) -> T {
        let policy = Policy::from(self.strategy(claim));
        if policy == Policy::Random {
            return ask(&mut Planner::new(policy, claim.dice));
        }
        let (wanted, weight) = (self.wanted, self.settings.price_weight);
        let mix = self.mix.get_or_insert_with(|| mix(ledger, wanted));
        let fresh = || {
            let weighed = policy.weighing(weight);
            Planner::with_strategy(weighed.live(0, &ledger.fleet, mix), 0)
        };
        ask(self.planners.entry(policy).or_insert_with(fresh))
    }

    fn strategy(&self, claim: &Claim) -> SchedulingStrategy {
        let tenant = || self.tenancy.strategy(&claim.key.namespace);
        let named = claim.strategy.or_else(tenant);
        named.unwrap_or(self.settings.default_strategy)
    }

    /// What was chosen, in the words of a place, with the quotas told.
    fn placed(
        &mut self,
        ledger: &Ledger,
        claimant: &dyn Claimant,
        chosen: &[schedule::Placement],
        tried: &[(Option<String>, Verdict)],
    ) -> Decision {
        let claim = claimant.claim();
        let strategy = self.strategy(claim);
        let mut places = Vec::new();
        for placement in chosen {
            let asked = claim.pods.get(places.len()).map(|pod| pod.gpus.request());
            let asked = asked.unwrap_or_default();
            let Some(place) = described(ledger, placement, &asked, strategy, tried) else {
                return Decision::Skip;
            };
            let mut pod = claimant.pod(places.len(), &place.resource);
            part::add(pod.containers.first_mut(), &place.extra);
            if !claimant.is_counted() {
                self.quotas.promise(&claim.key.namespace, pod);
            }
            let taken = placement.gpus.as_ref().map_or(0, |taken| taken.pool);
            let node = ledger.fleet.node(placement.node_id);
            let pool = node.and_then(|node| node.gpus.get(taken));
            if let (Some(pool), Some(pod)) = (pool, claim.pods.get(places.len())) {
                let milli = pool.unit.counts(&pod.gpus.request());
                self.tenancy.took(&claim.key.namespace, pool, milli);
            }
            places.push(place);
        }
        if claim.makes_job {
            self.quotas.promise_job(&claim.key.namespace);
        }
        gang::tell(&mut places, claim);
        Decision::Place(places)
    }
}

/// What is said of one that has just been told more.
const BRIEF: &str = "it still waits for room";

/// Whether any node has as many whole cards idle as a request asks for: the planner need not look where none has.
fn has_idle_cards(fleet: &Fleet, request: &Request) -> bool {
    let Some(gpu) = request
        .gpu
        .as_ref()
        .filter(|gpu| gpu.count > 0 && gpu.milli == WHOLE)
    else {
        return true;
    };
    let count = gpu.count as usize;
    let mut nodes = fleet.nodes().filter_map(|(id, _)| fleet.free(id));
    nodes.any(|free| free.pools.iter().any(|pool| pool.idle_cards() >= count))
}

/// Whether other work is all that keeps a request off some node: then that is why it waits.
fn some_node_waits_for_work(ledger: &Ledger, request: &Request) -> bool {
    let filter = Filter::new(&ledger.fleet, request);
    let mut nodes = ledger.fleet.nodes();
    nodes.any(|(id, _)| waits_for_work(&filter.reasons(id)))
}

/// What the pods of a claim ask for, in every way it may be met: at each provider, in each place its topology allows.
pub(super) fn by_provider(ledger: &Ledger, claim: &Claim, asked: &[Request]) -> Vec<Vec<Request>> {
    let at = |provider: &Option<String>| -> Vec<Vec<Request>> {
        let requests = asked.iter();
        let here = requests.map(|request| restricted(request, provider.as_deref()));
        alternatives(ledger, claim, here.collect())
    };
    claim.providers.iter().flat_map(at).collect()
}

/// On none of these nodes.
pub(crate) fn elsewhere(nodes: &[Arc<str>]) -> Expression {
    Expression {
        key: Arc::from("metadata.name"),
        operator: Operator::NotIn,
        values: nodes.to_vec(),
    }
}

/// Takes the pods of a claim out of the ledger that were entered.
pub(super) fn release(ledger: &mut Ledger, claim: &Claim, entered: usize) {
    for member in 0..entered {
        ledger.fleet.release(&work_id(claim, member));
    }
}

/// What a pod of a claim is called in the ledger while nothing has been made for it.
pub(super) fn work_id(claim: &Claim, member: usize) -> Arc<str> {
    match member {
        0 => Arc::from(claim.uid.as_str()),
        member => Arc::from(format!("{}/{member}", claim.uid)),
    }
}

/// What waits and what the cluster runs, as the best guess of what it will be asked for next. Read
/// from the snapshot alone, so that a restart changes no decision.
fn mix(ledger: &Ledger, wanted: &[Arc<dyn Claimant>]) -> Mix {
    let mut mix = Mix::default();
    for pod in wanted.iter().flat_map(|claimant| &claimant.claim().pods) {
        mix.see(&Ask::new(&ledger.fleet, &base_request(ledger, pod)));
    }
    for work in ledger.fleet.works() {
        mix.see(&Ask::new(&ledger.fleet, &work.request));
    }
    mix
}

/// A choice as a place; `None` when the node it names has no such GPUs.
fn described(
    ledger: &Ledger,
    placement: &schedule::Placement,
    asked: &GpuRequest,
    strategy: SchedulingStrategy,
    tried: &[(Option<String>, Verdict)],
) -> Option<Place> {
    let node = placement.node.to_string();
    let described = ledger.fleet.node(placement.node_id)?;
    let pool = placement.gpus.as_ref().map_or(0, |taken| taken.pool);
    let pool = described.gpus.get(pool)?;
    let resource = pool.resource.to_string();
    let provider = provider_of(described).to_owned();
    let mut why = format!(
        "{} chose node {node} of provider {provider}",
        strategy.as_str()
    );
    if strategy == SchedulingStrategy::CostOptimized && !ledger.fleet.totals().priced() {
        let cheap = ledger.fleet.nodes().any(|(_, node)| node.cheap);
        let instead = if cheap {
            "nodes marked cheap and then the emptiest"
        } else {
            "the emptiest"
        };
        why = format!(
            "{why}; no node has a price (label {}), so it went by {instead}",
            gpu::PRICE_LABEL
        );
    }
    for (name, verdict) in tried {
        let name = name.as_deref().unwrap_or_default();
        why = format!(
            "{why}; provider {name} was passed over: {}",
            verdict.message
        );
    }
    let device = ledger.device(&node, &resource);
    if let Some(told) = device.and_then(|device| part::told(device, asked)) {
        why = format!("{why}; {told}");
    }
    let extra = pool.unit.extras(asked).into_iter();
    Some(Place {
        extra: extra
            .map(|(name, amount)| (name.to_string(), amount))
            .collect(),
        milli: u32::try_from(pool.unit.counts(asked) / i64::from(asked.count.max(1)))
            .unwrap_or_default(),
        evidence: device.and_then(|device| device.evidence.clone()),
        node,
        resource,
        strategy: strategy.as_str(),
        provider,
        why,
    })
}

/// The request without its provider: the pod's own and the GPUs asked for.
pub(crate) fn base_request(ledger: &Ledger, pod: &PodClaim) -> Request {
    let mut request = ledger.request(&pod.meta, &pod.spec);
    let mut gpu = gpu_request(ledger, &pod.gpus);
    gpu.resource.clone_from(&pod.resource);
    request.gpu = Some(gpu);
    // Models of the fleet do not tell forms apart; the nodes' product labels do.
    if pod.gpus.states_form() {
        let meeting = ledger.gpus.iter().filter(|(_, gpus)| {
            let mut devices = gpus.devices.iter();
            devices.any(|device| pod.gpus.met_by(device))
        });
        let here = Expression {
            key: Arc::from("metadata.name"),
            operator: Operator::In,
            values: meeting.map(|(name, _)| Arc::from(name.as_str())).collect(),
        };
        require(&mut request, None, Some(&here));
    }
    request
}

/// Models the fleet has that meet the ask, mixed groups included; where it has none, the ones asked
/// for, so that the explanation names them.
pub(super) fn gpu_request(ledger: &Ledger, ask: &GpuAsk) -> GpuRequest {
    let mut gpu = ask.request();
    if !ask.names.is_empty() {
        let meeting = ledger.devices().filter(|device| ask.met_by(device));
        gpu.models = meeting
            .map(|device| Arc::from(model_name(device)))
            .collect();
        if gpu.models.is_empty() {
            gpu.models = ask.model_names().into_iter().map(Arc::from).collect();
        }
    }
    gpu
}

pub(super) fn restricted(base: &Request, provider: Option<&str>) -> Request {
    let mut request = base.clone();
    if let Some(provider) = provider {
        let here = Expression::new(label::PROVIDER, Operator::In, &[provider]);
        require(&mut request, Some(&here), None);
    }
    request
}

/// Adds a requirement to every alternative of the node affinity.
pub(crate) fn require(
    request: &mut Request,
    label: Option<&Expression>,
    node: Option<&Expression>,
) {
    let terms = request
        .constraints
        .node_affinity
        .get_or_insert_with(|| vec![NodeTerm::default()]);
    for term in terms {
        term.match_expressions.extend(label.cloned());
        term.match_fields.extend(node.cloned());
    }
}
