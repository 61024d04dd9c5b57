//! What the scheduler last found out about workloads it could not place: the message their status
//! shows. Kept in memory only, because it follows from the snapshot and is found again.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use warp_api::GPUWorkload;

use crate::clock;

/// A message whose reason is unchanged is renewed at most this often: its numbers move with every
/// pod of the cluster, and each renewal would be a write per waiting workload.
const RENEW: i64 = 30;
/// Longest wait after a Job could not be created.
const HOLD: i64 = 300;

/// Why a workload has no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Verdicts by workload uid.
#[derive(Debug, Default)]
pub(crate) struct Verdicts(Mutex<BTreeMap<String, Entry>>);

#[derive(Debug, Default)]
struct Entry {
    verdict: Option<Verdict>,
    generation: i64,
    since: Option<Timestamp>,
    /// Not tried again before then, for this generation.
    hold: Option<(i64, Timestamp)>,
    failures: u32,
}

impl Verdicts {
    /// What was found out about this very spec.
    pub(crate) fn get(&self, workload: &GPUWorkload) -> Option<Verdict> {
        let all = self.0.lock();
        let entry = all.get(workload.uid().as_deref().unwrap_or_default())?;
        let current = entry.generation == workload.meta().generation.unwrap_or_default();
        entry.verdict.clone().filter(|_| current)
    }

    /// Stores a verdict; true when the workload's status should follow.
    pub(crate) fn set(&self, workload: &GPUWorkload, verdict: Verdict, now: Timestamp) -> bool {
        let mut all = self.0.lock();
        let entry = all.entry(workload.uid().unwrap_or_default()).or_default();
        let generation = workload.meta().generation.unwrap_or_default();
        let edited = entry.generation != generation;
        let fresh = entry
            .since
            .is_some_and(|since| clock::after(since, RENEW) > now);
        let same_reason = entry
            .verdict
            .as_ref()
            .is_some_and(|old| old.reason == verdict.reason);
        if !edited && (entry.verdict.as_ref() == Some(&verdict) || (same_reason && fresh)) {
            return false;
        }
        entry.verdict = Some(verdict);
        entry.generation = generation;
        entry.since = Some(now);
        true
    }

    /// Forgets a workload that was placed or is gone.
    pub(crate) fn clear(&self, workload: &GPUWorkload) {
        self.0
            .lock()
            .remove(workload.uid().as_deref().unwrap_or_default());
    }

    /// After a failed creation the next try waits, longer each time; a changed spec is tried at once.
    pub(crate) fn hold_back(&self, workload: &GPUWorkload, now: Timestamp) {
        let mut all = self.0.lock();
        let entry = all.entry(workload.uid().unwrap_or_default()).or_default();
        let wait = (1_i64 << entry.failures.min(9)).min(HOLD);
        entry.failures += 1;
        let generation = workload.meta().generation.unwrap_or_default();
        entry.hold = Some((generation, clock::after(now, wait)));
    }

    pub(crate) fn holds_back(&self, workload: &GPUWorkload, now: Timestamp) -> bool {
        let all = self.0.lock();
        let hold = all
            .get(workload.uid().as_deref().unwrap_or_default())
            .and_then(|entry| entry.hold);
        let generation = workload.meta().generation.unwrap_or_default();
        hold.is_some_and(|(of, until)| of == generation && until > now)
    }

    /// Until when a workload is held back, so that somebody wakes the scheduler then.
    pub(crate) fn held_until(&self, uid: &str) -> Option<Timestamp> {
        self.0
            .lock()
            .get(uid)
            .and_then(|entry| entry.hold)
            .map(|(_, until)| until)
    }
}
