//! Logs and exec of containers.
#![allow(
    clippy::result_large_err,
    reason = "the API server's own error, made once per refused request"
)]

use bytes::Bytes;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{mpsc, oneshot};
use warp_apiserver::codec::status::Status;
use warp_apiserver::hooks::{ExecOptions, ExecSession, Exit, HookFuture, LogOptions};

use super::Api;
use super::api::Frames;
use super::{Docker, create};
use crate::background;
use crate::node::access::{Access, LogStream};
use crate::node::facts::containers;

const BUFFER: usize = 64 * 1024;

/// The engine's name of the container's newest run, or of the one before.
fn target(pod: &Pod, container: &str, previous: bool) -> Result<String, Status> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref().and_then(|status| {
        let all = status
            .container_statuses
            .iter()
            .chain(&status.init_container_statuses)
            .flatten();
        all.into_iter().find(|status| status.name == container)
    });
    let started = status.filter(|status| status.container_id.is_some());
    let Some(started) = started else {
        return Err(Status::bad_request(format!(
            "container \"{container}\" in pod \"{name}\" is waiting to start"
        )));
    };
    let newest = u32::try_from(started.restart_count).unwrap_or_default();
    let attempt = if previous {
        newest.checked_sub(1)
    } else {
        Some(newest)
    };
    let attempt = attempt.ok_or_else(|| {
        Status::bad_request(format!(
            "previous terminated container \"{container}\" in pod \"{name}\" not found"
        ))
    })?;
    Ok(create::name(pod, container, attempt))
}

impl Access for Docker {
    fn logs(&self, pod: &Pod, container: &str, options: &LogOptions) -> Result<LogStream, Status> {
        let name = target(pod, container, options.previous)?;
        let mut query = format!(
            "follow={}&timestamps={}",
            options.follow, options.timestamps
        );
        if let Some(tail) = options.tail_lines {
            query.extend(["&tail=", &tail.to_string()]);
        }
        let since = options
            .since_time
            .as_deref()
            .and_then(|text| text.parse().ok())
            .or_else(|| {
                let ago = jiff::SignedDuration::try_from(options.since?).ok()?;
                jiff::Timestamp::now().checked_sub(ago).ok()
            });
        if let Some(since) = since {
            query.extend(["&since=", &jiff::Timestamp::as_second(since).to_string()]);
        }
        let api = self.shared.api.clone();
        let opened = async move {
            match api.logs(&name, &query).await {
                Ok(stream) => stream.boxed(),
                Err(error) => futures::stream::iter([Err(std::io::Error::other(error))]).boxed(),
            }
        };
        Ok(futures::stream::once(opened).flatten().boxed())
    }

    fn exec(
        &self,
        pod: &Pod,
        container: &str,
        options: &ExecOptions,
    ) -> Result<ExecSession, Status> {
        let name = target(pod, container, false)?;
        let (pipes, session, send) = pipes(options);
        let (api, options) = (self.shared.api.clone(), options.clone());
        let (resize, sizes) = mpsc::channel(4);
        let wants_size = options.tty;
        background::spawn(async move {
            let run = async {
                let id = api
                    .exec(&name, &options.command, options.stdin, options.tty)
                    .await?;
                let streams = api.exec_start(&id, options.tty).await?;
                tokio::select! {
                    () = carry(streams, pipes, options.tty) => {}
                    never = follow_sizes(&api, &id, sizes) => match never {},
                }
                api.exec_code(&id).await
            };
            send.send(match run.await {
                Ok(code) => Exit::Code(code),
                Err(error) => Exit::Failed(super::DockerError::to_string(&error)),
            })
            .ok();
        });
        Ok(ExecSession {
            resize: wants_size.then_some(resize),
            ..session
        })
    }

    fn attach(
        &self,
        pod: &Pod,
        container: &str,
        options: &ExecOptions,
    ) -> Result<ExecSession, Status> {
        let name = target(pod, container, false)?;
        let (pipes, session, send) = pipes(options);
        let (api, stdin) = (self.shared.api.clone(), options.stdin);
        background::spawn(async move {
            let run = async {
                let streams = api.attach(&name, stdin).await?;
                carry(streams, pipes, false).await;
                Ok(())
            };
            send.send(match run.await {
                Ok(()) => Exit::Code(0),
                Err(error) => Exit::Failed(super::DockerError::to_string(&error)),
            })
            .ok();
        });
        Ok(session)
    }

    /// The network of a pod is that of whichever of its containers runs.
    fn addresses(&self, pod: &Pod) -> HookFuture<Vec<String>> {
        let spec = pod.spec.clone().unwrap_or_default();
        if spec.host_network == Some(true) {
            return Box::pin(std::future::ready(Ok(vec!["127.0.0.1".to_owned()])));
        }
        let names: Vec<String> = containers(&spec)
            .filter_map(|container| target(pod, &container.name, false).ok())
            .collect();
        let api = self.shared.api.clone();
        let pod = pod.metadata.name.clone().unwrap_or_default();
        Box::pin(async move {
            let mut addresses = Vec::new();
            for name in names {
                if let Ok(found) = api.inspect(&name).await
                    && !found.network_settings.address.is_empty()
                {
                    addresses.push(found.network_settings.address);
                }
            }
            if addresses.is_empty() {
                return Err(Status::bad_request(format!(
                    "no container of pod \"{pod}\" has an address yet"
                )));
            }
            Ok(addresses)
        })
    }
}

/// The ends of a session that are the engine's.
struct Pipes {
    stdin: Option<DuplexStream>,
    stdout: DuplexStream,
    stderr: DuplexStream,
}

fn pipes(options: &ExecOptions) -> (Pipes, ExecSession, oneshot::Sender<Exit>) {
    let (stdin_outside, stdin) = tokio::io::duplex(BUFFER);
    let (stdout, stdout_outside) = tokio::io::duplex(BUFFER);
    let (stderr, stderr_outside) = tokio::io::duplex(BUFFER);
    let (send, exit) = oneshot::channel();
    let inside = Pipes {
        stdin: options.stdin.then_some(stdin),
        stdout,
        stderr,
    };
    let session = ExecSession {
        stdin: options.stdin.then_some(stdin_outside),
        stdout: Some(stdout_outside),
        stderr: (!options.tty).then_some(stderr_outside),
        resize: None,
        exit,
    };
    (inside, session, send)
}

async fn follow_sizes(
    api: &Api,
    exec: &str,
    mut sizes: mpsc::Receiver<(u16, u16)>,
) -> std::convert::Infallible {
    while let Some(size) = sizes.recv().await {
        if let Err(error) = api.exec_resize(exec, size).await {
            tracing::debug!(%error, "the terminal keeps its size");
        }
    }
    std::future::pending().await
}

/// Copies between the engine's one stream and the three of a command, until it ends. On a terminal there
/// is one output, as it is.
async fn carry(
    streams: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static,
    pipes: Pipes,
    tty: bool,
) {
    let Pipes {
        stdin,
        mut stdout,
        mut stderr,
    } = pipes;
    let (mut read, mut write) = tokio::io::split(streams);
    let typing = background::spawn(async move {
        if let Some(mut stdin) = stdin {
            tokio::io::copy(&mut stdin, &mut write).await.ok();
            write.shutdown().await.ok();
        }
        // Kept open: closing it early would end the command's output too.
        write
    });
    let mut frames = Frames::default();
    let mut buffer = vec![0; 8192];
    while let Ok(length @ 1..) = read.read(&mut buffer).await {
        if tty {
            stdout.write_all(&buffer[..length]).await.ok();
            continue;
        }
        frames.push(&buffer[..length]);
        while let Some((stream, text)) = frames.next() {
            let text: Bytes = text;
            let to = if stream == 2 {
                &mut stderr
            } else {
                &mut stdout
            };
            to.write_all(&text).await.ok();
        }
    }
    typing.abort();
}
