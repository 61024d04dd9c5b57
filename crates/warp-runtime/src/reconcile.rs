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
use crate::execute::Executor;
use crate::kind::Kind;
use crate::pass::{Correlation, Observer, Pass};
use crate::plan::Plan;
use crate::runtime::{Needs, Wakes};

/// A kind the runtime can run.
pub trait Reconcile: Send + Sync + 'static {
    type Object: Resource<DynamicType = ()> + Send + Sync + 'static;
    /// Everything a plan needs besides the object.
    type Seen: Send;

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
    /// The object is gone: forget what is remembered of it.
    fn gone(&self, _key: &Key) {}
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
        let again = self.executor.execute(pass, plan).await?;
        for wake in wakes {
            self.wakes.wake(wake.controller, wake.key);
        }
        Ok(again)
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
