//! Runs one controller: takes keys from its queue, has each worked on by at most one worker, and tries failures again
//! later. What a controller decides is its own affair.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Clock;
use super::execute::ExecuteError;
use super::queue::Queue;

#[derive(Debug, thiserror::Error)]
pub(crate) enum SyncError {
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    #[error("failed to read {what}: {source}")]
    Read {
        what: String,
        source: Box<kube::Error>,
    },
}

/// One controller: a name, and what to do about one key.
pub(crate) trait Controller: Send + Sync + 'static {
    type Key: Ord + Clone + Debug + Send + Sync + 'static;
    const NAME: &'static str;
    const WORKERS: usize = 8;

    /// Looks at `key` and does what is to be done; says when to look again.
    fn sync(
        &self,
        key: &Self::Key,
    ) -> impl Future<Output = Result<Option<Timestamp>, SyncError>> + Send;
}

/// Works off `queue` until `shutdown`, then waits for the workers to end.
pub(crate) async fn drive<C: Controller>(
    controller: Arc<C>,
    queue: Arc<Queue<C::Key>>,
    clock: Clock,
    shutdown: CancellationToken,
) {
    let workers = Arc::new(Semaphore::new(C::WORKERS));
    let tasks = TaskTracker::new();
    loop {
        let Ok(permit) = workers.clone().acquire_owned().await else {
            break;
        };
        let key = tokio::select! {
            () = shutdown.cancelled() => break,
            key = queue.next() => key,
        };
        let (controller, queue, clock, shutdown) = (
            controller.clone(),
            queue.clone(),
            clock.clone(),
            shutdown.clone(),
        );
        tasks.spawn(async move {
            let _permit = permit;
            let outcome = tokio::select! {
                () = shutdown.cancelled() => return,
                outcome = controller.sync(&key) => outcome,
            };
            let failed = match outcome {
                Ok(again) => {
                    if let Some(at) = again {
                        queue.add_after(key.clone(), until(at, clock.now()));
                    }
                    false
                }
                Err(error) => {
                    let conflict =
                        matches!(&error, SyncError::Execute(error) if error.is_conflict());
                    if conflict {
                        tracing::debug!(controller = C::NAME, ?key, %error, "changed meanwhile");
                    } else {
                        tracing::warn!(controller = C::NAME, ?key, %error, "will try again");
                    }
                    true
                }
            };
            queue.done(&key, failed);
        });
    }
    tasks.close();
    tasks.wait().await;
}

/// The time from `now` to `at`; a moment more, so that the clock has passed `at` when the key comes back.
pub(crate) fn until(at: Timestamp, now: Timestamp) -> Duration {
    let left = at.duration_since(now);
    Duration::try_from(left).map_or(Duration::from_millis(1), |left| {
        left + Duration::from_millis(1)
    })
}
