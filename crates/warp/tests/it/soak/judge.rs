//! What must hold at every look, and at the end.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use super::load::workloads;

const GPU: &str = "nvidia.com/gpu";
const WORKLOAD: &str = "gpu.warp.dev/workload-uid";

/// Looks at the cluster from outside.
#[derive(Debug, Default)]
pub(super) struct Judge {
    looks: u64,
    /// Process, how far the soak was, KiB.
    memory: Vec<(u32, f64, u64)>,
}

impl Judge {
    /// What is wrong at this moment.
    pub(super) async fn look(&mut self, client: &Client) -> Result<Vec<String>> {
        let pods = Api::<Pod>::all(client.clone())
            .list(&ListParams::default())
            .await?
            .items;
        let nodes = Api::<Node>::all(client.clone())
            .list(&ListParams::default())
            .await?
            .items;
        self.looks += 1;
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
            if let Some(workload) = pod.labels().get(WORKLOAD)
                && pod.metadata.deletion_timestamp.is_none()
                && steady
            {
                live.entry(workload).or_default().push(pod.name_any());
            }
        }
        for node in &nodes {
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
        Ok(wrong)
    }

    pub(super) fn looks(&self) -> u64 {
        self.looks
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

    /// Compares two equal stretches of the second half, in which nothing was killed; before them a
    /// fifth of the soak filled what is bounded, Events and the history of watches. `strictly` when a
    /// difference would mean something.
    pub(super) fn flat(&self, strictly: bool) -> Result<String> {
        let Some(&(pid, ..)) = self.memory.last() else {
            return Ok("memory not measured".to_owned());
        };
        let median = |from: f64, to: f64| {
            let mut sizes: Vec<u64> = self
                .memory
                .iter()
                .filter(|(of, at, _)| *of == pid && *at >= from && *at < to)
                .map(|(.., size)| *size)
                .collect();
            sizes.sort_unstable();
            sizes.get(sizes.len() / 2).copied()
        };
        let (Some(before), Some(after)) = (median(0.7, 0.85), median(0.85, 2.0)) else {
            return Ok("memory not measured".to_owned());
        };
        // A twentieth and an allocator's slack.
        ensure!(
            !strictly || after <= before + before / 20 + 8 * 1024,
            "memory grows: {before} KiB, then {after} KiB"
        );
        Ok(format!(
            "memory {} MiB, then {} MiB",
            before / 1024,
            after / 1024
        ))
    }
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

/// How many Events there are.
pub(super) async fn events(client: &Client) -> Result<usize> {
    let events = Api::<Event>::all(client.clone());
    let all = events.list_metadata(&ListParams::default()).await?;
    Ok(all.items.len())
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
    Ok(left)
}
