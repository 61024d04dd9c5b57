//! `/healthz`, `/readyz` and `/metrics` over plain HTTP.

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use warp_runtime::runtime::Readiness as Kinds;

use crate::config::Endpoint;
use crate::context::Context;
use crate::readiness::Readiness;

/// Answers at the health and metrics endpoints until `stop`. One endpoint may serve both.
pub(crate) async fn listen(
    health: Option<Endpoint>,
    metrics: Option<Endpoint>,
    cx: Arc<Context>,
    readiness: Arc<Readiness>,
    kinds: Kinds,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let health_pages = || health_routes(&cx, &readiness, &kinds);
    let mut routes: Vec<(Endpoint, Router)> = Vec::new();
    match (health, metrics) {
        (Some(one), Some(other)) if one.is_same(&other) => {
            routes.push((one, health_pages().merge(metric_routes(&cx, &kinds))));
        }
        (health, metrics) => {
            routes.extend(health.map(|place| (place, health_pages())));
            routes.extend(metrics.map(|place| (place, metric_routes(&cx, &kinds))));
        }
    }
    let mut servers = tokio::task::JoinSet::new();
    for (place, router) in routes {
        let listener = bound(place).await?;
        let stop = stop.clone();
        tracing::info!(address = %listener.local_addr()?, "listening");
        servers.spawn(async move {
            axum::serve(listener, router)
                .with_graceful_shutdown(stop.cancelled_owned())
                .await
        });
    }
    while let Some(ended) = servers.join_next().await {
        ended.map_err(std::io::Error::other)??;
    }
    Ok(())
}

async fn bound(place: Endpoint) -> std::io::Result<TcpListener> {
    match place {
        Endpoint::At(address) => TcpListener::bind(address).await.map_err(|error| {
            std::io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
        }),
        Endpoint::Bound(listener) => {
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener.try_clone()?)
        }
    }
}

/// Ready means that workloads can be acted on. Another kind that cannot be read stops alone and is named: to call the
/// whole process unready for it would take the others down with it.
fn health_routes(cx: &Arc<Context>, readiness: &Arc<Readiness>, kinds: &Kinds) -> Router {
    let (cx, readiness, kinds) = (Arc::clone(cx), Arc::clone(readiness), kinds.clone());
    let ready = move || async move {
        let missing = readiness.missing(&cx).await;
        if missing.is_empty() {
            return (StatusCode::OK, format!("ok\n{}", lines(&kinds)));
        }
        let text = format!("not ready: {}\n{}", missing.join("; "), lines(&kinds));
        (StatusCode::SERVICE_UNAVAILABLE, text)
    };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
}

/// How each kind on the runtime is doing, one line each.
fn lines(kinds: &Kinds) -> String {
    let mut text = String::new();
    for kind in kinds.kinds() {
        text += &kind.to_string();
        text.push('\n');
    }
    text
}

fn metric_routes(cx: &Arc<Context>, kinds: &Kinds) -> Router {
    let (metrics, kinds) = (Arc::clone(&cx.metrics), kinds.clone());
    let print = move || async move {
        for kind in kinds.kinds() {
            metrics.kind_ready(kind.name, kind.is_ready());
        }
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        ([(header::CONTENT_TYPE, kind)], metrics.render())
    };
    Router::new().route("/metrics", get(print))
}
