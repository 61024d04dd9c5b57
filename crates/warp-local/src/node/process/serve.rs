//! Logs and exec of processes.
#![allow(
    clippy::result_large_err,
    reason = "the API server's own error, made once per refused request"
)]

use std::process::Stdio;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use tokio::process::Command;
use warp_apiserver::codec::status::Status;
use warp_apiserver::hooks::{ExecOptions, ExecSession, LogOptions};

use super::log::{Query, follow, read};
use super::wire::State;
use super::{CONTAINER, Process, spec};
use crate::node::access::{Access, LogStream, text, wire};

impl Access for Process {
    fn logs(&self, pod: &Pod, container: &str, options: &LogOptions) -> Result<LogStream, Status> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let folder = self.shared.folder(uid);
        let Some(newest) = newest(&folder.join("state"), container) else {
            return Err(Status::bad_request(format!(
                "container \"{container}\" in pod \"{name}\" is waiting to start"
            )));
        };
        let attempt = match (options.previous, newest.checked_sub(1)) {
            (false, _) => newest,
            (true, Some(previous)) => previous,
            (true, None) => {
                return Err(Status::bad_request(format!(
                    "previous terminated container \"{container}\" in pod \"{name}\" not found"
                )));
            }
        };
        let query = query(options)?;
        let path = folder
            .join("logs")
            .join(format!("{container}.{attempt}.log"));
        let state = folder
            .join("state")
            .join(State::file_name(container, attempt));
        let ended = move || {
            // Gone with its pod, or recorded as ended: nothing more will be written.
            std::fs::read(&state)
                .ok()
                .and_then(|bytes| serde_json::from_slice::<State>(&bytes).ok())
                .is_none_or(|state| state.ended.is_some())
        };
        let goes_on = options.follow;
        let opened = async move {
            // Tens of megabytes, perhaps: not on a thread that serves others.
            let (place, asked) = (path.clone(), query.clone());
            let (bytes, mark) = tokio::task::spawn_blocking(move || read(&place, &asked))
                .await
                .unwrap_or_default();
            if !goes_on {
                return text(bytes);
            }
            let rest = Query {
                tail: None,
                ..query
            };
            text(bytes).chain(follow(path, rest, mark, ended)).boxed()
        };
        Ok(futures::stream::once(opened).flatten().boxed())
    }

    fn exec(
        &self,
        pod: &Pod,
        container: &str,
        options: &ExecOptions,
    ) -> Result<ExecSession, Status> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let folder = self.shared.folder(uid);
        let Some(launch) = spec::load(&folder, container) else {
            return Err(Status::bad_request(format!(
                "container \"{container}\" has not started"
            )));
        };
        let child = Command::new(&self.shared.program)
            .arg(CONTAINER)
            .arg("/dev/stderr")
            .args(&launch.groups)
            .arg("--")
            .args(&options.command)
            .env_clear()
            .envs(&launch.environment)
            .current_dir(&launch.folder)
            .stdin(if options.stdin {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| Status::internal(format!("failed to start the command: {error}")))?;
        Ok(wire(child, options))
    }

    fn address(&self, _pod: &Pod) -> Option<String> {
        Some(self.shared.address.clone())
    }
}

/// The newest run of a container that left a state file.
fn newest(folder: &std::path::Path, container: &str) -> Option<u32> {
    let prefix = format!("{container}.");
    std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            name.strip_prefix(&prefix)?
                .strip_suffix(".json")?
                .parse()
                .ok()
        })
        .max()
}

fn query(options: &LogOptions) -> Result<Query, Status> {
    let since = match (&options.since_time, options.since) {
        (Some(text), _) => {
            let at = text.parse::<Timestamp>();
            Some(
                at.map_err(|_| Status::bad_request(format!("sinceTime \"{text}\" is not a time")))?,
            )
        }
        (None, Some(ago)) => {
            let ago = SignedDuration::try_from(ago).unwrap_or(SignedDuration::MAX);
            Some(Timestamp::now().checked_sub(ago).unwrap_or(Timestamp::MIN))
        }
        (None, None) => None,
    };
    let number =
        |value: Option<u64>| value.map(|value| usize::try_from(value).unwrap_or(usize::MAX));
    Ok(Query {
        timestamps: options.timestamps,
        since,
        tail: number(options.tail_lines),
        limit: number(options.limit_bytes),
    })
}
