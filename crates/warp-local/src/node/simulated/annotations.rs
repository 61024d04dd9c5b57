//! The annotations that steer simulated pods and nodes; `docs/guides/one-machine.md` lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;

use crate::node::spelling;

/// Every annotation begins with this.
pub const PREFIX: &str = "sim.gpu.warp.dev/";

/// Names of annotations on pods. Most may end in `.<container>` to mean one container only.
pub(in crate::node) const NAMES: [&str; 17] = [
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
    "message",
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
    /// What is wrong with the others, in words.
    pub(super) unknown: Vec<String>,
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

/// Reads a node's annotations. What cannot be read is left out rather than guessed, and told.
pub(super) fn on_node(node: &Node) -> OnNode {
    let mut found = OnNode::default();
    for (key, value) in node.metadata.annotations.iter().flatten() {
        let Some(name) = key.strip_prefix(PREFIX) else {
            continue;
        };
        match name {
            NODE_LOST => {
                found.lost = value == "true";
                if !matches!(value.as_str(), "true" | "false") {
                    let why = format!("annotation {key}: \"{value}\" is neither true nor false");
                    found.unknown.push(why);
                }
            }
            LOST_GPUS if value == "all" => found.lost_gpus = Numbers::All,
            LOST_GPUS => {
                let (numbers, others): (Vec<_>, Vec<_>) = value
                    .split(',')
                    .map(str::trim)
                    .filter(|number| !number.is_empty())
                    .partition(|number| number.parse::<u32>().is_ok());
                found.unknown.extend(others.iter().map(|other| {
                    format!("annotation {key}: \"{other}\" is not the number of a GPU; write 0,1,… or all")
                }));
                let numbers = numbers.iter().filter_map(|number| number.parse().ok());
                found.lost_gpus = Numbers::Some(numbers.collect());
            }
            _ if NAMES.contains(&name) => {
                found.behaviour.insert(key.clone(), value.clone());
            }
            _ => {
                let known = NAMES.into_iter().chain([NODE_LOST, LOST_GPUS]);
                let hint = spelling::hint(name, known);
                found.unknown.push(format!(
                    "annotation {key} means nothing on a simulated node and is ignored{hint}"
                ));
            }
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::on_node;

    #[test]
    fn what_means_nothing_on_a_node_is_told_with_the_name_that_was_meant() {
        let told = |key: &str, value: &str| {
            let key = format!("sim.gpu.warp.dev/{key}");
            let node: Node =
                serde_json::from_value(json!({"metadata": {"annotations": {key: value}}})).unwrap();
            on_node(&node).unknown.join("; ")
        };
        for (key, value) in [
            ("node-lost", "true"),
            ("lost-gpus", "0, 2"),
            ("run-time", "5s"),
        ] {
            assert_eq!(told(key, value), "", "{key}");
        }
        assert!(told("node-lots", "true").ends_with("did you mean \"node-lost\"?"));
        assert!(told("runtime", "5s").contains("did you mean \"run-time\"?"));
        assert!(told("weather", "rain").contains("known are pull-time"));
        assert!(told("lost-gpus", "0,first").contains("\"first\" is not the number of a GPU"));
        assert!(told("node-lost", "yes").contains("neither true nor false"));
    }
}
