//! How long the scheduler decides: `bench/operator/pass` builds this and prints the table.
//!
//! `WARP_BENCH_NODES`, `WARP_BENCH_WAITING` and `WARP_BENCH_ROUNDS` change the sizes.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use warp_operator::Settings;
use warp_operator::rehearsal::Rehearsal;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// GPUs of a node, and how those that run share them out in turn.
const GPUS: usize = 8;
const SIZES: [usize; 4] = [1, 2, 4, 8];
const TEAMS: usize = 10;
const PRIORITIES: [&str; 3] = ["low", "normal", "high"];

fn main() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let _inside = runtime.enter();
    let (nodes, waiting) = (
        number("WARP_BENCH_NODES", 1000)?,
        number("WARP_BENCH_WAITING", 10_000)?,
    );
    let rounds = number("WARP_BENCH_ROUNDS", 21)?;
    println!("{waiting} wait for {nodes} nodes of {GPUS} GPUs, all in use; medians of {rounds}");
    println!();
    println!("| what happens before a pass | quickest | median | slowest | placed | told |");
    println!("|---|---|---|---|---|---|");
    for (label, sizes) in [
        ("1 GPU each", &SIZES[..1]),
        ("1, 2, 4 or 8 GPUs", &SIZES[..]),
    ] {
        let mut fleet = Fleet::new(nodes, waiting, sizes)?;
        let first = fleet.scheduler.look(fleet.now);
        if !first.placed.is_empty() {
            return Err("the fleet is full, and somebody was placed".into());
        }
        row(
            &format!("everything is new ({label})"),
            &[first.took],
            0,
            first.told,
        );
        let mut times = Vec::new();
        for _ in 0..rounds {
            fleet.now = fleet.now.saturating_add(Duration::from_mins(1))?;
            times.push(fleet.scheduler.look(fleet.now).took);
        }
        row("nothing", &times, 0, 0);
        let (mut ended, mut came, mut placed, mut told) = (Vec::new(), Vec::new(), 0, 0);
        for round in 0..rounds {
            fleet.end(round)?;
            let look = fleet.scheduler.look(fleet.now);
            ended.push(look.took);
            told += look.told;
            for (namespace, name, nodes) in look.placed {
                placed += 1;
                fleet.starts(&namespace, &name, &nodes)?;
            }
            came.push(fleet.scheduler.look(fleet.now).took);
        }
        row("one pod ends", &ended, placed, told);
        row("the pod that takes its place has come", &came, 0, 0);
        let mut times = Vec::new();
        for round in 0..3 {
            fleet.end(rounds + round)?;
            fleet.scheduler.forget();
            times.push(fleet.scheduler.look(fleet.now).took);
        }
        row("one pod ends, and nothing is remembered", &times, 0, 0);
    }
    Ok(())
}

fn row(what: &str, times: &[Duration], placed: usize, told: usize) {
    let mut times = times.to_vec();
    times.sort_unstable();
    let milliseconds = |at: usize| times[at].as_secs_f64() * 1000.0;
    let (median, slowest) = (milliseconds(times.len() / 2), milliseconds(times.len() - 1));
    let quickest = milliseconds(0);
    println!(
        "| {what} | {quickest:.2} ms | {median:.2} ms | {slowest:.2} ms | {placed} | {told} |"
    );
}

fn number(name: &str, default: usize) -> Result<usize> {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .map_err(|_| format!("{name} is not a number").into()),
        Err(_) => Ok(default),
    }
}

/// A full fleet with a line before it.
struct Fleet {
    scheduler: Rehearsal,
    now: Timestamp,
    /// What runs: its number, GPUs and node.
    running: Vec<Running>,
    version: u64,
}

struct Running {
    name: String,
    namespace: String,
    gpus: usize,
    node: String,
}

impl Fleet {
    fn new(nodes: usize, waiting: usize, sizes: &[usize]) -> Result<Self> {
        let mut fleet = Self {
            scheduler: Rehearsal::new(Settings::default()).unchecked(),
            now: "2026-11-17T12:00:00Z".parse()?,
            running: Vec::new(),
            version: 0,
        };
        for number in 0..nodes {
            fleet.node(&format!("node-{number:04}"))?;
        }
        for number in 0..nodes {
            let size = SIZES[number % SIZES.len()];
            for part in 0..GPUS / size {
                let running = Running {
                    name: format!("running-{number:04}-{part}"),
                    namespace: format!("team-{}", number % TEAMS),
                    gpus: size,
                    node: format!("node-{number:04}"),
                };
                fleet.workload(
                    &running.namespace,
                    &running.name,
                    size,
                    "normal",
                    Some(&running.node),
                )?;
                fleet.runs(running)?;
            }
        }
        for number in 0..waiting {
            let namespace = format!("team-{}", number % TEAMS);
            let size = sizes[number / TEAMS % sizes.len()];
            let priority = PRIORITIES[number / TEAMS / sizes.len() % PRIORITIES.len()];
            fleet.workload(
                &namespace,
                &format!("waiting-{number:05}"),
                size,
                priority,
                None,
            )?;
        }
        Ok(fleet)
    }

    fn version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn node(&mut self, name: &str) -> Result<()> {
        let labels = json!({
            "kubernetes.io/hostname": name, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            "nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.count": GPUS.to_string(),
        });
        let allocatable = json!({"cpu": "96", "memory": "1024Gi", "pods": "110", "nvidia.com/gpu": GPUS.to_string()});
        let version = self.version();
        self.scheduler.nodes().put(serde_json::from_value(json!({
            "metadata": {"name": name, "uid": format!("{name}-uid"), "resourceVersion": version, "labels": labels},
            "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
        }))?);
        Ok(())
    }

    fn workload(
        &mut self,
        namespace: &str,
        name: &str,
        gpus: usize,
        priority: &str,
        node: Option<&str>,
    ) -> Result<()> {
        let status = node.map_or_else(
            || json!({"phase": "Pending"}),
            |node| json!({"phase": "Running", "jobName": format!("{name}-0"), "assignedNode": node}),
        );
        let version = self.version();
        let object = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
            "metadata": {
                "name": name, "namespace": namespace, "uid": format!("{namespace}-{name}-uid"), "generation": 1,
                "resourceVersion": version, "creationTimestamp": "2026-11-17T11:00:00Z",
            },
            "spec": {
                "modelName": "m", "gpuCount": gpus, "image": "train:1", "priority": priority,
                "env": [{"name": "EPOCHS", "value": "3"}], "args": ["--data", "/data"],
            },
            "status": status,
        });
        self.scheduler
            .workloads()
            .put(serde_json::from_value(object)?);
        Ok(())
    }

    /// The Job and the pod of one that runs.
    fn runs(&mut self, running: Running) -> Result<()> {
        let [job, pod] = self.children(&running);
        self.scheduler.jobs().put(serde_json::from_value(job)?);
        self.scheduler.pods().put(serde_json::from_value(pod)?);
        self.running.push(running);
        Ok(())
    }

    fn children(&mut self, running: &Running) -> [Value; 2] {
        let Running {
            name,
            namespace,
            gpus,
            node,
        } = running;
        let owner = format!("{namespace}-{name}-uid");
        let labels = json!({
            "gpu.warp.dev/workload": name, "gpu.warp.dev/workload-uid": owner, "gpu.warp.dev/attempt": "0",
            "gpu.warp.dev/controller": "warp",
        });
        let resources =
            json!({"limits": {"nvidia.com/gpu": gpus.to_string(), "cpu": "4", "memory": "16Gi"}});
        let spec =
            json!({"nodeName": node, "containers": [{"name": "main", "resources": resources}]});
        let (first, second) = (self.version(), self.version());
        let job = json!({
            "metadata": {
                "name": format!("{name}-0"), "namespace": namespace, "uid": format!("{owner}-job"),
                "resourceVersion": first, "labels": labels,
                "ownerReferences": [{"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "name": name,
                    "uid": owner, "controller": true}],
            },
            "spec": {"parallelism": 1, "template": {"metadata": {"labels": labels}, "spec": {"containers": []}}},
        });
        let pod = json!({
            "metadata": {
                "name": format!("{name}-0-x"), "namespace": namespace, "uid": format!("{owner}-pod"),
                "resourceVersion": second, "labels": labels,
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": format!("{name}-0"),
                    "uid": format!("{owner}-job"), "controller": true}],
            },
            "spec": spec,
            "status": {"phase": "Running", "startTime": "2026-11-17T11:30:00Z"},
        });
        [job, pod]
    }

    /// One that runs ends: its pod, its Job and itself say so.
    fn end(&mut self, round: usize) -> Result<()> {
        // The first size of each round differs, so that wide and narrow work comes free.
        let at = round * 37 % self.running.len();
        let running = self.running.swap_remove(at);
        let [mut job, mut pod] = self.children(&running);
        pod["status"] = json!({"phase": "Succeeded"});
        job["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
        self.scheduler.pods().put(serde_json::from_value(pod)?);
        self.scheduler.jobs().put(serde_json::from_value(job)?);
        let version = self.version();
        let Running {
            name,
            namespace,
            gpus,
            ..
        } = running;
        let object = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
            "metadata": {
                "name": name, "namespace": namespace, "uid": format!("{namespace}-{name}-uid"), "generation": 1,
                "resourceVersion": version, "creationTimestamp": "2026-11-17T11:00:00Z",
            },
            "spec": {"modelName": "m", "gpuCount": gpus, "image": "train:1"},
            "status": {"phase": "Succeeded"},
        });
        self.scheduler
            .workloads()
            .put(serde_json::from_value(object)?);
        Ok(())
    }

    /// One that was placed runs.
    fn starts(&mut self, namespace: &str, name: &str, nodes: &[String]) -> Result<()> {
        let found = self
            .scheduler
            .workloads()
            .get(&warp_runtime::cache::Key::new(namespace, name));
        let found = found.ok_or("it was placed, and is not there")?;
        let gpus = usize::try_from(found.spec.gpu_count)?;
        let priority = serde_json::to_value(found.spec.priority)?;
        let node = nodes.first().ok_or("it was placed, and has no node")?;
        self.workload(
            namespace,
            name,
            gpus,
            priority.as_str().unwrap_or("normal"),
            Some(node),
        )?;
        self.runs(Running {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            gpus,
            node: node.clone(),
        })
    }
}
