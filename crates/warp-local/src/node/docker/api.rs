//! The calls of the Docker API this runtime makes, over a Unix socket. One connection a call: an engine
//! that restarts or dies never leaves a stale one behind.

use std::path::PathBuf;
use std::time::Duration;

use crate::background;
use bytes::Bytes;
use futures::Stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::UnixStream;

/// Old enough for every engine still in use.
const VERSION: &str = "/v1.41";
/// An engine that has not begun to answer by then hangs.
const LIMIT: Duration = Duration::from_mins(1);
const PULL_LIMIT: Duration = Duration::from_mins(5);

#[derive(Debug, thiserror::Error)]
pub enum DockerError {
    #[error("there is no place to look for a Docker socket")]
    NoPlace,
    #[error(
        "failed to reach Docker at {socket}: {source}; is it running, and may you use its socket?"
    )]
    Connect {
        socket: String,
        source: std::io::Error,
    },
    #[error("the connection to Docker ended in the middle of {what}: {source}")]
    Broken { what: String, source: hyper::Error },
    #[error("Docker did not answer {what} within {seconds} seconds; restart it if it hangs")]
    Silent { what: String, seconds: u64 },
    #[error("{message}")]
    Refused { status: StatusCode, message: String },
    #[error("Docker's answer to {what} cannot be read: {source}")]
    Answer {
        what: String,
        source: serde_json::Error,
    },
    #[error("{0}")]
    Pull(String),
}

impl DockerError {
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == StatusCode::NOT_FOUND)
    }
}

/// An engine at a socket.
#[derive(Clone, Debug)]
pub struct Docker {
    socket: PathBuf,
}

/// A container as `inspect` tells it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Inspected {
    pub(crate) id: String,
    pub(crate) state: RunState,
    #[serde(default)]
    pub(crate) network_settings: Network,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct RunState {
    /// created, running, paused, restarting, removing, exited, dead.
    pub(crate) status: String,
    pub(crate) exit_code: i64,
    #[serde(rename = "OOMKilled", default)]
    pub(crate) oom_killed: bool,
    #[serde(default)]
    pub(crate) finished_at: String,
    #[serde(default)]
    pub(crate) error: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Network {
    #[serde(rename = "IPAddress", default)]
    pub(crate) address: String,
}

/// A container in a list.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Listed {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) labels: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) state: String,
}

impl Docker {
    pub fn at(socket: PathBuf) -> Self {
        Self { socket }
    }

    pub fn socket(&self) -> &std::path::Path {
        &self.socket
    }

    /// A call whose answer begins within a time; what streams takes its own.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response<Incoming>, DockerError> {
        self.send_with(method, path, body, None, LIMIT).await
    }

    async fn send_with(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        credentials: Option<&str>,
        limit: Duration,
    ) -> Result<Response<Incoming>, DockerError> {
        let answer = self.exchange(method, path, body, credentials);
        tokio::time::timeout(limit, answer)
            .await
            .unwrap_or_else(|_| {
                Err(DockerError::Silent {
                    what: path.split('?').next().unwrap_or(path).to_owned(),
                    seconds: limit.as_secs(),
                })
            })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        credentials: Option<&str>,
    ) -> Result<Response<Incoming>, DockerError> {
        let stream =
            UnixStream::connect(&self.socket)
                .await
                .map_err(|source| DockerError::Connect {
                    socket: self.socket.display().to_string(),
                    source,
                })?;
        let what = || path.split('?').next().unwrap_or(path).to_owned();
        let broken = |source| DockerError::Broken {
            what: what(),
            source,
        };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        background::spawn(connection.with_upgrades());
        let bytes = body.map(ToString::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{VERSION}{path}"))
            .header("Host", "docker")
            .header("Content-Type", "application/json");
        if let Some(credentials) = credentials {
            request = request.header("X-Registry-Auth", credentials);
        }
        if becomes_streams(&what()) {
            request = request
                .header("Connection", "Upgrade")
                .header("Upgrade", "tcp");
        }
        let request = request
            .body(Full::new(Bytes::from(bytes)))
            .map_err(|error| DockerError::Refused {
                status: StatusCode::BAD_REQUEST,
                message: format!("{}: {error}", what()),
            })?;
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        if status.is_success()
            || status == StatusCode::NOT_MODIFIED
            || status == StatusCode::SWITCHING_PROTOCOLS
        {
            return Ok(response);
        }
        let text = response
            .into_body()
            .collect()
            .await
            .map_err(broken)?
            .to_bytes();
        let told: Option<Value> = serde_json::from_slice(&text).ok();
        let message = told
            .as_ref()
            .and_then(|told| told["message"].as_str())
            .map_or_else(|| format!("{} answered {status}", what()), str::to_owned);
        Err(DockerError::Refused { status, message })
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, DockerError> {
        let what = path.split('?').next().unwrap_or(path).to_owned();
        let response = self.send(method, path, body).await?;
        let bytes = response
            .into_body()
            .collect()
            .await
            .map_err(|source| DockerError::Broken {
                what: what.clone(),
                source,
            })?;
        serde_json::from_slice(&bytes.to_bytes())
            .map_err(|source| DockerError::Answer { what, source })
    }

    async fn order(&self, method: Method, path: &str) -> Result<(), DockerError> {
        self.send(method, path, None).await.map(drop)
    }

    pub async fn ping(&self) -> Result<(), DockerError> {
        self.order(Method::GET, "/_ping").await
    }

    pub(crate) async fn image_id(&self, image: &str) -> Result<Option<String>, DockerError> {
        match self
            .call::<Value>(
                Method::GET,
                &format!("/images/{}/json", escape(image)),
                None,
            )
            .await
        {
            Ok(found) => Ok(Some(found["Id"].as_str().unwrap_or_default().to_owned())),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whom an image runs as; empty for root.
    pub(crate) async fn image_user(&self, image: &str) -> Result<String, DockerError> {
        let path = format!("/images/{}/json", escape(image));
        let found = self.call::<Value>(Method::GET, &path, None).await?;
        Ok(found["Config"]["User"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    }

    /// Pulls an image, telling how far it is after each message of the engine.
    pub(crate) async fn pull(
        &self,
        image: &str,
        credentials: Option<&str>,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<(), DockerError> {
        let (name, tag) = split_reference(image);
        let path = format!(
            "/images/create?fromImage={}&tag={}",
            escape(name),
            escape(tag)
        );
        // The engine answers only after it has asked the registry.
        let asked = self.send_with(Method::POST, &path, None, credentials, PULL_LIMIT);
        let response = match asked.await {
            // Cut off before the first message: the same trouble under the same name.
            Err(DockerError::Broken { source, .. }) => {
                return Err(DockerError::Broken {
                    what: "the pull".to_owned(),
                    source,
                });
            }
            other => other?,
        };
        let mut layers: std::collections::BTreeMap<String, (u64, u64)> =
            std::collections::BTreeMap::new();
        let mut lines = Lines::new(response.into_body(), "the pull");
        while let Some(line) = lines.next().await? {
            let message: Value =
                serde_json::from_slice(&line).map_err(|source| DockerError::Answer {
                    what: "the pull".to_owned(),
                    source,
                })?;
            if let Some(error) = message["error"].as_str() {
                return Err(DockerError::Pull(error.to_owned()));
            }
            let detail = &message["progressDetail"];
            if let (Some(layer), Some(total)) = (message["id"].as_str(), detail["total"].as_u64()) {
                layers.insert(
                    layer.to_owned(),
                    (detail["current"].as_u64().unwrap_or_default(), total),
                );
                let sum = layers
                    .values()
                    .fold((0, 0), |sum, layer| (sum.0 + layer.0, sum.1 + layer.1));
                progress(sum.0, sum.1);
            }
        }
        Ok(())
    }

    /// Creates a container, or finds the one that has its name already.
    pub(crate) async fn create(&self, name: &str, body: &Value) -> Result<String, DockerError> {
        match self
            .call::<Value>(
                Method::POST,
                &format!("/containers/create?name={}", escape(name)),
                Some(body),
            )
            .await
        {
            Ok(made) => Ok(made["Id"].as_str().unwrap_or_default().to_owned()),
            Err(DockerError::Refused { status, .. }) if status == StatusCode::CONFLICT => {
                self.inspect(name).await.map(|found| found.id)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn start(&self, container: &str) -> Result<(), DockerError> {
        self.order(
            Method::POST,
            &format!("/containers/{}/start", escape(container)),
        )
        .await
    }

    /// Returns when the container has stopped; one that is not there has.
    pub(crate) async fn stop(&self, container: &str, seconds: u64) -> Result<(), DockerError> {
        let path = format!("/containers/{}/stop?t={seconds}", escape(container));
        // Answered when it has stopped, or was made to.
        let limit = LIMIT.saturating_add(Duration::from_secs(seconds));
        match self.send_with(Method::POST, &path, None, None, limit).await {
            Err(error) if !error.is_missing() => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) async fn remove(&self, container: &str) -> Result<(), DockerError> {
        match self
            .order(
                Method::DELETE,
                &format!("/containers/{}?force=true&v=true", escape(container)),
            )
            .await
        {
            Err(error) if !error.is_missing() => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) async fn inspect(&self, container: &str) -> Result<Inspected, DockerError> {
        self.call(
            Method::GET,
            &format!("/containers/{}/json", escape(container)),
            None,
        )
        .await
    }

    pub(crate) async fn list(&self, label: &str) -> Result<Vec<Listed>, DockerError> {
        let filters = json!({"label": [label]}).to_string();
        self.call(
            Method::GET,
            &format!("/containers/json?all=true&filters={}", escape(&filters)),
            None,
        )
        .await
    }

    /// Ends of containers with this label, one JSON message each.
    pub(crate) async fn events(&self, label: &str) -> Result<Lines, DockerError> {
        let filters =
            json!({"type": ["container"], "event": ["die"], "label": [label]}).to_string();
        let response = self
            .send(
                Method::GET,
                &format!("/events?filters={}", escape(&filters)),
                None,
            )
            .await?;
        Ok(Lines::new(response.into_body(), "the events"))
    }

    /// The log of a container: frames of standard output and error, in order.
    pub(crate) async fn logs(
        &self,
        container: &str,
        query: &str,
    ) -> Result<impl Stream<Item = Result<Bytes, std::io::Error>> + Send + use<>, DockerError> {
        let path = format!(
            "/containers/{}/logs?stdout=true&stderr=true&{query}",
            escape(container)
        );
        let body = self.send(Method::GET, &path, None).await?.into_body();
        Ok(futures::stream::try_unfold(
            (body, Frames::default()),
            |(mut body, mut frames)| async move {
                loop {
                    if let Some((_, text)) = frames.next() {
                        return Ok(Some((text, (body, frames))));
                    }
                    match body.frame().await {
                        None => return Ok(None),
                        Some(Err(error)) => return Err(std::io::Error::other(error)),
                        Some(Ok(frame)) => {
                            frames.push(frame.data_ref().map(|data| &data[..]).unwrap_or_default());
                        }
                    }
                }
            },
        ))
    }

    /// Prepares a command in a running container.
    pub(crate) async fn exec(
        &self,
        container: &str,
        command: &[String],
        stdin: bool,
        tty: bool,
    ) -> Result<String, DockerError> {
        let body = json!({"AttachStdin": stdin, "AttachStdout": true, "AttachStderr": true, "Tty": tty, "Cmd": command});
        let made: Value = self
            .call(
                Method::POST,
                &format!("/containers/{}/exec", escape(container)),
                Some(&body),
            )
            .await?;
        Ok(made["Id"].as_str().unwrap_or_default().to_owned())
    }

    /// Starts it; the connection becomes its streams.
    pub(crate) async fn exec_start(
        &self,
        exec: &str,
        tty: bool,
    ) -> Result<TokioIo<Upgraded>, DockerError> {
        let body = json!({"Detach": false, "Tty": tty});
        let path = format!("/exec/{}/start", escape(exec));
        self.streams(&path, Some(&body)).await
    }

    /// The streams of a container's main process.
    pub(crate) async fn attach(
        &self,
        container: &str,
        stdin: bool,
    ) -> Result<TokioIo<Upgraded>, DockerError> {
        let path = format!(
            "/containers/{}/attach?stream=1&stdout=1&stderr=1&stdin={}",
            escape(container),
            u8::from(stdin)
        );
        self.streams(&path, None).await
    }

    /// Tells a command the size of its terminal.
    pub(crate) async fn exec_resize(
        &self,
        exec: &str,
        (width, height): (u16, u16),
    ) -> Result<(), DockerError> {
        let path = format!("/exec/{}/resize?h={height}&w={width}", escape(exec));
        self.send(Method::POST, &path, None).await.map(|_| ())
    }

    async fn streams(
        &self,
        path: &str,
        body: Option<&Value>,
    ) -> Result<TokioIo<Upgraded>, DockerError> {
        let response = self.send(Method::POST, path, body).await?;
        let upgraded =
            hyper::upgrade::on(response)
                .await
                .map_err(|source| DockerError::Broken {
                    what: "the command's streams".to_owned(),
                    source,
                })?;
        Ok(TokioIo::new(upgraded))
    }

    pub(crate) async fn exec_code(&self, exec: &str) -> Result<i32, DockerError> {
        let found: Value = self
            .call(Method::GET, &format!("/exec/{}/json", escape(exec)), None)
            .await?;
        Ok(found["ExitCode"]
            .as_i64()
            .and_then(|code| i32::try_from(code).ok())
            .unwrap_or(-1))
    }
}

/// Whether a call turns its connection into the streams of a program. An engine that is not asked to switch protocols
/// answers such a call with a body, which goes one way only.
fn becomes_streams(path: &str) -> bool {
    (path.starts_with("/exec/") && path.ends_with("/start"))
        || (path.starts_with("/containers/") && path.ends_with("/attach"))
}

/// A body of JSON messages, one a line.
pub(crate) struct Lines {
    body: Incoming,
    rest: Vec<u8>,
    what: &'static str,
}

impl Lines {
    fn new(body: Incoming, what: &'static str) -> Self {
        Self {
            body,
            rest: Vec::new(),
            what,
        }
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, DockerError> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                let line = line.trim_ascii();
                if !line.is_empty() {
                    return Ok(Some(line.to_vec()));
                }
                continue;
            }
            match self.body.frame().await {
                None => {
                    return Ok(Some(std::mem::take(&mut self.rest))
                        .filter(|rest| !rest.trim_ascii().is_empty()));
                }
                Some(Err(source)) => {
                    return Err(DockerError::Broken {
                        what: self.what.to_owned(),
                        source,
                    });
                }
                Some(Ok(frame)) => self
                    .rest
                    .extend(frame.data_ref().map(|data| &data[..]).unwrap_or_default()),
            }
        }
    }
}

/// Standard output and error on one connection: a byte for the stream, three of nothing, four of length.
#[derive(Debug, Default)]
pub(crate) struct Frames(Vec<u8>);

impl Frames {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole frame: 1 is standard output, 2 standard error.
    pub(crate) fn next(&mut self) -> Option<(u8, Bytes)> {
        let header: [u8; 8] = self.0.get(..8)?.try_into().ok()?;
        let length = u32::from_be_bytes([header[4], header[5], header[6], header[7]]) as usize;
        if self.0.len() < 8 + length {
            return None;
        }
        let text = Bytes::copy_from_slice(&self.0[8..8 + length]);
        self.0.drain(..8 + length);
        Some((header[0], text))
    }
}

/// `registry:5000/name:tag` → name and tag; a digest is a tag to this call.
fn split_reference(image: &str) -> (&str, &str) {
    if let Some((name, digest)) = image.split_once('@') {
        return (name, digest);
    }
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (image, "latest"),
    }
}

fn escape(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.extend([format!("%{byte:02X}")]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Frames, split_reference};

    #[test]
    fn references_split_at_the_tag_and_not_at_the_port() {
        assert_eq!(split_reference("busybox"), ("busybox", "latest"));
        assert_eq!(split_reference("a/b:1"), ("a/b", "1"));
        assert_eq!(
            split_reference("localhost:5000/a"),
            ("localhost:5000/a", "latest")
        );
        assert_eq!(split_reference("a@sha256:0f"), ("a", "sha256:0f"));
    }

    #[test]
    fn frames_come_out_whole_however_they_were_cut() {
        let mut wire = Vec::new();
        for (stream, text) in [(1u8, "hello"), (2, ""), (1, "world")] {
            wire.extend([stream, 0, 0, 0]);
            wire.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
            wire.extend(text.as_bytes());
        }
        for cut in 1..wire.len() {
            let mut frames = Frames::default();
            let mut seen = Vec::new();
            for piece in wire.chunks(cut) {
                frames.push(piece);
                while let Some((stream, text)) = frames.next() {
                    seen.push((stream, String::from_utf8(text.to_vec()).unwrap()));
                }
            }
            assert_eq!(
                seen,
                [
                    (1, "hello".to_owned()),
                    (2, String::new()),
                    (1, "world".to_owned())
                ]
            );
        }
    }
}
