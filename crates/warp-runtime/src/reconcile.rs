//! The controller of one kind: what a kind implements, and one pass of it.
//!
//! A pass observes (reads, decides nothing), plans (pure and total) and has the executor act. Everything around it is
//! here once: span, correlation, measurements, what to do when the kind cannot be read.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::Resource;
use tokio::time::Instant;
use tracing::Instrument;

use crate::Clock;
use crate::cache::{Cache, Health, Key};
use crate::driver::{Controller, SyncError, later};
use crate::execute::{ExecuteError, Executor, status_of};
use crate::kind::Kind;
use crate::pass::{Correlation, Observer, Pass};
use crate::plan::Plan;
use crate::runtime::{Needs, Wakes};

/// A kind the runtime can run.
pub trait Reconcile: Send + Sync + 'static {
    type Object: Resource<DynamicType = ()> + Send + Sync + 'static;
    /// Everything a plan needs besides the object.
    type Seen: Send + Sync;

    /// Names the controller in logs, metrics, readiness and wake-ups: one lower-case word.
    const NAME: &'static str;
    /// Field manager of the status and of what is created.
    const MANAGER: &'static str;

    /// Reads what the plan needs, from caches or from outside. Decides nothing.
    fn observe(&self, object: &Arc<Self::Object>) -> impl Future<Output = Self::Seen> + Send;
    /// What should happen. Pure and total: bad input becomes a condition.
    fn plan(&self, object: &Self::Object, seen: &Self::Seen, now: Timestamp) -> Plan;
    /// Writes into what a plan writes on whose behalf it is carried out, for a kind whose objects remember that.
    fn sign(&self, _pass: &Pass, _plan: &mut Plan) {}
    /// The API server does not take something that a plan makes as it is: a plan that tells so in the object's status. The
    /// pass is tried again all the same. None: only the log tells.
    fn refused(
        &self,
        _object: &Self::Object,
        _seen: &Self::Seen,
        _refusal: &Refusal,
        _now: Timestamp,
    ) -> Option<Plan> {
        None
    }
    /// The object is gone: forget what is remembered of it.
    fn gone(&self, _key: &Key) {}
}

/// Something that the API server does not take as it is, with its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub kind: String,
    pub name: String,
    pub words: String,
    /// It might be taken another time: a quota, a policy or a right speaks against it, not its form.
    pub forbidden: bool,
}

impl Refusal {
    /// What a failure says about a child; none where it says nothing about what was sent, or is about the object itself.
    fn of(error: &ExecuteError, owner: &Kind) -> Option<Self> {
        let status = status_of(&error.source)?;
        // A conflict, a missing namespace or a server that is busy is not the sender's fault.
        let about_it = matches!(status.code, 400 | 403 | 422);
        // Nor is it about something that is made, where a pod may not be asked to go.
        (about_it && error.sub.is_none() && error.kind != owner.kind).then(|| Self {
            kind: error.kind.clone(),
            name: error.name.clone(),
            words: status.message.clone(),
            forbidden: status.code == 403,
        })
    }
}

/// How often a kind that cannot be read asks whether that has changed.
const BLOCKED_RETRY: SignedDuration = SignedDuration::from_secs(15);

/// One registered kind as the driver runs it.
pub(crate) struct KindController<R: Reconcile> {
    pub(crate) kind: R,
    pub(crate) objects: Cache<R::Object>,
    pub(crate) needs: Needs,
    pub(crate) workers: usize,
    pub(crate) executor: Executor,
    pub(crate) clock: Clock,
    pub(crate) correlation: Arc<Correlation>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) wakes: Wakes,
}

impl<R: Reconcile> Controller for KindController<R> {
    type Key = Key;
    const NAME: &'static str = R::NAME;

    fn workers(&self) -> usize {
        self.workers
    }

    async fn sync(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let now = self.clock.now();
        // Deciding on what the API server no longer lets us read would undo what is right.
        if self.needs.blocked() {
            return Ok(Some(later(now, BLOCKED_RETRY)));
        }
        let Some(object) = self.objects.get(key) else {
            self.executor.forget(&Kind::of::<R::Object>(), key);
            self.kind.gone(key);
            return Ok(None);
        };
        let correlation = self.correlation.next();
        let span = tracing::info_span!(
            "reconcile",
            kind = R::NAME,
            namespace = %key.namespace,
            name = %key.name,
            generation = object.meta().generation,
            correlation = %correlation,
        );
        let pass = Pass::over(R::NAME, R::MANAGER, &*object, correlation);
        let started = Instant::now();
        let outcome = self.pass(&pass, &object).instrument(span).await;
        self.observer
            .reconciled(R::NAME, started.elapsed(), outcome.is_ok());
        outcome
    }
}

impl<R: Reconcile> KindController<R> {
    async fn pass(
        &self,
        pass: &Pass,
        object: &Arc<R::Object>,
    ) -> Result<Option<Timestamp>, SyncError> {
        let seen = self.kind.observe(object).await;
        let mut plan = self.kind.plan(object, &seen, self.clock.now());
        self.kind.sign(pass, &mut plan);
        let wakes = std::mem::take(&mut plan.wake);
        let again = match self.executor.execute(pass, plan).await {
            Ok(again) => again,
            Err(error) => {
                self.tell(pass, object, &seen, &error).await;
                return Err(error.into());
            }
        };
        for wake in wakes {
            self.wakes.wake(wake.controller, wake.key);
        }
        Ok(again)
    }
}

impl<R: Reconcile> KindController<R> {
    /// Has the object say that something of it was refused. Where that fails too the next pass tells it.
    async fn tell(&self, pass: &Pass, object: &R::Object, seen: &R::Seen, error: &ExecuteError) {
        let now = self.clock.now();
        let refusal = Refusal::of(error, &Kind::of::<R::Object>());
        let plan = refusal.and_then(|refusal| self.kind.refused(object, seen, &refusal, now));
        if let Some(mut plan) = plan {
            self.kind.sign(pass, &mut plan);
            if let Err(error) = self.executor.execute(pass, plan).await {
                tracing::debug!(%error, "a refusal was not told");
            }
        }
    }
}

/// Whether trouble with reading a kind means that nothing may be decided.
pub(crate) fn blocks(health: &Health) -> bool {
    matches!(health, Health::Missing | Health::Refused(_))
}

/// The longest one request of a kind may take, unless it says otherwise.
pub(crate) const REQUEST_DEADLINE: Duration = Duration::from_secs(15);
/// Objects of a kind worked on at once, unless it says otherwise.
pub(crate) const WORKERS: usize = 8;
