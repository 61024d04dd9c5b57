use proptest::prelude::*;

use super::*;
use crate::fleet::Constraints;
use crate::schedule::tests::build::{
    any_node, any_request, busy, commit, fleet, named, node, whole,
};

fn victim(works: &[&str], priority: i64, lost_gpu_seconds: u64) -> Victim {
    Victim {
        works: works.iter().map(|id| Arc::from(*id)).collect(),
        priority,
        lost_gpu_seconds,
    }
}

fn evicted(
    fleet: &Fleet,
    requests: &[Request],
    victims: &[Victim],
) -> Option<(Vec<usize>, String)> {
    let found = evict(fleet, requests, victims, &|_| true)?;
    let nodes: Vec<&str> = found.nodes.iter().map(|node| &**node).collect();
    Some((found.victims, nodes.join(" ")))
}

#[test]
fn the_work_that_loses_least_goes_and_no_more_than_must() {
    let nodes = [node("a"), node("b")];
    let held = [("old", "a", 2), ("young", "a", 2), ("other", "b", 4)];
    let fleet = busy(&nodes, &held);
    let victims = [
        victim(&["old"], 0, 900),
        victim(&["young"], 0, 10),
        victim(&["other"], 0, 50),
    ];
    let two = evicted(&fleet, &[whole(2)], &victims);
    assert_eq!(two, Some((vec![1], "a".to_owned())));
    let four = evicted(&fleet, &[whole(4)], &victims);
    assert_eq!(four, Some((vec![2], "b".to_owned())));
}

#[test]
fn lower_priority_goes_first_whatever_it_loses() {
    let nodes = [node("a"), node("b")];
    let fleet = busy(&nodes, &[("low", "a", 4), ("normal", "b", 4)]);
    let victims = [victim(&["low"], 0, 9_000), victim(&["normal"], 1, 1)];
    let found = evicted(&fleet, &[whole(1)], &victims);
    assert_eq!(found, Some((vec![0], "a".to_owned())));
}

#[test]
fn nobody_goes_where_that_would_not_be_enough() {
    let nodes = [node("a")];
    let fleet = busy(&nodes, &[("low", "a", 2), ("foreign", "a", 2)]);
    let victims = [victim(&["low"], 0, 1)];
    assert_eq!(evicted(&fleet, &[whole(4)], &victims), None);
    assert_eq!(evicted(&fleet, &[whole(8)], &victims), None);
    assert_eq!(evicted(&fleet, &[whole(1)], &[]), None);
}

#[test]
fn a_gang_goes_whole_and_makes_room_on_all_its_nodes() {
    let nodes = [node("a"), node("b")];
    let held = [("gang/0", "a", 4), ("gang/1", "b", 4)];
    let fleet = busy(&nodes, &held);
    let victims = [victim(&["gang/0", "gang/1"], 0, 7)];
    let both = evicted(&fleet, &[whole(4), whole(4)], &victims);
    assert_eq!(both, Some((vec![0], "a b".to_owned())));
    assert_eq!(
        evicted(&fleet, &[whole(4), whole(4), whole(4)], &victims),
        None
    );
}

#[test]
fn idle_cards_are_used_before_anybody_goes_for_them() {
    let nodes = [node("a"), node("b")];
    let fleet = busy(&nodes, &[("low", "a", 4)]);
    let victims = [victim(&["low"], 0, 1)];
    let both = evicted(&fleet, &[whole(4), whole(4)], &victims);
    assert_eq!(both, Some((vec![0], "b a".to_owned())));
    assert_eq!(
        evicted(&fleet, &[whole(4)], &victims),
        None,
        "it fits as it is"
    );
}

proptest! {
    /// Whatever the fleet: once the victims are gone all requests fit, and with any one of them still there they do not
    /// fit on the nodes that were named.
    #[test]
    fn a_plan_is_enough_and_names_nobody_in_vain(
        nodes in prop::collection::vec(any_node(), 1..5),
        held in prop::collection::vec(any_request(), 0..12),
        asked in any_request(),
    ) {
        let mut fleet = fleet(&named(nodes));
        let mut planner = Planner::new(Policy::BestFit, 0);
        let mut victims = Vec::new();
        for (at, request) in held.iter().enumerate() {
            let id = format!("w{at}");
            if commit(&mut fleet, &mut planner, &id, request).is_some() {
                let priority = i64::try_from(at % 3).unwrap();
                victims.push(victim(&[&id], priority, at as u64));
            }
        }
        // Whoever wants company may fit only beside work that would go.
        let constraints = Constraints { pod_affinity: Vec::new(), ..asked.constraints.clone() };
        let asked = Request { constraints, ..asked };
        let Some(found) = evict(&fleet, std::slice::from_ref(&asked), &victims, &|_| true) else {
            return Ok(());
        };
        let node = fleet.find(&found.nodes[0]).unwrap();
        let mut without = fleet.clone();
        for victim in &found.victims {
            without.release(&victims[*victim].works[0]).unwrap();
        }
        prop_assert!(reasons(&without, &asked, node).is_empty());
        for victim in &found.victims {
            let mut with = fleet.clone();
            for other in found.victims.iter().filter(|other| *other != victim) {
                with.release(&victims[*other].works[0]).unwrap();
            }
            prop_assert!(!reasons(&with, &asked, node).is_empty());
        }
    }
}
