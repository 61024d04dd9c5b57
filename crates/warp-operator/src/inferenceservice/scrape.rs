//! Asks engines how busy and how quick they are: their `/metrics`; and which models they serve.
//!
//! One answer is good for some seconds, whoever asks. No answer is none, never nothing to do; what takes two answers is
//! none after the first.

pub(super) mod page;

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

use super::adapters::Served;
use super::assess::is_ready;
use page::{Histogram, Page, whole};

/// How long an answer is good for.
pub(super) const FRESH: Duration = Duration::from_secs(10);
/// The longest one engine is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Engines asked at once.
const AT_ONCE: usize = 16;
/// Longer than any engine's page.
const PAGE_LIMIT_BYTES: usize = 4 << 20;

/// What the engines of a service said, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) load: Load,
    /// Tokens generated a second since the look before; none: it is the first.
    pub(crate) tokens_per_second: Option<u64>,
    /// Tokens the smallest of their caches holds.
    pub(crate) cache_tokens: Option<u64>,
}

/// The last page of one engine, and when it was read.
type Pages = BTreeMap<String, (Instant, Page)>;

/// What was last heard of one service.
#[derive(Debug)]
struct Known {
    at: Instant,
    heard: Option<Heard>,
    pages: Pages,
}

/// What was last heard of every service: how busy its engines are, and what they serve.
#[derive(Debug, Default)]
pub(super) struct Loads(
    Mutex<BTreeMap<Key, Known>>,
    Mutex<BTreeMap<Key, (Instant, Vec<Served>)>>,
);

impl Loads {
    pub(super) async fn of(&self, key: &Key, pods: &[Arc<Pod>], port: i32) -> Option<Heard> {
        let before = {
            let known = self.0.lock();
            match known.get(key) {
                Some(known) if known.at.elapsed() < FRESH => return known.heard,
                Some(known) => known.pages.clone(),
                None => Pages::new(),
            }
        };
        let pages = ask_all(pods, port).await;
        let heard = together(&before, &pages);
        let known = Known {
            at: Instant::now(),
            heard,
            pages,
        };
        self.0.lock().insert(key.clone(), known);
        heard
    }

    /// What each copy that answers says it serves. An answer that lacks copies which have come since is asked for anew.
    pub(super) async fn served(&self, key: &Key, pods: &[Arc<Pod>], port: i32) -> Vec<Served> {
        let engines = engines(pods);
        if let Some((at, known)) = self.1.lock().get(key)
            && at.elapsed() < FRESH
            && known.len() == engines.len()
        {
            return known.clone();
        }
        let Ok(port) = u16::try_from(port) else {
            return Vec::new();
        };
        let served: Vec<Served> = futures::stream::iter(engines)
            .map(|(_, address)| async move {
                let text = tokio::time::timeout(PATIENCE, get(&address, port, "/v1/models")).await;
                names(&text.ok().flatten()?)
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let known = (Instant::now(), served.clone());
        self.1.lock().insert(key.clone(), known);
        served
    }

    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
        self.1.lock().remove(key);
    }
}

/// What all pages say, and what changed since those before.
fn together(before: &Pages, pages: &Pages) -> Option<Heard> {
    let mut heard = Heard::default();
    let (mut first_token, mut between_tokens) = (Histogram::default(), Histogram::default());
    let mut pace: Option<f64> = None;
    for (engine, (at, page)) in pages {
        heard.load.copies += 1;
        heard.load.running += page.load.running;
        heard.load.waiting += page.load.waiting;
        heard.load.cache_percent += page.load.cache_percent;
        let smallest = heard
            .cache_tokens
            .into_iter()
            .chain(page.cache_tokens)
            .min();
        heard.cache_tokens = smallest;
        let Some((then, last)) = before.get(engine) else {
            continue;
        };
        first_token = first_token.with(&page.first_token.since(&last.first_token));
        between_tokens = between_tokens.with(&page.between_tokens.since(&last.between_tokens));
        let seconds = at.duration_since(*then).as_secs_f64();
        if let (Some(now), Some(then)) = (page.generated, last.generated)
            && seconds > 0.0
        {
            // An engine that began anew has generated all it counts since.
            let tokens = if now >= then { now - then } else { now };
            pace = Some(pace.unwrap_or(0.0) + tokens / seconds);
        }
    }
    heard.tokens_per_second = pace.map(whole);
    heard.load.first_token_ms = first_token.nine_of_ten_ms();
    heard.load.between_tokens_ms = between_tokens.nine_of_ten_ms();
    (heard.load.copies > 0).then_some(heard)
}

async fn ask_all(pods: &[Arc<Pod>], port: i32) -> Pages {
    let Ok(port) = u16::try_from(port) else {
        return Pages::new();
    };
    let answers: Vec<Option<(String, (Instant, Page))>> = futures::stream::iter(engines(pods))
        .map(|(engine, address)| async move {
            let text = tokio::time::timeout(PATIENCE, get(&address, port, "/metrics")).await;
            let page = page::read(&text.ok().flatten()?)?;
            Some((engine, (Instant::now(), page)))
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    answers.into_iter().flatten().collect()
}

/// The copies that answer, with their addresses.
fn engines(pods: &[Arc<Pod>]) -> Vec<(String, String)> {
    let ready = pods.iter().filter(|pod| is_ready(pod));
    let engines = ready.filter_map(|pod| {
        let address = pod.status.as_ref()?.pod_ip.clone()?;
        Some((pod.metadata.uid.clone().unwrap_or_default(), address))
    });
    engines.collect()
}

/// The names in a list of models.
fn names(text: &str) -> Served {
    let list: serde_json::Value = serde_json::from_str(text).ok()?;
    let models = list.get("data")?.as_array()?.iter();
    let names = models.filter_map(|model| model.get("id")?.as_str());
    Some(names.map(str::to_owned).collect())
}

async fn get(address: &str, port: u16, path: &str) -> Option<String> {
    let stream = TcpStream::connect((address, port)).await.ok()?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .ok()?;
    let request = http::Request::get(path)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(second: u64, counts: &[(&str, u64)]) -> Pages {
        let at = Instant::now() + Duration::from_secs(second);
        let read = |(engine, tokens): &(&str, u64)| {
            let text =
                format!("vllm:num_requests_running 1\nvllm:generation_tokens_total {tokens}\n");
            let page = page::read(&text).unwrap();
            ((*engine).to_owned(), (at, page))
        };
        counts.iter().map(read).collect()
    }

    #[test]
    fn a_list_of_models_is_read_and_anything_else_is_no_answer() {
        let list =
            r#"{"object": "list", "data": [{"id": "base"}, {"id": "sql", "parent": "base"}]}"#;
        let names: Vec<String> = names(list).unwrap().into_iter().collect();
        assert_eq!(names, ["base", "sql"]);
        for text in ["", "{}", r#"{"error": "no key"}"#] {
            assert_eq!(super::names(text), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pace_takes_two_answers_and_copies_that_come_or_begin_anew_do_not_bend_it() {
        let first = pages(0, &[("a", 1000), ("b", 500)]);
        let heard = together(&Pages::new(), &first).unwrap();
        assert_eq!((heard.load.copies, heard.tokens_per_second), (2, None));
        // One went on, one began anew, one is new.
        let second = pages(10, &[("a", 1600), ("b", 100), ("c", 9000)]);
        let heard = together(&first, &second).unwrap();
        assert_eq!(heard.tokens_per_second, Some(70));
        assert_eq!(together(&second, &Pages::new()), None);
    }
}
