//! The listening server and those who should not get in: strangers, guessers, web pages, broken TLS
//! and floods of connections from this machine.

use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use warp_apiserver::{ApiServer, Options};

/// A client that has yet to say who it is.
type Unfinished = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

/// A server on a free port of this machine.
struct Listening {
    server: ApiServer,
    address: SocketAddr,
    kubeconfig: String,
}

impl Listening {
    async fn start(connections: usize) -> Self {
        let mut options = Options::ephemeral().expect("an identity");
        options.limits.connections = connections;
        let server = ApiServer::start(options).await.expect("a server");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = server.clone();
        tokio::spawn(async move { serving.serve(listener).await });
        let kubeconfig = server.kubeconfig(address);
        Self {
            server,
            address,
            kubeconfig,
        }
    }

    fn field(&self, name: &str) -> &str {
        let mut lines = self.kubeconfig.lines();
        let found = lines.find_map(|line| line.trim().strip_prefix(name));
        found.expect("a field of the kubeconfig").trim()
    }

    fn token(&self) -> &str {
        self.field("token:")
    }

    fn connector(&self) -> TlsConnector {
        self.connector_with(Unfinished::with_no_client_auth)
    }

    fn connector_with(&self, finish: impl FnOnce(Unfinished) -> ClientConfig) -> TlsConnector {
        let pem = STANDARD
            .decode(self.field("certificate-authority-data:"))
            .expect("base64");
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(&pem).expect("a certificate"))
            .expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        TlsConnector::from(Arc::new(finish(config)))
    }

    async fn tls(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").expect("a name");
        self.connector().connect(name, stream).await
    }

    /// The answer to one request written by hand, head and body.
    async fn raw(&self, request: &[u8]) -> String {
        let mut stream = self.tls().await.expect("a connection");
        // The server may hang up before it has read everything.
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> String {
        let headers: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let request = format!(
            "GET {path} HTTP/1.1\r\n{}Connection: close\r\n\r\n",
            headers.concat()
        );
        self.raw(request.as_bytes()).await
    }

    async fn with_token(&self, token: &str) -> String {
        let bearer = format!("Bearer {token}");
        self.get(
            "/api/v1/secrets",
            &[("Host", "localhost"), ("Authorization", &bearer)],
        )
        .await
    }

    /// A well-behaved client.
    async fn friend(&self) -> Client {
        let kubeconfig = Kubeconfig::from_yaml(&self.kubeconfig).expect("a kubeconfig");
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        Client::try_from(config.expect("a configuration")).expect("a client")
    }

    async fn still_serves(&self) {
        let version = self.friend().await.apiserver_version().await;
        version.expect("the server answers its friends");
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let server = self.server.clone();
        tokio::spawn(async move { server.shutdown().await });
    }
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

#[tokio::test]
async fn no_guess_at_a_token_gets_in_or_learns_anything() {
    let server = Listening::start(64).await;
    let token = server.token().to_owned();
    assert!(server.with_token(&token).await.starts_with("HTTP/1.1 200"));
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let claims = r#"{"exp":99999999999,"iss":"https://kubernetes.default.svc.cluster.local","sub":"system:serviceaccount:kube-system:admin","kubernetes.io":{"namespace":"kube-system","serviceaccount":{"name":"admin","uid":"u"}}}"#;
    let unsigned = format!("{}.{}.", part(r#"{"alg":"none"}"#), part(claims));
    let zeros = format!(
        "{}.{}.{}",
        part(r#"{"alg":"ES256"}"#),
        part(claims),
        URL_SAFE_NO_PAD.encode([0_u8; 64])
    );
    let mut guesses = vec![
        String::new(),
        "null".to_owned(),
        token[..token.len() - 1].to_owned(),
        format!("{token}a"),
        token.to_lowercase(),
        token.chars().rev().collect(),
        "a".repeat(7_000),
        unsigned,
        zeros,
        "....".to_owned(),
        "../../token".to_owned(),
    ];
    guesses.extend((0..50).map(|number| format!("{number:043}")));
    let refusal = body(
        &server
            .get("/api/v1/secrets", &[("Host", "localhost")])
            .await,
    )
    .to_owned();
    assert!(refusal.contains("Unauthorized"), "{refusal}");
    for guess in &guesses {
        let answer = server.with_token(guess).await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{guess}: {answer}");
        assert_eq!(body(&answer), refusal, "{guess}");
    }
    let basic = STANDARD.encode(format!("admin:{token}"));
    for scheme in ["Basic", "Token", ""] {
        let value = format!("{scheme} {basic}");
        let answer = server
            .get(
                "/api/v1/secrets",
                &[("Host", "localhost"), ("Authorization", &value)],
            )
            .await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    }
    // Only health is for everybody, and it says nothing.
    for path in [
        "/",
        "/api",
        "/apis",
        "/metrics",
        "/openapi/v2",
        "/version",
        "/debug/pprof",
    ] {
        let answer = server.get(path, &[("Host", "localhost")]).await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{path}: {answer}");
    }
    let health = server.get("/healthz", &[("Host", "localhost")]).await;
    assert_eq!(body(&health), "ok");
    server.still_serves().await;
}

#[tokio::test]
async fn a_web_page_cannot_use_the_token_it_made_a_browser_send() {
    let server = Listening::start(64).await;
    let bearer = format!("Bearer {}", server.token());
    for host in [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:443",
        "",
        "169.254.169.254",
    ] {
        let answer = server
            .get(
                "/api/v1/secrets",
                &[("Host", host), ("Authorization", &bearer)],
            )
            .await;
        let code = &answer[..12.min(answer.len())];
        assert!(
            matches!(code, "HTTP/1.1 403" | "HTTP/1.1 400"),
            "{host}: {answer}"
        );
    }
    for origin in [
        "https://evil.example",
        "null",
        "https://localhost.evil.example",
        "file://",
    ] {
        let answer = server
            .get(
                "/api/v1/secrets",
                &[
                    ("Host", "localhost"),
                    ("Origin", origin),
                    ("Authorization", &bearer),
                ],
            )
            .await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{origin}: {answer}");
        let lower = answer.to_ascii_lowercase();
        assert!(!lower.contains("access-control-allow"), "{answer}");
    }
    // A browser asks first: nobody is told that they may.
    let preflight = "OPTIONS /api/v1/secrets HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nAccess-Control-Request-Method: DELETE\r\nConnection: close\r\n\r\n";
    let answer = server.raw(preflight.as_bytes()).await;
    assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    server.still_serves().await;
}

/// The first words of a client that knows nothing newer than TLS 1.0.
fn hello_of_1999() -> Vec<u8> {
    // Version, randomness, no session, one cipher, no compression.
    let mut hello = vec![3, 1];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0x00, 0x2f, 1, 0]);
    let length = u8::try_from(hello.len()).expect("a short hello");
    let mut record = vec![0x16, 3, 1, 0, length + 4, 1, 0, 0, length];
    record.append(&mut hello);
    record
}

/// A certificate that calls its bearer an administrator, from an authority of their own.
fn forged() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let authority_key = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::new(Vec::<String>::new()).expect("parameters");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().expect("a key");
    let mut person = CertificateParams::new(Vec::<String>::new()).expect("parameters");
    let name = &mut person.distinguished_name;
    name.push(DnType::OrganizationName, "system:masters");
    name.push(DnType::CommonName, "kubernetes-admin");
    person.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = person.signed_by(&key, &issuer).expect("a certificate");
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    (certificate.der().clone(), private)
}

#[tokio::test]
async fn a_certificate_of_another_authority_makes_nobody_an_administrator() {
    let server = Listening::start(64).await;
    let (certificate, key) = forged();
    let connector = server.connector_with(|config| {
        config
            .with_client_auth_cert(vec![certificate], key)
            .expect("a client's certificate")
    });
    let bearer = format!("Authorization: Bearer {}\r\n", server.token());
    for (header, wanted) in [("", "HTTP/1.1 401"), (&bearer, "HTTP/1.1 200")] {
        let stream = TcpStream::connect(server.address).await.expect("a port");
        let name = ServerName::try_from("localhost").expect("a name");
        let connected = connector.connect(name, stream).await;
        let Ok(mut stream) = connected else {
            // Not to be talked to at all is as good, for those without a token.
            assert!(header.is_empty(), "a friend was turned away: {connected:?}");
            continue;
        };
        let request = format!(
            "GET /api/v1/secrets HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        assert!(answer.starts_with(wanted), "{answer}");
    }
}

#[tokio::test]
async fn broken_tls_and_broken_http_harm_nobody_else() {
    let server = Listening::start(64).await;
    let mut junk = Vec::new();
    // A TLS record that promises more than it holds, another protocol, plain HTTP, nothing at all.
    for bytes in [
        b"\x16\x03\x01\xff\xff\x01\x00".as_slice(),
        b"SSH-2.0-OpenSSH_9\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"",
        &[0_u8; 4096],
    ] {
        let mut stream = TcpStream::connect(server.address)
            .await
            .expect("a connection");
        stream.write_all(bytes).await.expect("sent");
        junk.push(stream);
    }
    server.still_serves().await;
    for mut stream in junk.drain(1..3) {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    }
    // What was given up long ago is not spoken, whatever else a client may offer.
    let mut stream = TcpStream::connect(server.address)
        .await
        .expect("a connection");
    stream.write_all(&hello_of_1999()).await.expect("sent");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let alert = answer.first() == Some(&0x15);
    assert!(answer.is_empty() || alert, "TLS 1.0 was spoken: {answer:?}");
    let bearer = server.token();
    let smuggled = format!(
        "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {bearer}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\nGET /api/v1/secrets HTTP/1.1\r\nHost: localhost\r\n\r\n"
    );
    let answer = server.raw(smuggled.as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    assert!(!answer.contains("SecretList"), "{answer}");
    let long = format!(
        "GET /version HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "a".repeat(4 << 20)
    );
    let answer = server.raw(long.as_bytes()).await;
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    let split = format!(
        "GET /version HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {bearer}\r\n\0: \r\n\r\n"
    );
    let answer = server.raw(split.as_bytes()).await;
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 400"),
        "{answer}"
    );
    server.still_serves().await;
}

#[tokio::test]
async fn a_flood_of_connections_is_shed_and_then_forgotten() {
    const LIMIT: usize = 24;
    let server = Listening::start(LIMIT).await;
    // As many as there are, each a handshake away from being useful.
    let mut held = Vec::new();
    while held.len() < LIMIT {
        held.push(server.tls().await.expect("a connection within the limit"));
    }
    let mut refused = 0;
    for _ in 0..LIMIT {
        refused += usize::from(server.tls().await.is_err());
    }
    assert_eq!(refused, LIMIT, "more connections than allowed were served");
    // Those who are in are served, and those who leave make room.
    let mut first = held.remove(0);
    first
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await
        .expect("sent");
    let mut answer = String::new();
    let _ = first.read_to_string(&mut answer).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(held);
    let patience = std::time::Duration::from_mins(1);
    warp_testkit::until("the server serves again", patience, || async {
        Ok(server.tls().await.ok())
    })
    .await
    .expect("room for a friend");
    warp_testkit::until("a friend is served", patience, || async {
        Ok(server.friend().await.apiserver_version().await.ok())
    })
    .await
    .expect("an answer");
}
