use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tower::service_fn;

use super::*;

/// A server that puts off the first `times` requests; returns how often it was asked and the answer.
async fn ask(method: Method, times: u32) -> (u32, StatusCode) {
    let asked = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&asked);
    let server = service_fn(move |_: Request<Body>| {
        let before = counter.fetch_add(1, Ordering::SeqCst);
        let status = if before < times {
            StatusCode::TOO_MANY_REQUESTS
        } else {
            StatusCode::OK
        };
        async move { Ok::<_, BoxError>(Response::builder().status(status).body(()).unwrap()) }
    });
    let mut client = Patient.layer(server);
    let request = Request::builder()
        .method(method)
        .uri("/")
        .body(Body::empty())
        .unwrap();
    let response = client.ready().await.unwrap().call(request).await.unwrap();
    (asked.load(Ordering::SeqCst), response.status())
}

#[tokio::test(start_paused = true)]
async fn reads_that_were_put_off_are_repeated_a_few_times() {
    assert_eq!(ask(Method::GET, 0).await, (1, StatusCode::OK));
    assert_eq!(ask(Method::GET, 2).await, (3, StatusCode::OK));
    assert_eq!(
        ask(Method::GET, 99).await,
        (TRIES, StatusCode::TOO_MANY_REQUESTS)
    );
}

#[tokio::test(start_paused = true)]
async fn writes_are_never_repeated() {
    for method in [Method::POST, Method::PATCH, Method::DELETE, Method::PUT] {
        assert_eq!(ask(method, 1).await, (1, StatusCode::TOO_MANY_REQUESTS));
    }
}
