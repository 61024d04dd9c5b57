//! What must hold at every look, and at the end.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use super::load::workloads;

const GPU: &str = "nvidia.com/gpu";
const WORKLOAD: &str = "gpu.warp.dev/workload-uid";

/// By then a fifth of the soak since the last kill has filled what is bounded: Events and the history
/// of watches.
pub(super) const FULL: f64 = 0.7;
/// How long each of the two stretches is that are compared, both after [`FULL`].
pub(super) const STRETCH: f64 = 0.15;
/// Fewer looks than this, or more failed ones than one in so many, and nothing was judged.
const LOOKS: u64 = 20;
const FAILED: u64 = 10;

/// What was measured in each of the two stretches.
pub(super) fn stretches<T: Copy>(measured: &[(f64, T)]) -> (Vec<T>, Vec<T>) {
    let within = |from: f64, to: f64| {
        let measured = measured.iter().filter(|(at, _)| *at >= from && *at < to);
        measured.map(|(_, value)| *value).collect()
    };
    let middle = FULL + STRETCH;
    (within(FULL, middle), within(middle, f64::INFINITY))
}

pub(super) fn median<T: Copy + Ord>(mut values: Vec<T>) -> Option<T> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

/// Looks at the cluster from outside.
#[derive(Debug, Default)]
pub(super) struct Judge {
    looks: u64,
    failed: u64,
    /// Process, how far the soak was, KiB.
    memory: Vec<(u32, f64, u64)>,
}

impl Judge {
    /// What is wrong at this moment, as far as it can be seen.
    pub(super) async fn look(&mut self, client: &Client) -> Vec<String> {
        let all = ListParams::default();
        let seen = async {
            let pods = Api::<Pod>::all(client.clone()).list(&all).await?.items;
            let nodes = Api::<Node>::all(client.clone()).list(&all).await?.items;
            kube::Result::<_, kube::Error>::Ok((pods, nodes))
        };
        let Ok((pods, nodes)) = seen.await else {
            self.missed();
            return Vec::new();
        };
        self.looks += 1;
        wrongs(&pods, &nodes)
    }

    /// Notes that something could not be seen.
    pub(super) fn missed(&mut self) {
        self.failed += 1;
    }

    /// Whether enough was seen.
    pub(super) fn looked(&self) -> Result<String> {
        let (looks, failed) = (self.looks, self.failed);
        ensure!(
            looks >= LOOKS && failed * FAILED <= looks,
            "{looks} looks succeeded and {failed} failed: too few to judge"
        );
        Ok(format!("{looks} looks ({failed} more failed)"))
    }

    /// Notes how much memory a process holds.
    pub(super) fn memory(&mut self, pid: u32, progress: f64) {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let size = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        if let Some(size) = size {
            self.memory.push((pid, progress, size));
        }
    }

    /// Compares two equal stretches of the second half, in which nothing was killed, for each process
    /// that lived through both. `strictly` when a difference would mean something.
    pub(super) fn flat(&self, strictly: bool) -> Result<String> {
        let pids: BTreeSet<u32> = self.memory.iter().map(|(pid, ..)| *pid).collect();
        let mut told = Vec::new();
        for pid in pids {
            let of = self.memory.iter().filter(|(of, ..)| *of == pid);
            let sizes: Vec<(f64, u64)> = of.map(|(_, at, size)| (*at, *size)).collect();
            let (earlier, later) = stretches(&sizes);
            let Some((before, after)) = median(earlier).zip(median(later)) else {
                continue;
            };
            // A twentieth and an allocator's slack.
            ensure!(
                !strictly || after <= before + before / 20 + 8 * 1024,
                "memory grows: {before} KiB, then {after} KiB"
            );
            told.push(format!(
                "memory {} MiB, then {} MiB",
                before / 1024,
                after / 1024
            ));
        }
        ensure!(
            !told.is_empty(),
            "no process lived long enough for its memory to be compared"
        );
        Ok(told.join("; "))
    }
}

/// What is wrong in one state of the cluster.
fn wrongs(pods: &[Pod], nodes: &[Node]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut held: BTreeMap<&str, i64> = BTreeMap::new();
    let mut live: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| may_run(pod)) {
        if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
            *held.entry(node).or_default() += gpus(pod);
        }
        // What was on a node given up for lost may come back with it: that is the promise of a
        // node, not of the operator.
        let steady = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let steady = steady.is_some_and(|node| node.starts_with("steady"));
        // One that is being deleted runs until its node says otherwise.
        if let Some(workload) = pod.labels().get(WORKLOAD)
            && steady
        {
            live.entry(workload).or_default().push(pod.name_any());
        }
    }
    for node in nodes {
        let has: i64 = node
            .status
            .as_ref()
            .and_then(|status| status.allocatable.as_ref()?.get(GPU)?.0.parse().ok())
            .unwrap_or(0);
        let name = node.name_any();
        let holds = held.get(name.as_str()).copied().unwrap_or(0);
        if holds > has {
            wrong.push(format!("node {name} holds {holds} of {has} GPUs"));
        }
    }
    for (workload, pods) in live {
        if pods.len() > 1 {
            wrong.push(format!(
                "workload {workload} runs {} times: {pods:?}",
                pods.len()
            ));
        }
    }
    wrong
}

/// Whether a pod may hold what it asks for.
fn may_run(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

fn gpus(pod: &Pod) -> i64 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .filter_map(|container| {
            container
                .resources
                .as_ref()?
                .limits
                .as_ref()?
                .get(GPU)?
                .0
                .parse::<i64>()
                .ok()
        })
        .sum()
}

/// What of the load is still there.
pub(super) async fn left(client: &Client) -> Result<Vec<String>> {
    let all = ListParams::default();
    let mut left: Vec<String> = workloads(client)
        .list(&all)
        .await?
        .iter()
        .map(|one| format!("gpuworkload {}", one.name_any()))
        .collect();
    let jobs = Api::<Job>::namespaced(client.clone(), "default")
        .list(&all)
        .await?;
    left.extend(jobs.iter().map(|one| format!("job {}", one.name_any())));
    let pods = Api::<Pod>::namespaced(client.clone(), "default")
        .list(&all)
        .await?;
    left.extend(pods.iter().map(|one| format!("pod {}", one.name_any())));
    // Those made last go when their time is over.
    let events = Api::<Event>::all(client.clone())
        .list_metadata(&all)
        .await?;
    left.extend(events.iter().map(|one| format!("event {}", one.name_any())));
    Ok(left)
}
