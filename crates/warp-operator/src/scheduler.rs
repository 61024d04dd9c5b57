//! Placement: one global loop over a snapshot of everything, not a decision inside a workload's
//! pass. Snapshot → core → plan → apply; what it decided is visible to its next pass before the
//! watch brings it back.

mod arrivals;
mod decide;
mod explain;
mod quota;
mod tenancy;
mod verdict;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool};
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use tokio::time::Instant;
use tracing::Instrument;
use warp_api::{GPUWorkload, reason};
use warp_runtime::cache::Key;
use warp_runtime::driver::later;
use warp_runtime::execute::{ExecuteError, status_of};
use warp_runtime::pass::Pass;
use warp_runtime::plan::Plan;
use warp_runtime::runtime::Runtime;
use warp_runtime::sweep::{Hands, Sweep, SweepRegistration};

use crate::context::Context;
use crate::ledger;
use crate::workload::{self, Wish, only_if_lost, owns, reserves, see, wish};

use quota::Quotas;
use tenancy::Tenancy;

pub(crate) use arrivals::Arrivals;
pub(crate) use decide::Decision;
pub use decide::foresight;
pub(crate) use verdict::Verdict;
pub(crate) use verdict::Verdicts;

/// Names it in logs, readiness and wake-ups.
pub(crate) const NAME: &str = "scheduler";
/// Field manager of the Jobs it makes.
const MANAGER: &str = "warp-scheduler";
/// Events come in bursts; one pass serves a burst.
const SETTLE: Duration = Duration::from_millis(20);
/// Jobs created at once.
const CREATES: usize = 16;
/// What the executor calls the request that makes a Job.
const CREATE: &str = "create";
/// A pass runs at least this often while anything waits, because time alone may change the answer.
const RESYNC: SignedDuration = SignedDuration::from_mins(1);
/// What of a workload decides that a Job is made for it. As long as it shows the same to the API server, what was
/// decided holds: a watch that is behind may hide that it is gone, suspended or further on.
const DECISIVE: [&str; 7] = [
    "/metadata/generation",
    "/metadata/deletionTimestamp",
    "/status/phase",
    "/status/jobName",
    "/status/retryCount",
    "/status/disruptions",
    "/status/refusals",
];

/// The loop as the runtime runs it.
#[derive(Debug)]
struct Scheduler {
    cx: Arc<Context>,
}

/// Registers the loop: what it reads, and what may make room.
pub(crate) fn register(runtime: &mut Runtime, cx: &Arc<Context>) {
    let sweep = Scheduler { cx: Arc::clone(cx) };
    runtime.sweep(
        SweepRegistration::of(sweep, SETTLE)
            .reads(&cx.workloads)
            .reads(&cx.jobs)
            .watches(&cx.pods, ledger::pod_matters)
            .watches(&cx.nodes, ledger::node_matters)
            // A refused pod holds no GPUs: others may have them.
            .watches(&cx.refusals, |_, _| true)
            .watches(&cx.quotas, |_, _| true)
            // What pods may ask of namespaces and of volumes.
            .watches(&cx.namespaces, |_, _| true)
            .watches(&cx.claims, |_, _| true)
            .watches(&cx.volumes, |_, _| true)
            .watches(&cx.classes, |_, _| true),
    );
}

impl Sweep for Scheduler {
    const NAME: &'static str = NAME;

    async fn sweep(&self, hands: &Hands) -> Option<Timestamp> {
        let waiting = pass(&self.cx, hands).await;
        waiting.then(|| later(self.cx.clock.now(), RESYNC))
    }
}

/// One pass. Returns whether anything still waits.
async fn pass(cx: &Context, hands: &Hands) -> bool {
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
    let correlation = hands.correlation.next();
    let span = tracing::info_span!("place", waiting = wanted.len(), correlation = %correlation);
    if wanted.is_empty() {
        cx.metrics.placed(started.elapsed(), held);
        return false;
    }
    // What nobody has listed yet may limit everything.
    let Some(tenants) = tenancy::listed(cx.tenants.get()) else {
        cx.wakes.wake_sweep(NAME);
        return true;
    };
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
    let tenancy = Tenancy::new(&tenants, &cx.namespaces.all(), &ledger.fleet);
    let decisions = decide::all(&mut ledger, &wanted, quotas, tenancy, &cx.settings, now);
    let waiting = decisions
        .iter()
        .filter(|(_, decision)| matches!(decision, Decision::Wait(_)))
        .count();
    carry_out(cx, hands, decisions, &correlation, now)
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
    hands: &Hands,
    decisions: Vec<(Arc<GPUWorkload>, Decision)>,
    correlation: &str,
    now: Timestamp,
) {
    let mut places = Vec::new();
    let mut waits = Vec::new();
    for (workload, decision) in decisions {
        match decision {
            Decision::Place { job, strategy, why } => places.push((workload, (job, strategy, why))),
            Decision::Wait(verdict) => waits.push((workload, verdict)),
            Decision::Skip => {}
        }
    }
    let failed = AtomicBool::new(false);
    stream::iter(places)
        .for_each_concurrent(CREATES, |(workload, placement)| {
            let failed = &failed;
            async move {
                if !place(cx, hands, &workload, placement, correlation, now).await {
                    failed.store(true, atomic::Ordering::Relaxed);
                }
                cx.wakes.wake(workload::NAME, Key::of(&*workload));
            }
        })
        .await;
    let all_made = !failed.into_inner();
    for (workload, verdict) in waits {
        let first = cx.verdicts.get(&workload).is_none();
        if (all_made || first) && cx.verdicts.set(&workload, verdict, now) {
            cx.wakes.wake(workload::NAME, Key::of(&*workload));
        }
    }
    if !all_made {
        cx.wakes.wake_sweep(NAME);
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

/// What a placement takes: that the workload is still as it was, that its last pod is lost where its node is not known,
/// and the Job.
fn plan(cx: &Context, workload: &GPUWorkload, job: &Job, why: String) -> Plan {
    let mut plan = Plan {
        why,
        ..Plan::default()
    };
    only_if_lost(&mut plan, &see(cx, workload));
    plan.only_if_shows(workload, &DECISIVE);
    plan.create_or_find(job);
    plan
}

/// Makes the Job of a placement; whether it is there now.
async fn place(
    cx: &Context,
    hands: &Hands,
    workload: &GPUWorkload,
    placement: (Box<Job>, &'static str, String),
    correlation: &str,
    now: Timestamp,
) -> bool {
    let (job, strategy, why) = placement;
    let pass = Pass::over(NAME, MANAGER, workload, correlation.to_owned());
    let plan = plan(cx, workload, &job, why);
    let mut answer = hands.executor.execute(&pass, plan.clone()).await;
    // A quota that changed in the same moment: whoever waits now loses its place to a lower one.
    let lost_race = |error: &ExecuteError| error.verb == CREATE && error.is_conflict();
    if answer.as_ref().is_err_and(lost_race) {
        answer = hands.executor.execute(&pass, plan).await;
    }
    let made = || cx.jobs.get(&Key::of(&*job));
    match answer {
        Ok(_) if made().is_some_and(|made| owns(workload, &made)) => {
            cx.metrics.scheduled(strategy);
            cx.verdicts.clear(workload);
            true
        }
        Ok(_) => {
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
fn refused(cx: &Context, workload: &GPUWorkload, error: &ExecuteError, now: Timestamp) {
    tracing::warn!(workload = workload.name_any(), %error, "not placed for now");
    // Its own pass sets the alarm for the next try.
    cx.verdicts.hold_back(workload, now);
    // What an expired token, a namespace that is gone or a conflict answers is not the spec's fault.
    let status = status_of(&error.source).filter(|status| matches!(status.code, 400 | 403 | 422));
    let Some(status) = status else {
        return;
    };
    let rejected = || Verdict {
        reason: reason::JOB_REJECTED,
        message: format!(
            "the API server refused the job made from it: {}; correct the workload or the namespace's policy",
            status.message
        ),
    };
    let verdict = forbidden(status).or_else(|| (error.verb == CREATE).then(rejected));
    if let Some(verdict) = verdict {
        cx.verdicts.set(workload, verdict, now);
    }
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

#[cfg(test)]
mod tests;
