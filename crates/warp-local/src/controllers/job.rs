//! Jobs: runs pods to completion and counts each exactly once.
//!
//! A finished pod is kept by the finalizer `batch.kubernetes.io/job-tracking` until its uid stands in the Job's status;
//! only then is the finalizer dropped, and only when it is gone does the uid become a number. A crash between any two
//! steps loses and doubles nothing.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use self::plan::{Backoff, Seen, plan};
use super::ownership::controller_of;
use super::{PODS_BY_OWNER, Shared, wired};
use warp_runtime::cache::Key;
use warp_runtime::driver::{Controller, SyncError};
use warp_runtime::object_memory::ObjectMemory;
use warp_runtime::plan::{Encoding, Plan};

mod index;
mod plan;
mod pods;
mod policy;
mod status;
#[cfg(test)]
mod tests;
pub(crate) mod ttl;

pub(crate) const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Pods change in crowds: one look a moment later sees them all.
const GATHER: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Job(Key),
    /// A pod that still carries the finalizer though no Job will ever count it.
    Orphan(Key),
}

#[derive(Debug)]
pub(crate) struct Jobs {
    shared: Shared,
    /// Back-off of failed pods. Lost on restart, as the real controller's is.
    backoffs: ObjectMemory<Job, Backoff>,
}

impl Jobs {
    pub(crate) fn start(shared: &Shared) {
        let queue = wired(
            shared,
            Self {
                shared: shared.clone(),
                backoffs: ObjectMemory::of(&shared.caches.jobs),
            },
        );
        shared
            .caches
            .jobs
            .on_key(&queue, |job| Some(Subject::Job(Key::of(job))));
        let jobs = shared.caches.jobs.clone();
        let pod_queue = queue.clone();
        shared.caches.pods.listen(move |old, new| {
            let job_of = |pod: &Pod| {
                let owner = controller_of(&pod.metadata).filter(|owner| owner.kind == "Job")?;
                Some(Key::new(pod.metadata.namespace.as_deref()?, &owner.name))
            };
            let (before, after) = (old.and_then(&job_of), new.and_then(job_of));
            if before != after
                && let Some(before) = before
            {
                pod_queue.add(Subject::Job(before));
            }
            let Some(pod) = new else {
                return;
            };
            if is_tracked(pod) && after.as_ref().and_then(|key| jobs.get(key)).is_none() {
                pod_queue.add(Subject::Orphan(Key::of(pod)));
            }
            match after {
                Some(after) => pod_queue.add_after(Subject::Job(after), GATHER),
                None if controller_of(&pod.metadata).is_none() => {
                    enqueue_adopters(&jobs, pod, &pod_queue);
                }
                None => {}
            }
        });
        let pods = shared.caches.pods.clone();
        shared.caches.jobs.listen(move |old, new| {
            // The pods of a Job that is gone must not be kept by a finalizer nobody will drop.
            let (Some(job), None) = (old, new) else {
                return;
            };
            for pod in pods.by(
                PODS_BY_OWNER,
                job.metadata.uid.as_deref().unwrap_or_default(),
            ) {
                if is_tracked(&pod) {
                    queue.add(Subject::Orphan(Key::of(&*pod)));
                }
            }
        });
    }

    async fn sync_job(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let Some(job) = self.shared.caches.jobs.get(key) else {
            return Ok(None);
        };
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let foreign = job
            .spec
            .as_ref()
            .and_then(|spec| spec.managed_by.as_deref());
        if foreign.is_some_and(|manager| manager != "kubernetes.io/job-controller") {
            return Ok(None);
        }
        if status::finished(&job).is_some() {
            self.backoffs.forget(&job);
            return Ok(None);
        }
        let pods = &self.shared.caches.pods;
        let mut candidates = pods.by(PODS_BY_OWNER, &uid);
        candidates.extend(pods.by(PODS_BY_OWNER, &super::ownership::orphans_of(&key.namespace)));
        let backoff = self.backoffs.get(&job).unwrap_or_default();
        let seen = Seen {
            job: &job,
            candidates,
            backoff,
        };
        let (plan, backoff) = plan(&seen, self.shared.now());
        self.backoffs.set(&job, backoff);
        self.shared.execute(Self::NAME, plan).await
    }

    async fn free(&self, key: &Key) -> Result<Option<Timestamp>, SyncError> {
        let caches = &self.shared.caches;
        let Some(pod) = caches.pods.get(key).filter(|pod| is_tracked(pod)) else {
            return Ok(None);
        };
        if let Some(owner) = controller_of(&pod.metadata).filter(|owner| owner.kind == "Job") {
            let job = caches.jobs.get(&Key::new(&key.namespace, &owner.name));
            if job.is_some_and(|job| job.metadata.uid.as_deref() == Some(&owner.uid)) {
                return Ok(None);
            }
        }
        let mut plan = Plan::default();
        drop_finalizer(&pod, &mut plan);
        self.shared.execute(Self::NAME, plan).await
    }
}

impl Controller for Jobs {
    type Key = Subject;
    const NAME: &'static str = "job-controller";

    async fn sync(&self, subject: &Subject) -> Result<Option<Timestamp>, SyncError> {
        match subject {
            Subject::Job(key) => self.sync_job(key).await,
            Subject::Orphan(key) => self.free(key).await,
        }
    }
}

/// A pod without a controller may be one a Job's selector chooses.
fn enqueue_adopters(
    jobs: &warp_runtime::cache::Cache<Job>,
    pod: &Pod,
    queue: &warp_runtime::queue::Queue<Subject>,
) {
    if pod.metadata.labels.is_none() {
        return;
    }
    for job in jobs.in_namespace(pod.metadata.namespace.as_deref().unwrap_or_default()) {
        let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        if selector.is_some_and(|selector| {
            super::ownership::selects(selector, pod.metadata.labels.as_ref())
        }) {
            queue.add(Subject::Job(Key::of(&*job)));
        }
    }
}

fn is_tracked(pod: &Pod) -> bool {
    pod.metadata
        .finalizers
        .iter()
        .flatten()
        .any(|name| name == FINALIZER)
}

fn drop_finalizer(pod: &Pod, plan: &mut Plan) {
    let patch = json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": [FINALIZER] } });
    plan.patch(pod, Encoding::Strategic, patch);
}
