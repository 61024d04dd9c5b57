//! Logs, exec, attach and port-forward: streams between a client and a node, through the hooks. What the
//! node refuses is told as a plain answer, before any upgrade: clients print it as it is.
//!
//! Over WebSocket by [`websocket`], over SPDY/3.1 by [`multiplexed`]; port-forward is SPDY in either case,
//! tunnelled through the WebSocket in the first.

mod multiplexed;
mod websocket;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::extract::ws::WebSocketUpgrade;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use super::Api;
use super::options::Query;
use super::route::Target;
use crate::codec::status::{Status, Subject};
use crate::hooks::{ContainerRef, ExecOptions, Exit, LogOptions};
use crate::spdy::Connection;

const SPDY: &str = "SPDY/3.1";
const PROTOCOL_HEADER: &str = "x-stream-protocol-version";
/// Older protocols of exec say nothing of exit codes; no client of the last ten years needs them.
const EXEC_PROTOCOL: &str = "v4.channel.k8s.io";
const FORWARD_PROTOCOL: &str = "portforward.k8s.io";
const FORWARD_TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

pub(super) fn upgrade_required() -> Status {
    Status::bad_request("Upgrade request required")
}

/// How a command ended, as clients read it; `None`: it was lost.
fn outcome(exit: Option<Exit>) -> Value {
    match exit {
        Some(Exit::Code(0)) => json!({"metadata": {}, "status": "Success"}),
        Some(Exit::Code(code)) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        Some(Exit::Failed(why)) => Status::internal(why).to_json(),
        None => Status::internal("the command was lost").to_json(),
    }
}

/// Width and height.
fn terminal_size(size: &Value) -> (u16, u16) {
    let side = |name: &str| {
        size[name]
            .as_u64()
            .and_then(|side| u16::try_from(side).ok())
            .unwrap_or(0)
    };
    (side("Width"), side("Height"))
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
    if !matches!(sub, "log" | "exec" | "attach" | "portforward") {
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
    // Rights are asked for by method: a stream that began with DELETE would need the right to delete only.
    if !matches!(parts.method, http::Method::GET | http::Method::POST) {
        return Err(Status::no_such_method());
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
    let pod = stored.value();
    if sub != "log"
        && pod["spec"]["nodeName"]
            .as_str()
            .unwrap_or_default()
            .is_empty()
    {
        return Err(Status::bad_request(format!(
            "pod {name} does not have a host assigned"
        )));
    }
    if sub == "portforward" {
        let whole = ContainerRef {
            namespace: target.namespace.clone().unwrap_or_default(),
            pod: name.to_owned(),
            container: String::new(),
            object: pod,
        };
        return forward(api, whole, parts).await.map(Some);
    }
    let container = container(&pod, &query, target)?;
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
    let asked = Asked::of(parts, EXEC_PROTOCOL)?;
    let session = match sub {
        "exec" => api.hooks.exec(container, options.clone()).await?,
        _ => api.hooks.attach(container, options.clone()).await?,
    };
    match asked {
        Asked::WebSocket => Ok(websocket_of(parts)
            .await?
            .protocols(websocket::PROTOCOLS)
            .on_upgrade(|socket| websocket::carry(socket, session))),
        Asked::Spdy(upgrade) => Ok(switch(upgrade, EXEC_PROTOCOL, move |connection| {
            multiplexed::run(connection, options, session)
        })),
    }
}

async fn forward(
    api: &Arc<Api>,
    target: ContainerRef,
    parts: &Parts,
) -> Result<Response<Body>, Status> {
    let asked = Asked::of(parts, FORWARD_PROTOCOL)?;
    api.hooks.reach(target.clone()).await?;
    let hooks = api.hooks.clone();
    match asked {
        Asked::WebSocket => Ok(websocket_of(parts)
            .await?
            .protocols([FORWARD_TUNNEL])
            .on_upgrade(move |socket| {
                let connection = Connection::serve(websocket::tunnel(socket));
                multiplexed::forward(connection, hooks, target)
            })),
        Asked::Spdy(upgrade) => Ok(switch(upgrade, FORWARD_PROTOCOL, move |connection| {
            multiplexed::forward(connection, hooks, target)
        })),
    }
}

/// What a client wants the connection to become.
enum Asked {
    WebSocket,
    Spdy(OnUpgrade),
}

impl Asked {
    /// Reads the request; with SPDY the client must know `protocol`.
    fn of(parts: &Parts, protocol: &str) -> Result<Self, Status> {
        let to = parts
            .headers
            .get(header::UPGRADE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        if to.eq_ignore_ascii_case("websocket") {
            return Ok(Self::WebSocket);
        }
        if !to.eq_ignore_ascii_case(SPDY) {
            return Err(upgrade_required());
        }
        let mut known = parts
            .headers
            .get_all(PROTOCOL_HEADER)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','));
        if !known.any(|name| name.trim() == protocol) {
            return Err(Status::bad_request(format!(
                "unable to upgrade: this server speaks {protocol}; name it in X-Stream-Protocol-Version"
            )));
        }
        let upgrade = parts.extensions.get::<OnUpgrade>().cloned();
        upgrade.map(Self::Spdy).ok_or_else(upgrade_required)
    }
}

async fn websocket_of(parts: &Parts) -> Result<WebSocketUpgrade, Status> {
    WebSocketUpgrade::from_request_parts(&mut parts.clone(), &())
        .await
        .map_err(|_| upgrade_required())
}

/// Switches to SPDY and serves what the client opens.
fn switch<F>(
    upgrade: OnUpgrade,
    protocol: &'static str,
    serve: impl FnOnce(Connection) -> F + Send + 'static,
) -> Response<Body>
where
    F: Future<Output = ()> + Send,
{
    tokio::spawn(async move {
        match upgrade.await {
            Ok(io) => serve(Connection::serve(TokioIo::new(io))).await,
            Err(error) => tracing::debug!(%error, "the client went away before the upgrade"),
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(SPDY));
    headers.insert(PROTOCOL_HEADER, HeaderValue::from_static(protocol));
    response
}
