//! Probes of a process: a command beside it, a request to its port, or a connection.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::CONTAINER;
use super::wire::Launch;
use crate::background;
use crate::node::lifecycle::ProbeKind;

const OUTPUT: usize = 1024;

/// The kind of probe this runtime cannot do, if it is one.
fn unsupported(probe: &Probe) -> Option<&'static str> {
    if probe.grpc.is_some() {
        return Some("grpc");
    }
    let scheme = probe
        .http_get
        .as_ref()
        .and_then(|get| get.scheme.as_deref());
    (scheme == Some("HTTPS")).then_some("https")
}

/// What of a container's probes and hooks no runtime of ours can do.
pub(crate) fn unavailable(container: &Container, node: &str) -> Option<String> {
    for kind in ProbeKind::ALL {
        if let Some(what) = kind.of(container).and_then(unsupported) {
            return Some(format!(
                "{what} probes are not available on {node}; use exec, httpGet over http or tcpSocket"
            ));
        }
    }
    let lifecycle = container.lifecycle.as_ref()?;
    if lifecycle.post_start.is_some() {
        return Some(format!(
            "postStart hooks are not available on {node}; start the work in the command"
        ));
    }
    let stop = lifecycle.pre_stop.as_ref()?;
    (stop.http_get.is_some() || stop.tcp_socket.is_some()).then(|| {
        format!(
            "preStop hooks by httpGet or tcpSocket are not available on {node}; use exec or sleep"
        )
    })
}

/// A probe that needs nothing but a port at `address`.
pub(crate) async fn port_only(
    kind: ProbeKind,
    container: &Container,
    address: &str,
) -> (bool, String) {
    let target = Target {
        address,
        inside: None,
    };
    run(kind, container, target).await
}

/// Where a probe goes.
pub(super) struct Target<'a> {
    pub(super) address: &'a str,
    /// This program and the launch of the container, for commands.
    pub(super) inside: Option<(&'a Path, Launch)>,
}

/// One probe: whether it passed, and what to say if not.
pub(super) async fn run(
    kind: ProbeKind,
    container: &Container,
    target: Target<'_>,
) -> (bool, String) {
    let address = target.address;
    let Some(probe) = kind.of(container) else {
        return (true, String::new());
    };
    let limit = Duration::from_secs(u64::from(
        probe.timeout_seconds.unwrap_or(1).max(1).unsigned_abs(),
    ));
    let attempt = async {
        if let Some(exec) = &probe.exec {
            return command(exec.command.as_deref().unwrap_or_default(), target.inside).await;
        }
        if let Some(get) = &probe.http_get {
            return request(get, container, address).await;
        }
        if let Some(tcp) = &probe.tcp_socket {
            let host = tcp.host.as_deref().unwrap_or(address);
            let port = port(&tcp.port, container)?;
            return TcpStream::connect((host, port))
                .await
                .map(drop)
                .map_err(|error| format!("dial tcp {host}:{port}: {error}"));
        }
        Err("the probe asks for nothing".to_owned())
    };
    match tokio::time::timeout(limit, attempt).await {
        Ok(Ok(())) => (true, String::new()),
        Ok(Err(why)) => (false, why),
        Err(_) => (false, format!("timed out after {}s", limit.as_secs())),
    }
}

/// Ends a command with everything it started, however the probe ends.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            kill_process_group(pid, Signal::KILL).ok();
        }
    }
}

async fn command(words: &[String], inside: Option<(&Path, Launch)>) -> Result<(), String> {
    let (program, launch) = inside.ok_or("the container's environment is not known")?;
    let first = words.first().ok_or("the probe has no command")?;
    let child = Command::new(program)
        .arg(CONTAINER)
        .arg("/dev/stderr")
        .args(&launch.groups)
        .arg("--")
        .args(words)
        .env_clear()
        .envs(&launch.environment)
        .current_dir(&launch.folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("failed to run {first}: {error}"))?;
    let pid = child
        .id()
        .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let _group = Group(pid);
    let output = child
        .wait_with_output()
        .await
        .map_err(|error| format!("failed to run {first}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = if output.stdout.is_empty() {
        output.stderr
    } else {
        output.stdout
    };
    Err(String::from_utf8_lossy(&said[..said.len().min(OUTPUT)])
        .trim_end()
        .to_owned())
}

async fn request(get: &HTTPGetAction, container: &Container, address: &str) -> Result<(), String> {
    let host = get.host.as_deref().unwrap_or(address);
    let port = port(&get.port, container)?;
    let path = get.path.as_deref().unwrap_or("/");
    let stream = TcpStream::connect((host, port))
        .await
        .map_err(|error| format!("dial tcp {host}:{port}: {error}"))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let pump = background::spawn(connection);
    let mut request = http::Request::get(if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    })
    .header("Host", format!("{host}:{port}"))
    .header("User-Agent", "kube-probe/1.35");
    for header in get.http_headers.iter().flatten() {
        request = request.header(&header.name, &header.value);
    }
    let request = request
        .body(Empty::<bytes::Bytes>::new())
        .map_err(|error| error.to_string())?;
    let answer = sender
        .send_request(request)
        .await
        .map_err(|error| error.to_string());
    pump.abort();
    let status = answer?.status();
    if status.is_success() || status.is_redirection() {
        return Ok(());
    }
    Err(format!(
        "HTTP probe failed with statuscode: {}",
        status.as_u16()
    ))
}

fn port(wanted: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match wanted {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => container
            .ports
            .iter()
            .flatten()
            .find(|port| port.name.as_ref() == Some(name))
            .map(|port| port.container_port)
            .ok_or_else(|| format!("no port is called {name}"))?,
    };
    u16::try_from(number).map_err(|_| format!("{number} is no port"))
}
