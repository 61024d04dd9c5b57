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
mod spdy;
pub mod store;
mod transfer;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

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
        server.reconcile_default_roles().await?;
        auth::start_aggregation(&server.api).await;
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

    /// Default roles and bindings that are missing are made, those that lack something get it back.
    async fn reconcile_default_roles(&self) -> Result<(), StartError> {
        let objects = auth::default_objects();
        let made = objects
            .into_iter()
            .map(|object| self.reconcile_default(object));
        futures::future::try_join_all(made).await?;
        Ok(())
    }

    async fn reconcile_default(&self, object: serde_json::Value) -> Result<(), StartError> {
        let (entry, path) = self.place_of(&object)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let Some(stored) = entry.table.get(name) else {
            return self.create_if_absent(object).await;
        };
        let stored = stored.value();
        let at = format!("{path}/{name}");
        if stored["roleRef"] != object["roleRef"] && !auth::is_left_alone(&stored) {
            // A binding to another role under a name of ours cannot be changed, only made again.
            self.initially("DELETE", &at, &serde_json::Value::Null, name)
                .await?;
            return self.create_if_absent(object).await;
        }
        match auth::changed_default(&stored, &object) {
            Some(new) => {
                let at = format!("{at}?fieldManager=warp");
                self.initially("PUT", &at, &new, name).await
            }
            None => Ok(()),
        }
    }

    /// The entry an initial object belongs to and the path of its collection.
    fn place_of(
        &self,
        object: &serde_json::Value,
    ) -> Result<(Arc<registry::Entry>, String), StartError> {
        let (group, version) = match object["apiVersion"].as_str().unwrap_or_default() {
            text if text.contains('/') => text.split_once('/').unwrap_or_default(),
            text => ("", text),
        };
        let kind = object["kind"].as_str().unwrap_or_default();
        let served = self.api.registry.served();
        let entry = served
            .kind(group, kind)
            .filter(|entry| entry.resource.version == version)
            .ok_or_else(|| StartError::Initial {
                name: object["metadata"]["name"].to_string(),
                reason: format!("{group}/{version} {kind} is not served"),
            })?;
        let root = if group.is_empty() {
            "/api/v1".to_owned()
        } else {
            format!("/apis/{group}/{version}")
        };
        let within = object["metadata"]["namespace"]
            .as_str()
            .map(|name| format!("/namespaces/{name}"))
            .unwrap_or_default();
        let path = format!("{root}{within}/{}", entry.resource.plural);
        Ok((Arc::clone(entry), path))
    }

    async fn create_if_absent(&self, object: serde_json::Value) -> Result<(), StartError> {
        let (entry, path) = self.place_of(&object)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let key = store::key(object["metadata"]["namespace"].as_str(), name);
        if entry.table.get(&key).is_some() {
            return Ok(());
        }
        let path = format!("{path}?fieldManager=warp");
        self.initially("POST", &path, &object, name).await
    }

    async fn initially(
        &self,
        method: &str,
        path: &str,
        body: &serde_json::Value,
        name: &str,
    ) -> Result<(), StartError> {
        let asked = self.api.ask(method, path, "application/json", body).await;
        asked.map_err(|reason| StartError::Initial {
            name: name.to_owned(),
            reason,
        })
    }

    /// A client of this server as its administrator; must be called inside a tokio runtime.
    pub fn client(&self, default_namespace: &str) -> kube::Client {
        kube::Client::new(self.service(), default_namespace)
    }

    /// A client with the rights of a service account: for parts of this process that have a role of
    /// their own.
    pub fn client_as(&self, namespace: &str, account: &str) -> kube::Client {
        let user = auth::User::account(namespace, account);
        let service = client::InProcess {
            api: Arc::clone(&self.api),
            origin: Origin::As(Arc::new(user)),
        };
        kube::Client::new(service, namespace)
    }

    /// The server as a service for its administrator.
    pub fn service(&self) -> client::InProcess {
        client::InProcess {
            api: Arc::clone(&self.api),
            origin: Origin::Inside,
        }
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
