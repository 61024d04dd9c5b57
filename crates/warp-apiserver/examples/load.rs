//! The client of `bench/apiserver`: the same requests against any Kubernetes API, with throughput
//! and the server's own CPU time per operation.
//!
//! `load KUBECONFIG PID[,PID…] LABEL [SECONDS]` prints one JSON object. CPU time is read from
//! `/proc/PID/stat` of every server process before and after each phase. `load inside LABEL` runs the
//! creates against a server in this process that answers from memory.
#![allow(clippy::print_stdout, reason = "the figures are this program's output")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::config::KubeConfigOptions;
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use warp_apiserver::{ApiServer, Options};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// CPU seconds used so far by the servers.
fn cpu(pids: &[u32]) -> f64 {
    // The kernel counts in hundredths of a second on every platform we measure on.
    const TICKS: f64 = 100.0;
    pids.iter()
        .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok())
        .filter_map(|stat| {
            let rest = stat.rsplit_once(')')?.1.to_owned();
            let fields: Vec<&str> = rest.split_whitespace().collect();
            let user: f64 = fields.get(11)?.parse().ok()?;
            let system: f64 = fields.get(12)?.parse().ok()?;
            Some((user + system) / TICKS)
        })
        .sum()
}

fn memory_mib(pids: &[u32]) -> f64 {
    pids.iter()
        .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/status")).ok())
        .filter_map(|status| {
            let line = status
                .lines()
                .find(|line| line.starts_with("VmRSS"))?
                .to_owned();
            line.split_whitespace().nth(1)?.parse::<f64>().ok()
        })
        .sum::<f64>()
        / 1024.0
}

fn object(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map.metadata.labels = Some([("app".to_owned(), "load".to_owned())].into());
    map.data = Some([("payload".to_owned(), "x".repeat(700))].into());
    map
}

struct Phase {
    started: Instant,
    cpu: f64,
}

impl Phase {
    fn begin(pids: &[u32]) -> Self {
        Self {
            started: Instant::now(),
            cpu: cpu(pids),
        }
    }

    fn end(&self, pids: &[u32], operations: u64) -> Value {
        let seconds = self.started.elapsed().as_secs_f64();
        let count = operations as f64;
        json!({
            "operations": operations,
            "perSecond": (count / seconds).round(),
            "cpuMicrosPerOperation": ((cpu(pids) - self.cpu) / count.max(1.0) * 1e6).round(),
        })
    }
}

/// Creates from `writers` tasks for `length`.
async fn creates(
    api: &Api<ConfigMap>,
    prefix: &str,
    writers: u64,
    length: Duration,
) -> Result<u64, Failure> {
    let done = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + length;
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let (api, done, prefix) = (api.clone(), Arc::clone(&done), prefix.to_owned());
            tokio::spawn(async move {
                let mut round = 0_u64;
                while Instant::now() < until {
                    let name = format!("{prefix}-{writer}-{round}");
                    api.create(&PostParams::default(), &object(&name)).await?;
                    done.fetch_add(1, Ordering::Relaxed);
                    round += 1;
                }
                Ok::<(), kube::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(done.load(Ordering::Relaxed))
}

async fn gets(
    api: &Api<ConfigMap>,
    name: &str,
    readers: u64,
    length: Duration,
) -> Result<u64, Failure> {
    let done = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + length;
    let tasks: Vec<_> = (0..readers)
        .map(|_| {
            let (api, done, name) = (api.clone(), Arc::clone(&done), name.to_owned());
            tokio::spawn(async move {
                while Instant::now() < until {
                    api.get(&name).await?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<(), kube::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(done.load(Ordering::Relaxed))
}

/// Events delivered to `watchers` while `writes` objects are created.
async fn fan_out(
    api: &Api<ConfigMap>,
    prefix: &str,
    watchers: usize,
    writes: u64,
) -> Result<u64, Failure> {
    let from = api
        .list(&ListParams::default().limit(1))
        .await?
        .metadata
        .resource_version;
    let from = from.unwrap_or_default();
    let mut streams = Vec::new();
    for _ in 0..watchers {
        let settings = WatchParams::default().timeout(120);
        streams.push(Box::pin(api.watch(&settings, &from).await?));
    }
    let tasks: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            tokio::spawn(async move {
                let mut seen = 0;
                while seen < writes {
                    match stream.try_next().await? {
                        Some(WatchEvent::Added(_)) => seen += 1,
                        Some(_) => {}
                        None => break,
                    }
                }
                Ok::<u64, kube::Error>(seen)
            })
        })
        .collect();
    let made = (0..writes).map(|number| {
        let api = api.clone();
        let name = format!("{prefix}-{number}");
        async move {
            api.create(&PostParams::default(), &object(&name))
                .await
                .map(drop)
        }
    });
    futures::future::try_join_all(made).await?;
    let mut delivered = 0;
    for task in tasks {
        delivered += task.await??;
    }
    Ok(delivered)
}

async fn measure(client: Client, pids: &[u32], length: Duration) -> Result<Value, Failure> {
    let spaces: Api<Namespace> = Api::all(client.clone());
    let mut space = Namespace::default();
    space.metadata.generate_name = Some("load-".to_owned());
    let space = spaces
        .create(&PostParams::default(), &space)
        .await?
        .name_any();
    let api: Api<ConfigMap> = Api::namespaced(client, &space);
    let idle = memory_mib(pids);
    let phase = Phase::begin(pids);
    let one = phase.end(pids, creates(&api, "one", 1, length).await?);
    let phase = Phase::begin(pids);
    let many = phase.end(pids, creates(&api, "many", 64, length).await?);
    let phase = Phase::begin(pids);
    let get = phase.end(pids, gets(&api, "one-0-0", 16, length).await?);
    let phase = Phase::begin(pids);
    let listed = api.list(&ListParams::default()).await?.items.len() as u64;
    let list = phase.end(pids, listed);
    let phase = Phase::begin(pids);
    let hundred = phase.end(pids, fan_out(&api, "hundred", 100, 100).await?);
    let phase = Phase::begin(pids);
    let thousand = phase.end(pids, fan_out(&api, "thousand", 1000, 50).await?);
    let full = memory_mib(pids);
    spaces.delete(&space, &DeleteParams::default()).await?;
    Ok(json!({
        "idleMiB": idle.round(),
        "endMiB": full.round(),
        "createOneWriter": one,
        "create64Writers": many,
        "get": get,
        "listItems": list,
        "watch100": hundred,
        "watch1000": thousand,
    }))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seconds = |text: Option<&String>| {
        text.and_then(|text| text.parse().ok())
            .map_or(Duration::from_secs(5), Duration::from_secs)
    };
    let (label, figures) = match arguments.as_slice() {
        [mode, label, rest @ ..] if mode == "inside" => {
            let server = ApiServer::start(Options::ephemeral()?).await?;
            let api: Api<ConfigMap> = Api::default_namespaced(server.client("default"));
            let phase = Phase::begin(&[std::process::id()]);
            let made = creates(&api, "inside", 64, seconds(rest.first())).await?;
            (
                label,
                json!({"create64Writers": phase.end(&[std::process::id()], made)}),
            )
        }
        [kubeconfig, pids, label, rest @ ..] => {
            let pids: Vec<u32> = pids.split(',').filter_map(|pid| pid.parse().ok()).collect();
            let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig)?;
            let config =
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
            (
                label,
                measure(Client::try_from(config)?, &pids, seconds(rest.first())).await?,
            )
        }
        _ => {
            return Err(
                "usage: load KUBECONFIG PID[,PID] LABEL [SECONDS] | load inside LABEL [SECONDS]"
                    .into(),
            );
        }
    };
    println!("{}", json!({"server": label, "figures": figures}));
    Ok(())
}
