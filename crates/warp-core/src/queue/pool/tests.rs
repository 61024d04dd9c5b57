use proptest::prelude::*;

use super::{Impossible, Pool};
use crate::queue::job::{Need, Shape};
use crate::queue::node_set::{End, NodeSet};

fn need(pool: &Pool, shape: Shape, types: &[&str]) -> Need {
    let types: Vec<String> = types.iter().map(|&t| t.to_owned()).collect();
    Need {
        shape,
        accepts: pool.classes_named(&types),
    }
}

/// Two classes of different sizes with some GPUs taken.
fn mixed() -> impl Strategy<Value = Pool> {
    let used = |size: u32| prop::collection::vec(0..=size, 1..5);
    (used(8), used(4)).prop_map(|(large, small)| {
        let mut pool = Pool::default();
        for (name, size, used) in [("A100", 8, large), ("V100", 4, small)] {
            let class = pool.class(name, size);
            for taken in used {
                let node = pool.add_node(class);
                pool.take(node, taken);
            }
        }
        pool
    })
}

/// Whether the shape fits on nodes with so many free GPUs, by the definition.
fn fits_by_definition(pool: &Pool, shape: Shape, avoid: &NodeSet) -> bool {
    let classes = pool.classes_named(&[]);
    let free = |class| {
        let nodes = pool
            .class_nodes(class)
            .iter()
            .filter(|n| !avoid.contains(**n));
        nodes.map(|n| pool.free_on(*n)).collect::<Vec<_>>()
    };
    match shape {
        Shape::Members { count, gpus } => classes
            .iter()
            .any(|c| free(*c).iter().map(|f| f / gpus).sum::<u32>() >= count),
        Shape::Gpus(gpus) if gpus <= 8 => {
            let large = classes.iter().filter(|c| pool.class_size(**c) >= gpus);
            large
                .into_iter()
                .any(|c| free(*c).iter().any(|f| *f >= gpus))
        }
        Shape::Gpus(gpus) => classes.iter().any(|c| {
            let size = pool.class_size(*c);
            let idle = u32::try_from(free(*c).iter().filter(|f| **f == size).count()).unwrap();
            let (whole, rest) = (gpus / size, gpus % size);
            let partly = free(*c).iter().any(|f| *f >= rest && *f < size);
            idle > whole || (idle == whole && (rest == 0 || partly))
        }),
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        (1..40_u32).prop_map(Shape::Gpus),
        (2..9_u32, 1..9_u32).prop_map(|(count, gpus)| Shape::Members { count, gpus }),
    ]
}

proptest! {
    #[test]
    fn it_fits_exactly_when_the_definition_says_so(
        pool in mixed(), shape in shape(), avoid in prop::collection::vec(0..8_u32, 0..4),
    ) {
        let avoid: NodeSet = avoid.into_iter().collect();
        let found = pool.fit(&need(&pool, shape, &[]), Some(&avoid), End::Low);
        prop_assert_eq!(found.is_some(), fits_by_definition(&pool, shape, &avoid));
        if let Some(placement) = found {
            prop_assert_eq!(placement.gpus(), shape.gpus());
            for (node, gpus) in placement.parts() {
                prop_assert!(!avoid.contains(*node) && *gpus <= pool.free_on(*node));
            }
        }
    }

    #[test]
    fn taking_and_giving_back_restores_the_pool(pool in mixed(), shapes in prop::collection::vec(shape(), 1..12)) {
        let mut changed = pool.clone();
        let mut held = Vec::new();
        for shape in shapes {
            if let Some(placement) = changed.fit(&need(&changed, shape, &[]), None, End::High) {
                for (node, gpus) in placement.parts() {
                    changed.take(*node, *gpus);
                }
                held.push(placement);
            }
        }
        let taken: u32 = held.iter().map(super::Placement::gpus).sum();
        prop_assert_eq!(changed.free() + u64::from(taken), pool.free());
        for (node, gpus) in held.iter().flat_map(super::Placement::parts) {
            changed.give(*node, *gpus);
        }
        prop_assert_eq!(changed.free(), pool.free());
        for node in 0..u32::try_from(pool.node_count()).unwrap() {
            prop_assert_eq!(changed.free_on(node), pool.free_on(node));
        }
        for gpus in 1..9 {
            let need = need(&pool, Shape::Gpus(gpus), &[]);
            prop_assert_eq!(changed.fit(&need, None, End::Low), pool.fit(&need, None, End::Low));
        }
    }
}

#[test]
fn the_tightest_node_is_taken_from_the_asked_end() {
    let mut pool = Pool::uniform(4, 8);
    pool.take(1, 5);
    pool.take(2, 5);
    let need = need(&pool, Shape::Gpus(2), &[]);
    assert_eq!(pool.fit(&need, None, End::Low).unwrap().parts(), [(1, 2)]);
    assert_eq!(pool.fit(&need, None, End::High).unwrap().parts(), [(2, 2)]);
}

#[test]
fn a_job_takes_only_types_it_accepts() {
    let mut pool = Pool::default();
    let (a, v) = (pool.class("A100", 8), pool.class("V100", 8));
    pool.add_node(a);
    pool.add_node(v);
    let wants = |types| need(&pool, Shape::Gpus(8), types);
    assert_eq!(
        pool.fit(&wants(&["V100"]), None, End::Low).unwrap().parts(),
        [(1, 8)]
    );
    assert_eq!(pool.fit(&wants(&["H100"]), None, End::Low), None);
}

#[test]
fn what_can_never_run_gets_its_reason() {
    let pool = Pool::uniform(4, 8);
    let ask = |shape, types: &[&str]| pool.possible(&need(&pool, shape, types)).unwrap_err();
    assert_eq!(
        ask(Shape::Gpus(33), &[]),
        Impossible::TooMany {
            asked: 33,
            have: 32
        }
    );
    assert_eq!(ask(Shape::Gpus(1), &["H100"]), Impossible::NoClass);
    assert_eq!(ask(Shape::Gpus(0), &[]), Impossible::Nothing);
    let members = |count, gpus| Shape::Members { count, gpus };
    assert_eq!(
        ask(members(2, 9), &[]),
        Impossible::MemberTooLarge { asked: 9, have: 8 }
    );
    assert_eq!(
        ask(members(5, 5), &[]),
        Impossible::Shape {
            asked: 25,
            have: 32
        }
    );
    assert_eq!(
        ask(Shape::Gpus(33), &[]).to_string(),
        "asks for 33 GPUs, the nodes it accepts have 32 in all"
    );
}
