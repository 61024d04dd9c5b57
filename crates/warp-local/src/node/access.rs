//! Logs, exec and ports of the pods of this process, as the embedded API server asks for them.
#![allow(
    clippy::result_large_err,
    reason = "the API server's own error, made once per refused request"
)]

use std::sync::{Arc, OnceLock};

use crate::background;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;
use warp_apiserver::codec::status::Status;
use warp_apiserver::hooks::{
    ContainerRef, ExecOptions, ExecSession, Exit, HookFuture, LogOptions, NodeHooks,
};

pub type LogStream = BoxStream<'static, Result<Bytes, std::io::Error>>;

/// How much of a stream waits for its reader.
const BUFFER: usize = 64 * 1024;

/// What a runtime lets people see of its containers.
pub trait Access: Send + Sync + std::fmt::Debug {
    fn logs(&self, pod: &Pod, container: &str, options: &LogOptions) -> Result<LogStream, Status>;

    /// Starts a command in the container, with its ends wired to `session`.
    fn exec(
        &self,
        pod: &Pod,
        container: &str,
        options: &ExecOptions,
    ) -> Result<ExecSession, Status>;

    /// What the container prints from now on, and a way to its standard input if it has one.
    fn attach(
        &self,
        pod: &Pod,
        container: &str,
        options: &ExecOptions,
    ) -> Result<ExecSession, Status>;

    /// The addresses ports of the pod are reached at, in the order they are tried.
    fn addresses(&self, pod: &Pod) -> HookFuture<Vec<String>>;
}

/// A log that begins with the next line.
pub(crate) fn from_now_on() -> LogOptions {
    LogOptions {
        follow: true,
        tail_lines: Some(0),
        ..LogOptions::default()
    }
}

/// Made before the nodes are, and told of them when they exist.
#[derive(Clone, Debug, Default)]
pub struct Hooks(Arc<OnceLock<Arc<dyn Access>>>);

impl Hooks {
    /// The first call counts.
    pub fn connect_to(&self, access: Arc<dyn Access>) {
        self.0.set(access).ok();
    }

    fn find(&self, target: &ContainerRef) -> Result<(Arc<dyn Access>, Pod, String), Status> {
        let access = self
            .0
            .get()
            .ok_or_else(|| Status::unavailable("the nodes are still starting; try again"))?;
        // By way of text, which is how every other pod is read: a second decoder of pods would double their code.
        let pod: Pod = serde_json::from_str(&target.object.to_string()).map_err(|error| {
            Status::internal(format!("pod {} cannot be read: {error}", target.pod))
        })?;
        let container = if target.container.is_empty() {
            let first = pod.spec.as_ref().and_then(|spec| spec.containers.first());
            first
                .map(|container| container.name.clone())
                .unwrap_or_default()
        } else {
            target.container.clone()
        };
        Ok((access.clone(), pod, container))
    }
}

fn ready<T: Send + 'static>(result: Result<T, Status>) -> HookFuture<T> {
    Box::pin(std::future::ready(result))
}

impl NodeHooks for Hooks {
    fn logs(&self, target: ContainerRef, options: LogOptions) -> HookFuture<LogStream> {
        ready(
            self.find(&target)
                .and_then(|(access, pod, container)| access.logs(&pod, &container, &options)),
        )
    }

    fn exec(&self, target: ContainerRef, options: ExecOptions) -> HookFuture<ExecSession> {
        ready(
            self.find(&target)
                .and_then(|(access, pod, container)| access.exec(&pod, &container, &options)),
        )
    }

    fn attach(&self, target: ContainerRef, options: ExecOptions) -> HookFuture<ExecSession> {
        ready(
            self.find(&target)
                .and_then(|(access, pod, container)| access.attach(&pod, &container, &options)),
        )
    }

    fn reach(&self, target: ContainerRef) -> HookFuture<()> {
        let addresses = match self.find(&target) {
            Ok((access, pod, _)) => access.addresses(&pod),
            Err(status) => return ready(Err(status)),
        };
        Box::pin(async move { addresses.await.map(|_| ()) })
    }

    fn connect(&self, target: ContainerRef, port: u16) -> HookFuture<DuplexStream> {
        let addresses = match self.find(&target) {
            Ok((access, pod, _)) => access.addresses(&pod),
            Err(status) => return ready(Err(status)),
        };
        Box::pin(async move {
            let mut stream = dial(&addresses.await?, port).await?;
            let (mut inside, outside) = tokio::io::duplex(BUFFER);
            background::spawn(async move {
                tokio::io::copy_bidirectional(&mut stream, &mut inside).await
            });
            Ok(outside)
        })
    }
}

/// The first address that answers; the first refusal is told.
async fn dial(addresses: &[String], port: u16) -> Result<tokio::net::TcpStream, Status> {
    let mut refused = None;
    for address in addresses {
        match tokio::net::TcpStream::connect((address.as_str(), port)).await {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                refused.get_or_insert(format!("failed to connect to {address}:{port}: {error}"));
            }
        }
    }
    let why = refused.unwrap_or_else(|| "the pod has no address".to_owned());
    Err(Status::plain_failure(why))
}

/// A session that prints a stream and ends with it.
pub(crate) fn streamed(mut stream: LogStream) -> ExecSession {
    let (mut inside, stdout) = tokio::io::duplex(BUFFER);
    let (send, exit) = oneshot::channel();
    background::spawn(async move {
        while let Some(Ok(text)) = stream.next().await {
            if inside.write_all(&text).await.is_err() {
                break;
            }
        }
        drop(inside);
        send.send(Exit::Code(0)).ok();
    });
    ExecSession {
        stdin: None,
        stdout: Some(stdout),
        stderr: None,
        resize: None,
        exit,
    }
}

/// Wires a child process to a session.
pub(crate) fn wire(mut child: tokio::process::Child, options: &ExecOptions) -> ExecSession {
    let (send, exit) = oneshot::channel();
    let stdin = child.stdin.take().filter(|_| options.stdin).map(|mut to| {
        let (outside, mut inside) = tokio::io::duplex(BUFFER);
        background::spawn(async move {
            tokio::io::copy(&mut inside, &mut to).await.ok();
            to.shutdown().await.ok();
        });
        outside
    });
    let stdout = child.stdout.take().map(outgoing);
    let stderr = child.stderr.take().map(outgoing);
    let mut send = send;
    background::spawn(async move {
        let ended = tokio::select! {
            ended = child.wait() => ended,
            // The client went away: nobody would stop it any more.
            () = send.closed() => {
                end(&mut child);
                return;
            }
        };
        let outcome = match ended {
            Ok(status) => {
                use std::os::unix::process::ExitStatusExt;
                Exit::Code(
                    status
                        .code()
                        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default()),
                )
            }
            Err(error) => Exit::Failed(error.to_string()),
        };
        send.send(outcome).ok();
    });
    ExecSession {
        stdin,
        stdout,
        stderr,
        resize: None,
        exit,
    }
}

/// Ends a command with everything in its group.
fn end(child: &mut tokio::process::Child) {
    let group = child
        .id()
        .and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?));
    if let Some(group) = group {
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).ok();
    }
    child.start_kill().ok();
}

fn outgoing(mut from: impl tokio::io::AsyncRead + Unpin + Send + 'static) -> DuplexStream {
    let (mut inside, outside) = tokio::io::duplex(BUFFER);
    background::spawn(async move {
        let mut buffer = vec![0; 8192];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            if inside.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    });
    outside
}

/// A stream of text that is all there already.
pub(crate) fn text(bytes: Vec<u8>) -> LogStream {
    futures::stream::iter((!bytes.is_empty()).then(|| Ok(Bytes::from(bytes)))).boxed()
}
