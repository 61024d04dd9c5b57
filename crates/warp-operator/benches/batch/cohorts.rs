//! Kueue's own baseline: five cohorts of six queues, 500 workloads each, with its sizes, run times, priorities and intervals
//! of arrival, and as in its runner neither Jobs nor pods. The scheduler is the operator's; what its decisions become here is
//! one status write, and another when the run time is over. The raw client makes the same writes without deciding anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::TryStreamExt;
use jiff::Timestamp;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use warp_api::GPUWorkload;
use warp_operator::Settings;
use warp_operator::rehearsal::Rehearsal;
use warp_runtime::cache::Key;
use warp_testkit::Cluster;

use super::rig::{mib, number, prepared, resident, row};
use super::{LIMIT, timed};

const COHORTS: usize = 5;
const QUEUES: usize = 6;
const NOMINAL: i64 = 20;
const BORROWED: i64 = 100;
const OF_COHORT: i64 = 6 * NOMINAL;
/// Quotas are the only limit, as in Kueue's runner: there is always a node.
const NODES: usize = 70;
const GPUS: i64 = 10;
/// How long what wakes the scheduler is gathered, as in the operator.
const GATHER: Duration = Duration::from_millis(20);

/// One of Kueue's three classes of work.
struct Class {
    name: &'static str,
    count: usize,
    every: Duration,
    pods: i64,
    gpus: i64,
    runs: Duration,
    priority: &'static str,
}

const CLASSES: [Class; 3] = [
    Class {
        name: "small",
        count: 350,
        every: Duration::from_millis(100),
        pods: 1,
        gpus: 1,
        runs: Duration::from_millis(200),
        priority: "low",
    },
    Class {
        name: "medium",
        count: 100,
        every: Duration::from_millis(500),
        pods: 1,
        gpus: 5,
        runs: Duration::from_millis(500),
        priority: "normal",
    },
    Class {
        name: "large",
        count: 50,
        every: Duration::from_millis(1200),
        pods: 2,
        gpus: 10,
        runs: Duration::from_secs(1),
        priority: "high",
    },
];

fn class_of(name: &str) -> Option<&'static Class> {
    let class = name.split('-').next();
    CLASSES.iter().find(|one| Some(one.name) == class)
}

fn queues() -> impl Iterator<Item = (usize, String)> {
    let queue =
        |cohort: usize| move |queue: usize| (cohort, format!("cohort-{cohort}-queue-{queue}"));
    (0..COHORTS).flat_map(move |cohort| (0..QUEUES).map(queue(cohort)))
}

/// Makes every object of one queue and class in its time.
async fn arrive(client: Client, queue: String, class: &'static Class, share: usize) -> Result<()> {
    let workloads = Api::<GPUWorkload>::namespaced(client, &queue);
    let mut turn = tokio::time::interval(class.every);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    for place in 0..class.count * share / 100 {
        turn.tick().await;
        let made = serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
            "metadata": {"name": format!("{}-{place:03}", class.name)},
            "spec": {
                "modelName": "bench", "gpuCount": class.gpus, "image": "image:1", "priority": class.priority,
                "replicas": if class.pods > 1 { json!(class.pods) } else { Value::Null },
            },
        }))?;
        workloads.create(&PostParams::default(), &made).await?;
    }
    Ok(())
}

fn arrivals(client: &Client, share: usize) -> JoinSet<Result<()>> {
    let mut all = JoinSet::new();
    for (_, queue) in queues() {
        for class in &CLASSES {
            all.spawn(arrive(client.clone(), queue.clone(), class, share));
        }
    }
    all
}

fn expected(share: usize) -> usize {
    let each: usize = CLASSES.iter().map(|class| class.count * share / 100).sum();
    COHORTS * QUEUES * each
}

async fn status(client: &Client, queue: &str, name: &str, phase: &str) -> Result<GPUWorkload> {
    let workloads = Api::<GPUWorkload>::namespaced(client.clone(), queue);
    let body = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "status": {"phase": phase, "assignedNode": "node-00", "jobName": name, "retryCount": 0},
    });
    let manager = PatchParams::apply("bench").force();
    let patch = Patch::Apply(&body);
    Ok(workloads.patch_status(name, &manager, &patch).await?)
}

/// Namespaces for the queues, without which nothing can be made.
async fn namespaces(client: &Client) -> Result<()> {
    let all = Api::<k8s_openapi::api::core::v1::Namespace>::all(client.clone());
    for (_, name) in queues() {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let (manager, patch) = (PatchParams::apply("bench"), Patch::Apply(&body));
        all.patch(&name, &manager, &patch).await?;
    }
    Ok(())
}

/// The same arrivals and writes; every workload is placed as soon as it is there.
async fn raw(client: &Client) -> Result<Duration> {
    let share = number("WARP_BENCH_SHARE", 100)?;
    namespaces(client).await?;
    let mut seen = Watched::follow(client).await?;
    let began = Instant::now();
    let mut arriving = arrivals(client, share);
    let (mut running, mut left) = (JoinSet::new(), expected(share));
    while left > 0 {
        let found = seen.next().await?;
        if found.status.is_some() {
            continue;
        }
        left -= 1;
        let client = client.clone();
        running.spawn(async move {
            let (queue, name) = (found.namespace().unwrap_or_default(), found.name_any());
            status(&client, &queue, &name, "Running").await?;
            let class = class_of(&name).context("a class")?;
            tokio::time::sleep(class.runs).await;
            status(&client, &queue, &name, "Succeeded").await?;
            anyhow::Ok(())
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    while let Some(done) = arriving.join_next().await {
        done??;
    }
    Ok(began.elapsed())
}

/// Every state of every workload, in the order of their revisions.
struct Watched {
    states: mpsc::Receiver<Result<GPUWorkload>>,
    reader: tokio::task::JoinHandle<()>,
}

impl Watched {
    async fn follow(client: &Client) -> Result<Self> {
        let all = Api::<GPUWorkload>::all(client.clone());
        let from = all.list_metadata(&ListParams::default()).await?;
        let mut from = from.metadata.resource_version.unwrap_or_default();
        let (told, states) = mpsc::channel(1024);
        let reader = tokio::spawn(async move {
            loop {
                let parameters = WatchParams::default().timeout(290);
                let watch = match all.watch(&parameters, &from).await {
                    Ok(watch) => watch,
                    Err(error) => return drop(told.send(Err(error.into())).await),
                };
                let mut watch = std::pin::pin!(watch);
                while let Ok(Some(event)) = watch.try_next().await {
                    if let WatchEvent::Added(found) | WatchEvent::Modified(found) = event {
                        from = found.resource_version().unwrap_or_default();
                        if told.send(Ok(found)).await.is_err() {
                            return;
                        }
                    }
                }
            }
        });
        Ok(Self { states, reader })
    }

    async fn next(&mut self) -> Result<GPUWorkload> {
        let next = tokio::time::timeout(LIMIT, self.states.recv()).await;
        next.context("nothing happens any more")?
            .context("the watch ended")?
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// What is used at every revision: no queue may have more than its own and what it may borrow, no cohort more than all have.
#[derive(Default)]
struct History {
    used: BTreeMap<String, i64>,
    most: i64,
}

impl History {
    fn follow(&mut self, queue: &str, change: i64) -> Result<()> {
        let own = self.used.entry(queue.to_owned()).or_default();
        *own += change;
        anyhow::ensure!(*own <= NOMINAL + BORROWED, "{queue} uses {own}");
        let cohort = queue.split("-queue-").next().unwrap_or_default();
        let all = self
            .used
            .iter()
            .filter(|(name, _)| name.starts_with(cohort));
        let all: i64 = all.map(|(_, used)| used).sum();
        anyhow::ensure!(all <= OF_COHORT, "{cohort} uses {all}");
        self.most = self.most.max(all);
        Ok(())
    }
}

async fn ours(client: &Client) -> Result<Duration> {
    let share = number("WARP_BENCH_SHARE", 100)?;
    namespaces(client).await?;
    let scheduler = Arc::new(Rehearsal::new(Settings::default()).unchecked());
    furnish(&scheduler)?;
    let mut seen = Watched::follow(client).await?;
    let began = Instant::now();
    let mut arriving = arrivals(client, share);
    let mut run = Run {
        client: client.clone(),
        scheduler,
        running: JoinSet::new(),
        came: BTreeMap::new(),
        waits: BTreeMap::new(),
        history: History::default(),
        left: expected(share),
    };
    let mut due: Option<tokio::time::Instant> = None;
    while run.left > 0 {
        let pause = due.unwrap_or_else(|| tokio::time::Instant::now() + LIMIT);
        tokio::select! {
            found = seen.next() => {
                run.saw(found?)?;
                due.get_or_insert_with(|| tokio::time::Instant::now() + GATHER);
            }
            Some(ended) = run.running.join_next(), if !run.running.is_empty() => ended??,
            () = tokio::time::sleep_until(pause) => {
                due = None;
                run.look()?;
            }
        }
    }
    while let Some(done) = arriving.join_next().await {
        done??;
    }
    let took = began.elapsed();
    run.tell(share)?;
    Ok(took)
}

/// Nodes that never are too few, and a tenant for every queue below one for its cohort.
fn furnish(scheduler: &Rehearsal) -> Result<()> {
    let nodes = (0..NODES).map(|number| {
        let name = format!("node-{number:02}");
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": {
                "kubernetes.io/hostname": name, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
                "nvidia.com/gpu.memory": "81559",
            }},
            "status": {
                "allocatable": {"cpu": "1000", "memory": "4096Gi", "pods": "1000", "nvidia.com/gpu": GPUS.to_string()},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }))
    });
    let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
    scheduler.nodes().replace(nodes, Some("1"));
    let (mut tenants, mut namespaces) = (Vec::new(), Vec::new());
    let tenant = |name: &str, spec: Value| {
        let meta = json!({"name": name, "uid": name, "resourceVersion": "1", "generation": 1});
        serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": meta, "spec": spec,
        }))
    };
    for cohort in 0..COHORTS {
        let spec = json!({"namespaces": {"names": []}});
        tenants.push(tenant(&format!("cohort-{cohort}"), spec)?);
    }
    for (cohort, queue) in queues() {
        let spec = json!({
            "namespaces": {"names": [queue]}, "parent": format!("cohort-{cohort}"),
            "quota": [{"gpu": "nvidia", "nominal": NOMINAL, "borrowLimit": BORROWED}],
        });
        tenants.push(tenant(&queue, spec)?);
        let meta = json!({"name": queue, "uid": queue, "resourceVersion": "1"});
        namespaces.push(serde_json::from_value(json!({"metadata": meta}))?);
    }
    scheduler.namespaces().replace(namespaces, Some("1"));
    scheduler.tenants().replace(tenants, Some("1"));
    Ok(())
}

struct Run {
    client: Client,
    scheduler: Arc<Rehearsal>,
    running: JoinSet<Result<()>>,
    /// When a workload was first seen, and how long it waited for its place, by class.
    came: BTreeMap<(String, String), Instant>,
    waits: BTreeMap<&'static str, Vec<Duration>>,
    history: History,
    left: usize,
}

impl Run {
    /// A state of a workload that the API server shows.
    fn saw(&mut self, found: GPUWorkload) -> Result<()> {
        let (queue, name) = (found.namespace().unwrap_or_default(), found.name_any());
        let class = class_of(&name).context("a class")?;
        let status = serde_json::to_value(found.status.as_ref())?;
        match status["phase"].as_str() {
            Some("Running") => {
                self.history.follow(&queue, class.pods * class.gpus)?;
                let came = self.came.remove(&(queue, name)).context("it came first")?;
                self.waits
                    .entry(class.name)
                    .or_default()
                    .push(came.elapsed());
            }
            Some("Succeeded") => {
                self.history.follow(&queue, -class.pods * class.gpus)?;
                self.left -= 1;
                let uid = found.uid().unwrap_or_default();
                self.scheduler.workloads().put(found);
                self.let_go(&queue, &name, &uid, class)?;
            }
            _ => {
                self.came.insert((queue, name), Instant::now());
                self.scheduler.workloads().put(found);
            }
        }
        Ok(())
    }

    /// One pass; what it places holds its room from here on.
    fn look(&mut self) -> Result<()> {
        let looked = self.scheduler.look(Timestamp::now());
        for (queue, name, nodes) in looked.placed {
            let class = class_of(&name).context("a class")?;
            self.hold(&queue, &name, class, &nodes)?;
            let client = self.client.clone();
            self.running.spawn(async move {
                status(&client, &queue, &name, "Running").await?;
                tokio::time::sleep(class.runs).await;
                status(&client, &queue, &name, "Succeeded").await?;
                Ok(())
            });
        }
        Ok(())
    }

    /// Puts what the operator would have made before the scheduler's eyes, and nobody else's.
    fn hold(&mut self, queue: &str, name: &str, class: &Class, nodes: &[String]) -> Result<()> {
        let key = Key::new(queue, name);
        let workloads = self.scheduler.workloads();
        let mut placed = (*workloads.get(&key).context("it waits")?).clone();
        let mut status =
            json!({"phase": "Running", "jobName": name, "assignedNode": nodes.first()});
        if class.pods > 1 {
            let member =
                |(rank, node): (usize, &String)| json!({"name": node, "ranks": rank.to_string()});
            let members = nodes.iter().enumerate().map(member);
            status["assignedNodes"] = members.collect();
        }
        placed.status = Some(serde_json::from_value(status)?);
        let uid = placed.uid().unwrap_or_default();
        workloads.put(placed);
        let [job, pods @ ..] = &children(queue, name, &uid, class, nodes)[..] else {
            anyhow::bail!("a Job and its pods");
        };
        self.scheduler
            .jobs()
            .put(serde_json::from_value(job.clone())?);
        for pod in pods {
            self.scheduler
                .pods()
                .put(serde_json::from_value(pod.clone())?);
        }
        Ok(())
    }

    fn let_go(&mut self, queue: &str, name: &str, uid: &str, class: &Class) -> Result<()> {
        let nodes = vec![String::new(); usize::try_from(class.pods)?];
        let [job, pods @ ..] = &children(queue, name, uid, class, &nodes)[..] else {
            anyhow::bail!("a Job and its pods");
        };
        for pod in pods {
            self.scheduler
                .pods()
                .remove(&serde_json::from_value(pod.clone())?);
        }
        self.scheduler
            .jobs()
            .remove(&serde_json::from_value(job.clone())?);
        Ok(())
    }

    fn tell(mut self, share: usize) -> Result<()> {
        for class in &CLASSES {
            let waits = self.waits.remove(class.name).unwrap_or_default();
            anyhow::ensure!(!waits.is_empty(), "some are {}", class.name);
            let mean = waits.iter().sum::<Duration>().as_secs_f64() / waits.len() as f64;
            let figure = format!("Kueue's baseline: {} waits, mean", class.name);
            row(&figure, &format!("{mean:.1} s"), "–", f64::NAN);
        }
        let most = format!("{} of {}", self.history.most, OF_COHORT);
        row(
            "Kueue's baseline: most a cohort used at any revision",
            &most,
            "–",
            f64::NAN,
        );
        let memory = mib(resident("self")?);
        let figure = format!("Kueue's baseline: resident, with the generator ({share} %)");
        row(&figure, &memory, "–", f64::NAN);
        Ok(())
    }
}

/// The Job and the pods of one that runs.
fn children(queue: &str, name: &str, uid: &str, class: &Class, nodes: &[String]) -> Vec<Value> {
    let labels = json!({
        "gpu.warp.dev/workload": name, "gpu.warp.dev/workload-uid": uid, "gpu.warp.dev/attempt": "0",
        "gpu.warp.dev/controller": "warp",
    });
    let job = json!({
        "metadata": {
            "name": name, "namespace": queue, "uid": format!("{uid}-job"), "resourceVersion": "1", "labels": labels,
            "ownerReferences": [{
                "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "name": name, "uid": uid, "controller": true,
            }],
        },
        "spec": {
            "parallelism": class.pods,
            "template": {"metadata": {"labels": labels}, "spec": {"containers": []}},
        },
    });
    let pods = nodes.iter().enumerate().map(|(at, node)| {
        json!({
            "metadata": {
                "name": format!("{name}-{at}"), "namespace": queue, "uid": format!("{uid}-{at}"), "resourceVersion": "1",
                "labels": labels,
                "ownerReferences": [{
                    "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": format!("{uid}-job"), "controller": true,
                }],
            },
            "spec": {"nodeName": node, "containers": [
                {"name": "main", "resources": {"limits": {"nvidia.com/gpu": class.gpus.to_string()}}},
            ]},
            "status": {"phase": "Running"},
        })
    });
    std::iter::once(job).chain(pods).collect()
}

/// The whole baseline, both sides.
pub(crate) async fn compared() -> Result<()> {
    let ours = {
        let cluster = Cluster::real().api_server_only().start().await?;
        ours(&prepared(&cluster).await?).await?
    };
    let cluster = Cluster::real().api_server_only().start().await?;
    let theirs = raw(&prepared(&cluster).await?).await?;
    timed("Kueue's baseline: all finished", ours, theirs);
    Ok(())
}
