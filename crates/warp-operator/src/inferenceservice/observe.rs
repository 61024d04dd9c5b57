//! Everything a service's plan needs, read from the caches and asked of its engines. No decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::ResourceExt;
use warp_api::{InferenceService, ModelCache, label};
use warp_core::gpu::{self, Catalogue, Device, Vendor};
use warp_core::resources::Resources;
use warp_runtime::cache::Key;

use super::InferenceServices;
use super::adapters::Served;
use super::autoscaler::Autoscalers;
use super::claim::class_of;
use super::copies::{self, claim_id, is_copy};
use super::group::{self, Role};
use super::pools;
use super::scrape::Heard;
use crate::ledger::{self, node_of, pinned_to};
use crate::placement::Verdict;
use crate::workload::Class;

/// What is known about one service.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) deployment: Option<Arc<Deployment>>,
    /// Those of its pools of GPUs, where it has or had some.
    pub(crate) pools: Vec<Arc<Deployment>>,
    pub(crate) service: Option<Arc<Service>>,
    /// StatefulSets of copies that span nodes.
    pub(crate) sets: Vec<Arc<StatefulSet>>,
    /// The copies: of one that spans nodes its leader.
    pub(crate) pods: Vec<Arc<Pod>>,
    /// What helps leaders.
    pub(crate) workers: Vec<Arc<Pod>>,
    /// The ModelCache it names.
    pub(crate) cache: Option<Arc<ModelCache>>,
    /// Nodes with GPUs.
    pub(crate) nodes: Vec<NodeGpus>,
    /// What its engines report; none when nobody asked or none answered.
    pub(crate) heard: Option<Heard>,
    /// What each copy that answers says it serves; empty when nobody asked.
    pub(crate) served: Vec<Served>,
    /// Whether engines are asked also where nothing follows from it but what is told.
    pub(crate) asks: bool,
    /// Price of a GPU for an hour in millionths, by node, as far as nodes say.
    pub(crate) prices: BTreeMap<String, u64>,
    /// What the PriorityClass it names says, if that is there.
    pub(crate) class: Option<Class>,
    /// Copies that wait for a place, the first to be placed first.
    pub(crate) waiting: Vec<Waiting>,
    /// How long a node is left out that did not take a copy.
    pub(crate) refusal_timeout: SignedDuration,
    /// Autoscalers of others; none: the operator has no right to tell any.
    pub(crate) autoscalers: Option<Autoscalers>,
}

/// A copy that waits for a place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    /// The pool of GPUs it waits for a place in, and since when.
    pub(crate) accelerator: Option<String>,
    pub(crate) since: Option<Timestamp>,
    /// What the scheduler last said about it.
    pub(crate) verdict: Option<Verdict>,
    /// The scheduler does not try it again before then.
    pub(crate) held_until: Option<Timestamp>,
}

/// One group of devices on a node.
#[derive(Clone, Debug)]
pub(crate) struct NodeGpus {
    pub(crate) device: Device,
    /// Nobody holds them, and the node takes pods.
    pub(crate) free: u64,
    /// All that the node offers.
    pub(crate) offers: Arc<Resources>,
    /// The node is ready and takes pods. One that does not now may do so in a moment: what is served there stays served.
    pub(crate) open: bool,
}

pub(super) async fn see(kind: &InferenceServices, service: &Arc<InferenceService>) -> Seen {
    let key = Key::of(&**service);
    let index = format!("{}/{}", key.namespace, key.name);
    let mut pods = kind.pods.by(0, &index);
    let mut workers = pods.clone();
    workers.retain(|pod| {
        group::member_of(pod, &key.name).is_some_and(|(_, role)| role == Role::Worker)
    });
    pods.retain(|pod| is_copy(pod, &key.name));
    let mut sets = kind.sets.in_namespace(&key.namespace);
    sets.retain(|set| set.labels().get(label::INFERENCE_SERVICE) == Some(&service.name_any()));
    let generation = service.metadata.generation.unwrap_or_default();
    let verdicts = &kind.cx.verdicts;
    let waiting = copies::waiting(&pods).into_iter().map(|pod| {
        let uid = claim_id(pod);
        // What was said of one that has its place by now is of no interest.
        let known = kind.cx.pods.get(&Key::of(&**pod));
        let waits = known.is_none_or(|known| copies::waits(&known));
        Waiting {
            accelerator: pools::said(&**pod).map(str::to_owned),
            since: pod.creation_timestamp().map(|time| time.0),
            verdict: verdicts.get(&uid, generation).filter(|_| waits),
            held_until: verdicts.held_until(&uid, generation),
        }
    });
    let waiting = waiting.collect();
    let heard = if kind.asks || service.spec.scaling.is_some() {
        kind.loads.of(&key, &pods, service.spec.port).await
    } else {
        None
    };
    let served = if kind.asks && !service.spec.model.adapters.is_empty() {
        kind.loads.served(&key, &pods, service.spec.port).await
    } else {
        Vec::new()
    };
    let prices = prices(kind, &pods);
    let wants_gpus = service.spec.gpus_per_replica() > 0;
    let nodes = if wants_gpus {
        let known = kind.cx.gpus.catalogue();
        nodes(&known, &kind.cx.nodes.all(), &kind.cx.pods.all())
    } else {
        Vec::new()
    };
    let autoscalers = kind.autoscalers.as_ref();
    let autoscalers = autoscalers.map(|(hpas, scaled)| Autoscalers {
        hpa: hpas.get(&key),
        scaled: scaled.get(&key),
        keda: scaled.is_served(),
    });
    Seen {
        autoscalers,
        deployment: kind.deployments.get(&key),
        pools: pool_deployments(kind, service, &key),
        service: kind.services.get(&key),
        sets,
        pods,
        workers,
        cache: super::cache_of(service).and_then(|key| kind.caches.get(&key)),
        nodes,
        heard,
        served,
        asks: kind.asks,
        prices,
        class: class_of(&kind.cx.priorities, service),
        waiting,
        refusal_timeout: SignedDuration::try_from(kind.cx.settings.refusal_timeout)
            .unwrap_or(SignedDuration::MAX),
    }
}

/// The Deployments of its pools, those it has no more included, and whatever else has the name of one.
fn pool_deployments(
    kind: &InferenceServices,
    service: &InferenceService,
    key: &Key,
) -> Vec<Arc<Deployment>> {
    let name = service.name_any();
    let pools = service.spec.accelerators.iter();
    let names: Vec<String> = pools
        .map(|pool| pools::deployment_name(&name, Some(&pool.name)))
        .collect();
    let mut found = kind.deployments.in_namespace(&key.namespace);
    found.retain(|one| {
        let labelled = one.labels().get(label::INFERENCE_SERVICE) == Some(&name);
        names.contains(&one.name_any()) || (labelled && pools::said(&**one).is_some())
    });
    found
}

/// What the nodes of some pods say a GPU costs.
fn prices(kind: &InferenceServices, pods: &[Arc<Pod>]) -> BTreeMap<String, u64> {
    let names = pods.iter().filter_map(|pod| node_of(pod));
    names
        .filter_map(|name| {
            let node = kind.cx.nodes.get(&Key::new("", name))?;
            Some((name.to_owned(), gpu::hourly_price(node.labels())?))
        })
        .collect()
}

/// The devices of every node, with what pods leave of them that are bound, or on their way.
pub(super) fn nodes(known: &Catalogue, nodes: &[Arc<Node>], pods: &[Arc<Pod>]) -> Vec<NodeGpus> {
    let mut held: BTreeMap<(String, String), u64> = BTreeMap::new();
    for pod in pods {
        let Some(spec) = &pod.spec else { continue };
        let place = node_of(pod).map(str::to_owned);
        let Some(name) = place.or_else(|| pinned_to(spec)) else {
            continue;
        };
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            continue;
        }
        for (resource, count) in ledger::request(&pod.metadata, spec).resources.extended {
            if Vendor::of_resource(&resource).is_some() {
                let count = u64::try_from(count).unwrap_or(0);
                *held
                    .entry((name.clone(), resource.to_string()))
                    .or_default() += count;
            }
        }
    }
    let mut found = Vec::new();
    for node in nodes {
        let open = ledger::takes_pods(node);
        let offers = Arc::new(ledger::allocatable(node));
        let status = node.status.as_ref();
        let offered = status.and_then(|status| status.allocatable.as_ref());
        let counts = offered
            .into_iter()
            .flatten()
            .filter_map(|(name, amount)| Some((name.clone(), amount.0.parse().ok()?)));
        let name = node.name_any();
        for device in known.read(node.labels(), &counts.collect()).devices {
            let held = held.get(&(name.clone(), device.resource.clone()));
            let free = device.count.saturating_sub(held.copied().unwrap_or(0));
            found.push(NodeGpus {
                free: if open { free } else { 0 },
                offers: Arc::clone(&offers),
                device,
                open,
            });
        }
    }
    found
}
