//! Parts and shares in the ledger: never more of a device than it has, whoever holds it and in whatever order it came.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use crate::check;
use crate::fleet::{
    Cards, Fleet, GpuPool, GpuRequest, Limits, Node, Part, Request, Unit, Work, WorkState,
};
use crate::gpu::Isolation;
use crate::resources::Resources;
use crate::schedule::fit::reasons;
use crate::schedule::{Planner, Policy};

const CARD: u64 = 24_000;

fn limited() -> Unit {
    Unit {
        shared: true,
        isolation: Isolation::Software,
        limits: Some(Limits {
            memory: Arc::from("nvidia.com/gpumem"),
            cores: Some(Arc::from("nvidia.com/gpucores")),
            card_mib: CARD,
        }),
        ..Unit::default()
    }
}

fn seats(each: u32, isolation: Isolation) -> Unit {
    Unit {
        milli: 1000 / each,
        shared: true,
        isolation,
        ..Unit::default()
    }
}

fn part(name: &str, milli: u32) -> Unit {
    Unit {
        milli,
        partition: Some(Arc::from(name)),
        ..Unit::default()
    }
}

fn node(name: &str, unit: Unit, devices: usize, units: i64) -> Node {
    let cards = if unit.limits.is_some() {
        Cards::each(devices)
    } else {
        Cards::Counted
    };
    let mut allocatable = Resources::new(64_000, 1 << 40).with("nvidia.com/gpu", units);
    if unit.limits.is_some() {
        let (devices, card) = (
            i64::try_from(devices).unwrap(),
            i64::try_from(CARD).unwrap(),
        );
        allocatable = allocatable
            .with("nvidia.com/gpumem", devices * card)
            .with("nvidia.com/gpucores", devices * 100);
    }
    Node {
        name: Arc::from(name),
        allocatable,
        gpus: vec![GpuPool {
            unit,
            ..GpuPool::nvidia("L4", CARD << 20, cards)
        }],
        ..Node::default()
    }
}

fn fleet(nodes: Vec<Node>) -> Fleet {
    Fleet::rebuild(nodes, []).unwrap()
}

fn asks(gpu: GpuRequest) -> Request {
    Request {
        name: Arc::from("asks"),
        gpu: Some(gpu),
        ..Request::default()
    }
}

fn shared(milli: u32, isolation: Isolation) -> GpuRequest {
    GpuRequest {
        milli,
        part: Part::Shared {
            isolation,
            partition: None,
        },
        ..GpuRequest::whole(1)
    }
}

fn partition(name: &str, count: u32) -> GpuRequest {
    GpuRequest {
        part: Part::Partition {
            name: Arc::from(name),
            isolation: Isolation::None,
        },
        ..GpuRequest::whole(count)
    }
}

fn chosen(fleet: &Fleet, gpu: GpuRequest) -> Option<String> {
    let request = asks(gpu);
    let placement = Planner::new(Policy::Warp, 1).choose(fleet, &request)?;
    assert_eq!(check::placement(fleet, &request, &placement), []);
    Some(placement.node.to_string())
}

/// A pod as another scheduler, or this one a moment ago, has bound it: by names alone.
fn pod(id: &str, node: &str, amounts: &[(&str, i64)]) -> Work {
    let mut resources = Resources::default();
    for (name, amount) in amounts {
        resources = resources.with(name, *amount);
    }
    Work {
        id: Arc::from(id),
        request: Arc::new(Request {
            name: Arc::from(id),
            resources,
            ..Request::default()
        }),
        node: Arc::from(node),
        gpus: None,
        since: 0,
        state: WorkState::Running,
    }
}

#[test]
fn each_request_lands_only_on_units_of_its_own() {
    let fleet = fleet(vec![
        node("whole", Unit::default(), 4, 4),
        node("sliced", seats(4, Isolation::None), 1, 4),
        node("mps", seats(4, Isolation::Software), 1, 4),
        node("mig", part("1g.10gb", 142), 1, 7),
        node("amount", limited(), 2, 20),
    ]);
    let on = |gpu| chosen(&fleet, gpu).unwrap_or_default();
    assert_eq!(on(GpuRequest::whole(1)), "whole");
    assert_eq!(on(partition("1g.10gb", 3)), "mig");
    assert_eq!(on(partition("2g.20gb", 1)), "");
    assert_eq!(on(shared(1000, Isolation::Software)), "mps");
    assert!(["mps", "sliced"].contains(&on(shared(1000, Isolation::None)).as_str()));
    assert_eq!(on(shared(1000, Isolation::Hardware)), "");
    assert_eq!(on(shared(500, Isolation::Software)), "amount");
    assert_eq!(
        on(shared(500, Isolation::None)),
        "amount",
        "a quarter is too little"
    );
    let told = |gpu, name: &str| {
        let found = reasons(&fleet, &asks(gpu), fleet.find(name).unwrap());
        found
            .first()
            .map(crate::schedule::Reason::label)
            .unwrap_or_default()
    };
    assert_eq!(
        told(GpuRequest::whole(1), "sliced"),
        "offering only shared GPUs (1/4 each)"
    );
    assert_eq!(
        told(partition("2g.20gb", 1), "mig"),
        "offering only 1g.10gb"
    );
    assert_eq!(
        told(partition("1g.10gb", 8), "mig"),
        "with fewer than 8 free 1g.10gb"
    );
    assert_eq!(
        told(shared(250, Isolation::Software), "whole"),
        "offering only whole GPUs"
    );
}

#[test]
fn what_others_hold_by_name_is_counted_in_shares() {
    let mut fleet = fleet(vec![node("a", limited(), 2, 20)]);
    let quarter = [("nvidia.com/gpu", 1), ("nvidia.com/gpumem", 6000)];
    for at in 0..7 {
        fleet.bind(pod(&format!("p{at}"), "a", &quarter)).unwrap();
    }
    assert_eq!(
        chosen(&fleet, shared(250, Isolation::Software)).as_deref(),
        Some("a")
    );
    assert_eq!(chosen(&fleet, shared(500, Isolation::Software)), None);
    fleet.bind(pod("p7", "a", &quarter)).unwrap();
    assert_eq!(chosen(&fleet, shared(250, Isolation::Software)), None);
    assert_eq!(check::not_over_committed(&fleet), []);
    fleet.release("p0");
    fleet.release("p4");
    // Who names no amount gets a whole card, and there is none.
    fleet
        .bind(pod("greedy", "a", &[("nvidia.com/gpu", 1)]))
        .unwrap();
    assert_ne!(check::not_over_committed(&fleet), []);
}

#[test]
fn a_tile_takes_a_seat_on_its_card() {
    let mut unit = part("tile", 500);
    unit.beside = Some(Arc::from("gpu.intel.com/i915"));
    let mut tiles = node("a", unit, 2, 4);
    tiles.allocatable = tiles.allocatable.with("gpu.intel.com/i915", 1);
    let mut fleet = fleet(vec![tiles]);
    assert_eq!(chosen(&fleet, partition("tile", 2)).as_deref(), Some("a"));
    fleet
        .bind(pod(
            "p",
            "a",
            &[("nvidia.com/gpu", 1), ("gpu.intel.com/i915", 1)],
        ))
        .unwrap();
    assert_eq!(
        chosen(&fleet, partition("tile", 1)),
        None,
        "no seat is left"
    );
}

fn unit() -> impl Strategy<Value = (Unit, i64)> {
    prop_oneof![
        Just((Unit::default(), 2)),
        (1..5_u32).prop_map(|each| (seats(each + 1, Isolation::None), i64::from(each + 1) * 2)),
        (1..5_u32).prop_map(|each| (
            seats(each + 1, Isolation::Software),
            i64::from(each + 1) * 2
        )),
        Just((part("1g.10gb", 142), 14)),
        Just((part("cpx_nps4", 125), 16)),
        Just((limited(), 20)),
    ]
}

fn wanted() -> impl Strategy<Value = GpuRequest> {
    prop_oneof![
        (1..3_u32).prop_map(GpuRequest::whole),
        prop_oneof![
            Just("1g.10gb"),
            Just("cpx"),
            Just("cpx_nps4"),
            Just("2g.20gb")
        ]
        .prop_flat_map(|name| (1..4_u32).prop_map(move |count| partition(name, count))),
        (
            prop_oneof![Just(1000_u32), 1..1000_u32],
            prop_oneof![Just(Isolation::None), Just(Isolation::Software)],
        )
            .prop_map(|(milli, isolation)| shared(milli, isolation)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_device_is_given_out_more_often_than_it_has_shares(
        units in prop::collection::vec(unit(), 1..5),
        asked in prop::collection::vec(wanted(), 1..40),
        leaving in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let nodes = units.into_iter().enumerate();
        let mut fleet = fleet(nodes.map(|(at, (unit, count))| node(&format!("n{at}"), unit, 2, count)).collect());
        let mut planner = Planner::new(Policy::Warp, 7);
        let mut bound: Vec<Arc<str>> = Vec::new();
        let mut leaving = leaving.into_iter();
        for (at, gpu) in asked.into_iter().enumerate() {
            let request = asks(gpu.clone());
            let Some(placement) = planner.choose(&fleet, &request) else {
                prop_assert_eq!(check::refusal(&fleet, &request, crate::schedule::Scope::All), vec![]);
                continue;
            };
            prop_assert_eq!(check::placement(&fleet, &request, &placement), vec![]);
            let pool = &fleet.node(placement.node_id).unwrap().gpus[0];
            prop_assert!(pool.unit.serves(&gpu), "{gpu:?} on {:?}", pool.unit);
            // Half of them as decided, half as the pod that says it by names.
            let id: Arc<str> = Arc::from(format!("w{at}"));
            let work = placement.work(Arc::clone(&id), Arc::new(request), 0, WorkState::Reserved);
            let work = if at % 2 == 0 { work } else {
                let mut named = vec![(&*pool.resource, i64::from(gpu.count))];
                let extras = pool.unit.extras(&gpu);
                named.extend(extras.iter().map(|(name, amount)| (&**name, *amount)));
                pod(&id, &work.node, &named)
            };
            fleet.bind(work).unwrap();
            bound.push(id);
            prop_assert_eq!(check::not_over_committed(&fleet), vec![]);
            prop_assert_eq!(check::shares_within_devices(&fleet), vec![]);
            if let Some(one) = leaving.next() && at % 3 == 0 {
                let gone = bound.remove(one.index(bound.len()));
                fleet.release(&gone);
            }
        }
        let again = Fleet::rebuild(
            fleet.nodes().map(|(_, node)| Node::clone(node)),
            fleet.works().cloned(),
        ).unwrap();
        prop_assert!(again == fleet, "the order in which work came shows");
        for id in bound {
            fleet.release(&id);
        }
        let empty = Fleet::rebuild(fleet.nodes().map(|(_, node)| Node::clone(node)), []).unwrap();
        prop_assert!(empty == fleet, "something is left of work that went");
    }

    #[test]
    fn shares_are_packed_by_their_sizes_alone(sizes in prop::collection::vec(1..1000_u32, 0..20), cards in 1..4_usize) {
        let mut shares = BTreeMap::new();
        for size in &sizes {
            *shares.entry(*size).or_insert(0_u32) += 1;
        }
        let mut left = vec![1000_i32; cards];
        crate::fleet::unit::pack(&mut left, &shares);
        let held: i32 = sizes.iter().map(|size| size.cast_signed()).sum();
        prop_assert_eq!(left.iter().sum::<i32>(), 1000 * i32::try_from(cards).unwrap() - held);
    }
}
