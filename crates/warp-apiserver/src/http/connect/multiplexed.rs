//! Exec, attach and port-forward over a connection with streams: each standard stream, and each
//! forwarded connection with its errors, is a stream the client opens and names by its headers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::mpsc;

use super::outcome;
use crate::hooks::{ContainerRef, ExecOptions, ExecSession, NodeHooks};
use crate::spdy::{Connection, Headers, Stream};

/// How long a client may take to open its streams, as on a kubelet.
const OPENING: Duration = Duration::from_secs(30);
/// Halves of forwarded connections that wait for the other half.
const MOST_HALVES: usize = 64;
const KIND: &str = "streamtype";

fn header<'a>(headers: &'a Headers, name: &str) -> &'a str {
    headers.get(name).map_or("", String::as_str)
}

/// The streams of one command.
#[derive(Default)]
struct Standard {
    error: Option<DuplexStream>,
    stdin: Option<DuplexStream>,
    stdout: Option<DuplexStream>,
    stderr: Option<DuplexStream>,
    resize: Option<DuplexStream>,
}

impl Standard {
    fn take(&mut self, stream: Stream) {
        let place = match header(&stream.headers, KIND) {
            "error" => &mut self.error,
            "stdin" => &mut self.stdin,
            "stdout" => &mut self.stdout,
            "stderr" => &mut self.stderr,
            "resize" => &mut self.resize,
            _ => return,
        };
        *place = Some(stream.io);
    }

    /// Whether the client has opened everything it asked for.
    fn is_complete(&self, options: &ExecOptions) -> bool {
        self.error.is_some()
            && (!options.stdin || self.stdin.is_some())
            && (!options.stdout || self.stdout.is_some())
            && (!options.stderr || options.tty || self.stderr.is_some())
            && (!options.tty || self.resize.is_some())
    }
}

/// Carries a session until its command has ended or the client is gone.
pub(super) async fn run(mut connection: Connection, options: ExecOptions, session: ExecSession) {
    let mut streams = Standard::default();
    let opening = async {
        while !streams.is_complete(&options) {
            match connection.accept().await {
                Some(stream) => streams.take(stream),
                None => return false,
            }
        }
        true
    };
    if !matches!(tokio::time::timeout(OPENING, opening).await, Ok(true)) {
        return;
    }
    let ExecSession {
        stdin,
        stdout,
        stderr,
        resize,
        exit,
    } = session;
    let input = tokio::spawn(feed(streams.stdin, stdin));
    let sizes = tokio::spawn(resizes(streams.resize, resize));
    let gone = connection.gone();
    let ended = async {
        tokio::join!(copy(stdout, streams.stdout), copy(stderr, streams.stderr));
        let outcome = outcome(exit.await.ok());
        if let Some(mut error) = streams.error {
            error.write_all(outcome.to_string().as_bytes()).await.ok();
            error.shutdown().await.ok();
        }
    };
    // A client that is gone drops everything: the command's pipes break, and its runtime sees that nobody
    // waits for `exit` any more.
    tokio::select! {
        () = ended => {}
        () = gone.cancelled() => {}
    }
    input.abort();
    sizes.abort();
    connection.finish().await;
}

async fn feed(from: Option<DuplexStream>, to: Option<DuplexStream>) {
    if let (Some(mut from), Some(mut to)) = (from, to) {
        tokio::io::copy(&mut from, &mut to).await.ok();
        to.shutdown().await.ok();
    }
}

async fn copy(from: Option<DuplexStream>, to: Option<DuplexStream>) {
    let Some(mut to) = to else { return };
    if let Some(mut from) = from {
        tokio::io::copy(&mut from, &mut to).await.ok();
    }
    to.shutdown().await.ok();
}

/// Bytes of one size of a terminal, at most.
const LONGEST_SIZE: u64 = 4096;

/// Sizes of the client's terminal, one object a line.
async fn resizes(from: Option<DuplexStream>, to: Option<mpsc::Sender<(u16, u16)>>) {
    let (Some(from), Some(to)) = (from, to) else {
        return;
    };
    let mut from = BufReader::new(from);
    loop {
        let mut line = Vec::new();
        let length = (&mut from)
            .take(LONGEST_SIZE)
            .read_until(b'\n', &mut line)
            .await;
        // The end, or more than any size takes: what is left is not kept.
        if length.is_err() || line.is_empty() || line.len() as u64 == LONGEST_SIZE {
            return;
        }
        let size: Value = serde_json::from_slice(&line).unwrap_or_default();
        if to.send(super::terminal_size(&size)).await.is_err() {
            return;
        }
    }
}

/// Carries forwarded connections until the client is gone.
pub(super) async fn forward(
    mut connection: Connection,
    hooks: Arc<dyn NodeHooks>,
    target: ContainerRef,
) {
    let mut halves: BTreeMap<String, Stream> = BTreeMap::new();
    let mut open = tokio::task::JoinSet::new();
    while let Some(stream) = connection.accept().await {
        while open.try_join_next().is_some() {}
        let request = header(&stream.headers, "requestid").to_owned();
        let Some(first) = halves.remove(&request) else {
            // The oldest half has waited for long: nobody will send its other one.
            if halves.len() >= MOST_HALVES {
                halves.pop_first();
            }
            halves.insert(request, stream);
            continue;
        };
        let (data, error) = if header(&stream.headers, KIND) == "data" {
            (stream, first)
        } else {
            (first, stream)
        };
        open.spawn(forward_one(hooks.clone(), target.clone(), data, error.io));
    }
    open.shutdown().await;
}

async fn forward_one(
    hooks: Arc<dyn NodeHooks>,
    target: ContainerRef,
    mut data: Stream,
    mut error: DuplexStream,
) {
    let text = header(&data.headers, "port");
    let (pod, uid) = (target.pod.clone(), target.object["metadata"]["uid"].clone());
    let opened = match text.parse::<u16>() {
        Ok(port) => hooks
            .connect(target, port)
            .await
            .map_err(|status| status.message),
        Err(_) => Err("it is not a port".to_owned()),
    };
    match opened {
        Ok(mut to) => {
            tokio::io::copy_bidirectional(&mut data.io, &mut to)
                .await
                .ok();
        }
        Err(why) => {
            let uid = uid.as_str().unwrap_or_default();
            let told = format!("error forwarding port {text} to pod {pod}, uid {uid}: {why}");
            error.write_all(told.as_bytes()).await.ok();
        }
    }
    error.shutdown().await.ok();
}
