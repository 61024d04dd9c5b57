//! Why a request does not fit a node, with the numbers.

use std::sync::Arc;

use crate::fleet::{Contradiction, Taint};

/// The taint of a cordoned node.
pub(crate) const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The request itself is impossible.
    Contradiction(Contradiction),
    NotReady,
    /// Cordoned.
    Unschedulable,
    /// The request names another node.
    OtherNode {
        wanted: Arc<str>,
    },
    /// A `nodeSelector` label is missing or different.
    Selector {
        key: Arc<str>,
        wanted: Arc<str>,
    },
    /// No alternative of the required node affinity holds.
    Affinity,
    Taint(Taint),
    TooManyPods {
        limit: i64,
    },
    /// CPU (in thousandths), memory (bytes) or a named resource.
    Insufficient {
        resource: Arc<str>,
        needed: i64,
        free: i64,
        total: i64,
    },
    NoGpu,
    /// The node's GPUs are of kinds the request does not accept.
    GpuModel {
        found: Arc<str>,
    },
    GpuVendor {
        found: Arc<str>,
    },
    GpuMemory {
        needed: u64,
        found: u64,
    },
    /// Whole cards: too few idle ones.
    FewGpus {
        needed: u32,
        idle: u32,
        total: u32,
        sick: u32,
    },
    /// Parts or seats: too few free ones.
    FewParts {
        needed: u32,
        idle: u32,
        total: u32,
        what: Arc<str>,
    },
    /// The node's GPUs are handed out in another way than asked for.
    GpuUnit {
        found: Arc<str>,
    },
    /// A fraction: no card has that much left.
    NoRoomOnCard {
        needed: u32,
        largest: u32,
    },
    /// A fraction, on a node whose cards are only counted.
    WholeCardsOnly,
    HostPort {
        port: u16,
        holder: Arc<str>,
    },
    /// A volume it needs cannot be reached from the node.
    Volume {
        claim: Arc<str>,
    },
    /// The node lacks the label a pod term or a spread constraint is about.
    NoTopologyLabel {
        key: Arc<str>,
    },
    /// No pod this one wants to be near is in the node's domain.
    PodAffinity {
        key: Arc<str>,
    },
    /// A pod this one avoids is in the node's domain.
    PodAntiAffinity {
        key: Arc<str>,
        holder: Arc<str>,
    },
    /// A pod in the node's domain avoids this one.
    Repelled {
        key: Arc<str>,
        holder: Arc<str>,
    },
    Spread {
        key: Arc<str>,
        skew: i64,
        max: u32,
    },
}

/// Who could remove a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// Other work, by ending or by coming.
    Work,
    /// Whoever cordoned the node.
    Cordon,
    /// The node, by recovering.
    Health,
    /// Whoever tainted the node, or a toleration.
    Taint,
    /// A volume that can be reached from here.
    Storage,
    /// Nobody: even empty, this node could not hold this request.
    Request,
}

/// Prefixes of the taints Kubernetes itself puts on nodes that are not well. They say how a node is,
/// not whom it is for, so no request should tolerate them to be placed.
const CONDITION_TAINTS: [&str; 2] = ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"];

/// Whether a taint states a node's condition.
pub(crate) fn states_condition(taint: &Taint) -> bool {
    CONDITION_TAINTS
        .iter()
        .any(|prefix| taint.key.starts_with(prefix))
}

impl Reason {
    /// Who could remove it.
    pub fn obstacle(&self) -> Obstacle {
        match self {
            Self::NotReady => Obstacle::Health,
            Self::Unschedulable => Obstacle::Cordon,
            Self::Taint(taint) if &*taint.key == UNSCHEDULABLE => Obstacle::Cordon,
            Self::Taint(taint) if states_condition(taint) => Obstacle::Health,
            Self::Taint(_) => Obstacle::Taint,
            Self::Volume { .. } => Obstacle::Storage,
            Self::Insufficient { needed, total, .. } if needed > total => Obstacle::Request,
            Self::FewGpus { needed, total, .. } | Self::FewParts { needed, total, .. }
                if needed > total =>
            {
                Obstacle::Request
            }
            Self::TooManyPods { limit } if *limit < 1 => Obstacle::Request,
            Self::Insufficient { .. }
            | Self::FewGpus { .. }
            | Self::FewParts { .. }
            | Self::TooManyPods { .. }
            | Self::NoRoomOnCard { .. }
            | Self::HostPort { .. }
            | Self::PodAffinity { .. }
            | Self::PodAntiAffinity { .. }
            | Self::Repelled { .. }
            | Self::Spread { .. } => Obstacle::Work,
            Self::Contradiction(_)
            | Self::OtherNode { .. }
            | Self::Selector { .. }
            | Self::Affinity
            | Self::NoGpu
            | Self::GpuModel { .. }
            | Self::GpuVendor { .. }
            | Self::GpuMemory { .. }
            | Self::GpuUnit { .. }
            | Self::WholeCardsOnly
            | Self::NoTopologyLabel { .. } => Obstacle::Request,
        }
    }

    /// Reasons of equal label are folded into one phrase of an explanation.
    pub fn label(&self) -> String {
        match self {
            Self::Contradiction(contradiction) => contradiction.to_string(),
            Self::NotReady => "not ready".into(),
            Self::Unschedulable => "cordoned".into(),
            Self::OtherNode { wanted } => format!("not node {wanted}"),
            Self::Selector { key, wanted } => format!("not labelled {key}={wanted}"),
            Self::Affinity => "outside the required node affinity".into(),
            Self::Taint(taint) => format!("tainted {taint}"),
            Self::TooManyPods { limit } => format!("at their limit of {limit} pods"),
            Self::Insufficient {
                resource, needed, ..
            } => {
                format!("short of {} {resource}", amount(resource, *needed))
            }
            Self::NoGpu => "without GPUs".into(),
            Self::GpuModel { found } if found.is_empty() => "with GPUs of an unknown model".into(),
            Self::GpuModel { found } | Self::GpuVendor { found } => format!("with {found} GPUs"),
            Self::GpuMemory { found, .. } => {
                format!(
                    "with only {} of GPU memory",
                    bytes(i64::try_from(*found).unwrap_or(i64::MAX))
                )
            }
            Self::FewGpus { needed, .. } => format!("with fewer than {needed} idle GPUs"),
            Self::FewParts { needed, what, .. } => format!("with fewer than {needed} free {what}"),
            Self::GpuUnit { found } => format!("offering only {found}"),
            Self::NoRoomOnCard { needed, .. } => format!("without {needed}/1000 left on a card"),
            Self::WholeCardsOnly => "handing out whole GPUs only".into(),
            Self::HostPort { port, .. } => format!("with port {port} in use"),
            Self::Volume { claim } => format!("out of reach of the volume of claim {claim}"),
            Self::NoTopologyLabel { key } => format!("without label {key}"),
            Self::PodAffinity { key } => format!("without a wanted pod in their {key}"),
            Self::PodAntiAffinity { key, .. } => format!("with an avoided pod in their {key}"),
            Self::Repelled { key, .. } => format!("with a pod that avoids this one in their {key}"),
            Self::Spread { key, max, .. } => format!("over the allowed skew of {max} by {key}"),
        }
    }

    /// What is missing, in numbers.
    pub fn numbers(&self) -> String {
        match self {
            Self::FewGpus {
                needed,
                idle,
                total,
                sick,
            } => {
                let sick = if *sick > 0 {
                    format!(", {sick} sick")
                } else {
                    String::new()
                };
                format!("{idle} of {total} GPUs idle{sick}, {needed} needed")
            }
            Self::FewParts {
                needed,
                idle,
                total,
                what,
            } => format!("{idle} of {total} {what} free, {needed} needed"),
            Self::NoRoomOnCard { needed, largest } => {
                format!("at most {largest}/1000 left on a card, {needed} needed")
            }
            Self::Insufficient {
                resource,
                needed,
                free,
                ..
            } => format!(
                "{} {resource} free, {} needed",
                amount(resource, (*free).max(0)),
                amount(resource, *needed)
            ),
            other => other.label(),
        }
    }

    /// Whether only waiting or eviction can help, not a change of the request's constraints.
    pub fn is_capacity(&self) -> bool {
        matches!(
            self,
            Self::Insufficient { .. }
                | Self::FewGpus { .. }
                | Self::FewParts { .. }
                | Self::NoRoomOnCard { .. }
                | Self::TooManyPods { .. }
                | Self::HostPort { .. }
        )
    }
}

/// An amount as people write it: cores, bytes with a binary unit, or a plain number.
pub(crate) fn amount(resource: &str, value: i64) -> String {
    match resource {
        "cpu" if value % 1000 == 0 => format!("{}", value / 1000),
        "cpu" => format!("{value}m"),
        "memory" | "ephemeral-storage" => bytes(value),
        _ => value.to_string(),
    }
}

/// Bytes the way a manifest has them, in the largest binary unit that keeps the number exact to a tenth.
pub(crate) fn bytes(value: i64) -> String {
    let units = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled.abs() >= 1024.0 && unit + 1 < units.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if (scaled - scaled.round()).abs() < 0.05 {
        format!("{scaled:.0}{}", units[unit])
    } else {
        format!("{scaled:.1}{}", units[unit])
    }
}
