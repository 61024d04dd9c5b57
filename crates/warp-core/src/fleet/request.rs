//! What one pod-sized piece of work asks for: GPUs, other resources, and where it may run.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::prefer::{Load, Preferences};
use super::select::{Expression, Labels, NodeTerm, Operator, Selector};
use super::unit::Part;
use crate::random::Fingerprint;
use crate::resources::Resources;

/// One whole GPU, in thousandths.
pub const WHOLE: u32 = 1000;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Request {
    pub name: Arc<str>,
    pub namespace: Arc<str>,
    pub labels: Labels,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuRequest>,
    /// CPU, memory and named resources besides the GPUs asked for in `gpu`.
    pub resources: Resources,
    pub constraints: Constraints,
    #[serde(skip_serializing_if = "Preferences::is_empty")]
    pub preferences: Preferences,
    /// What scores by load count; `None` is `resources`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    pub priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_runtime_seconds: Option<u64>,
    /// How often it saves its work; `None` means an eviction loses everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_period_seconds: Option<u64>,
}

/// Whole cards (`milli` = 1000), or a part of one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct GpuRequest {
    pub count: u32,
    /// Thousandths of each card.
    pub milli: u32,
    /// The extended resource the pod will ask for, when its author fixed one (`nvidia.com/gpu`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<Arc<str>>,
    /// Accepted models; empty means any.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub models: BTreeSet<Arc<str>>,
    pub min_memory_bytes: u64,
    pub part: Part,
}

impl Default for GpuRequest {
    fn default() -> Self {
        Self::whole(1)
    }
}

impl GpuRequest {
    pub fn whole(count: u32) -> Self {
        Self {
            count,
            milli: WHOLE,
            resource: None,
            vendor: None,
            models: BTreeSet::new(),
            min_memory_bytes: 0,
            part: Part::Whole,
        }
    }

    pub fn fraction(milli: u32) -> Self {
        Self {
            milli,
            ..Self::whole(1)
        }
    }

    #[must_use]
    pub fn models(mut self, models: &[&str]) -> Self {
        self.models = models.iter().map(|&m| Arc::from(m)).collect();
        self
    }

    pub fn total_milli(&self) -> u64 {
        u64::from(self.count) * u64::from(self.milli)
    }

    pub fn is_fraction(&self) -> bool {
        self.milli < WHOLE
    }
}

/// Where the work may run, in Kubernetes' words. Everything here is required; see `Preferences` for
/// the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Constraints {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Arc<str>>,
    pub node_selector: Labels,
    /// Alternatives: one must hold. `None` is no affinity, an empty list holds nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<Vec<NodeTerm>>,
    pub tolerations: Vec<Toleration>,
    pub pod_affinity: Vec<PodTerm>,
    pub pod_anti_affinity: Vec<PodTerm>,
    pub spread: Vec<Spread>,
    pub host_ports: Vec<HostPort>,
    /// Where each volume can be reached; all must hold.
    pub volumes: Vec<Reach>,
}

/// Where a volume can be reached, or where a volume still to be made for a claim could be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reach {
    pub claim: Arc<str>,
    /// Alternatives: one must hold.
    pub nodes: Vec<NodeTerm>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Taint {
    pub key: Arc<str>,
    #[serde(default)]
    pub value: Arc<str>,
    pub effect: Effect,
}

impl Taint {
    pub fn new(key: &str, value: &str, effect: Effect) -> Self {
        Self {
            key: Arc::from(key),
            value: Arc::from(value),
            effect,
        }
    }
}

impl std::fmt::Display for Taint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.value.is_empty() {
            write!(f, "{}:{:?}", self.key, self.effect)
        } else {
            write!(f, "{}={}:{:?}", self.key, self.value, self.effect)
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TolerationOperator {
    #[default]
    Equal,
    Exists,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Toleration {
    /// Empty with `Exists` tolerates every key.
    pub key: Arc<str>,
    pub operator: TolerationOperator,
    pub value: Arc<str>,
    /// `None` tolerates every effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
}

impl Toleration {
    pub fn exact(taint: &Taint) -> Self {
        Self {
            key: Arc::clone(&taint.key),
            operator: TolerationOperator::Equal,
            value: Arc::clone(&taint.value),
            effect: Some(taint.effect),
        }
    }

    pub fn tolerates(&self, taint: &Taint) -> bool {
        let effect = self.effect.is_none_or(|effect| effect == taint.effect);
        let key = self.key.is_empty() || self.key == taint.key;
        let value = match self.operator {
            TolerationOperator::Exists => true,
            TolerationOperator::Equal => self.value == taint.value,
        };
        effect && key && value
    }
}

/// A pod (anti-)affinity term.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PodTerm {
    /// `None` selects nothing, an empty selector everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    pub topology_key: Arc<str>,
    pub namespaces: BTreeSet<Arc<str>>,
    /// `None` selects no further namespace, an empty selector all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<Selector>,
    pub match_label_keys: Vec<Arc<str>>,
    pub mismatch_label_keys: Vec<Arc<str>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodePolicy {
    #[default]
    Honor,
    Ignore,
}

/// A topology spread constraint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Spread {
    pub max_skew: u32,
    pub topology_key: Arc<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    pub min_domains: u32,
    /// Whether nodes that the pod's own selector and affinity exclude count as domains.
    pub node_affinity_policy: NodePolicy,
    /// Whether nodes whose taints the pod does not tolerate count as domains.
    pub node_taints_policy: NodePolicy,
    pub match_label_keys: Vec<Arc<str>>,
}

impl Default for Spread {
    fn default() -> Self {
        Self {
            max_skew: 1,
            topology_key: Arc::from(""),
            selector: None,
            min_domains: 1,
            node_affinity_policy: NodePolicy::Honor,
            node_taints_policy: NodePolicy::Ignore,
            match_label_keys: Vec::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostPort {
    /// Empty or `0.0.0.0` means every address.
    #[serde(default)]
    pub ip: Arc<str>,
    /// `TCP` when empty.
    #[serde(default)]
    pub protocol: Arc<str>,
    pub port: u16,
}

impl HostPort {
    pub fn conflicts(&self, other: &Self) -> bool {
        let wild = |ip: &str| ip.is_empty() || ip == "0.0.0.0";
        let protocol = |p: &Self| {
            if p.protocol.is_empty() {
                Arc::from("TCP")
            } else {
                Arc::clone(&p.protocol)
            }
        };
        self.port == other.port
            && protocol(self) == protocol(other)
            && (wild(&self.ip) || wild(&other.ip) || self.ip == other.ip)
    }
}

/// A request that no fleet could ever satisfy, with what to change.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Contradiction {
    #[error("asks for 0 GPUs: leave `gpu` out, or ask for at least 1")]
    NoGpus,
    #[error("asks for {0}/1000 of a GPU: a fraction lies between 1 and 1000")]
    FractionOutOfRange(u32),
    #[error(
        "asks for {count} fractions of {milli}/1000: a fraction is of one GPU, so set count to 1"
    )]
    ManyFractions { count: u32, milli: u32 },
    #[error("asks for a negative amount of {0}")]
    Negative(Arc<str>),
    #[error("requires label {key} to be {selected:?}, and by affinity never to be that")]
    SelectorAgainstAffinity { key: Arc<str>, selected: Arc<str> },
    #[error("requires a node affinity with no alternative: no node can match it")]
    EmptyAffinity,
}

impl Request {
    /// What scores by load count for this work.
    pub fn load(&self) -> Load {
        self.load.unwrap_or(Load {
            cpu_milli: self.resources.cpu_milli,
            memory_bytes: self.resources.memory_bytes,
        })
    }

    /// Whether this work, once placed, makes nodes better or worse for other work.
    pub(super) fn sways_others(&self) -> bool {
        self.preferences.speak_of_pods() || !self.constraints.pod_affinity.is_empty()
    }

    /// What makes the request impossible on any fleet. Empty for a sound request.
    pub fn contradictions(&self) -> Vec<Contradiction> {
        let mut found = Vec::new();
        if let Some(gpu) = &self.gpu {
            if gpu.count == 0 {
                found.push(Contradiction::NoGpus);
            }
            if gpu.milli == 0 || gpu.milli > WHOLE {
                found.push(Contradiction::FractionOutOfRange(gpu.milli));
            } else if gpu.is_fraction() && gpu.count > 1 {
                found.push(Contradiction::ManyFractions {
                    count: gpu.count,
                    milli: gpu.milli,
                });
            }
        }
        let named = [
            ("cpu", self.resources.cpu_milli),
            ("memory", self.resources.memory_bytes),
        ];
        let extended = self
            .resources
            .extended
            .iter()
            .map(|(name, &amount)| (&**name, amount));
        for (name, amount) in named.into_iter().chain(extended) {
            if amount < 0 {
                found.push(Contradiction::Negative(Arc::from(name)));
            }
        }
        if let Some(terms) = &self.constraints.node_affinity {
            if terms.is_empty() {
                found.push(Contradiction::EmptyAffinity);
            } else {
                found.extend(self.selector_against(terms));
            }
        }
        found
    }

    /// A selected label value that every affinity alternative refuses.
    fn selector_against(&self, terms: &[NodeTerm]) -> Option<Contradiction> {
        self.constraints
            .node_selector
            .iter()
            .find_map(|(key, value)| {
                let refuses = |term: &NodeTerm| {
                    term.match_expressions.iter().any(|e: &Expression| {
                        e.key == *key && e.operator != Operator::Exists && !e.matches(Some(value))
                    })
                };
                terms
                    .iter()
                    .all(refuses)
                    .then(|| Contradiction::SelectorAgainstAffinity {
                        key: Arc::clone(key),
                        selected: Arc::clone(value),
                    })
            })
    }

    /// A hash of everything that decides on which nodes the request fits and how it scores there,
    /// apart from its memory and what other pods do to it: requests that differ only in name and
    /// memory share it.
    pub fn fingerprint(&self) -> u64 {
        let mut print = Fingerprint::default()
            .signed(self.resources.cpu_milli)
            .word(self.resources.extended.len() as u64);
        for (name, &amount) in &self.resources.extended {
            print = print.text(name).signed(amount);
        }
        if let Some(gpu) = &self.gpu {
            print = print
                .word(u64::from(gpu.count))
                .word(u64::from(gpu.milli))
                .word(gpu.min_memory_bytes)
                .text(gpu.resource.as_deref().unwrap_or_default())
                .text(gpu.vendor.as_deref().unwrap_or_default())
                .word(gpu.models.len() as u64);
            print = gpu
                .models
                .iter()
                .fold(print, |print, model| print.text(model));
            print = match &gpu.part {
                Part::Whole => print,
                Part::Shared {
                    isolation,
                    partition,
                } => print
                    .word(1 + *isolation as u64)
                    .text(partition.as_deref().unwrap_or_default()),
                Part::Partition { name, isolation } => print.word(9 + *isolation as u64).text(name),
            };
        }
        self.constraints.fingerprint(print).get()
    }
}

impl Constraints {
    /// Whether more than the node and its amounts decides where this one fits.
    pub fn watch_other_pods(&self) -> bool {
        !(self.volumes.is_empty()
            && self.pod_affinity.is_empty()
            && self.pod_anti_affinity.is_empty()
            && self.spread.is_empty()
            && self.host_ports.is_empty())
    }

    fn fingerprint(&self, mut print: Fingerprint) -> Fingerprint {
        print = print
            .text(self.node_name.as_deref().unwrap_or_default())
            .word(self.node_selector.len() as u64);
        for (key, value) in &self.node_selector {
            print = print.text(key).text(value);
        }
        if let Some(terms) = &self.node_affinity {
            print = print.word(terms.len() as u64 + 1);
            print = terms
                .iter()
                .fold(print, |print, term| term.fingerprint(print));
        }
        print = print.word(self.tolerations.len() as u64);
        for toleration in &self.tolerations {
            print = print
                .text(&toleration.key)
                .word(toleration.operator as u64)
                .text(&toleration.value)
                .word(toleration.effect.map_or(9, |effect| effect as u64));
        }
        print
    }
}
