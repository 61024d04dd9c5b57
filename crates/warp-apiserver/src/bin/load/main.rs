//! The client of `bench/apiserver`: the same requests to our server and to a real one, phase by
//! phase in turn, with throughput and the servers' own CPU time per operation.
//!
//! - `load compare OURS PIDS REAL PIDS [SECONDS]`: kubeconfigs and comma-separated process ids.
//! - `load fill KUBECONFIG PIDS LABEL COUNT`: creates objects and prints what they weigh in memory.
//! - `load inside DIR [SECONDS]`: creates through the in-process client, relaxed.
//! - `load open DIR COUNT`: how long a database of that many objects takes to open.
//! - `load phase KUBECONFIG PIDS PHASE [SECONDS]`: one phase on one server, for a profiler.
//! - `load serve --data DIR --port PORT`: the server as `warp apiserver` runs it, without the rest of
//!   the binary.
//!
//! Connections are HTTP/2, as client-go's; `LOAD_HTTP=1` takes HTTP/1.1, one connection for each watch, as
//! kube-rs does. CPU time is read from `/proc/PID/stat` before and after each phase. Bodies are prepared once and
//! answers are read but not decoded, so that the client takes as little of the machine as it can.
#![allow(clippy::print_stdout, reason = "the figures are this program's output")]

mod multiplexed;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use warp_apiserver::store::{Draft, Durability, Store, StoreOptions};
use warp_apiserver::{ApiServer, Options};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Objects of the list that is measured.
const LISTED: u64 = 10_000;

/// A number in `/proc/PID/FILE`, added up over the processes.
fn over(pids: &[u32], file: &str, read: impl Fn(&str) -> Option<f64>) -> f64 {
    pids.iter()
        .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok())
        .filter_map(|text| read(&text))
        .sum()
}

/// CPU seconds used so far.
fn cpu(pids: &[u32]) -> f64 {
    // The kernel counts in hundredths of a second on every platform we measure on.
    const TICKS: f64 = 100.0;
    over(pids, "stat", |stat| {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let user: f64 = fields.get(11)?.parse().ok()?;
        let system: f64 = fields.get(12)?.parse().ok()?;
        Some((user + system) / TICKS)
    })
}

fn memory_mib(pids: &[u32]) -> f64 {
    let kib = over(pids, "status", |status| {
        let line = status.lines().find(|line| line.starts_with("VmRSS"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    });
    kib / 1024.0
}

fn body(name: &str) -> Vec<u8> {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"app": "load"}},
        "data": {"payload": "x".repeat(700)},
    })
    .to_string()
    .into_bytes()
}

/// One server under load.
#[derive(Clone)]
struct Target {
    client: Client,
    /// How to reach it again; nothing for the server in this process.
    config: Option<Config>,
    pids: Vec<u32>,
    /// Path of the config maps of the namespace everything happens in.
    maps: String,
}

impl Target {
    async fn connect(kubeconfig: &str, pids: &str, space: &str) -> Result<Self, Failure> {
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let pids = pids.split(',').filter_map(|pid| pid.parse().ok()).collect();
        let mut target = Self::in_space(open_client(&config, 1).await?, pids, space).await?;
        target.config = Some(config);
        Ok(target)
    }

    /// The same server over connections for so many watches.
    async fn for_watches(&self, watches: usize) -> Result<Self, Failure> {
        let mut target = self.clone();
        if let Some(config) = &self.config {
            target.client = open_client(config, watches).await?;
        }
        Ok(target)
    }

    async fn in_space(client: Client, pids: Vec<u32>, space: &str) -> Result<Self, Failure> {
        let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}});
        let target = Self {
            client,
            config: None,
            pids,
            maps: format!("/api/v1/namespaces/{space}/configmaps"),
        };
        target
            .send("POST", "/api/v1/namespaces", made.to_string().into_bytes())
            .await?;
        Ok(target)
    }

    async fn open(&self, path: &str, sent: (&str, Vec<u8>)) -> Result<kube::client::Body, Failure> {
        let request = Request::builder()
            .method(sent.0)
            .uri(path)
            .header("content-type", "application/json")
            .header("accept", "application/json")
            .body(Body::from(sent.1))?;
        let response = self.client.send(request).await?;
        if response.status().is_success() {
            return Ok(response.into_body());
        }
        let code = response.status();
        let text = response.into_body().collect().await?.to_bytes();
        Err(format!("{path}: {code} {}", String::from_utf8_lossy(&text)).into())
    }

    /// Sends a request and reads the whole answer; returns its size.
    async fn send(&self, method: &str, path: &str, body: Vec<u8>) -> Result<usize, Failure> {
        let mut stream = self.open(path, (method, body)).await?.into_data_stream();
        let mut size = 0;
        while let Some(chunk) = stream.next().await {
            size += chunk?.len();
        }
        Ok(size)
    }

    async fn create(&self, name: &str) -> Result<(), Failure> {
        self.send("POST", &self.maps, body(name)).await.map(drop)
    }
}

async fn open_client(config: &Config, watches: usize) -> Result<Client, Failure> {
    if std::env::var("LOAD_HTTP").is_ok_and(|version| version == "1") {
        return Ok(Client::try_from(config.clone())?);
    }
    multiplexed::client(config, watches).await
}

/// Runs `one` in `tasks` loops until `done` says so; returns how often.
async fn repeat<F, R>(tasks: u64, until: Until, one: F) -> Result<u64, Failure>
where
    F: Fn(u64) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<(), Failure>> + Send,
{
    let next = Arc::new(AtomicU64::new(0));
    let loops: Vec<_> = (0..tasks)
        .map(|_| {
            let (next, one) = (Arc::clone(&next), one.clone());
            tokio::spawn(async move {
                let mut made = 0_u64;
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if until.over(number) {
                        return Ok::<u64, Failure>(made);
                    }
                    one(number).await?;
                    made += 1;
                }
            })
        })
        .collect();
    let mut total = 0;
    for task in loops {
        total += task.await??;
    }
    Ok(total)
}

#[derive(Clone, Copy)]
enum Until {
    Time(Instant),
    Count(u64),
}

impl Until {
    fn over(self, number: u64) -> bool {
        match self {
            Self::Time(end) => Instant::now() >= end,
            Self::Count(count) => number >= count,
        }
    }
}

async fn creates(target: &Target, prefix: &'static str, writers: u64, until: Until) -> Counted {
    let own = target.clone();
    repeat(writers, until, move |number| {
        let own = own.clone();
        async move { own.create(&format!("{prefix}-{number}")).await }
    })
    .await
}

async fn gets(target: &Target, until: Until) -> Counted {
    let own = target.clone();
    repeat(16, until, move |_| {
        let own = own.clone();
        async move {
            let path = format!("{}/one-0", own.maps);
            own.send("GET", &path, Vec::new()).await.map(drop)
        }
    })
    .await
}

/// Lists of exactly [`LISTED`] objects, one after the other.
async fn lists(target: &Target, until: Until) -> Counted {
    let own = target.clone();
    repeat(1, until, move |_| {
        let own = own.clone();
        async move {
            let path = format!("{}?labelSelector=app", own.maps);
            own.send("GET", &path, Vec::new()).await.map(drop)
        }
    })
    .await
}

/// Events delivered to `watchers` while 16 writers create `writes` objects. Opening the watches is not
/// part of what is measured.
async fn fan_out(
    target: &Target,
    prefix: &'static str,
    watchers: usize,
    writes: u64,
) -> Result<Rates, Failure> {
    let target = &target.for_watches(watchers).await?;
    let opened = (0..watchers).map(|_| async {
        let path = format!("{}?watch=true&timeoutSeconds=300&sendInitialEvents=false&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan", target.maps);
        Ok::<_, Failure>(target.open(&path, ("GET", Vec::new())).await?.into_data_stream())
    });
    let streams: Vec<Result<_, Failure>> = futures::stream::iter(opened)
        .buffer_unordered(32)
        .collect()
        .await;
    let mut tasks = Vec::new();
    for stream in streams {
        let mut stream = stream?;
        tasks.push(tokio::spawn(async move {
            let mut seen = 0_u64;
            while seen < writes {
                let Some(chunk) = stream.next().await else {
                    return Err(Failure::from("a watch ended early"));
                };
                let events = chunk?.split(|byte| *byte == b'\n').count() - 1;
                seen += u64::try_from(events)?;
            }
            Ok(seen)
        }));
    }
    let phase = Phase::begin(target);
    creates(target, prefix, 16, Until::Count(writes)).await?;
    let mut delivered = 0;
    for task in tasks {
        delivered += task.await??;
    }
    Ok(phase.rates(target, delivered))
}

type Counted = Result<u64, Failure>;
/// Operations a second and CPU microseconds each.
type Rates = (f64, f64);

/// What was used when a phase began.
struct Phase {
    started: Instant,
    cpu: f64,
}

impl Phase {
    fn begin(target: &Target) -> Self {
        Self {
            started: Instant::now(),
            cpu: cpu(&target.pids),
        }
    }

    fn rates(&self, target: &Target, operations: u64) -> Rates {
        let count = operations.max(1) as f64;
        (
            count / self.started.elapsed().as_secs_f64(),
            (cpu(&target.pids) - self.cpu) / count * 1e6,
        )
    }
}

async fn timed(target: &Target, work: impl Future<Output = Counted>) -> Result<Rates, Failure> {
    let phase = Phase::begin(target);
    let operations = work.await?;
    Ok(phase.rates(target, operations))
}

async fn measure(target: &Target, phase: &str, length: Duration) -> Result<Rates, Failure> {
    let until = Until::Time(Instant::now() + length);
    match phase {
        "create, 1 writer" => timed(target, creates(target, "one", 1, until)).await,
        "create, 64 writers" => timed(target, creates(target, "many", 64, until)).await,
        "get" => timed(target, gets(target, until)).await,
        "list of 10k" => timed(target, lists(target, until)).await,
        "event to 100 watchers" => fan_out(target, "hundred", 100, 1500).await,
        _ => fan_out(target, "thousand", 1000, 300).await,
    }
}

const PHASES: [&str; 6] = [
    "create, 1 writer",
    "create, 64 writers",
    "get",
    "list of 10k",
    "event to 100 watchers",
    "event to 1000 watchers",
];

async fn compare(arguments: &[String]) -> Result<(), Failure> {
    let [ours, our_pids, real, real_pids, rest @ ..] = arguments else {
        return Err("usage: load compare OURS PIDS REAL PIDS [SECONDS]".into());
    };
    let length = seconds(rest.first());
    let ours = Target::connect(ours, our_pids, "load").await?;
    let real = Target::connect(real, real_pids, "load").await?;
    println!(
        "idle memory, MiB: ours {:.0}, real {:.0}",
        memory_mib(&ours.pids),
        memory_mib(&real.pids)
    );
    println!("| phase | ours /s | real /s | ratio | ours CPU µs | real CPU µs | ratio |");
    println!("|---|---|---|---|---|---|---|");
    for phase in PHASES {
        let mut figures = Vec::new();
        for target in [&ours, &real] {
            let mut target = target.clone();
            if phase == "list of 10k" {
                let pids = target.pids.clone();
                let client = target.client.clone();
                target = Target::in_space(client, pids, "ten-thousand").await?;
                creates(&target, "listed", 64, Until::Count(LISTED)).await?;
            }
            figures.push(measure(&target, phase, length).await?);
        }
        let [(our_rate, our_cpu), (real_rate, real_cpu)] = figures[..] else {
            return Err("two servers were measured".into());
        };
        println!(
            "| {phase} | {our_rate:.0} | {real_rate:.0} | {:.2}× | {our_cpu:.1} | {real_cpu:.1} | 1/{:.1} |",
            our_rate / real_rate,
            real_cpu / our_cpu
        );
    }
    Ok(())
}

async fn phase(arguments: &[String]) -> Result<(), Failure> {
    let [kubeconfig, pids, phase, rest @ ..] = arguments else {
        return Err("usage: load phase KUBECONFIG PIDS PHASE [SECONDS]".into());
    };
    let phase = PHASES
        .into_iter()
        .find(|known| known == phase)
        .ok_or_else(|| format!("the phases are {}", PHASES.join("; ")))?;
    let target = Target::connect(kubeconfig, pids, "phase").await?;
    if phase == "get" {
        target.create("one-0").await?;
    }
    let (rate, used) = measure(&target, phase, seconds(rest.first())).await?;
    println!("{phase}: {rate:.0} /s, {used:.2} µs of CPU each");
    Ok(())
}

async fn fill(arguments: &[String]) -> Result<(), Failure> {
    let [kubeconfig, pids, label, count] = arguments else {
        return Err("usage: load fill KUBECONFIG PIDS LABEL COUNT".into());
    };
    let count: u64 = count.parse()?;
    let target = Target::connect(kubeconfig, pids, "filled").await?;
    let before = memory_mib(&target.pids);
    creates(&target, "filled", 64, Until::Count(count)).await?;
    let after = memory_mib(&target.pids);
    let bytes = target.send("GET", &target.maps, Vec::new()).await?;
    let json_mib = bytes as f64 / f64::from(1 << 20);
    println!(
        "{label}: {count} objects are {json_mib:.0} MiB of JSON; memory {before:.0} MiB before, {after:.0} MiB after: {:.2}× the JSON",
        (after - before) / json_mib
    );
    Ok(())
}

async fn inside(directory: &str, length: Duration) -> Result<(), Failure> {
    let mut options = Options::in_directory(Path::new(directory), &[])?;
    options.store.durability = Durability::Relaxed;
    let server = ApiServer::start(options).await?;
    let own = vec![std::process::id()];
    let target = Target::in_space(server.client("default"), own, "load").await?;
    let until = Until::Time(Instant::now() + length);
    let (rate, used) = timed(&target, creates(&target, "inside", 64, until)).await?;
    println!("in-process relaxed creates: {rate:.0} /s, {used:.0} µs of CPU each, client included");
    server.shutdown().await;
    Ok(())
}

async fn open(directory: &str, count: u64) -> Result<(), Failure> {
    let options = StoreOptions {
        path: Some(Path::new(directory).join("state.redb")),
        durability: Durability::Relaxed,
        ring_events: 0,
    };
    let store = Store::open(&options)?;
    let table = store.table("configmaps");
    for number in 0..count {
        let name = format!("object-{number}");
        let key = format!("default/{name}");
        let mut object: Value = serde_json::from_slice(&body(&name))?;
        object["metadata"]["uid"] = format!("00000000-0000-4000-8000-{number:012}").into();
        store
            .create(&table, Draft::new(&key, &object, &[], 0))
            .await?;
    }
    store.close().await;
    drop((table, store));
    let started = Instant::now();
    let store = Store::open(&options)?;
    let took = started.elapsed().as_millis();
    println!(
        "{} objects opened in {took} ms",
        store.table("configmaps").len()
    );
    store.close().await;
    Ok(())
}

async fn serve(arguments: &[String]) -> Result<(), Failure> {
    let [_, directory, _, port] = arguments else {
        return Err("usage: load serve --data DIR --port PORT".into());
    };
    let directory = Path::new(directory);
    // A program that serves says what it logs. Where nothing says so, every frame of a connection asks twice.
    tracing::subscriber::set_global_default(tracing::subscriber::NoSubscriber::default())?;
    let server = ApiServer::start(Options::in_directory(directory, &[])?).await?;
    let listener = TcpListener::bind(("127.0.0.1", port.parse()?)).await?;
    server.write_kubeconfig(&directory.join("kubeconfig"), listener.local_addr()?)?;
    server.serve(listener).await;
    Ok(())
}

fn seconds(text: Option<&String>) -> Duration {
    text.and_then(|text| text.parse().ok())
        .map_or(Duration::from_secs(5), Duration::from_secs)
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // One thread for the client: it shares two cores with the servers it measures.
    let mut builder = match arguments.first().map(String::as_str) {
        Some("serve" | "inside") => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    builder.enable_all().build()?.block_on(run(&arguments))
}

async fn run(arguments: &[String]) -> Result<(), Failure> {
    match arguments {
        [mode, rest @ ..] if mode == "serve" => serve(rest).await,
        [mode, rest @ ..] if mode == "compare" => compare(rest).await,
        [mode, rest @ ..] if mode == "fill" => fill(rest).await,
        [mode, rest @ ..] if mode == "phase" => phase(rest).await,
        [mode, directory, count] if mode == "open" => open(directory, count.parse()?).await,
        [mode, directory, rest @ ..] if mode == "inside" => {
            inside(directory, seconds(rest.first())).await
        }
        _ => Err(
            "usage: load compare | fill | inside | open | phase | serve (see the head of this file)".into(),
        ),
    }
}
