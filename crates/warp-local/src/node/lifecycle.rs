//! The pod state machine: what a kubelet would do next and what it would report, from the pod, the facts
//! and the time. Pure: no I/O, no clock, the same for every runtime.

mod conditions;
mod probes;
mod restart;
mod status;

#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus, Probe};

use super::facts::{ContainerFacts, Facts, Image, Sandbox, later};

pub use restart::restarts;

/// Volumes that could not be set up and containers that could not be built are tried again after this.
const RETRY: Duration = Duration::from_secs(10);
const DEFAULT_GRACE: i64 = 30;

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum ProbeKind {
    Startup,
    Readiness,
    Liveness,
}

impl ProbeKind {
    pub const ALL: [Self; 3] = [Self::Startup, Self::Readiness, Self::Liveness];

    pub fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Startup => container.startup_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }
}

/// What a runtime is asked to do. Each is asked for once; the answer is an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make volumes and whatever the containers share.
    Prepare,
    Pull {
        container: String,
    },
    Start {
        container: String,
        attempt: u32,
    },
    Probe {
        container: String,
        attempt: u32,
        kind: ProbeKind,
    },
    /// Ask it to end; make it end after `grace`. Asked again only with a shorter grace.
    Stop {
        container: String,
        attempt: u32,
        grace: Duration,
    },
    /// Nothing runs any more: give back everything but the logs.
    Teardown,
}

/// The outcome of one look at a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub status: PodStatus,
    pub actions: Vec<Action>,
    /// When time alone changes something.
    pub again: Option<Timestamp>,
    /// Nothing is left: once this status is written the object can go.
    pub finished: bool,
}

/// Why a pod is being ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Refused,
    Deleted,
    Deadline,
    /// The node needs what it uses.
    Evicted,
    /// Its containers are done (or an init container failed for good).
    Done,
}

/// The next step of `pod`.
pub fn step(pod: &Pod, facts: &Facts, now: Timestamp) -> Step {
    if let Some(last) = reported_end(facts) {
        return Step {
            status: last.clone(),
            actions: Vec::new(),
            again: None,
            finished: pod.metadata.deletion_timestamp.is_some(),
        };
    }
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let mut plan = Plan {
        pod,
        spec,
        facts,
        now,
        actions: Vec::new(),
        again: None,
    };
    let ending = plan.ending();
    match ending {
        Some(Ending::Refused) => {}
        Some(_) => plan.end(),
        None => plan.proceed(),
    }
    let gone = matches!(facts.sandbox, Sandbox::Gone)
        || (matches!(facts.sandbox, Sandbox::Absent) && !plan.any_live());
    let over = match ending {
        Some(Ending::Refused) => true,
        Some(_) => gone,
        None => false,
    };
    let status = status::report(&plan, ending, over);
    Step {
        status,
        actions: plan.actions,
        again: plan.again.filter(|at| *at > now),
        finished: over && pod.metadata.deletion_timestamp.is_some(),
    }
}

/// The status of a pod that ended and whose end was reported: it never changes again.
fn reported_end(facts: &Facts) -> Option<&PodStatus> {
    facts.reported.as_ref().filter(|status| {
        facts.sandbox == Sandbox::Gone
            && matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
    })
}

pub(crate) struct Plan<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) spec: &'a PodSpec,
    pub(crate) facts: &'a Facts,
    pub(crate) now: Timestamp,
    actions: Vec<Action>,
    again: Option<Timestamp>,
}

/// A container that runs beside the others although it is listed with the init containers.
pub(crate) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

impl<'a> Plan<'a> {
    pub(crate) fn init(&self) -> &'a [Container] {
        self.spec.init_containers.as_deref().unwrap_or_default()
    }

    pub(crate) fn seen(&self, container: &Container) -> Option<&'a ContainerFacts> {
        self.facts.container(&container.name)
    }

    pub(crate) fn pod_policy(&self) -> &'a str {
        self.spec.restart_policy.as_deref().unwrap_or("Always")
    }

    fn any_live(&self) -> bool {
        self.facts.containers.values().any(ContainerFacts::is_live)
    }

    fn look_again(&mut self, at: Timestamp) {
        self.again = Some(self.again.map_or(at, |known| known.min(at)));
    }

    /// Ended for good: not to be started again under any policy.
    pub(crate) fn is_done(&self, container: &Container, is_init: bool) -> bool {
        self.seen(container)
            .and_then(ContainerFacts::exit)
            .is_some_and(|exit| !restarts(self.pod_policy(), container, is_init, exit))
    }

    /// When the last container ended for good, or an init container failed for good.
    fn done_since(&self) -> Option<Timestamp> {
        let failed_init = self
            .init()
            .iter()
            .filter(|container| self.is_done(container, true))
            .filter_map(|container| self.seen(container)?.exit())
            .find(|exit| exit.code != 0);
        if let Some(exit) = failed_init {
            return Some(exit.at);
        }
        if !self
            .spec
            .containers
            .iter()
            .all(|container| self.is_done(container, false))
        {
            return None;
        }
        self.spec
            .containers
            .iter()
            .filter_map(|container| Some(self.seen(container)?.exit()?.at))
            .max()
    }

    fn deadline(&self) -> Option<Timestamp> {
        let seconds = self.spec.active_deadline_seconds?;
        self.facts
            .accepted
            .checked_add(jiff::SignedDuration::from_secs(seconds))
            .ok()
    }

    fn ending(&mut self) -> Option<Ending> {
        if self.facts.refused.is_some() {
            return Some(Ending::Refused);
        }
        if self.facts.evicted.is_some() {
            return Some(Ending::Evicted);
        }
        if let Some(deadline) = self.deadline() {
            // A pod that was done in time stays done.
            let in_time = self.done_since().is_some_and(|at| at < deadline);
            if !in_time && self.now >= deadline {
                return Some(Ending::Deadline);
            }
            self.look_again(deadline);
        }
        if self.done_since().is_some() {
            return Some(Ending::Done);
        }
        if self.pod.metadata.deletion_timestamp.is_some() {
            return Some(Ending::Deleted);
        }
        // Ended before this node was restarted.
        matches!(self.facts.sandbox, Sandbox::Gone).then_some(Ending::Done)
    }

    fn grace(&self) -> Duration {
        let seconds = match self.pod.metadata.deletion_timestamp {
            Some(_) => self.pod.metadata.deletion_grace_period_seconds,
            None => self.spec.termination_grace_period_seconds,
        };
        Duration::from_secs(seconds.unwrap_or(DEFAULT_GRACE).max(0).unsigned_abs())
    }

    /// Stops what runs: ordinary and init containers together, then sidecars from the last to the first.
    fn end(&mut self) {
        let grace = self.grace();
        let ordinary: Vec<&Container> = self
            .init()
            .iter()
            .filter(|container| !is_sidecar(container))
            .chain(&self.spec.containers)
            .collect();
        let mut waiting = false;
        for container in ordinary {
            waiting |= self.stop(container, grace);
        }
        if waiting {
            return;
        }
        for container in self.init().iter().rev() {
            if is_sidecar(container) && self.stop(container, grace) {
                return;
            }
        }
        match self.facts.sandbox {
            Sandbox::Asked | Sandbox::Ready | Sandbox::Failed { .. } => {
                self.actions.push(Action::Teardown);
            }
            Sandbox::Absent | Sandbox::TearingDown | Sandbox::Gone => {}
        }
    }

    /// Asks a live container to stop; true while it lives.
    fn stop(&mut self, container: &Container, grace: Duration) -> bool {
        let Some(run) = self
            .seen(container)
            .and_then(|seen| seen.run.as_ref())
            .filter(|run| run.exit.is_none())
        else {
            return false;
        };
        if run.stopping.is_none_or(|asked| grace < asked) {
            self.actions.push(Action::Stop {
                container: container.name.clone(),
                attempt: run.attempt,
                grace,
            });
        }
        true
    }

    /// Brings the pod forward: volumes, init containers one after the other, then the rest at once.
    fn proceed(&mut self) {
        match &self.facts.sandbox {
            Sandbox::Absent => return self.actions.push(Action::Prepare),
            Sandbox::Failed { at, .. } => {
                let due = later(*at, RETRY);
                if self.now >= due {
                    self.actions.push(Action::Prepare);
                } else {
                    self.look_again(due);
                }
                return;
            }
            Sandbox::Ready => {}
            Sandbox::Asked | Sandbox::TearingDown | Sandbox::Gone => return,
        }
        for container in self.init() {
            if !self.proceed_init(container) {
                // Sidecars started earlier are kept running while a later init container works.
                self.keep_sidecars(&container.name);
                return;
            }
        }
        for container in &self.spec.containers {
            self.keep(container, false);
        }
        self.keep_sidecars("");
    }

    /// Works on one init container; true when the next one may go.
    fn proceed_init(&mut self, container: &Container) -> bool {
        let Some(seen) = self.seen(container) else {
            self.keep(container, true);
            return false;
        };
        if is_sidecar(container) {
            // Once the pod has initialised, a sidecar that restarts holds nobody up.
            let passed = seen.is_running() && probes::has_started(container, seen);
            if passed || self.has_initialized() {
                return true;
            }
            self.keep(container, true);
            return false;
        }
        if self.has_initialized() || seen.exit().is_some_and(|exit| exit.code == 0) {
            return true;
        }
        self.keep(container, true);
        false
    }

    fn keep_sidecars(&mut self, before: &str) {
        for container in self.init() {
            if container.name == before {
                return;
            }
            if is_sidecar(container) {
                self.keep(container, true);
            }
        }
    }

    /// A container of the main list has run: init containers are not looked at again.
    pub(crate) fn has_initialized(&self) -> bool {
        self.spec
            .containers
            .iter()
            .any(|container| self.seen(container).is_some_and(|seen| seen.run.is_some()))
    }

    /// Keeps one container running: pull, start, probe, restart.
    fn keep(&mut self, container: &Container, is_init: bool) {
        let fresh = ContainerFacts::default();
        let seen = self.seen(container).unwrap_or(&fresh);
        if let Some(run) = seen.run.as_ref().filter(|run| run.exit.is_none()) {
            if run.started.is_some() {
                let outcome = probes::due(container, seen, self.now);
                self.actions.extend(outcome.actions);
                if let Some(at) = outcome.again {
                    self.look_again(at);
                }
                if let Some(kill) = outcome.kill {
                    let grace = kill.grace.unwrap_or_else(|| self.grace());
                    self.stop(container, grace);
                }
            }
            return;
        }
        let mut attempt = 0;
        if let Some((run, exit)) = seen
            .run
            .as_ref()
            .and_then(|run| Some((run, run.exit.as_ref()?)))
        {
            if !restarts(self.pod_policy(), container, is_init, exit) {
                return;
            }
            let due = later(exit.at, seen.restarts.delay_after(exit.at));
            if self.now < due {
                return self.look_again(due);
            }
            attempt = run.attempt.saturating_add(1);
        }
        if let Some((_, _, at)) = &seen.misconfigured {
            let due = later(*at, RETRY);
            if self.now < due {
                return self.look_again(due);
            }
        }
        match &seen.image {
            Image::Unasked => self.actions.push(Action::Pull {
                container: container.name.clone(),
            }),
            Image::Pulling { .. } => {}
            Image::Failed { at, .. } => {
                let due = later(*at, pull_delay(seen, *at));
                if self.now < due {
                    // The wording changes from the error to the back-off a moment after it.
                    let worded = later(*at, status::PULL_ERROR_SHOWN);
                    self.look_again(if self.now < worded { worded } else { due });
                } else {
                    self.actions.push(Action::Pull {
                        container: container.name.clone(),
                    });
                }
            }
            Image::Present { .. } => self.actions.push(Action::Start {
                container: container.name.clone(),
                attempt,
            }),
        }
    }
}

/// A failed pull always waits, unlike a failed run.
fn pull_delay(seen: &ContainerFacts, at: Timestamp) -> Duration {
    seen.pulls.delay_after(at).max(super::facts::FIRST_BACKOFF)
}
