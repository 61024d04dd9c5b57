//! An admission webhook of a test, with its own certificate authority.
//!
//! Owns: serving HTTPS on loopback and refusing whatever is asked. Must not register itself: which requests it is
//! asked about is the scenario's business.

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::{Context, Result};
use base64::Engine;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

/// A running webhook; dropping it stops it.
#[derive(Debug)]
pub struct Webhook {
    port: u16,
    authority: String,
    serving: AbortHandle,
}

impl Webhook {
    /// Refuses everything with `reason`.
    pub async fn refusing(reason: &str) -> Result<Self> {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let serving =
            CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&key, &authority)?;
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![serving.der().clone()], private)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let reason: Arc<str> = Arc::from(reason);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(acceptor.clone(), stream, Arc::clone(&reason)));
            }
        });
        Ok(Self {
            port,
            authority: authority.pem(),
            serving: task.abort_handle(),
        })
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}/", self.port)
    }

    /// As `clientConfig.caBundle` wants it.
    pub fn ca_bundle(&self) -> String {
        base64::engine::general_purpose::STANDARD.encode(&self.authority)
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// One connection; a client that goes away is no matter.
async fn answer(acceptor: TlsAcceptor, stream: TcpStream, reason: Arc<str>) -> Result<()> {
    let stream = TokioIo::new(acceptor.accept(stream).await?);
    let service = service_fn(move |request: Request<Incoming>| {
        let reason = Arc::clone(&reason);
        async move {
            let review = refuse(request, &reason).await.unwrap_or_default();
            let body = Full::new(Bytes::from(review.to_string()));
            let mut response = Response::new(body);
            let json = http::HeaderValue::from_static("application/json");
            response
                .headers_mut()
                .insert(http::header::CONTENT_TYPE, json);
            Ok::<_, Infallible>(response)
        }
    });
    hyper::server::conn::http1::Builder::new()
        .serve_connection(stream, service)
        .await?;
    Ok(())
}

async fn refuse(request: Request<Incoming>, reason: &str) -> Result<Value> {
    let body = request.into_body().collect().await?.to_bytes();
    let review: Value = serde_json::from_slice(&body).context("an AdmissionReview")?;
    Ok(json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {
            "uid": review["request"]["uid"],
            "allowed": false,
            "status": {"code": 403, "message": reason},
        },
    }))
}
