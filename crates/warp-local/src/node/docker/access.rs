//! Logs and exec of containers.
#![allow(
    clippy::result_large_err,
    reason = "the API server's own error, made once per refused request"
)]

use bytes::Bytes;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use warp_apiserver::codec::status::Status;
use warp_apiserver::hooks::{ExecOptions, ExecSession, Exit, LogOptions};

use super::api::Frames;
use super::{Docker, create};
use crate::background;
use crate::node::access::{Access, LogStream};

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
        let (stdin_outside, stdin_inside) = tokio::io::duplex(BUFFER);
        let (stdout_inside, stdout_outside) = tokio::io::duplex(BUFFER);
        let (stderr_inside, stderr_outside) = tokio::io::duplex(BUFFER);
        let (send, exit) = oneshot::channel();
        let (api, command, wants_stdin) = (
            self.shared.api.clone(),
            options.command.clone(),
            options.stdin,
        );
        background::spawn(async move {
            let run = async {
                let id = api.exec(&name, &command, wants_stdin).await?;
                let streams = api.exec_start(&id).await?;
                carry(
                    streams,
                    wants_stdin.then_some(stdin_inside),
                    stdout_inside,
                    stderr_inside,
                )
                .await;
                api.exec_code(&id).await
            };
            send.send(match run.await {
                Ok(code) => Exit::Code(code),
                Err(error) => Exit::Failed(super::DockerError::to_string(&error)),
            })
            .ok();
        });
        Ok(ExecSession {
            stdin: options.stdin.then_some(stdin_outside),
            stdout: Some(stdout_outside),
            stderr: Some(stderr_outside),
            resize: None,
            exit,
        })
    }

    fn address(&self, pod: &Pod) -> Option<String> {
        pod.status.as_ref()?.pod_ip.clone()
    }
}

/// Copies between the engine's one stream and the three of a command, until it ends.
async fn carry(
    streams: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static,
    stdin: Option<tokio::io::DuplexStream>,
    mut stdout: tokio::io::DuplexStream,
    mut stderr: tokio::io::DuplexStream,
) {
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
