//! The caches of the kinds that are queued, and all their objects together.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Resource, ResourceExt};
use warp_api::label;
use warp_runtime::cache::{Cache, Key, Shape, Source};
use warp_runtime::runtime::Runtime;
use warp_runtime::sweep::{Sweep, SweepRegistration};

use super::kinds::{JOB, JOB_SET, MPI_JOB, PYTORCH_JOB, QueuedKind, RAY_JOB};
use super::queued::{Of, Queued, Row};
use super::{event_key, line_matters, pod_key, queued_at};
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

/// Every kind's objects. What is not installed has none.
#[derive(Debug)]
pub(crate) struct Caches {
    pub(crate) jobs: Cache<Of<Job>>,
    pub(crate) job_sets: Cache<Of<JobSet>>,
    pub(crate) pytorch_jobs: Cache<Of<PyTorchJob>>,
    pub(crate) mpi_jobs: Cache<Of<MpiJob>>,
    pub(crate) ray_jobs: Cache<Of<RayJob>>,
}

/// Does the same with the cache of every kind.
macro_rules! each {
    ($caches:expr, |$cache:ident| $body:expr) => {{
        let $cache = &$caches.jobs;
        $body;
        let $cache = &$caches.job_sets;
        $body;
        let $cache = &$caches.pytorch_jobs;
        $body;
        let $cache = &$caches.mpi_jobs;
        $body;
        let $cache = &$caches.ray_jobs;
        $body;
    }};
}

impl Caches {
    /// Objects of `namespace`, or of all, that say anything of the queue.
    pub(crate) fn follow(runtime: &mut Runtime, namespace: Option<&str>) -> Self {
        Self {
            jobs: runtime.cache(source::<Job>(namespace), shape()),
            job_sets: runtime.cache_if_served(source::<JobSet>(namespace), shape()),
            pytorch_jobs: runtime.cache_if_served(source::<PyTorchJob>(namespace), shape()),
            mpi_jobs: runtime.cache_if_served(source::<MpiJob>(namespace), shape()),
            ray_jobs: runtime.cache_if_served(source::<RayJob>(namespace), shape()),
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Queued>> {
        let mut all = Vec::new();
        each!(self, |cache| all
            .extend(cache.all().iter().map(|one| one.shared())));
        all
    }

    pub(crate) fn all_of(&self, kind: &QueuedKind) -> Vec<Arc<Queued>> {
        let mut all = Vec::new();
        each!(self, |cache| if row_of(cache).kind == kind.kind {
            all.extend(cache.all().iter().map(|one| one.shared()));
        });
        all
    }

    /// The object of a kind that a pod belongs to.
    pub(crate) fn maker_of(&self, kind: &QueuedKind, pod: &Pod) -> Option<Key> {
        let mut found = None;
        each!(self, |cache| if row_of(cache).kind == kind.kind {
            found = pod_key(cache, pod);
        });
        found
    }

    /// The object of a kind that an Event is about.
    pub(crate) fn subject_of(&self, kind: &QueuedKind, event: &Event) -> Option<Key> {
        let mut found = None;
        each!(self, |cache| if row_of(cache).kind == kind.kind {
            found = event_key(cache, event);
        });
        found
    }

    pub(crate) fn get(&self, kind: &QueuedKind, key: &Key) -> Option<Arc<Queued>> {
        let mut found = None;
        each!(self, |cache| if row_of(cache).kind == kind.kind {
            found = cache.get(key).map(|one| one.shared());
        });
        found
    }

    pub(crate) fn is_synced(&self) -> bool {
        let mut synced = true;
        each!(self, |cache| synced &= cache.is_synced());
        synced
    }

    /// Calls `listener` with the old and the new state of every object that changes.
    pub(crate) fn listen<L>(&self, listener: L)
    where
        L: Fn(Option<&Queued>, Option<&Queued>) + Clone + Send + Sync + 'static,
    {
        each!(self, |cache| {
            let listener = listener.clone();
            cache.listen(move |old, new| {
                listener(old.map(|old| &**old), new.map(|new| &**new));
            });
        });
    }

    /// Has a loop be woken by what may change a decision about objects of a kind.
    pub(crate) fn wake<S: Sweep>(
        &self,
        kind: &QueuedKind,
        sweep: SweepRegistration<S>,
    ) -> SweepRegistration<S> {
        let mut sweep = sweep;
        each!(self, |cache| if row_of(cache).kind == kind.kind {
            sweep = sweep.watches(cache, |old, new| {
                line_matters(old.map(|old| &**old), new.map(|new| &**new))
            });
        });
        sweep
    }

    /// Notes when objects came.
    pub(crate) fn note_arrivals(
        &self,
        note: impl Fn(&str, Option<jiff::Timestamp>) + Clone + Send + Sync + 'static,
    ) {
        self.listen(move |_, new| {
            if let Some((new, uid)) = new.and_then(|new| Some((new, new.uid()?))) {
                note(&uid, queued_at(new));
            }
        });
    }
}

fn row_of<R: Row>(_: &Cache<Of<R>>) -> &'static QueuedKind {
    R::KIND
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
