//! Runs passes: takes a key, observes, plans, applies, and decides when the key comes again.
//!
//! A kind implements [`Reconcile`]; everything around a pass (span, metrics, backoff, status only
//! when different) is here once.

mod contest;
mod failures;
mod queue;

use std::fmt::Debug;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::apply::{ApplyError, Regarding, chain};
use crate::audit::Pass;
use crate::cache::Key;
use crate::clock;
use crate::context::Context;
use crate::plan::{Plan, Target};

use contest::Contests;
use failures::Failures;
pub(crate) use queue::Queue;

/// Passes running at once.
const CONCURRENCY: usize = 8;
/// Seconds after which an object whose pass crashed is looked at again.
const AFTER_CRASH: i64 = 60;

/// A kind the driver can run.
pub(crate) trait Reconcile: Send + Sync + 'static {
    type Object: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync;
    type Seen: Send + Sync;
    type Status: Serialize + PartialEq + Debug + Send + Sync;

    /// Kind as the audit trail and spans name it.
    const KIND: &'static str;
    /// Field manager of the status.
    const MANAGER: &'static str;

    /// The object and everything its plan needs. Decides nothing.
    fn observe(&self, cx: &Context, key: &Key) -> Option<(Arc<Self::Object>, Self::Seen)>;
    /// What should happen. Pure and total.
    fn plan(&self, object: &Self::Object, seen: &Self::Seen, now: Timestamp) -> Plan<Self::Status>;
    /// The status the object has.
    fn status(object: &Self::Object) -> Option<&Self::Status>;
    /// The part of a status that is this operator's to write.
    fn own(status: &Self::Status) -> Value {
        serde_json::to_value(status).unwrap_or_default()
    }
    /// Takes in the object as our status write returned it, and what changed for metrics.
    fn written(&self, cx: &Context, before: &Self::Object, after: Self::Object);
}

/// Runs passes until `stop`, then lets the running ones end.
pub(crate) async fn run<R: Reconcile>(kind: Arc<R>, cx: Arc<Context>, stop: CancellationToken) {
    let memory = Arc::new(Memory::default());
    let mut passes = JoinSet::new();
    loop {
        while passes.len() >= CONCURRENCY {
            report(passes.join_next().await);
        }
        let key = tokio::select! {
            key = cx.queue.next(&cx.clock) => key,
            Some(ended) = passes.join_next(), if !passes.is_empty() => {
                report(Some(ended));
                continue;
            }
            () = stop.cancelled() => break,
        };
        let (kind, cx, memory) = (Arc::clone(&kind), Arc::clone(&cx), Arc::clone(&memory));
        passes.spawn(async move {
            let turn = Turn { cx: &cx, key: &key };
            pass(&*kind, &cx, &key, &memory).await;
            drop(turn);
        });
    }
    while let Some(ended) = passes.join_next().await {
        report(Some(ended));
    }
}

/// A pass that panicked is a bug to be seen, and one object's: the others go on.
fn report(ended: Option<Result<(), JoinError>>) {
    if let Some(Err(error)) = ended {
        tracing::error!(%error, "a pass crashed; its object is looked at again later");
    }
}

/// Gives the key back however the pass ends.
struct Turn<'a> {
    cx: &'a Context,
    key: &'a Key,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let later = clock::after(self.cx.clock.now(), AFTER_CRASH);
            self.cx.queue.add(self.key.clone(), later);
        }
        self.cx.queue.done(self.key);
    }
}

/// What passes remember of an object for its next ones; all of it may be lost.
#[derive(Debug, Default)]
struct Memory {
    failures: Failures,
    contests: Contests,
}

/// One pass over one object.
async fn pass<R: Reconcile>(kind: &R, cx: &Context, key: &Key, memory: &Memory) {
    let Memory { failures, contests } = memory;
    let Some((object, seen)) = kind.observe(cx, key) else {
        failures.clear(key);
        contests.clear(key);
        return;
    };
    let correlation = cx.correlation.next();
    let span = tracing::info_span!(
        "reconcile",
        kind = R::KIND,
        namespace = %key.namespace,
        name = %key.name,
        generation = object.meta().generation,
        correlation = %correlation,
    );
    let started = Instant::now();
    let pass = Pass::new(R::KIND, &*object, R::MANAGER, correlation);
    let outcome = async {
        let plan = kind.plan(&object, &seen, cx.clock.now());
        carry_out(kind, cx, &pass, &object, plan, contests).await
    }
    .instrument(span.clone())
    .await;
    cx.metrics.reconciled(started.elapsed(), outcome.is_ok());
    let now = cx.clock.now();
    let again = match outcome {
        Ok(again) => {
            failures.clear(key);
            again
        }
        Err(error) => {
            let wait = failures.backoff(key, &error);
            span.in_scope(|| {
                if error.is_conflict() {
                    tracing::debug!(error = %chain(&error), "object changed meanwhile");
                } else {
                    tracing::warn!(error = %chain(&error), wait = ?wait, "pass failed");
                }
            });
            now.checked_add(SignedDuration::try_from(wait).unwrap_or_default())
                .ok()
        }
    };
    if let Some(at) = again {
        cx.queue.add(key.clone(), at);
    }
}

/// Writes, then status, then Events; the first failure ends the pass.
async fn carry_out<R: Reconcile>(
    kind: &R,
    cx: &Context,
    pass: &Pass,
    object: &R::Object,
    plan: Plan<R::Status>,
    contests: &Contests,
) -> Result<Option<Timestamp>, ApplyError> {
    for write in &plan.writes {
        cx.executor.write(pass, write).await?;
    }
    let mut again = plan.again;
    let before = R::status(object);
    if let Some(status) = plan
        .status
        .as_ref()
        .filter(|status| before != Some(*status))
    {
        let key = Key::of(object);
        let theirs = before.map(R::own).unwrap_or_default();
        let now = cx.clock.now();
        if let Some(until) = contests.hold(&key, &theirs, now) {
            // What is due already waits for this status.
            let sooner = again.filter(|again| now < *again && *again < until);
            again = sooner.or(Some(until));
        } else {
            let target = Target::of(object);
            let body = R::own(status);
            let written = cx.executor.status(pass, &target, &body, &plan.why).await?;
            // An object we cannot read back comes with the watch.
            if let Ok(after) = written.try_parse::<R::Object>() {
                contests.wrote(&key, &R::status(&after).map(R::own).unwrap_or_default());
                kind.written(cx, object, after);
            }
            let about = Regarding::of(object);
            for note in &plan.events {
                cx.executor.tell(pass, &about, note).await;
            }
        }
    }
    if plan.place {
        cx.place.notify_one();
    }
    Ok(again)
}
