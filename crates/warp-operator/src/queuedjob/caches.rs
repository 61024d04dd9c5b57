//! The caches of the kinds that are queued, and all their objects together.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Resource, ResourceExt};
use warp_api::label;
use warp_runtime::cache::{Cache, Key, Shape, Source};
use warp_runtime::runtime::Runtime;

use super::kinds::{JOB, JOB_SET, MPI_JOB, PYTORCH_JOB, QueuedKind, RAY_JOB};
use super::queued::{Of, Queued, Row};
use super::{event_key, line_matters, pod_key, queued_at, register_kind};
use crate::context::Context;
use crate::placement::Scheduler;
use crate::shapes::trim_template;

/// Objects by their uid.
pub(super) const BY_UID: usize = 0;

/// Names a row as a type.
macro_rules! rows {
    ($($name:ident = $kind:expr;)*) => {$(
        #[derive(Debug)]
        pub(crate) struct $name;

        impl Row for $name {
            const KIND: &'static QueuedKind = $kind;
        }
    )*};
}

rows! {
    Job = JOB;
    JobSet = JOB_SET;
    PyTorchJob = PYTORCH_JOB;
    MpiJob = MPI_JOB;
    RayJob = RAY_JOB;
}

/// Hears of the old and the new state of an object that changes.
type Listener = Arc<dyn Fn(Option<&Queued>, Option<&Queued>) + Send + Sync>;

/// The objects of one kind, for those who need not know their type.
trait Objects: Debug + Send + Sync {
    fn kind(&self) -> &'static QueuedKind;
    fn is_synced(&self) -> bool;
    fn all(&self) -> Vec<Arc<Queued>>;
    fn get(&self, key: &Key) -> Option<Arc<Queued>>;
    /// The object a pod belongs to.
    fn maker_of(&self, pod: &Pod) -> Option<Key>;
    /// The object an Event is about.
    fn subject_of(&self, event: &Event) -> Option<Key>;
    fn listen(&self, listener: Listener);
    /// Has the scheduler be woken by what may change a decision about them.
    fn wake(&self, scheduler: Scheduler) -> Scheduler;
    /// Registers the controller of the kind.
    fn register(&self, runtime: &mut Runtime, cx: &Arc<Context>);
}

impl<R: Row> Objects for Cache<Of<R>> {
    fn kind(&self) -> &'static QueuedKind {
        R::KIND
    }

    fn is_synced(&self) -> bool {
        self.is_synced()
    }

    fn all(&self) -> Vec<Arc<Queued>> {
        self.all().iter().map(|one| one.shared()).collect()
    }

    fn get(&self, key: &Key) -> Option<Arc<Queued>> {
        self.get(key).map(|one| one.shared())
    }

    fn maker_of(&self, pod: &Pod) -> Option<Key> {
        pod_key(self, pod)
    }

    fn subject_of(&self, event: &Event) -> Option<Key> {
        event_key(self, event)
    }

    fn listen(&self, listener: Listener) {
        self.listen(move |old, new| listener(old.map(|old| &**old), new.map(|new| &**new)));
    }

    fn wake(&self, scheduler: Scheduler) -> Scheduler {
        scheduler.watches(self, |old, new| {
            line_matters(old.map(|old| &**old), new.map(|new| &**new))
        })
    }

    fn register(&self, runtime: &mut Runtime, cx: &Arc<Context>) {
        register_kind(runtime, cx, self);
    }
}

/// Every kind's objects. What is not installed has none.
#[derive(Debug)]
pub(crate) struct Caches {
    /// Those of the one kind that every cluster has, for who waits until it can be read.
    pub(crate) jobs: Cache<Of<Job>>,
    all: Vec<Box<dyn Objects>>,
}

impl Caches {
    /// Objects of `namespace`, or of all, that say anything of the queue.
    pub(crate) fn follow(runtime: &mut Runtime, namespace: Option<&str>) -> Self {
        let jobs = runtime.cache(source::<Job>(namespace), shape());
        let all: Vec<Box<dyn Objects>> = vec![
            Box::new(jobs.clone()),
            if_served::<JobSet>(runtime, namespace),
            if_served::<PyTorchJob>(runtime, namespace),
            if_served::<MpiJob>(runtime, namespace),
            if_served::<RayJob>(runtime, namespace),
        ];
        Self { jobs, all }
    }

    /// Registers the controller of every kind.
    pub(crate) fn register(&self, runtime: &mut Runtime, cx: &Arc<Context>) {
        for objects in &self.all {
            objects.register(runtime, cx);
        }
    }

    fn of(&self, kind: &QueuedKind) -> Option<&dyn Objects> {
        let mut all = self.all.iter();
        let found = all.find(|objects| objects.kind().kind == kind.kind);
        found.map(|objects| &**objects)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Queued>> {
        self.all.iter().flat_map(|objects| objects.all()).collect()
    }

    pub(crate) fn all_of(&self, kind: &QueuedKind) -> Vec<Arc<Queued>> {
        self.of(kind).map(Objects::all).unwrap_or_default()
    }

    /// The object of a kind that a pod belongs to.
    pub(crate) fn maker_of(&self, kind: &QueuedKind, pod: &Pod) -> Option<Key> {
        self.of(kind)?.maker_of(pod)
    }

    /// The object of a kind that an Event is about.
    pub(crate) fn subject_of(&self, kind: &QueuedKind, event: &Event) -> Option<Key> {
        self.of(kind)?.subject_of(event)
    }

    pub(crate) fn get(&self, kind: &QueuedKind, key: &Key) -> Option<Arc<Queued>> {
        self.of(kind)?.get(key)
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.all.iter().all(|objects| objects.is_synced())
    }

    /// Calls `listener` with the old and the new state of every object that changes.
    pub(crate) fn listen(
        &self,
        listener: impl Fn(Option<&Queued>, Option<&Queued>) + Send + Sync + 'static,
    ) {
        let listener: Listener = Arc::new(listener);
        for objects in &self.all {
            objects.listen(Arc::clone(&listener));
        }
    }

    /// Has the scheduler be woken by what may change a decision about objects of a kind.
    pub(crate) fn wake(&self, kind: &QueuedKind, scheduler: Scheduler) -> Scheduler {
        match self.of(kind) {
            Some(objects) => objects.wake(scheduler),
            None => scheduler,
        }
    }

    /// Notes when objects came.
    pub(crate) fn note_arrivals(
        &self,
        note: impl Fn(&str, Option<jiff::Timestamp>) + Send + Sync + 'static,
    ) {
        self.listen(move |_, new| {
            if let Some((new, uid)) = new.and_then(|new| Some((new, new.uid()?))) {
                note(&uid, queued_at(new));
            }
        });
    }
}

/// The objects of a kind that need not be installed.
fn if_served<R: Row>(runtime: &mut Runtime, namespace: Option<&str>) -> Box<dyn Objects> {
    Box::new(runtime.cache_if_served(source::<R>(namespace), shape::<R>()))
}

fn source<R: Row>(namespace: Option<&str>) -> Source {
    Source::within::<Of<R>>(namespace)
        .labels(label::QUEUE)
        .with_managed_fields()
}

/// Besides what their pods ask for, the volumes, which decide where they can run.
fn shape<R: Row>() -> Shape<Of<R>> {
    Shape {
        keep: |_| true,
        trim: |object: &mut Of<R>| {
            let job = object.get_mut();
            if let Some(fields) = job.meta_mut().managed_fields.as_mut() {
                fields.retain(|entry| entry.subresource.is_none());
                for entry in fields.iter_mut() {
                    entry.fields_v1 = None;
                }
            }
            if job.over() {
                job.groups.clear();
                job.spec = None;
            }
            for group in &mut job.groups {
                trim_template(&mut group.pod);
            }
        },
        indexes: &[|object: &Of<R>| object.metadata.uid.clone()],
    }
}
