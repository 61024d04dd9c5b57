//! The status a kubelet would report: phase, container statuses, and the conditions derived from them.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::facts::{ContainerFacts, Exit, Image, Run, Sandbox, later};
use super::{Ending, Plan, conditions, is_sidecar, probes, restarts};

/// A failed pull shows its error this long, then the back-off.
pub(super) const PULL_ERROR_SHOWN: Duration = Duration::from_secs(1);

pub(super) fn report(plan: &Plan<'_>, ending: Option<Ending>, over: bool) -> PodStatus {
    let mut status = PodStatus {
        start_time: Some(time(plan.facts.accepted)),
        qos_class: Some(qos_class(plan)),
        observed_generation: plan.pod.metadata.generation,
        pod_ip: plan.facts.ip.clone(),
        pod_ips: plan.facts.ip.clone().map(|ip| vec![PodIP { ip }]),
        ..PodStatus::default()
    };
    if let Some((reason, message)) = &plan.facts.refused {
        status.phase = Some("Failed".to_owned());
        status.reason = Some(reason.clone());
        status.message = Some(message.clone());
        status.conditions = Some(conditions::conditions(plan, &status));
        return status;
    }
    let report = Report { plan, ending, over };
    let init: Vec<ContainerStatus> = plan
        .init()
        .iter()
        .map(|container| report.container(container, true))
        .collect();
    let main: Vec<ContainerStatus> = plan
        .spec
        .containers
        .iter()
        .map(|container| report.container(container, false))
        .collect();
    status.phase = Some(report.phase(&init, &main).to_owned());
    status.init_container_statuses = (!init.is_empty()).then_some(init);
    status.container_statuses = Some(main);
    if ending == Some(Ending::Deadline) {
        status.reason = Some("DeadlineExceeded".to_owned());
        status.message =
            Some("Pod was active on the node longer than the specified deadline".to_owned());
    }
    if ending == Some(Ending::Evicted) && over {
        status.reason = Some("Evicted".to_owned());
        status.message.clone_from(&plan.facts.evicted);
    }
    status.conditions = Some(conditions::conditions(plan, &status));
    status
}

struct Report<'p, 'a> {
    plan: &'p Plan<'a>,
    ending: Option<Ending>,
    over: bool,
}

impl Report<'_, '_> {
    /// A terminal phase is reported only when nothing of the pod runs any more.
    fn phase(&self, init: &[ContainerStatus], main: &[ContainerStatus]) -> &'static str {
        if self.over {
            let succeeded = !matches!(self.ending, Some(Ending::Deadline | Ending::Evicted))
                && main.iter().all(|status| exit_code(status) == Some(0))
                && !self.init_failed(init);
            return if succeeded { "Succeeded" } else { "Failed" };
        }
        let waiting = main.is_empty()
            || main.iter().any(|status| {
                status
                    .state
                    .as_ref()
                    .is_some_and(|state| state.waiting.is_some())
                    && !last_exit(status)
            });
        if waiting || self.init_pending(init) {
            "Pending"
        } else {
            "Running"
        }
    }

    fn init_pending(&self, init: &[ContainerStatus]) -> bool {
        !self.plan.has_initialized()
            && self
                .plan
                .init()
                .iter()
                .zip(init)
                .any(|(container, status)| {
                    if is_sidecar(container) {
                        status.started != Some(true)
                    } else {
                        exit_code(status) != Some(0)
                    }
                })
    }

    fn init_failed(&self, init: &[ContainerStatus]) -> bool {
        self.plan
            .init()
            .iter()
            .zip(init)
            .any(|(container, status)| {
                !is_sidecar(container) && exit_code(status).is_some_and(|code| code != 0)
            })
    }

    fn container(&self, container: &Container, is_init: bool) -> ContainerStatus {
        let fresh = ContainerFacts::default();
        let seen = self.plan.seen(container).unwrap_or(&fresh);
        let (state, last) = self.states(container, is_init, seen);
        let finished_init = is_init
            && !is_sidecar(container)
            && state
                .terminated
                .as_ref()
                .is_some_and(|ended| ended.exit_code == 0);
        let running = state.running.is_some();
        ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            image_id: match &seen.image {
                Image::Present { id } => id.clone(),
                _ => String::new(),
            },
            container_id: seen
                .run
                .as_ref()
                .map(|run| run.id.clone())
                .filter(|id| !id.is_empty()),
            restart_count: seen
                .run
                .as_ref()
                .map_or(0, |run| i32::try_from(run.attempt).unwrap_or(i32::MAX)),
            ready: finished_init || (running && probes::is_ready(container, seen)),
            started: Some(running && probes::has_started(container, seen)),
            state: Some(state),
            last_state: last,
            ..ContainerStatus::default()
        }
    }

    fn states(
        &self,
        container: &Container,
        is_init: bool,
        seen: &ContainerFacts,
    ) -> (ContainerState, Option<ContainerState>) {
        let previous = seen
            .previous
            .as_ref()
            .map(|(run, exit)| terminated(run, exit));
        match &seen.run {
            Some(run) => match (&run.exit, run.started) {
                (Some(exit), _) => self.ended(container, is_init, seen, run, exit, previous),
                (None, Some(started)) => (running(started), previous),
                (None, None) => (self.starting(seen), previous),
            },
            None => (self.waiting(seen), previous),
        }
    }

    fn ended(
        &self,
        container: &Container,
        is_init: bool,
        seen: &ContainerFacts,
        run: &Run,
        exit: &Exit,
        previous: Option<ContainerState>,
    ) -> (ContainerState, Option<ContainerState>) {
        let ended = terminated(run, exit);
        let comes_back =
            self.ending.is_none() && restarts(self.plan.pod_policy(), container, is_init, exit);
        if !comes_back {
            return (ended, previous);
        }
        if let Some((reason, message, _)) = &seen.misconfigured {
            return (waiting(reason, Some(message.clone())), Some(ended));
        }
        let delay = seen.restarts.delay_after(exit.at);
        if self.plan.now >= later(exit.at, delay) {
            return (ended, previous);
        }
        let meta = &self.plan.pod.metadata;
        let message = format!(
            "back-off {} restarting failed container={} pod={}_{}({})",
            go_duration(delay),
            container.name,
            meta.name.as_deref().unwrap_or_default(),
            meta.namespace.as_deref().unwrap_or_default(),
            meta.uid.as_deref().unwrap_or_default(),
        );
        (waiting("CrashLoopBackOff", Some(message)), Some(ended))
    }

    /// The state of a container that has never run.
    fn waiting(&self, seen: &ContainerFacts) -> ContainerState {
        if self.over && self.plan.has_initialized() {
            let exit = Exit::unknown(self.plan.now);
            let never = Run {
                attempt: 0,
                id: String::new(),
                started: None,
                stopping: None,
                exit: None,
            };
            return terminated(&never, &exit);
        }
        if let Some((reason, message, _)) = &seen.misconfigured {
            return waiting(reason, Some(message.clone()));
        }
        self.failing_pull(seen)
            .unwrap_or_else(|| self.default_waiting())
    }

    /// The state of a container that was told to start. One that could not be started before is not called anything
    /// else while it is tried again: a pod that waits for good would be written at every try.
    fn starting(&self, seen: &ContainerFacts) -> ContainerState {
        match &seen.misconfigured {
            Some((reason, message, _)) => waiting(reason, Some(message.clone())),
            None => self.default_waiting(),
        }
    }

    /// What is said of an image that could not be pulled, also while it is tried again.
    fn failing_pull(&self, seen: &ContainerFacts) -> Option<ContainerState> {
        if !matches!(self.plan.facts.sandbox, Sandbox::Ready) {
            return None;
        }
        let error = match &seen.image {
            Image::Failed {
                reason,
                message,
                at,
            } => {
                let permanent = matches!(reason.as_str(), "InvalidImageName" | "ErrImageNeverPull");
                if permanent || self.plan.now < later(*at, PULL_ERROR_SHOWN) {
                    return Some(waiting(reason, Some(message.clone())));
                }
                format!("{reason}: {message}")
            }
            Image::Pulling { failed } => failed.clone()?,
            Image::Unasked | Image::Present { .. } => return None,
        };
        let text = format!("Back-off pulling image: {error}");
        Some(waiting("ImagePullBackOff", Some(text)))
    }

    fn default_waiting(&self) -> ContainerState {
        if self.plan.init().is_empty() || self.plan.has_initialized() {
            waiting("ContainerCreating", None)
        } else {
            waiting("PodInitializing", None)
        }
    }
}

/// Times in objects have whole seconds: a finer one would never be read back as it was written.
pub(super) fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

fn exit_code(status: &ContainerStatus) -> Option<i32> {
    Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
}

fn last_exit(status: &ContainerStatus) -> bool {
    status
        .last_state
        .as_ref()
        .is_some_and(|state| state.terminated.is_some())
}

fn running(started: Timestamp) -> ContainerState {
    ContainerState {
        running: Some(ContainerStateRunning {
            started_at: Some(time(started)),
        }),
        ..ContainerState::default()
    }
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message,
        }),
        ..ContainerState::default()
    }
}

fn terminated(run: &Run, exit: &Exit) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: exit.code,
            signal: exit.signal,
            reason: Some(exit.reason.clone()),
            message: exit.message.clone(),
            started_at: run.started.map(time),
            finished_at: Some(time(exit.at)),
            container_id: (!run.id.is_empty()).then(|| run.id.clone()),
        }),
        ..ContainerState::default()
    }
}

/// `10s`, `1m20s`: the way these durations are printed in Kubernetes.
fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 {
        format!("{seconds}s")
    } else {
        format!("{}m{}s", seconds / 60, seconds % 60)
    }
}

/// The API server sets the class when the pod is made; this is for one that did not.
fn qos_class(plan: &Plan<'_>) -> String {
    if let Some(known) = plan
        .pod
        .status
        .as_ref()
        .and_then(|status| status.qos_class.clone())
    {
        return known;
    }
    let mut any = false;
    let mut guaranteed = true;
    for container in plan.init().iter().chain(&plan.spec.containers) {
        let resources = container.resources.clone().unwrap_or_default();
        let (requests, limits) = (
            resources.requests.unwrap_or_default(),
            resources.limits.unwrap_or_default(),
        );
        for name in ["cpu", "memory"] {
            any |= requests.contains_key(name) || limits.contains_key(name);
            let same = limits
                .get(name)
                .is_some_and(|limit| requests.get(name).is_none_or(|request| request == limit));
            guaranteed &= same;
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
    .to_owned()
}
