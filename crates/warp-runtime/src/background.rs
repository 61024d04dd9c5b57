//! Work that goes on by itself. Futures are boxed before the runtime is given them: it compiles its task machinery once
//! for every type of future it sees, and here there are about a hundred.

use futures::FutureExt;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

pub fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(work.boxed())
}

/// Work whose end somebody waits for.
pub fn tracked(tasks: &TaskTracker, work: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(work.boxed());
}
