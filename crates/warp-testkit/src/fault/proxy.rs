//! The fault layer as a server: a plain listener on loopback in front of a real API server.
//!
//! Requests are forwarded with the credentials the proxy was given, whatever the client sent: the
//! client needs none, and a kubeconfig for it holds nothing but an address.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body as Answer;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderName, StatusCode, header};
use kube::Client;
use kube::client::Body;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tower::{Service, ServiceExt};

use super::layer::{FaultService, Faults};

/// Headers that are about one connection, or that only the proxy may set.
const OWN: [HeaderName; 5] = [
    header::HOST,
    header::CONNECTION,
    header::AUTHORIZATION,
    header::TRANSFER_ENCODING,
    header::CONTENT_LENGTH,
];

/// A running proxy; it ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    faults: Faults,
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port and forwards to where `upstream` talks to.
    pub async fn start(upstream: Client, faults: Faults) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .context("failed to listen on loopback")?;
        let address = listener.local_addr()?;
        let shared = (upstream, faults.clone());
        let router = Router::new().fallback(forward).with_state(shared);
        let task = tokio::spawn(async move {
            // Ends with the task.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self {
            faults,
            address,
            task,
        })
    }

    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes a kubeconfig that leads here.
    pub fn write_kubeconfig(&self, folder: &Path, name: &str) -> Result<PathBuf> {
        let path = folder.join(name);
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: proxy\nclusters:\n- name: proxy\n  cluster:\n    server: {}\ncontexts:\n- name: proxy\n  context: {{cluster: proxy, user: none}}\nusers:\n- name: none\n  user: {{}}\n",
            self.url()
        );
        std::fs::write(&path, text)
            .with_context(|| format!("failed to write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(State((upstream, faults)): State<(Client, Faults)>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    for name in OWN {
        parts.headers.remove(name);
    }
    let body = match axum::body::to_bytes(body, 64 << 20).await {
        Ok(body) => body,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    let request = http::Request::from_parts(parts, Body::from(body));
    let client = tower::service_fn(move |request| {
        let upstream = upstream.clone();
        async move { upstream.send(request).await }
    });
    let mut service: FaultService<_> = faults.service(client);
    let sent = async { service.ready().await?.call(request).await };
    match sent.await {
        Ok(response) => {
            let (mut parts, body) = response.into_parts();
            for name in OWN {
                parts.headers.remove(name);
            }
            Response::from_parts(parts, body)
        }
        // A reset: the connection ends without an answer.
        Err(error) => {
            let broken = futures::stream::once(async move { Err::<bytes::Bytes, _>(error) });
            Response::new(Answer::from_stream(broken))
        }
    }
}
