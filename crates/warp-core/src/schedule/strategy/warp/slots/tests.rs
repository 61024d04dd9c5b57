use std::sync::Arc;

use proptest::prelude::*;

use super::super::Coming;
use super::{SlotClass, Slots};
use crate::fleet::{Cards, Fleet, GpuPool, GpuRequest, Node, Request, Taken, WHOLE, Work};
use crate::resources::Resources;
use crate::schedule::mix::Class;

fn class(count: u32, cores: i64, share: f64) -> SlotClass {
    SlotClass {
        class: Class {
            cpu_milli: cores * 1000,
            count,
            milli: WHOLE,
            kinds: None,
            memory_bytes: 0,
            weight: 1.0,
        },
        share,
        weight: 0.0,
    }
}

fn machines(cores: &[i64]) -> Fleet {
    let mut fleet = Fleet::new();
    for (at, cores) in cores.iter().enumerate() {
        fleet.set_node(Node {
            name: Arc::from(format!("n{at}")),
            allocatable: Resources::new(cores * 1000, 1 << 40),
            gpus: vec![GpuPool::nvidia("A100", 0, Cards::each(8))],
            ..Node::default()
        });
    }
    fleet
}

fn busy(at: usize, card: u16, cores: i64) -> Work {
    Work {
        id: Arc::from(format!("w{at}-{card}")),
        request: Arc::new(Request {
            gpu: Some(GpuRequest::whole(1)),
            resources: Resources::new(cores * 1000, 0),
            ..Request::default()
        }),
        node: Arc::from(format!("n{at}")),
        gpus: Some(Taken {
            pool: 0,
            cards: vec![card],
        }),
        since: 0,
        state: crate::fleet::WorkState::Running,
    }
}

/// What every node of the fleet is worth by its slots.
fn worth(slots: &mut Slots, fleet: &Fleet, coming: f64) -> Vec<f64> {
    let prices = slots.prices(
        fleet,
        &Coming {
            free: coming,
            renewed: coming,
        },
        1.0,
    );
    let nodes = slots.nodes.iter();
    nodes.map(|&node| prices[usize::from(node)]).collect()
}

#[test]
fn the_last_machine_a_request_needs_is_worth_more_than_one_of_many() {
    let mut cores = vec![64; 9];
    cores.push(128);
    let fleet = machines(&cores);
    // Both kinds of request are expected equally often; only one machine serves the second.
    let mut slots = Slots::new(vec![class(8, 64, 0.1), class(8, 100, 0.1)]);
    let worth = worth(&mut slots, &fleet, 20_000.0);
    assert!(worth[9] > 10.0 * worth[0], "{worth:?}");
    assert!(worth[9] <= 2.0 * 8000.0, "{worth:?}");
}

#[test]
fn a_class_told_apart_in_two_is_worth_the_same() {
    let fleet = machines(&[64; 5]);
    let mut one = Slots::new(vec![class(8, 64, 0.2)]);
    let mut two = Slots::new(vec![class(8, 64, 0.15), class(8, 64, 0.05)]);
    let (one, two) = (
        worth(&mut one, &fleet, 40_000.0),
        worth(&mut two, &fleet, 40_000.0),
    );
    for (one, two) in one.iter().zip(&two) {
        assert!((one - two).abs() < 1e-6, "{one} {two}");
    }
}

proptest! {
    #[test]
    fn what_is_counted_change_by_change_equals_what_is_counted_at_once(
        cores in proptest::collection::vec(prop_oneof![Just(32_i64), Just(96), Just(128)], 1..40),
        steps in proptest::collection::vec((0..40_usize, 0..8_u16, 1..40_i64), 1..60),
    ) {
        let classes = || vec![class(2, 16, 0.1), class(4, 32, 0.1), class(8, 120, 0.05)];
        let mut fleet = machines(&cores);
        let mut kept = Slots::new(classes());
        for (node, card, cores_asked) in steps {
            let work = busy(node % cores.len(), card, cores_asked);
            if fleet.release(&work.id).is_none() {
                fleet.bind(work).unwrap();
            }
            let mut fresh = Slots::new(classes());
            prop_assert_eq!(worth(&mut kept, &fleet, 3e4), worth(&mut fresh, &fleet, 3e4));
            prop_assert_eq!(&kept.free, &fresh.free);
        }
    }
}
