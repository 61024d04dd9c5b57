//! Events go some time after their last write, as a cluster's do: they are a diary, and a server
//! that runs for weeks must not keep it all.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::http::Api;

const TABLE: &str = "events";

/// Removes old events until the server stops.
pub(crate) fn start(api: &Arc<Api>, keep: Duration) {
    let api = Arc::clone(api);
    // Often enough that an event outlives its time by little.
    let pause = (keep / 12).max(Duration::from_secs(1));
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = api.clock.sleep(pause) => sweep(&api, keep).await,
                () = api.stop.cancelled() => return,
            }
        }
    });
}

async fn sweep(api: &Api, keep: Duration) {
    let table = api.store.table(TABLE);
    let Ok(keep) = SignedDuration::try_from(keep) else {
        return;
    };
    let Ok(limit) = api.clock.now().checked_sub(keep) else {
        return;
    };
    for stored in table.all(None) {
        if last_write(&stored.value()).is_some_and(|at| at < limit) {
            // One that was written meanwhile stays.
            let _ = api
                .store
                .delete(&table, stored.redraft(), stored.revision)
                .await;
        }
    }
}

/// The newest time the event speaks of.
fn last_write(event: &Value) -> Option<Timestamp> {
    let meta = &event["metadata"];
    let managed = meta["managedFields"].as_array().into_iter().flatten();
    let times = [
        &meta["creationTimestamp"],
        &event["lastTimestamp"],
        &event["eventTime"],
        &event["series"]["lastObservedTime"],
    ];
    managed
        .map(|entry| &entry["time"])
        .chain(times)
        .filter_map(Value::as_str)
        .filter_map(|text| text.parse().ok())
        .max()
}
