//! The embedded engine in this process: API server, controllers, scheduler and simulated nodes, as `warp up` joins
//! them, on a free port.
//!
//! Owns: starting and ending them. The operator is left out: scenarios start it as a process of its own, on either
//! engine. Must not soften the engine: what a real control plane is told by a flag, it is told by an option.

mod script;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::Client;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use warp_apiserver::admission::{Admission, AdmissionRequest, ReadState, Refusal, Warnings};
use warp_apiserver::{AdmissionPlugin, ApiServer, Options};
use warp_local::controllers;
use warp_local::node::fleet::Shape;
use warp_local::node::{Host, host};

use self::script::Scripted;
use super::credentials::{self, Access};
use super::{Builder, Components, NodeLoss};
use crate::binaries;
use crate::node::NodeShape;

/// As the flags of the real components in a cluster that notices lost nodes quickly.
const QUICK_GRACE: Duration = Duration::from_secs(20);
const QUICK_LEASE: Duration = Duration::from_secs(1);
const QUICK_TOLERATION: i64 = 2;

pub(super) struct Engine {
    // Before the folder: what runs writes there.
    running: Running,
    client: Client,
    groups: Mutex<BTreeMap<String, Group>>,
    node_loss: NodeLoss,
    access: Access,
    binaries: PathBuf,
    folder: TempDir,
}

/// Ends every task of the engine when it is dropped, also by a panic.
struct Running {
    stop: CancellationToken,
    server: ApiServer,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let server = self.server.clone();
            runtime.spawn(async move { server.shutdown().await });
        }
    }
}

/// Nodes that are lost together.
#[derive(Default)]
struct Group {
    /// One set for every call that added nodes.
    fleets: Vec<Vec<Shape>>,
    /// Ends their kubelets; none while they are lost.
    running: Option<CancellationToken>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl Engine {
    pub(super) async fn start(builder: &Builder) -> Result<Self> {
        let temporary = TempDir::with_prefix("warp-embedded-")?;
        let folder = temporary.path();
        // The server keeps a token it finds, so the administrator's is the same on both engines.
        std::fs::write(folder.join("token"), credentials::ADMIN_TOKEN)?;
        let mut options = Options::in_directory(folder, &[])?;
        options.store.path = None;
        if builder.audit {
            options.audit = Some(folder.join("audit.log"));
        }
        if builder.node_loss == NodeLoss::Quick {
            options
                .admission
                .push(AdmissionPlugin(Arc::new(QuickEviction)));
        }
        if let Some(time) = builder.events_kept {
            options.keep_events = time;
        }
        let root_ca = options.identity.ca().to_owned();
        let server = ApiServer::start(options).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let access = Access::admin_only(folder, listener.local_addr()?.port())?;
        let accepting = server.clone();
        tokio::spawn(async move { accepting.serve(listener).await });
        let client = server.client("default");
        let stop = CancellationToken::new();
        match builder.components {
            Components::All => {
                let options = controllers::Options {
                    root_ca: Some(root_ca),
                    volumes: Some(folder.join("volumes")),
                    node_grace: match builder.node_loss {
                        NodeLoss::Quick => QUICK_GRACE,
                        NodeLoss::Patient => controllers::Options::default().node_grace,
                    },
                    ..controllers::Options::default()
                };
                let (client, clock, stop) = (client.clone(), server.clock().clone(), stop.clone());
                tokio::spawn(controllers::run(client, clock, options, stop));
            }
            Components::ApiServerOnly => {}
            Components::Scheduler { .. } => {
                bail!("an extender asks a real kube-scheduler; the embedded engine has none")
            }
        }
        Ok(Self {
            running: Running { stop, server },
            client,
            groups: Mutex::default(),
            node_loss: builder.node_loss,
            access,
            binaries: binaries::control_plane()?,
            folder: temporary,
        })
    }

    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn binaries(&self) -> &Path {
        &self.binaries
    }

    /// Starts the kubelets of new nodes, which register themselves.
    pub(super) fn add_nodes(&self, shape: &NodeShape, first: usize, count: usize) -> Result<()> {
        let fleet: Vec<Shape> = (first..first + count)
            .map(|number| registered(shape, number))
            .collect::<Result<_>>()?;
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let group = groups.entry(shape.group().to_owned()).or_default();
        let running = group
            .running
            .get_or_insert_with(CancellationToken::new)
            .clone();
        self.run(fleet.clone(), running);
        group.fleets.push(fleet);
        Ok(())
    }

    pub(super) fn recover_group(&self, name: &str) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let group = groups.entry(name.to_owned()).or_default();
        if group.running.is_none() {
            let running = group.running.insert(CancellationToken::new()).clone();
            for fleet in &group.fleets {
                self.run(fleet.clone(), running.clone());
            }
        }
    }

    pub(super) fn lose_group(&self, name: &str) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = groups.get_mut(name).and_then(|group| group.running.take()) {
            running.cancel();
        }
    }

    #[allow(
        clippy::print_stderr,
        reason = "the test that waits for its nodes shows it"
    )]
    fn run(&self, shapes: Vec<Shape>, running: CancellationToken) {
        let mut options = host::Options::for_fleet(shapes.len());
        if self.node_loss == NodeLoss::Quick {
            options.lease_every = QUICK_LEASE;
        }
        let host = Host {
            client: self.client.clone(),
            clock: self.running.server.clock().clone(),
            shapes,
            runtime: Arc::new(Scripted::default()),
            reports: None,
            options,
        };
        let ended = self.running.stop.clone();
        tokio::spawn(async move {
            let host = host.run(running.clone());
            tokio::select! {
                () = ended.cancelled() => {}
                outcome = host => if let Err(error) = outcome {
                    eprintln!("simulated nodes ended: {error}");
                }
            }
        });
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let groups = self
            .groups
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for running in groups.values_mut().filter_map(|group| group.running.take()) {
            running.cancel();
        }
    }
}

/// The shape as the engine's nodes register it.
fn registered(shape: &NodeShape, number: usize) -> Result<Shape> {
    let node = shape.node(number)?;
    let name = shape.name_of(number);
    let resources = node
        .status
        .and_then(|status| status.capacity)
        .unwrap_or_default();
    // Devices are what a plugin advertises: their names have a domain.
    let (devices, capacity): (BTreeMap<_, _>, BTreeMap<_, _>) = resources
        .into_iter()
        .partition(|(resource, _)| resource.contains('/'));
    let devices = devices
        .into_iter()
        .map(|(resource, count)| Ok((resource, count.0.parse().context("a count of devices")?)))
        .collect::<Result<_>>()?;
    Ok(Shape {
        provider: "testbed".to_owned(),
        labels: node.metadata.labels.unwrap_or_default(),
        annotations: BTreeMap::new(),
        taints: node.spec.and_then(|spec| spec.taints).unwrap_or_default(),
        capacity,
        devices,
        address: format!("10.0.{}.{}", number / 250, number % 250 + 1),
        runtime: "simulated://1".to_owned(),
        name,
    })
}

/// What the flags `--default-not-ready-toleration-seconds` and `--default-unreachable-toleration-seconds` do.
struct QuickEviction;

impl Admission for QuickEviction {
    fn admit(
        &self,
        request: &mut AdmissionRequest<'_>,
        _state: &dyn ReadState,
    ) -> Result<Warnings, Refusal> {
        if request.resource.plural == "pods" && request.old.is_none() {
            let tolerations = request.object.pointer_mut("/spec/tolerations");
            let tolerations = tolerations.and_then(|found| found.as_array_mut());
            for toleration in tolerations.into_iter().flatten() {
                if toleration["tolerationSeconds"] == 300 {
                    toleration["tolerationSeconds"] = QUICK_TOLERATION.into();
                }
            }
        }
        Ok(Warnings::new())
    }
}
