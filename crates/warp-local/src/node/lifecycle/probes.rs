//! When a probe is due and what its results mean.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Probe};

use super::super::facts::{ContainerFacts, later};
use super::{Action, ProbeKind};

#[derive(Debug, Default)]
pub(super) struct Due {
    pub(super) actions: Vec<Action>,
    pub(super) again: Option<Timestamp>,
    pub(super) kill: Option<Kill>,
}

/// The container must be restarted; with the probe's own grace when it has one.
#[derive(Debug)]
pub(super) struct Kill {
    pub(super) grace: Option<Duration>,
}

/// The startup probe has passed, or there is none.
pub(super) fn has_started(container: &Container, seen: &ContainerFacts) -> bool {
    seen.is_running() && (container.startup_probe.is_none() || seen.startup.verdict == Some(true))
}

pub(super) fn is_ready(container: &Container, seen: &ContainerFacts) -> bool {
    has_started(container, seen)
        && (container.readiness_probe.is_none() || seen.readiness.verdict == Some(true))
}

pub(super) fn due(container: &Container, seen: &ContainerFacts, now: Timestamp) -> Due {
    let mut due = Due::default();
    let Some((attempt, started)) = seen
        .run
        .as_ref()
        .filter(|run| run.stopping.is_none())
        .and_then(|run| Some((run.attempt, run.started?)))
    else {
        return due;
    };
    for kind in ProbeKind::ALL {
        let Some(probe) = kind.of(container) else {
            continue;
        };
        let starting = !has_started(container, seen);
        if (kind == ProbeKind::Startup) != starting {
            continue;
        }
        let facts = seen.probe(kind);
        if kind != ProbeKind::Readiness && facts.verdict == Some(false) {
            let own = probe
                .termination_grace_period_seconds
                .map(|seconds| Duration::from_secs(seconds.max(0).unsigned_abs()));
            due.kill = Some(Kill { grace: own });
            return due;
        }
        if facts.in_flight {
            continue;
        }
        let at = next(probe, started, facts.last);
        if at <= now {
            due.actions.push(Action::Probe {
                container: container.name.clone(),
                attempt,
                kind,
            });
        } else {
            due.again = Some(due.again.map_or(at, |known| known.min(at)));
        }
    }
    due
}

fn next(probe: &Probe, started: Timestamp, last: Option<Timestamp>) -> Timestamp {
    let seconds = |value: Option<i32>, default: i32| {
        Duration::from_secs(u64::from(value.unwrap_or(default).max(0).unsigned_abs()))
    };
    let first = later(started, seconds(probe.initial_delay_seconds, 0));
    last.map_or(first, |last| {
        let period = seconds(probe.period_seconds, 10).max(Duration::from_secs(1));
        first.max(later(last, period))
    })
}
