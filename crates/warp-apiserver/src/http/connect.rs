//! Logs, exec and attach: streams between a client and a node, through the hooks.
//!
//! Exec and attach speak Kubernetes' `v5.channel.k8s.io` and `v4.channel.k8s.io` over WebSocket:
//! the first byte of a message is its channel (0 input, 1 output, 2 errors, 3 outcome, 4 terminal
//! size, 255 end of input).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use http::request::Parts;
use http::{HeaderValue, Response, header};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

use super::Api;
use super::options::Query;
use super::route::Target;
use crate::codec::status::{Status, Subject};
use crate::hooks::{ContainerRef, ExecOptions, ExecSession, Exit, LogOptions};

const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

pub(super) fn upgrade_required() -> Status {
    Status::bad_request("Upgrade request required")
}

/// Answers the paths that stream; `None` for every other path.
pub(super) async fn upgrade(
    api: &Arc<Api>,
    target: &Target,
    parts: &Parts,
) -> Result<Option<Response<Body>>, Status> {
    let Some(sub) = target.subresource.as_deref() else {
        return Ok(None);
    };
    if !matches!(sub, "log" | "exec" | "attach") {
        return Ok(None);
    }
    let Some(entry) = api
        .registry
        .find(&target.group, &target.version, &target.resource)
    else {
        return Ok(None);
    };
    if entry.resource.subresource(sub).is_none() || target.name.is_none() {
        return Ok(None);
    }
    let name = target.name.as_deref().unwrap_or_default();
    let key = crate::store::key(target.namespace.as_deref(), name);
    let stored = entry.table.get(&key).ok_or_else(|| {
        Status::not_found(&Subject {
            group: &entry.resource.group,
            resource: &entry.resource.plural,
            kind: &entry.resource.kind,
            name,
        })
    })?;
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let container = container(&stored.value(), &query, target)?;
    match sub {
        "log" if parts.method == http::Method::GET => logs(api, container, &query).await.map(Some),
        "log" => Err(Status::no_such_method()),
        _ => session(api, sub, container, &query, parts).await.map(Some),
    }
}

/// The container the client means.
fn container(pod: &Value, query: &Query, target: &Target) -> Result<ContainerRef, Status> {
    let names: Vec<&str> = ["containers", "initContainers", "ephemeralContainers"]
        .iter()
        .flat_map(|list| pod["spec"][list].as_array().into_iter().flatten())
        .filter_map(|container| container["name"].as_str())
        .collect();
    let asked = query.get("container");
    let pod_name = target.name.clone().unwrap_or_default();
    let main = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
    let chosen = if !asked.is_empty() {
        if !names.contains(&asked) {
            return Err(Status::bad_request(format!(
                "container {asked} is not valid for pod {pod_name}"
            )));
        }
        asked
    } else if main == 1 {
        names.first().copied().unwrap_or_default()
    } else {
        let shown = names
            .iter()
            .take(main)
            .copied()
            .collect::<Vec<_>>()
            .join(" ");
        return Err(Status::bad_request(format!(
            "a container name must be specified for pod {pod_name}, choose one of: [{shown}]"
        )));
    };
    Ok(ContainerRef {
        namespace: target.namespace.clone().unwrap_or_default(),
        pod: pod_name,
        container: chosen.to_owned(),
        object: pod.clone(),
    })
}

async fn logs(
    api: &Arc<Api>,
    container: ContainerRef,
    query: &Query,
) -> Result<Response<Body>, Status> {
    let number = |name: &str| query.get(name).parse::<u64>().ok();
    let since_time = query.get("sinceTime");
    let options = LogOptions {
        follow: query.flag("follow"),
        previous: query.flag("previous"),
        timestamps: query.flag("timestamps"),
        since: number("sinceSeconds").map(Duration::from_secs),
        since_time: (!since_time.is_empty()).then(|| since_time.to_owned()),
        tail_lines: number("tailLines"),
        limit_bytes: number("limitBytes"),
    };
    let stream = api.hooks.logs(container, options).await?;
    let mut response = Response::new(Body::from_stream(stream));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}

async fn session(
    api: &Arc<Api>,
    sub: &str,
    container: ContainerRef,
    query: &Query,
    parts: &Parts,
) -> Result<Response<Body>, Status> {
    let options = ExecOptions {
        command: query.all("command").map(str::to_owned).collect(),
        stdin: query.flag("stdin"),
        stdout: query.flag("stdout"),
        stderr: query.flag("stderr"),
        tty: query.flag("tty"),
    };
    if !(options.stdin || options.stdout || options.stderr) {
        return Err(Status::bad_request(
            "you must specify at least 1 of stdin, stdout, stderr",
        ));
    }
    if sub == "exec" && options.command.is_empty() {
        return Err(Status::bad_request(
            "you must specify at least one command for the container",
        ));
    }
    let mut parts = parts.clone();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &())
        .await
        .map_err(|_| upgrade_required())?;
    let session = match sub {
        "exec" => api.hooks.exec(container, options).await?,
        _ => api.hooks.attach(container, options).await?,
    };
    Ok(upgrade
        .protocols(PROTOCOLS)
        .on_upgrade(|socket| carry(socket, session)))
}

/// Reads one of the command's outputs and labels it with its channel.
fn pump(channel: u8, stream: Option<DuplexStream>, out: mpsc::Sender<Bytes>) {
    let Some(mut stream) = stream else { return };
    tokio::spawn(async move {
        let mut buffer = vec![0; 32 << 10];
        loop {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(read) => {
                    let mut message = BytesMut::with_capacity(read + 1);
                    message.extend_from_slice(&[channel]);
                    message.extend_from_slice(&buffer[..read]);
                    if out.send(message.freeze()).await.is_err() {
                        return;
                    }
                }
            }
        }
    });
}

async fn carry(socket: WebSocket, session: ExecSession) {
    let (mut sink, mut source) = socket.split();
    let ExecSession {
        mut stdin,
        stdout,
        stderr,
        resize,
        exit,
    } = session;
    let (out, mut outputs) = mpsc::channel(16);
    pump(1, stdout, out.clone());
    pump(2, stderr, out);
    let (gone, mut client_gone) = mpsc::channel::<()>(1);
    let input = tokio::spawn(async move {
        let _gone = gone;
        while let Some(Ok(message)) = source.next().await {
            let Message::Binary(data) = message else {
                if matches!(message, Message::Close(_)) {
                    return;
                }
                continue;
            };
            match data.split_first() {
                Some((0, rest)) => {
                    if let Some(stdin) = &mut stdin {
                        let _ = stdin.write_all(rest).await;
                    }
                }
                Some((4, rest)) => {
                    let size: Value = serde_json::from_slice(rest).unwrap_or_default();
                    let side = |name: &str| {
                        size[name]
                            .as_u64()
                            .and_then(|side| u16::try_from(side).ok())
                            .unwrap_or(0)
                    };
                    if let Some(resize) = &resize {
                        let _ = resize.send((side("Width"), side("Height"))).await;
                    }
                }
                Some((255, [0, ..])) => stdin = None,
                _ => {}
            }
        }
    });
    loop {
        tokio::select! {
            output = outputs.recv() => match output {
                Some(message) => {
                    if sink.send(Message::Binary(message)).await.is_err() {
                        break;
                    }
                }
                None => break,
            },
            // Everything is dropped: the command's pipes break, and its runtime sees that nobody
            // waits for `exit` any more.
            _ = client_gone.recv() => return,
        }
    }
    let outcome = match exit.await {
        Ok(Exit::Code(0)) => json!({"metadata": {}, "status": "Success"}),
        Ok(Exit::Code(code)) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        Ok(Exit::Failed(why)) => Status::internal(why).to_json(),
        Err(_) => Status::internal("the command was lost").to_json(),
    };
    let mut message = vec![3];
    message.extend_from_slice(outcome.to_string().as_bytes());
    let _ = sink.send(Message::Binary(Bytes::from(message))).await;
    // Closing without a code makes kubectl print an error.
    let _ = sink
        .send(Message::Close(Some(CloseFrame {
            code: 1000,
            reason: "".into(),
        })))
        .await;
    let _ = sink.close().await;
    input.abort();
}
