//! Connections as client-go makes them: HTTP/2, many requests and watches on each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::Client;
use kube::client::{Body, ConfigExt as _};
use kube::config::Config;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tower::ServiceBuilder;

use super::Failure;

/// Watches and requests put on one connection; servers allow more.
const STREAMS: usize = 90;

struct Pool {
    uri: Uri,
    tls: TlsConnector,
    open: Mutex<Vec<SendRequest<Body>>>,
    /// Requests sent, long ones included: watches do not end while they are measured.
    sent: AtomicUsize,
}

/// A client over as few connections as the number of watches (told in advance) needs.
pub(super) async fn client(config: &Config, watches: usize) -> Result<Client, Failure> {
    let mut tls = config.rustls_client_config()?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let pool = Arc::new(Pool {
        uri: config.cluster_url.clone(),
        tls: TlsConnector::from(Arc::new(tls)),
        open: Mutex::default(),
        sent: AtomicUsize::new(0),
    });
    for _ in 0..watches.div_ceil(STREAMS).max(1) {
        let connection = pool.connect().await?;
        pool.open.lock().await.push(connection);
    }
    let service = tower::service_fn(move |request| {
        let pool = Arc::clone(&pool);
        async move { pool.send(request).await }
    });
    let service = ServiceBuilder::new()
        .option_layer(config.auth_layer()?)
        .map_err(Failure::from)
        .service(service);
    Ok(Client::new(service, "default"))
}

impl Pool {
    async fn connect(&self) -> Result<SendRequest<Body>, Failure> {
        let host = self.uri.host().ok_or("the server has no host")?.to_owned();
        let port = self.uri.port_u16().unwrap_or(443);
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        stream.set_nodelay(true)?;
        let stream = self.tls.connect(host.try_into()?, stream).await?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            // What Go's client allows a server to send ahead.
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(1 << 30)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn send(&self, mut request: Request<Body>) -> Result<Response<Incoming>, Failure> {
        let mut parts = self.uri.clone().into_parts();
        parts.path_and_query = request.uri().path_and_query().cloned();
        *request.uri_mut() = Uri::from_parts(parts)?;
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        let mut sender = {
            let open = self.open.lock().await;
            open[number % open.len()].clone()
        };
        sender.ready().await?;
        Ok(sender.send_request(request).await?)
    }
}
