//! Where a service stands, from its Deployment and pods. Pure: what is seen becomes a phase, a reason and a sentence
//! with numbers.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};
use kube::{Resource, ResourceExt};
use warp_api::inferenceservice::{ServicePhase, TimelineStep};
use warp_api::{InferenceService, reason};

use super::copies;
use super::objects::CONTAINER;
use super::observe::Waiting;
use super::pools::{self, Judged};

/// A phase, its reason for conditions, and the sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) phase: ServicePhase,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

fn standing(phase: ServicePhase, reason: &'static str, message: String) -> Standing {
    Standing {
        phase,
        reason,
        message,
    }
}

/// What the numbers of a Deployment say, as far as it has caught up with its spec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) total: i32,
    pub(super) ready: i32,
    pub(super) updated: i32,
}

pub(super) fn numbers(deployment: Option<&Deployment>) -> Numbers {
    let Some(deployment) = deployment else {
        return Numbers::default();
    };
    let status = deployment.status.clone().unwrap_or_default();
    // What it says of an older spec says nothing of this one.
    let current = status.observed_generation >= deployment.meta().generation;
    Numbers {
        total: status.replicas.unwrap_or(0),
        ready: status.ready_replicas.unwrap_or(0),
        updated: if current {
            status.updated_replicas.unwrap_or(0)
        } else {
            0
        },
    }
}

/// Everything the sentence is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) service: &'a InferenceService,
    pub(super) wanted: i32,
    pub(super) numbers: Numbers,
    pub(super) pods: &'a [Arc<Pod>],
    /// What helps those of them that span nodes.
    pub(super) workers: &'a [Arc<Pod>],
    /// Copies that wait for a place, the first to be placed first.
    pub(super) waiting: &'a [Waiting],
    pub(super) pools: &'a [Judged],
}

impl View<'_> {
    /// The pool of a name.
    fn pool(&self, name: Option<&str>) -> Option<&Judged> {
        let mut pools = self.pools.iter();
        pools.find(|one| one.pool.name.as_deref() == name)
    }
}

pub(super) fn assess(view: &View<'_>) -> Standing {
    let Numbers {
        total,
        ready,
        updated,
    } = view.numbers;
    let wanted = view.wanted;
    if wanted == 0 && total == 0 {
        let text = "no copies are wanted: spec.replicas is 0".to_owned();
        return standing(ServicePhase::Stopped, reason::STOPPED, text);
    }
    if ready >= wanted && updated >= wanted && total <= wanted {
        let text = format!("{ready} of {wanted} copies answer");
        return standing(ServicePhase::Ready, reason::SERVING, text);
    }
    let trouble = trouble(view);
    let tail = trouble
        .as_ref()
        .map(|(_, _, text)| format!("; {text}"))
        .unwrap_or_default();
    let old = total.saturating_sub(updated);
    if ready > 0 && old > 0 {
        let text = format!(
            "{updated} of {wanted} copies are of the new spec, {ready} copies answer{tail}"
        );
        return standing(ServicePhase::Updating, reason::UPDATING, text);
    }
    if ready > 0 {
        let text = format!("{ready} of {wanted} copies answer{tail}");
        let reason = trouble.map_or(reason::TOO_FEW_COPIES, |(_, reason, _)| reason);
        return standing(ServicePhase::Degraded, reason, text);
    }
    if let Some((phase, reason, text)) = trouble {
        let text = format!("0 of {wanted} copies answer; {text}");
        return standing(phase, reason, text);
    }
    let text = format!(
        "0 of {wanted} copies answer; they are started, and must answer within {}",
        view.service.spec.start_limit
    );
    standing(ServicePhase::Starting, reason::STARTING, text)
}

/// The worst that keeps a copy from answering.
fn trouble(view: &View<'_>) -> Option<(ServicePhase, &'static str, String)> {
    let live = view.pods.iter().chain(view.workers).filter(|pod| {
        pod.meta().deletion_timestamp.is_none() && !is_ready(pod) && !copies::waits(pod)
    });
    let unplaced = unplaced(view);
    let mut found: Vec<(u8, ServicePhase, &'static str, String)> = live
        .filter_map(|pod| of_pod(view, pod))
        .chain(unplaced)
        .chain(view.pools.iter().filter_map(kept))
        .collect();
    found.sort_by_key(|(weight, ..)| *weight);
    let (weight, phase, reason, text) = found.first().cloned()?;
    let same = found.iter().filter(|one| one.0 == weight).count();
    let text = if same > 1 {
        format!("{text} (and {} more)", same - 1)
    } else {
        text
    };
    Some((phase, reason, text))
}

/// Why a pool keeps copies of an earlier spec.
fn kept(pool: &Judged) -> Option<(u8, ServicePhase, &'static str, String)> {
    let name = pool.pool.name.as_ref().filter(|_| pool.keeps)?;
    let why = pool.why.as_deref().unwrap_or_default();
    let text = format!("pool {name}: {why}");
    Some((2, ServicePhase::Pending, reason::NEVER_FITS, text))
}

/// What the first copy waits for that has no place.
fn unplaced(view: &View<'_>) -> Option<(u8, ServicePhase, &'static str, String)> {
    // The scheduler has just been woken for one without a verdict.
    let waiting = view.waiting.first()?;
    let first = waiting.verdict.as_ref()?;
    let pool = view.pool(waiting.accelerator.as_deref());
    let placed = copies::placed(view.pods, false);
    let number = i32::try_from(placed).unwrap_or(i32::MAX).saturating_add(1);
    let who = if number > view.wanted {
        "a copy more, of the new spec,".to_owned()
    } else {
        format!("copy {number} of {}", view.wanted)
    };
    let ask = pool.and_then(|one| one.ask.as_ref());
    let what = ask.map_or_else(String::new, |ask| format!(" for {}", ask.describe()));
    let more = match view.waiting.len() {
        1 => String::new(),
        all => format!(" (and {} more)", all - 1),
    };
    let text = format!("{who} waits{what}: {}{more}", first.message);
    Some((2, ServicePhase::Pending, first.reason, text))
}

fn of_pod(view: &View<'_>, pod: &Pod) -> Option<(u8, ServicePhase, &'static str, String)> {
    let name = pod.name_any();
    let status = pod.status.as_ref();
    if let Some(engine) = engine_status(pod) {
        if let Some((reason, text)) = waiting(engine) {
            return Some((0, ServicePhase::Failing, reason, format!("{name}: {text}")));
        }
        if let Some(text) = ended(engine) {
            let text = format!("{name}: {text}");
            return Some((1, ServicePhase::Failing, reason::COPIES_FAIL, text));
        }
        let running = engine
            .state
            .as_ref()
            .and_then(|state| state.running.as_ref());
        if let Some(started) = running.and_then(|running| running.started_at.as_ref()) {
            let text = format!(
                "{name} has been loading since {:.0} and must answer within {}",
                started.0, view.service.spec.start_limit
            );
            return Some((3, ServicePhase::Starting, reason::STARTING, text));
        }
    }
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let unplaced = conditions.into_iter().flatten().find(|found| {
        // One that was just let go still says that it is gated.
        let gated = found.reason.as_deref() == Some("SchedulingGated");
        found.type_ == "PodScheduled" && found.status == "False" && !gated
    });
    if let Some(unplaced) = unplaced {
        let told = unplaced.message.as_deref().unwrap_or_default();
        let pool = view.pool(pools::said(pod));
        let ask = pool.and_then(|one| one.ask.as_ref());
        let suitable = pool.and_then(|one| one.suitable.as_ref());
        let text = match (ask, suitable) {
            (Some(ask), Some(suitable)) => format!(
                "{name} waits for {}: {} nodes have such GPUs, at most {} are free on one ({told})",
                ask.describe(),
                suitable.nodes,
                suitable.most_free
            ),
            _ => format!("{name} waits for a node: {told}"),
        };
        return Some((2, ServicePhase::Pending, reason::WAITING_FOR_CAPACITY, text));
    }
    None
}

fn engine_status(pod: &Pod) -> Option<&ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == CONTAINER)
}

/// Why a container does not start.
fn waiting(engine: &ContainerStatus) -> Option<(&'static str, String)> {
    let waiting = engine.state.as_ref()?.waiting.as_ref()?;
    let kubelet = waiting.reason.as_deref()?;
    let told = waiting.message.as_deref().unwrap_or_default();
    let reason = match kubelet {
        "ErrImagePull" | "ImagePullBackOff" | "ErrImageNeverPull" => reason::IMAGE_PULL_FAILED,
        "InvalidImageName" => reason::INVALID_IMAGE_NAME,
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
            reason::CONTAINER_CREATE_FAILED
        }
        _ => return None,
    };
    Some((reason, format!("{kubelet}: {told}")))
}

/// How its last run ended, when that was no good end.
fn ended(engine: &ContainerStatus) -> Option<String> {
    let terminated = |state: &ContainerState| state.terminated.clone();
    let now = engine.state.as_ref().and_then(terminated);
    let last = engine.last_state.as_ref().and_then(terminated);
    let end = now.or(last)?;
    if end.exit_code == 0 {
        return None;
    }
    let reason = end.reason.as_deref().unwrap_or("Error");
    let said = end.message.as_deref().unwrap_or_default();
    let said = said.lines().rfind(|line| !line.trim().is_empty());
    let said = said
        .map(|line| format!(": {}", line.trim()))
        .unwrap_or_default();
    Some(format!(
        "ended with exit code {} ({reason}) before it answered, {} starts so far{said}",
        end.exit_code,
        engine.restart_count + 1
    ))
}

/// Whether a pod answers.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let going = pod.meta().deletion_timestamp.is_some();
    !going && transition(pod, "Ready").is_some()
}

/// When a condition of a pod became true.
pub(super) fn transition(pod: &Pod, kind: &str) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|found| found.type_ == kind && found.status == "True")?;
    found.last_transition_time.as_ref().map(|time| time.0)
}

/// The start of the newest copy that answers, else of the newest.
pub(super) fn timeline(pods: &[Arc<Pod>]) -> Vec<TimelineStep> {
    let newest = pods
        .iter()
        .max_by_key(|pod| (is_ready(pod), pod.creation_timestamp(), pod.name_any()));
    let Some(pod) = newest else {
        return Vec::new();
    };
    let started = engine_status(pod)
        .and_then(|engine| engine.state.as_ref()?.running.as_ref()?.started_at.clone())
        .map(|time| time.0);
    let steps = [
        ("created", pod.creation_timestamp().map(|time| time.0)),
        ("scheduled", transition(pod, "PodScheduled")),
        ("started", started),
        ("ready", transition(pod, "Ready")),
    ];
    let mut before: Option<Timestamp> = None;
    let mut timeline = Vec::new();
    for (step, at) in steps {
        let Some(at) = at else { break };
        timeline.push(TimelineStep {
            step: step.to_owned(),
            at: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at),
            seconds: before.map_or(0, |before| seconds_between(before, at)),
        });
        before = Some(at);
    }
    timeline
}

fn seconds_between(from: Timestamp, to: Timestamp) -> i64 {
    to.duration_since(from).as_secs().max(0)
}
