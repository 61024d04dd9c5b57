//! Short ways to say a fleet and a request.

use std::sync::Arc;

use proptest::prelude::*;

use crate::fleet::{
    Cards, Constraints, Effect, Fleet, GpuPool, GpuRequest, Labels, Node, PodTerm, Request,
    Selector, Spread, Taint, Toleration, Work, WorkState,
};
use crate::resources::Resources;
use crate::schedule::{Planner, Policy, Scope};

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    Selector::labels(pairs).match_labels
}

/// 32 cores, 128 GiB and four T4 known card by card.
pub(crate) fn node(name: &str) -> Node {
    Node {
        name: Arc::from(name),
        labels: labels(&[("host", name)]),
        allocatable: Resources::new(32_000, 128 << 30),
        gpus: vec![GpuPool::nvidia("T4", 16 << 30, Cards::each(4))],
        ..Node::default()
    }
}

pub(crate) fn in_zone(name: &str, zone: &str) -> Node {
    let mut node = node(name);
    node.labels.insert(Arc::from("zone"), Arc::from(zone));
    node
}

pub(crate) fn fleet(nodes: &[Node]) -> Fleet {
    Fleet::rebuild(nodes.iter().cloned(), []).unwrap()
}

pub(crate) fn request(cpu_milli: i64, gpu: Option<GpuRequest>) -> Request {
    Request {
        name: Arc::from("asked"),
        namespace: Arc::from("default"),
        gpu,
        resources: Resources::new(cpu_milli, 1 << 30),
        ..Request::default()
    }
}

pub(crate) fn whole(gpus: u32) -> Request {
    request(1000, Some(GpuRequest::whole(gpus)))
}

/// A fleet of `nodes` with work by (name, node, GPUs).
pub(crate) fn busy(nodes: &[Node], work: &[(&str, &str, u32)]) -> Fleet {
    let mut fleet = fleet(nodes);
    for (id, on, gpus) in work {
        let id_of_node = fleet.find(on).unwrap();
        let asked = whole(*gpus);
        let mut planner = Planner::new(Policy::BestFit, 0);
        let placement = planner.choose_within(&fleet, &asked, Scope::Only(&[id_of_node]));
        let placement = placement.unwrap();
        let request = Arc::new(asked);
        let work = placement.work(Arc::from(*id), request, 0, WorkState::Running);
        fleet.bind(work).unwrap();
    }
    fleet
}

pub(crate) fn labelled(pairs: &[(&str, &str)], constraints: Constraints) -> Request {
    Request {
        labels: labels(pairs),
        constraints,
        ..request(1000, None)
    }
}

pub(crate) fn bound(id: &str, node: &str, request: Request) -> Work {
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

/// Places and binds a request; what it got, as text.
pub(crate) fn commit(
    fleet: &mut Fleet,
    planner: &mut Planner,
    id: &str,
    request: &Request,
) -> Option<String> {
    let placement = planner.choose(fleet, request)?;
    let work = placement.work(
        Arc::from(id),
        Arc::new(request.clone()),
        0,
        WorkState::Running,
    );
    fleet.bind(work).unwrap();
    Some(format!("{} {:?}", placement.node, placement.gpus))
}

pub(crate) fn any_node() -> impl Strategy<Value = Node> {
    (0..3_u8, 0..2_u8, any::<bool>(), any::<bool>(), 0..3_u64).prop_map(
        |(zone, app, tainted, ready, price)| {
            let mut node = in_zone("", ["a", "b", "c"][usize::from(zone)]);
            node.labels
                .insert(Arc::from("tier"), Arc::from(["x", "y"][usize::from(app)]));
            if tainted {
                node.taints.push(Taint::new("gpu", "", Effect::NoSchedule));
            }
            node.ready = ready || tainted;
            node.price_per_gpu_hour_micros = (price > 0).then_some(price * 100);
            node
        },
    )
}

pub(crate) fn named(nodes: Vec<Node>) -> Vec<Node> {
    let name = |(at, node): (usize, Node)| {
        let name: Arc<str> = Arc::from(format!("n{at:02}"));
        let mut node = Node {
            name: Arc::clone(&name),
            ..node
        };
        node.labels.insert(Arc::from("host"), name);
        node
    };
    nodes.into_iter().enumerate().map(name).collect()
}

pub(crate) fn any_request() -> impl Strategy<Value = Request> {
    let gpu = prop_oneof![
        Just(None),
        (1..4_u32).prop_map(|count| Some(GpuRequest::whole(count))),
        (1..=10_u32).prop_map(|tenth| Some(GpuRequest::fraction(tenth * 100))),
    ];
    let sizes = (0..9_i64, prop_oneof![Just(1_i64), 0..130_i64]);
    (gpu, sizes, 0..64_u8, 0..2_u8).prop_map(|(gpu, (cores, gib), bits, app)| {
        let bit = |at: u8| bits >> at & 1 == 1;
        let app = ["web", "db"][usize::from(app)];
        let term = |key: &str, app: &str| PodTerm {
            selector: Some(Selector::labels(&[("app", app)])),
            topology_key: Arc::from(key),
            ..PodTerm::default()
        };
        let mut constraints = Constraints::default();
        if bit(0) {
            constraints.node_selector = labels(&[("tier", "x")]);
        }
        if bit(1) {
            constraints.tolerations = vec![Toleration::exact(&Taint::new(
                "gpu",
                "",
                Effect::NoSchedule,
            ))];
        }
        if bit(2) {
            constraints.pod_anti_affinity = vec![term("host", app)];
        }
        if bit(3) && bit(4) {
            constraints.pod_affinity = vec![term("zone", "web")];
        }
        if bit(4) && bit(5) {
            constraints.spread = vec![Spread {
                topology_key: Arc::from("zone"),
                selector: Some(Selector::labels(&[("app", app)])),
                ..Spread::default()
            }];
        }
        Request {
            labels: labels(&[("app", app)]),
            constraints,
            resources: Resources::new(cores * 1000, gib << 30),
            ..request(cores * 1000, gpu)
        }
    })
}
