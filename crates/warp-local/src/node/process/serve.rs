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
use tokio::sync::oneshot;
use warp_apiserver::codec::status::Status;
use warp_apiserver::hooks::{ExecOptions, ExecSession, HookFuture, LogOptions};

use super::container::{ON_TERMINAL, closed};
use super::log::{Query, follow, read};
use super::terminal::Terminal;
use super::wire::State;
use super::{CONTAINER, Process, input, spec};
use crate::background;
use crate::node::access::{Access, LogStream, from_now_on, streamed, text, wire};
use crate::node::task::Record;

impl Process {
    /// A log from where it is asked for; `found` is told once that place is known.
    fn read_log(
        &self,
        pod: &Pod,
        container: &str,
        options: &LogOptions,
        found: Option<oneshot::Sender<()>>,
    ) -> Result<LogStream, Status> {
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
            if let Some(found) = found {
                found.send(()).ok();
            }
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
}

impl Access for Process {
    fn logs(&self, pod: &Pod, container: &str, options: &LogOptions) -> Result<LogStream, Status> {
        self.read_log(pod, container, options, None)
    }

    fn exec(
        &self,
        pod: &Pod,
        container: &str,
        options: &ExecOptions,
    ) -> Result<ExecSession, Status> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let folder = self.shared.folder(uid);
        let launch = spec::load(&folder, container).filter(|_| is_running(&folder, container));
        let Some(launch) = launch else {
            return Err(Status::plain_failure(format!(
                "container not found (\"{container}\"): it does not run"
            )));
        };
        let mut command = Command::new(&self.shared.program);
        command
            .arg(CONTAINER)
            .arg("/dev/stderr")
            .args(options.tty.then_some(ON_TERMINAL))
            .args(closed(&launch.read_only))
            .args(&launch.groups)
            .arg("--")
            .args(&options.command)
            .env_clear()
            .envs(&launch.environment)
            .current_dir(&launch.folder)
            .kill_on_drop(true);
        let failed = |error: std::io::Error| {
            Status::internal(format!("failed to start the command: {error}"))
        };
        if options.tty {
            return on_terminal(command, options).map_err(failed);
        }
        let child = command
            .stdin(if options.stdin {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        Ok(wire(child, options))
    }

    fn attach(
        &self,
        pod: &Pod,
        container: &str,
        options: &ExecOptions,
    ) -> Result<ExecSession, Status> {
        let (found, is_found) = oneshot::channel();
        let log = self.read_log(pod, container, &from_now_on(), Some(found))?;
        let mut session = streamed(log);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let folder = self.shared.folder(uid);
        let launch = spec::load(&folder, container).filter(|launch| launch.stdin.is_some());
        // As on a kubelet, a container that was given no standard input hears nothing.
        if let Some(launch) = launch.filter(|_| options.stdin) {
            let (outside, inside) = tokio::io::duplex(8192);
            session.stdin = Some(outside);
            background::spawn(async move {
                // The answer to the first word typed must not be missed.
                is_found.await.ok();
                input::feed(folder, launch, inside).await;
            });
        }
        Ok(session)
    }

    fn addresses(&self, pod: &Pod) -> HookFuture<Vec<String>> {
        // Its processes share the machine's network: what listens on none but the pod's own address is
        // the pod's for certain, so that is tried first.
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let own = Record::read(&self.shared.folder(uid)).and_then(|record| record.address);
        let mut addresses: Vec<String> = own.iter().map(ToString::to_string).collect();
        addresses.extend(["127.0.0.1".to_owned(), "::1".to_owned()]);
        if !addresses.contains(&self.shared.address) {
            addresses.push(self.shared.address.clone());
        }
        Box::pin(std::future::ready(Ok(addresses)))
    }
}

fn on_terminal(mut command: Command, options: &ExecOptions) -> std::io::Result<ExecSession> {
    let (terminal, far) = Terminal::open()?;
    let child = command
        .env("TERM", "xterm")
        .stdin(far.try_clone()?)
        .stdout(far.try_clone()?)
        .stderr(far)
        .spawn()?;
    // It holds the far end too, and the end of the last holder is the end of the output.
    drop(command);
    let (typed, shown, resize) = terminal.streams();
    let mut session = wire(child, options);
    session.stdin = options.stdin.then_some(typed);
    session.stdout = Some(shown);
    session.resize = Some(resize);
    Ok(session)
}

fn is_running(folder: &std::path::Path, container: &str) -> bool {
    let states = folder.join("state");
    newest(&states, container)
        .and_then(|attempt| std::fs::read(states.join(State::file_name(container, attempt))).ok())
        .and_then(|bytes| serde_json::from_slice::<State>(&bytes).ok())
        .is_some_and(|state| state.ended.is_none())
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
