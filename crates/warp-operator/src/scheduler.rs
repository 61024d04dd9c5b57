//! Placement: one global loop over a snapshot of everything, not a decision inside a workload's
//! pass. Snapshot → core → plan → apply; what it decided is visible to its next pass before the
//! watch brings it back.

mod decide;
mod explain;
mod verdict;

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use warp_api::{GPUWorkload, reason};

use crate::apply::{ApplyError, chain};
use crate::audit::Pass;
use crate::cache::Key;
use crate::context::Context;
use crate::ledger;
use crate::plan::{Change, Want, Write};
use crate::workload::{Wish, reserves, see, wish};

pub(crate) use decide::Decision;
pub(crate) use verdict::Verdict;
pub(crate) use verdict::Verdicts;

/// Field manager of the Jobs it makes.
const MANAGER: &str = "warp-scheduler";
/// Events come in bursts; one pass serves a burst.
const SETTLE: Duration = Duration::from_millis(20);
/// Jobs created at once.
const CREATES: usize = 16;
/// A pass runs at least this often while anything waits, because time alone may change the answer.
const RESYNC: Duration = Duration::from_mins(1);

/// Places workloads until `stop`.
pub(crate) async fn run(cx: Arc<Context>, stop: CancellationToken) {
    let mut waiting = false;
    loop {
        tokio::select! {
            () = cx.place.notified() => {}
            () = cx.clock.sleep(RESYNC), if waiting => {}
            () = stop.cancelled() => return,
        }
        cx.clock.sleep(SETTLE).await;
        waiting = pass(&cx).await;
    }
}

/// One pass. Returns whether anything still waits.
async fn pass(cx: &Context) -> bool {
    let started = Instant::now();
    let now = cx.clock.now();
    cx.jobs.forget_unconfirmed(now);
    cx.workloads.forget_unconfirmed(now);
    let open = cx
        .workloads
        .all()
        .into_iter()
        .filter(|workload| !finished(workload));
    let open: Vec<Arc<GPUWorkload>> = open.collect();
    cx.verdicts
        .keep_only(&open.iter().filter_map(|workload| workload.uid()).collect());
    let (wanted, held) = queue(cx, open, now);
    let correlation = cx.correlation.next();
    let span = tracing::info_span!("place", waiting = wanted.len(), correlation = %correlation);
    if wanted.is_empty() {
        cx.metrics.placed(started.elapsed(), held);
        return false;
    }
    let mut promised = cx.jobs.all();
    promised.retain(|job| reserves(cx, job));
    let mut ledger = ledger::build(&cx.nodes.all(), &cx.pods.all(), &promised);
    let decisions = decide::all(&mut ledger, &wanted, &cx.settings, now);
    let waiting = decisions
        .iter()
        .filter(|(_, decision)| matches!(decision, Decision::Wait(_)))
        .count();
    async {
        stream::iter(decisions)
            .for_each_concurrent(CREATES, |(workload, decision)| {
                carry_out(cx, workload, decision, &correlation, now)
            })
            .await;
    }
    .instrument(span)
    .await;
    cx.metrics.placed(started.elapsed(), waiting + held);
    waiting > 0
}

/// Workloads to place now, in order, and how many more wait for their next try.
fn queue(
    cx: &Context,
    open: Vec<Arc<GPUWorkload>>,
    now: Timestamp,
) -> (Vec<Arc<GPUWorkload>>, usize) {
    let (held, mut wanted): (Vec<_>, Vec<_>) = open
        .into_iter()
        .filter(|workload| wish(workload, &see(cx, workload), &cx.settings, now) == Wish::Now)
        .partition(|workload| cx.verdicts.holds_back(workload, now));
    wanted.sort_by(|one, other| before(one, other));
    (wanted, held.len())
}

/// Who is served first: higher priority, then older, then by uid so that the order is total.
fn before(one: &GPUWorkload, other: &GPUWorkload) -> Ordering {
    let made = |workload: &GPUWorkload| workload.creation_timestamp().map(|time| time.0);
    let priority = other.spec.priority.cmp(&one.spec.priority);
    priority
        .then_with(|| made(one).cmp(&made(other)))
        .then_with(|| one.uid().cmp(&other.uid()))
}

fn finished(workload: &GPUWorkload) -> bool {
    let phase = workload.status.as_ref().and_then(|status| status.phase);
    phase.is_some_and(warp_api::Phase::is_final)
}

async fn carry_out(
    cx: &Context,
    workload: Arc<GPUWorkload>,
    decision: Decision,
    correlation: &str,
    now: Timestamp,
) {
    let key = Key::of(&*workload);
    let changed = match decision {
        Decision::Place { job, strategy, why } => {
            let pass = Pass::new("GPUWorkload", &*workload, MANAGER, correlation.to_owned());
            let write = Write {
                what: Change::Create(Box::new(Want::of(&*job))),
                why,
            };
            match cx.executor.write(&pass, &write).await {
                Ok(Some(made)) => {
                    cx.metrics.scheduled(strategy);
                    if let Ok(job) = made.try_parse::<Job>() {
                        cx.jobs.note(job, now);
                    }
                    cx.verdicts.clear(&workload);
                    true
                }
                Ok(None) => taken(cx, &workload, &job.name_any(), now),
                Err(error) => refused(cx, &workload, &error, now),
            }
        }
        Decision::Wait(verdict) => cx.verdicts.set(&workload, verdict, now),
        Decision::Skip => false,
    };
    if changed {
        cx.queue.add(key, now);
    }
}

/// A Job of that name exists. It is usually ours and on its way through the watch; one that stays
/// unseen belongs to somebody else.
fn taken(cx: &Context, workload: &GPUWorkload, name: &str, now: Timestamp) -> bool {
    if cx.verdicts.hold_back(workload, now) > 1 {
        let message = format!(
            "a Job named {name} exists that does not belong to this workload; delete it or rename the workload"
        );
        cx.verdicts.set(
            workload,
            Verdict {
                reason: reason::JOB_REJECTED,
                message,
            },
            now,
        );
    }
    true
}

/// The Job could not be made. A refusal by the API server is the workload's to know; anything else
/// is ours to try again.
fn refused(cx: &Context, workload: &GPUWorkload, error: &ApplyError, now: Timestamp) -> bool {
    // What an expired token, a namespace that is gone or a conflict answers is nobody's spec.
    let status = error
        .status()
        .filter(|status| matches!(status.code, 400 | 403 | 422));
    tracing::warn!(workload = workload.name_any(), error = %chain(error), "failed to create job");
    let Some(status) = status else {
        cx.verdicts.hold_back(workload, now);
        // Its own pass sets the alarm for the next try.
        return true;
    };
    let message = format!(
        "the API server refused the job made from it: {}; correct the workload or the namespace's policy",
        status.message
    );
    cx.verdicts.hold_back(workload, now);
    cx.verdicts.set(
        workload,
        Verdict {
            reason: reason::JOB_REJECTED,
            message,
        },
        now,
    );
    true
}

/// Wakes the scheduler, for whoever saw something that may make room.
pub(crate) fn wake(cx: &Context) {
    cx.place.notify_one();
}

#[cfg(test)]
mod tests;
