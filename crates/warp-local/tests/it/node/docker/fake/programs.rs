//! What the engine's containers really run. They have no walls: a shell as main process and every command of an exec is
//! a program of this machine, with its files and its network. What is judged is how their streams are carried.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path as Segment, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::{ChildStdin, Command};
use tokio::sync::{Mutex, broadcast, mpsc};
use tokio_util::sync::CancellationToken;

use super::{Engine, frame, missing};

/// A main process while it runs.
#[derive(Clone, Debug)]
pub(super) struct Main {
    /// Frames of what it prints.
    output: broadcast::Sender<Vec<u8>>,
    stdin: Arc<Mutex<Option<ChildStdin>>>,
    end: CancellationToken,
}

impl Main {
    pub(super) fn stop(&self) {
        self.end.cancel();
    }
}

/// A command prepared in a container, and how it ended.
#[derive(Clone, Debug)]
pub(super) struct Exec {
    command: Vec<String>,
    stdin: bool,
    exit_code: Option<i64>,
}

/// Reads a stream to its end and sends it on in frames.
async fn framed(mut from: impl AsyncRead + Unpin, stream: u8, to: mpsc::Sender<Vec<u8>>) {
    let mut buffer = vec![0; 8192];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if to.send(frame(stream, &buffer[..length])).await.is_err() {
            return;
        }
    }
}

/// Starts a container's main process; the engine is told when it has ended and all it printed was sent.
pub(super) fn run(engine: &Engine, id: &str, words: &[String], body: &Value) -> Main {
    let listens = body["OpenStdin"] == true;
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .stdin(if listens {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (output, _) = broadcast::channel(1024);
    let main = Main {
        output: output.clone(),
        stdin: Arc::new(Mutex::new(child.stdin.take())),
        end: CancellationToken::new(),
    };
    let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (engine, id, end) = (engine.clone(), id.to_owned(), main.end.clone());
    tokio::spawn(async move {
        let (send, mut frames) = mpsc::channel(64);
        let telling = async {
            while let Some(frame) = frames.recv().await {
                // Nobody listening is no reason to stop.
                output.send(frame).ok();
            }
        };
        let printing = async {
            tokio::join!(framed(out, 1, send.clone()), framed(err, 2, send), telling);
        };
        tokio::select! {
            () = printing => {}
            () = end.cancelled() => {
                child.start_kill().ok();
            }
        }
        let code = child.wait().await.unwrap().code().unwrap_or(137);
        engine.end(&id, i64::from(code), false);
    });
    main
}

/// As the API description has it: a client that asks for an upgrade gets one, any other an answer that only goes one way.
fn wants_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(header::UPGRADE)
}

fn switching() -> Response {
    let headers = [(header::CONNECTION, "Upgrade"), (header::UPGRADE, "tcp")];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

/// What the engine answers to a client that did not ask for an upgrade.
fn one_way(frames: mpsc::Receiver<Vec<u8>>) -> Response {
    let stream = futures::stream::unfold(frames, |mut frames| async move {
        let frame = frames.recv().await?;
        Some((Ok::<_, std::io::Error>(frame), frames))
    });
    let kind = [(header::CONTENT_TYPE, "application/vnd.docker.raw-stream")];
    (kind, Body::from_stream(stream)).into_response()
}

async fn write_all(mut frames: mpsc::Receiver<Vec<u8>>, mut to: impl AsyncWrite + Unpin) {
    while let Some(frame) = frames.recv().await {
        if to.write_all(&frame).await.is_err() {
            return;
        }
    }
    to.shutdown().await.ok();
}

pub(super) async fn attach(
    State(engine): State<Engine>,
    Segment(id): Segment<String>,
    Query(query): Query<BTreeMap<String, String>>,
    mut request: Request,
) -> Response {
    let Some((_, container)) = engine.find(&id) else {
        return missing(&id);
    };
    let Some(Main { output, stdin, .. }) = container.main else {
        let told = json!({"message": format!("container {id} is not running")});
        return (StatusCode::CONFLICT, axum::Json(told)).into_response();
    };
    let mut output = {
        let sender = output;
        sender.subscribe()
    };
    let (send, frames) = mpsc::channel(64);
    tokio::spawn(async move {
        while let Ok(frame) = output.recv().await {
            if send.send(frame).await.is_err() {
                return;
            }
        }
    });
    if !wants_upgrade(request.headers()) {
        return one_way(frames);
    }
    let listens = query.get("stdin").is_some_and(|asked| asked == "1");
    let once = container.body["StdinOnce"] == true;
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let streams = TokioIo::new(upgrade.await.unwrap());
        let (mut read, write) = tokio::io::split(streams);
        let typing = async {
            let mut stdin = stdin.lock().await;
            if let Some(to) = stdin.as_mut().filter(|_| listens) {
                tokio::io::copy(&mut read, to).await.ok();
                if once {
                    stdin.take();
                }
            }
            drop(stdin);
            // What it prints may take longer than what is typed.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = write_all(frames, write) => {}
            () = typing => {}
        }
    });
    switching()
}

pub(super) async fn exec(
    State(engine): State<Engine>,
    Segment(id): Segment<String>,
    body: Bytes,
) -> Response {
    if engine.find(&id).is_none() {
        return missing(&id);
    }
    let body: Value = serde_json::from_slice(&body).unwrap();
    let mut inside = engine.inside.lock();
    inside.made += 1;
    let id = format!("e{:04}", inside.made);
    let exec = Exec {
        command: serde_json::from_value(body["Cmd"].clone()).unwrap(),
        stdin: body["AttachStdin"] == true,
        exit_code: None,
    };
    inside.execs.insert(id.clone(), exec);
    (StatusCode::CREATED, axum::Json(json!({"Id": id}))).into_response()
}

pub(super) async fn exec_json(
    State(engine): State<Engine>,
    Segment(id): Segment<String>,
) -> Response {
    let code = engine.inside.lock().execs[&id].exit_code;
    axum::Json(json!({"ExitCode": code, "Running": code.is_none()})).into_response()
}

pub(super) async fn exec_start(
    State(engine): State<Engine>,
    Segment(id): Segment<String>,
    mut request: Request,
) -> Response {
    let exec = engine.inside.lock().execs[&id].clone();
    let (send, frames) = mpsc::channel(64);
    if !wants_upgrade(request.headers()) {
        tokio::spawn(async move {
            let code = execute(&exec, tokio::io::empty(), &send).await;
            engine.inside.lock().execs.get_mut(&id).unwrap().exit_code = Some(code);
        });
        return one_way(frames);
    }
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let streams = TokioIo::new(upgrade.await.unwrap());
        let (read, write) = tokio::io::split(streams);
        let running = async {
            let code = execute(&exec, read, &send).await;
            // Known before the streams end, which is when it is asked for.
            engine.inside.lock().execs.get_mut(&id).unwrap().exit_code = Some(code);
            drop(send);
        };
        tokio::join!(running, write_all(frames, write));
    });
    switching()
}

/// Runs a command to its end and gives its exit code.
async fn execute(
    exec: &Exec,
    mut input: impl AsyncRead + Unpin,
    to: &mpsc::Sender<Vec<u8>>,
) -> i64 {
    let spawned = Command::new(&exec.command[0])
        .args(&exec.command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let Ok(mut child) = spawned else {
        // An engine that has switched protocols can only say it on the stream.
        let why = format!(
            "OCI runtime exec failed: exec: \"{}\": executable file not found in $PATH: unknown\r\n",
            exec.command[0]
        );
        to.send(frame(1, why.as_bytes())).await.ok();
        return 127;
    };
    let mut stdin = child.stdin.take().filter(|_| exec.stdin);
    let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let typing = async {
        if let Some(to) = &mut stdin {
            tokio::io::copy(&mut input, to).await.ok();
        }
        stdin.take();
        std::future::pending::<()>().await;
    };
    let printing = async {
        tokio::join!(framed(out, 1, to.clone()), framed(err, 2, to.clone()));
        child.wait().await.unwrap()
    };
    tokio::select! {
        ended = printing => i64::from(ended.code().unwrap_or(137)),
        () = typing => unreachable!("typing never ends"),
    }
}
