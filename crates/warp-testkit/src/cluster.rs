//! A cluster in a test.
//!
//! Owns: what a scenario may do to a cluster whatever runs it: clients for an administrator and for
//! service accounts, namespaces, nodes that appear and get lost, the audit log. Must not know which
//! engine runs behind the address; that is the business of `real` and `embedded`.

mod credentials;
mod embedded;
mod real;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::audit::{self, Request};
use crate::kubectl::Kubectl;
use crate::node::NodeShape;
use crate::wait::{PATIENCE, until, wait_for};
use credentials::Access;
pub(crate) use real::SCHEDULER_LOG;

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub struct Builder {
    engine: Engine,
    nodes: Vec<(NodeShape, usize)>,
    audit: bool,
    node_loss: NodeLoss,
    components: Components,
    events_kept: Option<Duration>,
}

/// What runs the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Kubernetes' own programs, with KWOK for the nodes.
    Real,
    /// Warp's, as `warp up` starts them.
    Embedded,
}

/// Which programs run beside etcd and the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Components {
    /// Controllers, scheduler and simulated nodes.
    All,
    /// No controllers and no nodes; the API alone.
    ApiServerOnly,
    /// The API and a scheduler that asks us before it binds.
    Scheduler { extender: u16 },
}

/// How quickly the cluster notices that a node is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeLoss {
    /// Kubernetes' own defaults; a busy machine never loses a node by accident.
    Patient,
    /// Seconds instead of minutes.
    Quick,
}

impl Builder {
    /// Adds `count` nodes of a shape.
    #[must_use]
    pub fn nodes(mut self, shape: NodeShape, count: usize) -> Self {
        self.nodes.push((shape, count));
        self
    }

    /// Records the requests of service accounts (on the embedded engine: of every client from outside).
    #[must_use]
    pub fn audited(mut self) -> Self {
        self.audit = true;
        self
    }

    /// Notices lost nodes and evicts their pods within seconds.
    #[must_use]
    pub fn quick_node_loss(mut self) -> Self {
        self.node_loss = NodeLoss::Quick;
        self
    }

    /// Forgets Events after this time instead of an hour.
    #[must_use]
    pub fn events_kept_for(mut self, time: Duration) -> Self {
        self.events_kept = Some(time);
        self
    }

    /// Starts etcd and the API server only.
    #[must_use]
    pub fn api_server_only(mut self) -> Self {
        self.components = Components::ApiServerOnly;
        self
    }

    /// Starts etcd, the API server and a scheduler that shows every choice it has to the extender
    /// on `port`.
    #[must_use]
    pub(crate) fn scheduler_only(mut self, extender: u16) -> Self {
        self.components = Components::Scheduler { extender };
        self
    }

    /// Starts everything and waits until the API answers and every node is ready.
    pub async fn start(self) -> Result<Cluster> {
        let running = match self.engine {
            Engine::Real => Running::Real(real::ControlPlane::start(&self).await?),
            Engine::Embedded => Running::Embedded(Box::pin(embedded::Engine::start(&self)).await?),
        };
        let cluster = Cluster {
            running,
            namespaces: AtomicUsize::new(0),
            markers: AtomicUsize::new(0),
        };
        for (shape, count) in &self.nodes {
            cluster.add_nodes(shape, 0, *count).await?;
        }
        Ok(cluster)
    }
}

/// A running cluster; dropping it ends every process and removes its files.
#[derive(Debug)]
pub struct Cluster {
    running: Running,
    namespaces: AtomicUsize,
    markers: AtomicUsize,
}

#[derive(Debug)]
enum Running {
    Real(real::ControlPlane),
    Embedded(embedded::Engine),
}

impl Cluster {
    /// A real control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and
    /// KWOK for the nodes.
    pub fn real() -> Builder {
        Self::on(Engine::Real)
    }

    /// The embedded engine, with its own simulated nodes, in this process.
    pub fn embedded() -> Builder {
        Self::on(Engine::Embedded)
    }

    /// A cluster on the engine of one's choice.
    pub fn on(engine: Engine) -> Builder {
        Builder {
            engine,
            nodes: Vec::new(),
            audit: false,
            node_loss: NodeLoss::Patient,
            components: Components::All,
            events_kept: None,
        }
    }

    fn access(&self) -> &Access {
        match &self.running {
            Running::Real(real) => real.access(),
            Running::Embedded(embedded) => embedded.access(),
        }
    }

    /// What runs this cluster.
    pub fn engine(&self) -> Engine {
        match &self.running {
            Running::Real(_) => Engine::Real,
            Running::Embedded(_) => Engine::Embedded,
        }
    }

    /// A new client with all rights. A client belongs to the runtime it was made in.
    pub async fn client(&self) -> Result<Client> {
        self.access().client(credentials::ADMIN_TOKEN).await
    }

    /// The kubeconfig of the administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder().join(credentials::ADMIN_KUBECONFIG)
    }

    /// kubectl as the administrator.
    pub fn kubectl(&self) -> Kubectl {
        let binaries = match &self.running {
            Running::Real(real) => real.binaries(),
            Running::Embedded(embedded) => embedded.binaries(),
        };
        Kubectl {
            program: binaries.join("kubectl"),
            kubeconfig: self.kubeconfig(),
        }
    }

    /// The folder for files of this cluster; it goes with the cluster.
    pub fn folder(&self) -> PathBuf {
        match &self.running {
            Running::Real(real) => real.folder().to_owned(),
            Running::Embedded(embedded) => embedded.folder().to_owned(),
        }
    }

    /// A token of a service account, which must exist.
    pub async fn token_of(&self, namespace: &str, name: &str) -> Result<String> {
        // No audience named: the API server's own, whatever each engine calls it.
        let request: TokenRequest = serde_json::from_value(json!({
            "spec": {"audiences": [], "expirationSeconds": 7200},
        }))?;
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(&request)?)?;
        let answer: TokenRequest = self
            .client()
            .await?
            .request(request)
            .await
            .with_context(|| format!("failed to get a token of '{namespace}/{name}'"))?;
        Ok(answer
            .status
            .context("failed to read the token: the answer has no status")?
            .token)
    }

    /// A client with the rights of a service account.
    pub async fn client_as(&self, namespace: &str, name: &str) -> Result<Client> {
        let token = self.token_of(namespace, name).await?;
        self.access().client(&token).await
    }

    /// Writes the kubeconfig of a service account and gives its path.
    pub async fn kubeconfig_as(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let token = self.token_of(namespace, name).await?;
        let path = self.folder().join(format!("{namespace}-{name}.kubeconfig"));
        self.access().write_kubeconfig(&path, &token)?;
        Ok(path)
    }

    /// Makes a namespace of its own for a test and waits until pods can be created in it.
    pub async fn namespace(&self, purpose: &str) -> Result<String> {
        let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
        let name = format!("{purpose}-{number}");
        let client = self.client().await?;
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await?;
        let accounts = Api::<ServiceAccount>::namespaced(client, &name);
        wait_for(&accounts, "default", "created", PATIENCE, |account| {
            account.is_some()
        })
        .await?;
        Ok(name)
    }

    /// Adds nodes `first..first + count` of a shape and waits until they are ready; gives their names.
    pub async fn add_nodes(
        &self,
        shape: &NodeShape,
        first: usize,
        count: usize,
    ) -> Result<Vec<String>> {
        let nodes = Api::<Node>::all(self.client().await?);
        match &self.running {
            Running::Real(real) => {
                real.play_group(shape.group())?;
                for number in first..first + count {
                    let node = shape.node(number)?;
                    nodes.create(&PostParams::default(), &node).await?;
                    let status = json!({"status": node.status});
                    nodes
                        .patch_status(
                            &node.name_any(),
                            &PatchParams::default(),
                            &Patch::Merge(status),
                        )
                        .await?;
                }
            }
            Running::Embedded(embedded) => embedded.add_nodes(shape, first, count)?,
        }
        let names: Vec<String> = (first..first + count)
            .map(|number| shape.name_of(number))
            .collect();
        for name in &names {
            wait_for(&nodes, name, "ready", PATIENCE, |node| {
                node.is_some_and(is_ready)
            })
            .await?;
        }
        Ok(names)
    }

    /// Ends the kubelets of a group of nodes: they neither report nor act any more.
    pub fn lose(&self, group: &str) {
        match &self.running {
            Running::Real(real) => real.lose_group(group),
            Running::Embedded(embedded) => embedded.lose_group(group),
        }
    }

    /// Starts the kubelets of a lost group again.
    pub fn recover(&self, group: &str) -> Result<()> {
        match &self.running {
            Running::Real(real) => real.play_group(group),
            Running::Embedded(embedded) => {
                embedded.recover_group(group);
                Ok(())
            }
        }
    }

    /// Removes a node's object, as a cloud's node controller does when the machine is gone.
    pub async fn delete_node(&self, name: &str) -> Result<()> {
        let nodes = Api::<Node>::all(self.client().await?);
        nodes.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Every request service accounts have made and that was answered before this call.
    pub async fn audit(&self) -> Result<Vec<Request>> {
        let log = self.folder().join("audit.log");
        // The log is written behind the answers: a marker request shows how far it is.
        let marker = format!("marker={}", self.markers.fetch_add(1, Ordering::Relaxed));
        let client = self.client_as("default", "default").await?;
        let request = http::Request::get(format!("/version?{marker}")).body(Vec::new())?;
        client.request_text(request).await?;
        let mut requests = until("the audit log has caught up", PATIENCE, || async {
            let requests = audit::read(&log)?;
            let caught_up = requests.iter().any(|r| r.uri.ends_with(&marker));
            Ok(caught_up.then_some(requests))
        })
        .await?;
        requests.retain(|request| !request.uri.contains("/version?marker="));
        Ok(requests)
    }
}

/// Whether a node's Ready condition is True.
pub fn is_ready(node: &Node) -> bool {
    node.status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
