//! Why a claim waits, as a reason people can act on and one sentence with its numbers. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warp_api::workload::GpuAsk;
use warp_api::{label, reason};
use warp_core::explain::{Change, smallest_changes};
use warp_core::fleet::{Fleet, Request, Unit};
use warp_core::schedule::fit::Filter;
use warp_core::schedule::{Obstacle, Reason};

use super::{Verdict, part};
use crate::ledger::{Ledger, model_name, provider_of};

/// Changes named in one message.
const CHOICES: usize = 3;

/// What the owner could change so that it is placed now, smallest first in each dimension.
pub(super) fn hint(ledger: &Ledger, request: &Request, affinity: bool) -> Option<String> {
    let mut changes = smallest_changes(&ledger.fleet, request);
    // An affinity that this operator added is not the owner's to drop.
    changes.retain(|set| affinity || !set.contains(&Change::DropNodeAffinity));
    let words = |set: &Vec<Change>| {
        let words: Vec<String> = set.iter().map(ToString::to_string).collect();
        words.join(" and ")
    };
    let said: Vec<String> = changes.iter().take(CHOICES).map(words).collect();
    (!said.is_empty()).then(|| format!("to be placed now: {}", said.join(", or ")))
}

/// Why a node that fits is not used.
pub(crate) const REFUSED: &str = "refused by the cluster's scheduler a moment ago";
pub(crate) const KEPT: &str = "kept for work that is before it in line";

/// Nodes a claim may not have although it would fit.
pub(super) struct LeftOut<'a> {
    /// The cluster's scheduler refused them a moment ago.
    pub(super) refused: &'a [Arc<str>],
    /// They are kept for those before it.
    pub(super) kept: &'a [Arc<str>],
}

/// Why a request fits nowhere, as a reason people can act on and one sentence.
pub(super) fn explain(
    ledger: &Ledger,
    request: &Request,
    ask: &GpuAsk,
    provider: Option<&str>,
    left_out: &LeftOut<'_>,
) -> Verdict {
    let nodes: Vec<_> = ledger
        .fleet
        .nodes()
        .filter(|(_, node)| provider.is_none_or(|provider| provider_of(node) == provider))
        .collect();
    if let (Some(provider), true) = (provider, nodes.is_empty()) {
        let known: BTreeSet<&str> = ledger
            .fleet
            .nodes()
            .map(|(_, node)| provider_of(node))
            .collect();
        let known: Vec<&str> = known.into_iter().collect();
        return Verdict {
            reason: reason::NO_SUCH_PROVIDER,
            message: format!(
                "no node belongs to provider {provider} (the cluster has: {}); label a node {}={provider} or change the workload's",
                known.join(", "),
                label::PROVIDER
            ),
        };
    }
    let largest = nodes
        .iter()
        .filter_map(|(_, node)| ledger.gpus.get(&*node.name))
        .flat_map(|gpus| &gpus.devices)
        .filter(|device| ask.met_by(device))
        .map(|device| device.count)
        .max();
    match largest {
        None => Verdict {
            reason: reason::NO_SUCH_GPU,
            message: part::unoffered(ledger, ask).unwrap_or_else(|| {
                format!(
                    "no node has {}; the cluster has: {}",
                    GpuAsk {
                        count: 1,
                        ..ask.clone()
                    }
                    .describe(),
                    inventory(ledger)
                )
            }),
        },
        Some(largest) if largest < u64::from(ask.count) => Verdict {
            reason: reason::NEVER_FITS,
            message: format!(
                "it asks for {}, but the largest node has {largest}; ask for at most {largest} or add larger nodes",
                ask.describe()
            ),
        },
        Some(_) => by_reasons(ledger, request, &nodes, left_out),
    }
}

type NodeEntry<'a> = (warp_core::fleet::NodeId, &'a Arc<warp_core::fleet::Node>);

/// Folds every node's first reason into one sentence.
fn by_reasons(
    ledger: &Ledger,
    request: &Request,
    nodes: &[NodeEntry<'_>],
    left_out: &LeftOut<'_>,
) -> Verdict {
    let filter = Filter::new(&ledger.fleet, request);
    let mut folded: BTreeMap<String, usize> = BTreeMap::new();
    let mut blocked: BTreeMap<Obstacle, Vec<Blocked>> = BTreeMap::new();
    for (id, node) in nodes {
        let reasons = filter.reasons(*id);
        if reasons.is_empty() && left_out.refused.contains(&node.name) {
            *folded.entry(REFUSED.to_owned()).or_default() += 1;
        } else if reasons.is_empty() && left_out.kept.contains(&node.name) {
            *folded.entry(KEPT.to_owned()).or_default() += 1;
        } else if reasons.is_empty() {
            tracing::error!(node = %node.name, "a node that fits was not chosen");
        }
        let worst = reasons.iter().max_by_key(|reason| reason.obstacle());
        let obstacle = worst.map_or(Obstacle::Work, Reason::obstacle);
        blocked.entry(obstacle).or_default().push(Blocked {
            node: Arc::clone(&node.name),
            by: worst.cloned(),
        });
        if let Some(first) = reasons.first() {
            *folded.entry(first.label()).or_default() += 1;
        }
    }
    let mut folded: Vec<(String, usize)> = folded.into_iter().collect();
    folded.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    let list: Vec<String> = folded
        .iter()
        .map(|(label, count)| format!("{count} {label}"))
        .collect();
    let sentence = format!("0 of {} nodes fit: {}", nodes.len(), list.join(", "));
    // The first that has a node is the one that takes least to remove.
    let (reason, next) = match blocked.first_key_value() {
        Some((Obstacle::Work, _)) => (reason::WAITING_FOR_CAPACITY, None),
        Some((obstacle, nodes)) => {
            let (reason, next) = advice(*obstacle, nodes);
            (reason, Some(next))
        }
        None => (reason::NEVER_FITS, Some(CHANGE.to_owned())),
    };
    Verdict {
        reason,
        message: match next {
            Some(next) => format!("{sentence}; {next}"),
            None => sentence,
        },
    }
}

const CHANGE: &str = "change what the workload requires or add nodes";

/// What is told of nodes that one obstacle holds back, and what would remove it.
fn advice(obstacle: Obstacle, nodes: &[Blocked]) -> (&'static str, String) {
    match obstacle {
        Obstacle::Work => (
            reason::WAITING_FOR_CAPACITY,
            format!("wait for what runs on {}", names(nodes)),
        ),
        Obstacle::Cordon => (
            reason::NODES_CORDONED,
            format!("kubectl uncordon {}", names(nodes)),
        ),
        Obstacle::Health => (
            reason::NODES_NOT_READY,
            format!("repair or replace {}", names(nodes)),
        ),
        Obstacle::Taint => (reason::NODES_TAINTED, untaint(nodes)),
        Obstacle::Storage => (
            reason::VOLUME_OUT_OF_REACH,
            format!(
                "make a volume that {} can reach, or add nodes where the volume is",
                names(nodes)
            ),
        ),
        Obstacle::Request => (reason::NEVER_FITS, CHANGE.to_owned()),
    }
}

/// What is told of the nodes of a fleet that only `obstacle` holds back from a request.
pub(super) fn held_back(
    fleet: &Fleet,
    request: &Request,
    obstacle: Obstacle,
) -> (&'static str, String) {
    let filter = Filter::new(fleet, request);
    let nodes = fleet.nodes().filter_map(|(id, node)| {
        let reasons = filter.reasons(id);
        let worst = reasons.into_iter().max_by_key(Reason::obstacle)?;
        (worst.obstacle() == obstacle).then(|| Blocked {
            node: Arc::clone(&node.name),
            by: Some(worst),
        })
    });
    advice(obstacle, &nodes.collect::<Vec<_>>())
}

/// A node and the reason of it that is hardest to remove.
struct Blocked {
    node: Arc<str>,
    by: Option<Reason>,
}

fn names(nodes: &[Blocked]) -> String {
    let shown: Vec<&str> = nodes
        .iter()
        .take(CHOICES)
        .map(|found| &*found.node)
        .collect();
    match nodes.len() - shown.len() {
        0 => shown.join(" "),
        more => format!("{} (or one of {more} more)", shown.join(" ")),
    }
}

fn untaint(nodes: &[Blocked]) -> String {
    let taints: BTreeSet<String> = nodes
        .iter()
        .filter_map(|found| match &found.by {
            Some(Reason::Taint(taint)) => Some(taint.to_string()),
            _ => None,
        })
        .collect();
    let taints: Vec<String> = taints.into_iter().take(CHOICES).collect();
    format!(
        "tolerate {} in spec.podTemplate, or take the taint off {}",
        taints.join(" or "),
        names(nodes)
    )
}

/// `16 nvidia H100-80GB, 4 nvidia (unknown model)`.
fn inventory(ledger: &Ledger) -> String {
    let mut totals: BTreeMap<String, u64> = BTreeMap::new();
    for device in ledger.devices() {
        let mut name = model_name(device);
        if name.is_empty() {
            "(unknown model)".clone_into(&mut name);
        }
        match Unit::of(device) {
            None => name.push_str(" (parts nobody can ask for)"),
            Some(unit) if unit.is_whole() => {}
            Some(unit) => name = format!("{name} ({unit})"),
        }
        *totals
            .entry(format!("{} {name}", device.vendor))
            .or_default() += device.count;
    }
    if totals.is_empty() {
        return "no GPU at all".to_owned();
    }
    let list: Vec<String> = totals
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    list.join(", ")
}

/// Reasons that may pass without a change of the workload, the most hopeful first.
const HOPEFUL: [&str; 5] = [
    reason::WAITING_FOR_CAPACITY,
    reason::NODES_CORDONED,
    reason::NODES_NOT_READY,
    reason::NODES_TAINTED,
    reason::VOLUME_OUT_OF_REACH,
];

/// One verdict for all providers tried: the most hopeful reason, every explanation.
pub(super) fn fold(tried: Vec<(Option<String>, Verdict)>) -> Verdict {
    let found = |wanted: &&str| tried.iter().any(|(_, verdict)| verdict.reason == *wanted);
    let first = tried.first().map(|(_, verdict)| verdict.reason);
    let reason = HOPEFUL.into_iter().find(|wanted| found(wanted));
    let reason = reason.or(first).unwrap_or(reason::WAITING_FOR_CAPACITY);
    let parts: Vec<String> = tried
        .into_iter()
        .map(|(provider, verdict)| match provider {
            Some(provider) => format!("provider {provider}: {}", verdict.message),
            None => verdict.message,
        })
        .collect();
    Verdict {
        reason,
        message: parts.join("; "),
    }
}
