//! A Kubernetes-compatible API server as a library.
//!
//! Stores objects, serves them over the Kubernetes API (watch, patches, server-side apply, custom
//! resources) and gives this process a `kube::Client` without sockets. It runs no controllers and
//! no pods; it depends on no other crate of this workspace.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use warp_apiserver::{ApiServer, Options};
//!
//! let server = ApiServer::start(Options::ephemeral()?).await?;
//! let client = server.client("default");
//! println!("{}", client.apiserver_version().await?.git_version);
//! # Ok(()) }
//! ```

pub mod admission;
mod audit;
pub mod auth;
pub mod client;
pub mod clock;
pub mod codec;
mod expiry;
mod history;
pub mod hooks;
mod http;
pub mod kinds;
mod metrics;
pub mod patch;
pub mod registry;
pub mod schema;
pub mod store;
mod transfer;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::http::Request;
use axum::body::Body;
use tokio::net::TcpListener;

pub use crate::http::Limits;
use admission::Admission;
pub use audit::AuditError;
use audit::AuditLog;
use auth::{Authenticator, Identity, IdentityError};
use clock::Clock;
use hooks::{NoNodes, NodeHooks};
use http::{Api, Origin, Parts};
use registry::Registry;
use store::{OpenError, Store, StoreOptions};
pub use transfer::TransferError;

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error("failed to create initial object {name}: {reason}")]
    Initial { name: String, reason: String },
}

/// How to run the server.
#[derive(Debug)]
pub struct Options {
    pub store: StoreOptions,
    pub identity: Identity,
    pub clock: Clock,
    pub limits: Limits,
    pub hooks: Arc<dyn NodeHooks>,
    /// How long an Event stays after its last write.
    pub keep_events: Duration,
    /// How often the history of before the last time is forgotten: a revision can be watched and listed from
    /// for this long at least, and twice as long at most. `None` keeps what there is room for.
    pub compact_every: Option<Duration>,
    /// Where requests that came over the network are recorded, one line each.
    pub audit: Option<PathBuf>,
    /// Runs after the built-in admission, in this order.
    pub admission: Vec<AdmissionPlugin>,
}

/// A plugged-in admission step.
#[derive(Clone)]
pub struct AdmissionPlugin(pub Arc<dyn Admission>);

impl std::fmt::Debug for AdmissionPlugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdmissionPlugin")
    }
}

impl Options {
    /// Everything in memory, forgotten at the end.
    pub fn ephemeral() -> Result<Self, IdentityError> {
        Ok(Self::with(
            StoreOptions::default(),
            Identity::load(None, &[])?,
        ))
    }

    /// State and secrets kept in a directory; `names` are further host names to answer for.
    pub fn in_directory(directory: &Path, names: &[String]) -> Result<Self, IdentityError> {
        let identity = Identity::load(Some(directory), names)?;
        let store = StoreOptions {
            path: Some(store::database_in(directory)),
            ..StoreOptions::default()
        };
        Ok(Self::with(store, identity))
    }

    fn with(store: StoreOptions, identity: Identity) -> Self {
        Self {
            store,
            identity,
            clock: Clock::system(),
            limits: Limits::default(),
            hooks: Arc::new(NoNodes),
            keep_events: Duration::from_hours(1),
            compact_every: Some(history::COMPACT_EVERY),
            audit: None,
            admission: Vec::new(),
        }
    }
}

/// A running server. Cloning gives another handle to it.
#[derive(Clone, Debug)]
pub struct ApiServer {
    api: Arc<Api>,
    identity: Arc<Identity>,
}

impl ApiServer {
    /// Opens the state and makes the server ready; it listens only once `serve` is called.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let Options {
            store,
            identity,
            clock,
            limits,
            hooks,
            keep_events,
            compact_every,
            audit,
            admission,
        } = options;
        let store = Store::open(&store)?;
        let auth = Authenticator::new(&identity)?;
        let registry = Registry::new(store.clone(), kinds::builtin());
        let mut plugins = admission::builtin();
        plugins.extend(admission.into_iter().map(|plugin| plugin.0));
        let parts = Parts {
            store,
            registry,
            clock,
            admission: plugins,
            hooks,
            auth,
            limits,
            audit: audit.map(AuditLog::open).transpose()?,
        };
        let api = Arc::new(Api::new(parts));
        registry::definitions::start(&api, api.stop.clone());
        expiry::start(&api, keep_events);
        if let Some(every) = compact_every {
            history::start(&api, every);
        }
        let server = Self {
            api,
            identity: Arc::new(identity),
        };
        server.create_initial_objects().await?;
        Ok(server)
    }

    /// What a cluster has before anyone touches it; what is there already stays.
    async fn create_initial_objects(&self) -> Result<(), StartError> {
        let objects = kinds::initial_objects();
        let (namespaces, rest): (Vec<_>, Vec<_>) = objects
            .into_iter()
            .partition(|object| object["kind"] == "Namespace");
        for group in [namespaces, rest] {
            let made = group
                .into_iter()
                .map(|object| self.create_if_absent(object));
            futures::future::try_join_all(made).await?;
        }
        Ok(())
    }

    async fn create_if_absent(&self, object: serde_json::Value) -> Result<(), StartError> {
        let name = object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let refused = |reason: String| StartError::Initial {
            name: name.clone(),
            reason,
        };
        let (group, version) = match object["apiVersion"].as_str().unwrap_or_default() {
            text if text.contains('/') => text.split_once('/').unwrap_or_default(),
            text => ("", text),
        };
        let kind = object["kind"].as_str().unwrap_or_default();
        let served = self.api.registry.served();
        let entry = served
            .kind(group, kind)
            .filter(|entry| entry.resource.version == version)
            .ok_or_else(|| refused(format!("{group}/{version} {kind} is not served")))?;
        let namespace = object["metadata"]["namespace"].as_str();
        if entry.table.get(&store::key(namespace, &name)).is_some() {
            return Ok(());
        }
        let root = if group.is_empty() {
            "/api/v1".to_owned()
        } else {
            format!("/apis/{group}/{version}")
        };
        let within = namespace
            .map(|name| format!("/namespaces/{name}"))
            .unwrap_or_default();
        let request = Request::builder()
            .method("POST")
            .uri(format!(
                "{root}{within}/{}?fieldManager=warp",
                entry.resource.plural
            ))
            .header("content-type", "application/json")
            .body(Body::from(object.to_string()))
            .map_err(|error| refused(error.to_string()))?;
        let response = self.api.handle(request, Origin::Inside).await;
        if response.status().is_success() || response.status() == 409 {
            return Ok(());
        }
        let code = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20)
            .await
            .unwrap_or_default();
        Err(refused(format!(
            "{code}: {}",
            String::from_utf8_lossy(&body)
        )))
    }

    /// A client of this server as its administrator; must be called inside a tokio runtime.
    pub fn client(&self, default_namespace: &str) -> kube::Client {
        kube::Client::new(self.service(), default_namespace)
    }

    /// The server as a service.
    pub fn service(&self) -> client::InProcess {
        client::InProcess(Arc::clone(&self.api))
    }

    /// Serves TLS connections until [`Self::shutdown`].
    pub async fn serve(&self, listener: TcpListener) {
        if let Ok(address) = listener.local_addr() {
            self.api.auth.set_address(address.to_string());
        }
        http::serve(Arc::clone(&self.api), listener, self.identity.tls()).await;
    }

    /// A kubeconfig for the administrator.
    pub fn kubeconfig(&self, address: SocketAddr) -> String {
        self.identity.kubeconfig(&format!("https://{address}"))
    }

    /// Writes the kubeconfig, readable by its owner only.
    pub fn write_kubeconfig(&self, path: &Path, address: SocketAddr) -> Result<(), IdentityError> {
        auth::write_kubeconfig(path, &self.kubeconfig(address))
    }

    pub fn store(&self) -> &Store {
        &self.api.store
    }

    pub fn clock(&self) -> &Clock {
        &self.api.clock
    }

    /// Ends watches and connections and writes what is still on its way to disk.
    pub async fn shutdown(&self) {
        self.api.stop.cancel();
        self.api.store.close().await;
    }
}
