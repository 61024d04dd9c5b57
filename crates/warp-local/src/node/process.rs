//! The process runtime: containers as child processes of a small supervisor per pod (this binary, run
//! again), which outlives a crash of Warp, records how each ended, and is found again afterwards.
//!
//! It runs commands, it does not contain them: no image, no own file system, and of the network only an
//! address of its own.

mod admit;
mod cgroup;
mod container;
pub mod health;
mod input;
mod log;
pub mod machine;
mod memory;
mod names;
mod pod;
mod probe;
mod saved;
mod serve;
mod spec;
mod supervisor;
mod sweep;
mod terminal;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use tokio::sync::mpsc;

use super::address::Addresses;
use super::contents::fields::Machine;
use super::devices::Devices;
use super::facts::Facts;
use super::lifecycle::Action;
use super::runtime::{Due, Health, Refusal, Report, Runtime};
use super::task::{Order, Record, Tasks, live_runs, stops};
use crate::background;

pub use cgroup::Cgroups;
pub use container::run as run_container;
pub(crate) use probe::{port_only as probe_port, unavailable};
pub use supervisor::run as run_supervisor;

/// The hidden verbs the binary must answer with [`run_supervisor`] and [`run_container`].
pub const SUPERVISE: &str = "__supervise";
pub const CONTAINER: &str = "__container";

/// Names the command of a container whose image is not `local://…`: a JSON list of words, under
/// `process.gpu.warp.dev/command` or, for one container, `process.gpu.warp.dev/command.<container>`.
pub const COMMAND_ANNOTATION: &str = "process.gpu.warp.dev/command";
/// Images with this scheme stand for nothing but the machine itself.
pub const LOCAL_IMAGE: &str = "local://";
/// This program itself: the arguments are a verb of it. Pods with it have a loopback address of their own.
pub const WARP_IMAGE: &str = "local://warp";

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("failed to make the folder {path} for the pods' files")]
    Folder {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "the path {path} is too long for the sockets of its pods by {over} characters; choose a shorter one with --data (`warp node process`: --pods)"
    )]
    LongPath { path: PathBuf, over: usize },
}

/// A pod's socket, as long as any of them gets below the data directory.
const LONGEST_SOCKET: usize = "/pods/00000000-0000-0000-0000-000000000000/socket".len();
/// What the system takes as the path of a socket.
const SOCKET_LIMIT: usize = 107;

/// See the module.
#[derive(Clone)]
pub struct Process {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) client: kube::Client,
    /// `pods/<uid>` below it.
    pub(crate) root: PathBuf,
    /// This binary.
    pub(crate) program: PathBuf,
    pub(crate) address: String,
    pub(crate) machine: Machine,
    pub(crate) cgroups: Cgroups,
    addresses: Addresses,
    pub(crate) reports: mpsc::UnboundedSender<Report>,
    watch: health::Watch,
    tasks: Tasks,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process")
            .field("root", &self.shared.root)
            .finish_non_exhaustive()
    }
}

impl Process {
    /// A runtime with its files below `root`, and where its reports come out.
    pub fn new(
        client: kube::Client,
        root: &Path,
        program: PathBuf,
        address: &str,
        cgroups: Cgroups,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Report>), ProcessError> {
        if let Some(over) = too_long(root) {
            let path = root.to_owned();
            return Err(ProcessError::LongPath { path, over });
        }
        let pods = root.join("pods");
        std::fs::create_dir_all(&pods)
            .map_err(|source| ProcessError::Folder { path: pods, source })?;
        let (reports, receive) = mpsc::unbounded_channel();
        let watch = health::Watch::start();
        let runtime = Self {
            shared: Arc::new(Shared {
                client,
                root: root.to_owned(),
                program,
                address: address.to_owned(),
                machine: machine::share(),
                cgroups,
                addresses: Addresses::default(),
                reports,
                watch,
                tasks: Tasks::default(),
            }),
        };
        Ok((runtime, receive))
    }

    fn order(&self, pod: &Arc<Pod>, facts: &Facts, order: Order) {
        self.shared.tasks.order(pod, order, || {
            pod::Task::new(&self.shared, pod, &facts.devices)
        });
    }
}

/// By how many characters a data directory's path is too long for the sockets of its pods.
pub fn too_long(root: &Path) -> Option<usize> {
    (root.as_os_str().len() + LONGEST_SOCKET)
        .checked_sub(SOCKET_LIMIT)
        .filter(|over| *over > 0)
}

/// Pods with files below `root`, whether or not an API still knows them.
pub fn left_behind(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join("pods"));
    entries
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

/// Whether something of the pod still runs.
pub fn is_running(root: &Path, uid: &str) -> bool {
    std::os::unix::net::UnixStream::connect(root.join("pods").join(uid).join("socket")).is_ok()
}

/// Ends every pod below `root`, waits until its processes are gone, and removes its files.
pub async fn end_all(root: &Path) {
    let cgroups = Cgroups::find();
    for uid in left_behind(root) {
        pod::end_folder(root, &cgroups, &uid).await;
    }
}

impl Shared {
    pub(crate) fn folder(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    /// An address of the pod's own, unless it asks for the machine's or others must reach it from outside:
    /// what is told of loopback means nothing there.
    fn own_address(&self, pod: &Pod, uid: &str) -> Option<Ipv4Addr> {
        let local = self
            .address
            .parse::<Ipv4Addr>()
            .is_ok_and(|own| own.is_loopback());
        let shares = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
        // Elsewhere only the first address of the block answers.
        (cfg!(target_os = "linux") && local && !shares).then(|| self.addresses.take(uid))
    }

    /// Ends a pod that has no task, and removes its files.
    fn sweep(self: &Arc<Self>, uid: String) {
        let shared = self.clone();
        background::spawn(
            async move { pod::end_folder(&shared.root, &shared.cgroups, &uid).await },
        );
    }
}

impl Runtime for Process {
    fn name(&self) -> &'static str {
        "process"
    }

    fn reads_contents(&self) -> bool {
        true
    }

    fn is_own_image(&self, image: &str) -> bool {
        image.starts_with(LOCAL_IMAGE)
    }

    fn runs_as_root(&self) -> bool {
        rustix::process::geteuid().is_root()
    }

    fn admit(&self, pod: &Pod) -> Result<(), Refusal> {
        admit::unsupported(pod).map_or(Ok(()), |message| {
            Err(Refusal {
                reason: "UnsupportedOnProcessNode".to_owned(),
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
        let uid = pod.metadata.uid.as_deref()?;
        Record::read(&self.shared.folder(uid)).map(|record| record.devices)
    }

    fn forget(&self, pod: &Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if !self.shared.tasks.forget(&uid) {
            self.shared.sweep(uid);
        }
    }

    fn keep_only(&self, known: &BTreeSet<String>) {
        for uid in left_behind(&self.shared.root) {
            if !known.contains(&uid) {
                self.shared.sweep(uid);
            }
        }
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
