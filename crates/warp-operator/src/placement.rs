//! Placement: one global loop over a snapshot of everything, not a decision inside an object's pass. It knows neither
//! kinds nor their children, only claims: snapshot → core → plans, which the one executor carries out. What it decided is
//! visible to its next pass before the watch brings it back.

mod arrivals;
mod bought;
mod carry_out;
mod claim;
mod decide;
mod defragment;
mod evict;
mod explain;
mod gang;
mod history;
mod kept;
mod line;
mod memo;
mod order;
pub(crate) mod part;
mod providers;
mod quota;
mod reclaim;
mod rented;
mod request;
mod roll;
mod shape;
mod share;
mod tenancy;
mod verdict;
mod walk;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::Resource;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::Instrument;
use warp_api::{GPURequest, Tenant};
use warp_runtime::cache::Cache;
use warp_runtime::driver::later;
use warp_runtime::runtime::Runtime;
use warp_runtime::sweep::{Hands, Sweep, SweepRegistration};

use crate::context::Context;
use crate::ledger::{self, Books, Reading, Sources};

use decide::work_id;
use memo::Memo;
use roll::{Reader, Roll};
use walk::{Decided, Walk};

pub(crate) use arrivals::Arrivals;
pub(crate) use bought::Bought;
pub(crate) use claim::{
    Account, Asks, Claim, Claimant, Claimants, FirstUser, Heard, Holder, Place, PodClaim,
    Scheduler, Waking,
};
pub(crate) use decide::{Decision, Desk};
pub(crate) use evict::{Cause, Evictable, Runner, Runs};
pub(crate) use explain::{KEPT, REFUSED, can_be_made, never_a_container, shut_off};
pub(crate) use history::History;
pub(crate) use kept::Kept;
pub(crate) use line::{Endings, Held, Line};
pub(crate) use order::{Order, Turn, in_order, policy};
pub(crate) use providers::{Closed, Providers, off_limits};
pub(crate) use quota::Quotas;
pub(crate) use rented::Rented;
pub(crate) use request::{base_request, elsewhere, require};
pub(crate) use share::by_share;
pub(crate) use tenancy::Tenancy;
pub(crate) use verdict::{Verdict, Verdicts};

/// Names it in logs, readiness and wake-ups.
pub(crate) const NAME: &str = "scheduler";
/// Field manager of what it makes.
pub(crate) const MANAGER: &str = "warp-scheduler";
/// Events come in bursts; one pass serves a burst.
const SETTLE: Duration = Duration::from_millis(20);
/// A pass runs at least this often while anything waits, because time alone may change the answer.
const RESYNC: SignedDuration = SignedDuration::from_mins(1);
/// The same while somebody has not been told yet what has changed a moment ago.
const UNTOLD: SignedDuration = SignedDuration::from_secs(10);
/// What is kept from pass to pass is compared with what the API shows at least this often.
const CHECK: SignedDuration = SignedDuration::from_mins(10);

/// The loop as the runtime runs it.
#[derive(Debug)]
pub(crate) struct Placement {
    cx: Arc<Context>,
    claimants: Vec<Box<dyn Claimants>>,
    state: Mutex<State>,
    /// Every pass compares what is kept with what the API shows.
    checks: bool,
    /// Volumes, or quotas, have changed since the last pass.
    storage_changed: Arc<AtomicBool>,
    quotas_changed: Arc<AtomicBool>,
}

/// What is kept from pass to pass. All of it follows from the API.
#[derive(Debug)]
struct State {
    roll: Roll,
    books: Books,
    /// What was found out about those that wait.
    memo: Memo,
    /// The tenants of the last pass, by uid and generation.
    tenants: Vec<(Option<String>, Option<i64>)>,
    /// The room kept in the last pass.
    held: Vec<Held>,
    /// The places of those that are tried again in a moment.
    kept: Kept,
    /// The nodes that were rented for somebody, as of the last pass.
    rented: Rented,
    /// The nodes that came while work was shown, as of the last pass.
    bought: Bought,
    /// What is said of providers and how they stand, as of the last pass.
    providers: Providers,
    /// What the last pass was decided on, where it left nothing to do.
    settled: Option<Settled>,
    /// When all of it was last compared with the API.
    checked: Option<Timestamp>,
}

/// What a pass was decided on, and how many waited after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settled {
    line: u64,
    epoch: u64,
    evictable: u64,
    ends: u64,
    waiting: usize,
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
    let wakes: Vec<_> = claimants.iter().map(|all| all.waking()).collect();
    let scheduler = SweepRegistration::of(Placement::new(cx, claimants), SETTLE);
    let scheduler = wakes
        .into_iter()
        .fold(scheduler, |scheduler, wake| wake(scheduler));
    runtime.sweep(
        scheduler
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
        let pause = if self.state.lock().settled.is_some() {
            RESYNC
        } else {
            UNTOLD
        };
        let now = self.cx.clock.now();
        let due = self.state.lock().roll.next_due(now);
        waiting.then(|| due.map_or(later(now, pause), |due| later(now, pause).min(due)))
    }
}

impl Placement {
    pub(crate) fn new(cx: &Arc<Context>, claimants: Vec<Box<dyn Claimants>>) -> Self {
        let storage_changed = Arc::new(AtomicBool::new(true));
        let quotas_changed = Arc::new(AtomicBool::new(true));
        flag(&cx.claims, &storage_changed);
        flag(&cx.volumes, &storage_changed);
        flag(&cx.classes, &storage_changed);
        flag(&cx.quotas, &quotas_changed);
        let books = Books::new(Sources {
            nodes: cx.nodes.clone(),
            pods: cx.pods.clone(),
            namespaces: cx.namespaces.clone(),
        });
        Self {
            cx: Arc::clone(cx),
            claimants,
            checks: cfg!(debug_assertions),
            state: Mutex::new(State {
                roll: Roll::default(),
                books,
                memo: Memo::default(),
                tenants: Vec::new(),
                held: Vec::new(),
                kept: Kept::default(),
                rented: Rented::default(),
                bought: Bought::default(),
                providers: Providers::default(),
                settled: None,
                checked: None,
            }),
            storage_changed,
            quotas_changed,
        }
    }

    /// One pass. Returns whether anything still waits.
    async fn pass(&self, hands: &Hands) -> bool {
        let (cx, started) = (&*self.cx, Instant::now());
        let now = cx.clock.now();
        let decided = self.decide(now);
        let (decided, waiting) = match decided {
            Look::Unlisted => {
                cx.wakes.wake_sweep(NAME);
                return true;
            }
            Look::Nothing { waiting, held } => {
                cx.metrics.placed(started.elapsed(), waiting + held);
                return waiting > 0;
            }
            Look::Decided(decided, held) => {
                let waiting = decided.waiting;
                cx.metrics.decided(started.elapsed());
                cx.metrics.waiting(&decided.reasons);
                (decided, waiting + held)
            }
        };
        let correlation = hands.correlation.next();
        let span = tracing::info_span!("place", waiting, correlation = %correlation);
        let left = decided.waiting > 0;
        self.carry_out(hands, decided, &correlation, now)
            .instrument(span)
            .await;
        cx.metrics.placed(started.elapsed(), waiting);
        left
    }

    /// Decides for all in order, each seeing the ones before it. For whom nothing has changed since it waited gets the same
    /// answer, and where nothing has changed for anybody nothing is done.
    fn decide(&self, now: Timestamp) -> Look {
        let cx = &*self.cx;
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut promises = state.roll.catch_up(self.reader(), now);
        promises.extend(state.kept.only(state.roll.held_back()));
        let held = state.roll.held_back().len();
        if state.roll.is_empty() {
            state.books.catch_up_with(promises);
            state.settled = None;
            cx.metrics.waiting(&BTreeMap::new());
            cx.metrics
                .fleet(walk::usage(&state.books.ledger_mut().fleet));
            return Look::Nothing { waiting: 0, held };
        }
        // What has not been listed yet may limit everything, and be rented for somebody.
        let listed = cx.requests.get().is_none_or(Cache::is_answered);
        let tenants = tenancy::listed(cx.tenants.get()).filter(|_| listed);
        let Some(tenants) = tenants else {
            state.books.catch_up_with(promises);
            return Look::Unlisted;
        };
        self.read(state, &tenants, now);
        let order = cx.order.refresh(state.roll.evictable_share(), now);
        state.roll.reorder(order, self.reader(), now);
        state.books.catch_up_with(promises);
        let late = state.roll.catch_up_late(self.reader(), now);
        state.books.promised(late);
        self.check(state, now);
        // Of all nodes the ledger has, also those that came while it was checked.
        self.keep_bought(state, now);
        let unchanged = state.settled.filter(|settled| {
            settled.line == state.roll.changes()
                && settled.epoch == state.books.epoch()
                && settled.evictable == state.roll.eviction_print()
                && settled.ends == state.roll.ends()
        });
        if let Some(Settled { waiting, .. }) = unchanged {
            return Look::Nothing { waiting, held };
        }
        cx.metrics
            .fleet(walk::usage(&state.books.ledger_mut().fleet));
        let decided = Walk::over(cx, state, &tenants, now).run();
        state.settled = decided.leaves_nothing.then(|| Settled {
            line: state.roll.changes(),
            epoch: state.books.epoch(),
            evictable: state.roll.eviction_print(),
            ends: state.roll.ends(),
            waiting: decided.waiting,
        });
        Look::Decided(decided, held)
    }

    fn reader(&self) -> Reader<'_> {
        Reader {
            claimants: &self.claimants,
            arrivals: &self.cx.arrivals,
            verdicts: &self.cx.verdicts,
            min_run: self.cx.settings.min_run_time,
            order: &self.cx.order,
        }
    }

    /// Reads what decisions depend on besides claims, nodes and pods.
    fn read(&self, state: &mut State, tenants: &[Arc<Tenant>], now: Timestamp) {
        let (cx, books) = (&*self.cx, &mut state.books);
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
        if state.tenants != known {
            state.tenants = known;
            books.outdated();
        }
        let providers = cx.providers_of_nodes.standing(now);
        if state.providers != providers {
            state.providers = providers;
            books.outdated();
        }
        let rented = self.rented(tenants);
        if state.rented != rented {
            state.rented = rented;
            books.outdated();
        }
    }

    /// Compares what is kept from pass to pass with what the API shows: at every pass in tests and debug builds, where a
    /// difference is a defect that ends the process; now and then in release builds, where what was kept is replaced.
    fn check(&self, state: &mut State, now: Timestamp) {
        let due = state
            .checked
            .is_none_or(|checked| later(checked, CHECK) <= now);
        if !due && !self.checks {
            return;
        }
        state.checked = Some(now);
        let (different, promises) = state.roll.difference(self.reader(), now);
        state.books.catch_up_with(promises);
        let different = different.or_else(|| (!state.books.agrees()).then_some("the ledger"));
        debug_assert!(
            different.is_none(),
            "what is kept differs from what is read from nothing in {different:?}"
        );
        if let Some(what) = different {
            tracing::error!(
                what,
                "what the scheduler kept differs from what the API shows; it is read anew"
            );
            self.cx.metrics.repaired();
            self.repair(state, now);
        }
    }

    /// Forgets everything that is kept and reads it anew.
    fn repair(&self, state: &mut State, now: Timestamp) {
        state.roll = Roll::default();
        state.memo = Memo::default();
        state.settled = None;
        let reader = self.reader();
        state.roll.read_all(reader, now);
        state.roll.is_kept_for(&state.held);
        let kept = state.kept.promises();
        let promises = state.roll.promises().cloned().chain(kept);
        state.books.rebuild(promises.collect());
    }

    /// Keeps nodes that came while work was shown for that work.
    fn keep_bought(&self, state: &mut State, now: Timestamp) {
        let shown = state.roll.shown();
        let nodes = if shown.is_empty() {
            Vec::new()
        } else {
            self.cx.nodes.all()
        };
        let bought = Bought::new(&nodes, state.books.ledger_mut(), &shown, now);
        if state.bought != bought {
            state.bought = bought;
            state.books.outdated();
        }
    }

    /// The nodes that were rented for somebody.
    fn rented(&self, tenants: &[Arc<Tenant>]) -> Rented {
        let cx = &*self.cx;
        let requests = cx.requests.get().map(Cache::all).unwrap_or_default();
        if requests.is_empty() {
            return Rented::default();
        }
        let first = |request: &GPURequest| self.claimants.iter().find_map(|all| all.rents(request));
        Rented::new(&requests, first, tenants, &cx.namespaces.all())
    }
}

impl Placement {
    /// Compares what is kept with what the API shows only as often as a release build does.
    pub(crate) fn unchecked(mut self) -> Self {
        self.checks = false;
        self
    }

    /// A pass but for its writes: what would be placed, and how many are told that they wait.
    pub(crate) fn rehearse(&self, now: Timestamp) -> Option<(Vec<Placed>, usize)> {
        let Look::Decided(decided, _) = self.decide(now) else {
            return None;
        };
        let told = decided.news.len();
        self.tell(decided.news, true, now);
        let places = decided.places.into_iter();
        let places = places.map(|(_, claimant, places)| (claimant, places));
        Some((places.collect(), told))
    }

    /// Forgets everything that is kept and reads it anew.
    pub(crate) fn forget(&self) {
        let now = self.cx.clock.now();
        self.repair(&mut self.state.lock(), now);
    }
}

/// A claim and its places.
type Placed = (Arc<dyn Claimant>, Vec<Place>);

/// What a look found.
enum Look {
    /// What decisions depend on has not been listed yet.
    Unlisted,
    /// Nothing is to be done.
    Nothing { waiting: usize, held: usize },
    /// Decisions, and how many wait for their next try.
    Decided(Decided, usize),
}

#[cfg(test)]
mod tests;
