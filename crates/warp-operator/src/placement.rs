//! Placement: one global loop over a snapshot of everything, not a decision inside an object's pass. It knows neither
//! kinds nor their children, only claims: snapshot → core → plans, which the one executor carries out. What it decided is
//! visible to its next pass before the watch brings it back.

mod arrivals;
mod claim;
mod decide;
mod evict;
mod explain;
mod gang;
mod kept;
mod line;
pub(crate) mod part;
mod quota;
mod reclaim;
mod rented;
mod share;
mod tenancy;
mod verdict;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool};
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use kube::Resource;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::Instrument;
use warp_api::workload::Priority;
use warp_api::{Tenant, reason};
use warp_runtime::cache::{Cache, Health};
use warp_runtime::driver::later;
use warp_runtime::execute::{ExecuteError, status_of};
use warp_runtime::plan::Plan;
use warp_runtime::runtime::Runtime;
use warp_runtime::sweep::{Hands, Sweep, SweepRegistration};

use crate::context::Context;
use crate::ledger::{self, Books, Reading, Sources};
use crate::{queuedjob, workload};

use decide::work_id;
use tenancy::Reserved;

pub(crate) use arrivals::Arrivals;
pub(crate) use claim::{Claim, Claimant, Claimants, Holder, Open, Place, PodClaim};
pub(crate) use decide::{Decision, Desk, base_request, elsewhere, require};
pub(crate) use evict::{Cause, Evictable, Runner, Runs};
pub(crate) use explain::{KEPT, REFUSED};
pub(crate) use kept::Kept;
pub(crate) use line::{Endings, Held, Line};
pub(crate) use quota::Quotas;
pub(crate) use rented::Rented;
pub(crate) use share::by_share;
pub(crate) use tenancy::Tenancy;
pub(crate) use verdict::{Verdict, Verdicts};

/// Names it in logs, readiness and wake-ups.
pub(crate) const NAME: &str = "scheduler";
/// Field manager of what it makes.
pub(crate) const MANAGER: &str = "warp-scheduler";
/// Events come in bursts; one pass serves a burst.
const SETTLE: Duration = Duration::from_millis(20);
/// Placements carried out at once.
const AT_ONCE: usize = 16;
/// What the executor calls a request that makes an object, or changes one.
const CREATE: &str = "create";
const PATCH: &str = "patch";
/// A pass runs at least this often while anything waits, because time alone may change the answer.
const RESYNC: SignedDuration = SignedDuration::from_mins(1);

/// The loop as the runtime runs it.
#[derive(Debug)]
struct Placement {
    cx: Arc<Context>,
    claimants: Vec<Box<dyn Claimants>>,
    books: Mutex<Books>,
    /// What was last answered to those that wait, by uid.
    answers: Mutex<BTreeMap<String, Answer>>,
    /// The tenants of the last pass, by uid and generation.
    tenants: Mutex<Vec<(Option<String>, Option<i64>)>>,
    /// The room kept in the last pass.
    held: Mutex<Vec<Held>>,
    /// The places of those that are tried again in a moment.
    kept: Mutex<Kept>,
    /// The nodes that were rented for somebody, as of the last pass.
    rented: Mutex<Rented>,
    /// Volumes, or quotas, have changed since the last pass.
    storage_changed: Arc<AtomicBool>,
    quotas_changed: Arc<AtomicBool>,
}

/// Why a claim waits, and what that was found on: as long as nothing of it changes, nothing is looked at again.
#[derive(Debug)]
struct Answer {
    epoch: u64,
    version: String,
    /// A PriorityClass may change without its object.
    rank: (Priority, bool),
    avoided: Vec<Arc<str>>,
    /// What was kept for those before it.
    held: Arc<Vec<Held>>,
    /// What was kept of tenants' shares for those before it, and for itself.
    reserved: Arc<Vec<Reserved>>,
    reserves: Option<Reserved>,
    /// Who could be evicted.
    evictable: u64,
    verdict: Verdict,
}

/// Whether anything has changed since this was last asked.
fn flag<K>(cache: &Cache<K>, flag: &Arc<AtomicBool>)
where
    K: Resource + Send + Sync + 'static,
{
    let flag = Arc::clone(flag);
    cache.listen(move |_, _| flag.store(true, atomic::Ordering::SeqCst));
}

/// Registers the loop: who asks for places, what it reads, and what may make room.
pub(crate) fn register(
    runtime: &mut Runtime,
    cx: &Arc<Context>,
    claimants: Vec<Box<dyn Claimants>>,
) {
    let cx = Arc::clone(cx);
    let storage_changed = Arc::new(AtomicBool::new(true));
    let quotas_changed = Arc::new(AtomicBool::new(true));
    flag(&cx.claims, &storage_changed);
    flag(&cx.volumes, &storage_changed);
    flag(&cx.classes, &storage_changed);
    flag(&cx.quotas, &quotas_changed);
    let sweep = Placement {
        cx: Arc::clone(&cx),
        claimants,
        books: Mutex::new(Books::new(Sources {
            nodes: cx.nodes.clone(),
            pods: cx.pods.clone(),
            namespaces: cx.namespaces.clone(),
        })),
        answers: Mutex::default(),
        tenants: Mutex::default(),
        held: Mutex::default(),
        kept: Mutex::default(),
        rented: Mutex::default(),
        storage_changed,
        quotas_changed,
    };
    runtime.sweep(
        SweepRegistration::of(sweep, SETTLE)
            // Whoever leaves the line, or stands elsewhere in it, makes way for others.
            .watches(&cx.workloads, workload::line_matters)
            .watches(&cx.queued, queuedjob::line_matters)
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

impl Sweep for Placement {
    const NAME: &'static str = NAME;

    async fn sweep(&self, hands: &Hands) -> Option<Timestamp> {
        let waiting = self.pass(hands).await;
        waiting.then(|| later(self.cx.clock.now(), RESYNC))
    }
}

impl Placement {
    /// One pass. Returns whether anything still waits.
    async fn pass(&self, hands: &Hands) -> bool {
        let (cx, started) = (&*self.cx, Instant::now());
        let now = cx.clock.now();
        let arrived = cx.arrivals.last();
        let mut open = Open::default();
        for claimants in &self.claimants {
            open.join(claimants.open(now));
        }
        cx.verdicts.keep_only(&open.uids);
        cx.arrivals.keep_only(&open.uids, arrived);
        let known = |uid: &String, _: &mut Answer| open.uids.contains(uid);
        self.answers.lock().retain(known);
        let Open {
            claimants: mut wanted,
            held_back,
            ..
        } = open;
        let held = held_back.len();
        self.kept.lock().only(&held_back);
        if wanted.is_empty() {
            cx.metrics.placed(started.elapsed(), held);
            return false;
        }
        // What has not been listed yet may limit everything, and be rented for somebody.
        let listed = |requests: &Cache<_>| requests.health() != Health::Starting;
        let listed = cx.requests.get().is_none_or(listed);
        let tenants = tenancy::listed(cx.tenants.get()).filter(|_| listed);
        let Some(tenants) = tenants else {
            cx.wakes.wake_sweep(NAME);
            return true;
        };
        in_order(&mut wanted, &cx.arrivals);
        let correlation = hands.correlation.next();
        let span = tracing::info_span!("place", waiting = wanted.len(), correlation = %correlation);
        let decisions = self.decide(wanted, &tenants, now);
        let waiting = decisions
            .iter()
            .filter(|(_, decision)| matches!(decision, Decision::Wait(_) | Decision::Evict(..)))
            .count();
        self.carry_out(hands, decisions, &correlation, now)
            .instrument(span)
            .await;
        cx.metrics.placed(started.elapsed(), waiting + held);
        waiting > 0
    }

    /// Decides for all in order, each seeing the ones before it. Who waited before and for whom nothing has changed since
    /// gets the same answer.
    fn decide(
        &self,
        wanted: Vec<Arc<dyn Claimant>>,
        tenants: &[Arc<Tenant>],
        now: Timestamp,
    ) -> Vec<(Arc<dyn Claimant>, Decision)> {
        let cx = &*self.cx;
        let mut books = self.books.lock();
        if self.storage_changed.swap(false, atomic::Ordering::SeqCst) {
            books.set_storage(ledger::Storage {
                claims: cx.claims.all(),
                volumes: cx.volumes.all(),
                classes: cx.classes.all(),
            });
        }
        if self.quotas_changed.swap(false, atomic::Ordering::SeqCst) {
            books.outdated();
        }
        books.set_reading(Reading {
            catalogue: cx.gpus.catalogue(),
            levels: Arc::clone(&cx.settings.topology_levels),
        });
        let known = tenants
            .iter()
            .map(|tenant| (tenant.meta().uid.clone(), tenant.meta().generation));
        let known: Vec<_> = known.collect();
        let mut before = self.tenants.lock();
        if *before != known {
            *before = known;
            books.outdated();
        }
        drop(before);
        let rented = self.rented(tenants);
        if std::mem::replace(&mut *self.rented.lock(), rented.clone()) != rented {
            books.outdated();
        }
        let promises = self.claimants.iter().flat_map(|all| all.promises());
        let promises: Vec<_> = promises.chain(self.kept.lock().promises()).collect();
        books.catch_up(&promises);
        let quotas = Quotas::new(cx.quotas.all(), &promises);
        let tenancy = Tenancy::new(tenants, &cx.namespaces.all(), &books.ledger_mut().fleet);
        let wanted = match by_share(&wanted, &tenancy, books.ledger_mut()) {
            Some(order) => order
                .into_iter()
                .map(|at| Arc::clone(&wanted[at]))
                .collect(),
            None => wanted,
        };
        let endings = || {
            self.claimants
                .iter()
                .flat_map(|all| all.endings())
                .collect()
        };
        let before = std::mem::take(&mut *self.held.lock());
        let line = Line::new(cx.settings.queue_policy, now, endings, before);
        // Nobody goes for work of the lowest priority, unless it borrows.
        let urgent = |claimant: &Arc<dyn Claimant>| claimant.claim().priority > Priority::Low;
        let runners = if tenancy.lends() || wanted.iter().any(urgent) {
            self.claimants
                .iter()
                .flat_map(|all| all.runners(now))
                .collect()
        } else {
            Vec::new()
        };
        let evictable = Evictable::new(runners, now, cx.settings.min_run_time);
        let who = evictable.fingerprint();
        let mut desk = Desk::new(&wanted, quotas, tenancy, line, &cx.settings)
            .evicting(evictable)
            .keeping(rented);
        let mut answers = self.answers.lock();
        let mut decisions = Vec::new();
        for claimant in &wanted {
            let claim = claimant.claim();
            let held = Arc::clone(desk.line().held());
            let reserved = Arc::clone(desk.reserved());
            let same = |answer: &&Answer| {
                answer.epoch == books.epoch()
                    && answer.reserved == reserved
                    && answer.evictable == who
                    && answer.held == held
                    && answer.version == claim.version
                    && answer.rank == (claim.priority, claim.patient)
                    && answer.avoided == claim.avoided
            };
            let known = answers.get(&claim.uid).filter(same);
            let decision = match known {
                Some(answer) => {
                    desk.still_waits(claim, answer.reserves.as_ref());
                    Decision::Wait(answer.verdict.clone())
                }
                None => desk.decide(books.ledger_mut(), &**claimant),
            };
            if let Decision::Place(places) = &decision {
                for member in 0..places.len() {
                    books.entered(work_id(claim, member));
                }
            }
            if let Decision::Wait(verdict) = &decision {
                let answer = Answer {
                    epoch: books.epoch(),
                    version: claim.version.clone(),
                    rank: (claim.priority, claim.patient),
                    avoided: claim.avoided.clone(),
                    held,
                    reserves: desk.reserved().get(reserved.len()).cloned(),
                    reserved,
                    evictable: who,
                    verdict: verdict.clone(),
                };
                answers.insert(claim.uid.clone(), answer);
            }
            decisions.push(decision);
        }
        self.held.lock().clone_from(desk.line().held());
        books.settle();
        drop(desk);
        wanted.into_iter().zip(decisions).collect()
    }
}

impl Placement {
    /// The nodes that were rented for somebody.
    fn rented(&self, tenants: &[Arc<Tenant>]) -> Rented {
        let cx = &*self.cx;
        let requests = cx.requests.get().map(Cache::all).unwrap_or_default();
        let workload = |key: &_| cx.workloads.get(key);
        Rented::new(&requests, workload, tenants, &cx.namespaces.all())
    }
}

/// Who is served first: higher priority, then older, then the first to come, then by name so that the
/// order is total.
pub(crate) fn in_order(wanted: &mut [Arc<dyn Claimant>], arrivals: &Arrivals) {
    wanted.sort_by_cached_key(|claimant| {
        let claim = claimant.claim();
        (
            Reverse(claim.priority),
            claim.created,
            arrivals.of(&claim.uid).unwrap_or(Timestamp::MAX),
            claim.key.clone(),
        )
    });
}

impl Placement {
    /// Makes what was placed, then tells those that wait.
    ///
    /// What the others are told of beside a placement that could not be made may be wrong by the next pass, and right
    /// again when it has been made, a write for each of them both times: they hear from that next pass.
    async fn carry_out(
        &self,
        hands: &Hands,
        decisions: Vec<(Arc<dyn Claimant>, Decision)>,
        correlation: &str,
        now: Timestamp,
    ) {
        let cx = &*self.cx;
        let mut places = Vec::new();
        let mut waits = Vec::new();
        for (claimant, decision) in decisions {
            match decision {
                Decision::Place(chosen) => places.push((claimant, chosen)),
                Decision::Wait(verdict) => waits.push((claimant, verdict)),
                Decision::Evict(going, cause, verdict) => {
                    let going = (going.as_slice(), cause);
                    make_room(cx, hands, &*claimant, going, correlation, now).await;
                    waits.push((claimant, verdict));
                }
                Decision::Skip => {}
            }
        }
        let failed = AtomicBool::new(false);
        stream::iter(places)
            .for_each_concurrent(AT_ONCE, |(claimant, chosen)| {
                let failed = &failed;
                async move {
                    let outcome = place(cx, hands, &*claimant, &chosen, correlation, now).await;
                    if outcome != Outcome::Made {
                        failed.store(true, atomic::Ordering::Relaxed);
                    }
                    if let Outcome::NotYet(failures) = outcome {
                        self.kept.lock().keep(&*claimant, &chosen, failures);
                    }
                    wake(cx, claimant.claim());
                }
            })
            .await;
        let all_made = !failed.into_inner();
        for (before, (claimant, verdict)) in waits.into_iter().enumerate() {
            let claim = claimant.claim();
            let first = cx.verdicts.get(&claim.uid, claim.generation).is_none();
            if (all_made || first) && cx.verdicts.set(claim, verdict, Some(before + 1), now) {
                wake(cx, claim);
            }
        }
        if !all_made {
            cx.wakes.wake_sweep(NAME);
        }
    }
}

/// Asks those that go for a claim to end. Who cannot be asked now is asked by the next pass, if it still has to go then.
async fn make_room(
    cx: &Context,
    hands: &Hands,
    claimant: &dyn Claimant,
    (going, cause): (&[Arc<dyn Runner>], Cause),
    correlation: &str,
    now: Timestamp,
) {
    let claim = claimant.claim();
    for runner in going {
        let mut plan = Plan::default();
        claimant.still_waits(&mut plan);
        runner.evict(&mut plan, claim, cause);
        plan.why = format!("it makes room for {}, {}", claim.key, cause.of_the_other());
        let pass = runner.pass(correlation.to_owned());
        match hands.executor.execute(&pass, plan).await {
            Ok(_) => cx.metrics.evicted(runner.runs().lost_gpu_seconds(now)),
            Err(error) => {
                let object = &runner.runs().key;
                tracing::warn!(%object, %error, "not asked to end for now");
                cx.wakes.wake_sweep(NAME);
            }
        }
    }
}

fn wake(cx: &Context, claim: &Claim) {
    cx.wakes.wake(claim.controller, claim.key.clone());
}

/// What came of a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// What it makes is there.
    Made,
    /// It is tried again in a moment; how often it failed in a row.
    NotYet(u32),
    /// The API server does not want it as it is.
    Refused,
}

/// Carries a placement out.
async fn place(
    cx: &Context,
    hands: &Hands,
    claimant: &dyn Claimant,
    places: &[Place],
    correlation: &str,
    now: Timestamp,
) -> Outcome {
    let claim = claimant.claim();
    let planned = || {
        let mut plan = claimant.plan(places);
        if let Some(first) = places.first() {
            plan.why.clone_from(&first.why);
        }
        plan
    };
    let pass = claimant.pass(correlation.to_owned());
    let mut answer = hands.executor.execute(&pass, planned()).await;
    // A quota that changed in the same moment, or what was said about a Job: whoever waits now loses its place to a lower
    // one.
    let lost_race =
        |error: &ExecuteError| matches!(error.verb, CREATE | PATCH) && error.is_conflict();
    if answer.as_ref().is_err_and(lost_race) {
        answer = hands.executor.execute(&pass, planned()).await;
    }
    match answer {
        Ok(_) if claimant.is_made() => {
            if let Some(first) = places.first() {
                cx.metrics.scheduled(first.strategy);
            }
            cx.verdicts.clear(&claim.uid);
            Outcome::Made
        }
        // It is usually ours and on its way through the watch; one that stays unseen belongs to another.
        Ok(_) => {
            let failures = cx.verdicts.hold_back(claim, now);
            if failures > 1 {
                cx.verdicts.set(claim, claimant.taken(), None, now);
            }
            Outcome::NotYet(failures)
        }
        Err(error) => not_made(cx, claimant, &error, now),
    }
}

/// A placement could not be made. A refusal by the API server is the owner's to know; anything else
/// is ours to try again.
fn not_made(
    cx: &Context,
    claimant: &dyn Claimant,
    error: &ExecuteError,
    now: Timestamp,
) -> Outcome {
    let claim = claimant.claim();
    tracing::warn!(object = %claim.key, %error, "not placed for now");
    // Its own pass sets the alarm for the next try.
    let failures = cx.verdicts.hold_back(claim, now);
    // What an expired token, a namespace that is gone or a conflict answers is not the spec's fault.
    let status = status_of(&error.source).filter(|status| matches!(status.code, 400 | 403 | 422));
    let Some(status) = status else {
        return Outcome::NotYet(failures);
    };
    let changes = matches!(error.verb, CREATE | PATCH);
    let rejected = || changes.then(|| claimant.rejected(&status.message));
    if let Some(verdict) = forbidden(status).or_else(rejected) {
        cx.verdicts.set(claim, verdict, None, now);
    }
    Outcome::Refused
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
