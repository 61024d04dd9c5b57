//! One task per pod for the runtimes that really run things: it carries the state machine's orders out in
//! their order, keeps what must survive a restart, and keeps mounted ConfigMaps and Secrets fresh. What
//! an order means is the runtime's.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::Client;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

use super::contents::fields::{Machine, Place};
use super::contents::volumes::{Maker, Volumes};
use super::devices::Devices;
use super::facts::{Event, Facts, containers};
use super::lifecycle::Action;
use super::runtime::Report;
use crate::background;

/// How often mounted ConfigMaps, Secrets and tokens are compared with the API, as a kubelet does.
const REFRESH: Duration = Duration::from_mins(1);
/// How often it is looked when a pod last saved its work, where it says where it does: so often at most that is told.
const SAVED: Duration = Duration::from_secs(15);
const RECORD: &str = "pod.json";

pub(crate) enum Order {
    Do(Action),
    /// Find out what became of these runs.
    Adopt {
        live: BTreeMap<String, u32>,
    },
    /// Something may have ended unseen.
    Look,
    /// The object is gone.
    Forget,
}

/// What must survive a restart, in the pod's folder.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) devices: Devices,
    pub(crate) volumes: Volumes,
    /// The pod's own address, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<Ipv4Addr>,
}

impl Record {
    pub(crate) fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(folder.join(RECORD)).ok()?).ok()
    }

    fn write(&self, folder: &Path) -> std::io::Result<()> {
        replace(&folder.join(RECORD), &serde_json::to_vec(self)?)
    }
}

/// Writes a private file that is whole or as it was, whatever happens in between.
pub(crate) fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.new"));
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(content)?;
    std::fs::rename(&temporary, path)
}

/// What the task of any pod has.
pub(crate) struct Frame {
    pub(crate) client: Client,
    pub(crate) pod: Arc<Pod>,
    pub(crate) uid: String,
    /// The pod's files.
    pub(crate) folder: PathBuf,
    /// The machine's address.
    pub(crate) host: String,
    /// The pod's: its own, or the machine's.
    pub(crate) address: String,
    pub(crate) machine: Machine,
    pub(crate) record: Record,
    pub(crate) reports: mpsc::UnboundedSender<Report>,
}

impl Frame {
    pub(crate) fn report(&self, event: Event) {
        let report = Report {
            uid: self.uid.clone(),
            event,
        };
        // Nobody listens any more only when the host has ended.
        self.reports.send(report).ok();
    }

    pub(crate) fn container(&self, name: &str) -> Option<&Container> {
        containers(self.pod.spec.as_ref()?).find(|container| container.name == name)
    }

    /// Where the pod is, as its containers are told.
    pub(crate) fn place(&self) -> Place<'_> {
        Place {
            pod: &self.address,
            host: &self.host,
        }
    }

    fn maker(&self) -> Maker<'_> {
        Maker {
            client: &self.client,
            pod: &self.pod,
            place: self.place(),
            machine: self.machine,
            folder: self.folder.join("volumes"),
        }
    }

    /// Makes the pod's folder and volumes and writes down what it holds.
    pub(crate) async fn lay_out(&mut self) -> Result<(), String> {
        // Secrets lie below: nobody else looks in.
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)
            .map_err(|error| format!("failed to make {}: {error}", self.folder.display()))?;
        let made = self.maker().make().await.map_err(|error| error.told())?;
        self.record.volumes = made;
        self.record
            .write(&self.folder)
            .map_err(|error| format!("failed to keep the pod's record: {error}"))
    }

    /// Whether everything that was laid out is still there; it is not after the folder was cleaned.
    pub(crate) fn is_laid_out(&self) -> bool {
        let wanted = self
            .pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten());
        wanted
            .map(|volume| self.record.volumes.get(&volume.name))
            .all(|place| place.is_some_and(|place| place.exists()))
    }

    pub(crate) fn clear_volumes(&mut self) {
        self.record.volumes.clear();
        std::fs::remove_dir_all(self.folder.join("volumes")).ok();
    }

    async fn refresh(&self) {
        if !self.record.volumes.is_empty() {
            self.maker().refresh(&self.record.volumes).await;
        }
    }

    pub(crate) fn prepared(&self, made: Result<(), String>, ip: Option<String>) {
        self.report(match made {
            Ok(()) => Event::Prepared { ip },
            Err(message) => Event::PrepareFailed {
                message,
                at: Timestamp::now(),
            },
        });
    }

    pub(crate) fn misconfigured(&self, container: &str, attempt: u32, message: String) {
        self.report(Event::Misconfigured {
            container: container.to_owned(),
            attempt,
            reason: "CreateContainerConfigError".to_owned(),
            message,
            at: Timestamp::now(),
        });
    }
}

/// What a runtime does with a pod's orders.
pub(crate) trait Worker: Sized + Send + 'static {
    /// What it hears of its pod by itself.
    type News: Send;

    fn frame(&self) -> &Frame;
    fn act(&mut self, action: Action) -> impl Future<Output = ()> + Send;
    fn adopt(&mut self, live: BTreeMap<String, u32>) -> impl Future<Output = ()> + Send;
    fn look(&mut self) -> impl Future<Output = ()> + Send;
    /// The next news; dropped half-way when an order comes, so it must lose nothing by that.
    fn news(&mut self) -> impl Future<Output = Self::News> + Send;
    fn heard(&mut self, news: Self::News) -> impl Future<Output = ()> + Send;
    fn forget(self) -> impl Future<Output = ()> + Send;
    /// Tells when the pod last saved its work, where that can be seen from outside.
    fn tell_saved(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Starts the task of a pod.
fn start<W: Worker>(mut worker: W) -> mpsc::UnboundedSender<Order> {
    let (send, mut orders) = mpsc::unbounded_channel();
    background::spawn(async move {
        let mut fresh = tokio::time::interval_at(Instant::now() + REFRESH, REFRESH);
        fresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut saved = tokio::time::interval_at(Instant::now() + SAVED, SAVED);
        saved.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    None => return,
                    Some(Order::Forget) => return worker.forget().await,
                    Some(Order::Adopt { live }) => worker.adopt(live).await,
                    Some(Order::Look) => worker.look().await,
                    Some(Order::Do(action)) => worker.act(action).await,
                },
                news = worker.news() => worker.heard(news).await,
                _ = fresh.tick() => worker.frame().refresh().await,
                _ = saved.tick() => worker.tell_saved().await,
            }
        }
    });
    send
}

/// The tasks of a runtime, by the uid of their pods.
#[derive(Debug, Default)]
pub(crate) struct Tasks(Mutex<BTreeMap<String, mpsc::UnboundedSender<Order>>>);

impl Tasks {
    /// Gives a pod's task an order; a pod without one gets one.
    pub(crate) fn order<W: Worker>(&self, pod: &Pod, order: Order, worker: impl FnOnce() -> W) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut tasks = self.0.lock();
        let task = tasks.entry(uid).or_insert_with(|| start(worker()));
        // A task ends only when its pod is forgotten.
        task.send(order).ok();
    }

    /// Passes an order on to a pod that is known.
    pub(crate) fn tell(&self, uid: &str, order: Order) {
        if let Some(task) = self.0.lock().get(uid) {
            task.send(order).ok();
        }
    }

    pub(crate) fn known(&self) -> Vec<String> {
        self.0.lock().keys().cloned().collect()
    }

    /// Lets a pod's task clean up and end; false when there is none to do it.
    pub(crate) fn forget(&self, uid: &str) -> bool {
        let task = self.0.lock().remove(uid);
        task.is_some_and(|task| task.send(Order::Forget).is_ok())
    }
}

/// What runs on a broken device is stopped at once; its policy decides whether it starts again.
pub(crate) fn stops(facts: &Facts, containers: &[String]) -> Vec<Action> {
    live_runs(facts)
        .into_iter()
        .filter(|(container, _)| containers.contains(container))
        .map(|(container, attempt)| Action::Stop {
            container,
            attempt,
            grace: Duration::ZERO,
        })
        .collect()
}

/// The runs that had not ended when a pod's status was last written.
pub(crate) fn live_runs(facts: &Facts) -> BTreeMap<String, u32> {
    facts
        .containers
        .iter()
        .filter_map(|(name, seen)| {
            let run = seen.run.as_ref().filter(|run| run.exit.is_none())?;
            Some((name.clone(), run.attempt))
        })
        .collect()
}
