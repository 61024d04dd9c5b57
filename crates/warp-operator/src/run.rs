//! Starts everything under one lease and ends it in order.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_controller::LeaderElection;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use warp_api::{GPUWorkload, label};
use warp_runtime::runtime::Runtime;

use crate::audit::Trail;
use crate::cache::{Cache, Changed, Key, Source, follow};
use crate::clock::Clock;
use crate::config::Config;
use crate::context::Context;
use crate::readiness::Readiness;
use crate::tenant::{Notice, Tenants};
use crate::workload::{self, Controller};
use crate::{driver, ledger, scheduler, serve};

/// How often a starting process looks whether the first lists are complete.
const SYNC_POLL: Duration = Duration::from_millis(20);
/// How often own writes that nobody confirmed are looked for.
const FORGET_EVERY: Duration = Duration::from_secs(30);
/// Longest time running passes get to end after the lease is about to be given up.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, Error)]
pub enum RunError {
    #[error("failed to serve health and metrics")]
    Serve(#[source] std::io::Error),
    #[error(
        "failed to keep the lease: another replica leads now; this one ends so that it starts afresh"
    )]
    LeaseLost,
    #[error("failed to keep a part of the operator running: {0}")]
    PartEnded(String),
}

/// Runs the operator until `stop` is cancelled, then ends running passes and gives the lease back.
pub async fn run(
    client: Client,
    config: Config,
    clock: Clock,
    stop: CancellationToken,
) -> Result<(), RunError> {
    // Its state is large; callers keep it in theirs.
    Box::pin(run_parts(client, config, clock, stop)).await
}

async fn run_parts(
    client: Client,
    config: Config,
    clock: Clock,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let cx = Arc::new(Context::new(
        client.clone(),
        clock,
        config.settings.clone(),
        &config.identity,
    ));
    let mut parts: JoinSet<Result<(), RunError>> = JoinSet::new();
    let quiet = CancellationToken::new();
    let mut runtime = Runtime::new(
        client.clone(),
        time_of_day(&cx.clock),
        &config.identity,
        Arc::new(Trail(Arc::clone(&cx.metrics))),
        quiet.clone(),
    );
    // Tenants are the cluster's: an operator of one namespace has no business with them.
    let tenants = match config.namespace {
        None => Some(Tenants::register(&mut runtime, &cx)),
        Some(_) => None,
    };
    if config.health_addr.is_some() || config.metrics_addr.is_some() {
        let (cx, quiet) = (Arc::clone(&cx), quiet.clone());
        let (health, metrics) = (config.health_addr.clone(), config.metrics_addr.clone());
        let readiness = Readiness::new(client.clone(), config.namespace.clone());
        let kinds = runtime.readiness();
        parts.spawn(async move {
            serve::listen(health, metrics, cx, Arc::new(readiness), kinds, quiet)
                .await
                .map_err(RunError::Serve)
        });
    }
    // Watches run on every replica, so that a new leader starts warm.
    watch_all(
        &mut parts,
        &client,
        config.namespace.as_deref(),
        &cx,
        tenants.as_ref(),
    );
    for feed in runtime.feeds() {
        spawn(&mut parts, feed);
    }
    let lead = lead(client, &config, Arc::clone(&cx), runtime, stop.clone());
    let outcome = tokio::select! {
        outcome = lead => outcome,
        part = ended(&mut parts) => part,
    };
    quiet.cancel();
    parts.abort_all();
    while parts.join_next().await.is_some() {}
    outcome
}

/// The first part that ends, which none should.
async fn ended(parts: &mut JoinSet<Result<(), RunError>>) -> Result<(), RunError> {
    match parts.join_next().await {
        Some(Ok(Ok(()))) => Err(RunError::PartEnded("a watch ended".to_owned())),
        Some(Ok(Err(error))) => Err(error),
        Some(Err(error)) => Err(RunError::PartEnded(error.to_string())),
        None => std::future::pending().await,
    }
}

/// Acts, under the lease if there is one.
async fn lead(
    client: Client,
    config: &Config,
    cx: Arc<Context>,
    runtime: Runtime,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let Some(leader) = &config.leader else {
        act(cx, runtime, stop).await;
        return Ok(());
    };
    let election = LeaderElection::new(client, &leader.namespace, &leader.lease, &config.identity);
    let acting = AtomicBool::new(false);
    let work = async {
        acting.store(true, Ordering::Relaxed);
        act(Arc::clone(&cx), runtime, stop.clone()).await;
    };
    // While waiting for the lease nothing of ours runs and the end may come at once; while acting,
    // `act` sees the same token and ends by itself, after which the lease is given back.
    let leave = async {
        stop.cancelled().await;
        if acting.load(Ordering::Relaxed) {
            cx.clock.sleep(GRACE).await;
        }
    };
    tokio::select! {
        held = election.with_lease(work) => {
            cx.metrics.leads(false);
            held.ok_or(RunError::LeaseLost)
        }
        () = leave => {
            election.release().await;
            Ok(())
        }
    }
}

/// Runs controllers and scheduler until `stop`, once the caches are full.
async fn act(cx: Arc<Context>, runtime: Runtime, stop: CancellationToken) {
    while !cx.synced() {
        tokio::select! {
            () = cx.clock.sleep(SYNC_POLL) => {}
            () = stop.cancelled() => return,
        }
    }
    cx.metrics.leads(true);
    let now = cx.clock.now();
    for workload in cx.workloads.all() {
        cx.queue.add(Key::of(&*workload), now);
    }
    scheduler::wake(&cx);
    tracing::info!(
        workloads = cx.workloads.all().len(),
        nodes = cx.nodes.all().len(),
        "acting"
    );
    let controller = Arc::new(Controller {
        settings: cx.settings.clone(),
    });
    tokio::join!(
        driver::run(controller, Arc::clone(&cx), stop.clone()),
        scheduler::run(Arc::clone(&cx), stop.clone()),
        runtime.act(stop.clone()),
        forget(&cx, stop),
    );
}

/// Forgets own writes whose objects went before anybody heard of them, and looks at whose they were.
async fn forget(cx: &Context, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = cx.clock.sleep(FORGET_EVERY) => {}
            () = stop.cancelled() => return,
        }
        let now = cx.clock.now();
        for job in cx.jobs.forget_unconfirmed(now) {
            enqueue(cx, workload::owner_key(&*job));
        }
        for workload in cx.workloads.forget_unconfirmed(now) {
            enqueue(cx, Some(Key::of(&*workload)));
        }
    }
}

fn watch_all(
    parts: &mut JoinSet<Result<(), RunError>>,
    client: &Client,
    namespace: Option<&str>,
    cx: &Arc<Context>,
    tenants: Option<&Notice>,
) {
    let jobs = watcher::Config::default().labels(&format!(
        "{}={}",
        label::CONTROLLER,
        label::CONTROLLER_NAME
    ));
    let refusals = watcher::Config::default().fields("involvedObject.kind=Job,reason=FailedCreate");
    let everything = watcher::Config::default;

    let source = Source {
        api: scoped::<DeserializeGuard<GPUWorkload>>(client, namespace),
        config: everything(),
        name: "gpuworkloads",
        convert: readable,
    };
    let (here, cache) = (Arc::clone(cx), Arc::clone(&cx.workloads));
    let tenants = tenants.cloned();
    let told = tenants.clone();
    let touched = move |change: &Changed<GPUWorkload>| {
        if let Some(uid) = change.after.as_ref().and_then(|workload| workload.uid()) {
            here.arrivals.note(&uid);
        }
        enqueue(&here, change.latest().map(Key::of));
        told.iter().for_each(Notice::usage_changed);
    };
    spawn(
        parts,
        follow(source, cache, Arc::clone(&cx.metrics), touched),
    );

    let source = plain(scoped::<Job>(client, namespace), jobs, "jobs");
    let (here, cache) = (Arc::clone(cx), Arc::clone(&cx.jobs));
    let touched = move |change: &Changed<Job>| {
        enqueue(&here, change.latest().and_then(workload::owner_key));
    };
    spawn(
        parts,
        follow(source, cache, Arc::clone(&cx.metrics), touched),
    );

    let source = plain(scoped::<Event>(client, namespace), refusals, "events");
    let (here, cache) = (Arc::clone(cx), Arc::clone(&cx.refusals));
    let touched = move |change: &Changed<Event>| {
        enqueue(
            &here,
            change
                .latest()
                .and_then(|event| workload::event_key(&here, event)),
        );
        // A refused pod holds no GPUs: somebody else may have them.
        scheduler::wake(&here);
    };
    spawn(
        parts,
        follow(source, cache, Arc::clone(&cx.metrics), touched),
    );

    let source = plain(
        scoped::<ResourceQuota>(client, namespace),
        everything(),
        "resourcequotas",
    );
    let (here, cache) = (Arc::clone(cx), Arc::clone(&cx.quotas));
    let touched = move |_: &Changed<ResourceQuota>| scheduler::wake(&here);
    spawn(
        parts,
        follow(source, cache, Arc::clone(&cx.metrics), touched),
    );

    let source = plain(Api::<Pod>::all(client.clone()), everything(), "pods");
    let (here, cache) = (Arc::clone(cx), Arc::clone(&cx.pods));
    let told = tenants.clone();
    let touched = move |change: &Changed<Pod>| {
        enqueue(&here, change.latest().and_then(workload::owner_key));
        if ledger::pod_matters(change) {
            told.iter().for_each(Notice::usage_changed);
            scheduler::wake(&here);
        }
    };
    spawn(
        parts,
        follow(source, cache, Arc::clone(&cx.metrics), touched),
    );
    watch_surroundings(parts, client, namespace, cx);

    let source = plain(Api::<Node>::all(client.clone()), everything(), "nodes");
    let (here, cache) = (Arc::clone(cx), Arc::clone(&cx.nodes));
    let touched = move |change: &Changed<Node>| {
        // Heartbeats change a node's status all the time and mean nothing here.
        if ledger::node_matters(change) {
            tenants.iter().for_each(Notice::usage_changed);
            for key in change
                .latest()
                .into_iter()
                .flat_map(|node| workload::keys_on(&here, node))
            {
                enqueue(&here, Some(key));
            }
            scheduler::wake(&here);
        }
    };
    spawn(
        parts,
        follow(source, cache, Arc::clone(&cx.metrics), touched),
    );
}

/// What pods may ask of namespaces and of volumes. Every change may open a place.
fn watch_surroundings(
    parts: &mut JoinSet<Result<(), RunError>>,
    client: &Client,
    namespace: Option<&str>,
    cx: &Arc<Context>,
) {
    let cluster = client.clone();
    let source = (Api::<Namespace>::all(cluster.clone()), "namespaces");
    watch_surrounding(parts, cx, source, &cx.namespaces);
    let source = (
        scoped::<PersistentVolumeClaim>(client, namespace),
        "persistentvolumeclaims",
    );
    watch_surrounding(parts, cx, source, &cx.claims);
    let source = (
        Api::<PersistentVolume>::all(cluster.clone()),
        "persistentvolumes",
    );
    watch_surrounding(parts, cx, source, &cx.volumes);
    let source = (Api::<StorageClass>::all(cluster), "storageclasses");
    watch_surrounding(parts, cx, source, &cx.classes);
}

fn watch_surrounding<K>(
    parts: &mut JoinSet<Result<(), RunError>>,
    cx: &Arc<Context>,
    (api, name): (Api<K>, &'static str),
    cache: &Arc<Cache<K>>,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let source = plain(api, watcher::Config::default(), name);
    let here = Arc::clone(cx);
    let touched = move |_: &Changed<K>| scheduler::wake(&here);
    let (cache, metrics) = (Arc::clone(cache), Arc::clone(&cx.metrics));
    spawn(parts, follow(source, cache, metrics, touched));
}

/// The operator's clock as the runtime reads it.
fn time_of_day(clock: &Clock) -> warp_runtime::Clock {
    let clock = clock.clone();
    warp_runtime::Clock::reading(move || clock.now())
}

fn spawn(
    parts: &mut JoinSet<Result<(), RunError>>,
    watch: impl Future<Output = ()> + Send + 'static,
) {
    parts.spawn(async move {
        watch.await;
        Ok(())
    });
}

fn enqueue(cx: &Context, key: Option<Key>) {
    if let Some(key) = key {
        let now: Timestamp = cx.clock.now();
        cx.queue.add(key, now);
    }
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + DeserializeOwned,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn plain<K>(api: Api<K>, config: watcher::Config, name: &'static str) -> Source<K, K> {
    Source {
        api,
        config,
        name,
        convert: Some,
    }
}

/// An object this version cannot read is left alone, loudly, instead of stopping the watch.
fn readable(guard: DeserializeGuard<GPUWorkload>) -> Option<GPUWorkload> {
    let (namespace, name) = (guard.namespace().unwrap_or_default(), guard.name_any());
    match guard.0 {
        Ok(workload) => Some(workload),
        Err(error) => {
            tracing::warn!(namespace, name, error = %error, "failed to read workload, leaving it alone");
            None
        }
    }
}
