//! What was last found out about claims that could not be met: the message their status
//! shows. Kept in memory only, because it follows from the snapshot and is found again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::Claim;
use crate::clock;

/// A message whose reason is unchanged is renewed at most this often: its numbers move with every
/// pod of the cluster, and each renewal would be a write per waiting workload.
const RENEW: i64 = 30;
/// Longest wait after a placement could not be made.
const HOLD: i64 = 300;

/// Why a claim has no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Verdicts by the claim's uid.
#[derive(Debug, Default)]
pub(crate) struct Verdicts(Mutex<BTreeMap<String, Entry>>);

#[derive(Debug, Default)]
struct Entry {
    verdict: Option<Arc<Verdict>>,
    /// Its place in line, from 1, as its status says it.
    position: Option<usize>,
    generation: i64,
    since: Option<Timestamp>,
    /// Not tried again before then, for this generation.
    hold: Option<(i64, Timestamp)>,
    failures: u32,
}

/// Whether a place in line is worth telling anew: by a tenth of itself, or a status would be written for everybody
/// whenever one is served.
pub(super) fn moved(told: Option<usize>, now: Option<usize>) -> bool {
    match (told, now) {
        (Some(told), Some(now)) => told.abs_diff(now) * 10 >= told.max(1) && told != now,
        (told, now) => told != now,
    }
}

/// Whether what was told at a time is told anew for no other reason than its numbers.
pub(super) fn is_fresh(since: Timestamp, now: Timestamp) -> bool {
    clock::after(since, RENEW) > now
}

impl Verdicts {
    /// What was found out about this very spec.
    pub(crate) fn get(&self, uid: &str, generation: i64) -> Option<Verdict> {
        let all = self.0.lock();
        let entry = all.get(uid)?;
        let current = entry.generation == generation;
        let verdict = entry.verdict.as_deref().filter(|_| current);
        verdict.cloned()
    }

    /// Its place in line, as it was last told.
    pub(crate) fn position(&self, uid: &str, generation: i64) -> Option<usize> {
        let all = self.0.lock();
        let entry = all.get(uid)?;
        entry.position.filter(|_| entry.generation == generation)
    }

    /// Stores a verdict, and its place in line if it has one; true when the owner's status should follow.
    pub(crate) fn set(
        &self,
        claim: &Claim,
        verdict: impl Into<Arc<Verdict>>,
        position: Option<usize>,
        now: Timestamp,
    ) -> bool {
        let verdict = verdict.into();
        let mut all = self.0.lock();
        let entry = all.entry(claim.uid.clone()).or_default();
        let generation = claim.generation;
        let edited = entry.generation != generation;
        let fresh = entry.since.is_some_and(|since| is_fresh(since, now));
        let same_reason = entry
            .verdict
            .as_ref()
            .is_some_and(|old| old.reason == verdict.reason);
        let same = entry.verdict.as_ref() == Some(&verdict) && !moved(entry.position, position);
        if !edited && (same || (same_reason && fresh)) {
            return false;
        }
        entry.verdict = Some(verdict);
        entry.position = position;
        entry.generation = generation;
        entry.since = Some(now);
        true
    }

    /// Forgets a claim that was met, is finished or gone.
    pub(crate) fn clear(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    /// Forgets all other claims.
    pub(crate) fn keep_only(&self, uids: &BTreeSet<String>) {
        self.0.lock().retain(|uid, _| uids.contains(uid));
    }

    /// After a placement that could not be made the next try waits, longer each time; a changed spec is tried at once.
    /// Returns how often in a row it failed.
    pub(crate) fn hold_back(&self, claim: &Claim, now: Timestamp) -> u32 {
        let mut all = self.0.lock();
        let entry = all.entry(claim.uid.clone()).or_default();
        let wait = (1_i64 << entry.failures.min(9)).min(HOLD);
        entry.failures += 1;
        entry.hold = Some((claim.generation, clock::after(now, wait)));
        entry.failures
    }

    /// Until when this very spec is not tried again.
    pub(crate) fn held_until(&self, uid: &str, generation: i64) -> Option<Timestamp> {
        let all = self.0.lock();
        let (of, until) = all.get(uid)?.hold?;
        (of == generation).then_some(until)
    }
}
