//! One pod on the engine: carries the state machine's orders out, and the watch over all containers that
//! tells it how they ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::Value;

use super::api::{DockerError, Inspected};
use super::{OWNER, POD, Shared, create, credentials};
use crate::background;
use crate::node::checks::{self, User};
use crate::node::contents::environment::{Scope, Sources, expand};
use crate::node::devices::Devices;
use crate::node::facts::{Event, Exit, containers};
use crate::node::lifecycle::{Action, ProbeKind, is_sidecar};
use crate::node::process::probe_port;
use crate::node::runtime::Report;
use crate::node::task::{Frame, Order, Record, Worker};

const RECONNECT: Duration = Duration::from_secs(1);
/// Progress of a pull is told at most this often.
const PROGRESS: Duration = Duration::from_secs(5);

pub(super) struct Task {
    shared: Arc<Shared>,
    frame: Frame,
    /// Runs that were started and have not ended.
    live: BTreeMap<String, u32>,
}

impl Worker for Task {
    /// Ends come by the one watch over all containers, as orders to look.
    type News = std::convert::Infallible;

    fn frame(&self) -> &Frame {
        &self.frame
    }

    async fn act(&mut self, action: Action) {
        match action {
            Action::Prepare => {
                let made = self.frame.lay_out().await;
                self.frame.prepared(made, None);
            }
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
                self.frame.clear_volumes();
                self.frame.report(Event::TornDown);
            }
        }
    }

    async fn adopt(&mut self, live: BTreeMap<String, u32>) {
        self.live = live;
        self.look().await;
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
            self.frame.report(Event::Exited {
                container,
                attempt,
                exit,
            });
        }
    }

    async fn news(&mut self) -> Self::News {
        std::future::pending().await
    }

    async fn heard(&mut self, news: Self::News) {
        match news {}
    }

    async fn forget(self) {
        remove_all(self.shared, self.frame.uid).await;
    }
}

impl Task {
    pub(super) fn new(shared: &Arc<Shared>, pod: &Arc<Pod>, devices: &Devices) -> Self {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let folder = shared.folder(&uid);
        let record = Record::read(&folder).unwrap_or_else(|| Record {
            devices: devices.clone(),
            ..Record::default()
        });
        Self {
            shared: shared.clone(),
            frame: Frame {
                client: shared.client.clone(),
                pod: pod.clone(),
                uid,
                folder,
                host: String::new(),
                address: String::new(),
                machine: shared.machine,
                record,
                reports: shared.reports.clone(),
            },
            live: BTreeMap::new(),
        }
    }

    fn name(&self, container: &str, attempt: u32) -> String {
        create::name(&self.frame.pod, container, attempt)
    }

    fn pull(&self, container: String) {
        let Some(found) = self.frame.container(&container) else {
            return;
        };
        let pull = Pull {
            shared: self.shared.clone(),
            pod: self.frame.pod.clone(),
            uid: self.frame.uid.clone(),
            image: found.image.clone().unwrap_or_default(),
            policy: found.image_pull_policy.clone().unwrap_or_default(),
            container,
        };
        background::spawn(async move {
            let event = match pull.carry_out().await {
                Ok(image_id) => Event::Pulled {
                    container: pull.container.clone(),
                    image_id,
                },
                Err((reason, message)) => Event::PullFailed {
                    container: pull.container.clone(),
                    reason: reason.to_owned(),
                    message,
                    at: Timestamp::now(),
                },
            };
            pull.report(event);
        });
    }

    async fn start(&mut self, name: &str, attempt: u32) {
        let Some(container) = self.frame.container(name).cloned() else {
            return;
        };
        match self.try_start(&container, attempt).await {
            Ok(id) => {
                self.live.insert(name.to_owned(), attempt);
                self.frame.report(Event::Started {
                    container: name.to_owned(),
                    attempt,
                    id: format!("docker://{id}"),
                    at: Timestamp::now(),
                });
                // It may be over already, before the events had its name.
                self.look().await;
            }
            Err(Failure::Content(message)) => self.frame.misconfigured(name, attempt, message),
            Err(Failure::Engine(error)) => self.frame.report(Event::Exited {
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
        let namespace = self
            .frame
            .pod
            .metadata
            .namespace
            .as_deref()
            .unwrap_or("default");
        let sources = Sources::new(&self.shared.client, namespace);
        let scope = Scope {
            pod: &self.frame.pod,
            container,
            sources: &sources,
            place: self.frame.place(),
            machine: self.shared.machine,
        };
        let environment = scope
            .resolve(BTreeMap::new())
            .await
            .map_err(|error| Failure::Content(error.told()))?;
        if must_not_be_root(&self.frame.pod, container) {
            let image = container.image.as_deref().unwrap_or_default();
            let user = self.shared.api.image_user(image).await?;
            if let Some(why) =
                checks::root_refused(&self.frame.pod, container, User::OfImage(&user))
            {
                return Err(Failure::Content(why));
            }
        }
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
            volumes: &self.frame.record.volumes,
            devices: &self.frame.record.devices,
            network_of: neighbour.as_deref(),
            files: &self.shared.files,
        };
        let body = create::body(&self.frame.pod, &container, &run)
            .map_err(|error| Failure::Content(error.told()))?;
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
        let spec = self.frame.pod.spec.as_ref()?;
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

    fn probe(&self, container: String, attempt: u32, kind: ProbeKind) {
        let Some(found) = self.frame.container(&container).cloned() else {
            return;
        };
        let (shared, uid, name) = (
            self.shared.clone(),
            self.frame.uid.clone(),
            self.name(&container, attempt),
        );
        background::spawn(async move {
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
            .frame
            .container(container)
            .and_then(|container| container.lifecycle.clone()?.pre_stop)
            .unwrap_or_default();
        let (shared, uid, name) = (
            self.shared.clone(),
            self.frame.uid.clone(),
            self.name(container, attempt),
        );
        background::spawn(async move {
            let begun = tokio::time::Instant::now();
            let before = async {
                if let Some(command) = hook.exec.and_then(|exec| exec.command)
                    && let Ok(exec) = shared.api.exec(&name, &command, false, false).await
                    && let Ok(mut streams) = shared.api.exec_start(&exec, false).await
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
            shared.tasks.tell(&uid, Order::Look);
        });
    }
}

/// Whether it has to be known whom the image runs as.
fn must_not_be_root(pod: &Pod, container: &Container) -> bool {
    checks::root_refused(pod, container, User::OfImage("")).is_some()
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

/// One pull of one image.
struct Pull {
    shared: Arc<Shared>,
    pod: Arc<Pod>,
    uid: String,
    container: String,
    image: String,
    policy: String,
}

impl Pull {
    fn report(&self, event: Event) {
        let uid = self.uid.clone();
        self.shared.reports.send(Report { uid, event }).ok();
    }

    fn told(&self, message: String) {
        self.report(Event::Pulling {
            container: self.container.clone(),
            message,
        });
    }

    async fn carry_out(&self) -> Result<String, (&'static str, String)> {
        let (image, api) = (&self.image, &self.shared.api);
        let failed = |error: DockerError| {
            (
                "ErrImagePull",
                format!("failed to pull image \"{image}\": {error}"),
            )
        };
        let present = api.image_id(image).await.map_err(failed)?;
        match (present, self.policy.as_str()) {
            (Some(id), "IfNotPresent" | "Never") => return Ok(id),
            (None, "Never") => {
                let message =
                    format!("Container image \"{image}\" is not present with pull policy of Never");
                return Err(("ErrImageNeverPull", message));
            }
            _ => {}
        }
        self.told(format!("Pulling image \"{image}\""));
        let found = credentials::of(&self.shared.client, &self.pod, image)
            .await
            .map_err(|error| ("ErrImagePull", error.told()))?;
        // Each set of credentials in its order, and the registry without any at last, as a kubelet does.
        let mut last = None;
        for header in found.iter().map(Some).chain([None]) {
            match self.pull_with(header.map(String::as_str)).await {
                Ok(()) => {
                    last = None;
                    break;
                }
                // What every other set would meet too.
                Err(error @ (DockerError::Connect { .. } | DockerError::Broken { .. })) => {
                    return Err(failed(error));
                }
                Err(error) => last = last.or(Some(error)),
            }
        }
        if let Some(error) = last {
            return Err(failed(error));
        }
        let id = api.image_id(image).await.map_err(failed)?;
        id.ok_or_else(|| {
            (
                "ErrImagePull",
                format!("failed to pull image \"{image}\": it is not there after the pull"),
            )
        })
    }

    async fn pull_with(&self, credentials: Option<&str>) -> Result<(), DockerError> {
        let (mut told, mut since) = (0, tokio::time::Instant::now());
        self.shared
            .api
            .pull(&self.image, credentials, |done, total| {
                let tenth = (done * 10).checked_div(total).unwrap_or_default();
                if tenth > told && tenth < 10 && since.elapsed() >= PROGRESS {
                    (told, since) = (tenth, tokio::time::Instant::now());
                    self.told(format!(
                        "Pulling image \"{}\": {} of {} MB",
                        self.image,
                        done / 1_000_000,
                        total / 1_000_000
                    ));
                }
            })
            .await
    }
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
    kind: ProbeKind,
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
                .exec(
                    name,
                    exec.command.as_deref().unwrap_or_default(),
                    false,
                    false,
                )
                .await?;
            let mut streams = shared.api.exec_start(&id, false).await?;
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
        for uid in strong.tasks.known() {
            strong.tasks.tell(&uid, Order::Look);
        }
        drop(strong);
        if let Ok(mut lines) = stream {
            while let Ok(Some(line)) = lines.next().await {
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                let event: Value = serde_json::from_slice(&line).unwrap_or_default();
                if let Some(uid) = event["Actor"]["Attributes"][POD].as_str() {
                    shared.tasks.tell(uid, Order::Look);
                }
            }
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// Removes every container of a pod and its files. Tried until the engine has answered: a container that
/// is forgotten while the engine is away would run on and keep its devices.
pub(super) async fn remove_all(shared: Arc<Shared>, uid: String) {
    let label = format!("{POD}={uid}");
    loop {
        let mut left = true;
        if let Ok(found) = shared.api.list(&label).await {
            left = false;
            for container in found {
                if let Err(error) = shared.api.remove(&container.id).await {
                    tracing::warn!(container = container.id, %error, "container not removed, trying again");
                    left = true;
                }
            }
        }
        if !left {
            break;
        }
        tokio::time::sleep(RECONNECT).await;
    }
    std::fs::remove_dir_all(shared.folder(&uid)).ok();
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
