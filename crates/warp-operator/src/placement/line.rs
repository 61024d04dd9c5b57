//! The line: whoever is first and waits for room is kept it, so that a stream of small work cannot hold wide work up for
//! good. Who comes later keeps off those nodes, unless it has certainly ended before they are needed. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use warp_api::workload::Priority;
use warp_core::fleet::{Fleet, Request, Work};
use warp_core::schedule::fit::Filter;
use warp_core::schedule::keep::{Ending, keep_in, waits_for_work};

use super::{Claim, Order};
use crate::config::QueuePolicy;

/// When running work ends, by its id in the ledger; work that is not named never does.
pub(crate) type Endings = BTreeMap<String, Ending>;

/// Nodes kept for one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    uid: String,
    generation: i64,
    nodes: Vec<Arc<str>>,
    /// When it has them at the latest, where that is known.
    by: Option<i64>,
    priority: Priority,
    /// Nobody goes for it.
    patient: bool,
    /// Others go for it there.
    made: bool,
    /// They are moved: whoever goes from there does not come back before it has started.
    moves: bool,
}

impl Held {
    fn new(claim: &Claim, nodes: Vec<Arc<str>>, by: Option<i64>, made: bool) -> Self {
        Self {
            uid: claim.uid.clone(),
            generation: claim.generation,
            nodes,
            by,
            priority: claim.priority,
            patient: claim.patient,
            made,
            moves: false,
        }
    }

    fn is_of(&self, claim: &Claim) -> bool {
        self.uid == claim.uid && self.generation == claim.generation
    }

    /// Whether a claim that others go for need not keep off: the one they are kept for would have to wait for those others
    /// to end by themselves.
    fn yields_to(&self, claim: &Claim) -> bool {
        self.patient && !claim.patient && self.priority == claim.priority
    }

    /// Whether others went or go for it.
    pub(super) fn is_made(&self) -> bool {
        self.made
    }

    pub(super) fn nodes(&self) -> &[Arc<str>] {
        &self.nodes
    }

    /// Whom they are kept for.
    pub(super) fn uid(&self) -> &str {
        &self.uid
    }
}

/// The line of one pass.
pub(crate) struct Line<'a> {
    policy: QueuePolicy,
    /// Whom room is kept for, where the policy alone does not say.
    order: Option<&'a Order>,
    now: Timestamp,
    /// Read when somebody is kept room for.
    endings: Box<dyn Fn() -> Endings + 'a>,
    /// Read already, with what this pass has placed.
    known: Option<Cow<'a, Endings>>,
    placed: Endings,
    /// What was kept in the last pass: nodes are chosen once, or nobody would ever have them.
    before: Vec<Held>,
    held: Arc<Vec<Held>>,
}

impl fmt::Debug for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line")
            .field("policy", &self.policy)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

impl<'a> Line<'a> {
    pub(crate) fn new(
        policy: QueuePolicy,
        now: Timestamp,
        endings: impl Fn() -> Endings + 'a,
        before: Vec<Held>,
    ) -> Self {
        Self {
            policy,
            order: None,
            now,
            endings: Box::new(endings),
            known: None,
            placed: Endings::new(),
            before,
            held: Arc::default(),
        }
    }

    /// The same where all endings are known.
    pub(crate) fn knowing(
        policy: QueuePolicy,
        now: Timestamp,
        endings: &'a Endings,
        before: Vec<Held>,
    ) -> Self {
        Self {
            known: Some(Cow::Borrowed(endings)),
            ..Self::new(policy, now, Endings::new, before)
        }
    }

    /// Asks the order for whom room is kept.
    pub(crate) fn ordered_by(mut self, order: &'a Order) -> Self {
        self.order = Some(order);
        self
    }

    /// Whether anything is kept for a claim that waits.
    pub(crate) fn keeps_for(&self, claim: &Claim) -> bool {
        use QueuePolicy::{Easy, Fifo};
        let usual = || matches!(self.policy, Easy | Fifo);
        let order = self.order.map(|order| order.keeps_for(claim, self.now));
        order.unwrap_or_else(usual)
    }

    /// What is kept so far in this pass.
    pub(crate) fn held(&self) -> &Arc<Vec<Held>> {
        &self.held
    }

    /// The nodes a claim has to keep off: those kept for others, but for where it has certainly ended in time, and for
    /// where others went for it.
    pub(crate) fn off_limits(&self, claim: &Claim) -> Vec<Arc<str>> {
        let mut before = self.before.iter();
        let made = before.find(|held| held.is_made() && held.is_of(claim));
        let made = made.map(Held::nodes).unwrap_or_default();
        let mut nodes = self.kept_from(claim, &|node| made.contains(node));
        // What others were asked to leave is neither for who asks nobody, nor for who was moved away.
        let taken = |held: &&Held| {
            let patient = claim.patient && held.priority == claim.priority;
            let moved = held.moves && held.priority >= claim.priority;
            held.uid != claim.uid && held.is_made() && (patient || moved)
        };
        let taken = self.before.iter().filter(taken);
        nodes.extend(taken.flat_map(|held| held.nodes.clone()));
        nodes
    }

    /// The nodes that nobody goes from for a claim.
    pub(crate) fn off_limits_to_evict(&self, claim: &Claim) -> Vec<Arc<str>> {
        self.kept_from(claim, &|_| true)
    }

    /// Nodes kept for others; those kept for one that yields only where they are not `given`.
    fn kept_from(&self, claim: &Claim, given: &dyn Fn(&Arc<str>) -> bool) -> Vec<Arc<str>> {
        let ends = self.end_of(claim);
        let others = self.held.iter().filter(|held| held.uid != claim.uid);
        let in_its_way = others.filter(|held| match (ends, held.by) {
            (Ending::By(end), Some(by)) => end > by,
            _ => true,
        });
        let nodes = in_its_way.flat_map(|held| {
            let yields = held.yields_to(claim);
            let nodes = held.nodes.iter();
            nodes.filter(move |node| !(yields && given(node)))
        });
        nodes.cloned().collect()
    }

    /// A claim was given places: what comes later may wait for it to end.
    pub(crate) fn placed(&mut self, claim: &Claim, work: impl Iterator<Item = Arc<str>>) {
        let end = self.end_of(claim);
        self.placed.extend(work.map(|id| (id.to_string(), end)));
    }

    /// Keeps nodes for a claim that room is made for.
    pub(crate) fn hold(&mut self, claim: &Claim, nodes: Vec<Arc<str>>) {
        let held = Held::new(claim, nodes, None, true);
        Arc::make_mut(&mut self.held).push(held);
    }

    /// Keeps nodes for a gang that others are moved for.
    pub(crate) fn hold_moving(&mut self, claim: &Claim, nodes: Vec<Arc<str>>) {
        let held = Held {
            moves: true,
            ..Held::new(claim, nodes, None, true)
        };
        Arc::make_mut(&mut self.held).push(held);
    }

    /// Whether others were moved for a claim in the pass before.
    pub(crate) fn moves_for(&self, claim: &Claim) -> bool {
        let mut before = self.before.iter();
        before.any(|held| held.moves && held.is_of(claim))
    }

    /// A claim waits as before: what was kept for it stays.
    pub(crate) fn still_waits(&mut self, claim: &Claim) {
        let kept = self.before.iter().find(|held| held.is_of(claim)).cloned();
        Arc::make_mut(&mut self.held).extend(kept);
    }

    /// A claim waits for room: keeps it some, unless somebody before it waits for the same. `asked` are its requests at
    /// each of its providers. Returns the nodes.
    pub(crate) fn waits(
        &mut self,
        fleet: &mut Fleet,
        claim: &Claim,
        asked: &[Vec<Request>],
    ) -> Option<Vec<Arc<str>>> {
        if !self.keeps_for(claim) || self.is_behind(fleet, asked) {
            return None;
        }
        let held = match self.policy {
            QueuePolicy::Fifo => all_that_would_do(fleet, asked).map(|nodes| (nodes, None)),
            _ => self.reserve(fleet, claim, asked),
        };
        let (nodes, by) = held?;
        let held = Held::new(claim, nodes.clone(), by, false);
        Arc::make_mut(&mut self.held).push(held);
        Some(nodes)
    }

    /// Whether a node that is kept for somebody before it would do for it too: it is not its turn.
    fn is_behind(&self, fleet: &Fleet, asked: &[Vec<Request>]) -> bool {
        let kept = self.held.iter().flat_map(|held| &held.nodes);
        let kept: Vec<_> = kept.filter_map(|name| fleet.find(name)).collect();
        asked.iter().flatten().any(|request| {
            let filter = Filter::new(fleet, request);
            kept.iter().any(|id| waits_for_work(&filter.reasons(*id)))
        })
    }

    /// The nodes kept before, if they still do; else those that lack least.
    fn reserve(
        &mut self,
        fleet: &mut Fleet,
        claim: &Claim,
        asked: &[Vec<Request>],
    ) -> Option<(Vec<Arc<str>>, Option<i64>)> {
        let (endings, placed) = (&self.endings, &self.placed);
        let known = self.known.get_or_insert_with(|| Cow::Owned(endings()));
        let ending = |work: &Work| {
            let found = known.get(&*work.id).or_else(|| placed.get(&*work.id));
            found.copied().unwrap_or(Ending::Never)
        };
        let free = |name: &str| !claim.avoided.iter().any(|avoided| **avoided == *name);
        let before = self.before.iter().find(|held| held.is_of(claim));
        // Of several places that would do, such as the domains of a level, the one that lacks least.
        let mut least = |eligible: &dyn Fn(&str) -> bool| {
            let places = asked.iter();
            let places = places.filter_map(|requests| keep_in(fleet, requests, &ending, eligible));
            places.min_by_key(|kept| (kept.cards, kept.by.unwrap_or(i64::MAX)))
        };
        let again = before.and_then(|held| {
            least(&|name| free(name) && held.nodes.iter().any(|node| **node == *name))
        });
        let found = again.or_else(|| least(&free));
        found.map(|kept| (kept.nodes, kept.by))
    }

    fn end_of(&self, claim: &Claim) -> Ending {
        let seconds = claim.max_runtime_seconds;
        seconds.map_or(Ending::Unknown, |seconds| {
            Ending::By(self.now.as_second().saturating_add(seconds))
        })
    }
}

/// Every node a claim could have once other work has ended; none where there is no such node.
fn all_that_would_do(fleet: &Fleet, asked: &[Vec<Request>]) -> Option<Vec<Arc<str>>> {
    let filters = asked.iter().flatten();
    let filters: Vec<_> = filters.map(|request| Filter::new(fleet, request)).collect();
    let nodes = fleet.nodes().filter(|(id, _)| {
        let mut filters = filters.iter();
        filters.any(|filter| waits_for_work(&filter.reasons(*id)))
    });
    let nodes: Vec<_> = nodes.map(|(_, node)| Arc::clone(&node.name)).collect();
    (!nodes.is_empty()).then_some(nodes)
}
