//! Runs one controller: takes keys from its queue, has each worked on by at most one worker, and tries failures again
//! later. What a controller decides is its own affair.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Clock;
use crate::background;
use crate::execute::{ExecuteError, status_of};
use crate::queue::{End, Queue};

#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    #[error("failed to read {what}: {source}")]
    Read {
        what: String,
        source: Box<kube::Error>,
    },
    #[error("failed to finish: the task panicked")]
    Panicked,
}

impl SyncError {
    fn end(&self) -> End {
        let source = match self {
            Self::Execute(error) => &error.source,
            Self::Read { source, .. } => source,
            Self::Panicked => return End::Panicked,
        };
        match status_of(source) {
            Some(status) if status.is_conflict() => End::Conflict,
            Some(status) if status.code == 429 => End::PutOff,
            Some(status) if (400..500).contains(&status.code) => End::Refused,
            _ => End::Failed,
        }
    }
}

/// One controller: a name, and what to do about one key.
pub trait Controller: Send + Sync + 'static {
    type Key: Ord + Clone + Debug + Send + Sync + 'static;
    const NAME: &'static str;
    /// Keys worked on at once.
    const WORKERS: usize = 8;

    /// [`Controller::WORKERS`], where it is not chosen until the controller runs.
    fn workers(&self) -> usize {
        Self::WORKERS
    }

    /// Looks at `key` and does what is to be done; says when to look again.
    fn sync(
        &self,
        key: &Self::Key,
    ) -> impl Future<Output = Result<Option<Timestamp>, SyncError>> + Send;
}

/// A key being worked on. However the work ends, by a panic too, the queue hears of it: a key it does not hear of is
/// never worked on again.
struct Work<C: Controller> {
    queue: Arc<Queue<C::Key>>,
    key: C::Key,
    end: End,
}

impl<C: Controller> Work<C> {
    fn end(&mut self, outcome: Result<Option<Timestamp>, SyncError>, now: Timestamp) {
        let key = &self.key;
        self.end = match &outcome {
            Ok(_) => End::Done,
            Err(error) => error.end(),
        };
        match outcome {
            Ok(again) => {
                if let Some(at) = again {
                    self.queue.add_after(key.clone(), until(at, now));
                }
            }
            Err(SyncError::Execute(error)) if error.is_conflict() => {
                tracing::debug!(controller = C::NAME, ?key, %error, "changed meanwhile");
            }
            Err(error) => {
                tracing::warn!(controller = C::NAME, ?key, %error, "will try again");
            }
        }
    }
}

impl<C: Controller> Drop for Work<C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end = End::Panicked;
            tracing::error!(controller = C::NAME, key = ?self.key, "panicked, will try again");
        }
        self.queue.done(&self.key, self.end);
    }
}

/// Works off `queue` until `shutdown`, which cuts short what is being worked on, and waits for the workers to end.
pub async fn drive<C: Controller>(
    controller: Arc<C>,
    queue: Arc<Queue<C::Key>>,
    clock: Clock,
    shutdown: CancellationToken,
) {
    drive_until(controller, queue, clock, shutdown.clone(), shutdown).await;
}

/// Works off `queue` until `stop`, then lets what is being worked on end; `cut` cuts it short.
pub(crate) async fn drive_until<C: Controller>(
    controller: Arc<C>,
    queue: Arc<Queue<C::Key>>,
    clock: Clock,
    stop: CancellationToken,
    cut: CancellationToken,
) {
    let workers = Arc::new(Semaphore::new(controller.workers()));
    let tasks = TaskTracker::new();
    loop {
        let Ok(permit) = workers.clone().acquire_owned().await else {
            break;
        };
        let key = tokio::select! {
            () = stop.cancelled() => break,
            () = cut.cancelled() => break,
            key = queue.next() => key,
        };
        let (controller, clock, cut) = (controller.clone(), clock.clone(), cut.clone());
        let mut work = Work::<C> {
            queue: queue.clone(),
            key,
            end: End::Failed,
        };
        background::tracked(&tasks, async move {
            let _permit = permit;
            let outcome = tokio::select! {
                () = cut.cancelled() => return,
                outcome = controller.sync(&work.key) => outcome,
            };
            work.end(outcome, clock.now());
        });
    }
    tasks.close();
    tasks.wait().await;
}

/// `at` and some time more. Users may ask for any time: what lies past the end of time is the end of time.
pub fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// The time from `now` to `at`; a moment more, so that the clock has passed `at` when the key comes back.
pub fn until(at: Timestamp, now: Timestamp) -> Duration {
    let left = at.duration_since(now);
    Duration::try_from(left).map_or(Duration::from_millis(1), |left| {
        left + Duration::from_millis(1)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct PanicsOnce(AtomicUsize, CancellationToken);

    impl Controller for PanicsOnce {
        type Key = &'static str;
        const NAME: &'static str = "panics-once";

        async fn sync(&self, _key: &&'static str) -> Result<Option<Timestamp>, SyncError> {
            let before = self.0.fetch_add(1, Ordering::SeqCst);
            assert_ne!(before, 0, "panics for the test");
            self.1.cancel();
            Ok(None)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_whose_work_panics_is_tried_again() {
        let stop = CancellationToken::new();
        let queue = Arc::new(Queue::new());
        queue.add("key");
        let controller = Arc::new(PanicsOnce(AtomicUsize::new(0), stop.clone()));
        drive(controller.clone(), queue, Clock::system(), stop).await;
        assert_eq!(controller.0.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn only_a_refusal_is_a_refusal() {
        let end = |code: u16| {
            let reason = if code == 409 { "Conflict" } else { "" };
            let status = kube::core::Status::failure("", reason).with_code(code);
            SyncError::Execute(ExecuteError {
                verb: "patch",
                kind: String::new(),
                sub: None,
                name: String::new(),
                source: Box::new(kube::Error::Api(Box::new(status))),
            })
            .end()
        };
        assert_eq!(end(403), End::Refused);
        assert_eq!(end(422), End::Refused);
        assert_eq!(end(409), End::Conflict);
        assert_eq!(end(429), End::PutOff);
        assert_eq!(end(503), End::Failed);
    }

    #[test]
    fn times_past_the_end_of_time_are_its_end() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(later(now, SignedDuration::from_secs(9)).as_second(), 9);
        assert_eq!(later(now, SignedDuration::MAX), Timestamp::MAX);
    }
}
