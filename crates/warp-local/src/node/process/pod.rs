//! One pod on this machine: a task that takes the state machine's orders to the supervisor and its
//! answers back, in order.

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Command;
use tokio::sync::mpsc;

use super::wire::{Request, State};
use super::{Cgroups, SUPERVISE, Shared, probe, spec, sweep};
use crate::node::contents::volumes::{Maker, Volumes};
use crate::node::devices::Devices;
use crate::node::facts::{Event, Exit, containers};
use crate::node::lifecycle::Action;
use crate::node::runtime::Report;

const START_LIMIT: Duration = Duration::from_secs(10);

pub(super) enum Order {
    Do(Action),
    /// Find out what became of these runs.
    Adopt {
        live: BTreeMap<String, u32>,
    },
    /// The object is gone.
    Forget,
}

/// What must survive a restart, in the pod's folder.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) devices: Devices,
    volumes: Volumes,
}

impl Record {
    pub(super) fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(folder.join("pod.json")).ok()?).ok()
    }

    fn write(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::write(folder.join("pod.json"), serde_json::to_vec(self)?)
    }
}

struct Link {
    write: OwnedWriteHalf,
    lines: Lines<BufReader<OwnedReadHalf>>,
}

struct Task {
    shared: Arc<Shared>,
    pod: Arc<Pod>,
    uid: String,
    record: Record,
    link: Option<Link>,
    /// Runs the supervisor has not told the end of.
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
        link: None,
        live: BTreeMap::new(),
    };
    tokio::spawn(async move {
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    None => return,
                    Some(Order::Forget) => return task.forget().await,
                    Some(Order::Adopt { live }) => task.adopt(live).await,
                    Some(Order::Do(action)) => task.act(action).await,
                },
                line = next_line(&mut task.link) => task.heard(line).await,
            }
        }
    });
    send
}

async fn next_line(link: &mut Option<Link>) -> Option<String> {
    match link {
        Some(link) => link.lines.next_line().await.ok().flatten(),
        None => std::future::pending().await,
    }
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

    async fn act(&mut self, action: Action) {
        match action {
            Action::Prepare => self.prepare().await,
            Action::Pull { container } => self.pull(&container),
            Action::Start { container, attempt } => self.start(&container, attempt).await,
            Action::Probe {
                container,
                attempt,
                kind,
            } => {
                let Some(found) = self.container(&container).cloned() else {
                    return;
                };
                let launch = spec::load(&self.shared.folder(&self.uid), &container);
                let (shared, uid) = (self.shared.clone(), self.uid.clone());
                tokio::spawn(async move {
                    let (ok, message) = probe::run(kind, &found, launch, &shared.address).await;
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
            Action::Stop {
                container,
                attempt,
                grace,
            } => self.stop(&container, attempt, grace).await,
            Action::Teardown => {
                self.end().await;
                let folder = self.shared.folder(&self.uid);
                for part in ["volumes", "root"] {
                    std::fs::remove_dir_all(folder.join(part)).ok();
                }
                self.report(Event::TornDown);
            }
        }
    }

    async fn prepare(&mut self) {
        let event = match self.try_prepare().await {
            Ok(()) => Event::Prepared {
                ip: Some(self.shared.address.clone()),
            },
            Err(message) => Event::PrepareFailed {
                message,
                at: Timestamp::now(),
            },
        };
        self.report(event);
    }

    async fn try_prepare(&mut self) -> Result<(), String> {
        let folder = self.shared.folder(&self.uid);
        // Secrets lie below: nobody else looks in.
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(|error| format!("failed to make {}: {error}", folder.display()))?;
        let maker = Maker {
            client: &self.shared.client,
            pod: &self.pod,
            address: &self.shared.address,
            machine: self.shared.machine,
            folder: folder.join("volumes"),
        };
        self.record.volumes = maker.make().await.map_err(|error| error.told())?;
        self.record
            .write(&folder)
            .map_err(|error| format!("failed to keep the pod's record: {error}"))?;
        if self.link.is_none() && !self.connect().await {
            self.start_supervisor(&folder).await?;
            if !self.connect().await {
                return Err("the supervisor of the pod does not answer".to_owned());
            }
        }
        Ok(())
    }

    async fn start_supervisor(&self, folder: &Path) -> Result<(), String> {
        let mut child = Command::new(&self.shared.program)
            .arg(SUPERVISE)
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .env(sweep::MARK, &self.uid)
            .spawn()
            .map_err(|error| format!("failed to start the supervisor: {error}"))?;
        let ready = async {
            let out = child.stdout.take()?;
            BufReader::new(out).lines().next_line().await.ok().flatten()
        };
        let answer = tokio::time::timeout(START_LIMIT, ready)
            .await
            .ok()
            .flatten();
        // Reaped when it ends, whenever that is.
        tokio::spawn(async move { child.wait().await });
        match answer {
            Some(line) if line == "ready" => Ok(()),
            _ => {
                let why =
                    std::fs::read_to_string(folder.join("supervisor.error")).unwrap_or_default();
                Err(format!("the supervisor of the pod did not start: {why}"))
            }
        }
    }

    /// Connects to a supervisor that runs; it repeats what it knows.
    async fn connect(&mut self) -> bool {
        let socket = self.shared.folder(&self.uid).join("socket");
        match UnixStream::connect(&socket).await {
            Ok(stream) => {
                let (read, write) = stream.into_split();
                self.link = Some(Link {
                    write,
                    lines: BufReader::new(read).lines(),
                });
                true
            }
            Err(_) => false,
        }
    }

    async fn adopt(&mut self, live: BTreeMap<String, u32>) {
        self.live = live;
        if !self.connect().await {
            self.supervisor_lost().await;
        }
    }

    /// The supervisor is gone: its state files say what ended; what did not is ended now.
    async fn supervisor_lost(&mut self) {
        self.link = None;
        sweep::end_marked(&self.uid).await;
        let folder = self.shared.folder(&self.uid).join("state");
        for (container, attempt) in std::mem::take(&mut self.live) {
            let file = folder.join(State::file_name(&container, attempt));
            let state: Option<State> = std::fs::read(&file)
                .ok()
                .and_then(|bytes| serde_json::from_slice(&bytes).ok());
            let exit = state
                .and_then(|state| state.ended)
                .map_or_else(|| Exit::unknown(Timestamp::now()), exit_of);
            self.report(Event::Exited {
                container,
                attempt,
                exit,
            });
        }
    }

    async fn heard(&mut self, line: Option<String>) {
        let Some(line) = line else {
            return self.supervisor_lost().await;
        };
        let Ok(state) = serde_json::from_str::<State>(&line) else {
            return;
        };
        self.report(Event::Started {
            container: state.container.clone(),
            attempt: state.attempt,
            id: format!(
                "process://{}/{}/{}",
                self.uid, state.container, state.attempt
            ),
            at: state.started,
        });
        if let Some(ended) = state.ended {
            if self.live.get(&state.container) == Some(&state.attempt) {
                self.live.remove(&state.container);
            }
            self.report(Event::Exited {
                container: state.container,
                attempt: state.attempt,
                exit: exit_of(ended),
            });
        }
    }

    fn pull(&self, name: &str) {
        let Some(container) = self.container(name) else {
            return;
        };
        self.report(match spec::entry(&self.pod, container) {
            Ok(_) => Event::Pulled {
                container: name.to_owned(),
                image_id: container.image.clone().unwrap_or_default(),
            },
            Err(message) => Event::PullFailed {
                container: name.to_owned(),
                reason: "ErrImageNeverPull".to_owned(),
                message,
                at: Timestamp::now(),
            },
        });
    }

    async fn start(&mut self, name: &str, attempt: u32) {
        let Some(container) = self.container(name).cloned() else {
            return;
        };
        let made = spec::launch(
            &self.shared,
            &self.pod,
            &container,
            attempt,
            &self.record.volumes,
            &self.record.devices,
        )
        .await;
        let launch = match made {
            Ok(launch) => launch,
            Err(error) => {
                return self.report(Event::Misconfigured {
                    container: name.to_owned(),
                    attempt,
                    reason: "CreateContainerConfigError".to_owned(),
                    message: error.told(),
                    at: Timestamp::now(),
                });
            }
        };
        if let Err(error) = spec::save(&self.shared.folder(&self.uid), &launch) {
            tracing::warn!(%error, "the container's launch is not kept; exec and probes need it");
        }
        self.live.insert(name.to_owned(), attempt);
        self.say(&Request::Start(Box::new(launch))).await;
    }

    async fn stop(&mut self, name: &str, attempt: u32, grace: Duration) {
        let lifecycle = self
            .container(name)
            .and_then(|container| container.lifecycle.clone())
            .unwrap_or_default();
        let hook = lifecycle.pre_stop.unwrap_or_default();
        let request = Request::Stop {
            container: name.to_owned(),
            attempt,
            grace_ms: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX),
            signal: lifecycle
                .stop_signal
                .unwrap_or_else(|| "SIGTERM".to_owned()),
            before: hook.exec.and_then(|exec| exec.command),
            wait_ms: hook
                .sleep
                .map_or(0, |sleep| sleep.seconds.max(0).unsigned_abs() * 1000),
        };
        self.say(&request).await;
    }

    async fn say(&mut self, request: &Request) {
        let Some(link) = &mut self.link else {
            return self.supervisor_lost().await;
        };
        let mut line = serde_json::to_vec(request).unwrap_or_default();
        line.push(b'\n');
        if link.write.write_all(&line).await.is_err() {
            self.supervisor_lost().await;
        }
    }

    /// Ends the supervisor with everything below it.
    async fn end(&mut self) {
        self.live.clear();
        if self.link.is_none() {
            self.connect().await;
        }
        if let Some(mut link) = self.link.take() {
            end_link(&mut link).await;
        }
        sweep::end_marked(&self.uid).await;
        self.shared.cgroups.remove(&self.uid);
    }

    async fn forget(mut self) {
        self.end().await;
        std::fs::remove_dir_all(self.shared.folder(&self.uid)).ok();
    }
}

async fn end_link(link: &mut Link) {
    let mut line = serde_json::to_vec(&Request::End).unwrap_or_default();
    line.push(b'\n');
    link.write.write_all(&line).await.ok();
    let gone = async { while let Ok(Some(_)) = link.lines.next_line().await {} };
    tokio::time::timeout(START_LIMIT, gone).await.ok();
}

fn exit_of(ended: super::wire::Ended) -> Exit {
    Exit {
        code: ended.code,
        signal: ended.signal,
        reason: ended.reason,
        message: ended.message,
        at: ended.at,
    }
}

/// Ends a pod nobody asks for any more and removes its files.
pub(super) async fn end_folder(root: &Path, cgroups: &Cgroups, uid: &str) {
    let folder = root.join("pods").join(uid);
    if let Ok(stream) = UnixStream::connect(folder.join("socket")).await {
        let (read, write) = stream.into_split();
        let lines = BufReader::new(read).lines();
        end_link(&mut Link { write, lines }).await;
    }
    sweep::end_marked(uid).await;
    cgroups.remove(uid);
    std::fs::remove_dir_all(&folder).ok();
}
