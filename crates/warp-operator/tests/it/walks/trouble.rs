//! What goes wrong around the users: nodes fall silent and come back, GPUs break, pods fail.
//!
//! Every trouble here costs its victim exactly one attempt or none, so that whoever makes it can count.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Map, Value, json};
use warp_core::random::Random;
use warp_testkit::fault::world::World;

use super::walker::User;
use super::{base, pick};

/// Nodes whose GPUs no walker asks for, so that nobody is placed before there is room.
pub(crate) const EARLY: &str = "pools:\n- {name: early, count: 3, gpu: L4, gpus: 2}\n";
/// How a pod fails, at once, once.
const ENDS: [&[(&str, &str)]; 4] = [
    &[("run-time", "1s"), ("exit-code", "3")],
    &[("crash-after", "1s")],
    &[("oom-after", "1s")],
    &[("evict-after", "1s")],
];
/// Long enough to be noticed, too short for its pods to be given up.
pub(crate) const BRIEFLY: Duration = Duration::from_secs(330);
/// By then a silent node counts as not ready.
pub(crate) const NOTICED: Duration = Duration::from_secs(230);

fn annotations(pairs: &[(&str, Option<&str>)]) -> Value {
    let named =
        |(name, value): &(&str, Option<&str>)| (format!("sim.gpu.warp.dev/{name}"), json!(value));
    let all: Map<String, Value> = pairs.iter().map(named).collect();
    json!({"metadata": {"annotations": all}})
}

async fn tell(world: &World, node: &str, name: &str, value: Option<&str>) -> Result<()> {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let patch = Patch::Merge(annotations(&[(name, value)]));
    nodes.patch(node, &PatchParams::default(), &patch).await?;
    Ok(())
}

pub(crate) async fn silence(world: &World, node: &str) -> Result<()> {
    tell(world, node, "node-lost", Some("true")).await
}

pub(crate) async fn break_gpus(world: &World, node: &str) -> Result<()> {
    tell(world, node, "lost-gpus", Some("all")).await
}

pub(crate) async fn heal(world: &World, node: &str) -> Result<()> {
    tell(world, node, "node-lost", None).await?;
    tell(world, node, "lost-gpus", None).await
}

/// Other labels on a node.
async fn relabel(world: &World, node: &str, value: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let patch = Patch::Merge(json!({"metadata": {"labels": {"walk": value}}}));
    nodes.patch(node, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn namespace_of(pod: &Pod) -> String {
    pod.namespace().unwrap_or_default()
}

async fn behave(world: &World, pod: &Pod, pairs: &[(&str, &str)]) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), &namespace_of(pod));
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(name, value)| (*name, Some(*value)))
        .collect();
    let patch = Patch::Merge(annotations(&pairs));
    let name = pod.name_any();
    pods.patch(&name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Ends a pod badly, in one way or another.
pub(crate) async fn fail(world: &World, pod: &Pod, random: &mut Random) -> Result<()> {
    behave(world, pod, ENDS[random.below(ENDS.len())]).await
}

/// Ends a pod badly by its own doing.
pub(crate) async fn exit(world: &World, pod: &Pod) -> Result<()> {
    behave(world, pod, ENDS[0]).await
}

/// Ends a pod well.
pub(crate) async fn finish(world: &World, pod: &Pod) -> Result<()> {
    behave(world, pod, &[("run-time", "1s")]).await
}

pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Pods of one namespace that run.
async fn running(world: &World, namespace: &str) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), namespace);
    let mut found = pods.list(&ListParams::default()).await?.items;
    found.retain(runs);
    Ok(found)
}

fn runs(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

/// The one pod a user runs.
pub(crate) async fn pod_of(world: &World, user: &User) -> Result<Pod> {
    let mut pods = running(world, &user.namespace).await?;
    ensure!(
        pods.len() == 1,
        "{} runs {} pods",
        user.namespace,
        pods.len()
    );
    Ok(pods.remove(0))
}

/// Attempts that failed or were disrupted.
fn attempts(status: &Value) -> i64 {
    let count = |field: &str| status[field].as_i64().unwrap_or_default();
    count("retryCount") + count("disruptions")
}

/// Waits until a user's workload runs, having failed or been disrupted so often.
pub(crate) async fn until_running(world: &World, user: &User, failures: i64) -> Result<()> {
    let what = format!("running after {failures} failures");
    let manifest = user.manifest("walk", &Value::Null);
    world
        .until(&manifest, &what, |object| {
            object.is_some_and(|object| {
                let status = &object["status"];
                status["conditions"][0]["reason"] == "Running" && attempts(status) == failures
            })
        })
        .await
}

/// Workloads that run from the beginning, on nodes no walker can use: it is their pods that fail and
/// their nodes that go while the others change their minds.
pub(crate) struct Neighbours {
    users: Vec<User>,
    lost: Option<String>,
}

impl Neighbours {
    pub(crate) async fn move_in(world: &World) -> Result<Self> {
        let mut users = Vec::new();
        for number in 0..3 {
            let user = User::arrives(world, format!("n-{number}")).await?;
            let mut spec = base(false);
            spec["gpu"] = json!({"models": ["L4"]});
            ensure!(user.create(world, &spec).await?.accepted());
            users.push(user);
        }
        for user in &users {
            until_running(world, user, 0).await?;
        }
        Ok(Self { users, lost: None })
    }

    /// One of their nodes falls silent, unless one is; a pod on another one fails.
    pub(crate) async fn trouble(&mut self, world: &World, random: &mut Random) -> Result<()> {
        let mut pods = Vec::new();
        for user in &self.users {
            pods.extend(running(world, &user.namespace).await?);
        }
        if self.lost.is_none() {
            ensure!(!pods.is_empty(), "no neighbour runs");
            let node = node_of(pick(random, &pods)).context("a running pod without node")?;
            silence(world, node).await?;
            self.lost = Some(node.to_owned());
        }
        pods.retain(|pod| node_of(pod) != self.lost.as_deref());
        ensure!(!pods.is_empty(), "no neighbour is left");
        let victim = pick(random, &pods);
        fail(world, victim, random).await?;
        relabel(world, node_of(victim).unwrap_or_default(), "failed").await
    }

    /// The silent node comes back; by now nobody is there any more.
    pub(crate) async fn heal(&mut self, world: &World) -> Result<()> {
        if let Some(node) = self.lost.take() {
            heal(world, &node).await?;
        }
        Ok(())
    }

    /// Whatever happened, they run in the end; something had happened.
    pub(crate) async fn run(&self, world: &World) -> Result<()> {
        let mut failures = 0;
        for user in &self.users {
            let object = user.running(world).await?;
            failures += attempts(&object["status"]);
        }
        // Two pods failed and a node was lost.
        ensure!(failures > 2, "{failures} failures are too few");
        Ok(())
    }
}

/// Pods fail; a node is silent for a while, another for so long that what ran there starts again
/// elsewhere. Nodes with somebody `fragile` are left alone. Ends when everything is healed; the failures
/// by namespace.
pub(crate) async fn strike(
    world: &World,
    fragile: &BTreeSet<String>,
    random: &mut Random,
) -> Result<BTreeMap<String, i64>> {
    let mut by_node: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
    let mut spared = BTreeSet::new();
    let pods: Api<Pod> = Api::all(world.client.clone());
    for pod in pods.list(&ListParams::default()).await? {
        let Some(node) = node_of(&pod).map(str::to_owned) else {
            continue;
        };
        // The cluster takes from a lost node also what has ended there.
        let fragile = fragile.contains(&namespace_of(&pod)) || !runs(&pod);
        if fragile || node.starts_with("early-") {
            spared.insert(node.clone());
        }
        by_node.entry(node).or_default().push(pod);
    }
    by_node.retain(|node, _| !spared.contains(node));
    let mut nodes: Vec<(String, Vec<Pod>)> = by_node.into_iter().collect();
    random.shuffle(&mut nodes);
    ensure!(nodes.len() > 2, "too few nodes to lose: {}", nodes.len());
    let (brief, lost, others) = (&nodes[0].0, &nodes[1], &nodes[2..]);
    let mut victims: Vec<&Pod> = others.iter().flat_map(|(_, pods)| pods).collect();
    random.shuffle(&mut victims);
    victims.truncate(5);
    silence(world, brief).await?;
    silence(world, &lost.0).await?;
    // Nobody is to start again where it is silent.
    world.pass(NOTICED).await;
    for victim in &victims {
        fail(world, victim, random).await?;
    }
    world.pass(BRIEFLY.saturating_sub(NOTICED)).await;
    heal(world, brief).await?;
    let mut failures = BTreeMap::new();
    for pod in victims.into_iter().chain(&lost.1) {
        let namespace = namespace_of(pod);
        until_running(world, &User::new(namespace.clone()), 1).await?;
        failures.insert(namespace, 1);
    }
    heal(world, &lost.0).await?;
    Ok(failures)
}
