//! Places kept for claims that could not be served for a reason that passes: a conflict, a server that did not answer. As
//! long as such a claim waits for its next try, nobody else has its room, or lower work would go first, and work that was
//! evicted for it would come back. Kept in memory only: after a restart the claim is tried at once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Claimant, Place};
use crate::ledger::{Promise, pin};

/// After so many failures in a row the room is anybody's: what fails for so long is no passing trouble.
const TRIES: u32 = 4;

/// Promises by the uid of the claim.
#[derive(Debug, Default)]
pub(crate) struct Kept(BTreeMap<String, Vec<Promise>>);

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
        let promises = places.iter().enumerate().filter_map(promise);
        self.0.insert(claim.uid.clone(), promises.collect());
    }

    /// Forgets those that do not wait for their next try any more.
    pub(crate) fn only(&mut self, held_back: &BTreeSet<String>) {
        self.0.retain(|uid, _| held_back.contains(uid));
    }

    pub(crate) fn promises(&self) -> impl Iterator<Item = Promise> {
        self.0.values().flatten().cloned()
    }
}
