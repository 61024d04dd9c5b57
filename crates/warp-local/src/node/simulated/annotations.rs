//! The annotations that steer simulated pods and nodes; `docs/guides/one-machine.md` lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;

/// Every annotation begins with this.
pub const PREFIX: &str = "sim.gpu.warp.dev/";

/// Names of annotations on pods. Most may end in `.<container>` to mean one container only.
pub(in crate::node) const NAMES: [&str; 16] = [
    "pull-time",
    "pull-error",
    "pull-failures",
    "pull-reason",
    "config-error",
    "init-time",
    "run-time",
    "exit-code",
    "oom-after",
    "crash-after",
    "evict-after",
    "fail-first",
    "stop-time",
    "ready-after",
    "live-for",
    "log",
];
pub(in crate::node) const NODE_LOST: &str = "node-lost";
pub(in crate::node) const LOST_GPUS: &str = "lost-gpus";

/// What a node's annotations ask for.
#[derive(Debug, Default)]
pub(super) struct OnNode {
    pub(super) lost: bool,
    pub(super) lost_gpus: Numbers,
    /// Annotations with pod names, the default for every pod on the node.
    pub(super) behaviour: BTreeMap<String, String>,
}

/// Device numbers.
#[derive(Debug, Default)]
pub(super) enum Numbers {
    #[default]
    None,
    All,
    Some(BTreeSet<u32>),
}

impl Numbers {
    pub(super) fn among(&self, total: u32) -> BTreeSet<u32> {
        match self {
            Self::None => BTreeSet::new(),
            Self::All => (0..total).collect(),
            Self::Some(numbers) => numbers.range(..total).copied().collect(),
        }
    }
}

/// Reads a node's annotations. A number that is none is left out rather than guessed.
pub(super) fn on_node(node: &Node) -> OnNode {
    let mut found = OnNode::default();
    for (key, value) in node.metadata.annotations.iter().flatten() {
        match key.strip_prefix(PREFIX) {
            Some(NODE_LOST) => found.lost = value == "true",
            Some(LOST_GPUS) if value == "all" => found.lost_gpus = Numbers::All,
            Some(LOST_GPUS) => {
                let numbers = value
                    .split(',')
                    .filter_map(|number| number.trim().parse().ok());
                found.lost_gpus = Numbers::Some(numbers.collect());
            }
            Some(name) if NAMES.contains(&name) => {
                found.behaviour.insert(key.clone(), value.clone());
            }
            _ => {}
        }
    }
    found
}

/// A duration, or `None` for one that never ends.
pub(super) fn duration(text: &str) -> Result<Option<Duration>, String> {
    let text = text.trim();
    if matches!(text, "forever" | "never" | "inf" | "infinity") {
        return Ok(None);
    }
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds)
            .map(Some)
            .map_err(|_| format!("\"{text}\" is not a length of time"));
    }
    text.parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|length| Duration::try_from(length).ok())
        .map(Some)
        .ok_or_else(|| {
            format!("\"{text}\" is not a length of time; write 30s, 2m, 1h30m or forever")
        })
}
