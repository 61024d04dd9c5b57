//! Fleets as one writes them on a command line: `81x8` or `40x8:A100,20x4:V100`.

use crate::queue::Pool;

/// Why a fleet was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to read fleet {text:?}: {reason} (write for example 40x8:A100,20x4:V100)")]
pub struct FleetError {
    text: String,
    reason: &'static str,
}

/// Most nodes a fleet may have here; more is a typing error.
const MOST_NODES: u32 = 1_000_000;
const MOST_GPUS: u32 = 1024;

/// The pool of a fleet text: groups of `nodes x GPUs`, each with an optional GPU type.
pub fn parse(text: &str) -> Result<Pool, FleetError> {
    let bad = |reason| FleetError {
        text: text.to_owned(),
        reason,
    };
    let mut pool = Pool::default();
    for group in text.split(',') {
        let (size, kind) = group
            .trim()
            .split_once(':')
            .unwrap_or((group.trim(), "gpu"));
        let (nodes, gpus) = size
            .split_once('x')
            .ok_or_else(|| bad("a group is NODESxGPUS"))?;
        let nodes: u32 = nodes
            .trim()
            .parse()
            .map_err(|_| bad("nodes is not a number"))?;
        let gpus: u32 = gpus
            .trim()
            .parse()
            .map_err(|_| bad("GPUs is not a number"))?;
        if nodes == 0 || gpus == 0 || nodes > MOST_NODES || gpus > MOST_GPUS {
            return Err(bad("a group has 1 to 1000000 nodes of 1 to 1024 GPUs"));
        }
        let class = pool.class(kind.trim(), gpus);
        for _ in 0..nodes {
            pool.add_node(class);
        }
    }
    Ok(pool)
}
