//! The GPUs a cluster has, as far as a choice among them needs it.

use std::collections::BTreeMap;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use warp_api::label;
use warp_core::gpu::{self, Catalogue, Sharing, Vendor};

use super::Engine;
use crate::cluster::{gpus, told};

/// One model of GPU in the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) vendor: Vendor,
    pub(crate) model: &'static gpu::Model,
    /// The most on one node.
    pub(crate) per_node: u32,
    /// The nodes that have it.
    pub(super) nodes: Nodes,
}

/// Nodes a copy of a service could be on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nodes {
    all: usize,
    /// Those that run nothing but simulated engines.
    simulated: usize,
}

impl Nodes {
    fn count(&mut self, simulated: bool) {
        self.all += 1;
        self.simulated += usize::from(simulated);
    }

    /// Whether a real engine runs on one of them.
    pub(super) fn have_real(self) -> bool {
        self.simulated < self.all
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Fleet {
    pub(crate) kinds: Vec<Kind>,
    /// The GPU models that are known.
    pub(crate) known: Catalogue,
    nodes: Nodes,
    /// Nodes that are one container at a cloud each: a service never is.
    containers: usize,
}

impl Fleet {
    pub(crate) async fn read(client: &kube::Client) -> anyhow::Result<Self> {
        let nodes: Api<Node> = Api::all(client.clone());
        let nodes = nodes
            .list(&ListParams::default())
            .await
            .map_err(told)
            .context("failed to list the nodes")?;
        // Whoever may not read what was added chooses among what everybody knows.
        let known = gpus::added(client, &mut Vec::new()).await?.catalogue;
        Ok(Self::of(&nodes.items, known))
    }

    fn of(nodes: &[Node], known: Catalogue) -> Self {
        let mut kinds: BTreeMap<&str, Kind> = BTreeMap::new();
        let mut fleet = Self::default();
        for node in nodes {
            if is_container(node) {
                fleet.containers += 1;
                continue;
            }
            let status = node.status.as_ref();
            let runtime = status.and_then(|status| status.node_info.as_ref());
            let runtime = runtime.map_or("", |info| info.container_runtime_version.as_str());
            let simulated = runtime.starts_with("simulated");
            fleet.nodes.count(simulated);
            let offered = status.and_then(|status| status.allocatable.as_ref());
            let counts = offered
                .into_iter()
                .flatten()
                .filter_map(|(name, amount)| Some((name.clone(), amount.0.parse().ok()?)));
            for device in known.read(node.labels(), &counts.collect()).devices {
                let [model] = device.models[..] else { continue };
                if device.sharing != Sharing::Exclusive || device.count == 0 {
                    continue;
                }
                let count = u32::try_from(device.count).unwrap_or(u32::MAX);
                let kind = kinds.entry(model.name).or_insert(Kind {
                    vendor: device.vendor,
                    model,
                    per_node: 0,
                    nodes: Nodes::default(),
                });
                kind.per_node = kind.per_node.max(count);
                kind.nodes.count(simulated);
            }
        }
        fleet.known = known;
        fleet.kinds = kinds.into_values().collect();
        fleet
    }

    /// What serves where nobody said it, and what there is to say about the choice: of the nodes with the GPU `gpu`
    /// where that is asked for, else of those with any, else of all.
    pub(super) fn engine(&self, asked: Option<Engine>, gpu: Option<&str>) -> (Engine, String) {
        let wanted = gpu.map(|gpu| self.known.named(gpu));
        let wanted = |kind: &&Kind| wanted.as_ref().is_none_or(|all| all.contains(&kind.model));
        let mut having = Nodes::default();
        for kind in self.kinds.iter().filter(wanted) {
            having.all += kind.nodes.all;
            having.simulated += kind.nodes.simulated;
        }
        let nodes = if having.all > 0 { having } else { self.nodes };
        let simulated = nodes.all > 0 && !nodes.have_real();
        let (engine, why) = match (asked, simulated) {
            (Some(Engine::Simulated), _) => (Engine::Simulated, "as asked for"),
            (None, true) => (
                Engine::Simulated,
                "because all nodes that could serve it are",
            ),
            (Some(Engine::Vllm), true) => (
                Engine::Vllm,
                "as asked for; all nodes that could serve it are simulated: its copies will look ready and nothing will answer",
            ),
            (Some(Engine::Vllm), false) => (Engine::Vllm, "as asked for"),
            (None, false) if nodes.all == 0 => (
                Engine::Vllm,
                "though there is no node yet that could serve it",
            ),
            (None, false) if nodes.simulated > 0 => (
                Engine::Vllm,
                "because some nodes that could serve it are real; on simulated ones nothing will answer",
            ),
            (None, false) => (
                Engine::Vllm,
                "because the nodes that could serve it are real",
            ),
        };
        let mut said = match engine {
            Engine::Simulated => {
                format!(
                    "the engine is simulated, {why}: no weights are loaded, answers are made up"
                )
            }
            Engine::Vllm => format!("the engine is vLLM, {why}"),
        };
        if asked.is_none() && self.containers > 0 {
            said.push_str(
                " (nodes that are one container at a cloud serve nothing and do not count)",
            );
        }
        (engine, said)
    }
}

/// Whether the node is a place for one container at a cloud.
fn is_container(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let mut taints = taints.into_iter().flatten();
    taints.any(|taint| taint.key == label::CONTAINER)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, runtime: &str, product: &str, taints: &Value) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { "nvidia.com/gpu.product": product } },
            "spec": { "taints": taints },
            "status": {
                "allocatable": { "nvidia.com/gpu": "1" },
                "nodeInfo": {
                    "containerRuntimeVersion": runtime, "architecture": "", "bootID": "", "kernelVersion": "",
                    "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "",
                    "osImage": "", "systemUUID": "",
                },
            },
        }))
        .expect("a node")
    }

    fn simulated(product: &str) -> Node {
        node("simulated", "simulated://1", product, &json!([]))
    }

    fn real(product: &str) -> Node {
        node("real", "containerd://2", product, &json!([]))
    }

    fn container(product: &str) -> Node {
        let taints = json!([{ "key": label::CONTAINER, "effect": "NoSchedule" }]);
        node("rented", "warp://container", product, &taints)
    }

    const L4: &str = "NVIDIA-L4";
    const H100: &str = "NVIDIA-H100-80GB-HBM3";

    #[test]
    fn the_engine_is_the_one_that_runs_on_nodes_that_could_serve_and_the_reason_is_said() {
        let vllm = Some(Engine::Vllm);
        let cases = [
            (
                vec![simulated(L4)],
                None,
                None,
                Engine::Simulated,
                "all nodes that could serve it are",
            ),
            (
                vec![simulated(L4), container(L4)],
                None,
                None,
                Engine::Simulated,
                "one container at a cloud serve nothing",
            ),
            (vec![container(L4)], None, None, Engine::Vllm, "no node yet"),
            (vec![real(L4)], None, None, Engine::Vllm, "are real"),
            (
                vec![real(L4), simulated(H100)],
                None,
                None,
                Engine::Vllm,
                "some nodes that could serve it are real",
            ),
            (
                vec![real(L4), simulated(H100)],
                None,
                Some("H100"),
                Engine::Simulated,
                "all nodes that could serve it are",
            ),
            (
                vec![simulated(L4)],
                vllm,
                None,
                Engine::Vllm,
                "nothing will answer",
            ),
            (
                vec![real(L4)],
                Some(Engine::Simulated),
                None,
                Engine::Simulated,
                "as asked for",
            ),
        ];
        for (nodes, asked, gpu, engine, why) in cases {
            let fleet = Fleet::of(&nodes, Catalogue::default());
            let (chosen, said) = fleet.engine(asked, gpu);
            assert_eq!(chosen, engine, "{nodes:?}: {said}");
            assert!(said.contains(why), "{nodes:?}: {said}");
        }
    }

    #[test]
    fn gpus_of_a_node_that_is_a_container_at_a_cloud_serve_nothing() {
        let fleet = Fleet::of(&[simulated(L4), container(H100)], Catalogue::default());
        let kinds: Vec<&str> = fleet.kinds.iter().map(|kind| kind.model.name).collect();
        assert_eq!(kinds, ["L4"]);
    }
}
