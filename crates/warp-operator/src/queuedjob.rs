//! Work of others that asks to be queued: a `batch/v1` Job, JobSet, PyTorchJob, MPIJob or RayJob with the label
//! `gpu.warp.dev/queue: "true"` that was created suspended waits for its place like any workload, is pinned there, resumed,
//! and suspended again for work of higher priority. `kinds.rs` has one row for each kind, `queued.rs` what is read by it;
//! the rest knows no kind.
//!
//! It never chooses a node, never touches an object without the label or one that belongs to a kind of ours, and never
//! undoes what somebody else does to `suspend`: that is told, not fought over.

mod ask;
mod caches;
mod claim;
mod evict;
mod kinds;
mod objects;
mod observe;
mod plan;
mod queued;
mod say;
mod standing;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Resource, ResourceExt};
use warp_api::label;
use warp_runtime::cache::{Cache, Key};
use warp_runtime::plan::Plan;
use warp_runtime::reconcile::Reconcile;
use warp_runtime::runtime::{Registration, Runtime};

use crate::context::Context;
use caches::BY_UID;
use observe::{Seen, see};
use queued::{Of, Row};

pub(crate) use ask::{Ask, ask, patient, priority, without};
pub(crate) use caches::Caches;
pub(crate) use claim::{Asking, Claims, ends_of};
pub(crate) use evict::Running;
pub use kinds::{End, KINDS, QueuedKind, kind_named};
pub(crate) use objects::promises;
pub(crate) use plan::refused;
pub use queued::Queued;
pub(crate) use say::in_words_of;
pub(crate) use standing::{Standing, standing, waits};

/// Field manager of the annotations.
const MANAGER: &str = "warp-queuedjob";

/// One kind as the runtime runs it.
#[derive(Debug)]
struct Kind<R> {
    cx: Arc<Context>,
    row: PhantomData<R>,
}

/// Registers every kind: what it reads, and which changes concern which objects.
pub(crate) fn register(runtime: &mut Runtime, cx: &Arc<Context>) {
    cx.queued.register(runtime, cx);
}

fn register_kind<R: Row>(runtime: &mut Runtime, cx: &Arc<Context>, objects: &Cache<Of<R>>) {
    let kind = Kind {
        cx: Arc::clone(cx),
        row: PhantomData,
    };
    let (owners, refused, everyone) = (objects.clone(), objects.clone(), objects.clone());
    runtime.register(
        Registration::of(kind, objects)
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

impl<R: Row> Reconcile for Kind<R> {
    type Object = Of<R>;
    type Seen = Seen;
    const NAME: &'static str = R::KIND.controller;
    const MANAGER: &'static str = MANAGER;

    async fn observe(&self, job: &Arc<Of<R>>) -> Seen {
        see(&self.cx, job)
    }

    fn plan(&self, job: &Of<R>, seen: &Seen, now: Timestamp) -> Plan {
        plan::plan(job, seen, &self.cx.settings, now)
    }
}

/// The object a pod belongs to: a Job by its owner, others by the label their pods carry.
fn pod_key<R: Row>(objects: &Cache<Of<R>>, pod: &Pod) -> Option<Key> {
    if R::KIND.is_job() {
        let owner = pod.owner_references().iter().find(|owner| {
            owner.controller == Some(true) && owner.kind == "Job" && owner.api_version == "batch/v1"
        })?;
        let key = Key::new(&pod.namespace()?, &owner.name);
        return objects.get(&key).map(|_| key);
    }
    let uid = pod.labels().get(label::QUEUED_UID)?;
    let found = objects.by(BY_UID, uid);
    let found = found
        .iter()
        .find(|one| one.metadata.namespace == pod.metadata.namespace)?;
    Some(Key::in_meta(&found.metadata))
}

/// The object an Event is about.
fn event_key<R: Row>(objects: &Cache<Of<R>>, event: &Event) -> Option<Key> {
    let object = &event.involved_object;
    let key = Key::new(object.namespace.as_deref()?, object.name.as_deref()?);
    let found = objects.get(&key)?;
    (found.uid() == object.uid).then_some(key)
}

/// When it came, as its annotation says it.
pub(crate) fn queued_at(job: &Queued) -> Option<Timestamp> {
    job.annotations().get(label::QUEUED_AT)?.parse().ok()
}

/// Whether a change of an object can change a decision. What is only said about it cannot.
pub(crate) fn line_matters(old: Option<&Queued>, new: Option<&Queued>) -> bool {
    let form = |job: &Queued| {
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
            (job.asks(), job.suspended()),
            said,
            job.over(),
            job.seen_suspended,
            job.started.is_some(),
            job.succeeded,
        )
    };
    old.map(form) != new.map(form)
}
