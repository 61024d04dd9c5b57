//! Slow clients, in virtual time: a minute of silence costs nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::{Origin, connection};
use crate::{ApiServer, Options};

async fn server() -> ApiServer {
    let options = Options::ephemeral().expect("an identity");
    ApiServer::start(options).await.expect("a server")
}

/// A client's end of a connection that is being served.
fn connect(server: &ApiServer) -> DuplexStream {
    let (client, end) = duplex(1 << 16);
    tokio::spawn(connection(Arc::clone(&server.api), end, Origin::Network));
    client
}

/// Everything the server says until it closes the connection.
async fn rest(mut client: DuplexStream) -> String {
    let mut said = Vec::new();
    client.read_to_end(&mut said).await.expect("an end");
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_finishes_its_head_is_cut_off() {
    let server = server().await;
    let mut client = connect(&server);
    let started = tokio::time::Instant::now();
    client
        .write_all(b"GET /version HTTP/1.1\r\nHost: loc")
        .await
        .expect("a part of a request");
    let said = rest(client).await;
    assert!(!said.contains("200"), "{said}");
    assert!(started.elapsed() < Duration::from_mins(1));
}

#[tokio::test(start_paused = true)]
async fn one_byte_at_a_time_does_not_keep_a_connection() {
    let server = server().await;
    let mut client = connect(&server);
    let mut sent = 0;
    for byte in b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: "
        .iter()
        .chain(std::iter::repeat(&b'a'))
    {
        if client.write_all(&[*byte]).await.is_err() {
            break;
        }
        sent += 1;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(sent < 120, "two minutes of dripping were tolerated");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let server = server().await;
    let kubeconfig = server.kubeconfig(([127, 0, 0, 1], 1).into());
    let token = kubeconfig
        .lines()
        .find_map(|line| line.trim().strip_prefix("token: "));
    let token = token.expect("a token");
    let mut client = connect(&server);
    let head = format!(
        "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n{{"
    );
    client.write_all(head.as_bytes()).await.expect("a head");
    let said = rest(client).await;
    assert!(said.starts_with("HTTP/1.1 408"), "{said}");
    assert!(said.contains("\"reason\":\"Timeout\""), "{said}");
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_does_not_stay_for_ever() {
    let server = server().await;
    let mut client = connect(&server);
    client
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .expect("a request");
    let said = rest(client).await;
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
}
