//! `/healthz`, `/readyz` and `/metrics` over plain HTTP.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::context::Context;

/// Answers on the health and metrics addresses until `stop`. One address may serve both.
pub(crate) async fn listen(
    health: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    cx: Arc<Context>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let mut routes: Vec<(SocketAddr, Router)> = Vec::new();
    match (health, metrics) {
        (Some(one), Some(other)) if one == other => {
            routes.push((one, health_routes(&cx).merge(metric_routes(&cx))));
        }
        _ => {
            routes.extend(health.map(|address| (address, health_routes(&cx))));
            routes.extend(metrics.map(|address| (address, metric_routes(&cx))));
        }
    }
    let mut servers = tokio::task::JoinSet::new();
    for (address, router) in routes {
        let listener = TcpListener::bind(address).await?;
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

fn health_routes(cx: &Arc<Context>) -> Router {
    let cx = Arc::clone(cx);
    let ready = move || async move {
        if cx.synced() {
            (StatusCode::OK, "ok\n")
        } else {
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "still reading the cluster\n",
            )
        }
    };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
}

fn metric_routes(cx: &Arc<Context>) -> Router {
    let metrics = Arc::clone(&cx.metrics);
    let print = move || async move {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        ([(header::CONTENT_TYPE, kind)], metrics.render())
    };
    Router::new().route("/metrics", get(print))
}
