//! What was found out about those that wait, and on which ground: as long as nothing of that changes, nothing is looked at
//! again, and claims of one shape are looked at once. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::shape::ShapeId;
use super::tenancy::Reserved;
use super::{Held, Verdict};

/// What decisions depend on besides the claim.
#[derive(Clone, Debug)]
pub(super) struct Ground {
    /// The state of the books.
    pub(super) epoch: u64,
    /// Who could be evicted.
    pub(super) evictable: u64,
    /// When running work ends.
    pub(super) ends: u64,
    /// What was kept for those before it.
    pub(super) held: Arc<Vec<Held>>,
    /// What was kept of tenants' shares for those before it.
    pub(super) reserved: Arc<Vec<Reserved>>,
}

impl Ground {
    /// Whether a decision on one would be the same on the other.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.epoch == other.epoch
            && self.evictable == other.evictable
            && self.ends == other.ends
            && (Arc::ptr_eq(&self.held, &other.held) || self.held == other.held)
            && (Arc::ptr_eq(&self.reserved, &other.reserved) || self.reserved == other.reserved)
    }

    /// Whether nothing was kept since for anybody.
    pub(super) fn still(&self, held: &Arc<Vec<Held>>, reserved: &Arc<Vec<Reserved>>) -> bool {
        Arc::ptr_eq(&self.held, held) && Arc::ptr_eq(&self.reserved, reserved)
    }
}

/// What was found out about one claim, and holds for no other.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) ground: Arc<Ground>,
    pub(super) verdict: Arc<Verdict>,
    /// Only the reason was found out.
    pub(super) brief: bool,
    /// What was kept of its tenant's share for it.
    pub(super) reserves: Option<Reserved>,
}

/// A shape of claims, the namespace they are in where that matters, and how far they may go in evicting their equals.
pub(super) type Sort = (ShapeId, usize, u64);

/// What was found out about sorts of claims, in the last pass and in this one.
#[derive(Debug, Default)]
pub(super) struct Memo {
    last: BTreeMap<Sort, Vec<Found>>,
    now: BTreeMap<Sort, Vec<Found>>,
    /// The last answer and what was asked: neighbours in line mostly ask the same.
    answered: Option<Answered>,
}

#[derive(Debug)]
struct Answered {
    sort: Sort,
    brief: bool,
    ground: Arc<Ground>,
    verdict: Arc<Verdict>,
}

#[derive(Clone, Debug)]
struct Found {
    ground: Arc<Ground>,
    verdict: Arc<Verdict>,
    /// Only the reason was found out.
    brief: bool,
}

impl Memo {
    /// Begins a pass: what the last one did not use is forgotten.
    pub(super) fn begin(&mut self) {
        self.last = std::mem::take(&mut self.now);
        self.answered = None;
    }

    /// Why claims of a sort wait on a ground, if that is known; `brief` where its reason will do.
    pub(super) fn get(
        &mut self,
        sort: Sort,
        ground: &Arc<Ground>,
        brief: bool,
    ) -> Option<Arc<Verdict>> {
        if let Some(answered) = &self.answered
            && (answered.sort, answered.brief) == (sort, brief)
            && Arc::ptr_eq(&answered.ground, ground)
        {
            return Some(Arc::clone(&answered.verdict));
        }
        let verdict = self.find(sort, ground, brief)?;
        self.answered = Some(Answered {
            sort,
            brief,
            ground: Arc::clone(ground),
            verdict: Arc::clone(&verdict),
        });
        Some(verdict)
    }

    fn find(&mut self, sort: Sort, ground: &Arc<Ground>, brief: bool) -> Option<Arc<Verdict>> {
        let here = self.now.get(&sort).into_iter().flatten().rev();
        let enough = |found: &&Found| brief || !found.brief;
        let mut here = here.filter(|found| Arc::ptr_eq(&found.ground, ground) && enough(found));
        if let Some(found) = here.next() {
            return Some(Arc::clone(&found.verdict));
        }
        let before = self.last.get(&sort).into_iter().flatten();
        let mut before = before.filter(|found| found.ground.is_same(ground) && enough(found));
        let Found { verdict, brief, .. } = before.next()?.clone();
        self.put(sort, ground, &verdict, brief);
        Some(verdict)
    }

    pub(super) fn put(
        &mut self,
        sort: Sort,
        ground: &Arc<Ground>,
        verdict: &Arc<Verdict>,
        brief: bool,
    ) {
        self.answered = None;
        self.now.entry(sort).or_default().push(Found {
            ground: Arc::clone(ground),
            verdict: Arc::clone(verdict),
            brief,
        });
    }
}
