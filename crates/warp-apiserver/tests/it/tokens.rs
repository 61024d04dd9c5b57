//! Who is let in over the network: tokens, and what they stand and fall with; hosts; HTTP/2.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use warp_apiserver::auth::Identity;
use warp_apiserver::{ApiServer, Options};

use crate::exchange::json;

/// A server on the network with one HTTP/2 connection to it.
struct Network {
    server: ApiServer,
    admin: String,
    sender: SendRequest<Full<Bytes>>,
}

impl Network {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let identity = Identity::load(Some(folder.path()), &[]).expect("an identity");
        let admin = std::fs::read_to_string(folder.path().join("token")).expect("a token");
        let authority = CertificateDer::from_pem_slice(identity.ca().as_bytes());
        let mut options = Options::ephemeral().expect("options");
        options.identity = identity;
        let server = ApiServer::start(options).await.expect("a server");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = server.clone();
        tokio::spawn(async move { serving.serve(listener).await });
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(authority.expect("a certificate"))
            .expect("a usable certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let stream = TcpStream::connect(address).await.expect("a connection");
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .expect("a handshake");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .expect("HTTP/2");
        tokio::spawn(connection);
        Self {
            server,
            admin: admin.trim().to_owned(),
            sender,
        }
    }

    async fn get(
        &self,
        host: &str,
        token: &str,
        path: &str,
    ) -> http::Response<hyper::body::Incoming> {
        let request = Request::builder()
            .uri(format!("https://{host}{path}"))
            .header("authorization", format!("Bearer {token}"))
            .body(Full::default())
            .expect("a request");
        let mut sender = self.sender.clone();
        sender.send_request(request).await.expect("an answer")
    }

    /// The answer to what everybody may ask who is let in.
    async fn code(&self, token: &str) -> u16 {
        self.get("localhost", token, "/version")
            .await
            .status()
            .as_u16()
    }

    /// A token of the account `robot`.
    async fn issue(&self, spec: Value) -> String {
        let client = self.server.client("default");
        let path = "/api/v1/namespaces/default/serviceaccounts/robot/token";
        let (code, issued) = json(&client, "POST", path, &json!({"spec": spec})).await;
        assert_eq!(code, 201, "{issued}");
        issued["status"]["token"]
            .as_str()
            .expect("a token")
            .to_owned()
    }

    async fn make(&self, plural: &str, object: Value) {
        let client = self.server.client("default");
        let path = format!("/api/v1/namespaces/default/{plural}");
        let (code, made) = json(&client, "POST", &path, &object).await;
        assert_eq!(code, 201, "{made}");
    }

    async fn delete(&self, path: &str) {
        let client = self.server.client("default");
        let path = format!("/api/v1/namespaces/default/{path}");
        let (code, gone) = json(&client, "DELETE", &path, &json!({"gracePeriodSeconds": 0})).await;
        assert_eq!(code, 200, "{gone}");
    }
}

#[tokio::test]
async fn http2_is_served_with_hosts_checked_and_watches_streamed() {
    let network = Network::start().await;
    assert_eq!(network.code(&network.admin).await, 200);
    assert_eq!(network.code("wrong").await, 401);
    let foreign = network
        .get("evil.example", &network.admin, "/version")
        .await;
    assert_eq!(foreign.status(), 403, "a page may have made that request");
    let path = "/api/v1/namespaces/default/configmaps?watch=true&resourceVersion=0";
    let watch = network.get("localhost", &network.admin, path).await;
    let mut events = watch.into_body();
    network
        .make("configmaps", json!({"metadata": {"name": "seen"}}))
        .await;
    let frame = events.frame().await.expect("an event").expect("a frame");
    let text = String::from_utf8_lossy(frame.data_ref().expect("data")).into_owned();
    assert!(
        text.contains(r#""type":"ADDED""#) && text.contains("seen"),
        "{text}"
    );
}

#[tokio::test]
async fn a_token_is_refused_once_its_account_is_gone() {
    let network = Network::start().await;
    network
        .make("serviceaccounts", json!({"metadata": {"name": "robot"}}))
        .await;
    let token = network.issue(json!({})).await;
    assert_eq!(network.code(&token).await, 200);
    let mut forged = token.clone();
    let last = forged.pop();
    forged.insert(forged.len() - 5, last.expect("not empty"));
    assert_eq!(network.code(&forged).await, 401);
    network.delete("serviceaccounts/robot").await;
    assert_eq!(network.code(&token).await, 401);
    network
        .make("serviceaccounts", json!({"metadata": {"name": "robot"}}))
        .await;
    assert_eq!(
        network.code(&token).await,
        401,
        "another account of the same name"
    );
}

#[tokio::test]
async fn a_token_is_good_only_for_its_audience_and_while_its_pod_is_there() {
    let network = Network::start().await;
    network
        .make("serviceaccounts", json!({"metadata": {"name": "robot"}}))
        .await;
    let vault = network.issue(json!({"audiences": ["vault"]})).await;
    assert_eq!(network.code(&vault).await, 401);
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {"serviceAccountName": "robot", "containers": [{"name": "c", "image": "busybox:1"}]},
    });
    network.make("pods", pod.clone()).await;
    let bound = json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p"}});
    let token = network.issue(bound).await;
    assert_eq!(network.code(&token).await, 200);
    network.delete("pods/p").await;
    assert_eq!(network.code(&token).await, 401);
    network.make("pods", pod).await;
    assert_eq!(
        network.code(&token).await,
        401,
        "another pod of the same name"
    );
}
