//! When running work may make room for one that waits. Nobody goes before it has run for a while (`--min-run-time`), so what
//! fits nowhere now may take a place later. Pure.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use warp_api::{GPUWorkload, reason};

use super::{Cluster, Outlook, QueuedJob};
use crate::config::Settings;

/// Waits that end when running work goes.
const FOR_ROOM: [&str; 2] = [reason::WAITING_FOR_CAPACITY, reason::TENANT_QUOTA_EXCEEDED];

/// Whose place may be taken, and from when on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preempting {
    pub at: Timestamp,
    /// Those that go, each as `namespace/name`.
    pub whose: Vec<String>,
    /// How long work runs before it has to go for other work.
    pub min_run: SignedDuration,
}

/// The first moment at which somebody goes for the workload at `place` of a line, if all stays as it is until then.
pub(super) fn preempting(
    cluster: &Cluster,
    (line, jobs): (&[Arc<GPUWorkload>], &[QueuedJob]),
    (place, outlook): (usize, &Outlook),
    settings: &Settings,
    now: Timestamp,
) -> Option<Preempting> {
    let Outlook::Waits { reason, .. } = outlook else {
        return None;
    };
    if !FOR_ROOM.contains(reason) {
        return None;
    }
    let min_run = SignedDuration::try_from(settings.min_run_time).ok()?;
    let runners = cluster.runners(now);
    let due = runners.iter().filter_map(|one| one.runs().due(min_run));
    // What has not begun to run is never due.
    let later = due.filter(|at| *at > now && *at < Timestamp::MAX);
    let mut times: Vec<Timestamp> = later.collect();
    times.sort_unstable();
    times.dedup();
    let going = |at: Timestamp| {
        let decided = cluster.decide(line, jobs, None, settings, at);
        decided.going_for(place)
    };
    // Who may go at one of these times may go at the last: where nobody does, none is the first.
    going(*times.last()?)?;
    let at = times.partition_point(|at| going(*at).is_none());
    let at = *times.get(at)?;
    Some(Preempting {
        whose: going(at)?,
        at,
        min_run,
    })
}
