//! The simulated engine as a client sees it, and services on `warp up` as a person uses them.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use warp_testkit::until;

use crate::up::{PATIENCE, Up};

/// A `warp engine`, ended with the test.
struct Engine {
    child: Child,
    address: String,
}

impl Engine {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_warp"))
            .args(["engine", "--model", "tiny", "--port", "0"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .expect("an engine");
        let mut lines = BufReader::new(child.stderr.take().expect("its words")).lines();
        let address = lines
            .find_map(|line| {
                let line = line.ok()?;
                let rest = line.split_once("http://")?.1.to_owned();
                Some(rest.split_once('/')?.0.to_owned())
            })
            .expect("an address");
        // What it says later must have somewhere to go.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    fn asked(&self, request: &str) -> (u16, String) {
        asked(&self.address, request)
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.asked(&format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        ))
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.asked(&posted(path, body));
        (status, serde_json::from_str(&text).unwrap_or_default())
    }

    fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").1;
        let line = page
            .lines()
            .find(|line| line.starts_with(&format!("{name}{{")));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in\n{page}"))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn posted(path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The status and the body of an answer, with chunks put together.
fn asked(address: &str, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.write_all(request.as_bytes()).expect("a request");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let text = String::from_utf8(answer).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = if head.to_lowercase().contains("transfer-encoding: chunked") {
        let mut whole = String::new();
        let mut rest = body;
        while let Some((size, after)) = rest.split_once("\r\n") {
            let size = usize::from_str_radix(size, 16).expect("a size");
            whole += &after[..size];
            rest = after[size..].trim_start_matches("\r\n");
            if size == 0 {
                break;
            }
        }
        whole
    } else {
        body.to_owned()
    };
    (status.expect("a status"), body)
}

fn chat(more: &Value) -> Value {
    let mut body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "Hello" }] });
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body
}

#[test]
fn an_engine_answers_at_once_and_as_a_stream_with_the_same_words() {
    let engine = Engine::start(&[]);
    assert_eq!(engine.get("/health").0, 200);
    let (status, whole) = engine.post("/v1/chat/completions", &chat(&json!({})));
    assert_eq!(status, 200);
    let said = whole["choices"][0]["message"]["content"]
        .as_str()
        .expect("words");
    assert!(said.ends_with("You wrote: Hello"), "{said}");
    let streamed = chat(&json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let (_, text) = engine.asked(&posted("/v1/chat/completions", &streamed));
    let events: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let values: Vec<Value> = events
        .iter()
        .filter_map(|event| serde_json::from_str(event).ok())
        .collect();
    let pieces = values
        .iter()
        .filter_map(|value| value["choices"][0]["delta"]["content"].as_str());
    assert_eq!(pieces.collect::<String>(), said);
    let usage = &values.last().expect("usage")["usage"];
    assert_eq!(
        usage["completion_tokens"],
        whole["usage"]["completion_tokens"]
    );
    assert!(engine.metric("vllm:generation_tokens_total") > 10.0);
    assert!(engine.metric("vllm:time_to_first_token_seconds_count") >= 2.0);
}

#[test]
fn an_engine_finds_the_beginning_of_earlier_prompts_again() {
    let engine = Engine::start(&[]);
    let long = "a word after a word ".repeat(40);
    let body = json!({ "model": "tiny", "prompt": long, "max_tokens": 1 });
    let cached =
        |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(cached(&engine.post("/v1/completions", &body).1), Some(0));
    let second = engine.post("/v1/completions", &body).1;
    let prompt = second["usage"]["prompt_tokens"].as_u64().expect("a count");
    let found = cached(&second).expect("a count");
    assert!(found > prompt / 2 && found.is_multiple_of(16), "{second}");
    let counted = engine.metric("vllm:prefix_cache_hits_total");
    assert!((counted - found as f64).abs() < 0.5, "{counted}");
}

#[test]
fn an_engine_refuses_in_the_words_clients_read() {
    let engine = Engine::start(&["--max-model-len", "64", "--api-key", "secret"]);
    assert_eq!(
        engine.post("/v1/chat/completions", &chat(&json!({}))).0,
        401
    );
    let with_key = |path: &str, body: &Value| {
        let request =
            posted(path, body).replacen("Host: x", "Host: x\r\nAuthorization: Bearer secret", 1);
        let (status, text) = engine.asked(&request);
        let value: Value = serde_json::from_str(&text).expect("JSON");
        (
            status,
            value["error"]["code"].clone(),
            value["error"]["message"].clone(),
        )
    };
    let unknown = chat(&json!({ "model": "other" }));
    let (status, code, _) = with_key("/v1/chat/completions", &unknown);
    assert_eq!((status, code), (404, json!("model_not_found")));
    let long = json!({ "model": "tiny", "prompt": "word ".repeat(100) });
    let (status, code, message) = with_key("/v1/completions", &long);
    assert_eq!((status, code), (400, json!("context_length_exceeded")));
    assert!(
        message
            .as_str()
            .is_some_and(|text| text.contains("64 tokens")),
        "{message}"
    );
    let (status, ..) = with_key("/v1/chat/completions", &json!({ "model": "tiny" }));
    assert_eq!(status, 400);
    let (status, ..) = with_key("/v1/nothing", &json!({}));
    assert_eq!(status, 404);
}

#[test]
fn an_engine_embeds_loads_adapters_and_sleeps() {
    let engine = Engine::start(&["--lora-modules", "polite=/adapters/polite"]);
    let body = json!({ "model": "tiny", "input": ["one", "two"], "dimensions": 8 });
    let (_, vectors) = engine.post("/v1/embeddings", &body);
    assert_eq!(
        vectors["data"][1]["embedding"].as_array().map(Vec::len),
        Some(8)
    );
    let adapter = json!({ "lora_name": "rude", "lora_path": "/adapters/rude" });
    engine.post("/v1/load_lora_adapter", &adapter);
    let models: Value = serde_json::from_str(&engine.get("/v1/models").1).expect("models");
    let names: BTreeSet<&str> = models["data"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|model| model["id"].as_str())
        .collect();
    assert_eq!(names, BTreeSet::from(["polite", "rude", "tiny"]));
    let polite = chat(&json!({ "model": "polite" }));
    assert_eq!(engine.post("/v1/chat/completions", &polite).0, 200);
    engine.post("/sleep?level=1", &json!({}));
    assert_eq!(
        engine.post("/v1/chat/completions", &chat(&json!({}))).0,
        503
    );
    engine.post("/wake_up", &json!({}));
    assert_eq!(
        engine.post("/v1/chat/completions", &chat(&json!({}))).0,
        200
    );
}

#[test]
fn an_engine_that_is_asked_to_end_finishes_what_it_began() {
    let mut engine = Engine::start(&["--step-ms", "20"]);
    let body = chat(&json!({ "stream": true, "max_tokens": 50, "ignore_eos": true }));
    let mut stream = TcpStream::connect(&engine.address).expect("a connection");
    stream
        .write_all(posted("/v1/chat/completions", &body).as_bytes())
        .expect("a request");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        reader.read_line(&mut line).expect("a line");
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(engine.child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    let mut rest = String::new();
    reader.read_to_string(&mut rest).expect("the rest");
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert!(engine.child.wait().expect("its end").success());
}

#[test]
fn an_engine_fails_as_it_is_asked_to() {
    let engine = Engine::start(&["--error-every", "2"]);
    let codes: Vec<u16> = (0..4)
        .map(|_| engine.post("/v1/chat/completions", &chat(&json!({}))).0)
        .collect();
    assert_eq!(codes, [200, 500, 200, 500]);
    let failed = Command::new(env!("CARGO_BIN_EXE_warp"))
        .args(["engine", "--model", "m", "--fail-load"])
        .output()
        .expect("an engine");
    assert!(!failed.status.success());
    assert!(String::from_utf8_lossy(&failed.stderr).contains("out of memory"));
}

/// Processes that serve for the data directory of `up`, by their own command line.
fn engines(up: &Up) -> usize {
    let mark = up.data.join("engines").display().to_string();
    let all = std::fs::read_dir("/proc").expect("processes");
    all.filter_map(|entry| {
        let folder = entry.ok()?.path();
        let words = std::fs::read(folder.join("cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        let place = std::fs::read_link(folder.join("cwd")).ok()?;
        let ours = place.display().to_string().starts_with(&mark);
        (ours && words.contains(" engine --model ")).then_some(())
    })
    .count()
}

async fn answers(up: &Up, name: &str) {
    until(&format!("{name} to answer"), PATIENCE, async || {
        let said = up.warp(&["chat", name, "Hello"]);
        Ok(String::from_utf8_lossy(&said.stdout)
            .contains("You wrote: Hello")
            .then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_outlives_a_killed_warp_and_leaves_nothing_when_it_is_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("warp");
    let up = Up::start(&data, &["--demo"]).await;
    let said = up.ok(&["serve", "demo/tiny", "--yes", "--replicas", "2"]);
    assert!(said.starts_with("curl -s http://127."), "{said}");
    answers(&up, "tiny").await;
    assert_eq!(engines(&up), 2);
    // What is as it is asked for needs no answer; a change is told first, and asks for one.
    up.ok(&["serve", "demo/tiny", "--replicas", "2"]);
    let other = up.warp(&["serve", "demo/tiny", "--replicas", "1"]);
    let words = String::from_utf8_lossy(&other.stderr);
    assert!(!other.status.success(), "{words}");
    assert!(
        words.contains("exists already; this changes it:\n  spec.replicas: 2 → 1"),
        "{words}"
    );
    assert_eq!(engines(&up), 2);
    // What another hand wrote is told and changed like anything else.
    let run = async |up: &Up, number: usize| {
        until("its engines", PATIENCE, async || {
            Ok((engines(up) == number).then_some(()))
        })
        .await
        .unwrap();
    };
    up.ok(&["patch", "isvc/tiny", "-p", r#"{"spec":{"replicas":3}}"#]);
    run(&up, 3).await;
    up.ok(&["serve", "demo/tiny", "--replicas", "2", "--yes"]);
    run(&up, 2).await;
    // Dropped, it is killed: no time to tidy up.
    drop(up);
    let up = Up::start(&data, &["--demo"]).await;
    answers(&up, "tiny").await;
    up.shows(&["get", "isvc", "tiny"], "Ready").await;
    assert_eq!(engines(&up), 2, "none was started twice");
    up.ok(&["delete", "isvc", "tiny"]);
    until("no engine to be left", PATIENCE, async || {
        Ok((engines(&up) == 0).then_some(()))
    })
    .await
    .unwrap();
    up.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_says_what_it_costs_and_how_quick_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("warp");
    let up = Up::start(&data, &["--demo"]).await;
    let manifest = folder.path().join("service.yaml");
    std::fs::write(
        &manifest,
        "apiVersion: gpu.warp.dev/v1alpha1\nkind: InferenceService\nmetadata: {name: tiny}\nspec:\n  model: {source: demo/tiny}\n  \
         engine: {type: simulated}\n  scaling: {min: 1, max: 2, metric: firstToken, target: 60000}\n",
    )
    .unwrap();
    up.ok(&["apply", "-f", manifest.to_str().unwrap()]);
    answers(&up, "tiny").await;
    let status = || {
        let text = up.ok(&["get", "isvc", "tiny", "-o", "json"]);
        serde_json::from_str::<Value>(&text).unwrap()["status"].clone()
    };
    // Asked again and again: a pace takes two looks, with answers between them.
    until("a pace to be told", PATIENCE, async || {
        up.ok(&["chat", "tiny", "Hello"]);
        let pace = status()["load"]["tokensPerSecond"].as_i64();
        Ok(pace.filter(|pace| *pace > 0).map(|_| ()))
    })
    .await
    .unwrap();
    let told = status();
    assert!(told["load"]["firstTokenMs"].as_i64().is_some(), "{told}");
    assert!(told["cache"]["tokens"].as_i64() > Some(0), "{told}");
    let price: f64 = told["cost"]["perHour"].as_str().unwrap().parse().unwrap();
    assert!(price > 0.0, "{told}");
    assert!(told["cost"]["perMillionTokens"].is_string(), "{told}");
    let why = up.ok(&["why", "isvc/tiny"]);
    for part in ["1 of 1 copies answer", "an hour", "tokens a copy"] {
        assert!(why.contains(part), "{why}");
    }
    up.stop();
}
