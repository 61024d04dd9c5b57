//! What only a node can answer: logs, exec, attach, port-forward. The local engine fills these;
//! without it the server refuses them by name.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use serde_json::Value;
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, oneshot};

use crate::codec::status::Status;

pub type HookFuture<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

/// One container of one pod.
#[derive(Clone, Debug)]
pub struct ContainerRef {
    pub namespace: String,
    pub pod: String,
    /// Empty when the client did not name one and the pod has exactly one.
    pub container: String,
    /// The pod as stored.
    pub object: Value,
}

/// Query parameters of `…/log`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub follow: bool,
    pub previous: bool,
    pub timestamps: bool,
    pub since: Option<Duration>,
    /// RFC 3339 time, as the client sent it.
    pub since_time: Option<String>,
    pub tail_lines: Option<u64>,
    pub limit_bytes: Option<u64>,
}

/// Query parameters of `…/exec` and `…/attach`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "the query parameters are independent flags"
)]
pub struct ExecOptions {
    /// Empty for attach.
    pub command: Vec<String>,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// The open ends of a running command; the server carries them over the client's WebSocket.
#[derive(Debug)]
pub struct ExecSession {
    /// What is written here reaches the command's standard input; dropping the write half closes it.
    pub stdin: Option<DuplexStream>,
    pub stdout: Option<DuplexStream>,
    pub stderr: Option<DuplexStream>,
    /// Terminal sizes (width, height) the client sends.
    pub resize: Option<mpsc::Sender<(u16, u16)>>,
    /// How it ended. Dropped without a value: the command was lost. The sender sees the receiver
    /// closed when the client went away: the command is to be ended then.
    pub exit: oneshot::Receiver<Exit>,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Failed(String),
}

/// Answers for pods that run somewhere.
pub trait NodeHooks: Send + Sync + fmt::Debug {
    fn logs(
        &self,
        target: ContainerRef,
        options: LogOptions,
    ) -> HookFuture<BoxStream<'static, Result<Bytes, std::io::Error>>>;

    fn exec(&self, target: ContainerRef, options: ExecOptions) -> HookFuture<ExecSession>;

    fn attach(&self, target: ContainerRef, options: ExecOptions) -> HookFuture<ExecSession>;

    /// Whether ports of the pod can be connected to at all.
    fn reach(&self, target: ContainerRef) -> HookFuture<()>;

    /// A connection to a port of the pod.
    fn connect(&self, target: ContainerRef, port: u16) -> HookFuture<DuplexStream>;
}

/// The hooks of a server without nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoNodes;

fn refuse<T: Send + 'static>(what: &str) -> HookFuture<T> {
    let status = Status::not_implemented(format!(
        "{what} needs a node, and this server runs none: start the local engine with `warp up`"
    ));
    Box::pin(std::future::ready(Err(status)))
}

impl NodeHooks for NoNodes {
    fn logs(
        &self,
        _target: ContainerRef,
        _options: LogOptions,
    ) -> HookFuture<BoxStream<'static, Result<Bytes, std::io::Error>>> {
        refuse("reading logs")
    }

    fn exec(&self, _target: ContainerRef, _options: ExecOptions) -> HookFuture<ExecSession> {
        refuse("running a command in a pod")
    }

    fn attach(&self, _target: ContainerRef, _options: ExecOptions) -> HookFuture<ExecSession> {
        refuse("attaching to a pod")
    }

    fn reach(&self, _target: ContainerRef) -> HookFuture<()> {
        refuse("connecting to a port of a pod")
    }

    fn connect(&self, _target: ContainerRef, _port: u16) -> HookFuture<DuplexStream> {
        refuse("connecting to a port of a pod")
    }
}
