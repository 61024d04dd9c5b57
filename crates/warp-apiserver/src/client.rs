//! A `kube::Client` that talks to the server in this process, without sockets.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use http::{Request, Response, header};
use hyper_util::rt::TokioIo;
use tower::Service;

use crate::codec::status::Status;
use crate::http::{Api, Origin, connection, error_response};

/// The server as a service: requests in, answers out, as one user.
#[derive(Clone, Debug)]
pub struct InProcess {
    pub(crate) api: Arc<Api>,
    pub(crate) origin: Origin,
}

impl Service<Request<kube::client::Body>> for InProcess {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let Self { api, origin } = self.clone();
        Box::pin(async move {
            if request.headers().contains_key(header::UPGRADE) {
                return Ok(upgraded(api, origin, request).await);
            }
            Ok(api.handle(request, origin).await)
        })
    }
}

/// Upgrades need a connection to take over: a pipe in memory with HTTP on both ends.
async fn upgraded(
    api: Arc<Api>,
    origin: Origin,
    request: Request<kube::client::Body>,
) -> Response<Body> {
    let (near, far) = tokio::io::duplex(64 << 10);
    tokio::spawn(async move {
        if let Err(error) = connection(api, far, origin).await {
            tracing::debug!(%error, "in-process connection ended");
        }
    });
    let sent = async {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(near)).await?;
        tokio::spawn(connection.with_upgrades());
        sender.send_request(request).await
    };
    match sent.await {
        Ok(response) => response.map(Body::new),
        Err(error) => error_response(&Status::internal(error)),
    }
}
