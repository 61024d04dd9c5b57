//! Soak: random load and random faults for as long as told, on `warp up` and on a real control plane.
//!
//! Users submit, change, suspend, resume and delete workloads that succeed, fail and hang; meanwhile
//! the operator (or the whole engine) is killed and nodes fall silent. At every moment no node holds
//! more GPUs than it has and no workload runs twice on nodes that answer; in the end nothing is left,
//! and after a long soak memory is where it was.
//!
//! `WARP_SOAK_SECONDS` says how long (`make soak`: half an hour each); `WARP_SOAK_SEED` repeats a run.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod judge;
mod load;

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};
use warp_core::random::Random;
use warp_testkit::{Cluster, NodeShape, Process, Signal, until};

use judge::Judge;
use load::Load;

/// How long each of the two lasts in `make test`.
const SHORT: u64 = 60;
/// Shorter than this, what memory does says nothing about leaks.
const LONG: Duration = Duration::from_mins(10);
/// Starting and ending take as long as a busy machine needs.
const PATIENCE: Duration = Duration::from_mins(5);
/// Faults in the troubled half, in a short soak; a long one has one every eight seconds.
const TROUBLES: u32 = 8;
const TROUBLE: Duration = Duration::from_secs(8);

fn length() -> Duration {
    Duration::from_secs(setting("WARP_SOAK_SECONDS", SHORT))
}

fn setting(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Where the soak happens: something to talk to, to trouble and to measure.
trait Place: Send + Sync {
    /// A client of the cluster as it is now.
    fn client(&self) -> Client;
    /// The process whose memory must stay flat.
    fn pid(&self) -> Option<u32>;
    /// Does something a cluster has to live with.
    fn trouble(&self, random: &mut Random) -> impl Future<Output = Result<&'static str>> + Send;
    /// Whether Events go soon enough to be waited for.
    fn forgets_events(&self) -> bool {
        false
    }
    /// Undoes whatever of it lasts.
    fn heal(&self) -> impl Future<Output = Result<()>> + Send;
    fn log(&self) -> String;
}

async fn soak(place: Arc<impl Place + 'static>, name: &str) -> Result<()> {
    let length = length();
    let seed = setting("WARP_SOAK_SEED", 7);
    let mut random = Random::new(seed);
    let started = Instant::now();
    let mut judge = Judge::default();
    let mut load = Load::new(Random::new(seed + 1));
    let mut last = Instant::now();
    let mut troubles = std::collections::BTreeMap::<&str, u32>::new();
    let pace = TROUBLE.min(length / 2 / TROUBLES);
    while started.elapsed() < length {
        let client = place.client();
        // The engine may be down at this moment; users try again.
        let _ = load.step(&client).await;
        if let Ok(wrong) = judge.look(&client).await {
            ensure!(
                wrong.is_empty(),
                "{name}, seed {seed}: {}",
                wrong.join("; ")
            );
        }
        if let Some(pid) = place.pid() {
            judge.memory(pid, started.elapsed().as_secs_f64() / length.as_secs_f64());
        }
        // The second half is quiet, so that memory can be compared within one life.
        if last.elapsed() > pace && started.elapsed() < length.mul_f64(0.5) {
            *troubles
                .entry(place.trouble(&mut random).await?)
                .or_default() += 1;
            last = Instant::now();
        }
    }
    place.heal().await?;
    let client = place.client();
    until("every workload is gone", PATIENCE, || async {
        load.finish(&client).await.or(Ok(None))
    })
    .await?;
    until("nothing is left", PATIENCE, || async {
        let left = judge::left(&client).await;
        let events = judge::events(&client).await;
        let gone = left.is_ok_and(|left| left.is_empty())
            && (!place.forgets_events() || events.is_ok_and(|events| events == 0));
        Ok(gone.then_some(()))
    })
    .await
    .with_context(|| place.log())?;
    let memory = judge.flat(length >= LONG)?;
    eprintln!(
        "soak {name}: {} s, seed {seed}, {}, {} looks, troubles {troubles:?}, {memory}, 0 violations, 0 objects left",
        length.as_secs(),
        load.figures(),
        judge.looks(),
    );
    ensure!(
        load.ended() > 0,
        "no workload ended: the soak soaked nothing"
    );
    Ok(())
}

/// `warp up` as a process, with its own nodes.
struct Engine {
    data: PathBuf,
    state: Mutex<(Option<Process>, Option<Client>)>,
    _folder: tempfile::TempDir,
}

impl Engine {
    async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data");
        let fleet = "pools:\n- {name: steady, count: 4, gpu: H100-80GB, gpus: 8}\n- {name: flaky, count: 2, gpu: H100-80GB, gpus: 8}\n";
        std::fs::write(folder.path().join("fleet.yaml"), fleet)?;
        let engine = Self {
            data,
            state: Mutex::new((None, None)),
            _folder: folder,
        };
        engine.begin().await?;
        Ok(engine)
    }

    async fn begin(&self) -> Result<()> {
        let folder = self.data.parent().context("a folder")?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_warp"));
        command
            .args(["up", "--port", "0", "--data"])
            .arg(&self.data)
            // Short, so that as many Events go as come long before memory is compared.
            .arg(format!("--event-ttl={}s", length().as_secs() / 10))
            .arg("--nodes")
            .arg(folder.join("fleet.yaml"));
        let process = Process::start("warp up", &command, &folder.join("output"))?;
        let own = format!("\"pid\": {}", process.pid());
        let note = self.data.join("up.json");
        until("warp to be up", PATIENCE, async || {
            let text = std::fs::read_to_string(&note).unwrap_or_default();
            Ok(text.contains(&own).then_some(()))
        })
        .await?;
        let kubeconfig = Kubeconfig::read_from(self.data.join("kubeconfig"))?;
        let options = KubeConfigOptions::default();
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        config.default_retry = false;
        *self.state.lock().unwrap() = (Some(process), Some(Client::try_from(config)?));
        Ok(())
    }
}

impl Place for Engine {
    fn client(&self) -> Client {
        self.state
            .lock()
            .unwrap()
            .1
            .clone()
            .expect("an engine that was started")
    }

    fn pid(&self) -> Option<u32> {
        self.state.lock().unwrap().0.as_ref().map(Process::pid)
    }

    async fn trouble(&self, random: &mut Random) -> Result<&'static str> {
        match random.below(3) {
            0 => {
                let process = self.state.lock().unwrap().0.take();
                if let Some(mut process) = process {
                    process.signal(Signal::Kill)?;
                    process.wait(PATIENCE).await?;
                }
                self.begin().await?;
                Ok("engine killed")
            }
            1 => {
                flaky(&self.client(), &json!("true")).await?;
                Ok("nodes lost")
            }
            _ => {
                flaky(&self.client(), &Value::Null).await?;
                Ok("nodes back")
            }
        }
    }

    fn forgets_events(&self) -> bool {
        true
    }

    async fn heal(&self) -> Result<()> {
        flaky(&self.client(), &Value::Null).await
    }

    fn log(&self) -> String {
        tail(&self.data.join("warp.log"))
    }
}

/// Makes the flaky nodes of a simulated fleet fall silent or come back.
async fn flaky(client: &Client, lost: &Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    for node in nodes.list(&ListParams::default()).await? {
        if node.name_any().starts_with("flaky") {
            let patch = json!({"metadata": {"annotations": {"sim.gpu.warp.dev/node-lost": lost}}});
            nodes
                .patch(
                    &node.name_any(),
                    &PatchParams::default(),
                    &Patch::Merge(patch),
                )
                .await?;
        }
    }
    Ok(())
}

fn tail(path: &std::path::Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// A real control plane with two operators, one of which leads.
struct ControlPlane {
    cluster: Cluster,
    client: Client,
    operators: Mutex<Vec<Process>>,
    started: std::sync::atomic::AtomicUsize,
}

impl ControlPlane {
    async fn start() -> Result<Self> {
        let cluster = Cluster::real()
            .quick_node_loss()
            .nodes(NodeShape::h100(8).named("steady"), 4)
            .nodes(NodeShape::h100(8).named("flaky").in_group("flaky"), 2)
            .start()
            .await?;
        let print = Command::new(env!("CARGO_BIN_EXE_warp"))
            .args(["install", "--print"])
            .output()?;
        let manifests = String::from_utf8(print.stdout)?;
        cluster
            .kubectl()
            .run_with(&["apply", "-f", "-"], &manifests)
            .await?;
        let client = cluster.client().await?;
        let place = Self {
            cluster,
            client,
            operators: Mutex::new(Vec::new()),
            started: 0.into(),
        };
        place.operator().await?;
        place.operator().await?;
        until("the kind is served", PATIENCE, || async {
            Ok(judge::left(&place.client).await.ok())
        })
        .await?;
        Ok(place)
    }

    async fn operator(&self) -> Result<()> {
        let kubeconfig = self
            .cluster
            .kubeconfig_as("warp-system", "warp-operator")
            .await?;
        let number = self
            .started
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut command = Command::new(env!("CARGO_BIN_EXE_warp"));
        command
            .args([
                "operator",
                "--leader-elect",
                "--health-addr=127.0.0.1:0",
                "--metrics-addr=127.0.0.1:0",
            ])
            // Node loss is noticed within seconds here, so attempts on lost nodes end soon too.
            .args(["--node-loss-timeout=20s"])
            .env("KUBECONFIG", kubeconfig)
            .env("POD_NAMESPACE", "warp-system");
        let log = self.cluster.folder().join(format!("operator-{number}.log"));
        let process = Process::start("warp operator", &command, &log)?;
        self.operators.lock().unwrap().push(process);
        Ok(())
    }
}

impl Place for ControlPlane {
    fn client(&self) -> Client {
        self.client.clone()
    }

    fn pid(&self) -> Option<u32> {
        self.operators.lock().unwrap().first().map(Process::pid)
    }

    async fn trouble(&self, random: &mut Random) -> Result<&'static str> {
        match random.below(4) {
            0 | 1 => {
                let mut killed = self.operators.lock().unwrap().remove(0);
                killed.signal(Signal::Kill)?;
                killed.wait(PATIENCE).await?;
                self.operator().await?;
                Ok("operator killed")
            }
            2 => {
                self.cluster.lose("flaky");
                Ok("nodes lost")
            }
            _ => {
                self.cluster.recover("flaky")?;
                Ok("nodes back")
            }
        }
    }

    async fn heal(&self) -> Result<()> {
        self.cluster.recover("flaky")
    }

    fn log(&self) -> String {
        let number = self.started.load(std::sync::atomic::Ordering::Relaxed);
        let log = format!("operator-{}.log", number.saturating_sub(1));
        tail(&self.cluster.folder().join(log))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_under_load_and_faults_stays_right_and_small() {
    let engine = Arc::new(Engine::start().await.unwrap());
    soak(engine, "warp up").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_under_load_and_faults_stays_right_and_small() {
    let cluster = Arc::new(ControlPlane::start().await.unwrap());
    soak(cluster, "control plane").await.unwrap();
}
