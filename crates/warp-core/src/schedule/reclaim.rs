//! Who gives lent GPUs back, so that a tenant gets what its share promises it. Only work of tenants that borrow goes, and
//! only as long as they do. A plan exists only if the claim may run and fits once its victims are gone: quotas and filters
//! themselves say so, on copies, and no victim is named that the claim does not need. Who may be evicted, and what that
//! throws away, is the caller's.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::fleet::{Fleet, Request, Work, WorkState};
use crate::tenancy::{Ask, Kind, Tree, Usage, Verdict, admit, borrows, is_entitled};

use super::evict::{Eviction, Victim, evict};
use super::planner::{Planner, Scope};
use super::strategy::Policy;

/// What the claim's own pods are called on the copy of the fleet.
const OWN: &str = "reclaiming/";

/// Work of a tenant that may be asked to give its GPUs back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lent {
    pub tenant: Arc<str>,
    pub victim: Victim,
}

/// What decides whose GPUs are whose.
#[derive(Clone, Copy, Debug)]
pub struct Shares<'a> {
    pub tree: &'a Tree,
    pub usage: &'a Usage,
}

/// The GPUs a piece of work holds, by kind, in thousandths: a part or a share counts as what it is of its GPU.
pub fn held(fleet: &Fleet, work: &Work) -> Vec<(Kind, i64)> {
    let node = fleet.find(&work.node).and_then(|id| fleet.node(id));
    let pools = node.iter().flat_map(|node| node.gpus.iter().enumerate());
    let held = pools.filter_map(|(at, pool)| {
        let named = work.request.resources.extended(&pool.resource);
        let taken = work.gpus.as_ref().filter(|taken| taken.pool == at);
        let asked = taken.and(work.request.gpu.as_ref());
        let each = i64::from(pool.unit.share_of(&work.request));
        let count = named.saturating_mul(each) + asked.map_or(0, |gpu| pool.unit.counts(gpu));
        let kind = Kind {
            vendor: Arc::clone(&pool.vendor),
            model: Arc::clone(&pool.model),
        };
        // A card that goes with a part is counted by the part.
        let beside = node.iter().flat_map(|node| &node.gpus).any(|other| {
            other.unit.beside.as_ref() == Some(&pool.resource)
                && work.request.resources.extended(&other.resource) > 0
        });
        (count > 0 && !beside).then_some((kind, count))
    });
    held.collect()
}

/// Who of `lent` goes so that all of `requests` run within the share of the tenant that asks, on nodes that `eligible` lets
/// through. None for a tenant that would borrow itself, where nobody has to go, and where that would not be enough.
pub fn reclaim(
    fleet: &Fleet,
    requests: &[Request],
    shares: Shares<'_>,
    ask: Ask<'_>,
    lent: &[Lent],
    eligible: &dyn Fn(&str) -> bool,
) -> Option<Eviction> {
    if lent.is_empty() || !is_entitled(shares.tree, shares.usage, ask) {
        return None;
    }
    let case = Case {
        fleet,
        requests,
        shares,
        ask,
        lent,
        eligible,
        gpus: lent.iter().map(|one| gpus_of(fleet, one)).collect(),
    };
    let mut going = case.room()?;
    case.share(&mut going)?;
    case.spare(&mut going);
    let nodes = case.fits(&going)?;
    let victims: Vec<usize> = going.into_iter().collect();
    (!victims.is_empty()).then_some(Eviction { victims, nodes })
}

fn gpus_of(fleet: &Fleet, lent: &Lent) -> Vec<(Kind, i64)> {
    let works = lent.victim.works.iter();
    let works = works.filter_map(|id| fleet.work(id));
    works.flat_map(|work| held(fleet, work)).collect()
}

struct Case<'a> {
    fleet: &'a Fleet,
    requests: &'a [Request],
    shares: Shares<'a>,
    ask: Ask<'a>,
    lent: &'a [Lent],
    eligible: &'a dyn Fn(&str) -> bool,
    /// Of each of `lent`.
    gpus: Vec<Vec<(Kind, i64)>>,
}

impl Case<'_> {
    /// What is used once these are gone.
    fn usage(&self, going: &BTreeSet<usize>) -> Usage {
        let mut usage = self.shares.usage.clone();
        for at in going {
            for (kind, count) in &self.gpus[*at] {
                usage.add(&self.lent[*at].tenant, kind, -count);
            }
        }
        usage
    }

    /// Whether the tenant of one borrows of what is asked for.
    fn borrows(&self, at: usize, usage: &Usage) -> bool {
        let tree = self.shares.tree;
        let mut kinds = self.gpus[at].iter();
        kinds.any(|(kind, _)| borrows(tree, usage, &self.lent[at].tenant, self.ask, kind))
    }

    /// Lower priority first, then the least work lost.
    fn rank(&self, at: usize) -> (i64, u64, usize) {
        let victim = &self.lent[at].victim;
        (victim.priority, victim.lost_gpu_seconds, at)
    }

    /// Whether each of them goes from a tenant that borrows at that moment; else the first that does not.
    fn overdrawn(&self, going: &[usize]) -> Result<(), usize> {
        let mut in_turn = going.to_vec();
        in_turn.sort_by_key(|at| self.rank(*at));
        let mut gone = BTreeSet::new();
        for at in in_turn {
            if !self.borrows(at, &self.usage(&gone)) {
                return Err(at);
            }
            gone.insert(at);
        }
        Ok(())
    }

    /// Who goes for room on the nodes; nobody where there is enough.
    fn room(&self) -> Option<BTreeSet<usize>> {
        if self.fits(&BTreeSet::new()).is_some() {
            return Some(BTreeSet::new());
        }
        let borrowing = |at: &usize| self.borrows(*at, self.shares.usage);
        let mut left: Vec<usize> = (0..self.lent.len()).filter(borrowing).collect();
        loop {
            let victims = left.iter().map(|at| self.lent[*at].victim.clone());
            let victims: Vec<Victim> = victims.collect();
            let found = evict(self.fleet, self.requests, &victims, self.eligible)?;
            let going: Vec<usize> = found.victims.iter().map(|at| left[*at]).collect();
            match self.overdrawn(&going) {
                Ok(()) => return Some(going.into_iter().collect()),
                Err(stays) => left.retain(|at| *at != stays),
            }
        }
    }

    /// Adds those who have to go for the share itself.
    fn share(&self, going: &mut BTreeSet<usize>) -> Option<()> {
        loop {
            let usage = self.usage(going);
            let owed = match admit(self.shares.tree, &usage, self.ask) {
                Verdict::Fits { .. } => return Some(()),
                Verdict::Never { .. } => return None,
                Verdict::Waits { reclaim, .. } => reclaim,
            };
            // Whoever borrows most for its weight gives back first.
            let next = owed.iter().find_map(|owed| {
                let theirs = (0..self.lent.len()).filter(|at| {
                    !going.contains(at)
                        && self.lent[*at].tenant == owed.tenant
                        && self.borrows(*at, &usage)
                });
                theirs.min_by_key(|at| self.rank(*at))
            });
            going.insert(next?);
        }
    }

    /// Lets those stay that need not go, the dearest first.
    fn spare(&self, going: &mut BTreeSet<usize>) {
        let mut dearest: Vec<usize> = going.iter().copied().collect();
        dearest.sort_by_key(|at| Reverse(self.rank(*at)));
        for at in dearest {
            going.remove(&at);
            let admitted = admit(self.shares.tree, &self.usage(going), self.ask);
            let enough = matches!(admitted, Verdict::Fits { .. }) && self.fits(going).is_some();
            if !enough {
                going.insert(at);
            }
        }
    }

    /// The nodes that take all requests once these are gone.
    fn fits(&self, going: &BTreeSet<usize>) -> Option<Vec<Arc<str>>> {
        let mut fleet = self.fleet.clone();
        for work in going.iter().flat_map(|at| &self.lent[*at].victim.works) {
            fleet.release(work);
        }
        let nodes = fleet.nodes();
        let nodes = nodes.filter(|(_, node)| (self.eligible)(&node.name));
        let open: Vec<_> = nodes.map(|(id, _)| id).collect();
        let mut named: Vec<Arc<str>> = Vec::new();
        for (member, request) in self.requests.iter().enumerate() {
            let mut planner = Planner::new(Policy::BestFit, 0);
            let placement = planner.choose_within(&fleet, request, Scope::Only(&open))?;
            let name = Arc::clone(&placement.node);
            let id = Arc::from(format!("{OWN}{member}"));
            let work = placement.work(id, Arc::new(request.clone()), 0, WorkState::Reserved);
            fleet.bind(work).ok()?;
            if !named.contains(&name) {
                named.push(name);
            }
        }
        Some(named)
    }
}

#[cfg(test)]
mod tests;
