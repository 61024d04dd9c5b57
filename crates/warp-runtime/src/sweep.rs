//! A loop over everything at once instead of over one object at a time: placement is one. It is woken as controllers are,
//! gathers what wakes it for a moment, never runs twice at a time, and pauses while something it reads cannot be read.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::Resource;

use crate::Clock;
use crate::cache::{Cache, Key};
use crate::driver::{Controller, SyncError, later};
use crate::execute::Executor;
use crate::pass::Correlation;
use crate::plan::Wake;
use crate::queue::{Backoff, Queue};
use crate::runtime::{Needs, Wakes};

/// How often a sweep that cannot be read for asks whether that has changed.
const BLOCKED_RETRY: SignedDuration = SignedDuration::from_secs(15);

/// What a sweep acts with.
#[derive(Clone, Debug)]
pub struct Hands {
    pub executor: Executor,
    pub correlation: Arc<Correlation>,
    pub wakes: Wakes,
}

/// A loop the runtime can run.
pub trait Sweep: Send + Sync + 'static {
    /// Names it in logs, readiness and wake-ups: one lower-case word.
    const NAME: &'static str;

    /// One look at everything; when to look again without being woken. Failures are its own to remember.
    fn sweep(&self, hands: &Hands) -> impl Future<Output = Option<Timestamp>> + Send;
}

/// Wakes a sweep, for plans.
pub fn wake(sweep: &'static str) -> Wake {
    Wake {
        controller: sweep,
        key: everything(),
    }
}

/// The one key of a sweep's queue.
pub(crate) fn everything() -> Key {
    Key::new("", "everything")
}

/// A sweep's registration: what it reads, and which changes wake it.
pub struct SweepRegistration<S> {
    pub(crate) sweep: S,
    pub(crate) queue: Arc<Queue<Key>>,
    pub(crate) needs: Needs,
    pub(crate) gather: Duration,
}

impl<S> std::fmt::Debug for SweepRegistration<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SweepRegistration").finish_non_exhaustive()
    }
}

impl<S: Sweep> SweepRegistration<S> {
    /// A sweep that waits for `gather` after the first thing that wakes it: events come in bursts.
    pub fn of(sweep: S, gather: Duration) -> Self {
        Self {
            sweep,
            queue: Arc::new(Queue::with(Backoff::CALM)),
            needs: Needs::default(),
            gather,
        }
    }

    /// Reads `cache`, whose changes mean nothing to it.
    #[must_use]
    pub fn reads<K>(mut self, cache: &Cache<K>) -> Self
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        self.needs.add(cache);
        self
    }

    /// Is woken by the changes of `cache` that `matters` picks.
    #[must_use]
    pub fn watches<K>(
        self,
        cache: &Cache<K>,
        matters: impl Fn(Option<&K>, Option<&K>) -> bool + Send + Sync + 'static,
    ) -> Self
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        let (queue, gather) = (self.queue.clone(), self.gather);
        cache.listen(move |old, new| {
            if matters(old, new) {
                queue.add_after(everything(), gather);
            }
        });
        self.reads(cache)
    }
}

/// A registered sweep as the driver runs it.
pub(crate) struct SweepController<S> {
    pub(crate) sweep: S,
    pub(crate) needs: Needs,
    pub(crate) hands: Hands,
    pub(crate) clock: Clock,
}

impl<S: Sweep> Controller for SweepController<S> {
    type Key = Key;
    const NAME: &'static str = S::NAME;
    const WORKERS: usize = 1;

    async fn sync(&self, _: &Key) -> Result<Option<Timestamp>, SyncError> {
        if self.needs.blocked() {
            return Ok(Some(later(self.clock.now(), BLOCKED_RETRY)));
        }
        Ok(self.sweep.sweep(&self.hands).await)
    }
}
