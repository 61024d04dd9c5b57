//! The Docker runtime: containers by the Docker or Podman API over its socket. Containers carry labels,
//! so a restarted Warp finds its own and removes what no pod asks for any more.

mod access;
mod api;
mod create;
mod credentials;
mod pod;
mod socket;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use tokio::sync::mpsc;

use super::contents::fields::Machine;
use super::devices::Devices;
use super::facts::Facts;
use super::lifecycle::Action;
use super::process::health::Watch;
use super::process::machine;
use super::runtime::{Due, Health, Refusal, Report, Runtime};
use super::task::{Order, Record, Tasks, live_runs, stops};
use crate::background;

pub use api::{Docker as Api, DockerError};
pub use socket::{Search, find};

/// On every container of ours, with the data directory it belongs to.
pub const OWNER: &str = "gpu.warp.dev/owner";
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
    pub(crate) tasks: Tasks,
    /// The files of this machine's devices, by resource and number.
    pub(crate) files: BTreeMap<&'static str, Vec<Vec<String>>>,
    watch: Watch,
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
            tasks: Tasks::default(),
            files: machine::device_files(Path::new("/sys")),
            watch: Watch::start(),
        });
        background::spawn(pod::watch(Arc::downgrade(&shared)));
        (Self { shared }, receive)
    }

    fn order(&self, pod: &Arc<Pod>, facts: &Facts, order: Order) {
        self.shared.tasks.order(pod, order, || {
            pod::Task::new(&self.shared, pod, &facts.devices)
        });
    }
}

/// Containers of a data directory, by the engine that answers.
async fn owned(root: &Path) -> Result<(Api, Vec<api::Listed>), DockerError> {
    let api = find(&Search::from_environment(None)).await?;
    let listed = api.list(&format!("{OWNER}={}", root.display())).await?;
    Ok((api, listed))
}

/// How many containers of a data directory run.
pub async fn running(root: &Path) -> Result<usize, DockerError> {
    let (_, listed) = owned(root).await?;
    Ok(listed
        .iter()
        .filter(|container| container.state == "running")
        .count())
}

/// Removes every container of a data directory; how many there were.
pub async fn end_all(root: &Path) -> Result<usize, DockerError> {
    let (api, listed) = owned(root).await?;
    for container in &listed {
        api.remove(&container.id).await?;
    }
    Ok(listed.len())
}

impl Shared {
    pub(crate) fn owner(&self) -> String {
        self.root.display().to_string()
    }

    pub(crate) fn folder(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }
}

impl Runtime for Docker {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn reads_contents(&self) -> bool {
        true
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
        self.order(pod, facts, Order::Do(action.clone()));
        Vec::new()
    }

    fn adopt(&self, pod: &Arc<Pod>, facts: &Facts, _now: Timestamp) -> Vec<Due> {
        let live = live_runs(facts);
        self.order(pod, facts, Order::Adopt { live });
        Vec::new()
    }

    fn held_devices(&self, pod: &Pod) -> Option<Devices> {
        Record::read(&self.shared.folder(pod.metadata.uid.as_deref()?)).map(|record| record.devices)
    }

    fn forget(&self, pod: &Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if !self.shared.tasks.forget(&uid) {
            background::spawn(pod::remove_all(self.shared.clone(), uid));
        }
    }

    fn keep_only(&self, known: &BTreeSet<String>) {
        let (shared, known) = (self.shared.clone(), known.clone());
        background::spawn(async move { pod::remove_orphans(&shared, &known).await });
    }

    fn health(&self, _node: &Node) -> Health {
        Health {
            lost: false,
            broken: self.shared.watch.broken(),
            unknown: Vec::new(),
        }
    }

    fn device_lost(
        &self,
        pod: &Arc<Pod>,
        facts: &Facts,
        containers: &[String],
        _now: Timestamp,
    ) -> Vec<Due> {
        for action in stops(facts, containers) {
            self.order(pod, facts, Order::Do(action));
        }
        Vec::new()
    }
}
