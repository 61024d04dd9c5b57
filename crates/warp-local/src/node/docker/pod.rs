//! One pod on the engine: a task that carries the state machine's orders out in their order, and the
//! watch over all containers that tells it how they ended.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;

use super::api::{DockerError, Inspected};
use super::{OWNER, POD, Shared, create};
use crate::node::contents::environment::{Scope, Sources, expand};
use crate::node::contents::volumes::{Maker, Volumes};
use crate::node::devices::Devices;
use crate::node::facts::{Event, Exit, containers};
use crate::node::lifecycle::{Action, is_sidecar};
use crate::node::process::probe_port;
use crate::node::runtime::Report;

const RECONNECT: Duration = Duration::from_secs(1);

pub(crate) enum Order {
    Do(Action),
    Adopt {
        live: BTreeMap<String, u32>,
    },
    /// Look at every live container: some of them ended, or the engine was away.
    Look,
    Forget,
}

/// What must survive a restart, in the pod's folder.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) devices: Devices,
    volumes: Volumes,
}

impl Record {
    pub(crate) fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(folder.join("docker.json")).ok()?).ok()
    }

    fn write(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("docker.json"), serde_json::to_vec(self)?)
    }
}

struct Task {
    shared: Arc<Shared>,
    pod: Arc<Pod>,
    uid: String,
    record: Record,
    /// Runs that were started and have not ended.
    live: BTreeMap<String, u32>,
}

/// Starts the task of a pod.
pub(super) fn start(
    shared: Arc<Shared>,
    pod: Arc<Pod>,
    devices: Devices,
) -> mpsc::UnboundedSender<Order> {
    let (send, mut orders) = mpsc::unbounded_channel();
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let record = Record::read(&shared.folder(&uid)).unwrap_or(Record {
        devices,
        volumes: Volumes::new(),
    });
    let mut task = Task {
        shared,
        pod,
        uid,
        record,
        live: BTreeMap::new(),
    };
    tokio::spawn(async move {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Do(action) => task.act(action).await,
                Order::Adopt { live } => {
                    task.live = live;
                    task.look().await;
                }
                Order::Look => task.look().await,
                Order::Forget => return task.forget().await,
            }
        }
    });
    send
}

impl Task {
    fn report(&self, event: Event) {
        let report = Report {
            uid: self.uid.clone(),
            event,
        };
        self.shared.reports.send(report).ok();
    }

    fn container(&self, name: &str) -> Option<&Container> {
        containers(self.pod.spec.as_ref()?).find(|container| container.name == name)
    }

    fn name(&self, container: &str, attempt: u32) -> String {
        create::name(&self.pod, container, attempt)
    }

    async fn act(&mut self, action: Action) {
        match action {
            Action::Prepare => self.prepare().await,
            Action::Pull { container } => self.pull(container),
            Action::Start { container, attempt } => self.start(&container, attempt).await,
            Action::Probe {
                container,
                attempt,
                kind,
            } => self.probe(container, attempt, kind),
            Action::Stop {
                container,
                attempt,
                grace,
            } => self.stop(&container, attempt, grace),
            Action::Teardown => {
                // Containers stay for their logs; they go with the pod's object.
                std::fs::remove_dir_all(self.shared.folder(&self.uid).join("volumes")).ok();
                self.report(Event::TornDown);
            }
        }
    }

    async fn prepare(&mut self) {
        let folder = self.shared.folder(&self.uid);
        let maker = Maker {
            client: &self.shared.client,
            pod: &self.pod,
            address: "",
            machine: self.shared.machine,
            folder: folder.join("volumes"),
        };
        let made = match maker.make().await {
            Ok(volumes) => {
                self.record.volumes = volumes;
                self.record
                    .write(&folder)
                    .map_err(|error| format!("failed to keep the pod's record: {error}"))
            }
            Err(error) => Err(error.told()),
        };
        self.report(match made {
            Ok(()) => Event::Prepared { ip: None },
            Err(message) => Event::PrepareFailed {
                message,
                at: Timestamp::now(),
            },
        });
    }

    fn pull(&self, container: String) {
        let Some(found) = self.container(&container) else {
            return;
        };
        let image = found.image.clone().unwrap_or_default();
        let policy = found.image_pull_policy.clone().unwrap_or_default();
        let (shared, uid) = (self.shared.clone(), self.uid.clone());
        tokio::spawn(async move {
            let event = match pulled(&shared, &image, &policy).await {
                Ok(image_id) => Event::Pulled {
                    container,
                    image_id,
                },
                Err((reason, message)) => Event::PullFailed {
                    container,
                    reason: reason.to_owned(),
                    message,
                    at: Timestamp::now(),
                },
            };
            shared.reports.send(Report { uid, event }).ok();
        });
    }

    async fn start(&mut self, name: &str, attempt: u32) {
        let Some(container) = self.container(name).cloned() else {
            return;
        };
        match self.try_start(&container, attempt).await {
            Ok(id) => {
                self.live.insert(name.to_owned(), attempt);
                self.report(Event::Started {
                    container: name.to_owned(),
                    attempt,
                    id: format!("docker://{id}"),
                    at: Timestamp::now(),
                });
                // It may be over already, before the events had its name.
                self.look().await;
            }
            Err(Failure::Content(message)) => self.report(Event::Misconfigured {
                container: name.to_owned(),
                attempt,
                reason: "CreateContainerConfigError".to_owned(),
                message,
                at: Timestamp::now(),
            }),
            Err(Failure::Engine(error)) => self.report(Event::Exited {
                container: name.to_owned(),
                attempt,
                exit: Exit {
                    reason: "StartError".to_owned(),
                    message: Some(error.to_string()),
                    ..Exit::with_code(128, Timestamp::now())
                },
            }),
        }
    }

    async fn try_start(&self, container: &Container, attempt: u32) -> Result<String, Failure> {
        let namespace = self.pod.metadata.namespace.as_deref().unwrap_or("default");
        let sources = Sources::new(&self.shared.client, namespace);
        let scope = Scope {
            pod: &self.pod,
            container,
            sources: &sources,
            address: "",
            machine: self.shared.machine,
        };
        let environment = scope
            .resolve(BTreeMap::new())
            .await
            .map_err(|error| Failure::Content(error.told()))?;
        let mut container = container.clone();
        for words in [&mut container.command, &mut container.args]
            .into_iter()
            .flatten()
        {
            for word in words {
                *word = expand(word, &environment);
            }
        }
        let neighbour = self.neighbour(&container.name).await;
        let run = create::Run {
            owner: &self.shared.owner(),
            attempt,
            environment: &environment,
            volumes: &self.record.volumes,
            devices: &self.record.devices,
            network_of: neighbour.as_deref(),
        };
        let body = create::body(&self.pod, &container, &run);
        let id = self
            .shared
            .api
            .create(&self.name(&container.name, attempt), &body)
            .await?;
        self.shared.api.start(&id).await?;
        Ok(id)
    }

    /// A running container of the pod whose network the next one shares.
    async fn neighbour(&self, name: &str) -> Option<String> {
        let spec = self.pod.spec.as_ref()?;
        let lasting = containers(spec).filter(|other| {
            other.name != name
                && (is_sidecar(other) || spec.containers.iter().any(|main| main.name == other.name))
        });
        for other in lasting {
            let Some(attempt) = self.live.get(&other.name) else {
                continue;
            };
            let found = self
                .shared
                .api
                .inspect(&self.name(&other.name, *attempt))
                .await;
            if let Ok(found) = found
                && found.state.status == "running"
            {
                return Some(found.id);
            }
        }
        None
    }

    fn probe(&self, container: String, attempt: u32, kind: crate::node::lifecycle::ProbeKind) {
        let Some(found) = self.container(&container).cloned() else {
            return;
        };
        let (shared, uid, name) = (
            self.shared.clone(),
            self.uid.clone(),
            self.name(&container, attempt),
        );
        tokio::spawn(async move {
            let (ok, message) = probed(&shared, &name, &found, kind).await;
            let event = Event::Probed {
                container,
                attempt,
                kind,
                ok,
                message,
                at: Timestamp::now(),
            };
            shared.reports.send(Report { uid, event }).ok();
        });
    }

    fn stop(&self, container: &str, attempt: u32, grace: Duration) {
        let hook = self
            .container(container)
            .and_then(|container| container.lifecycle.clone()?.pre_stop)
            .unwrap_or_default();
        let (shared, uid, name) = (
            self.shared.clone(),
            self.uid.clone(),
            self.name(container, attempt),
        );
        tokio::spawn(async move {
            let begun = tokio::time::Instant::now();
            let before = async {
                if let Some(command) = hook.exec.and_then(|exec| exec.command)
                    && let Ok(exec) = shared.api.exec(&name, &command, false).await
                    && let Ok(mut streams) = shared.api.exec_start(&exec).await
                {
                    tokio::io::copy(&mut streams, &mut tokio::io::sink())
                        .await
                        .ok();
                }
                if let Some(sleep) = hook.sleep {
                    tokio::time::sleep(Duration::from_secs(sleep.seconds.max(0).unsigned_abs()))
                        .await;
                }
            };
            tokio::time::timeout(grace, before).await.ok();
            let left = grace.saturating_sub(begun.elapsed()).as_secs();
            if let Err(error) = shared.api.stop(&name, left).await {
                tracing::warn!(container = name, %error, "container not stopped");
            }
            shared.tell(&uid, Order::Look);
        });
    }

    /// Reports every live run that is over. Nothing is said while the engine does not answer.
    async fn look(&mut self) {
        for (container, attempt) in self.live.clone() {
            let exit = match self
                .shared
                .api
                .inspect(&self.name(&container, attempt))
                .await
            {
                Ok(found) => match exit_of(&found) {
                    Some(exit) => exit,
                    None => continue,
                },
                Err(error) if error.is_missing() => Exit::unknown(Timestamp::now()),
                Err(_) => continue,
            };
            self.live.remove(&container);
            self.report(Event::Exited {
                container,
                attempt,
                exit,
            });
        }
    }

    async fn forget(self) {
        remove_of(&self.shared, &self.uid).await;
        std::fs::remove_dir_all(self.shared.folder(&self.uid)).ok();
    }
}

enum Failure {
    Content(String),
    Engine(DockerError),
}

impl From<DockerError> for Failure {
    fn from(error: DockerError) -> Self {
        Self::Engine(error)
    }
}

async fn pulled(
    shared: &Shared,
    image: &str,
    policy: &str,
) -> Result<String, (&'static str, String)> {
    let failed = |error: DockerError| {
        (
            "ErrImagePull",
            format!("failed to pull image \"{image}\": {error}"),
        )
    };
    let present = shared.api.image_id(image).await.map_err(failed)?;
    match (present, policy) {
        (Some(id), "IfNotPresent" | "Never") => return Ok(id),
        (None, "Never") => {
            let message =
                format!("Container image \"{image}\" is not present with pull policy of Never");
            return Err(("ErrImageNeverPull", message));
        }
        _ => {}
    }
    let mut told = 0;
    shared
        .api
        .pull(image, |done, total| {
            let tenth = (done * 10).checked_div(total).unwrap_or_default();
            if tenth > told {
                told = tenth;
                tracing::info!(image, done, total, "pulling");
            }
        })
        .await
        .map_err(failed)?;
    let id = shared.api.image_id(image).await.map_err(failed)?;
    id.ok_or_else(|| {
        (
            "ErrImagePull",
            format!("failed to pull image \"{image}\": it is not there after the pull"),
        )
    })
}

fn exit_of(found: &Inspected) -> Option<Exit> {
    if !matches!(found.state.status.as_str(), "exited" | "dead") {
        return None;
    }
    let at = found
        .state
        .finished_at
        .parse()
        .unwrap_or_else(|_| Timestamp::now());
    let code = i32::try_from(found.state.exit_code).unwrap_or(-1);
    let mut exit = Exit::with_code(code, at);
    if found.state.oom_killed {
        "OOMKilled".clone_into(&mut exit.reason);
    }
    exit.message = Some(found.state.error.clone()).filter(|error| !error.is_empty());
    Some(exit)
}

async fn probed(
    shared: &Shared,
    name: &str,
    container: &Container,
    kind: crate::node::lifecycle::ProbeKind,
) -> (bool, String) {
    let Some(probe) = kind.of(container) else {
        return (true, String::new());
    };
    if let Some(exec) = &probe.exec {
        let limit = Duration::from_secs(u64::from(
            probe.timeout_seconds.unwrap_or(1).max(1).unsigned_abs(),
        ));
        let run = async {
            let id = shared
                .api
                .exec(name, exec.command.as_deref().unwrap_or_default(), false)
                .await?;
            let mut streams = shared.api.exec_start(&id).await?;
            tokio::io::copy(&mut streams, &mut tokio::io::sink())
                .await
                .ok();
            shared.api.exec_code(&id).await
        };
        return match tokio::time::timeout(limit, run).await {
            Ok(Ok(0)) => (true, String::new()),
            Ok(Ok(code)) => (false, format!("the command exited with {code}")),
            Ok(Err(error)) => (false, error.to_string()),
            Err(_) => (false, format!("timed out after {}s", limit.as_secs())),
        };
    }
    match shared.api.inspect(name).await {
        Ok(found) => {
            let address =
                Some(found.network_settings.address).filter(|address| !address.is_empty());
            probe_port(kind, container, address.as_deref().unwrap_or("127.0.0.1")).await
        }
        Err(error) => (false, error.to_string()),
    }
}

/// Watches the ends of our containers; after every gap, everything is looked at again.
pub(super) async fn watch(shared: Weak<Shared>) {
    loop {
        let Some(strong) = shared.upgrade() else {
            return;
        };
        let label = format!("{OWNER}={}", strong.owner());
        let stream = strong.api.events(&label).await;
        for uid in strong.known() {
            strong.tell(&uid, Order::Look);
        }
        drop(strong);
        if let Ok(mut lines) = stream {
            while let Ok(Some(line)) = lines.next().await {
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                let event: Value = serde_json::from_slice(&line).unwrap_or_default();
                if let Some(uid) = event["Actor"]["Attributes"][POD].as_str() {
                    shared.tell(uid, Order::Look);
                }
            }
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

async fn remove_of(shared: &Shared, uid: &str) {
    let found = shared
        .api
        .list(&format!("{POD}={uid}"))
        .await
        .unwrap_or_default();
    for container in found {
        if let Err(error) = shared.api.remove(&container.id).await {
            tracing::warn!(container = container.id, %error, "container not removed");
        }
    }
}

/// Removes containers of ours whose pod is not known any more.
pub(super) async fn remove_orphans(shared: &Shared, known: &BTreeSet<String>) {
    let label = format!("{OWNER}={}", shared.owner());
    for container in shared.api.list(&label).await.unwrap_or_default() {
        let uid = container.labels.get(POD);
        if uid.is_none_or(|uid| !known.contains(uid))
            && let Err(error) = shared.api.remove(&container.id).await
        {
            tracing::warn!(container = container.id, %error, "orphan not removed");
        }
    }
}
