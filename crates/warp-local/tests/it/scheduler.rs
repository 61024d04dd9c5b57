//! Our scheduler beside kube-scheduler: random fleets and random pods, one after another. Ours puts a pod on a node the
//! real one scores highest, and lets it wait only when its filters leave no node; what it placed stays, so the fleets
//! fill up and every later answer depends on what its ledger made of the earlier ones. Pods that fit nowhere displace the
//! same pods on the same node.

/// The questions that core's filters are asked, too.
#[path = "../../../warp-operator/tests/it/fit/generate.rs"]
mod generate;
mod groups;
mod preemption;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use warp_apiserver::{ApiServer, Options as ServerOptions};
use warp_core::random::Random;
use warp_local::controllers::{Clock, Options, run};
use warp_testkit::oracle::NAMESPACE;
use warp_testkit::{PATIENCE, SchedulerOracle, wait_for, wait_gone};

use self::generate::Generator;
use self::groups::Groups;

const NODES: usize = 10;
const BOUND: usize = 18;
const QUESTIONS: usize = 100;
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// The embedded API server with our controllers and scheduler, and nodes nobody runs.
struct Ours {
    client: Client,
    pods: Api<Pod>,
    nodes: Api<Node>,
    shutdown: CancellationToken,
    _server: ApiServer,
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn read<K: serde::de::DeserializeOwned>(object: Value) -> Result<K> {
    Ok(serde_json::from_value(object)?)
}

fn place(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}

fn is_refused(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

impl Ours {
    async fn start() -> Result<Self> {
        let server = ApiServer::start(ServerOptions::ephemeral()?).await?;
        let client = server.client("default");
        let shutdown = CancellationToken::new();
        // No kubelet gives signs of life here.
        let options = Options {
            node_grace: Duration::from_hours(24),
            ..Options::default()
        };
        tokio::spawn(run(
            client.clone(),
            Clock::system(),
            options,
            shutdown.clone(),
        ));
        Api::<Namespace>::all(client.clone())
            .create(
                &PostParams::default(),
                &read(json!({"metadata": {"name": NAMESPACE}}))?,
            )
            .await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
        wait_for(&accounts, "default", "made", PATIENCE, |found| {
            found.is_some()
        })
        .await?;
        Ok(Self {
            pods: Api::namespaced(client.clone(), NAMESPACE),
            nodes: Api::all(client.clone()),
            client,
            shutdown,
            _server: server,
        })
    }

    async fn add_node(&self, node: &Node) -> Result<()> {
        let name = node.name_any();
        self.nodes.create(&PostParams::default(), node).await?;
        let status = Patch::Merge(json!({"status": node.status}));
        self.nodes
            .patch_status(&name, &PatchParams::default(), &status)
            .await?;
        let open = |node: Option<&Node>| {
            let spec = node.and_then(|node| node.spec.as_ref());
            let taints = spec.and_then(|spec| spec.taints.as_ref());
            !taints
                .into_iter()
                .flatten()
                .any(|taint| taint.key == NOT_READY)
        };
        wait_for(&self.nodes, &name, "open", PATIENCE, open).await?;
        Ok(())
    }

    async fn end_pod(&self, name: &str) -> Result<()> {
        let status = Patch::Merge(json!({"status": {"phase": "Failed"}}));
        self.pods
            .patch_status(name, &PatchParams::default(), &status)
            .await?;
        Ok(())
    }

    async fn delete_pod(&self, name: &str) -> Result<()> {
        let now = DeleteParams::default().grace_period(0);
        self.pods.delete(name, &now).await?;
        wait_gone(&self.pods, name, PATIENCE).await
    }

    /// Where the pod is put; nowhere when it is told to wait.
    async fn ask(&self, pod: &Pod) -> Result<Option<String>> {
        let name = pod.name_any();
        self.pods.create(&PostParams::default(), pod).await?;
        let decided =
            |pod: Option<&Pod>| pod.is_some_and(|pod| place(pod).is_some() || is_refused(pod));
        let told = wait_for(&self.pods, &name, "decided", PATIENCE, decided).await?;
        Ok(told.as_ref().and_then(place))
    }

    /// Waits until the scheduler knows every node added so far: news of nodes comes in order, so one that came and went
    /// after them is enough.
    async fn settle(&self) -> Result<()> {
        let marker = "marker";
        let amount = json!({"cpu": "1", "memory": "1Gi", "pods": "10"});
        let node = json!({
            "metadata": {"name": marker, "labels": {"marker": "true"}},
            "status": {
                "capacity": amount, "allocatable": amount,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        self.add_node(&read(node)?).await?;
        let probe: Pod = read(json!({
            "metadata": {"name": "probe"},
            "spec": {"containers": [{"name": "main", "image": "image:1"}], "nodeSelector": {"marker": "true"}},
        }))?;
        for there in [true, false] {
            if !there {
                self.nodes.delete(marker, &DeleteParams::default()).await?;
            }
            let known = tokio::time::timeout(PATIENCE, async {
                loop {
                    let placed = self.ask(&probe).await?.is_some();
                    self.delete_pod("probe").await?;
                    if placed == there {
                        return anyhow::Ok(());
                    }
                }
            });
            known
                .await
                .context("the scheduler sees no news of nodes")??;
        }
        Ok(())
    }
}

/// The same fleet and the same pods for both.
async fn furnish(
    generator: &mut Generator,
    oracle: &SchedulerOracle,
    ours: &Ours,
) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for _ in 0..NODES {
        let node: Node = read(generator.node())?;
        oracle.add_node(&node).await?;
        ours.add_node(&node).await?;
        names.push(node.name_any());
    }
    for number in 0..BOUND {
        // Crowded at one end so that some nodes are full and some are empty.
        let node = &names[number * number * names.len() / (BOUND * BOUND)];
        let pod: Pod = read(generator.bound_pod(node))?;
        let name = pod.name_any();
        oracle.add_pod(&pod).await?;
        ours.pods.create(&PostParams::default(), &pod).await?;
        match number % 6 {
            4 => {
                oracle.end_pod(&name).await?;
                ours.end_pod(&name).await?;
            }
            5 => {
                oracle.stop_pod(&name).await?;
                let slowly = DeleteParams::default().grace_period(3600);
                ours.pods.delete(&name, &slowly).await?;
            }
            _ => {}
        }
    }
    oracle.settle().await?;
    ours.settle().await?;
    Ok(names)
}

/// Whether ours chose one of those that the real one scores highest.
fn agree(best: &BTreeSet<String>, chosen: Option<&String>) -> bool {
    chosen.map_or(best.is_empty(), |node| best.contains(node))
}

/// What one fleet and its questions tell apart, as text for people.
async fn differences(seed: u64) -> Result<Vec<String>> {
    let oracle = SchedulerOracle::start().await?;
    let ours = Ours::start().await?;
    let (mut generator, mut random) = (Generator::new(seed), Random::new(seed));
    let groups = Groups::make(oracle.client(), &ours.client).await?;
    let names = Box::pin(furnish(&mut generator, &oracle, &ours)).await?;
    let mut differing = Vec::new();
    let (mut somewhere, mut nowhere, mut decisive) = (0, 0, 0);
    for _ in 0..QUESTIONS {
        let mut asked = generator.question(&names);
        if random.below(8) == 0 {
            // Only one node will do: whether it does is all there is to say.
            let only = &names[random.below(names.len())];
            asked["spec"]["nodeSelector"]["kubernetes.io/hostname"] = json!(only);
        }
        groups.join(&mut asked, &mut random);
        let pod: Pod = read(asked.clone())?;
        let name = pod.name_any();
        let (_, mut theirs) = oracle.ask(&pod).await?;
        let chosen = ours.ask(&pod).await?;
        if !agree(&theirs.best(), chosen.as_ref()) {
            // The real one hears of bound and of waiting pods on two ways, so it may have looked at an older fleet.
            oracle.settle().await?;
            theirs = oracle.ask(&pod).await?.1;
        }
        let best = theirs.best();
        if !agree(&best, chosen.as_ref()) {
            differing.push(format!(
                "seed {seed}: kube-scheduler would take one of {best:?}, ours took {chosen:?}: {asked}: {theirs:?}"
            ));
        }
        decisive += usize::from(best.len() < theirs.fits.len());
        let Some(node) = chosen.filter(|node| theirs.fits.contains(node)) else {
            nowhere += 1;
            ours.delete_pod(&name).await?;
            continue;
        };
        somewhere += 1;
        asked["spec"]["nodeName"] = json!(node);
        oracle.add_pod(&read(asked)?).await?;
        // Most of them end again, or nothing would fit any more.
        if random.below(6) > 0 {
            oracle.end_pod(&name).await?;
            ours.end_pod(&name).await?;
        }
    }
    eprintln!(
        "seed {seed}: {somewhere} fit somewhere, {nowhere} nowhere, {decisive} somewhere best"
    );
    assert!(
        !differing.is_empty() || (decisive > QUESTIONS / 5 && nowhere > QUESTIONS / 20),
        "the questions are too easy or too hard: {somewhere} fit somewhere, {nowhere} nowhere, {decisive} had a best place"
    );
    let displaced = preemption::differences(seed, &oracle, &ours.client, &names);
    differing.extend(Box::pin(displaced).await?);
    Ok(differing)
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_placed_where_kube_scheduler_would_and_wait_only_when_it_would() -> Result<()> {
    let seeds = std::env::var("WARP_SEEDS").unwrap_or_else(|_| "1..3".to_owned());
    let (first, last) = seeds
        .split_once("..")
        .context("WARP_SEEDS is FIRST..LAST")?;
    let mut all = Vec::new();
    for seed in first.parse()?..last.parse::<u64>()? {
        all.extend(Box::pin(differences(seed)).await?);
    }
    assert!(all.is_empty(), "{}\n{}", all.len(), all.join("\n"));
    Ok(())
}
