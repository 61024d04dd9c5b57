//! Places kept for claims that could not be served for a reason that passes: a conflict, a server that did not answer. As
//! long as such a claim waits for its next try, nobody else has its room, or lower work would go first, and work that was
//! evicted for it would come back. Kept in memory only: after a restart the claim is tried at once.

use std::collections::{BTreeMap, BTreeSet};

use super::roll::PromiseChange;
use super::{Claimant, Place};
use crate::ledger::{Promise, pin};

/// After so many failures in a row the room is anybody's: what fails for so long is no passing trouble.
const TRIES: u32 = 4;

/// Promises by the uid of the claim.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    by_claim: BTreeMap<String, Vec<Promise>>,
    /// Not entered into the books yet, or still to be taken out.
    changes: Vec<PromiseChange>,
}

impl Kept {
    /// Keeps the places of a claim that has failed so often in a row.
    pub(crate) fn keep(&mut self, claimant: &dyn Claimant, places: &[Place], failures: u32) {
        if failures > TRIES {
            return;
        }
        let claim = claimant.claim();
        let promise = |(member, place): (usize, &Place)| {
            let asked = claim.pods.get(member)?;
            let mut spec = claimant.pod(member, &place.resource);
            pin(&mut spec, Some(&place.node), None);
            Some(Promise {
                owner: super::work_id(claim, member).to_string(),
                meta: asked.meta.clone(),
                spec,
                counted: claimant.is_counted(),
            })
        };
        let promises: Vec<_> = places.iter().enumerate().filter_map(promise).collect();
        self.forget(&claim.uid);
        let entered = promises
            .iter()
            .map(|one| (one.owner.clone(), Some(one.clone())));
        self.changes.extend(entered);
        self.by_claim.insert(claim.uid.clone(), promises);
    }

    fn forget(&mut self, uid: &str) {
        let gone = self.by_claim.remove(uid).into_iter().flatten();
        self.changes.extend(gone.map(|one| (one.owner, None)));
    }

    /// Forgets those that do not wait for their next try any more; what has changed since this was last asked.
    pub(super) fn only(&mut self, held_back: &BTreeSet<String>) -> Vec<PromiseChange> {
        let known = self.by_claim.keys();
        let gone: Vec<String> = known
            .filter(|uid| !held_back.contains(*uid))
            .cloned()
            .collect();
        for uid in gone {
            self.forget(&uid);
        }
        std::mem::take(&mut self.changes)
    }

    pub(crate) fn promises(&self) -> impl Iterator<Item = Promise> {
        self.by_claim.values().flatten().cloned()
    }
}
