//! How a request reaches a vendor: over the network, or to whatever a test puts in its place.

use std::fmt::{self, Debug};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// No list of a vendor is larger.
const ANSWER_LIMIT_BYTES: usize = 32 << 20;
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Sends one request and brings its whole answer. What it says of a failure names no header and no query.
pub trait Transport: Debug + Send + Sync {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, String>>;
}

type Connection = hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// HTTPS by the certificate authorities of this machine.
pub struct Network(Connection);

impl Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

impl Network {
    pub fn new() -> Result<Self, String> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_LIMIT));
        tcp.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
            .map_err(|error| {
                format!("failed to read this machine's certificate authorities: {error}")
            })?
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self(client))
    }
}

impl Transport for Network {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, String>> {
        Box::pin(async move {
            let place = request.uri().host().unwrap_or_default().to_owned();
            let trouble = |error: &dyn std::error::Error| format!("{place}: {}", causes(error));
            let response = self.0.request(request.map(Full::new)).await;
            let (parts, body) = response.map_err(|error| trouble(&error))?.into_parts();
            let body = Limited::new(body, ANSWER_LIMIT_BYTES).collect().await;
            let body = body.map_err(|error| trouble(error.as_ref()))?;
            Ok(Response::from_parts(parts, body.to_bytes()))
        })
    }
}

/// An error with what lies below it: the top one often says nothing.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        below = cause.source();
    }
    text
}
