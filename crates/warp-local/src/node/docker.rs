//! The Docker runtime: containers by the Docker or Podman API over its socket. Containers carry labels,
//! so a restarted Warp finds its own and removes what no pod asks for any more.

mod access;
mod api;
mod create;
mod pod;
mod socket;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::contents::fields::Machine;
use super::devices::Devices;
use super::facts::Facts;
use super::lifecycle::Action;
use super::process::machine;
use super::runtime::{Due, Health, Refusal, Report, Runtime};

pub use api::{Docker as Api, DockerError};
pub use socket::{Search, find};

/// On every container of ours, with the data directory it belongs to.
pub(crate) const OWNER: &str = "gpu.warp.dev/owner";
pub(crate) const POD: &str = "gpu.warp.dev/pod-uid";
pub(crate) const CONTAINER: &str = "gpu.warp.dev/container";
pub(crate) const ATTEMPT: &str = "gpu.warp.dev/attempt";

/// See the module.
#[derive(Clone)]
pub struct Docker {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) client: kube::Client,
    pub(crate) api: Api,
    /// Where volumes are made, and the name containers are owned by.
    pub(crate) root: PathBuf,
    pub(crate) machine: Machine,
    pub(crate) reports: mpsc::UnboundedSender<Report>,
    pods: Mutex<BTreeMap<String, mpsc::UnboundedSender<pod::Order>>>,
}

impl std::fmt::Debug for Docker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Docker")
            .field("api", &self.shared.api)
            .finish_non_exhaustive()
    }
}

impl Docker {
    /// A runtime on an engine that answers, and where its reports come out. Watches the engine's events
    /// until the runtime is dropped.
    pub fn new(
        client: kube::Client,
        api: Api,
        root: &Path,
    ) -> (Self, mpsc::UnboundedReceiver<Report>) {
        let (reports, receive) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            client,
            api,
            root: root.to_owned(),
            machine: machine::share(),
            reports,
            pods: Mutex::default(),
        });
        tokio::spawn(pod::watch(Arc::downgrade(&shared)));
        (Self { shared }, receive)
    }

    fn order(&self, pod: &Arc<Pod>, facts: &Facts, order: pod::Order) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut pods = self.shared.pods.lock();
        let task = pods
            .entry(uid)
            .or_insert_with(|| pod::start(self.shared.clone(), pod.clone(), facts.devices.clone()));
        task.send(order).ok();
    }
}

impl Shared {
    pub(crate) fn owner(&self) -> String {
        self.root.display().to_string()
    }

    pub(crate) fn folder(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    /// Passes an order on to a pod that is known.
    pub(crate) fn tell(&self, uid: &str, order: pod::Order) {
        if let Some(task) = self.pods.lock().get(uid) {
            task.send(order).ok();
        }
    }

    pub(crate) fn known(&self) -> Vec<String> {
        self.pods.lock().keys().cloned().collect()
    }
}

impl Runtime for Docker {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn admit(&self, pod: &Pod) -> Result<(), Refusal> {
        create::unsupported(pod).map_or(Ok(()), |message| {
            Err(Refusal {
                reason: "UnsupportedOnDockerNode".to_owned(),
                message,
            })
        })
    }

    fn act(&self, pod: &Arc<Pod>, facts: &Facts, action: &Action, _now: Timestamp) -> Vec<Due> {
        self.order(pod, facts, pod::Order::Do(action.clone()));
        Vec::new()
    }

    fn adopt(&self, pod: &Arc<Pod>, facts: &Facts, _now: Timestamp) -> Vec<Due> {
        let live = facts
            .containers
            .iter()
            .filter_map(|(name, seen)| {
                let run = seen.run.as_ref().filter(|run| run.exit.is_none())?;
                Some((name.clone(), run.attempt))
            })
            .collect();
        self.order(pod, facts, pod::Order::Adopt { live });
        Vec::new()
    }

    fn held_devices(&self, pod: &Pod) -> Option<Devices> {
        pod::Record::read(&self.shared.folder(pod.metadata.uid.as_deref()?))
            .map(|record| record.devices)
    }

    fn forget(&self, pod: &Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if let Some(task) = self.shared.pods.lock().remove(&uid) {
            task.send(pod::Order::Forget).ok();
        }
    }

    fn keep_only(&self, known: &BTreeSet<String>) {
        let (shared, known) = (self.shared.clone(), known.clone());
        tokio::spawn(async move { pod::remove_orphans(&shared, &known).await });
    }

    fn health(&self, _node: &Node) -> Health {
        Health::default()
    }

    fn device_lost(
        &self,
        _pod: &Arc<Pod>,
        _facts: &Facts,
        _containers: &[String],
        _now: Timestamp,
    ) -> Vec<Due> {
        Vec::new()
    }
}
