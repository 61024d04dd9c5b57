//! One pod on this machine: takes the state machine's orders to the pod's supervisor and its answers back.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Command;

use super::wire::{Request, State};
use super::{Cgroups, SUPERVISE, Shared, probe, saved, spec, sweep};
use crate::background;
use crate::node::devices::Devices;
use crate::node::facts::{Event, Exit};
use crate::node::lifecycle::{Action, ProbeKind};
use crate::node::runtime::Report;
use crate::node::task::{Frame, Record, Worker};

const START_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take to find out when a pod last saved its work.
const SAVED_DEADLINE: Duration = Duration::from_secs(5);

struct Link {
    write: OwnedWriteHalf,
    lines: Lines<BufReader<OwnedReadHalf>>,
}

pub(super) struct Task {
    shared: Arc<Shared>,
    frame: Frame,
    link: Option<Link>,
    /// Runs the supervisor has not told the end of.
    live: BTreeMap<String, u32>,
    /// When the pod last saved its work, as the API was told.
    saved: Option<Timestamp>,
}

impl Worker for Task {
    /// A line of the supervisor; none when it went away.
    type News = Option<String>;

    fn frame(&self) -> &Frame {
        &self.frame
    }

    async fn act(&mut self, action: Action) {
        match action {
            Action::Prepare => {
                let made = self.prepare().await;
                self.frame.prepared(made, Some(self.frame.address.clone()));
            }
            Action::Pull { container } => self.pull(&container),
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
            } => self.stop(&container, attempt, grace).await,
            Action::Teardown => {
                self.end().await;
                self.frame.clear_volumes();
                std::fs::remove_dir_all(self.frame.folder.join("root")).ok();
                self.frame.report(Event::TornDown);
            }
        }
    }

    async fn adopt(&mut self, live: BTreeMap<String, u32>) {
        self.live = live;
        self.look().await;
    }

    async fn look(&mut self) {
        if self.link.is_none() && !self.connect().await {
            self.supervisor_lost().await;
        }
    }

    async fn news(&mut self) -> Option<String> {
        match &mut self.link {
            Some(link) => link.lines.next_line().await.ok().flatten(),
            None => std::future::pending().await,
        }
    }

    async fn heard(&mut self, line: Option<String>) {
        let Some(line) = line else {
            // It may only have hung up on a listener that was too slow: whoever connects is told all.
            self.link = None;
            return self.look().await;
        };
        let Ok(state) = serde_json::from_str::<State>(&line) else {
            return;
        };
        self.frame.report(Event::Started {
            container: state.container.clone(),
            attempt: state.attempt,
            id: format!(
                "process://{}/{}/{}",
                self.frame.uid, state.container, state.attempt
            ),
            at: state.started,
        });
        if let Some(ended) = state.ended {
            if self.live.get(&state.container) == Some(&state.attempt) {
                self.live.remove(&state.container);
            }
            // What it wrote last is told before its end is.
            self.tell_saved().await;
            self.frame.report(Event::Exited {
                container: state.container,
                attempt: state.attempt,
                exit: exit_of(ended),
            });
        }
    }

    async fn tell_saved(&mut self) {
        // A volume that hangs must not keep the pod's end from being told.
        let told = tokio::time::timeout(SAVED_DEADLINE, saved::tell(&self.frame, self.saved)).await;
        self.saved = told.ok().flatten().or(self.saved);
    }

    async fn forget(mut self) {
        self.end().await;
        self.shared.addresses.release(&self.frame.uid);
        std::fs::remove_dir_all(&self.frame.folder).ok();
    }
}

impl Task {
    pub(super) fn new(shared: &Arc<Shared>, pod: &Arc<Pod>, devices: &Devices) -> Self {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let folder = shared.folder(&uid);
        let kept = Record::read(&folder);
        if let Some(address) = kept.as_ref().and_then(|record| record.address) {
            shared.addresses.keep(&uid, address);
        }
        let record = kept.unwrap_or_else(|| Record {
            devices: devices.clone(),
            address: shared.own_address(pod, &uid),
            ..Record::default()
        });
        let host = shared.address.clone();
        let address = record
            .address
            .map_or_else(|| host.clone(), |own| own.to_string());
        Self {
            shared: shared.clone(),
            frame: Frame {
                client: shared.client.clone(),
                pod: pod.clone(),
                uid,
                folder,
                host,
                address,
                machine: shared.machine,
                record,
                reports: shared.reports.clone(),
            },
            link: None,
            live: BTreeMap::new(),
            saved: None,
        }
    }

    async fn prepare(&mut self) -> Result<(), String> {
        self.frame.lay_out().await?;
        self.supervised().await
    }

    /// Sees to it that a supervisor answers.
    async fn supervised(&mut self) -> Result<(), String> {
        if self.link.is_some() || self.connect().await {
            return Ok(());
        }
        self.start_supervisor().await?;
        if self.connect().await {
            return Ok(());
        }
        Err("the supervisor of the pod does not answer".to_owned())
    }

    async fn start_supervisor(&self) -> Result<(), String> {
        let folder = &self.frame.folder;
        let mut child = Command::new(&self.shared.program)
            .arg(SUPERVISE)
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .env(sweep::MARK, &self.frame.uid)
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
        background::spawn(async move { child.wait().await });
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
        let socket = self.frame.folder.join("socket");
        let Ok(stream) = UnixStream::connect(&socket).await else {
            return false;
        };
        let (read, write) = stream.into_split();
        self.link = Some(Link {
            write,
            lines: BufReader::new(read).lines(),
        });
        true
    }

    /// The supervisor is gone: its state files say what ended; what did not is ended now.
    async fn supervisor_lost(&mut self) {
        self.link = None;
        sweep::end_marked(&self.frame.uid).await;
        let folder = self.frame.folder.join("state");
        for (container, attempt) in std::mem::take(&mut self.live) {
            let file = folder.join(State::file_name(&container, attempt));
            let state: Option<State> = std::fs::read(&file)
                .ok()
                .and_then(|bytes| serde_json::from_slice(&bytes).ok());
            let exit = state
                .and_then(|state| state.ended)
                .map_or_else(|| Exit::unknown(Timestamp::now()), exit_of);
            self.frame.report(Event::Exited {
                container,
                attempt,
                exit,
            });
        }
    }

    fn pull(&self, name: &str) {
        let Some(container) = self.frame.container(name) else {
            return;
        };
        self.frame
            .report(match spec::entry(&self.frame.pod, container) {
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
        let Some(container) = self.frame.container(name).cloned() else {
            return;
        };
        // A supervisor that was killed, or did not survive a reboot, is replaced by the next run.
        if let Err(why) = self.ready_again().await {
            return self.frame.misconfigured(name, attempt, why);
        }
        let made = spec::launch(
            &self.shared,
            &self.frame.pod,
            &container,
            attempt,
            &self.frame.record,
        )
        .await;
        let launch = match made {
            Ok(launch) => launch,
            Err(error) => return self.frame.misconfigured(name, attempt, error.told()),
        };
        if let Err(error) = spec::save(&self.frame.folder, &launch) {
            tracing::warn!(%error, "the container's launch is not kept; exec and probes need it");
        }
        self.live.insert(name.to_owned(), attempt);
        self.say(&Request::Start(Box::new(launch))).await;
    }

    async fn ready_again(&mut self) -> Result<(), String> {
        if !self.frame.is_laid_out() {
            self.frame.lay_out().await?;
        }
        self.supervised().await
    }

    fn probe(&self, container: String, attempt: u32, kind: ProbeKind) {
        let Some(found) = self.frame.container(&container).cloned() else {
            return;
        };
        let launch = spec::load(&self.frame.folder, &container);
        let (shared, uid) = (self.shared.clone(), self.frame.uid.clone());
        let address = self.frame.address.clone();
        background::spawn(async move {
            let target = probe::Target {
                address: &address,
                inside: launch.map(|launch| (shared.program.as_path(), launch)),
            };
            let (ok, message) = probe::run(kind, &found, target).await;
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

    async fn stop(&mut self, name: &str, attempt: u32, grace: Duration) {
        let lifecycle = self
            .frame
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
            wait_ms: hook.sleep.map_or(0, |sleep| {
                sleep.seconds.max(0).unsigned_abs().saturating_mul(1000)
            }),
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
        sweep::end_marked(&self.frame.uid).await;
        self.shared.cgroups.remove(&self.frame.uid).await;
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
    cgroups.remove(uid).await;
    std::fs::remove_dir_all(&folder).ok();
}
