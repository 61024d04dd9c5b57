//! The GPUs a cluster has, as far as a choice among them needs it.

use std::collections::BTreeMap;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use warp_core::gpu::{self, Catalogue, Sharing, Vendor};

use crate::cluster::{gpus, told};

/// One model of GPU in the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) vendor: Vendor,
    pub(crate) model: &'static gpu::Model,
    /// The most on one node.
    pub(crate) per_node: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Fleet {
    pub(crate) kinds: Vec<Kind>,
    /// The GPU models that are known.
    pub(crate) known: Catalogue,
    nodes: usize,
    simulated: usize,
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
        let mut kinds: BTreeMap<&str, Kind> = BTreeMap::new();
        let mut fleet = Self::default();
        for node in &nodes {
            let status = node.status.as_ref();
            let runtime = status.and_then(|status| status.node_info.as_ref());
            let runtime = runtime.map_or("", |info| info.container_runtime_version.as_str());
            fleet.nodes += 1;
            fleet.simulated += usize::from(runtime.starts_with("simulated"));
            let offered = status.and_then(|status| status.allocatable.as_ref());
            let counts = offered
                .into_iter()
                .flatten()
                .filter_map(|(name, amount)| Some((name.clone(), amount.0.parse().ok()?)));
            for device in known.read(node.labels(), &counts.collect()).devices {
                let [model] = device.models[..] else { continue };
                if device.sharing != Sharing::Exclusive {
                    continue;
                }
                let count = u32::try_from(device.count).unwrap_or(u32::MAX);
                let kind = kinds.entry(model.name).or_insert(Kind {
                    vendor: device.vendor,
                    model,
                    per_node: 0,
                });
                kind.per_node = kind.per_node.max(count);
            }
        }
        fleet.known = known;
        fleet.kinds = kinds
            .into_values()
            .filter(|kind| kind.per_node > 0)
            .collect();
        Ok(fleet)
    }

    /// Whether nothing real runs there.
    pub(crate) fn is_simulated(&self) -> bool {
        self.nodes > 0 && self.simulated == self.nodes
    }
}
