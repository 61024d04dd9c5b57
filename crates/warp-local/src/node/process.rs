//! The process runtime: containers as child processes of a small supervisor per pod (this binary, run
//! again), which outlives a crash of Warp, records how each ended, and is found again afterwards.
//!
//! It runs commands, it does not contain them: no image, no own file system, no own network.

mod cgroup;
mod container;
mod log;
pub mod machine;
mod pod;
mod probe;
mod serve;
mod spec;
mod supervisor;
mod sweep;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::contents::fields::Machine;
use super::devices::Devices;
use super::facts::{Facts, containers};
use super::lifecycle::{Action, ProbeKind};
use super::runtime::{Due, Health, Refusal, Report, Runtime};

pub use cgroup::Cgroups;
pub use container::run as run_container;
pub use supervisor::run as run_supervisor;

/// The hidden verbs the binary must answer with [`run_supervisor`] and [`run_container`].
pub const SUPERVISE: &str = "__supervise";
pub const CONTAINER: &str = "__container";

/// Names the command of a container whose image is not `local://…`: a JSON list of words, under
/// `process.gpu.warp.dev/command` or, for one container, `process.gpu.warp.dev/command.<container>`.
pub const COMMAND_ANNOTATION: &str = "process.gpu.warp.dev/command";
/// Images with this scheme stand for nothing but the machine itself.
pub const LOCAL_IMAGE: &str = "local://";

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("failed to make the folder {path} for the pods' files")]
    Folder {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

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
    pub(crate) reports: mpsc::UnboundedSender<Report>,
    tasks: Mutex<BTreeMap<String, mpsc::UnboundedSender<pod::Order>>>,
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
        let pods = root.join("pods");
        std::fs::create_dir_all(&pods)
            .map_err(|source| ProcessError::Folder { path: pods, source })?;
        let (reports, receive) = mpsc::unbounded_channel();
        let runtime = Self {
            shared: Arc::new(Shared {
                client,
                root: root.to_owned(),
                program,
                address: address.to_owned(),
                machine: machine::share(),
                cgroups,
                reports,
                tasks: Mutex::default(),
            }),
        };
        Ok((runtime, receive))
    }

    fn order(&self, pod: &Arc<Pod>, facts: &Facts, order: pod::Order) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut tasks = self.shared.tasks.lock();
        let task = tasks
            .entry(uid)
            .or_insert_with(|| pod::start(self.shared.clone(), pod.clone(), facts.devices.clone()));
        // A task ends only when its pod is forgotten.
        task.send(order).ok();
    }
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
}

impl Runtime for Process {
    fn name(&self) -> &'static str {
        "process"
    }

    fn admit(&self, pod: &Pod) -> Result<(), Refusal> {
        let refuse = |message: String| {
            Err(Refusal {
                reason: "UnsupportedOnProcessNode".to_owned(),
                message,
            })
        };
        let Some(spec) = &pod.spec else {
            return Ok(());
        };
        for container in containers(spec) {
            for kind in ProbeKind::ALL {
                if let Some(probe) = kind.of(container)
                    && let Some(what) = probe::unsupported(probe)
                {
                    return refuse(format!(
                        "container {}: {} probes are not available on a process node; use exec, httpGet over http or tcpSocket",
                        container.name, what
                    ));
                }
            }
            let hook = container
                .lifecycle
                .as_ref()
                .and_then(|lifecycle| lifecycle.post_start.as_ref());
            if hook.is_some() {
                return refuse(format!(
                    "container {}: postStart hooks are not available on a process node; start the work in the command",
                    container.name
                ));
            }
        }
        Ok(())
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
        let uid = pod.metadata.uid.as_deref()?;
        pod::Record::read(&self.shared.folder(uid)).map(|record| record.devices)
    }

    fn forget(&self, pod: &Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let task = self.shared.tasks.lock().remove(&uid);
        if let Some(task) = task {
            task.send(pod::Order::Forget).ok();
        }
    }

    fn keep_only(&self, known: &BTreeSet<String>) {
        for uid in left_behind(&self.shared.root) {
            if !known.contains(&uid) {
                let shared = self.shared.clone();
                tokio::spawn(
                    async move { pod::end_folder(&shared.root, &shared.cgroups, &uid).await },
                );
            }
        }
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
