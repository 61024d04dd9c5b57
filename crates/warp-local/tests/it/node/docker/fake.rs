//! A Docker engine that answers as one: states, errors and streams, by the calls of the public API description.
//! Commands it knows: `run` (until stopped), `exit N`, `oom`; `sh` really runs, as does what is run in a container.

mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path as Segment, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use futures::StreamExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) body: Value,
    pub(crate) status: &'static str,
    pub(crate) exit_code: i64,
    oom: bool,
    pub(crate) stop_seconds: Option<String>,
    /// Its main process, if it has one and it runs.
    main: Option<programs::Main>,
}

#[derive(Debug, Default)]
pub(crate) struct Inside {
    pub(crate) containers: BTreeMap<String, Container>,
    execs: BTreeMap<String, programs::Exec>,
    images: BTreeSet<String>,
    /// How many pulls break off in the middle.
    pub(crate) broken_pulls: u32,
    made: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) inside: Arc<Mutex<Inside>>,
    events: broadcast::Sender<String>,
}

/// The engine listening; dropping it is the engine dying.
pub(crate) struct Listening(JoinHandle<()>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Engine {
    pub(crate) fn new() -> Self {
        Self {
            inside: Arc::default(),
            events: broadcast::channel(64).0,
        }
    }

    pub(crate) fn listen(&self, socket: &Path) -> Listening {
        std::fs::remove_file(socket).ok();
        let listener = UnixListener::bind(socket).unwrap();
        let routes = Router::new()
            .route("/_ping", get(async || "OK"))
            .route("/images/create", post(pull))
            .route("/images/{*name}", get(image))
            .route("/containers/create", post(create))
            .route("/containers/json", get(list))
            .route("/containers/{id}/json", get(inspect))
            .route("/containers/{id}/start", post(start))
            .route("/containers/{id}/stop", post(stop))
            .route("/containers/{id}/logs", get(logs))
            .route("/containers/{id}/attach", post(programs::attach))
            .route("/containers/{id}/exec", post(programs::exec))
            .route("/containers/{id}", delete(remove))
            .route("/exec/{id}/start", post(programs::exec_start))
            .route("/exec/{id}/json", get(programs::exec_json))
            .route("/events", get(events))
            .with_state(self.clone());
        let app = Router::new().nest("/v1.41", routes);
        Listening(tokio::spawn(async move {
            axum::serve(listener, app).await.unwrap();
        }))
    }

    /// Ends a container as the kernel or its program would.
    fn end(&self, id: &str, code: i64, oom: bool) {
        let mut inside = self.inside.lock();
        let Some(container) = inside
            .containers
            .get_mut(id)
            .filter(|container| container.status == "running")
        else {
            return;
        };
        container.status = "exited";
        container.exit_code = code;
        container.oom = oom;
        if let Some(main) = container.main.take() {
            main.stop();
        }
        let attributes = container.body["Labels"].clone();
        let event = json!({"Type": "container", "Action": "die", "Actor": {"ID": id, "Attributes": attributes}});
        self.events.send(event.to_string()).ok();
    }

    fn find(&self, id: &str) -> Option<(String, Container)> {
        let inside = self.inside.lock();
        inside
            .containers
            .iter()
            .find(|(known, container)| *known == id || container.name == id)
            .map(|(id, container)| (id.clone(), container.clone()))
    }
}

fn missing(id: &str) -> Response {
    (
        StatusCode::NOT_FOUND,
        axum::Json(json!({"message": format!("No such container: {id}")})),
    )
        .into_response()
}

async fn image(State(engine): State<Engine>, Segment(path): Segment<String>) -> Response {
    let name = path.trim_end_matches("/json");
    if engine.inside.lock().images.contains(name) {
        return axum::Json(json!({"Id": format!("sha256:{name}")})).into_response();
    }
    (
        StatusCode::NOT_FOUND,
        axum::Json(json!({"message": format!("No such image: {name}")})),
    )
        .into_response()
}

/// Whether the request carries the one login this engine's registry knows.
fn may_pull(headers: &axum::http::HeaderMap) -> bool {
    let login: Value = headers
        .get("X-Registry-Auth")
        .and_then(|header| URL_SAFE.decode(header).ok())
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    login["username"] == "me" && login["password"] == "secret"
}

async fn pull(
    State(engine): State<Engine>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: axum::http::HeaderMap,
) -> Response {
    let image = format!("{}:{}", query["fromImage"], query["tag"]);
    if image.contains("private") && !may_pull(&headers) {
        let message = "pull access denied for private, repository does not exist or may require 'docker login'";
        return (
            StatusCode::NOT_FOUND,
            axum::Json(json!({"message": message})),
        )
            .into_response();
    }
    if image.contains("nowhere") {
        let line =
            json!({"errorDetail": {"message": "manifest unknown"}, "error": "manifest unknown"});
        return Body::from(format!("{line}\n")).into_response();
    }
    let line = json!({"status": "Downloading", "id": "layer", "progressDetail": {"current": 5, "total": 10}});
    let mut inside = engine.inside.lock();
    if inside.broken_pulls > 0 {
        inside.broken_pulls -= 1;
        let pieces = [
            Ok(format!("{line}\n")),
            Err(std::io::Error::other("the engine died")),
        ];
        return Body::from_stream(futures::stream::iter(pieces)).into_response();
    }
    inside.images.insert(image);
    Body::from(format!(
        "{line}\n{}\n",
        json!({"status": "Pull complete", "id": "layer"})
    ))
    .into_response()
}

async fn create(
    State(engine): State<Engine>,
    Query(query): Query<BTreeMap<String, String>>,
    body: Bytes,
) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let mut inside = engine.inside.lock();
    let name = query["name"].clone();
    if inside
        .containers
        .values()
        .any(|container| container.name == name)
    {
        return (StatusCode::CONFLICT, axum::Json(json!({"message": format!("Conflict. The container name \"/{name}\" is already in use")}))).into_response();
    }
    inside.made += 1;
    let id = format!("c{:04}", inside.made);
    let container = Container {
        name,
        body,
        status: "created",
        exit_code: 0,
        oom: false,
        stop_seconds: None,
        main: None,
    };
    inside.containers.insert(id.clone(), container);
    (
        StatusCode::CREATED,
        axum::Json(json!({"Id": id, "Warnings": []})),
    )
        .into_response()
}

async fn start(State(engine): State<Engine>, Segment(id): Segment<String>) -> Response {
    let Some((id, container)) = engine.find(&id) else {
        return missing(&id);
    };
    if container.status == "running" {
        return StatusCode::NOT_MODIFIED.into_response();
    }
    let words: Vec<String> =
        serde_json::from_value(container.body["Entrypoint"].clone()).unwrap_or_default();
    if words.first().is_some_and(|word| word == "absent") {
        let message = "exec: \"absent\": executable file not found in $PATH";
        return (
            StatusCode::BAD_REQUEST,
            axum::Json(json!({"message": message})),
        )
            .into_response();
    }
    if let Some(container) = engine.inside.lock().containers.get_mut(&id) {
        container.status = "running";
    }
    match (words.first().map(String::as_str), words.get(1)) {
        (Some("exit"), Some(code)) => engine.end(&id, code.parse().unwrap(), false),
        (Some("oom"), _) => engine.end(&id, 137, true),
        (Some("sh"), _) => {
            // Under the lock: its end is told only after its start.
            let mut inside = engine.inside.lock();
            let main = programs::run(&engine, &id, &words, &container.body);
            if let Some(container) = inside.containers.get_mut(&id) {
                container.main = Some(main);
            }
        }
        _ => {}
    }
    StatusCode::NO_CONTENT.into_response()
}

async fn stop(
    State(engine): State<Engine>,
    Segment(id): Segment<String>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    let Some((id, _)) = engine.find(&id) else {
        return missing(&id);
    };
    if let Some(container) = engine.inside.lock().containers.get_mut(&id) {
        container.stop_seconds = query.get("t").cloned();
    }
    engine.end(&id, 143, false);
    StatusCode::NO_CONTENT.into_response()
}

async fn remove(State(engine): State<Engine>, Segment(id): Segment<String>) -> Response {
    let Some((id, _)) = engine.find(&id) else {
        return missing(&id);
    };
    let removed = engine.inside.lock().containers.remove(&id);
    if let Some(main) = removed.and_then(|container| container.main) {
        main.stop();
    }
    StatusCode::NO_CONTENT.into_response()
}

async fn inspect(State(engine): State<Engine>, Segment(id): Segment<String>) -> Response {
    let Some((id, container)) = engine.find(&id) else {
        return missing(&id);
    };
    axum::Json(json!({
        "Id": id,
        "State": {"Status": container.status, "Running": container.status == "running", "ExitCode": container.exit_code,
            "OOMKilled": container.oom, "Error": "", "StartedAt": "2026-11-15T10:00:00.5Z", "FinishedAt": "2026-11-15T10:00:01.5Z"},
        "NetworkSettings": {"IPAddress": "127.0.0.1"}}))
    .into_response()
}

async fn list(
    State(engine): State<Engine>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    let filters: Value = serde_json::from_str(&query["filters"]).unwrap();
    let (key, value) = filters["label"][0]
        .as_str()
        .unwrap()
        .split_once('=')
        .unwrap();
    let inside = engine.inside.lock();
    let found: Vec<Value> = inside
        .containers
        .iter()
        .filter(|(_, container)| container.body["Labels"][key] == value)
        .map(|(id, container)| json!({"Id": id, "Labels": container.body["Labels"]}))
        .collect();
    axum::Json(found).into_response()
}

/// One frame of the multiplexed stream.
fn frame(stream: u8, text: &[u8]) -> Vec<u8> {
    let mut frame = vec![stream, 0, 0, 0];
    frame.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
    frame.extend(text);
    frame
}

async fn logs(State(engine): State<Engine>, Segment(id): Segment<String>) -> Response {
    if engine.find(&id).is_none() {
        return missing(&id);
    }
    let whole: Vec<u8> = [frame(1, b"out\n"), frame(2, b"err\n")].concat();
    // Cut where no frame ends, as a socket may.
    let (first, second) = whole.split_at(5);
    let pieces = [first.to_vec(), second.to_vec()].map(Ok::<_, std::io::Error>);
    Body::from_stream(futures::stream::iter(pieces)).into_response()
}

async fn events(State(engine): State<Engine>) -> Response {
    let news = engine.events.subscribe();
    let stream = futures::stream::unfold(news, |mut news| async move {
        let event = news.recv().await.ok()?;
        Some((Ok::<_, std::io::Error>(format!("{event}\n")), news))
    });
    Body::from_stream(stream.boxed()).into_response()
}
