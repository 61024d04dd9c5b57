//! The engine over HTTP: OpenAI's paths, vLLM's health, metrics, adapters and sleep.

mod embed;
mod generate;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use axum::body::Bytes;
use axum::extract::{Query, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use warp_core::engine::{Engine, Settings};

use super::metrics::Metrics;
use super::pump::Pump;
use super::shapes::{Adapter, Problem};
use super::{Args, Trouble};

/// What every request sees.
#[derive(Debug)]
pub(super) struct Shared {
    names: Vec<String>,
    adapters: Mutex<BTreeMap<String, String>>,
    keys: Vec<String>,
    max_model_len: u64,
    trouble: Trouble,
    pump: Pump,
    metrics: Arc<Metrics>,
    started: i64,
    requests: AtomicU64,
    under_way: watch::Sender<u64>,
    ending: AtomicBool,
    asleep: AtomicBool,
    crash: Notify,
}

impl Shared {
    pub(super) fn new(args: &Args, settings: Settings) -> Self {
        let names = args.names();
        let first = names.first().map_or("", String::as_str);
        let metrics = Arc::new(Metrics::new(first, settings.blocks, settings.block_tokens));
        Self {
            names,
            adapters: Mutex::new(args.lora_modules.iter().cloned().collect()),
            keys: args.api_key.clone(),
            max_model_len: args.max_model_len,
            trouble: args.trouble.clone(),
            pump: Pump::start(Engine::new(settings), metrics.clone()),
            metrics,
            started: jiff::Timestamp::now().as_second(),
            requests: AtomicU64::new(0),
            under_way: watch::Sender::new(0),
            ending: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            crash: Notify::new(),
        }
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    pub(super) fn under_way(&self) -> u64 {
        *self.under_way.borrow()
    }

    /// New requests are refused from now on.
    pub(super) fn stop_taking(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    /// Resolves when no request is under way.
    pub(super) async fn idle(&self) {
        let mut count = self.under_way.subscribe();
        // The sender lives as long as this does.
        count.wait_for(|count| *count == 0).await.ok();
    }

    /// Resolves when it is time to end as `--crash-after` asks.
    pub(super) async fn crashed(&self) {
        self.crash.notified().await;
    }

    /// Counts a request, which may meet the trouble that was asked for.
    async fn admit(self: &Arc<Self>) -> Result<UnderWay, Problem> {
        if self.ending.load(Ordering::SeqCst) {
            return Err(Problem::ending());
        }
        if self.asleep.load(Ordering::SeqCst) {
            return Err(Problem::asleep());
        }
        let number = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        let under_way = UnderWay::new(self, number);
        let every = |wanted: Option<u64>| wanted.is_some_and(|n| number.is_multiple_of(n));
        if self.trouble.crash_after.is_some_and(|n| number > n) {
            self.crash.notify_one();
        }
        if every(self.trouble.stall_every) {
            std::future::pending::<()>().await;
        }
        if every(self.trouble.error_every) {
            return Err(Problem::asked_for());
        }
        Ok(under_way)
    }

    fn knows(&self, model: &str) -> Result<(), Problem> {
        let known =
            self.names.iter().any(|name| name == model) || self.adapters.lock().contains_key(model);
        known.then_some(()).ok_or_else(|| Problem::no_model(model))
    }
}

/// Counted while a request is under way, however it ends.
#[derive(Debug)]
struct UnderWay {
    shared: Arc<Shared>,
    number: u64,
}

impl UnderWay {
    fn new(shared: &Arc<Shared>, number: u64) -> Self {
        shared.under_way.send_modify(|count| *count += 1);
        Self {
            shared: shared.clone(),
            number,
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.shared.metrics.forget(self.number);
        self.shared
            .under_way
            .send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// Answers until it is dropped.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let guarded = Router::new()
        .route("/v1/models", get(models))
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completion))
        .route("/v1/embeddings", post(embed::embeddings))
        .route("/v1/load_lora_adapter", post(load_adapter))
        .route("/v1/unload_lora_adapter", post(unload_adapter))
        .layer(axum::middleware::from_fn_with_state(
            shared.clone(),
            check_key,
        ));
    let app = Router::new()
        .route("/health", get(health))
        .route("/ping", get(health))
        .route("/version", get(version))
        .route("/metrics", get(metrics))
        .route("/sleep", post(sleep))
        .route("/wake_up", post(wake_up))
        .route("/is_sleeping", get(is_sleeping))
        .route("/reset_prefix_cache", post(reset_cache))
        .merge(guarded)
        .fallback(async |request: Request| Problem::no_route(request.uri().path()))
        .with_state(shared);
    let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
        // A token is one small packet: without this the system holds it back for the next.
        stream.set_nodelay(true).ok();
    });
    axum::serve(listener, app).await.ok();
}

async fn check_key(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(http::header::AUTHORIZATION);
    let given = given
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "))
        .unwrap_or_default();
    if shared.keys.is_empty() || shared.keys.iter().any(|key| key == given) {
        return next.run(request).await;
    }
    Problem::no_key().into_response()
}

async fn health(State(shared): State<Arc<Shared>>) -> StatusCode {
    if shared.ending.load(Ordering::SeqCst) {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    }
}

async fn version() -> Json<Value> {
    Json(json!({ "version": format!("{}+simulated", env!("CARGO_PKG_VERSION")) }))
}

async fn metrics(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let kind = [(http::header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, shared.metrics.page())
}

async fn models(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let base = shared.names.first().cloned().unwrap_or_default();
    let entry = |name: &str, root: &str, parent: Option<&str>| {
        json!({
            "id": name,
            "object": "model",
            "created": shared.started,
            "owned_by": "warp",
            "root": root,
            "parent": parent,
            "max_model_len": shared.max_model_len,
        })
    };
    let mut data: Vec<Value> = shared
        .names
        .iter()
        .map(|name| entry(name, name, None))
        .collect();
    let adapters = shared.adapters.lock();
    data.extend(
        adapters
            .iter()
            .map(|(name, path)| entry(name, path, Some(&base))),
    );
    Json(json!({ "object": "list", "data": data }))
}

async fn load_adapter(State(shared): State<Arc<Shared>>, body: Bytes) -> Result<String, Problem> {
    let adapter: Adapter = generate::parsed(&body)?;
    if adapter.lora_name.is_empty() || adapter.lora_path.is_empty() {
        return Err(Problem::bad(
            "Both 'lora_name' and 'lora_path' must be provided.",
        ));
    }
    let mut adapters = shared.adapters.lock();
    if adapters.contains_key(&adapter.lora_name) || shared.names.contains(&adapter.lora_name) {
        return Err(Problem::bad(format!(
            "The lora adapter '{}' has already been loaded.",
            adapter.lora_name
        )));
    }
    let said = format!(
        "Success: LoRA adapter '{}' added successfully.",
        adapter.lora_name
    );
    adapters.insert(adapter.lora_name, adapter.lora_path);
    Ok(said)
}

async fn unload_adapter(State(shared): State<Arc<Shared>>, body: Bytes) -> Result<String, Problem> {
    let adapter: Adapter = generate::parsed(&body)?;
    match shared.adapters.lock().remove(&adapter.lora_name) {
        Some(_) => Ok(format!(
            "Success: LoRA adapter '{}' removed successfully.",
            adapter.lora_name
        )),
        None => Err(Problem::no_model(&adapter.lora_name)),
    }
}

async fn sleep(
    State(shared): State<Arc<Shared>>,
    Query(asked): Query<BTreeMap<String, String>>,
) -> Result<StatusCode, Problem> {
    match asked.get("level").map_or("1", String::as_str) {
        "1" | "2" => {}
        other => return Err(Problem::bad(format!("level '{other}' is not 1 or 2"))),
    }
    shared.pump.clear_cache();
    shared.asleep.store(true, Ordering::SeqCst);
    shared.metrics.asleep(true);
    Ok(StatusCode::OK)
}

async fn wake_up(State(shared): State<Arc<Shared>>) -> StatusCode {
    shared.asleep.store(false, Ordering::SeqCst);
    shared.metrics.asleep(false);
    StatusCode::OK
}

async fn is_sleeping(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(json!({ "is_sleeping": shared.asleep.load(Ordering::SeqCst) }))
}

async fn reset_cache(State(shared): State<Arc<Shared>>) -> StatusCode {
    shared.pump.clear_cache();
    StatusCode::OK
}
