//! What every pass may read and use, made once per process.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Client;
use tokio::sync::Notify;
use warp_api::GPUWorkload;

use crate::apply::Executor;
use crate::audit::Correlation;
use crate::cache::{self, Cache};
use crate::clock::Clock;
use crate::config::Settings;
use crate::driver::Queue;
use crate::metrics::Metrics;
use crate::scheduler::{Arrivals, Verdicts};

/// Shared by the drivers and the scheduler.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) executor: Executor,
    pub(crate) correlation: Correlation,
    pub(crate) workloads: Arc<Cache<GPUWorkload>>,
    pub(crate) jobs: Arc<Cache<Job>>,
    pub(crate) pods: Arc<Cache<Pod>>,
    pub(crate) nodes: Arc<Cache<Node>>,
    pub(crate) namespaces: Arc<Cache<Namespace>>,
    pub(crate) claims: Arc<Cache<PersistentVolumeClaim>>,
    pub(crate) volumes: Arc<Cache<PersistentVolume>>,
    pub(crate) classes: Arc<Cache<StorageClass>>,
    /// `FailedCreate` Events of Jobs, by the Job's uid.
    pub(crate) refusals: Arc<Cache<Event>>,
    pub(crate) quotas: Arc<Cache<ResourceQuota>>,
    /// Workloads waiting for a pass.
    pub(crate) queue: Queue,
    /// What the scheduler last found out about workloads it could not place.
    pub(crate) verdicts: Verdicts,
    /// The order in which workloads came.
    pub(crate) arrivals: Arrivals,
    /// Wakes the scheduler.
    pub(crate) place: Notify,
}

impl Context {
    pub(crate) fn new(client: Client, clock: Clock, settings: Settings, identity: &str) -> Self {
        let metrics = Arc::new(Metrics::default());
        Self {
            executor: Executor::new(client, clock.clone(), Arc::clone(&metrics), identity),
            clock,
            settings,
            metrics,
            correlation: Correlation::new(identity),
            workloads: Arc::new(Cache::new(cache::workload())),
            jobs: Arc::new(Cache::new(cache::job())),
            pods: Arc::new(Cache::new(cache::pod())),
            nodes: Arc::new(Cache::new(cache::node())),
            namespaces: Arc::new(Cache::new(cache::as_it_is())),
            claims: Arc::new(Cache::new(cache::as_it_is())),
            volumes: Arc::new(Cache::new(cache::as_it_is())),
            classes: Arc::new(Cache::new(cache::as_it_is())),
            refusals: Arc::new(Cache::new(cache::event())),
            quotas: Arc::new(Cache::new(cache::as_it_is())),
            queue: Queue::default(),
            verdicts: Verdicts::default(),
            arrivals: Arrivals::default(),
            place: Notify::new(),
        }
    }

    /// Whether every cache has completed a list: nothing is decided before.
    pub(crate) fn synced(&self) -> bool {
        self.workloads.synced()
            && self.jobs.synced()
            && self.pods.synced()
            && self.nodes.synced()
            && self.refusals.synced()
            && self.namespaces.synced()
            && self.claims.synced()
            && self.volumes.synced()
            && self.classes.synced()
            && self.quotas.synced()
    }

    /// What the API server will not let it watch, and why.
    pub(crate) fn stuck(&self) -> Vec<String> {
        let all = [
            self.workloads.stuck(),
            self.jobs.stuck(),
            self.pods.stuck(),
            self.nodes.stuck(),
            self.refusals.stuck(),
            self.quotas.stuck(),
            self.namespaces.stuck(),
            self.claims.stuck(),
            self.volumes.stuck(),
            self.classes.stuck(),
        ];
        all.into_iter().flatten().collect()
    }
}
