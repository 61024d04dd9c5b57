//! Why a pod fits nowhere, in kube-scheduler's words.

use std::collections::BTreeMap;

use warp_core::fleet::{Fleet, Request};
use warp_core::schedule::Reason;
use warp_core::schedule::fit::Filter;

/// The filters of kube-scheduler, in the order it runs them: a node is refused by the first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plugin {
    Unschedulable,
    Name,
    Taints,
    Affinity,
    Ports,
    Fit,
    Volumes,
    Spread,
    Pods,
}

fn plugin(reason: &Reason, request: &Request) -> Plugin {
    match reason {
        Reason::NoTopologyLabel { key } if !spreads_by(request, key) => Plugin::Pods,
        Reason::NotReady | Reason::Unschedulable => Plugin::Unschedulable,
        Reason::OtherNode { .. } => Plugin::Name,
        Reason::Taint(_) => Plugin::Taints,
        Reason::Selector { .. } | Reason::Affinity | Reason::Contradiction(_) => Plugin::Affinity,
        Reason::HostPort { .. } => Plugin::Ports,
        Reason::Volume { .. } => Plugin::Volumes,
        Reason::Spread { .. } | Reason::NoTopologyLabel { .. } => Plugin::Spread,
        Reason::PodAffinity { .. } | Reason::PodAntiAffinity { .. } | Reason::Repelled { .. } => {
            Plugin::Pods
        }
        Reason::TooManyPods { .. }
        | Reason::Insufficient { .. }
        | Reason::NoGpu
        | Reason::GpuModel { .. }
        | Reason::GpuVendor { .. }
        | Reason::GpuMemory { .. }
        | Reason::GpuUnit { .. }
        | Reason::FewGpus { .. }
        | Reason::FewParts { .. }
        | Reason::NoRoomOnCard { .. }
        | Reason::WholeCardsOnly => Plugin::Fit,
    }
}

/// Both spreading and affinity need a label of the node; which of them misses it?
fn spreads_by(request: &Request, key: &str) -> bool {
    request
        .constraints
        .spread
        .iter()
        .any(|spread| *spread.topology_key == *key)
}

fn words(reason: &Reason, request: &Request) -> String {
    match reason {
        Reason::NoTopologyLabel { key } if !spreads_by(request, key) => {
            "node(s) didn't match pod affinity rules".to_owned()
        }
        Reason::NotReady | Reason::Unschedulable => "node(s) were unschedulable".to_owned(),
        Reason::OtherNode { .. } => "node(s) didn't match the requested node name".to_owned(),
        Reason::Taint(_) => "node(s) had untolerated taint(s)".to_owned(),
        Reason::Selector { .. } | Reason::Affinity | Reason::Contradiction(_) => {
            "node(s) didn't match Pod's node affinity/selector".to_owned()
        }
        Reason::HostPort { .. } => {
            "node(s) didn't have free ports for the requested pod ports".to_owned()
        }
        Reason::Volume { .. } => "node(s) didn't match PersistentVolume's node affinity".to_owned(),
        Reason::TooManyPods { .. } => "Too many pods".to_owned(),
        Reason::Insufficient { resource, .. } => format!("Insufficient {resource}"),
        Reason::NoTopologyLabel { .. } => {
            "node(s) didn't match pod topology spread constraints (missing required label)"
                .to_owned()
        }
        Reason::Spread { .. } => "node(s) didn't match pod topology spread constraints".to_owned(),
        Reason::PodAffinity { .. } => "node(s) didn't match pod affinity rules".to_owned(),
        Reason::PodAntiAffinity { .. } => "node(s) didn't match pod anti-affinity rules".to_owned(),
        Reason::Repelled { .. } => {
            "node(s) didn't satisfy existing pods anti-affinity rules".to_owned()
        }
        other => other.label(),
    }
}

/// Could evicting pods from the node help against this reason?
fn is_resolvable(reason: &Reason) -> bool {
    match reason {
        Reason::Insufficient { needed, total, .. } => needed <= total,
        Reason::TooManyPods { .. }
        | Reason::HostPort { .. }
        | Reason::Spread { .. }
        | Reason::PodAntiAffinity { .. }
        | Reason::Repelled { .. } => true,
        _ => false,
    }
}

/// What a cycle without a place for a pod found out.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    nodes: usize,
    reasons: BTreeMap<String, usize>,
    /// Nodes where evicting pods might help.
    pub(super) candidates: Vec<warp_core::fleet::NodeId>,
}

impl Verdict {
    pub(super) fn new(fleet: &Fleet, request: &Request) -> Self {
        let filter = Filter::new(fleet, request);
        let mut verdict = Self {
            nodes: fleet.len(),
            ..Self::default()
        };
        for (id, _) in fleet.nodes() {
            let reasons = filter.reasons(id);
            let Some(first) = reasons.first() else {
                continue;
            };
            // Only the filter of resources lists everything that is short; the others stop at the first.
            let decisive: Vec<_> = if plugin(first, request) == Plugin::Fit {
                reasons
                    .iter()
                    .filter(|reason| plugin(reason, request) == Plugin::Fit)
                    .collect()
            } else {
                vec![first]
            };
            let mut said: Vec<String> = decisive
                .iter()
                .map(|reason| words(reason, request))
                .collect();
            said.dedup();
            for text in said {
                *verdict.reasons.entry(text).or_default() += 1;
            }
            if decisive.iter().all(|reason| is_resolvable(reason)) {
                verdict.candidates.push(id);
            }
        }
        verdict
    }

    /// A pod that cannot be looked at yet, whatever the nodes say.
    pub(super) fn message(&self, preemption: &str) -> String {
        if self.nodes == 0 {
            return "no nodes available to schedule pods".to_owned();
        }
        let mut counted: Vec<String> = self
            .reasons
            .iter()
            .map(|(text, count)| format!("{count} {text}"))
            .collect();
        counted.sort();
        format!(
            "0/{} nodes are available: {}. no new claims to deallocate, preemption: {preemption}",
            self.nodes,
            counted.join(", ")
        )
    }

    /// What to say of preemption when no victims were found on `searched` nodes.
    pub(super) fn no_victims(&self) -> String {
        let without = self.candidates.len();
        let unhelpful = self.nodes - without;
        let mut parts = Vec::new();
        if without > 0 {
            parts.push(format!(
                "{without} No preemption victims found for incoming pod"
            ));
        }
        if unhelpful > 0 {
            parts.push(format!(
                "{unhelpful} Preemption is not helpful for scheduling"
            ));
        }
        parts.sort();
        format!(
            "0/{} nodes are available: {}.",
            self.nodes,
            parts.join(", ")
        )
    }
}
