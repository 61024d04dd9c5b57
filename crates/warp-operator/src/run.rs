//! Starts everything under one lease and ends it in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_controller::LeaderElection;
use kube::Client;
use thiserror::Error;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use warp_api::gpus;
use warp_runtime::Clock;
use warp_runtime::runtime::Runtime;

use crate::audit::Trail;
use crate::cloudprovider;
use crate::config::Config;
use crate::context::Context;
use crate::estimates;
use crate::inferenceservice::InferenceServices;
use crate::metrics::Metrics;
use crate::modelcache::ModelCaches;
use crate::readiness::Readiness;
use crate::tenant::Tenants;
use crate::{inferenceservice, placement, queuedjob, serve, workload};

/// How often a starting process looks whether the first lists are complete.
const SYNC_POLL: Duration = Duration::from_millis(20);
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
    let mut parts: JoinSet<Result<(), RunError>> = JoinSet::new();
    let quiet = CancellationToken::new();
    let metrics = Arc::new(Metrics::default());
    let mut runtime = Runtime::new(
        client.clone(),
        clock.clone(),
        &config.identity,
        Arc::new(Trail(Arc::clone(&metrics))),
        quiet.clone(),
    );
    let home = config.leader.as_ref();
    let home = home.map_or(gpus::NAMESPACE, |leader| leader.namespace.as_str());
    let cx = Arc::new(Context::new(
        &mut runtime,
        config.namespace.as_deref(),
        home,
        clock,
        config.settings.clone(),
        metrics,
    ));
    workload::register(&mut runtime, &cx);
    queuedjob::register(&mut runtime, &cx);
    let mut claimants = vec![workload::Claims::following(&cx)];
    claimants.extend(queuedjob::Claims::following(&cx));
    // Services need rights that the roles of one namespace do not give.
    let services = config.namespace.is_none();
    let services = services.then(|| InferenceServices::all(&mut runtime));
    if let Some(services) = &services {
        claimants.extend(inferenceservice::Claims::following(&cx, services));
    }
    placement::register(&mut runtime, &cx, claimants);
    let mut claimants = vec![workload::Claims::of(&cx)];
    claimants.extend(queuedjob::Claims::of(&cx));
    let kept = config.home.as_deref().map(|name| (client.clone(), name));
    estimates::register(&mut runtime, &cx, claimants, kept);
    // Tenants are the cluster's: an operator of one namespace has no business with them.
    if config.namespace.is_none() {
        Tenants::register(&mut runtime, &cx);
        cloudprovider::register(&mut runtime, &cx, client.clone(), home);
    }
    let caches = ModelCaches::all(&mut runtime, config.namespace.as_deref());
    if let Some(services) = &services {
        let asks = config.settings.fetcher.asks_progress;
        InferenceServices::register(&mut runtime, &cx, services, &caches, asks);
    }
    ModelCaches::register(
        &mut runtime,
        config.namespace.as_deref(),
        &caches,
        services.as_ref(),
        &config.settings,
        &config.identity,
    );
    if config.health_addr.is_some() || config.metrics_addr.is_some() {
        let (metrics, quiet) = (Arc::clone(&cx.metrics), quiet.clone());
        let (health, at) = (config.health_addr.clone(), config.metrics_addr.clone());
        let kinds = runtime.readiness();
        let readiness = Readiness::new(client.clone(), config.namespace.clone(), kinds);
        parts.spawn(async move {
            serve::listen(health, at, metrics, Arc::new(readiness), quiet)
                .await
                .map_err(RunError::Serve)
        });
    }
    // Watches run on every replica, so that a new leader starts warm.
    for feed in runtime.feeds() {
        parts.spawn(async move {
            feed.await;
            Ok(())
        });
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
        act(&cx, runtime, stop).await;
        return Ok(());
    };
    let election = LeaderElection::new(client, &leader.namespace, &leader.lease, &config.identity);
    let acting = AtomicBool::new(false);
    let work = async {
        acting.store(true, Ordering::Relaxed);
        act(&cx, runtime, stop.clone()).await;
    };
    // While waiting for the lease nothing of ours runs and the end may come at once; while acting,
    // `act` sees the same token and ends by itself, after which the lease is given back.
    let leave = async {
        stop.cancelled().await;
        if acting.load(Ordering::Relaxed) {
            tokio::time::sleep(GRACE).await;
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

/// Runs controllers and scheduler until `stop`, each once what it reads has been listed.
async fn act(cx: &Context, runtime: Runtime, stop: CancellationToken) {
    tokio::join!(runtime.act(stop.clone()), announce(cx, stop));
}

/// Says that this replica acts once it has read the cluster.
async fn announce(cx: &Context, stop: CancellationToken) {
    while !cx.is_synced() {
        tokio::select! {
            () = tokio::time::sleep(SYNC_POLL) => {}
            () = stop.cancelled() => return,
        }
    }
    cx.metrics.leads(true);
    tracing::info!(
        workloads = cx.workloads.len(),
        nodes = cx.nodes.len(),
        "acting"
    );
}
