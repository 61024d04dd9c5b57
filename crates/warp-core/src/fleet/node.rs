//! A machine: what it offers and what it costs. What is free on it is the fleet's ledger, not here.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::request::Taint;
use super::select::Labels;
use super::unit::Unit;
use crate::resources::Resources;

/// Pods a node takes when nothing says otherwise (kubelet's default).
pub const DEFAULT_PODS: i64 = 110;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Node {
    pub name: Arc<str>,
    pub labels: Labels,
    pub taints: Vec<Taint>,
    /// `spec.unschedulable` (cordoned).
    pub unschedulable: bool,
    pub ready: bool,
    pub allocatable: Resources,
    pub pods: i64,
    pub gpus: Vec<GpuPool>,
    /// Millionths of a US dollar; `None` where nobody said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_gpu_hour_micros: Option<u64>,
    /// Marked cheap by its owner, for fleets without prices.
    pub cheap: bool,
    pub topology: Topology,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            name: Arc::from(""),
            labels: Labels::new(),
            taints: Vec::new(),
            unschedulable: false,
            ready: true,
            allocatable: Resources::default(),
            pods: DEFAULT_PODS,
            gpus: Vec::new(),
            price_per_gpu_hour_micros: None,
            cheap: false,
            topology: Topology::default(),
        }
    }
}

/// Equal cards of one node, exposed under one extended resource name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuPool {
    #[serde(default = "nvidia_resource")]
    pub resource: Arc<str>,
    #[serde(default = "nvidia")]
    pub vendor: Arc<str>,
    #[serde(default)]
    pub model: Arc<str>,
    #[serde(default)]
    pub memory_bytes: u64,
    /// What one of the counted units is. Cards that are known one by one are whole, or cut by amount.
    #[serde(default)]
    pub unit: Unit,
    pub cards: Cards,
}

fn nvidia_resource() -> Arc<str> {
    Arc::from("nvidia.com/gpu")
}

fn nvidia() -> Arc<str> {
    Arc::from("nvidia")
}

impl GpuPool {
    pub fn nvidia(model: &str, memory_bytes: u64, cards: Cards) -> Self {
        Self {
            resource: nvidia_resource(),
            vendor: nvidia(),
            model: Arc::from(model),
            memory_bytes,
            unit: Unit::default(),
            cards,
        }
    }
}

/// How a node's cards are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cards {
    /// As a real cluster counts them: the number is `allocatable.extended[resource]`, the device
    /// plugin picks the card, and only whole cards can be asked for.
    Counted,
    /// Card by card: fractions can be placed, and a sick card is known by its index.
    Each(Vec<Card>),
}

impl Cards {
    pub fn each(count: usize) -> Self {
        Self::Each(vec![Card { healthy: true }; count])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    pub healthy: bool,
}

/// Where a node stands in the network; a missing level is a domain of its own per node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Topology {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rack: Option<Arc<str>>,
}

/// Topology levels, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    Host,
    Rack,
    Block,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Rack => "rack",
            Self::Block => "block",
        })
    }
}

impl Node {
    /// The domain of a level this node is in, as a path so that equal rack names in two blocks stay
    /// apart.
    pub fn domain(&self, level: Level) -> (Arc<str>, Arc<str>) {
        let own = || Arc::clone(&self.name);
        let block = || self.topology.block.clone();
        match level {
            Level::Host => (Arc::from(""), own()),
            Level::Rack => match &self.topology.rack {
                Some(rack) => (block().unwrap_or_default(), Arc::clone(rack)),
                None => (Arc::from(""), own()),
            },
            Level::Block => (block().unwrap_or_else(own), Arc::from("")),
        }
    }
}
