//! Gangs: all or none, close together, largest members first.

use std::sync::Arc;

use proptest::prelude::*;

use super::build::*;
use crate::check;
use crate::fleet::{Fleet, GpuRequest, Level, Node, Topology};
use crate::schedule::{Gang, Member, Near, Planner, Policy};

fn racked(name: &str, block: &str, rack: &str) -> Node {
    let topology = Topology {
        block: Some(Arc::from(block)),
        rack: Some(Arc::from(rack)),
    };
    Node {
        topology,
        ..node(name)
    }
}

/// Two blocks of two racks of two nodes of four cards.
fn halls() -> Fleet {
    let mut nodes = Vec::new();
    for block in ["b1", "b2"] {
        for rack in ["r1", "r2"] {
            for host in ["h1", "h2"] {
                nodes.push(racked(&format!("{block}{rack}{host}"), block, rack));
            }
        }
    }
    fleet(&nodes)
}

fn gang(count: u32, gpus: u32, required: Option<Level>, preferred: Option<Level>) -> Gang {
    let request = Arc::new(request(1000, Some(GpuRequest::whole(gpus))));
    Gang {
        name: Arc::from("g"),
        members: vec![Member { request, count }],
        required,
        preferred,
        near: None,
    }
}

fn level(fleet: &Fleet, gang: &Gang) -> Result<Option<Level>, String> {
    let placed = Planner::new(Policy::Warp, 1).place_gang(fleet, gang);
    placed
        .map(|placed| placed.level)
        .map_err(|refusal| refusal.to_string())
}

#[test]
fn levels_are_tried_from_the_preferred_outwards() {
    let fleet = halls();
    let prefer = |count, level| gang(count, 4, None, Some(level));
    assert_eq!(
        level(&fleet, &prefer(1, Level::Host)),
        Ok(Some(Level::Host))
    );
    assert_eq!(
        level(&fleet, &prefer(2, Level::Host)),
        Ok(Some(Level::Rack))
    );
    assert_eq!(
        level(&fleet, &prefer(4, Level::Rack)),
        Ok(Some(Level::Block))
    );
    assert_eq!(level(&fleet, &prefer(8, Level::Rack)), Ok(None));
    assert_eq!(level(&fleet, &gang(2, 4, None, None)), Ok(None));
    assert_eq!(
        level(&fleet, &gang(2, 4, Some(Level::Block), None)),
        Ok(Some(Level::Block))
    );
}

#[test]
fn a_required_level_is_never_widened_but_named() {
    let fleet = halls();
    let refusal = level(&fleet, &gang(3, 4, Some(Level::Rack), Some(Level::Host))).unwrap_err();
    assert!(refusal.contains("2 of 3 members fit one rack"), "{refusal}");
    assert!(refusal.contains("require level block"), "{refusal}");
    let refusal = level(&fleet, &gang(9, 4, None, Some(Level::Rack))).unwrap_err();
    assert!(refusal.contains("8 of 9 members fit"), "{refusal}");
    assert!(!refusal.contains("require level"), "{refusal}");
}

/// Three nodes of four cards, two of them on one leaf; the third is on none.
fn leaves() -> Fleet {
    let on = |name: &str, leaf: &str| Node {
        labels: labels(&[("leaf", leaf)]),
        ..node(name)
    };
    fleet(&[on("a", "l1"), on("b", "l1"), on("c", "l2"), node("d")])
}

fn near(count: u32, required: bool) -> Gang {
    Gang {
        near: Some(Near {
            key: Arc::from("leaf"),
            required,
            then: vec![Arc::from("spine")],
        }),
        ..gang(count, 4, None, None)
    }
}

#[test]
fn a_preferred_label_is_widened_step_by_step() {
    let on = |name: &str, leaf: &str, spine: &str| Node {
        labels: labels(&[("leaf", leaf), ("spine", spine)]),
        ..node(name)
    };
    let fleet = fleet(&[
        on("a", "l1", "s1"),
        on("b", "l2", "s2"),
        on("c", "l3", "s2"),
        on("d", "l4", "s3"),
    ]);
    let place = |gang: &Gang| Planner::new(Policy::Warp, 1).place_gang(&fleet, gang);
    let two = place(&near(2, false)).unwrap();
    assert_eq!(two.domain.as_deref(), Some("s2"), "no leaf holds two");
    assert_eq!(check::gang(&fleet, &near(2, false), &two), []);
    assert!(
        place(&near(2, true)).is_err(),
        "required, it is not widened"
    );
    let three = place(&near(3, false)).unwrap();
    assert_eq!((three.domain, three.members.len()), (None, 3));
}

#[test]
fn a_label_keeps_a_gang_together_when_it_is_required_and_if_possible_when_it_is_preferred() {
    let fleet = leaves();
    let place = |gang: &Gang| Planner::new(Policy::Warp, 1).place_gang(&fleet, gang);
    let two = place(&near(2, true)).unwrap();
    assert_eq!(two.domain.as_deref(), Some("l1"));
    let one = place(&near(1, true)).unwrap();
    assert_eq!(one.domain.as_deref(), Some("l2"), "the tightest");
    let refusal = place(&near(3, true)).unwrap_err();
    assert_eq!((refusal.placed, refusal.domain.as_deref()), (2, Some("l1")));
    let spread = place(&near(3, false)).unwrap();
    assert_eq!((spread.domain, spread.members.len()), (None, 3));
    let close = place(&near(2, false)).unwrap();
    assert_eq!(close.domain.as_deref(), Some("l1"));
}

#[test]
fn the_check_finds_a_gang_that_is_torn_apart() {
    let fleet = leaves();
    let mut torn = Planner::new(Policy::Warp, 1)
        .place_gang(&fleet, &near(3, false))
        .unwrap();
    assert_ne!(check::gang(&fleet, &near(3, true), &torn), []);
    torn.members.pop();
    assert_ne!(check::gang(&fleet, &near(3, false), &torn), []);
}

#[test]
fn the_tightest_domain_that_suffices_is_taken() {
    let mut fleet = halls();
    let mut planner = Planner::new(Policy::Warp, 1);
    // b2r1 keeps four cards: just what the gang needs.
    let mut filler = request(1000, Some(GpuRequest::whole(4)));
    filler.constraints.node_name = Some(Arc::from("b2r1h1"));
    commit(&mut fleet, &mut planner, "filler", &filler).unwrap();
    let placed = planner
        .place_gang(&fleet, &gang(4, 1, Some(Level::Rack), None))
        .unwrap();
    assert!(
        placed
            .members
            .iter()
            .all(|member| &*member.placement.node == "b2r1h2")
    );
}

#[test]
fn members_of_different_shapes_start_together_or_not_at_all() {
    let fleet = fleet(&[node("n1"), node("n2")]);
    let member = |gpu, cpu, count| Member {
        request: Arc::new(request(cpu, gpu)),
        count,
    };
    let mut gang = Gang {
        name: Arc::from("g"),
        members: vec![
            member(None, 2000, 1),
            member(Some(GpuRequest::fraction(500)), 1000, 4),
            member(Some(GpuRequest::whole(3)), 4000, 2),
        ],
        ..Gang::default()
    };
    let placed = Planner::new(Policy::Warp, 1)
        .place_gang(&fleet, &gang)
        .unwrap();
    assert_eq!(check::gang(&fleet, &gang, &placed), []);
    assert_eq!(placed.members.len(), 7);
    gang.members[1].count = 5;
    let refusal = Planner::new(Policy::Warp, 1)
        .place_gang(&fleet, &gang)
        .unwrap_err();
    assert_eq!((refusal.placed, refusal.members), (6, 8));
}

#[test]
fn members_that_avoid_each_other_are_spread() {
    let mut gang = gang(3, 1, None, None);
    let mut request = (*gang.members[0].request).clone();
    request.labels = labels(&[("app", "g")]);
    request.constraints.pod_anti_affinity = vec![crate::fleet::PodTerm {
        selector: Some(crate::fleet::Selector::labels(&[("app", "g")])),
        topology_key: Arc::from("host"),
        ..Default::default()
    }];
    gang.members[0].request = Arc::new(request);
    assert!(level(&fleet(&[node("n1"), node("n2")]), &gang).is_err());
    assert!(level(&fleet(&[node("n1"), node("n2"), node("n3")]), &gang).is_ok());
}

proptest! {
    /// For equal members of whole cards the number of slots decides, exactly.
    #[test]
    fn equal_whole_members_fit_exactly_when_there_are_slots(
        fill in proptest::collection::vec((0..8_usize, 1..4_u32), 0..10),
        count in 1..12_u32,
        gpus in 1..5_u32,
        required in proptest::option::of(prop_oneof![Just(Level::Host), Just(Level::Rack), Just(Level::Block)]),
    ) {
        let mut fleet = halls();
        let mut planner = Planner::new(Policy::BestFit, 3);
        let names: Vec<_> = fleet.nodes().map(|(_, node)| Arc::clone(&node.name)).collect();
        for (at, (node, gpus)) in fill.into_iter().enumerate() {
            let mut filler = request(1000, Some(GpuRequest::whole(gpus)));
            filler.constraints.node_name = Some(Arc::clone(&names[node]));
            commit(&mut fleet, &mut planner, &format!("w{at}"), &filler);
        }
        let mut slots = std::collections::BTreeMap::<_, usize>::new();
        for (id, node) in fleet.nodes() {
            let domain = required.map(|level| node.domain(level));
            *slots.entry(domain).or_default() += fleet.free(id).unwrap().pools[0].idle_cards() / gpus as usize;
        }
        let gang = gang(count, gpus, required, None);
        let placed = Planner::new(Policy::Warp, 7).place_gang(&fleet, &gang);
        prop_assert_eq!(placed.is_ok(), slots.into_values().any(|slots| slots >= count as usize));
        if let Ok(placed) = placed {
            prop_assert_eq!(check::gang(&fleet, &gang, &placed), []);
        }
    }
}
