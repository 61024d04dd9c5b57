//! Jobs of others that ask to be queued: a `batch/v1` Job with the label `gpu.warp.dev/queue: "true"` that was created
//! suspended waits for its place like any workload, is pinned there, resumed, and suspended again for work of higher
//! priority.
//!
//! It never chooses a node, never touches a Job without the label or one that belongs to a kind of ours, and never undoes
//! what somebody else does to `spec.suspend`: that is told, not fought over.

mod ask;
mod claim;
mod evict;
mod objects;
mod observe;
mod plan;
mod say;
mod standing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Resource, ResourceExt};
use warp_api::label;
use warp_runtime::cache::{Cache, Key};
use warp_runtime::plan::Plan;
use warp_runtime::reconcile::Reconcile;
use warp_runtime::runtime::{Registration, Runtime};

use crate::context::Context;
use observe::{Seen, see};

pub(crate) use ask::{Ask, ask, patient, priority, without};
pub(crate) use claim::{Asking, Claims, ends_of};
pub(crate) use evict::Running;
pub(crate) use objects::promises;
pub(crate) use plan::refused;
pub(crate) use say::of_a_job;
pub(crate) use standing::{Standing, standing, waits};

/// Names the controller in logs, metrics, readiness and wake-ups.
pub(crate) const NAME: &str = "queuedjob";
/// Field manager of the annotations.
const MANAGER: &str = "warp-queuedjob";

/// The kind as the runtime runs it.
#[derive(Debug)]
struct QueuedJobs {
    cx: Arc<Context>,
}

/// Registers the kind: what it reads, and which changes concern which Jobs.
pub(crate) fn register(runtime: &mut Runtime, cx: &Arc<Context>) {
    let kind = QueuedJobs { cx: Arc::clone(cx) };
    let (owners, refused, everyone) = (cx.queued.clone(), cx.queued.clone(), cx.queued.clone());
    runtime.register(
        Registration::of(kind, &cx.queued)
            .watches(&cx.pods, move |pod| {
                pod_key(&owners, pod).into_iter().collect()
            })
            .watches(&cx.refusals, move |event| {
                event_key(&refused, event).into_iter().collect()
            })
            .watches_changes(&cx.priorities, move |old, new| {
                let value = |class: Option<&k8s_openapi::api::scheduling::v1::PriorityClass>| {
                    class.map(|class| class.value)
                };
                if value(old) == value(new) {
                    return Vec::new();
                }
                let jobs = everyone.all();
                jobs.iter().map(|job| Key::of(&**job)).collect()
            }),
    );
}

impl Reconcile for QueuedJobs {
    type Object = Job;
    type Seen = Seen;
    const NAME: &'static str = NAME;
    const MANAGER: &'static str = MANAGER;

    async fn observe(&self, job: &Arc<Job>) -> Seen {
        see(&self.cx, job)
    }

    fn plan(&self, job: &Job, seen: &Seen, now: Timestamp) -> Plan {
        plan::plan(job, seen, &self.cx.settings, now)
    }
}

/// The queued Job a pod belongs to.
fn pod_key(jobs: &Cache<Job>, pod: &Pod) -> Option<Key> {
    let owner = pod.owner_references().iter().find(|owner| {
        owner.controller == Some(true) && owner.kind == "Job" && owner.api_version == "batch/v1"
    })?;
    let key = Key::new(&pod.namespace()?, &owner.name);
    jobs.get(&key).map(|_| key)
}

/// The queued Job an Event is about.
fn event_key(jobs: &Cache<Job>, event: &Event) -> Option<Key> {
    let object = &event.involved_object;
    let key = Key::new(object.namespace.as_deref()?, object.name.as_deref()?);
    jobs.get(&key).map(|_| key)
}

/// When it came, as its annotation says it.
pub(crate) fn queued_at(job: &Job) -> Option<Timestamp> {
    job.annotations().get(label::QUEUED_AT)?.parse().ok()
}

/// Whether a change of a Job can change a decision. What is only said about it cannot.
pub(crate) fn line_matters(old: Option<&Job>, new: Option<&Job>) -> bool {
    let form = |job: &Job| {
        let status = job.status.as_ref();
        let said = [
            label::NODES,
            label::REQUEUED,
            label::PRIORITY,
            label::PREEMPTIBLE,
            label::PROVIDER,
            label::REFUSED_NODES,
        ];
        let said = said.map(|name| job.annotations().get(name).cloned());
        (
            job.uid(),
            job.meta().generation,
            job.meta().deletion_timestamp.is_some(),
            job.labels().get(label::PROVIDER).cloned(),
            said,
            crate::workload::over(job),
            standing::is_seen_suspended(job),
            status.is_some_and(|status| status.start_time.is_some()),
            status.and_then(|status| status.succeeded),
        )
    };
    old.map(form) != new.map(form)
}
