//! History goes by time, as a kube-apiserver lets etcd forget it: clients that come back late must find out that
//! they missed something on this server too, and memory is given back when nothing happens.

use std::sync::Arc;
use std::time::Duration;

use crate::http::Api;

/// How often kube-apiserver compacts etcd.
pub(crate) const COMPACT_EVERY: Duration = Duration::from_mins(5);

/// Forgets, every time, what was history the time before, until the server stops.
pub(crate) fn start(api: &Arc<Api>, every: Duration) {
    let api = Arc::clone(api);
    tokio::spawn(async move {
        let mut before = None;
        loop {
            tokio::select! {
                () = api.clock.sleep(every) => {}
                () = api.stop.cancelled() => return,
            }
            if let Some(revision) = before.replace(api.store.revision()) {
                api.store.compact(revision);
            }
        }
    });
}
