//! Things outside Kubernetes: rented machines, downloads, commits in a repository. They are not transactional, so each
//! takes three writes: the *intent* in the status, one pass before anything is called; the *result*; and, at the end,
//! the *confirmation* that it is gone, before a finalizer drops.
//!
//! Owns the calls (each with its own deadline, never on a queue's worker) and what was last seen outside, with its age.
//! What to do next is `outside/step.rs`, which is pure; a kind's plan asks it and a kind's status holds the record.

mod step;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::task::TaskTracker;

pub use self::step::{Recorded, Step, absent, present};
use crate::Clock;
use crate::background;
use crate::cache::Key;

/// Why something outside could not be done or asked. It never carries a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OutsideError {
    pub message: String,
    /// Asking again will give the same answer until something changes: a wrong credential, an exhausted quota.
    pub is_refusal: bool,
}

/// What outside is and how patient one is with it.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest one call may take.
    pub call_deadline: Duration,
    /// How long after a call was sent its effect may still appear, although the answer was lost.
    pub settle: Duration,
    /// What was seen longer ago than this is asked again before anything is decided on it.
    pub max_age: Duration,
    /// The wait after a call that failed.
    pub retry: Duration,
}

/// One thing outside, by a name that is ours to choose: the same name always means the same thing, so making it is
/// looked up before it is repeated.
pub trait External: Send + Sync + 'static {
    fn limits(&self) -> Limits;
    /// What is there under `name`.
    fn look_up<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Value>, OutsideError>>;
    /// Makes it; what is there then. One that is there already will do.
    fn make<'a>(
        &'a self,
        name: &'a str,
        request: &'a Value,
    ) -> BoxFuture<'a, Result<Value, OutsideError>>;
    /// Ends it. One that is not there is no error.
    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), OutsideError>>;
}

/// One call, as a plan states it.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Which outside, by the name it was registered under.
    pub outside: &'static str,
    /// The object to look at again when the answer is here.
    pub for_key: Key,
    pub name: String,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    LookUp,
    Make(Value),
    Remove,
}

/// What was last seen outside under one name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sight {
    /// When it was asked for; none when it never was.
    pub asked: Option<Timestamp>,
    pub there: Option<Value>,
    /// A call is under way.
    pub busy: bool,
    /// The last call failed, so, and is not repeated before then.
    pub failed: Option<(OutsideError, Timestamp)>,
    /// When this process last sent a call that makes it.
    pub last_make: Option<Timestamp>,
    /// When this process last sent a call that ends it.
    pub last_remove: Option<Timestamp>,
    /// When this process began: what an earlier one sent may still take effect.
    pub process_began: Option<Timestamp>,
    pub settle: Duration,
    pub max_age: Duration,
}

impl Sight {
    /// When anything last happened to it.
    fn last_used(&self) -> Timestamp {
        let failed = self.failed.as_ref().map(|(_, until)| *until);
        let times = [self.asked, failed, self.last_make, self.last_remove];
        times.into_iter().flatten().max().unwrap_or(Timestamp::MIN)
    }
}

/// How long at least what was seen is remembered when nobody asks for it.
const KEPT: Duration = Duration::from_hours(1);

type Wake = Arc<dyn Fn(Key) + Send + Sync>;

/// One registered outside.
#[derive(Clone)]
pub struct Outside {
    external: Arc<dyn External>,
    clock: Clock,
    began: Timestamp,
    seen: Arc<Mutex<BTreeMap<String, Sight>>>,
    tasks: TaskTracker,
    wake: Wake,
}

impl Debug for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outside").finish_non_exhaustive()
    }
}

impl Outside {
    pub fn new(
        external: impl External,
        clock: Clock,
        wake: impl Fn(Key) + Send + Sync + 'static,
    ) -> Self {
        Self {
            began: clock.now(),
            external: Arc::new(external),
            clock,
            seen: Arc::default(),
            tasks: TaskTracker::new(),
            wake: Arc::new(wake),
        }
    }

    /// What was last seen under `name`, for a pass to observe. Asks nobody.
    pub fn sight(&self, name: &str) -> Sight {
        let limits = self.external.limits();
        Sight {
            process_began: Some(self.began),
            settle: limits.settle,
            max_age: limits.max_age,
            ..self.seen.lock().get(name).cloned().unwrap_or_default()
        }
    }

    /// Forgets `name`: its object is gone.
    pub fn forget(&self, name: &str) {
        self.seen.lock().remove(name);
    }

    /// Begins a call, unless one for the same name is under way or has just failed.
    pub(crate) fn begin(&self, call: Call) {
        let now = self.clock.now();
        let mut seen = self.seen.lock();
        let sight = seen.entry(call.name.clone()).or_default();
        let too_soon = sight.failed.as_ref().is_some_and(|(_, until)| now < *until);
        if sight.busy || too_soon {
            return;
        }
        sight.busy = true;
        match call.what {
            What::Make(_) => sight.last_make = Some(now),
            What::Remove => sight.last_remove = Some(now),
            What::LookUp => {}
        }
        drop(seen);
        let this = self.clone();
        background::tracked(&self.tasks, async move {
            let ended = Ended {
                outside: &this,
                call: &call,
            };
            let limits = this.external.limits();
            // What is true when the answer arrives was asked for when the call began.
            let asked = this.clock.now();
            let answer = tokio::time::timeout(limits.call_deadline, this.call(&call)).await;
            let answer = answer.unwrap_or_else(|_| {
                Err(OutsideError {
                    message: format!("no answer within {} s", limits.call_deadline.as_secs()),
                    is_refusal: false,
                })
            });
            this.take(&call.name, asked, answer, limits.retry);
            drop(ended);
        });
    }

    /// Makes a call. Whatever is to be made is looked up first: an earlier process may have made it.
    async fn call(&self, call: &Call) -> Result<Option<Value>, OutsideError> {
        let name = call.name.as_str();
        match &call.what {
            What::LookUp => self.external.look_up(name).await,
            What::Make(request) => match self.external.look_up(name).await? {
                Some(there) => Ok(Some(there)),
                None => self.external.make(name, request).await.map(Some),
            },
            What::Remove => {
                self.external.remove(name).await?;
                self.external.look_up(name).await
            }
        }
    }

    fn take(
        &self,
        name: &str,
        asked: Timestamp,
        answer: Result<Option<Value>, OutsideError>,
        retry: Duration,
    ) {
        let now = self.clock.now();
        let mut seen = self.seen.lock();
        let limits = self.external.limits();
        let kept = KEPT.max(limits.max_age * 4).max(limits.settle * 4);
        let kept = SignedDuration::try_from(kept).unwrap_or(SignedDuration::MAX);
        // Whoever still has an object asks again within its age; what nobody has asked for since is nobody's.
        seen.retain(|_, sight| sight.busy || now.duration_since(sight.last_used()) < kept);
        let sight = seen.entry(name.to_owned()).or_default();
        match answer {
            Ok(there) => {
                sight.there = there;
                sight.asked = Some(asked);
                sight.failed = None;
            }
            Err(error) => {
                tracing::warn!(name, %error, "a call outside the cluster failed");
                let retry = SignedDuration::try_from(retry).unwrap_or_default();
                let until = crate::driver::later(now, retry);
                sight.failed = Some((error, until));
            }
        }
    }
}

/// However a call ends, by a panic too, the name is free again and its object is looked at.
struct Ended<'a> {
    outside: &'a Outside,
    call: &'a Call,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if let Some(sight) = self.outside.seen.lock().get_mut(&self.call.name) {
            sight.busy = false;
        }
        (self.outside.wake)(self.call.for_key.clone());
    }
}
