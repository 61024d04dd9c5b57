//! Deletes finished Jobs when their time to live is over.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;

use super::status::finished;
use crate::controllers::{Shared, wired};
use warp_runtime::cache::Key;
use warp_runtime::driver::{Controller, SyncError};
use warp_runtime::plan::{Plan, Propagation, Removal};

#[derive(Debug)]
pub(crate) struct FinishedJobs(Shared);

impl FinishedJobs {
    pub(crate) fn start(shared: &Shared) {
        let queue = wired(shared, Self(shared.clone()));
        shared
            .caches
            .jobs
            .on_key(&queue, |job| expiry(job).map(|_| Key::of(job)));
    }
}

impl Controller for FinishedJobs {
    type Key = Key;
    const NAME: &'static str = "ttl-after-finished-controller";

    async fn sync(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let Some(job) = self.0.caches.jobs.get(key) else {
            return Ok(None);
        };
        self.0.execute(Self::NAME, plan(&job, self.0.now())).await
    }
}

fn expiry(job: &Job) -> Option<Timestamp> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished?;
    let ended = finished(job)?.last_transition_time.as_ref()?.0;
    (job.metadata.deletion_timestamp.is_none())
        .then(|| ended + SignedDuration::from_secs(i64::from(ttl)))
}

fn plan(job: &Job, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    match expiry(job) {
        Some(at) if at <= now => {
            let options = Removal {
                grace_seconds: None,
                propagation: Some(Propagation::Foreground),
            };
            plan.delete(job, options, None);
        }
        Some(at) => plan.look_again(at),
        None => {}
    }
    plan
}
