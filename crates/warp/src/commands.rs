//! One module per verb: its arguments and what it does with them.

pub(crate) mod apiserver;
pub(crate) mod apply;
pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod budget;
pub(crate) mod cancel;
pub(crate) mod chat;
pub(crate) mod costs;
pub(crate) mod delete;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod engine;
pub(crate) mod exec;
pub(crate) mod fetch;
pub(crate) mod get;
pub(crate) mod install;
pub(crate) mod logs;
pub(crate) mod machines;
pub(crate) mod model;
pub(crate) mod node;
pub(crate) mod offers;
pub(crate) mod operator;
pub(crate) mod others;
pub(crate) mod patch;
pub(crate) mod plan;
pub(crate) mod queue;
pub(crate) mod rent;
pub(crate) mod restore;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod suspend;
pub(crate) mod tenant;
pub(crate) mod timeline;
pub(crate) mod up;
pub(crate) mod user;
pub(crate) mod why;

use std::time::Duration;

/// A time as an argument.
fn duration(text: &str) -> Result<Duration, String> {
    let seconds = warp_api::workload::run_seconds(text);
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| format!("'{text}' is not a time such as 90s, 5m or 1h30m"))
}
