//! What a node knows about one pod's containers: written by [`Event`]s of the runtime and by the
//! [`Action`]s under way, read by the state machine. It holds no decision and no clock.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerState, Pod, PodSpec, PodStatus, Probe};

use super::devices::Devices;
use super::lifecycle::{Action, ProbeKind};

/// Back-off of restarts and pulls starts here and doubles.
pub const FIRST_BACKOFF: Duration = Duration::from_secs(10);
/// ... up to this.
pub const LONGEST_BACKOFF: Duration = Duration::from_mins(5);

/// A time after another; one beyond the calendar is its end. Times come from statuses and lengths from
/// specs, both of which people write.
pub(crate) fn later(at: Timestamp, by: Duration) -> Timestamp {
    jiff::SignedDuration::try_from(by)
        .ok()
        .and_then(|by| at.checked_add(by).ok())
        .unwrap_or(Timestamp::MAX)
}

/// Something a runtime observed.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Volumes and whatever holds the containers together are there.
    Prepared {
        ip: Option<String>,
    },
    /// They are not, and it will be tried again.
    PrepareFailed {
        message: String,
        at: Timestamp,
    },
    Pulled {
        container: String,
        image_id: String,
    },
    /// How far a pull is; for people only.
    Pulling {
        container: String,
        message: String,
    },
    PullFailed {
        container: String,
        reason: String,
        message: String,
        at: Timestamp,
    },
    /// The container could not be built from its description (a missing Secret, say); tried again.
    Misconfigured {
        container: String,
        attempt: u32,
        reason: String,
        message: String,
        at: Timestamp,
    },
    Started {
        container: String,
        attempt: u32,
        id: String,
        at: Timestamp,
    },
    Exited {
        container: String,
        attempt: u32,
        exit: Exit,
    },
    Probed {
        container: String,
        attempt: u32,
        kind: ProbeKind,
        ok: bool,
        message: String,
        at: Timestamp,
    },
    /// The node needs what the pod uses (disk, memory) and ends it.
    Evicted {
        message: String,
    },
    /// Nothing of the pod is left but its logs.
    TornDown,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    pub code: i32,
    pub signal: Option<i32>,
    /// `Completed`, `Error`, `OOMKilled`, `StartError` …
    pub reason: String,
    pub message: Option<String>,
    pub at: Timestamp,
}

impl Exit {
    /// An exit by its code alone, worded as a kubelet words it.
    pub fn with_code(code: i32, at: Timestamp) -> Self {
        let reason = if code == 0 { "Completed" } else { "Error" };
        Self {
            code,
            signal: None,
            reason: reason.to_owned(),
            message: None,
            at,
        }
    }

    /// The end of a container nobody saw end.
    pub fn unknown(at: Timestamp) -> Self {
        Self {
            code: 137,
            signal: None,
            reason: "ContainerStatusUnknown".to_owned(),
            message: Some(
                "The container could not be located when the pod was terminated".to_owned(),
            ),
            at,
        }
    }
}

/// One run of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Counts from 0; equal to the container's restart count.
    pub attempt: u32,
    pub id: String,
    /// `None` between the request to start and the report that it did.
    pub started: Option<Timestamp>,
    /// The grace of the stop under way, when one is.
    pub stopping: Option<Duration>,
    pub exit: Option<Exit>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Image {
    #[default]
    Unasked,
    Pulling {
        /// What the pull before it failed with: it is shown until one succeeds.
        failed: Option<String>,
    },
    Present {
        id: String,
    },
    Failed {
        reason: String,
        message: String,
        at: Timestamp,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeFacts {
    pub in_flight: bool,
    pub last: Option<Timestamp>,
    pub verdict: Option<bool>,
    streak: u32,
    streak_ok: bool,
    pub message: String,
}

impl ProbeFacts {
    fn note(&mut self, probe: &Probe, ok: bool, message: &str, at: Timestamp) {
        self.in_flight = false;
        self.last = Some(at);
        if ok == self.streak_ok {
            self.streak += 1;
        } else {
            self.streak_ok = ok;
            self.streak = 1;
        }
        let needed = if ok {
            probe.success_threshold.unwrap_or(1)
        } else {
            probe.failure_threshold.unwrap_or(3)
        };
        if i64::from(self.streak) >= i64::from(needed) {
            self.verdict = Some(ok);
        }
        message.clone_into(&mut self.message);
    }
}

/// The restart delay of one container: nothing after the first exit, then 10 s doubling to five
/// minutes, forgotten after ten quiet minutes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    current: Option<Duration>,
    updated: Option<Timestamp>,
    tries: u32,
}

impl Backoff {
    /// How long to wait after an event at `at`.
    pub fn delay_after(&self, at: Timestamp) -> Duration {
        match (self.current, self.updated) {
            (Some(current), Some(updated)) if !expired(updated, at) => current,
            _ => Duration::ZERO,
        }
    }

    /// One more try was made, for the event at `event`.
    pub fn tried(&mut self, event: Timestamp, now: Timestamp) {
        let next = match (self.current, self.updated) {
            (Some(current), Some(updated)) if !expired(updated, event) => {
                (current * 2).min(LONGEST_BACKOFF)
            }
            _ => FIRST_BACKOFF,
        };
        self.current = Some(next);
        self.updated = Some(now);
        self.tries += 1;
    }

    /// How often it was tried again.
    pub fn tries(&self) -> u32 {
        self.tries
    }
}

fn expired(updated: Timestamp, at: Timestamp) -> bool {
    at.duration_since(updated).as_secs() > 2 * LONGEST_BACKOFF.as_secs().cast_signed()
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFacts {
    pub image: Image,
    pub pulls: Backoff,
    /// The newest run.
    pub run: Option<Run>,
    /// How the run before it ended.
    pub previous: Option<(Run, Exit)>,
    pub restarts: Backoff,
    /// Why the next run cannot be built, and since when.
    pub misconfigured: Option<(String, String, Timestamp)>,
    pub startup: ProbeFacts,
    pub readiness: ProbeFacts,
    pub liveness: ProbeFacts,
}

impl ContainerFacts {
    pub fn is_running(&self) -> bool {
        self.run
            .as_ref()
            .is_some_and(|run| run.started.is_some() && run.exit.is_none())
    }

    /// A run was asked for and has not ended.
    pub fn is_live(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.exit.is_none())
    }

    pub fn exit(&self) -> Option<&Exit> {
        self.run.as_ref().and_then(|run| run.exit.as_ref())
    }

    pub fn probe(&self, kind: ProbeKind) -> &ProbeFacts {
        match kind {
            ProbeKind::Startup => &self.startup,
            ProbeKind::Readiness => &self.readiness,
            ProbeKind::Liveness => &self.liveness,
        }
    }

    fn probe_mut(&mut self, kind: ProbeKind) -> &mut ProbeFacts {
        match kind {
            ProbeKind::Startup => &mut self.startup,
            ProbeKind::Readiness => &mut self.readiness,
            ProbeKind::Liveness => &mut self.liveness,
        }
    }

    fn live_attempt(&mut self, attempt: u32) -> Option<&mut Run> {
        self.run
            .as_mut()
            .filter(|run| run.attempt == attempt && run.exit.is_none())
    }
}

/// The volumes and the frame the containers live in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sandbox {
    #[default]
    Absent,
    Asked,
    Ready,
    Failed {
        message: String,
        at: Timestamp,
    },
    TearingDown,
    Gone,
}

/// Everything known about one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// When this node took the pod on (`status.startTime`).
    pub accepted: Timestamp,
    /// Why the node will not run it: reason and message.
    pub refused: Option<(String, String)>,
    /// Why the node ends it before its time.
    pub evicted: Option<String>,
    pub sandbox: Sandbox,
    pub ip: Option<String>,
    pub devices: Devices,
    pub containers: BTreeMap<String, ContainerFacts>,
    /// The status last written or read, for the times of its conditions.
    pub reported: Option<PodStatus>,
}

impl Facts {
    /// Facts about a pod as its object tells them: nothing for a new one, the last reported state for
    /// one this node ran before it was restarted.
    pub fn from_object(pod: &Pod, now: Timestamp) -> Self {
        let status = pod.status.as_ref();
        let mut facts = Self {
            accepted: status
                .and_then(|status| status.start_time.as_ref())
                .map_or(now, |time| time.0),
            refused: None,
            evicted: None,
            sandbox: Sandbox::Absent,
            ip: None,
            devices: Devices::default(),
            containers: BTreeMap::new(),
            reported: status.cloned(),
        };
        let Some(status) = status.filter(|status| status.start_time.is_some()) else {
            return facts;
        };
        facts.ip.clone_from(&status.pod_ip);
        let reported = [&status.init_container_statuses, &status.container_statuses]
            .into_iter()
            .flatten()
            .flatten();
        let mut any_run = false;
        for seen in reported {
            let entry = facts.containers.entry(seen.name.clone()).or_default();
            let attempt = u32::try_from(seen.restart_count).unwrap_or_default();
            let id = seen.container_id.clone().unwrap_or_default();
            entry.run = seen
                .state
                .as_ref()
                .and_then(|state| run_of(state, attempt, &id));
            let last = seen
                .last_state
                .as_ref()
                .and_then(|state| run_of(state, attempt, &id));
            match (&entry.run, last) {
                // Waiting to be restarted: the run that ended is the newest one.
                (None, Some(last)) => entry.run = Some(last),
                (Some(_), Some(last)) => {
                    entry.previous = last.exit.clone().map(|exit| (last, exit));
                }
                _ => {}
            }
            if entry.run.is_some() {
                entry.image = Image::Present {
                    id: seen.image_id.clone(),
                };
                any_run = true;
            }
            if attempt > 0 {
                let at = entry.exit().map_or(now, |exit| exit.at);
                for _ in 0..attempt.min(6) {
                    entry.restarts.tried(at, at);
                }
            }
            if seen.started == Some(true) {
                entry.startup.verdict = Some(true);
            }
            if seen.ready {
                entry.readiness.verdict = Some(true);
            }
        }
        if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            facts.sandbox = Sandbox::Gone;
            if !any_run && let Some(reason) = &status.reason {
                facts.refused = Some((reason.clone(), status.message.clone().unwrap_or_default()));
            }
        } else if any_run {
            facts.sandbox = Sandbox::Ready;
        }
        facts
    }

    pub fn container(&self, name: &str) -> Option<&ContainerFacts> {
        self.containers.get(name)
    }

    /// Marks an action as under way, so that the next step does not ask for it again.
    pub fn begin(&mut self, action: &Action, now: Timestamp) {
        match action {
            Action::Prepare => self.sandbox = Sandbox::Asked,
            Action::Teardown => self.sandbox = Sandbox::TearingDown,
            Action::Pull { container } => {
                let entry = self.entry(container);
                let failed = match std::mem::take(&mut entry.image) {
                    Image::Failed {
                        reason,
                        message,
                        at,
                    } => {
                        entry.pulls.tried(at, now);
                        Some(format!("{reason}: {message}"))
                    }
                    _ => None,
                };
                entry.image = Image::Pulling { failed };
            }
            Action::Start { container, attempt } => {
                let entry = self.entry(container);
                if let Some(run) = entry.run.take()
                    && let Some(exit) = run.exit.clone()
                {
                    entry.restarts.tried(exit.at, now);
                    entry.previous = Some((run, exit));
                }
                entry.startup = ProbeFacts::default();
                entry.readiness = ProbeFacts::default();
                entry.liveness = ProbeFacts::default();
                entry.run = Some(Run {
                    attempt: *attempt,
                    id: String::new(),
                    started: None,
                    stopping: None,
                    exit: None,
                });
            }
            Action::Probe {
                container, kind, ..
            } => {
                self.entry(container).probe_mut(*kind).in_flight = true;
            }
            Action::Stop {
                container, grace, ..
            } => {
                if let Some(run) = self.entry(container).run.as_mut() {
                    run.stopping = Some(*grace);
                }
            }
        }
    }

    /// Whether an action that was begun still waits to be taken.
    pub fn awaits(&self, action: &Action) -> bool {
        match action {
            Action::Prepare => self.sandbox == Sandbox::Asked,
            Action::Start { container, attempt } => self
                .container(container)
                .and_then(|seen| seen.run.as_ref())
                .is_some_and(|run| {
                    run.attempt == *attempt
                        && run.started.is_none()
                        && run.exit.is_none()
                        && run.stopping.is_none()
                }),
            Action::Pull { .. } | Action::Probe { .. } | Action::Stop { .. } | Action::Teardown => {
                false
            }
        }
    }

    /// Takes in what a runtime saw. Late news about a run that is over changes nothing.
    pub fn note(&mut self, spec: &PodSpec, event: Event) {
        match event {
            Event::Prepared { ip } => {
                if self.sandbox == Sandbox::Asked {
                    self.sandbox = Sandbox::Ready;
                    self.ip = ip;
                }
            }
            Event::PrepareFailed { message, at } => {
                if self.sandbox == Sandbox::Asked {
                    self.sandbox = Sandbox::Failed { message, at };
                }
            }
            Event::Pulling { .. } => {}
            Event::Pulled {
                container,
                image_id,
            } => {
                let entry = self.entry(&container);
                entry.image = Image::Present { id: image_id };
                entry.pulls = Backoff::default();
            }
            Event::PullFailed {
                container,
                reason,
                message,
                at,
            } => {
                self.entry(&container).image = Image::Failed {
                    reason,
                    message,
                    at,
                };
            }
            Event::Misconfigured {
                container,
                attempt,
                reason,
                message,
                at,
            } => {
                let entry = self.entry(&container);
                if entry.live_attempt(attempt).is_some() {
                    // The run never existed: the one before it is the newest again.
                    entry.run = entry.previous.take().map(|(run, _)| run);
                    entry.misconfigured = Some((reason, message, at));
                }
            }
            Event::Started {
                container,
                attempt,
                id,
                at,
            } => {
                let entry = self.entry(&container);
                if let Some(run) = entry.live_attempt(attempt)
                    && run.started.is_none()
                {
                    run.started = Some(at);
                    run.id = id;
                    entry.misconfigured = None;
                }
            }
            Event::Exited {
                container,
                attempt,
                exit,
            } => {
                if let Some(run) = self.entry(&container).live_attempt(attempt) {
                    run.exit = Some(exit);
                }
            }
            Event::Probed {
                container,
                attempt,
                kind,
                ok,
                message,
                at,
            } => {
                let Some(probe) = containers(spec)
                    .find(|candidate| candidate.name == container)
                    .and_then(|container| kind.of(container))
                else {
                    return;
                };
                let entry = self.entry(&container);
                if entry.live_attempt(attempt).is_some() {
                    entry.probe_mut(kind).note(probe, ok, &message, at);
                }
            }
            Event::Evicted { message } => {
                // A pod whose containers have ended has nothing left to be taken from it.
                if self.containers.values().any(ContainerFacts::is_live) {
                    self.evicted.get_or_insert(message);
                }
            }
            Event::TornDown => self.sandbox = Sandbox::Gone,
        }
    }

    fn entry(&mut self, container: &str) -> &mut ContainerFacts {
        if !self.containers.contains_key(container) {
            self.containers
                .insert(container.to_owned(), ContainerFacts::default());
        }
        self.containers
            .get_mut(container)
            .expect("inserted in the line above")
    }
}

/// Init containers first, in the order they run.
pub fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers
        .iter()
        .flatten()
        .chain(spec.containers.iter())
}

fn run_of(state: &ContainerState, attempt: u32, id: &str) -> Option<Run> {
    if let Some(running) = &state.running {
        return Some(Run {
            attempt,
            id: id.to_owned(),
            started: running.started_at.as_ref().map(|time| time.0),
            stopping: None,
            exit: None,
        });
    }
    let ended = state.terminated.as_ref()?;
    let at = ended
        .finished_at
        .as_ref()
        .map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    Some(Run {
        attempt,
        id: ended.container_id.clone().unwrap_or_else(|| id.to_owned()),
        started: ended.started_at.as_ref().map(|time| time.0),
        stopping: None,
        exit: Some(Exit {
            code: ended.exit_code,
            signal: ended.signal,
            reason: ended.reason.clone().unwrap_or_default(),
            message: ended.message.clone(),
            at,
        }),
    })
}
