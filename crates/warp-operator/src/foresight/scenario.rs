//! A cluster as a file `warp simulate fleet` reads: its nodes, what runs on them pinned to where it is, and
//! the queue in its order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use warp_api::GPUWorkload;
use warp_api::workload::{Closeness, Priority, TopologyLevels};
use warp_core::fleet::{
    Cards, Constraints, GpuRequest, Level, Node, Request, Toleration, TolerationOperator, WHOLE,
    Work,
};
use warp_core::simulate::fleet::{GangEntry, GpuAsk, GpuEntry, NodeEntry, RequestEntry, Scenario};
use warp_runtime::cache::Cache;

use super::{Cluster, waiting};
use crate::config::Settings;
use crate::placement::{Claimant, base_request};
use crate::workload::Asking;

/// What runs is entered before anything that waits.
const RUNNING: i32 = 1000;

impl Cluster {
    /// The fleet, what runs and what waits.
    pub fn scenario(&self, settings: &Settings, now: Timestamp) -> Scenario {
        let ledger = self.ledger(&self.promised(), settings);
        let nodes = ledger.fleet.nodes().map(|(_, node)| entry(node));
        let mut requests: Vec<RequestEntry> = Vec::new();
        let mut names = BTreeSet::new();
        for work in ledger.fleet.works() {
            let found = ledger.fleet.find(&work.node);
            // What is on a node that is not ready keeps nobody away: the node itself does.
            let Some(node) = found.and_then(|id| ledger.fleet.node(id)) else {
                continue;
            };
            if node.ready {
                requests.push(running(work, node, &mut names));
            }
        }
        let jobs = Cache::new(&[]);
        for workload in waiting(self, now) {
            let asking = Asking::new(
                &jobs,
                Arc::clone(&workload),
                self.seen(&workload, settings),
                now,
            );
            let pod = asking
                .as_ref()
                .and_then(|asking| asking.claim().pods.first());
            let Some(pod) = pod else {
                continue;
            };
            let request = base_request(&ledger, pod);
            let priority = match self.priority_of_workload(&workload) {
                Priority::Low => -1,
                Priority::Normal => 0,
                Priority::High => 1,
            };
            requests.push(RequestEntry {
                name: unique(
                    &format!(
                        "{}/{}",
                        workload.namespace().unwrap_or_default(),
                        workload.name_any()
                    ),
                    &mut names,
                ),
                namespace: Arc::clone(&request.namespace),
                gpu: request.gpu.as_ref().map(ask),
                priority,
                count: workload.spec.members(),
                gang: workload.spec.is_gang().then(|| gang(&workload)),
                ..plain(&request)
            });
        }
        Scenario {
            nodes: nodes.collect(),
            requests,
        }
    }
}

/// In the file a gang is close together by rack and block alone: another label is left out.
fn gang(workload: &GPUWorkload) -> GangEntry {
    let known = workload.spec.topology.as_ref().and_then(|topology| {
        let found = match topology.level.as_str() {
            "host" => Level::Host,
            "rack" => Level::Rack,
            "block" | "zone" => Level::Block,
            _ => return None,
        };
        Some((found, topology.mode == Closeness::Required))
    });
    match known {
        Some((level, true)) => GangEntry {
            required: Some(level),
            preferred: None,
        },
        Some((level, false)) => GangEntry {
            required: None,
            preferred: Some(level),
        },
        None => GangEntry::default(),
    }
}

fn plain(request: &Request) -> RequestEntry {
    RequestEntry {
        labels: request.labels.clone(),
        resources: request.resources.clone(),
        constraints: request.constraints.clone(),
        ..RequestEntry::default()
    }
}

/// Names are identities in the file.
fn unique(name: &str, names: &mut BTreeSet<String>) -> Arc<str> {
    let mut found = name.to_owned();
    let mut number = 2;
    while !names.insert(found.clone()) {
        found = format!("{name}-{number}");
        number += 1;
    }
    Arc::from(found)
}

fn entry(node: &Node) -> NodeEntry {
    let mut allocatable = node.allocatable.clone();
    allocatable.extended.remove("pods");
    let gpus = node.gpus.iter().map(|pool| {
        // In the file a whole GPU is known by its kind, not by the resource it is handed out under.
        let whole = pool.unit.is_whole();
        let count = match (&pool.cards, whole) {
            (Cards::Each(cards), _) => i64::try_from(cards.len()).unwrap_or(i64::MAX),
            (Cards::Counted, true) => allocatable.extended.remove(&pool.resource).unwrap_or(0),
            (Cards::Counted, false) => allocatable.extended(&pool.resource),
        };
        GpuEntry {
            count: u16::try_from(count).unwrap_or_default(),
            model: Arc::clone(&pool.model),
            vendor: Arc::clone(&pool.vendor),
            memory: pool.memory_bytes.to_string(),
            sick: BTreeSet::new(),
            resource: (!whole).then(|| Arc::clone(&pool.resource)),
            unit: (!whole).then(|| pool.unit.clone()),
        }
    });
    let gpus = gpus.collect();
    let mut labels = node.labels.clone();
    labels.retain(|key, _| !TopologyLevels::is_key(key));
    NodeEntry {
        name: Arc::clone(&node.name),
        count: 1,
        labels,
        taints: node.taints.clone(),
        unschedulable: node.unschedulable,
        ready: node.ready,
        allocatable,
        pods: node.pods,
        gpus,
        price_per_gpu_hour: node
            .price_per_gpu_hour_micros
            .map(|micros| micros as f64 / 1e6),
        cheap: node.cheap,
        topology: node.topology.clone(),
    }
}

fn ask(gpu: &GpuRequest) -> GpuAsk {
    GpuAsk {
        count: gpu.count,
        fraction: f64::from(gpu.milli) / f64::from(WHOLE),
        vendor: gpu.vendor.clone(),
        models: gpu.models.clone(),
        min_memory: gpu.min_memory_bytes.to_string(),
        part: gpu.part.clone(),
    }
}

/// Work where it is, whatever its node says by now of whom it takes.
fn running(work: &Work, node: &Node, names: &mut BTreeSet<String>) -> RequestEntry {
    let request = &work.request;
    let mut resources = request.resources.clone();
    // What is held of parts and shares stays under its names.
    let whole = || node.gpus.iter().filter(|pool| pool.unit.is_whole());
    let held: BTreeMap<Arc<str>, i64> = whole()
        .filter_map(|pool| {
            let count = resources.extended.remove(&pool.resource)?;
            Some((Arc::clone(&pool.resource), count))
        })
        .collect();
    let pool = whole().find(|pool| held.get(&pool.resource).is_some_and(|count| *count > 0));
    let gpu = pool.map(|pool| GpuAsk {
        count: u32::try_from(held.values().sum::<i64>()).unwrap_or_default(),
        vendor: Some(Arc::clone(&pool.vendor)),
        models: Some(Arc::clone(&pool.model))
            .filter(|model| !model.is_empty())
            .into_iter()
            .collect(),
        ..GpuAsk::default()
    });
    let everything = Toleration {
        key: Arc::from(""),
        operator: TolerationOperator::Exists,
        value: Arc::from(""),
        effect: None,
    };
    RequestEntry {
        name: unique(&format!("{}/{}", request.namespace, request.name), names),
        namespace: Arc::clone(&request.namespace),
        gpu,
        resources,
        constraints: Constraints {
            node_name: Some(Arc::clone(&work.node)),
            tolerations: vec![everything],
            pod_anti_affinity: request.constraints.pod_anti_affinity.clone(),
            host_ports: request.constraints.host_ports.clone(),
            ..Constraints::default()
        },
        labels: request.labels.clone(),
        priority: RUNNING,
        ..RequestEntry::default()
    }
}
