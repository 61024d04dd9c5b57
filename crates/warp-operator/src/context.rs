//! What every pass may read and use, made once per process.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota,
};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use std::sync::Arc;
use warp_api::{GPUWorkload, label};
use warp_runtime::Clock;
use warp_runtime::cache::{Cache, Source};
use warp_runtime::runtime::{Runtime, Wakes};

use crate::config::Settings;
use crate::estimates::Forecasts;
use crate::gpus::Gpus;
use crate::metrics::Metrics;
use crate::placement::{Arrivals, Order, Verdicts};
use crate::providers::NodeProviders;
use crate::queuedjob::Caches;
use crate::shapes;
use crate::tenant::Defaults;

/// Shared by the kinds and the scheduler.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) wakes: Wakes,
    pub(crate) workloads: Cache<GPUWorkload>,
    pub(crate) jobs: Cache<Job>,
    /// Jobs whose pods stand in for workloads that wait.
    pub(crate) stand_ins: Cache<Job>,
    /// Work of others that asks to be queued.
    pub(crate) queued: Arc<Caches>,
    /// What those may name as their priority.
    pub(crate) priorities: Cache<PriorityClass>,
    pub(crate) pods: Cache<Pod>,
    pub(crate) nodes: Cache<Node>,
    pub(crate) namespaces: Cache<Namespace>,
    pub(crate) claims: Cache<PersistentVolumeClaim>,
    pub(crate) volumes: Cache<PersistentVolume>,
    pub(crate) classes: Cache<StorageClass>,
    /// `FailedCreate` Events of Jobs, by the Job's uid.
    pub(crate) refusals: Cache<Event>,
    pub(crate) quotas: Cache<ResourceQuota>,
    pub(crate) gpus: Gpus,
    /// What is said of providers of nodes, and what came of attempts there.
    pub(crate) providers_of_nodes: NodeProviders,
    /// Set where the operator serves the whole cluster.
    pub(crate) tenants: std::sync::OnceLock<Cache<warp_api::Tenant>>,
    /// What those say for work that does not.
    pub(crate) defaults: Arc<Defaults>,
    /// Set where the operator rents machines.
    pub(crate) requests: std::sync::OnceLock<Cache<warp_api::GPURequest>>,
    /// Where it rents them; set with it.
    pub(crate) providers: std::sync::OnceLock<Cache<warp_api::CloudProvider>>,
    /// The ledger of what rented machines cost; set with it.
    pub(crate) costs: std::sync::OnceLock<Cache<ConfigMap>>,
    /// What the scheduler last found out about workloads it could not place.
    pub(crate) verdicts: Verdicts,
    /// When workloads came.
    pub(crate) arrivals: Arc<Arrivals>,
    /// In which order those that wait are served.
    pub(crate) order: Order,
    /// When those that wait are expected to start.
    pub(crate) forecasts: Forecasts,
}

impl Context {
    /// Nodes, pods and what is cluster-wide are read everywhere, or the ledger would be wrong; the rest in `namespace`; what
    /// an administrator says for all in `home`, the operator's own.
    pub(crate) fn new(
        runtime: &mut Runtime,
        namespace: Option<&str>,
        home: &str,
        clock: Clock,
        settings: Settings,
        metrics: Arc<Metrics>,
    ) -> Self {
        let ours = format!("{}={}", label::CONTROLLER, label::CONTROLLER_NAME);
        let refusals = "involvedObject.kind=Job,reason=FailedCreate";
        let workloads = Source::within::<GPUWorkload>(namespace).with_managed_fields();
        let workloads = runtime.cache(workloads, shapes::workload());
        let arrivals = Arc::<Arrivals>::default();
        let (noted, at) = (Arc::clone(&arrivals), clock.clone());
        workloads.listen(move |_, new: Option<&GPUWorkload>| {
            let Some(new) = new else { return };
            let status = new.status.as_ref();
            let said = status.and_then(|status| status.queued_at.as_ref());
            if let Some(uid) = new.uid() {
                noted.note(&uid, said.map(|said| said.0), at.now());
            }
        });
        let queued = Arc::new(Caches::follow(runtime, namespace));
        let (noted, at) = (Arc::clone(&arrivals), clock.clone());
        queued.note_arrivals(move |uid, said| noted.note(uid, said, at.now()));
        let providers_of_nodes = NodeProviders::follow(runtime, home, &workloads);
        Self {
            clock,
            providers_of_nodes,
            order: Order::new(settings.queue_policy),
            settings,
            metrics,
            wakes: runtime.wakes(),
            workloads,
            jobs: runtime.cache(
                Source::within::<Job>(namespace).labels(&ours),
                shapes::job(),
            ),
            stand_ins: runtime.cache(
                Source::within::<Job>(namespace).labels(label::STANDS_IN_FOR),
                shapes::job(),
            ),
            queued,
            priorities: runtime.cache(Source::all::<PriorityClass>(), shapes::as_it_is()),
            pods: runtime.cache(Source::all::<Pod>(), shapes::pod()),
            nodes: runtime.cache(Source::all::<Node>(), shapes::node()),
            namespaces: runtime.cache(Source::all::<Namespace>(), shapes::as_it_is()),
            claims: runtime.cache(
                Source::within::<PersistentVolumeClaim>(namespace),
                shapes::as_it_is(),
            ),
            volumes: runtime.cache(Source::all::<PersistentVolume>(), shapes::as_it_is()),
            classes: runtime.cache(Source::all::<StorageClass>(), shapes::as_it_is()),
            refusals: runtime.cache(
                Source::within::<Event>(namespace).fields(refusals),
                shapes::event(),
            ),
            quotas: runtime.cache(
                Source::within::<ResourceQuota>(namespace),
                shapes::as_it_is(),
            ),
            gpus: Gpus::follow(runtime, home),
            tenants: std::sync::OnceLock::new(),
            defaults: Arc::default(),
            requests: std::sync::OnceLock::new(),
            providers: std::sync::OnceLock::new(),
            costs: std::sync::OnceLock::new(),
            verdicts: Verdicts::default(),
            arrivals,
            forecasts: Forecasts::default(),
        }
    }

    /// Whether everything a placement is decided on has been listed.
    pub(crate) fn is_synced(&self) -> bool {
        self.workloads.is_synced()
            && self.jobs.is_synced()
            && self.queued.is_synced()
            && self.pods.is_synced()
            && self.nodes.is_synced()
            && self.refusals.is_synced()
            && self.namespaces.is_synced()
            && self.claims.is_synced()
            && self.volumes.is_synced()
            && self.classes.is_synced()
            && self.quotas.is_synced()
    }
}
