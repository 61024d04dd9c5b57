use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::fleet::Node;
use crate::schedule::tests::build::{any_node, any_request, bound, busy, fleet, node, whole};

fn kept(fleet: &Fleet, requests: &[Request], ends: &[(&str, Ending)]) -> Option<Kept> {
    let ends: BTreeMap<&str, Ending> = ends.iter().copied().collect();
    let ending = |work: &Work| ends.get(&*work.id).copied().unwrap_or(Ending::Unknown);
    keep(fleet, requests, &ending, &|_| true)
}

fn names(kept: Option<Kept>) -> Vec<String> {
    let nodes = kept.map(|kept| kept.nodes).unwrap_or_default();
    nodes.iter().map(ToString::to_string).collect()
}

#[test]
fn the_node_that_lacks_least_is_kept() {
    let nodes = [node("a"), node("b")];
    let fleet = busy(&nodes, &[("one", "a", 3), ("two", "b", 2)]);
    assert_eq!(names(kept(&fleet, &[whole(4)], &[])), ["b"]);
}

#[test]
fn of_nodes_that_lack_the_same_the_one_that_is_free_first_is_kept() {
    let nodes = [node("a"), node("b")];
    let fleet = busy(&nodes, &[("one", "a", 2), ("two", "b", 2)]);
    let ends = [("one", Ending::By(200)), ("two", Ending::By(100))];
    let found = kept(&fleet, &[whole(4)], &ends).unwrap();
    assert_eq!((&*found.nodes[0], found.by), ("b", Some(100)));
}

#[test]
fn work_that_never_ends_is_not_waited_for() {
    let nodes = [node("a"), node("b")];
    let fleet = busy(&nodes, &[("serving", "a", 1), ("two", "b", 4)]);
    let serving = ("serving", Ending::Never);
    assert_eq!(names(kept(&fleet, &[whole(4)], &[serving])), ["b"]);
    let neither = [serving, ("two", Ending::Never)];
    assert_eq!(kept(&fleet, &[whole(4)], &neither), None);
}

#[test]
fn only_what_has_to_end_decides_when_that_is() {
    let fleet = busy(&[node("a")], &[("long", "a", 1), ("short", "a", 2)]);
    let ends = [("long", Ending::By(900)), ("short", Ending::By(100))];
    assert_eq!(kept(&fleet, &[whole(3)], &ends).unwrap().by, Some(100));
    assert_eq!(kept(&fleet, &[whole(4)], &ends).unwrap().by, Some(900));
}

#[test]
fn what_other_work_does_not_stand_in_the_way_of_is_kept_no_room() {
    let mut cordoned = node("a");
    cordoned.unschedulable = true;
    let fleet = busy(&[node("b")], &[]);
    assert_eq!(kept(&fleet, &[whole(5)], &[]), None);
    let fleet = Fleet::rebuild([cordoned], []).unwrap();
    assert_eq!(kept(&fleet, &[whole(4)], &[]), None);
}

#[test]
fn all_of_a_claim_are_kept_room_or_none() {
    let nodes = [node("a"), node("b"), node("c")];
    let fleet = busy(&nodes, &[("one", "a", 4), ("two", "b", 1)]);
    let pair = [whole(4), whole(4)];
    assert_eq!(names(kept(&fleet, &pair, &[])), ["c", "b"]);
    let four = [whole(4), whole(4), whole(4), whole(4)];
    assert_eq!(kept(&fleet, &four, &[]), None);
    let halves = [whole(2), whole(2), whole(2)];
    assert_eq!(names(kept(&fleet, &halves, &[])), ["b", "c"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Emptying the nodes kept is enough, whatever else keeps running.
    #[test]
    fn a_node_kept_holds_the_request_once_its_work_has_ended(
        nodes in prop::collection::vec(any_node(), 1..6),
        running in prop::collection::vec((any_request(), 0_usize..6), 0..12),
        asked in any_request(),
    ) {
        let nodes: Vec<Node> = (0..).zip(nodes).map(|(at, node): (usize, Node)| Node {
            name: Arc::from(format!("n{at}")),
            ..node
        }).collect();
        let mut fleet = fleet(&nodes);
        for (at, (request, on)) in running.into_iter().enumerate() {
            let on = &nodes[on % nodes.len()].name;
            fleet.bind(bound(&format!("w{at}"), on, request)).unwrap();
        }
        let before = fleet.clone();
        let found = keep(&fleet, std::slice::from_ref(&asked), &|_| Ending::Unknown, &|_| true);
        let mut tried = fleet.clone();
        let same = keep_in(&mut tried, std::slice::from_ref(&asked), &|_| Ending::Unknown, &|_| true);
        prop_assert_eq!(&same, &found);
        prop_assert!(tried == fleet, "what was tried is undone");
        prop_assert_eq!(&before, &fleet);
        if let Some(found) = found {
            let id = fleet.find(&found.nodes[0]).unwrap();
            let ids: Vec<_> = fleet.works_on(id).map(|work| Arc::clone(&work.id)).collect();
            // Some of its work may be what it wants to be near to: then it fits with that.
            let fits_beside = reasons(&fleet, &asked, id).is_empty();
            for work in ids {
                fleet.release(&work);
            }
            let fits_alone = reasons(&fleet, &asked, id).is_empty();
            let wants_company = !asked.constraints.pod_affinity.is_empty();
            prop_assert!(fits_alone || fits_beside || wants_company);
        }
    }
}
