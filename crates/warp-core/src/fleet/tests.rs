use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::resources::Resources;

fn node(name: &str, cards: usize, counted: bool) -> Node {
    let mut allocatable = Resources::new(32_000, 128 << 30);
    let cards = if counted {
        allocatable = allocatable.with("nvidia.com/gpu", i64::try_from(cards).unwrap());
        Cards::Counted
    } else {
        Cards::each(cards)
    };
    let model = if counted { "A100" } else { "T4" };
    Node {
        name: Arc::from(name),
        allocatable,
        gpus: vec![GpuPool::nvidia(model, 16 << 30, cards)],
        ..Node::default()
    }
}

fn work(id: &str, on: &str, gpu: GpuRequest, cards: &[u16]) -> Work {
    Work {
        id: Arc::from(id),
        request: Arc::new(Request {
            name: Arc::from(id),
            resources: Resources::new(1000, 1 << 30),
            gpu: Some(gpu),
            ..Request::default()
        }),
        node: Arc::from(on),
        gpus: Some(Taken {
            pool: 0,
            cards: cards.to_vec(),
        }),
        since: 0,
        state: WorkState::Running,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Set {
        node: u8,
        cards: usize,
        counted: bool,
        sick: Option<usize>,
    },
    Remove {
        node: u8,
    },
    Bind {
        id: u8,
        node: u8,
        milli: u32,
        card: u16,
    },
    Release {
        id: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (
            0..4_u8,
            1..5_usize,
            any::<bool>(),
            proptest::option::of(0..4_usize)
        )
            .prop_map(|(node, cards, counted, sick)| Step::Set {
                node,
                cards,
                counted,
                sick
            }),
        (0..4_u8).prop_map(|node| Step::Remove { node }),
        (0..12_u8, 0..4_u8, 1..=1000_u32, 0..4_u16).prop_map(|(id, node, milli, card)| {
            Step::Bind {
                id,
                node,
                milli,
                card,
            }
        }),
        (0..12_u8).prop_map(|id| Step::Release { id }),
    ]
}

fn apply(fleet: &mut Fleet, step: &Step) {
    match *step {
        Step::Set {
            node: n,
            cards,
            counted,
            sick,
        } => {
            let mut node = node(&format!("n{n}"), cards, counted);
            if let (Cards::Each(cards), Some(sick)) = (&mut node.gpus[0].cards, sick)
                && let Some(card) = cards.get_mut(sick)
            {
                card.healthy = false;
            }
            fleet.set_node(node);
        }
        Step::Remove { node } => drop(fleet.remove_node(&format!("n{node}"))),
        Step::Bind {
            id,
            node,
            milli,
            card,
        } => {
            let name = format!("n{node}");
            let counted = fleet
                .find(&name)
                .and_then(|id| fleet.node(id))
                .is_some_and(|node| node.gpus[0].cards == Cards::Counted);
            let bound = if counted {
                work(&format!("w{id}"), &name, GpuRequest::whole(1), &[])
            } else {
                work(
                    &format!("w{id}"),
                    &name,
                    GpuRequest::fraction(milli),
                    &[card],
                )
            };
            // Refusals (unknown node, taken id, no such card) must leave the ledger alone; the
            // property sees it if they do not.
            let _ = fleet.bind(bound);
        }
        Step::Release { id } => drop(fleet.release(&format!("w{id}"))),
    }
}

fn rebuilt(fleet: &Fleet) -> Fleet {
    let mut again = Fleet::new();
    for (_, node) in fleet.nodes() {
        again.set_node((**node).clone());
    }
    for work in fleet.works() {
        // A node may have lost cards under its work; the incremental ledger then keeps what is left.
        let mut work = work.clone();
        let id = again.find(&work.node).unwrap();
        let cards = again.node(id).unwrap().gpus[0].cards.clone();
        let kept = match (&cards, &work.gpus) {
            (Cards::Each(cards), Some(taken)) => {
                !taken.cards.is_empty() && taken.cards.iter().all(|&c| usize::from(c) < cards.len())
            }
            (Cards::Counted, Some(taken)) => taken.cards.is_empty(),
            _ => true,
        };
        let whole = work.clone();
        if !kept {
            work.gpus = None;
        }
        again.bind(work).unwrap();
        again.works.insert(Arc::clone(&whole.id), whole);
    }
    again
}

proptest! {
    #[test]
    fn the_incremental_ledger_equals_one_rebuilt(steps in proptest::collection::vec(step(), 1..60)) {
        let mut fleet = Fleet::new();
        for step in &steps {
            apply(&mut fleet, step);
            // Work held through a change of a counted node to card-by-card holds no known card.
            let sound = fleet.works().all(|work| {
                let node = fleet.node(fleet.find(&work.node).unwrap()).unwrap();
                let counted = node.gpus[0].cards == Cards::Counted;
                work.gpus.as_ref().is_none_or(|taken| taken.cards.is_empty() == counted)
            });
            if sound {
                prop_assert_eq!(&fleet, &rebuilt(&fleet));
            }
        }
    }

    #[test]
    fn every_change_can_be_undone(
        steps in proptest::collection::vec(step(), 1..30),
        change in step(),
    ) {
        let mut fleet = Fleet::new();
        for step in &steps {
            apply(&mut fleet, step);
        }
        let before = fleet.clone();
        match &change {
            Step::Bind { id, .. } => {
                apply(&mut fleet, &change);
                if before.work(&format!("w{id}")).is_none() {
                    fleet.release(&format!("w{id}"));
                }
            }
            Step::Release { id } => {
                if let Some(work) = fleet.release(&format!("w{id}")) {
                    prop_assume!(fleet.slot(fleet.find(&work.node).unwrap()).unwrap()
                        .has(work.gpus.as_ref().unwrap()));
                    fleet.bind(work).unwrap();
                }
            }
            Step::Set { node, .. } => {
                let name = format!("n{node}");
                prop_assume!(before.find(&name).is_some());
                let node = (**before.node(before.find(&name).unwrap()).unwrap()).clone();
                apply(&mut fleet, &change);
                fleet.set_node(node);
            }
            Step::Remove { node } => {
                if let Some((node, works)) = fleet.remove_node(&format!("n{node}")) {
                    fleet.set_node((*node).clone());
                    for work in works {
                        prop_assume!(fleet.slot(fleet.find(&work.node).unwrap()).unwrap()
                            .has(work.gpus.as_ref().unwrap()));
                        fleet.bind(work).unwrap();
                    }
                }
            }
        }
        prop_assert_eq!(&fleet, &before);
        let prints = |fleet: &Fleet| -> BTreeMap<Arc<str>, u64> {
            fleet.nodes().map(|(id, n)| (Arc::clone(&n.name), fleet.prints()[id.index()])).collect()
        };
        prop_assert_eq!(prints(&fleet), prints(&before));
    }
}

#[test]
fn work_of_others_takes_counted_cards_by_name() {
    let mut fleet = Fleet::new();
    fleet.set_node(node("n", 4, true));
    let mut foreign = work("pod", "n", GpuRequest::whole(1), &[]);
    foreign.gpus = None;
    foreign.request = Arc::new(Request {
        resources: Resources::default().with("nvidia.com/gpu", 3),
        ..Request::default()
    });
    fleet.bind(foreign).unwrap();
    let free = fleet.free(fleet.find("n").unwrap()).unwrap();
    assert_eq!(free.pools[0].cards, [1000, 0, 0, 0]);
    assert_eq!(fleet.totals().free_gpu_milli(), 1000);
}

#[test]
fn a_sick_card_offers_nothing() {
    let mut sick = node("n", 2, false);
    sick.gpus[0].cards = Cards::Each(vec![Card { healthy: false }, Card { healthy: true }]);
    let mut fleet = Fleet::new();
    fleet.set_node(sick);
    assert_eq!(
        fleet.free(fleet.find("n").unwrap()).unwrap().pools[0].cards,
        [0, 1000]
    );
}

#[test]
fn binding_what_cannot_be_bound_says_why() {
    let mut fleet = Fleet::new();
    fleet.set_node(node("n", 2, false));
    let lost = fleet
        .bind(work("w", "elsewhere", GpuRequest::whole(1), &[0]))
        .unwrap_err();
    assert!(lost.to_string().contains("elsewhere"));
    let card = fleet
        .bind(work("w", "n", GpuRequest::whole(1), &[2]))
        .unwrap_err();
    assert!(matches!(card, FleetError::UnknownCard { .. }));
    fleet
        .bind(work("w", "n", GpuRequest::whole(1), &[1]))
        .unwrap();
    let twice = fleet
        .bind(work("w", "n", GpuRequest::whole(1), &[0]))
        .unwrap_err();
    assert!(matches!(twice, FleetError::AlreadyBound { .. }));
}

#[test]
fn contradictions_are_named() {
    let cases = [
        (Some(GpuRequest::whole(0)), Resources::default(), "0 GPUs"),
        (
            Some(GpuRequest::fraction(0)),
            Resources::default(),
            "0/1000",
        ),
        (
            Some(GpuRequest::fraction(1001)),
            Resources::default(),
            "1001/1000",
        ),
        (
            Some(GpuRequest {
                count: 2,
                ..GpuRequest::fraction(500)
            }),
            Resources::default(),
            "one GPU",
        ),
        (None, Resources::new(-1, 0), "cpu"),
    ];
    for (gpu, resources, text) in cases {
        let request = Request {
            gpu,
            resources,
            ..Request::default()
        };
        let found = request.contradictions();
        assert!(
            found.iter().any(|c| c.to_string().contains(text)),
            "{text}: {found:?}"
        );
    }
    let constraints = Constraints {
        node_selector: [(Arc::from("zone"), Arc::from("a"))].into(),
        node_affinity: Some(vec![NodeTerm {
            match_expressions: vec![Expression::new("zone", Operator::NotIn, &["a"])],
            ..NodeTerm::default()
        }]),
        ..Constraints::default()
    };
    let request = Request {
        constraints,
        ..Request::default()
    };
    assert_eq!(request.contradictions().len(), 1);
    assert_eq!(Request::default().contradictions(), []);
}

mod units;
