//! The client's retry policy, said outright: reads that the server put off are repeated a few times
//! within a bounded wait; writes are never repeated, because one without an answer may have been
//! carried out.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use kube::client::Body;
use kube::{Client, Config};
use tower::buffer::Buffer;
use tower::{BoxError, Layer, Service, ServiceExt};

/// Tries of one read in all.
const TRIES: u32 = 4;
/// Longest wait between two tries, whatever the server asks for.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Requests waiting for the connection at once.
const IN_FLIGHT: usize = 1024;
/// Time to the first byte of an answer.
const ANSWER: Duration = Duration::from_secs(30);

/// A client with this policy instead of kube's own, which repeats every method for minutes.
pub fn client(config: Config) -> Result<Client, kube::Error> {
    Ok(warp_runtime::connection::builder(config)?
        .with_layer(&Patient)
        .build())
}

#[derive(Clone, Copy, Debug)]
struct Patient;

impl<S> Layer<S> for Patient
where
    S: Service<Request<Body>, Error = BoxError> + Send + 'static,
    S::Future: Send,
{
    type Service = Retry<Buffer<Request<Body>, S::Future>>;

    fn layer(&self, inner: S) -> Self::Service {
        // Kube's service cannot be cloned; behind a buffer every try gets a handle of its own.
        Retry {
            inner: Buffer::new(inner, IN_FLIGHT),
        }
    }
}

#[derive(Clone, Debug)]
struct Retry<S> {
    inner: S,
}

impl<S, B> Service<Request<Body>> for Retry<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // Each try asks the inner service itself.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let inner = self.inner.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            if parts.method != Method::GET {
                return answer(inner, Request::from_parts(parts, body)).await;
            }
            let mut wait = Duration::from_millis(200);
            for _ in 1..TRIES {
                let again = Request::from_parts(parts.clone(), Body::empty());
                let response = answer(inner.clone(), again).await?;
                if !put_off(response.status()) {
                    return Ok(response);
                }
                let asked = retry_after(&response).unwrap_or(wait);
                tokio::time::sleep(asked.min(MAX_WAIT)).await;
                wait *= 2;
            }
            answer(inner, Request::from_parts(parts, Body::empty())).await
        })
    }
}

async fn answer<S, B>(mut inner: S, request: Request<Body>) -> Result<Response<B>, BoxError>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
{
    let call = async { inner.ready().await?.call(request).await };
    match tokio::time::timeout(ANSWER, call).await {
        Ok(answer) => answer,
        Err(_) => Err(format!(
            "no answer from the API server within {} s",
            ANSWER.as_secs()
        )
        .into()),
    }
}

fn put_off(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

fn retry_after<B>(response: &Response<B>) -> Option<Duration> {
    let text = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    text.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests;
