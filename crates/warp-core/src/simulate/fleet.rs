//! A fleet and a list of requests written by a person: where each would go, and why the rest would
//! not.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::explain::{Change, smallest_changes};
use crate::fleet::{
    Card, Cards, Constraints, Fleet, FleetError, GpuPool, GpuRequest, Labels, Level, Node, Part,
    Request, Taint, Topology, Unit, WHOLE, WorkState,
};
use crate::resources::{Quantity, Resources};
use crate::schedule::{Gang, Member, Placement, Planner, Policy, Weighed};

/// The file: machines and requests.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Scenario {
    pub nodes: Vec<NodeEntry>,
    pub requests: Vec<RequestEntry>,
}

/// `count` equal machines.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct NodeEntry {
    pub name: Arc<str>,
    pub count: u32,
    pub labels: Labels,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub ready: bool,
    pub allocatable: Resources,
    pub pods: i64,
    pub gpus: Vec<GpuEntry>,
    /// US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_gpu_hour: Option<f64>,
    pub cheap: bool,
    pub topology: Topology,
}

impl Default for NodeEntry {
    fn default() -> Self {
        let node = Node::default();
        Self {
            name: node.name,
            count: 1,
            labels: node.labels,
            taints: node.taints,
            unschedulable: node.unschedulable,
            ready: node.ready,
            allocatable: node.allocatable,
            pods: node.pods,
            gpus: Vec::new(),
            price_per_gpu_hour: None,
            cheap: node.cheap,
            topology: node.topology,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuEntry {
    pub count: u16,
    #[serde(default)]
    pub model: Arc<str>,
    #[serde(default = "nvidia")]
    pub vendor: Arc<str>,
    /// A quantity such as `80Gi`.
    #[serde(default)]
    pub memory: String,
    /// Indexes of cards that must not be used.
    #[serde(default)]
    pub sick: BTreeSet<u16>,
    /// The resource they are handed out under; absent: the vendor's usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<Arc<str>>,
    /// What one of `count` is, where it is not a whole card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
}

fn nvidia() -> Arc<str> {
    Arc::from("nvidia")
}

/// `count` equal requests; with `gang` they start together or not at all.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RequestEntry {
    pub name: Arc<str>,
    pub namespace: Arc<str>,
    pub count: u32,
    pub labels: Labels,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuAsk>,
    pub resources: Resources,
    pub constraints: Constraints,
    pub priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangEntry>,
}

impl Default for RequestEntry {
    fn default() -> Self {
        let request = Request::default();
        Self {
            name: request.name,
            namespace: Arc::from("default"),
            count: 1,
            labels: request.labels,
            gpu: None,
            resources: request.resources,
            constraints: request.constraints,
            priority: 0,
            gang: None,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct GpuAsk {
    pub count: u32,
    /// Part of one card, above 0 and at most 1.
    pub fraction: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<Arc<str>>,
    pub models: BTreeSet<Arc<str>>,
    /// A quantity such as `40Gi`.
    pub min_memory: String,
    /// Whether it is for whole cards, a seat on a shared one, or parts.
    pub part: Part,
}

impl Default for GpuAsk {
    fn default() -> Self {
        Self {
            count: 1,
            fraction: 1.0,
            vendor: None,
            models: BTreeSet::new(),
            min_memory: String::new(),
            part: Part::Whole,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct GangEntry {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required: Option<Level>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred: Option<Level>,
}

#[derive(Clone, Debug, PartialEq, Error)]
pub enum ScenarioError {
    #[error("failed to read node {node}: {problem}")]
    Node { node: Arc<str>, problem: String },
    #[error("failed to read request {request}: {problem}")]
    Request { request: Arc<str>, problem: String },
    #[error("failed to read node {0}: another node has the same name")]
    Duplicate(Arc<str>),
    #[error(transparent)]
    Fleet(#[from] FleetError),
}

/// What became of the requests under one policy.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    pub policy: Policy,
    pub placed: Vec<Placed>,
    pub refused: Vec<Refused>,
    /// Of all GPUs, in percent.
    pub allocated: f64,
    /// US dollars an hour of the placed GPUs, where prices are known.
    pub cost_per_hour: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Placed {
    pub request: Arc<str>,
    pub node: Arc<str>,
    pub cards: Vec<u16>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Refused {
    pub request: Arc<str>,
    pub reason: String,
    /// Each of these alone would make it fit.
    pub changes: Vec<String>,
}

/// The largest number of machines or requests one entry may stand for.
const MOST: u32 = 200_000;

impl Scenario {
    pub fn fleet(&self) -> Result<Fleet, ScenarioError> {
        let mut fleet = Fleet::new();
        for entry in &self.nodes {
            let node = entry.node()?;
            for at in 0..entry.count {
                let name = if entry.count == 1 {
                    Arc::clone(&entry.name)
                } else {
                    Arc::from(format!("{}-{at}", entry.name))
                };
                let mut node = Node {
                    name: Arc::clone(&name),
                    ..node.clone()
                };
                node.labels
                    .entry(Arc::from("kubernetes.io/hostname"))
                    .or_insert_with(|| Arc::clone(&name));
                if fleet.set_node(node).is_some() {
                    return Err(ScenarioError::Duplicate(name));
                }
            }
        }
        Ok(fleet)
    }

    /// Decides every request, higher priority first, in the order of the file among equals.
    pub fn run(&self, policy: impl Into<Weighed>, seed: u64) -> Result<Outcome, ScenarioError> {
        let mut fleet = self.fleet()?;
        let weighed = policy.into();
        let mut planner = Planner::with_strategy(weighed.strategy(seed), seed);
        let mut outcome = Outcome {
            policy: weighed.policy,
            placed: Vec::new(),
            refused: Vec::new(),
            allocated: 0.0,
            cost_per_hour: 0.0,
        };
        let mut order: Vec<_> = self.requests.iter().collect();
        order.sort_by_key(|entry| std::cmp::Reverse(entry.priority));
        for entry in order {
            let request = Arc::new(entry.request()?);
            match &entry.gang {
                Some(gang) => outcome.gang(&mut fleet, &mut planner, entry, gang, &request)?,
                None => {
                    for at in 0..entry.count {
                        outcome.single(&mut fleet, &mut planner, entry.numbered(at), &request)?;
                    }
                }
            }
        }
        let used: u64 = fleet
            .works()
            .filter_map(|work| work.request.gpu.as_ref())
            .map(GpuRequest::total_milli)
            .sum();
        outcome.allocated = 100.0 * used as f64 / (fleet.totals().gpu_milli() as f64).max(1.0);
        Ok(outcome)
    }
}

impl Outcome {
    fn single(
        &mut self,
        fleet: &mut Fleet,
        planner: &mut Planner,
        name: Arc<str>,
        request: &Arc<Request>,
    ) -> Result<(), ScenarioError> {
        match planner.place(fleet, request) {
            Ok(placement) => self.bind(fleet, name, request, &placement)?,
            Err(explanation) => {
                let join = |set: Vec<Change>| {
                    set.iter()
                        .map(Change::to_string)
                        .collect::<Vec<_>>()
                        .join(" and ")
                };
                let changes = smallest_changes(fleet, request)
                    .into_iter()
                    .map(join)
                    .collect();
                self.refused.push(Refused {
                    request: name,
                    reason: explanation.to_string(),
                    changes,
                });
            }
        }
        Ok(())
    }

    fn gang(
        &mut self,
        fleet: &mut Fleet,
        planner: &mut Planner,
        entry: &RequestEntry,
        shape: &GangEntry,
        request: &Arc<Request>,
    ) -> Result<(), ScenarioError> {
        let gang = Gang {
            name: Arc::clone(&entry.name),
            members: vec![Member {
                request: Arc::clone(request),
                count: entry.count,
            }],
            required: shape.required,
            preferred: shape.preferred,
            near: None,
        };
        match planner.place_gang(fleet, &gang) {
            Ok(placed) => {
                for (at, member) in (0..).zip(&placed.members) {
                    self.bind(fleet, entry.numbered(at), request, &member.placement)?;
                }
            }
            Err(refusal) => {
                let (request, reason) = (Arc::clone(&entry.name), refusal.to_string());
                self.refused.push(Refused {
                    request,
                    reason,
                    changes: Vec::new(),
                });
            }
        }
        Ok(())
    }

    fn bind(
        &mut self,
        fleet: &mut Fleet,
        name: Arc<str>,
        request: &Arc<Request>,
        placement: &Placement,
    ) -> Result<(), ScenarioError> {
        fleet.bind(placement.work(
            Arc::clone(&name),
            Arc::clone(request),
            0,
            WorkState::Running,
        ))?;
        let price = fleet
            .node(placement.node_id)
            .and_then(|node| node.price_per_gpu_hour_micros);
        let milli = request.gpu.as_ref().map_or(0, GpuRequest::total_milli);
        self.cost_per_hour += price.unwrap_or(0) as f64 / 1e6 * milli as f64 / f64::from(WHOLE);
        let cards = placement
            .gpus
            .as_ref()
            .map(|taken| taken.cards.clone())
            .unwrap_or_default();
        self.placed.push(Placed {
            request: name,
            node: Arc::clone(&placement.node),
            cards,
        });
        Ok(())
    }
}

impl NodeEntry {
    fn node(&self) -> Result<Node, ScenarioError> {
        let wrong = |problem: String| ScenarioError::Node {
            node: Arc::clone(&self.name),
            problem,
        };
        if self.name.is_empty() {
            return Err(wrong("it has no name".into()));
        }
        if self.count == 0 || self.count > MOST {
            return Err(wrong(format!(
                "count is {}, expected 1 to {MOST}",
                self.count
            )));
        }
        let mut gpus = Vec::new();
        let mut allocatable = self.allocatable.clone();
        for entry in &self.gpus {
            let healthy = |at| Card {
                healthy: !entry.sick.contains(&at),
            };
            let memory_bytes = bytes(&entry.memory).map_err(wrong)?;
            let usual = || Arc::from(format!("{}.com/gpu", entry.vendor));
            let resource = entry.resource.clone().unwrap_or_else(usual);
            let unit = entry.unit.clone().unwrap_or_default();
            let cards = if unit.is_whole() || unit.limits.is_some() {
                Cards::Each((0..entry.count).map(healthy).collect())
            } else {
                let counted = allocatable.extended.entry(Arc::clone(&resource));
                counted.or_insert(i64::from(entry.count));
                Cards::Counted
            };
            gpus.push(GpuPool {
                vendor: Arc::clone(&entry.vendor),
                resource,
                unit,
                ..GpuPool::nvidia(&entry.model, memory_bytes, cards)
            });
        }
        let price = self.price_per_gpu_hour.map(|price| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked here"
            )]
            (0.0..1e6)
                .contains(&price)
                .then_some((price * 1e6).round() as u64)
        });
        if price == Some(None) {
            return Err(wrong("pricePerGpuHour is no price".into()));
        }
        Ok(Node {
            name: Arc::clone(&self.name),
            labels: self.labels.clone(),
            taints: self.taints.clone(),
            unschedulable: self.unschedulable,
            ready: self.ready,
            allocatable,
            pods: self.pods,
            gpus,
            price_per_gpu_hour_micros: price.flatten(),
            cheap: self.cheap,
            topology: self.topology.clone(),
        })
    }
}

/// A quantity of bytes; empty text is 0.
fn bytes(text: &str) -> Result<u64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let value = text
        .parse::<Quantity>()
        .and_then(Quantity::value)
        .map_err(|error| error.to_string())?;
    u64::try_from(value).map_err(|_| format!("memory {text} is negative"))
}

impl RequestEntry {
    fn numbered(&self, at: u32) -> Arc<str> {
        if self.count == 1 {
            Arc::clone(&self.name)
        } else {
            Arc::from(format!("{}-{at}", self.name))
        }
    }

    fn request(&self) -> Result<Request, ScenarioError> {
        let wrong = |problem: String| ScenarioError::Request {
            request: Arc::clone(&self.name),
            problem,
        };
        if self.name.is_empty() {
            return Err(wrong("it has no name".into()));
        }
        if self.count == 0 || self.count > MOST {
            return Err(wrong(format!(
                "count is {}, expected 1 to {MOST}",
                self.count
            )));
        }
        let gpu = match &self.gpu {
            None => None,
            Some(ask) => {
                if !(ask.fraction > 0.0 && ask.fraction <= 1.0) {
                    return Err(wrong(format!(
                        "fraction is {}, expected above 0 and at most 1",
                        ask.fraction
                    )));
                }
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "at most 1000"
                )]
                let milli = (ask.fraction * f64::from(WHOLE)).ceil() as u32;
                Some(GpuRequest {
                    count: ask.count,
                    milli,
                    resource: None,
                    vendor: ask.vendor.clone(),
                    models: ask.models.clone(),
                    min_memory_bytes: bytes(&ask.min_memory).map_err(wrong)?,
                    part: ask.part.clone(),
                })
            }
        };
        Ok(Request {
            name: Arc::clone(&self.name),
            namespace: Arc::clone(&self.namespace),
            labels: self.labels.clone(),
            gpu,
            resources: self.resources.clone(),
            constraints: self.constraints.clone(),
            priority: self.priority,
            ..Request::default()
        })
    }
}
