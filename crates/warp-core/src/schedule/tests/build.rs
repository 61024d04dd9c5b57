//! Short ways to say a fleet and a request.

use std::sync::Arc;

use crate::fleet::{
    Cards, Constraints, Fleet, GpuPool, GpuRequest, Labels, Node, Request, Selector, Work,
    WorkState,
};
use crate::resources::Resources;

pub(super) fn labels(pairs: &[(&str, &str)]) -> Labels {
    Selector::labels(pairs).match_labels
}

/// 32 cores, 128 GiB and four T4 known card by card.
pub(super) fn node(name: &str) -> Node {
    Node {
        name: Arc::from(name),
        labels: labels(&[("host", name)]),
        allocatable: Resources::new(32_000, 128 << 30),
        gpus: vec![GpuPool::nvidia("T4", 16 << 30, Cards::each(4))],
        ..Node::default()
    }
}

pub(super) fn in_zone(name: &str, zone: &str) -> Node {
    let mut node = node(name);
    node.labels.insert(Arc::from("zone"), Arc::from(zone));
    node
}

pub(super) fn fleet(nodes: &[Node]) -> Fleet {
    Fleet::rebuild(nodes.iter().cloned(), []).unwrap()
}

pub(super) fn request(cpu_milli: i64, gpu: Option<GpuRequest>) -> Request {
    Request {
        name: Arc::from("asked"),
        namespace: Arc::from("default"),
        gpu,
        resources: Resources::new(cpu_milli, 1 << 30),
        ..Request::default()
    }
}

pub(super) fn labelled(pairs: &[(&str, &str)], constraints: Constraints) -> Request {
    Request {
        labels: labels(pairs),
        constraints,
        ..request(1000, None)
    }
}

pub(super) fn bound(id: &str, node: &str, request: Request) -> Work {
    Work {
        id: Arc::from(id),
        request: Arc::new(Request {
            name: Arc::from(id),
            ..request
        }),
        node: Arc::from(node),
        gpus: None,
        since: 0,
        state: WorkState::Running,
    }
}
