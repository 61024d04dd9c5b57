//! Why a claim waits, as a reason people can act on and one sentence with its numbers. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warp_api::workload::GpuAsk;
use warp_api::{label, reason};
use warp_core::explain::{Change, smallest_changes};
use warp_core::fleet::{Fleet, Request, Taint, Unit};
use warp_core::schedule::fit::Filter;
use warp_core::schedule::{Obstacle, Reason};

use super::claim::Claim;
use super::providers::Closed;
use super::{Verdict, part};
use crate::containers::fit;
use crate::ledger::{Ledger, model_name, provider_of};

/// Changes named in one message.
const CHOICES: usize = 3;

/// Why a claim cannot be one container at a cloud; none where it could be, as far as is known.
pub(crate) fn never_a_container(claim: &Claim) -> Option<String> {
    let [pod] = claim.pods.as_slice() else {
        let members = claim.pods.len();
        return Some(format!(
            "it is {members} pods that run together, and a cloud's container runs alone"
        ));
    };
    let mut spec = pod.spec.clone();
    // What is kept of the pods of others names no image: they have one.
    for container in &mut spec.containers {
        container.image.get_or_insert_with(|| "kept".to_owned());
    }
    fit::objection(&spec)
}

/// Whether a taint is that of a node that is one container at a cloud.
fn is_container(taint: &Taint) -> bool {
    &*taint.key == label::CONTAINER
}

/// Whether an owner could make all of these changes: what cannot be one container gains nothing by tolerating the taint of
/// such nodes, and an affinity that this operator added is not the owner's to drop.
pub(crate) fn can_be_made(set: &[Change], affinity: bool, could_be_container: bool) -> bool {
    set.iter().all(|change| match change {
        Change::DropNodeAffinity => affinity,
        Change::Tolerate(taint) => could_be_container || !is_container(taint),
        _ => true,
    })
}

/// What the owner could change so that it is placed now, smallest first in each dimension.
pub(super) fn hint(
    ledger: &Ledger,
    claim: &Claim,
    request: &Request,
    affinity: bool,
) -> Option<String> {
    let mut changes = smallest_changes(&ledger.fleet, request);
    let could_be = never_a_container(claim).is_none();
    changes.retain(|set| can_be_made(set, affinity, could_be));
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

/// Why a node is not used whose provider is closed.
pub(crate) fn shut_off(provider: &str, why: &str) -> String {
    format!("of provider {provider}, which is {why}")
}

/// Nodes a claim may not have although it would fit.
pub(super) struct LeftOut<'a> {
    /// The cluster's scheduler refused them a moment ago.
    pub(super) refused: &'a [Arc<str>],
    /// They are kept for those before it.
    pub(super) kept: &'a [Arc<str>],
    /// All but those with this label are out of the question, and are not spoken of.
    pub(super) within: Option<(&'a str, &'a str)>,
    /// They are of a provider that it has to keep off.
    pub(super) closed: &'a Closed,
    /// Why it cannot be one container at a cloud, where it cannot: nodes that are one are not for it.
    pub(super) no_container: Option<&'a str>,
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
        Some(_) => {
            let mut nodes = nodes;
            if let Some((key, domain)) = left_out.within {
                nodes.retain(|(_, node)| node.labels.get(key).is_some_and(|of| **of == *domain));
            }
            by_reasons(ledger, request, &nodes, left_out)
        }
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
        let provider = provider_of(node);
        if let (true, Some(why)) = (reasons.is_empty(), left_out.closed.get(provider)) {
            let shut = shut_off(provider, why);
            *folded.entry(shut).or_default() += 1;
        } else if reasons.is_empty() && left_out.refused.contains(&node.name) {
            *folded.entry(REFUSED.to_owned()).or_default() += 1;
        } else if reasons.is_empty() && left_out.kept.contains(&node.name) {
            *folded.entry(KEPT.to_owned()).or_default() += 1;
        } else if reasons.is_empty() {
            tracing::error!(node = %node.name, "a node that fits was not chosen");
        }
        let worst = reasons.iter().max_by_key(|reason| reason.obstacle());
        let obstacle = match worst {
            None => Obstacle::Work,
            // No toleration helps what cannot be a container.
            Some(Reason::Taint(taint))
                if is_container(taint) && left_out.no_container.is_some() =>
            {
                Obstacle::Request
            }
            Some(worst) => worst.obstacle(),
        };
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
            let (reason, next) = advice(*obstacle, nodes, left_out.no_container);
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
fn advice(
    obstacle: Obstacle,
    nodes: &[Blocked],
    no_container: Option<&str>,
) -> (&'static str, String) {
    let (containers, others): (Vec<&Blocked>, Vec<&Blocked>) =
        nodes.iter().partition(|one| one.is_container());
    let why = no_container.filter(|_| !containers.is_empty());
    let never = why.map(|why| {
        format!(
            "{} is one container at a cloud, which this cannot be ({why}): {CHANGE}",
            names(&containers)
        )
    });
    let nodes = if why.is_some() {
        others
    } else {
        nodes.iter().collect()
    };
    let nodes = nodes.as_slice();
    if let Some(never) = never.filter(|_| obstacle == Obstacle::Request || nodes.is_empty()) {
        return (reason::NEVER_FITS, never);
    }
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
    no_container: Option<&str>,
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
    advice(obstacle, &nodes.collect::<Vec<_>>(), no_container)
}

/// A node and the reason of it that is hardest to remove.
struct Blocked {
    node: Arc<str>,
    by: Option<Reason>,
}

impl Blocked {
    fn is_container(&self) -> bool {
        matches!(&self.by, Some(Reason::Taint(taint)) if is_container(taint))
    }
}

fn names(nodes: &[&Blocked]) -> String {
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

fn untaint(nodes: &[&Blocked]) -> String {
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
