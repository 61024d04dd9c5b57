//! Decisions of one pass, in queue order, each seeing the ones before it. Pure.

mod room;

use std::collections::BTreeMap;
use std::sync::Arc;

use warp_api::reason;
use warp_api::workload::{SchedulingStrategy, TopologyLevels};
use warp_core::fleet::{Fleet, GpuRequest, Request, WHOLE, WorkState};
use warp_core::gpu;
use warp_core::schedule::fit::Filter;
use warp_core::schedule::keep::waits_for_work;
use warp_core::schedule::reclaim::Lent;
use warp_core::schedule::{self, Ask, Mix, Planner, Policy};

use super::defragment::SEARCHES;
use super::explain::{LeftOut, explain, fold, hint, never_a_container};
use super::gang;
use super::part;
use super::providers::{Closed, Tries, compared};
use super::quota::Quotas;
use super::request::{base_request, elsewhere, named, require, restricted};
use super::tenancy::{Reserved, Tenancy};
use super::{
    Bought, Cause, Claim, Claimant, Evictable, Held, Line, Order, Place, Providers, Rented, Runner,
    Verdict,
};
use crate::config::Settings;
use crate::ledger::{Ledger, provider_of};

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
    /// Gangs others may still be moved for in this pass.
    pub(super) searches: usize,
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
    /// Nodes that came while work was shown.
    bought: Bought,
    /// Which providers are tried first, and which not at all.
    providers: Providers,
    /// Those that are closed to whoever is decided for.
    closed: Closed,
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
            searches: if settings.defragment { SEARCHES } else { 0 },
            quotas,
            tenancy,
            line,
            evictable: Evictable::default(),
            rented: Rented::default(),
            bought: Bought::default(),
            providers: Providers::default(),
            closed: Closed::new(),
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

    /// Keeps nodes that came while work was shown for that work.
    pub(crate) fn keeping_bought(mut self, bought: Bought) -> Self {
        self.bought = bought;
        self
    }

    /// Compares providers, and leaves some alone.
    pub(crate) fn comparing(mut self, providers: Providers) -> Self {
        self.providers = providers;
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

    pub(super) fn evictable(&self) -> &Evictable {
        &self.evictable
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
        let kept = self.off_limits(ledger, claim);
        let tries = self.providers.tries(ledger, claim);
        tries.order.iter().any(|provider| {
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

    /// Providers that are closed to whoever was decided for last.
    pub(super) fn closed(&self) -> &Closed {
        &self.closed
    }

    /// Decides for all pods of a claim.
    fn decide_whole(&mut self, ledger: &mut Ledger, claimant: &dyn Claimant) -> Decision {
        let claim = claimant.claim();
        let barred = self.tenancy.bars(claim).or_else(|| self.barred(claimant));
        if let Some(verdict) = barred {
            return Decision::Wait(verdict);
        }
        let kept = self.off_limits(ledger, claim);
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
        let tries = self.providers.tries(ledger, claim);
        for provider in &tries.order {
            let found = match asked.as_slice() {
                [_] => self.choose_all(ledger, claim, &asked, provider.as_deref(), &kept),
                _ => self.choose_gang(ledger, claim, &asked, provider.as_deref(), &kept),
            };
            match found {
                Ok(chosen) => {
                    let decision = self.placed(ledger, claimant, &chosen, (&tried, &tries));
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
            // Who is moved goes on at once; who is evicted waits.
            let room = self.move_others(ledger, claim, &asked, &verdict);
            let room = room.or_else(|| self.make_room(ledger, claimant, &asked, &verdict));
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
        let mut request = restricted(request, named(provider.as_deref()));
        if !kept.is_empty() {
            require(&mut request, None, Some(&elsewhere(kept)));
        }
        let affinity = pod.spec.affinity.as_ref();
        let own = affinity.is_some_and(|affinity| affinity.node_affinity.is_some());
        // Without any affinity it would be on the nodes that are kept.
        hint(ledger, claim, &request, own && kept.is_empty())
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
            if self.brief && some_node_waits_for_work(ledger, &request) {
                return Err(Verdict {
                    reason: reason::WAITING_FOR_CAPACITY,
                    message: BRIEF.to_owned(),
                });
            }
            let no_container = never_a_container(claim);
            let left_out = LeftOut {
                refused: &claim.avoided,
                kept,
                within: None,
                closed: &self.closed,
                no_container: no_container.as_deref(),
            };
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
        (tried, tries): (&[(Option<String>, Verdict)], &Tries),
    ) -> Decision {
        let claim = claimant.claim();
        let strategy = self.strategy(claim);
        let mut places = Vec::new();
        for placement in chosen {
            let asked = claim.pods.get(places.len()).map(|pod| pod.gpus.request());
            let asked = asked.unwrap_or_default();
            let Some(place) = described(ledger, placement, &asked, strategy, (tried, tries)) else {
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
    (tried, tries): (&[(Option<String>, Verdict)], &Tries),
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
    if let Some(compared) = compared(&tries.scored, &provider) {
        why = format!("{why}; {compared}");
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
