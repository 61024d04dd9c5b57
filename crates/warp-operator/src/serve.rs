//! `/healthz`, `/readyz` and `/metrics` over plain HTTP.

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::Endpoint;
use crate::metrics::Metrics;
use crate::readiness::Readiness;

/// Answers at the health and metrics endpoints until `stop`. One endpoint may serve both.
pub(crate) async fn listen(
    health: Option<Endpoint>,
    at: Option<Endpoint>,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let health_pages = || health_routes(&readiness);
    let metric_pages = || metric_routes(&metrics, &readiness);
    let mut routes: Vec<(Endpoint, Router)> = Vec::new();
    match (health, at) {
        (Some(one), Some(other)) if one.is_same(&other) => {
            routes.push((one, health_pages().merge(metric_pages())));
        }
        (health, at) => {
            routes.extend(health.map(|place| (place, health_pages())));
            routes.extend(at.map(|place| (place, metric_pages())));
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
fn health_routes(readiness: &Arc<Readiness>) -> Router {
    let readiness = Arc::clone(readiness);
    let ready = move || async move {
        let missing = readiness.missing().await;
        if missing.is_empty() {
            return (StatusCode::OK, format!("ok\n{}", lines(&readiness)));
        }
        let text = format!("not ready: {}\n{}", missing.join("; "), lines(&readiness));
        (StatusCode::SERVICE_UNAVAILABLE, text)
    };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
}

/// How each kind is doing, one line each.
fn lines(readiness: &Readiness) -> String {
    let mut text = String::new();
    for kind in readiness.kinds().kinds() {
        text += &kind.to_string();
        text.push('\n');
    }
    text
}

fn metric_routes(metrics: &Arc<Metrics>, readiness: &Arc<Readiness>) -> Router {
    let (metrics, readiness) = (Arc::clone(metrics), Arc::clone(readiness));
    let print = move || async move {
        for kind in readiness.kinds().kinds() {
            metrics.kind_ready(kind.name, kind.is_ready());
        }
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        ([(header::CONTENT_TYPE, kind)], metrics.render())
    };
    Router::new().route("/metrics", get(print))
}
