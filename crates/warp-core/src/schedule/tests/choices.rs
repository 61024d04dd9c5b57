//! What the planner chooses, and what must not matter to it.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::build::*;
use crate::fleet::{Fleet, GpuRequest, Node, Request, Taken, Work};
use crate::resources::Resources;
use crate::schedule::{Ask, Mix, Planner, Policy, PriceWeight, place};

fn chosen(fleet: &Fleet, request: &Request, policy: Policy) -> String {
    place(fleet, request, policy, 1).unwrap().node.to_string()
}

#[test]
fn least_loaded_takes_the_most_free_gpus() {
    let mut fleet = fleet(&[node("n1"), node("n2")]);
    let mut planner = Planner::new(Policy::LeastLoaded, 3);
    let one = request(1000, Some(GpuRequest::whole(1)));
    let first = planner.choose(&fleet, &one).unwrap();
    commit(&mut fleet, &mut planner, "w1", &one);
    let second = planner.choose(&fleet, &one).unwrap();
    assert_ne!(first.node, second.node);
}

#[test]
fn cost_optimized_takes_the_cheapest_then_the_marked() {
    let one = request(1000, Some(GpuRequest::whole(1)));
    let priced = |name: &str, price| Node {
        price_per_gpu_hour_micros: price,
        ..node(name)
    };
    let fleet_of = |nodes: &[Node]| fleet(nodes);
    let prices = fleet_of(&[
        priced("n1", Some(500)),
        priced("n2", Some(400)),
        priced("n3", None),
    ]);
    assert_eq!(chosen(&prices, &one, Policy::CostOptimized), "n2");
    let marks = fleet_of(&[
        node("n1"),
        Node {
            cheap: true,
            ..node("n2")
        },
    ]);
    assert_eq!(chosen(&marks, &one, Policy::CostOptimized), "n2");
    let full = request(1000, Some(GpuRequest::whole(8)));
    assert!(place(&marks, &full, Policy::CostOptimized, 1).is_err());
}

#[test]
fn random_reaches_every_node_and_repeats_with_its_seed() {
    let fleet = fleet(&[node("n1"), node("n2"), node("n3")]);
    let ask = request(1000, None);
    let draw = |seed| {
        let mut planner = Planner::new(Policy::Random, seed);
        (0..30)
            .map(|_| planner.choose(&fleet, &ask).unwrap().node)
            .collect::<Vec<_>>()
    };
    assert_eq!(draw(5), draw(5));
    for name in ["n1", "n2", "n3"] {
        assert!(draw(5).iter().any(|node| **node == *name), "{name}");
    }
}

#[test]
fn fractions_share_a_card_and_whole_requests_take_idle_ones() {
    let mut fleet = fleet(&[node("n")]);
    let mut planner = Planner::new(Policy::LeastLoaded, 1);
    let half = request(1000, Some(GpuRequest::fraction(500)));
    let placed: Vec<_> = (0..3)
        .map(|i| commit(&mut fleet, &mut planner, &format!("w{i}"), &half).unwrap())
        .collect();
    assert_eq!(placed[0], placed[1]);
    assert_ne!(placed[1], placed[2]);
    assert!(
        planner
            .choose(&fleet, &request(1000, Some(GpuRequest::whole(3))))
            .is_none()
    );
    let two = planner
        .choose(&fleet, &request(1000, Some(GpuRequest::whole(2))))
        .unwrap();
    assert_eq!(two.gpus.unwrap().cards, [2, 3]);
}

#[test]
fn an_unknown_policy_is_named_with_the_known_ones() {
    let error = "fastest".parse::<Policy>().unwrap_err().to_string();
    assert!(
        error.contains("fastest") && error.contains("leastLoaded"),
        "{error}"
    );
    for policy in Policy::ALL {
        assert_eq!(policy.name().parse::<Policy>(), Ok(policy));
    }
}

proptest! {
    #[test]
    fn what_a_planner_remembers_never_changes_its_choice(
        nodes in proptest::collection::vec(any_node(), 1..6),
        requests in proptest::collection::vec(any_request(), 1..25),
        releases in proptest::collection::vec(0..25_usize, 25),
    ) {
        for policy in Policy::ALL.into_iter().filter(|&p| p != Policy::Random) {
            let mut fleet = fleet(&named(nodes.clone()));
            let mut planner = Planner::new(policy, 9);
            for (at, request) in requests.iter().enumerate() {
                if policy.learns() {
                    // Its ratings depend on what arrived, so a fresh planner knows less.
                    prop_assert_eq!(
                        planner.choose(&fleet, request).is_some(),
                        place(&fleet, request, policy, 9).is_ok()
                    );
                } else {
                    prop_assert_eq!(planner.choose(&fleet, request), place(&fleet, request, policy, 9).ok());
                }
                commit(&mut fleet, &mut planner, &format!("w{at}"), request);
                fleet.release(&format!("w{}", releases[at]));
            }
        }
    }

    #[test]
    fn the_order_of_nodes_does_not_matter(
        nodes in proptest::collection::vec(any_node(), 1..7),
        requests in proptest::collection::vec(any_request(), 1..12),
    ) {
        let nodes = named(nodes);
        for policy in Policy::ALL.into_iter().filter(|&p| p != Policy::Random) {
            let run = |mut fleet: Fleet| {
                let mut planner = Planner::new(policy, 4);
                let place = |(at, request)| commit(&mut fleet, &mut planner, &format!("w{at}"), request);
                requests.iter().enumerate().map(place).collect::<Vec<_>>()
            };
            let reversed: Vec<_> = nodes.iter().rev().cloned().collect();
            prop_assert_eq!(run(fleet(&nodes)), run(fleet(&reversed)));
        }
    }

    #[test]
    fn dropping_a_constraint_keeps_a_placeable_request_placeable(
        nodes in proptest::collection::vec(any_node(), 1..6),
        bound in proptest::collection::vec(any_request(), 0..8),
        request in any_request(),
        drop in 0..4_u8,
    ) {
        let mut fleet = fleet(&named(nodes));
        let mut planner = Planner::new(Policy::LeastLoaded, 2);
        for (at, request) in bound.iter().enumerate() {
            commit(&mut fleet, &mut planner, &format!("w{at}"), request);
        }
        let mut looser = request.clone();
        match drop {
            0 => looser.constraints.node_selector.clear(),
            1 => looser.constraints.pod_anti_affinity.clear(),
            2 => looser.constraints.pod_affinity.clear(),
            _ => looser.constraints.spread.clear(),
        }
        // A selector also decides which domains a spread constraint counts, as in Kubernetes: there
        // fewer constraints can mean fewer places, so that pair is left out.
        prop_assume!(drop != 0 || looser.constraints.spread.is_empty());
        if planner.choose(&fleet, &request).is_some() {
            prop_assert!(planner.choose(&fleet, &looser).is_some());
        }
    }
}

/// Two machines alike but for their prices; work already holds half of the dear one.
fn dear_but_tight() -> Fleet {
    let priced = |name: &str, dollars: u64| Node {
        price_per_gpu_hour_micros: Some(dollars * 1_000_000),
        ..node(name)
    };
    let mut fleet = fleet(&[priced("cheap", 1), priced("dear", 3)]);
    let half = request(1000, Some(GpuRequest::whole(2)));
    let cards = Taken {
        pool: 0,
        cards: vec![0, 1],
    };
    fleet
        .bind(Work {
            gpus: Some(cards),
            ..bound("w", "dear", half)
        })
        .unwrap();
    fleet
}

fn weighing(weight: f64, fleet: &Fleet, seed: u64) -> String {
    let mut mix = Mix::default();
    for gpus in [1, 4] {
        let expected = request(1000, Some(GpuRequest::whole(gpus)));
        mix.see(&Ask::new(fleet, &expected));
    }
    let weighed = Policy::Warp.weighing(PriceWeight::new(weight).unwrap());
    let mut planner = Planner::with_strategy(weighed.live(seed, fleet, &mix), seed);
    let one = request(1000, Some(GpuRequest::whole(1)));
    planner.choose(fleet, &one).unwrap().node.to_string()
}

#[test]
fn a_price_weight_lets_the_cheaper_node_win_and_none_changes_nothing() {
    let fleet = dear_but_tight();
    for seed in 0..8 {
        // Without it the used machine is taken, which keeps the other whole for the large requests.
        assert_eq!(weighing(0.0, &fleet, seed), "dear");
        assert_eq!(weighing(4.0, &fleet, seed), "cheap");
    }
    // A small weight does not pay for a broken-up machine.
    assert_eq!(weighing(0.001, &fleet, 1), "dear");
}

#[test]
fn a_node_without_a_price_counts_like_the_dearest() {
    let mut fleet = dear_but_tight();
    fleet.set_node(node("unknown"));
    fleet.release("w");
    for seed in 0..8 {
        assert_eq!(weighing(1.0, &fleet, seed), "cheap");
    }
    fleet.remove_node("cheap");
    let seen: BTreeSet<_> = (0..16).map(|seed| weighing(1.0, &fleet, seed)).collect();
    assert_eq!(seen.len(), 2, "equally dear: {seen:?}");
}

#[test]
fn price_weights_are_numbers_from_zero_on() {
    assert_eq!("0.25".parse(), PriceWeight::new(0.25));
    for bad in ["", "-1", "nan", "inf", "1e9", "much"] {
        let error = bad.parse::<PriceWeight>().unwrap_err().to_string();
        assert!(error.contains(&format!("{bad:?}")), "{error}");
    }
}

#[test]
fn a_refusal_for_memory_is_not_inherited_by_requests_that_ask_for_less() {
    let fleet = fleet(&[node("n1")]);
    let asking = |bytes: i64| Request {
        resources: Resources::new(1000, bytes),
        ..request(1000, Some(GpuRequest::whole(1)))
    };
    for policy in Policy::ALL {
        let mut planner = Planner::new(policy, 1);
        let mut fits = |bytes| planner.choose(&fleet, &asking(bytes)).is_some();
        assert!(!fits(129 << 30), "{policy}: the node has 128 GiB");
        assert!(fits(1 << 30), "{policy}");
        assert!(!fits(-1), "{policy}: less than nothing makes no sense");
        assert!(fits(128 << 30), "{policy}");
    }
    let reasons =
        crate::schedule::fit::reasons(&fleet, &asking(129 << 30), fleet.find("n1").unwrap());
    assert_eq!(reasons.len(), 1, "memory is missing once: {reasons:?}");
}

#[test]
fn prices_count_in_decisions_about_requests_that_came_before() {
    let priced = |name: &str, price| Node {
        price_per_gpu_hour_micros: Some(price),
        ..node(name)
    };
    let fleet = fleet(&[priced("n1", 500), priced("n2", 400), priced("n3", 600)]);
    let one = request(1000, Some(GpuRequest::whole(1)));
    let mut planner = Planner::new(Policy::CostOptimized, 1);
    assert_eq!(&*planner.place_again(&fleet, &one).unwrap().node, "n2");
    assert_eq!(&*planner.place(&fleet, &one).unwrap().node, "n2");
}
