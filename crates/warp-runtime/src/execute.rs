//! The one place that writes to the API, but for Events (`events`) and the leader's lease. It makes no choices: it asks whether the premises hold, does what a plan says in
//! order, and sees to it that the next plan is made from a state that includes it.
//!
//! Every request has a deadline. Nothing is repeated here: a pass that failed is planned again from what is then true,
//! because a request without an answer may have been carried out.

mod applied;
mod contest;
mod request;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::Resource;
use parking_lot::RwLock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::applied::Applied;
use self::contest::Contests;
use crate::Clock;
use crate::cache::store::{self, Entry, Store};
use crate::cache::{Cache, Key, feed};
use crate::events::Recorder;
use crate::outside::Outside;
use crate::pass::{Observer, Pass, Unobserved};
use crate::plan::{Action, Kind, Plan, as_json};

/// Why a plan was not carried out to its end. What was done before stays done; the next plan sees it.
#[derive(Debug, thiserror::Error)]
#[error("failed to {verb} {kind} {name}: {source}")]
pub struct ExecuteError {
    pub verb: &'static str,
    pub kind: String,
    /// The part of it that was asked for, such as `eviction`.
    pub sub: Option<&'static str>,
    pub name: String,
    #[source]
    pub source: Box<kube::Error>,
}

impl ExecuteError {
    /// Another writer changed the object first: nothing to report, only to plan again.
    pub fn is_conflict(&self) -> bool {
        status_of(&self.source).is_some_and(kube::core::Status::is_conflict)
    }

    /// The API server's own words, without this process's.
    pub fn reason(&self) -> String {
        status_of(&self.source)
            .map_or_else(|| self.source.to_string(), |status| status.message.clone())
    }
}

pub fn status_of(error: &kube::Error) -> Option<&kube::core::Status> {
    match error {
        kube::Error::Api(status) => Some(status),
        _ => None,
    }
}

/// What a write left behind, for those who wait until the watch brings it.
#[derive(Debug)]
enum Trace {
    Version(Kind, u64),
    Gone(Kind, Key, String),
    /// A status that another writer keeps changing is not written before then.
    Held(Timestamp),
}

/// How a controller comes to see its own writes in the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnWrites {
    /// A pass ends when the watch has brought them: whatever happened before them is then known too.
    Awaited,
    /// What a write returned is taken into the cache at once.
    TakenIn,
}

/// The longest a controller waits for its own write to come back before it plans again without it.
const ECHO_LIMIT: Duration = Duration::from_secs(10);
/// The longest one request may take, unless a controller says otherwise.
const REQUEST_DEADLINE: Duration = Duration::from_secs(15);
const PARALLEL: usize = 32;

#[derive(Clone)]
pub struct Executor {
    client: kube::Client,
    clock: Clock,
    events: Recorder,
    caches: Arc<BTreeMap<Kind, Vec<FollowedCache>>>,
    own_writes: OwnWrites,
    deadline: Duration,
    observer: Arc<dyn Observer>,
    memory: Arc<Memory>,
    outsides: Outsides,
}

/// What is outside the cluster, by the name it was registered under.
pub type Outsides = Arc<RwLock<BTreeMap<&'static str, Outside>>>;

/// What the executor remembers of objects between passes; all of it may be lost.
#[derive(Debug, Default)]
struct Memory {
    contests: Contests,
    applied: Applied,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").finish_non_exhaustive()
    }
}

struct FollowedCache {
    store: Arc<Store>,
    decode: feed::Decode,
    encode: fn(&dyn Entry) -> Value,
}

/// The caches an executor keeps in step with what it writes; several of one kind may hold different objects of it.
#[derive(Default)]
pub struct Followed(BTreeMap<Kind, Vec<FollowedCache>>);

impl std::fmt::Debug for Followed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

impl Followed {
    pub fn add<K>(&mut self, cache: &Cache<K>)
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let cache = FollowedCache {
            store: cache.store().clone(),
            decode: feed::decode_whole::<K>,
            encode: |entry| as_json(store::seen_as::<K>(entry)),
        };
        self.0.entry(Kind::of::<K>()).or_default().push(cache);
    }
}

impl Executor {
    pub fn new(client: kube::Client, clock: Clock, events: Recorder, caches: Followed) -> Self {
        Self {
            client,
            clock,
            events,
            caches: Arc::new(caches.0),
            own_writes: OwnWrites::Awaited,
            deadline: REQUEST_DEADLINE,
            observer: Arc::new(Unobserved),
            memory: Arc::default(),
            outsides: Outsides::default(),
        }
    }

    #[must_use]
    pub fn own_writes(mut self, how: OwnWrites) -> Self {
        self.own_writes = how;
        self
    }

    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }

    /// The same executor with another deadline for each request.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Lets plans call what is outside the cluster.
    #[must_use]
    pub fn calling(mut self, outsides: Outsides) -> Self {
        self.outsides = outsides;
        self
    }

    pub fn client(&self) -> &kube::Client {
        &self.client
    }

    /// Forgets what it remembers of an object that is gone.
    pub fn forget(&self, kind: &Kind, key: &Key) {
        self.memory.contests.forget(kind, key);
    }

    /// Carries `plan` out; when it wants to be looked at again. Creates that follow each other run in batches that
    /// double (1, 2, 4 …), so that a quota or an admission that refuses one is not asked a thousand times; deletes that
    /// follow each other run together.
    pub async fn execute(
        &self,
        pass: &Pass,
        plan: Plan,
    ) -> Result<Option<Timestamp>, ExecuteError> {
        let mut again = plan.again;
        // Premises guard writes and calls; without any there is nothing to be wrong about.
        if !plan.actions.is_empty() || !plan.calls.is_empty() {
            for premise in &plan.premises {
                self.check(premise).await?;
            }
        }
        if plan.actions.is_empty() {
            for call in plan.calls {
                let outside = self.outsides.read().get(call.outside).cloned();
                if let Some(outside) = outside {
                    outside.begin(call);
                } else {
                    tracing::error!(outside = call.outside, "a call to nothing registered");
                }
            }
        }
        let mut traces = Vec::new();
        let mut outcome = Ok(());
        let (why, reasons): (Arc<str>, _) = (plan.why.into(), plan.reasons);
        let why_of = |at: usize| match reasons.get(&at) {
            Some(own) => Arc::from(own.as_str()),
            None => why.clone(),
        };
        let actions = plan.actions.into_iter().enumerate();
        let mut actions = actions.map(|(at, action)| (why_of(at), action)).peekable();
        while let Some(first) = actions.next() {
            let run = kind_of_run(&first.1);
            let mut batch = vec![first];
            while run > 0
                && actions
                    .peek()
                    .is_some_and(|(_, next)| kind_of_run(next) == run)
            {
                batch.extend(actions.next());
            }
            outcome = self.run(pass, batch, run == 1, &mut traces).await;
            if outcome.is_err() {
                break;
            }
            let held = traces.iter().find_map(|trace| match trace {
                Trace::Held(until) => Some(*until),
                _ => None,
            });
            // What comes after the status, Events about it above all, waits with it.
            if let Some(until) = held {
                let now = self.clock.now();
                let sooner = again.filter(|again| now < *again && *again < until);
                again = sooner.or(Some(until));
                break;
            }
        }
        if self.own_writes == OwnWrites::Awaited {
            self.settle(traces).await;
        }
        outcome.map(|()| again)
    }

    async fn run(
        &self,
        pass: &Pass,
        batch: Vec<(Arc<str>, Action)>,
        slow_start: bool,
        traces: &mut Vec<Trace>,
    ) -> Result<(), ExecuteError> {
        let mut width = if slow_start { 1 } else { PARALLEL };
        let mut rest = batch.into_iter();
        loop {
            let now: Vec<(Arc<str>, Action)> = rest.by_ref().take(width).collect();
            if now.is_empty() {
                return Ok(());
            }
            let results: Vec<_> = stream::iter(now)
                .map(|(why, action)| async move { self.act(pass, &why, action).await })
                .buffer_unordered(PARALLEL)
                .collect()
                .await;
            let mut failed = None;
            for result in results {
                match result {
                    Ok(trace) => traces.extend(trace),
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
            width = width.saturating_mul(2);
        }
    }

    fn caches_of(&self, kind: &Kind) -> &[FollowedCache] {
        self.caches.get(kind).map_or(&[], Vec::as_slice)
    }

    /// Waits until every write is visible in its cache.
    async fn settle(&self, traces: Vec<Trace>) {
        let echoes = async {
            for trace in traces {
                match trace {
                    Trace::Version(kind, version) => {
                        let caches = self.caches_of(&kind);
                        let alone = caches.len() == 1;
                        // One of several that holds a part of the kind may never hear of this version.
                        for cache in caches
                            .iter()
                            .filter(|cache| alone || cache.store.is_whole())
                        {
                            cache.store.seen(version).await;
                        }
                    }
                    Trace::Gone(kind, key, uid) => {
                        for cache in self.caches_of(&kind) {
                            cache.store.gone(&key, &uid).await;
                        }
                    }
                    Trace::Held(_) => {}
                }
            }
        };
        // A lost echo (a watch being re-established) may delay a plan, never stop it.
        let _ = tokio::time::timeout(ECHO_LIMIT, echoes).await;
    }
}

fn kind_of_run(action: &Action) -> u8 {
    match action {
        Action::Create { .. } => 1,
        Action::Delete { .. } => 2,
        Action::Note(_) => 3,
        Action::Sub { .. } | Action::Patch { .. } | Action::Apply { .. } | Action::Status(_) => 0,
    }
}
