//! Connections: TLS, limits, HTTP/2 for clients that multiplex, HTTP/1.1 with upgrades.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use super::cork::Cork;
use super::{Api, Origin};

/// How long a client may take for the handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(15);
/// How long a client may take to answer a ping.
const PONG_LIMIT: Duration = Duration::from_secs(15);
/// How long a client may take for a request's head. Silence between two requests counts too, and a client that reuses
/// a connection in the moment it is closed sees its request fail: as long as the slowest head may take.
const HEAD: Duration = Duration::from_secs(55);
/// How often a silent multiplexed connection is asked whether it lives.
const PING_EVERY: Duration = Duration::from_secs(30);
/// Requests and watches one multiplexed connection may carry; clients open another beyond that.
const STREAMS: u32 = 250;
/// Bytes of headers of one request.
const HEADERS: u32 = 64 << 10;

/// Accepts connections until the server stops.
pub(crate) async fn serve(api: Arc<Api>, listener: TcpListener, tls: Arc<rustls::ServerConfig>) {
    let acceptor = TlsAcceptor::from(tls);
    let slots = Arc::new(Semaphore::new(api.limits.connections));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = api.stop.cancelled() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: give connections time to close.
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            tracing::warn!(
                limit = api.limits.connections,
                "refused a connection: too many are open"
            );
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (api, acceptor) = (Arc::clone(&api), acceptor.clone());
        tokio::spawn(async move {
            let _slot = slot;
            let handshake = tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(stream));
            match handshake.await {
                Ok(Ok(stream)) => {
                    let multiplexed = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let served = if multiplexed {
                        multiplexed_connection(api, stream).await
                    } else {
                        connection(api, stream, Origin::Network).await
                    };
                    if let Err(error) = served {
                        tracing::debug!(%error, "connection ended");
                    }
                }
                Ok(Err(error)) => tracing::debug!(%error, "failed TLS handshake"),
                Err(_) => tracing::debug!("TLS handshake took too long"),
            }
        });
    }
}

/// Serves one connection.
pub(crate) async fn connection<S>(api: Arc<Api>, stream: S, origin: Origin) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stop = api.stop.clone();
    let service = service_fn(move |request| {
        let (api, origin) = (Arc::clone(&api), origin.clone());
        async move { Ok::<_, Infallible>(api.handle(request, origin).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    ended.map_err(io::Error::other)
}

/// Serves one HTTP/2 connection. It cannot be upgraded: clients that exec ask for HTTP/1.1.
async fn multiplexed_connection<S>(api: Arc<Api>, stream: S) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stop = api.stop.clone();
    let service = service_fn(move |request| {
        let api = Arc::clone(&api);
        let answered = async move { Ok(api.handle(request, Origin::Network).await) };
        let answered: BoxFuture<'static, Result<_, Infallible>> = Box::pin(answered);
        answered
    });
    let cork = Cork::new(stream);
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_LIMIT)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADERS)
        .serve_connection(TokioIo::new(cork.clone()), service);
    let ended = cork.drive(async move {
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    });
    ended.await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests;
