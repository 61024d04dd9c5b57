//! Placement: one global loop over a snapshot of everything, not a decision inside a workload's
//! pass. Snapshot → core → plan → apply; what it decided is visible to its next pass before the
//! watch brings it back.

mod arrivals;
mod decide;
mod explain;
mod quota;
mod verdict;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool};
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::{Resource, ResourceExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use warp_api::{GPUWorkload, reason};

use crate::apply::{ApplyError, chain};
use crate::audit::Pass;
use crate::cache::Key;
use crate::context::Context;
use crate::ledger;
use crate::plan::{Change, Target, Want, Write};
use crate::workload::{Wish, attempt, lost_nodes, reserves, see, wish};

use quota::Quotas;

pub(crate) use arrivals::Arrivals;
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
    let arrived = cx.arrivals.next();
    let open = cx
        .workloads
        .all()
        .into_iter()
        .filter(|workload| !finished(workload));
    let open: Vec<Arc<GPUWorkload>> = open.collect();
    let uids: BTreeSet<String> = open.iter().filter_map(|workload| workload.uid()).collect();
    cx.verdicts.keep_only(&uids);
    cx.arrivals.keep_only(&uids, arrived);
    let (wanted, held) = queue(cx, open, now);
    let correlation = cx.correlation.next();
    let span = tracing::info_span!("place", waiting = wanted.len(), correlation = %correlation);
    if wanted.is_empty() {
        cx.metrics.placed(started.elapsed(), held);
        return false;
    }
    let mut promised = cx.jobs.all();
    promised.retain(|job| reserves(cx, job));
    let pods = cx.pods.all();
    let storage = ledger::Storage {
        claims: cx.claims.all(),
        volumes: cx.volumes.all(),
        classes: cx.classes.all(),
    };
    let mut ledger = ledger::build(&cx.nodes.all(), &pods, &promised)
        .with_surroundings(&cx.namespaces.all(), storage);
    let quotas = Quotas::new(cx.quotas.all(), &promised, &pods);
    let decisions = decide::all(&mut ledger, &wanted, quotas, &cx.settings, now);
    let waiting = decisions
        .iter()
        .filter(|(_, decision)| matches!(decision, Decision::Wait(_)))
        .count();
    carry_out(cx, decisions, &correlation, now)
        .instrument(span)
        .await;
    cx.metrics.placed(started.elapsed(), waiting + held);
    waiting > 0
}

/// Makes what was placed, then tells those that wait.
///
/// A placement that could not be made held room in the ledger that nobody holds: what the others were
/// told of it would be wrong now and right again in the next pass, a write for each of them both
/// times. They hear from that next pass, in which the failed one is held back.
async fn carry_out(
    cx: &Context,
    decisions: Vec<(Arc<GPUWorkload>, Decision)>,
    correlation: &str,
    now: Timestamp,
) {
    let mut places = Vec::new();
    let mut waits = Vec::new();
    for (workload, decision) in decisions {
        match decision {
            Decision::Place { job, strategy, why } => places.push((workload, job, strategy, why)),
            Decision::Wait(verdict) => waits.push((workload, verdict)),
            Decision::Skip => {}
        }
    }
    let failed = AtomicBool::new(false);
    stream::iter(places)
        .for_each_concurrent(CREATES, |(workload, job, strategy, why)| {
            let failed = &failed;
            async move {
                if !place(cx, &workload, &job, strategy, why, correlation, now).await {
                    failed.store(true, atomic::Ordering::Relaxed);
                }
                cx.queue.add(Key::of(&*workload), now);
            }
        })
        .await;
    let all_made = !failed.into_inner();
    for (workload, verdict) in waits {
        let first = cx.verdicts.get(&workload).is_none();
        if (all_made || first) && cx.verdicts.set(&workload, verdict, now) {
            cx.queue.add(Key::of(&*workload), now);
        }
    }
    if !all_made {
        wake(cx);
    }
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
    in_order(&mut wanted, &cx.arrivals);
    (wanted, held.len())
}

/// Who is served first: higher priority, then older, then the first to come, then by name so that the
/// order is total.
fn in_order(wanted: &mut [Arc<GPUWorkload>], arrivals: &Arrivals) {
    wanted.sort_by_cached_key(|workload| {
        let uid = workload.uid().unwrap_or_default();
        (
            Reverse(workload.spec.priority),
            workload.creation_timestamp().map(|time| time.0),
            arrivals.of(&uid),
            Key::of(&**workload),
        )
    });
}

fn finished(workload: &GPUWorkload) -> bool {
    let phase = workload.status.as_ref().and_then(|status| status.phase);
    phase.is_some_and(warp_api::Phase::is_final)
}

/// Whether the API server agrees that a Job should be made. A watch that is behind may hide that the
/// workload is gone, suspended or further on, or that a node is there on which its last pod runs.
async fn still_wanted(
    cx: &Context,
    pass: &Pass,
    workload: &GPUWorkload,
    now: Timestamp,
) -> Result<bool, ApplyError> {
    let seen = see(cx, workload);
    for premise in lost_nodes(&seen) {
        cx.executor.write(pass, &premise).await?;
    }
    let Target {
        resource,
        namespace,
        name,
        uid,
        ..
    } = Target::of(workload);
    let found = cx.executor.find(&resource, &namespace, &name).await?;
    let newest = found.and_then(|found| found.try_parse::<GPUWorkload>().ok());
    Ok(newest.is_some_and(|newest| {
        newest.meta().uid.as_deref() == Some(&*uid)
            && newest.meta().generation == workload.meta().generation
            && attempt(&newest) == attempt(workload)
            && wish(&newest, &seen, &cx.settings, now) == Wish::Now
    }))
}

/// Makes the Job of a placement; whether it is there now.
async fn place(
    cx: &Context,
    workload: &GPUWorkload,
    job: &Job,
    strategy: &'static str,
    why: String,
    correlation: &str,
    now: Timestamp,
) -> bool {
    let pass = Pass::new("GPUWorkload", workload, MANAGER, correlation.to_owned());
    let why_not = match still_wanted(cx, &pass, workload, now).await {
        Ok(true) => None,
        Ok(false) => Some("it changed meanwhile".to_owned()),
        Err(error) => {
            if let Some(verdict) = error.status().and_then(forbidden) {
                cx.verdicts.set(workload, verdict, now);
            }
            Some(chain(&error))
        }
    };
    if let Some(why_not) = why_not {
        tracing::warn!(
            workload = workload.name_any(),
            why_not,
            "not placed for now"
        );
        cx.verdicts.hold_back(workload, now);
        return false;
    }
    let write = Write {
        what: Change::Create(Box::new(Want::of(job))),
        why,
    };
    let mut answer = cx.executor.write(&pass, &write).await;
    // A quota that changed in the same moment: whoever waits now loses its place to a lower one.
    if answer.as_ref().is_err_and(ApplyError::is_conflict) {
        answer = cx.executor.write(&pass, &write).await;
    }
    match answer {
        Ok(Some(made)) => {
            cx.metrics.scheduled(strategy);
            if let Ok(job) = made.try_parse::<Job>() {
                cx.jobs.note(job, now);
            }
            cx.verdicts.clear(workload);
            true
        }
        Ok(None) => {
            taken(cx, workload, &job.name_any(), now);
            false
        }
        Err(error) => {
            refused(cx, workload, &error, now);
            false
        }
    }
}

/// A Job of that name exists. It is usually ours and on its way through the watch; one that stays
/// unseen belongs to somebody else.
fn taken(cx: &Context, workload: &GPUWorkload, name: &str, now: Timestamp) {
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
}

/// The Job could not be made. A refusal by the API server is the workload's to know; anything else
/// is ours to try again.
fn refused(cx: &Context, workload: &GPUWorkload, error: &ApplyError, now: Timestamp) {
    // What an expired token, a namespace that is gone or a conflict answers is nobody's spec.
    let status = error
        .status()
        .filter(|status| matches!(status.code, 400 | 403 | 422));
    tracing::warn!(workload = workload.name_any(), error = %chain(error), "failed to create job");
    let Some(status) = status else {
        cx.verdicts.hold_back(workload, now);
        // Its own pass sets the alarm for the next try.
        return;
    };
    let rejected = || Verdict {
        reason: reason::JOB_REJECTED,
        message: format!(
            "the API server refused the job made from it: {}; correct the workload or the namespace's policy",
            status.message
        ),
    };
    cx.verdicts.hold_back(workload, now);
    let verdict = forbidden(status).unwrap_or_else(rejected);
    cx.verdicts.set(workload, verdict, now);
}

/// What a refusal says when it is about the operator's own rights, which admission and quotas also
/// answer with 403.
fn forbidden(status: &kube::core::Status) -> Option<Verdict> {
    let own = status.code == 403
        && status.message.contains("User \"")
        && status.message.contains("\" cannot ");
    own.then(|| Verdict {
        reason: reason::OPERATOR_FORBIDDEN,
        message: format!(
            "the operator lacks a right, the workload is not at fault: {}; apply the role that `warp install --print` prints",
            status.message
        ),
    })
}

/// Wakes the scheduler, for whoever saw something that may make room.
pub(crate) fn wake(cx: &Context) {
    cx.place.notify_one();
}

#[cfg(test)]
mod tests;
