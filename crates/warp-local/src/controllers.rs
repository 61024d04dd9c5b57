//! The controllers that make an API server behave like a cluster. They see it only through a [`kube::Client`], so they
//! run the same in front of the embedded server and in front of a real kube-apiserver.
//!
//! Each controller looks at shared caches, decides with a pure `plan` function, and has the one executor act. [`run`]
//! starts them all.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    ReplicationController, ResourceQuota, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Resource;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use warp_runtime::background;
use warp_runtime::cache::store::Store;
use warp_runtime::cache::{Cache, Source, fill};
use warp_runtime::driver::{Controller, SyncError, drive};
use warp_runtime::events::Recorder;
use warp_runtime::execute::{Executor, Followed};
use warp_runtime::pass::Pass;
use warp_runtime::plan::{Note, Plan};
use warp_runtime::queue::Queue;

use self::object_counts::ObjectCounts;

mod accounts;
mod deployment;
mod disruption;
mod endpoints;
mod garbage;
mod job;
mod namespace;
mod node;
mod object_counts;
pub(crate) mod ownership;
mod pod_gc;
pub(crate) mod pods;
mod quota;
mod replicaset;
mod served_kinds;
mod statefulset;
mod volumes;

pub use self::volumes::PROVISIONER;
pub use warp_apiserver::clock::Clock;
pub(crate) use warp_runtime::{driver as drive, events, plan};

/// What can be chosen about the controllers.
#[derive(Clone, Debug)]
pub struct Options {
    /// The API server's CA certificate in PEM, published in every namespace as `kube-root-ca.crt`.
    pub root_ca: Option<String>,
    /// Where the volumes of claims are made; none leaves claims pending.
    pub volumes: Option<PathBuf>,
    /// How long a node may be silent before it counts as lost.
    pub node_grace: Duration,
    /// Terminated pods are removed, oldest first, beyond this many.
    pub terminated_pods: usize,
    /// Place ordinary pods on nodes.
    pub scheduler: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            root_ca: None,
            volumes: None,
            node_grace: Duration::from_secs(50),
            terminated_pods: 12_500,
            scheduler: true,
        }
    }
}

/// Pods by the uid of their controller.
pub(crate) const PODS_BY_OWNER: usize = 0;
/// Pods by the node they are bound to.
pub(crate) const PODS_BY_NODE: usize = 1;
/// Objects of other kinds by the uid of their controller.
pub(crate) const BY_OWNER: usize = 0;

/// One cache per kind, shared by all controllers and the scheduler.
#[derive(Debug)]
pub(crate) struct Caches {
    pub(crate) namespaces: Cache<Namespace>,
    pub(crate) service_accounts: Cache<ServiceAccount>,
    pub(crate) root_cas: Cache<ConfigMap>,
    pub(crate) pods: Cache<Pod>,
    pub(crate) nodes: Cache<Node>,
    pub(crate) leases: Cache<Lease>,
    pub(crate) jobs: Cache<Job>,
    pub(crate) replica_sets: Cache<ReplicaSet>,
    pub(crate) stateful_sets: Cache<StatefulSet>,
    pub(crate) controller_revisions: Cache<ControllerRevision>,
    pub(crate) replication_controllers: Cache<ReplicationController>,
    pub(crate) deployments: Cache<Deployment>,
    pub(crate) budgets: Cache<PodDisruptionBudget>,
    pub(crate) quotas: Cache<ResourceQuota>,
    pub(crate) services: Cache<Service>,
    pub(crate) endpoint_slices: Cache<EndpointSlice>,
    pub(crate) claims: Cache<PersistentVolumeClaim>,
    pub(crate) volumes: Cache<PersistentVolume>,
    pub(crate) storage_classes: Cache<StorageClass>,
}

impl Caches {
    fn new() -> Self {
        Self {
            namespaces: Cache::new(&[]),
            service_accounts: Cache::new(&[]),
            root_cas: Cache::new(&[]),
            pods: Cache::new(&[ownership::controller_uid, |pod: &Pod| {
                pod.spec.as_ref()?.node_name.clone()
            }]),
            nodes: Cache::new(&[]),
            leases: Cache::new(&[]),
            jobs: Cache::new(&[]),
            replica_sets: Cache::new(&[ownership::controller_uid]),
            stateful_sets: Cache::new(&[]),
            controller_revisions: Cache::new(&[ownership::controller_uid]),
            replication_controllers: Cache::new(&[]),
            deployments: Cache::new(&[]),
            budgets: Cache::new(&[]),
            quotas: Cache::new(&[]),
            services: Cache::new(&[]),
            endpoint_slices: Cache::new(&[]),
            claims: Cache::new(&[]),
            volumes: Cache::new(&[]),
            storage_classes: Cache::new(&[]),
        }
    }

    fn followed(&self) -> Followed {
        let mut followed = Followed::default();
        followed.add(&self.namespaces);
        followed.add(&self.service_accounts);
        followed.add(&self.root_cas);
        followed.add(&self.pods);
        followed.add(&self.nodes);
        followed.add(&self.jobs);
        followed.add(&self.replica_sets);
        followed.add(&self.stateful_sets);
        followed.add(&self.controller_revisions);
        followed.add(&self.deployments);
        followed.add(&self.budgets);
        followed.add(&self.quotas);
        followed.add(&self.endpoint_slices);
        followed.add(&self.claims);
        followed.add(&self.volumes);
        followed
    }

    fn fill(&self, shared: &Shared) {
        shared.fill(Source::all::<Namespace>(), &self.namespaces);
        shared.fill(
            Source::all::<ServiceAccount>().fields("metadata.name=default"),
            &self.service_accounts,
        );
        let root_cas =
            Source::all::<ConfigMap>().fields(&format!("metadata.name={}", accounts::ROOT_CA));
        shared.fill(root_cas, &self.root_cas);
        shared.fill(Source::all::<Pod>(), &self.pods);
        shared.fill(Source::all::<Node>(), &self.nodes);
        shared.fill(Source::all::<Lease>(), &self.leases);
        shared.fill(Source::all::<Job>(), &self.jobs);
        shared.fill(Source::all::<ReplicaSet>(), &self.replica_sets);
        shared.fill(Source::all::<StatefulSet>(), &self.stateful_sets);
        let revisions = Source::all::<ControllerRevision>();
        shared.fill(revisions, &self.controller_revisions);
        let controllers = Source::all::<ReplicationController>();
        shared.fill(controllers, &self.replication_controllers);
        shared.fill(Source::all::<Deployment>(), &self.deployments);
        shared.fill(Source::all::<PodDisruptionBudget>(), &self.budgets);
        shared.fill(Source::all::<ResourceQuota>(), &self.quotas);
        shared.fill(Source::all::<Service>(), &self.services);
        shared.fill(Source::all::<EndpointSlice>(), &self.endpoint_slices);
        shared.fill(Source::all::<PersistentVolumeClaim>(), &self.claims);
        shared.fill(Source::all::<PersistentVolume>(), &self.volumes);
        shared.fill(Source::all::<StorageClass>(), &self.storage_classes);
    }

    fn stores(&self) -> [&Arc<Store>; 19] {
        [
            self.namespaces.store(),
            self.service_accounts.store(),
            self.root_cas.store(),
            self.pods.store(),
            self.nodes.store(),
            self.leases.store(),
            self.jobs.store(),
            self.replica_sets.store(),
            self.stateful_sets.store(),
            self.controller_revisions.store(),
            self.replication_controllers.store(),
            self.deployments.store(),
            self.budgets.store(),
            self.quotas.store(),
            self.services.store(),
            self.endpoint_slices.store(),
            self.claims.store(),
            self.volumes.store(),
            self.storage_classes.store(),
        ]
    }

    pub(crate) async fn synced(&self) {
        for store in self.stores() {
            store.synced().await;
        }
    }
}

/// What every controller is given.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) caches: Arc<Caches>,
    pub(crate) clock: Clock,
    pub(crate) options: Arc<Options>,
    pub(crate) tasks: TaskTracker,
    pub(crate) shutdown: CancellationToken,
    object_counts: Arc<ObjectCounts>,
    executor: Executor,
    events: Recorder,
}

impl Shared {
    pub(crate) fn client(&self) -> &kube::Client {
        self.executor.client()
    }

    /// Now in whole seconds, as objects carry it.
    pub(crate) fn now(&self) -> Timestamp {
        let now = self.clock.now();
        Timestamp::from_second(now.as_second()).unwrap_or(now)
    }

    pub(crate) fn record(&self, component: &'static str, note: Note) {
        self.events.record(component, note);
    }

    /// Carries `plan` out; when it wants to be looked at again.
    pub(crate) async fn execute(
        &self,
        component: &'static str,
        plan: Plan,
    ) -> Result<Option<Timestamp>, SyncError> {
        let pass = Pass::of_component(component);
        Ok(self.executor.execute(&pass, plan).await?)
    }

    fn fill<K>(&self, source: Source, cache: &Cache<K>)
    where
        K: Resource + DeserializeOwned + Send + Sync + 'static,
    {
        self.tasks.spawn(fill(
            self.client().clone(),
            source,
            cache,
            self.shutdown.clone(),
        ));
    }
}

/// The engine's clock as the runtime reads it.
pub(crate) fn time_of_day(clock: &Clock) -> warp_runtime::Clock {
    let clock = clock.clone();
    warp_runtime::Clock::reading(move || clock.now())
}

/// Starts a controller on a queue of its own.
pub(crate) fn wired<C: Controller>(shared: &Shared, controller: C) -> Arc<Queue<C::Key>> {
    let queue = Arc::new(Queue::new());
    launch(shared, controller, queue.clone());
    queue
}

/// Starts a controller on `queue`; it begins once every cache has its first list.
pub(crate) fn launch<C: Controller>(shared: &Shared, controller: C, queue: Arc<Queue<C::Key>>) {
    let shared = shared.clone();
    background::tracked(&shared.clone().tasks, async move {
        tokio::select! {
            () = shared.shutdown.cancelled() => return,
            () = shared.caches.synced() => {}
        }
        drive(
            Arc::new(controller),
            queue,
            time_of_day(&shared.clock),
            shared.shutdown.clone(),
        )
        .await;
    });
}

/// Runs every controller until `shutdown`, and returns when all have ended.
pub async fn run(
    client: kube::Client,
    clock: Clock,
    options: Options,
    shutdown: CancellationToken,
) {
    let (events, writer) = Recorder::new(client.clone(), time_of_day(&clock), shutdown.clone());
    let caches = Arc::new(Caches::new());
    let executor = Executor::new(
        client,
        time_of_day(&clock),
        events.clone(),
        caches.followed(),
    );
    let options = Arc::new(options);
    let tasks = TaskTracker::new();
    background::tracked(&tasks, writer);
    let shared = Shared {
        caches,
        clock,
        options,
        tasks,
        shutdown,
        object_counts: Arc::default(),
        executor,
        events,
    };
    accounts::Accounts::start(&shared);
    namespace::Namespaces::start(&shared);
    garbage::Garbage::start(&shared);
    job::Jobs::start(&shared);
    job::ttl::FinishedJobs::start(&shared);
    replicaset::ReplicaSets::start(&shared);
    deployment::Deployments::start(&shared);
    statefulset::StatefulSets::start(&shared);
    node::lifecycle::Nodes::start(&shared);
    node::eviction::TaintEviction::start(&shared);
    pod_gc::PodGc::start(&shared);
    disruption::Budgets::start(&shared);
    quota::Quotas::start(&shared);
    endpoints::Slices::start(&shared);
    volumes::Volumes::start(&shared);
    if shared.options.scheduler {
        crate::scheduler::start(&shared);
    }
    // Last, so that every listener hears of the first list.
    shared.caches.fill(&shared);
    shared.shutdown.cancelled().await;
    shared.tasks.close();
    shared.tasks.wait().await;
}
