//! Asks engines how busy they are: their `/metrics`, under the names vLLM has and had, and those of others.
//!
//! One answer is good for some seconds, whoever asks. No answer is none, never nothing to do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::Instant;
use warp_core::scale::Load;
use warp_runtime::cache::Key;

use super::assess::is_ready;

/// How long an answer is good for.
pub(super) const FRESH: Duration = Duration::from_secs(10);
/// The longest one engine is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Engines asked at once.
const AT_ONCE: usize = 16;
/// Longer than any engine's page.
const PAGE_LIMIT_BYTES: usize = 4 << 20;

/// What was last heard of every service.
#[derive(Debug, Default)]
pub(super) struct Loads(Mutex<BTreeMap<Key, (Instant, Option<Load>)>>);

impl Loads {
    pub(super) async fn of(&self, key: &Key, pods: &[Arc<Pod>], port: i32) -> Option<Load> {
        let known = self.0.lock().get(key).copied();
        if let Some((at, load)) = known
            && at.elapsed() < FRESH
        {
            return load;
        }
        let load = ask_all(pods, port).await;
        self.0.lock().insert(key.clone(), (Instant::now(), load));
        load
    }

    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

async fn ask_all(pods: &[Arc<Pod>], port: i32) -> Option<Load> {
    let port = u16::try_from(port).ok()?;
    let addresses: Vec<String> = pods
        .iter()
        .filter(|pod| is_ready(pod))
        .filter_map(|pod| pod.status.as_ref()?.pod_ip.clone())
        .collect();
    let answers: Vec<Option<Load>> = futures::stream::iter(addresses)
        .map(|address| async move {
            let page = tokio::time::timeout(PATIENCE, page(&address, port)).await;
            page.ok().flatten().and_then(|page| read(&page))
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let sum = answers
        .into_iter()
        .flatten()
        .fold(Load::default(), |sum, one| Load {
            copies: sum.copies + one.copies,
            running: sum.running + one.running,
            waiting: sum.waiting + one.waiting,
            cache_percent: sum.cache_percent + one.cache_percent,
        });
    (sum.copies > 0).then_some(sum)
}

async fn page(address: &str, port: u16) -> Option<String> {
    let stream = TcpStream::connect((address, port)).await.ok()?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .ok()?;
    let request = http::Request::get("/metrics")
        .header("Host", format!("{address}:{port}"))
        .body(Empty::<axum::body::Bytes>::new())
        .ok()?;
    let asked = async {
        let answer = sender.send_request(request).await.ok()?;
        if !answer.status().is_success() {
            return None;
        }
        let body = Limited::new(answer.into_body(), PAGE_LIMIT_BYTES);
        let bytes = body.collect().await.ok()?.to_bytes();
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    tokio::select! {
        page = asked => page,
        _ = connection => None,
    }
}

const RUNNING: [&str; 4] = [
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
    "trtllm_num_requests_running",
];
const WAITING: [&str; 4] = [
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "llamacpp:requests_deferred",
    "trtllm_num_requests_waiting",
];
const CACHE: [&str; 5] = [
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sglang:token_usage",
    "llamacpp:kv_cache_usage_ratio",
    "trtllm_kv_cache_utilization",
];

/// What a page says; none when it names neither what runs nor what waits.
pub(super) fn read(page: &str) -> Option<Load> {
    let count = |names: &[&str]| {
        let values = values(page, names);
        (!values.is_empty()).then(|| whole(values.iter().sum()))
    };
    let (running, waiting) = (count(&RUNNING), count(&WAITING));
    if running.is_none() && waiting.is_none() {
        return None;
    }
    let shares = values(page, &CACHE);
    let mean = shares.iter().sum::<f64>() / (shares.len().max(1) as f64);
    Some(Load {
        copies: 1,
        running: running.unwrap_or(0),
        waiting: waiting.unwrap_or(0),
        cache_percent: whole(mean * 100.0),
    })
}

/// The values of the first of `names` that the page has.
fn values(page: &str, names: &[&str]) -> Vec<f64> {
    let of = |name: &str| -> Vec<f64> {
        let lines = page.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let rest = match rest.strip_prefix('{') {
                Some(labels) => labels.rsplit_once('}')?.1,
                None => rest.strip_prefix(' ')?,
            };
            rest.split_whitespace().next()?.parse().ok()
        });
        lines.filter(|value: &f64| value.is_finite()).collect()
    };
    names
        .iter()
        .map(|name| of(name))
        .find(|found| !found.is_empty())
        .unwrap_or_default()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to what the type holds"
)]
fn whole(value: f64) -> u64 {
    value.clamp(0.0, 1e15).round() as u64
}
