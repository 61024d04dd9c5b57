//! Saving work: how a workload keeps what it has done, and what a status says of it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::run_seconds;

/// How the workload saves its work, so that its next attempt can go on from there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// It saves its work when it gets this signal, which asks it to end: at an eviction, a drain, a suspension. Then it
    /// exits with another code than 0, which means that it is done. Absent: it gets `SIGTERM` and saves nothing then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<CheckpointSignal>,
    /// How long it has from the signal on, such as `2m`; then it is killed. Absent: what the pod says, else `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub grace_period: Option<String>,
    /// It saves its work by itself at least this often, such as `10m`, counted from its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub period: Option<String>,
    /// The annotation of its pod in which it writes when it last saved its work, as a time such as
    /// `2026-01-31T12:00:00Z`. Known better than by `period`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
        )
    )]
    pub annotation: Option<String>,
    /// The file, or the folder with the files, it writes when it saves its work, as its container sees it: the newest of
    /// their times is when it last saved. Only process nodes of `warp up` look at it. Known better than by `period`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 512), regex(pattern = r"^/"))]
    pub path: Option<String>,
}

/// It saves its work at this signal, and ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CheckpointSignal {
    /// What every container gets, unless its image names another.
    #[default]
    #[serde(rename = "SIGTERM")]
    Term,
    #[serde(rename = "SIGINT")]
    Int,
    #[serde(rename = "SIGHUP")]
    Hup,
    #[serde(rename = "SIGQUIT")]
    Quit,
    #[serde(rename = "SIGUSR1")]
    Usr1,
    #[serde(rename = "SIGUSR2")]
    Usr2,
}

impl CheckpointSignal {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Term => "SIGTERM",
            Self::Int => "SIGINT",
            Self::Hup => "SIGHUP",
            Self::Quit => "SIGQUIT",
            Self::Usr1 => "SIGUSR1",
            Self::Usr2 => "SIGUSR2",
        }
    }
}

impl Checkpoint {
    /// Seconds from the signal to the end.
    pub fn grace_seconds(&self) -> Option<i64> {
        self.grace_period.as_deref().and_then(run_seconds)
    }

    /// Seconds between two savings of its own.
    pub fn period_seconds(&self) -> Option<i64> {
        self.period.as_deref().and_then(run_seconds)
    }

    /// The signal its container has to be told of: another than every container gets.
    pub fn own_signal(&self) -> Option<CheckpointSignal> {
        self.signal
            .filter(|signal| *signal != CheckpointSignal::Term)
    }
}

/// When a workload last saved its work, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastCheckpoint {
    /// When.
    pub time: Time,
    /// How that is known.
    pub by: CheckpointEvidence,
}

/// How it is known that work was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CheckpointEvidence {
    /// Its pod said so in the annotation `checkpoint.annotation` names.
    Annotation,
    /// Its node saw it by the time of a file at `checkpoint.path`.
    File,
    /// It ended in time after the signal `checkpoint.signal`.
    Signal,
    /// It runs long enough for `checkpoint.period`.
    Period,
}
