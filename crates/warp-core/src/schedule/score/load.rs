//! How full a node would be, and whether CPU and memory would be used alike.

use crate::fleet::{Fleet, NodeId, Request};

use super::{FULL, each};

/// The emptier the better, the mean of CPU and memory.
pub(super) fn least_allocated(fleet: &Fleet, request: &Request, nodes: &[NodeId]) -> Vec<i64> {
    let own = request.load();
    each(fleet, nodes, |id, node| {
        let load = fleet.load(id).unwrap_or_default();
        let (mut sum, mut counted) = (0, 0);
        for (asked, all) in [
            (
                load.cpu_milli.saturating_add(own.cpu_milli),
                node.allocatable.cpu_milli,
            ),
            (
                load.memory_bytes.saturating_add(own.memory_bytes),
                node.allocatable.memory_bytes,
            ),
        ] {
            if all != 0 {
                counted += 1;
                sum += if asked > all {
                    0
                } else {
                    (all - asked).saturating_mul(FULL) / all
                };
            }
        }
        if counted == 0 { 0 } else { sum / counted }
    })
}

/// The more alike the better. A request for neither says nothing: it would gather where it is even.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "the score is cut to a hundredth, as kube-scheduler cuts it"
)]
pub(super) fn balance(fleet: &Fleet, request: &Request, nodes: &[NodeId]) -> Vec<i64> {
    let own = &request.resources;
    if own.cpu_milli == 0 && own.memory_bytes == 0 {
        return vec![0; nodes.len()];
    }
    each(fleet, nodes, |id, node| {
        let Some(free) = fleet.free(id).map(|free| &free.resources) else {
            return 0;
        };
        let share = |all: i64, free: i64, own: i64| {
            (all != 0).then(|| ((all - free + own) as f64 / all as f64).min(1.0))
        };
        let all = &node.allocatable;
        let cpu = share(all.cpu_milli, free.cpu_milli, own.cpu_milli);
        let memory = share(all.memory_bytes, free.memory_bytes, own.memory_bytes);
        let deviation = match (cpu, memory) {
            (Some(cpu), Some(memory)) => ((cpu - memory) / 2.0).abs(),
            _ => 0.0,
        };
        ((1.0 - deviation) * FULL as f64) as i64
    })
}
