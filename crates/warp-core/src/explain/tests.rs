use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::fleet::{Constraints, Effect, GpuRequest, Node, Taint};
use crate::schedule::tests::build::{
    any_node, any_request, bound, commit, fleet, named, node, request,
};
use crate::schedule::{Planner, Policy};

fn fits(fleet: &Fleet, request: &Request) -> bool {
    let filter = Filter::new(fleet, request);
    fleet.nodes().any(|(id, _)| filter.fits(id))
}

fn singles(fleet: &Fleet, request: &Request) -> Vec<String> {
    let sets = smallest_changes(fleet, request);
    sets.iter()
        .map(|set| {
            set.iter()
                .map(Change::to_string)
                .collect::<Vec<_>>()
                .join(" + ")
        })
        .collect()
}

#[test]
fn one_sentence_says_why_and_who_holds_it() {
    let mut fleet = fleet(&[
        node("n1"),
        node("n2"),
        Node {
            unschedulable: true,
            ..node("n3")
        },
    ]);
    let mut planner = Planner::new(Policy::BestFit, 1);
    for (id, on, gpus) in [("train", "n1", 3), ("eval", "n2", 2), ("serve", "n2", 1)] {
        let mut filler = request(1000, Some(GpuRequest::whole(gpus)));
        filler.name = Arc::from(id);
        filler.constraints.node_name = Some(Arc::from(on));
        commit(&mut fleet, &mut planner, id, &filler).unwrap();
    }
    let asked = request(1000, Some(GpuRequest::whole(2)));
    let explanation = planner.place(&fleet, &asked).unwrap_err();
    insta::assert_snapshot!(explanation, @"0 of 3 nodes fit: 2 with fewer than 2 idle GPUs, 1 cordoned; nearest is n1 (1 of 4 GPUs idle, 2 needed, held by train)");
    assert_eq!(singles(&fleet, &asked), ["ask for 1 GPU"]);
}

#[test]
fn every_dimension_is_offered_with_its_best_value() {
    let mut nodes = [node("small"), node("tainted"), node("other")];
    nodes[0].allocatable.cpu_milli = 6500;
    nodes[1]
        .taints
        .push(Taint::new("team", "a", Effect::NoSchedule));
    nodes[2].gpus[0].model = Arc::from("A100");
    nodes[2].gpus[0].memory_bytes = 8 << 30;
    let fleet = fleet(&nodes);
    let asked = request(8000, Some(GpuRequest::whole(2).models(&["T4"])));
    assert_eq!(
        singles(&fleet, &asked),
        [
            "accept model A100",
            "ask for 6500m CPU",
            "tolerate team=a:NoSchedule"
        ]
    );
    let more = request(
        8000,
        Some(GpuRequest {
            min_memory_bytes: 10 << 30,
            ..GpuRequest::whole(5)
        }),
    );
    assert_eq!(
        singles(&fleet, &more),
        [
            "ask for 4 GPUs + accept 8Gi of GPU memory",
            "ask for 4 GPUs + ask for 6500m CPU",
            "ask for 4 GPUs + tolerate team=a:NoSchedule"
        ],
        "no single change suffices"
    );
}

#[test]
fn nothing_is_offered_for_what_fits_or_cannot_be() {
    let fleet = fleet(&[node("n")]);
    assert!(smallest_changes(&fleet, &request(1000, None)).is_empty());
    assert!(smallest_changes(&fleet, &request(1000, Some(GpuRequest::whole(0)))).is_empty());
    assert!(smallest_changes(&Fleet::new(), &request(1000, None)).is_empty());
}

#[test]
fn a_holder_of_counted_cards_is_found_by_the_resource_it_names() {
    let mut counted = node("n");
    counted.allocatable = counted.allocatable.with("nvidia.com/gpu", 2);
    counted.gpus[0].cards = crate::fleet::Cards::Counted;
    let mut fleet = fleet(&[counted]);
    let pod = Request {
        resources: crate::resources::Resources::default().with("nvidia.com/gpu", 2),
        constraints: Constraints::default(),
        ..Request::default()
    };
    fleet.bind(bound("pod", "n", pod)).unwrap();
    let why = Explanation::new(&fleet, &request(1000, Some(GpuRequest::whole(1))));
    let nearest = why.nearest.unwrap();
    assert_eq!(
        (&*nearest.holders[0].name, nearest.holders[0].amount),
        ("pod", 2000)
    );
}

/// Every change that is one step closer to the request than this one, in its dimension.
fn closer(request: &Request, change: &Change) -> Option<Change> {
    let step = |to: i64, asked: i64| (to + 1 < asked).then_some(to + 1);
    let gpu = request.gpu.as_ref();
    match change {
        Change::FewerGpus(to) => (to + 1 < gpu?.count).then(|| Change::FewerGpus(to + 1)),
        Change::SmallerFraction(to) => {
            (to + 1 < gpu?.milli).then(|| Change::SmallerFraction(to + 1))
        }
        Change::LessCpu(to) => step(*to, request.resources.cpu_milli).map(Change::LessCpu),
        Change::LessMemory(to) => step(*to, request.resources.memory_bytes).map(Change::LessMemory),
        Change::LessGpuMemory(to) => {
            (to + 1 < gpu?.min_memory_bytes).then(|| Change::LessGpuMemory(to + 1))
        }
        _ => None,
    }
}

/// Single changes tried without any cleverness.
fn some_single_suffices(fleet: &Fleet, request: &Request) -> bool {
    let mut tries = vec![
        Change::LessCpu(0),
        Change::LessMemory(0),
        Change::DropNodeAffinity,
    ];
    if let Some(gpu) = &request.gpu {
        if gpu.is_fraction() {
            tries.push(Change::SmallerFraction(1));
        } else {
            tries.push(Change::FewerGpus(1));
        }
    }
    tries.extend(
        request
            .constraints
            .node_selector
            .keys()
            .cloned()
            .map(Change::DropSelector),
    );
    for at in 0..2 {
        tries.extend([
            Change::DropPodAffinity(at),
            Change::DropPodAntiAffinity(at),
            Change::DropSpread(at),
        ]);
    }
    tries.extend(
        fleet
            .nodes()
            .flat_map(|(_, node)| node.taints.clone())
            .map(Change::Tolerate),
    );
    tries
        .iter()
        .any(|change| fits(fleet, &change.apply(request)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn the_smallest_change_is_true_and_minimal(
        nodes in proptest::collection::vec(any_node(), 1..5),
        load in proptest::collection::vec(any_request(), 4..30),
        mut asked in any_request(),
        cores in 1..40_i64,
    ) {
        let mut fleet = fleet(&named(nodes));
        let mut planner = Planner::new(Policy::BestFit, 2);
        for (at, request) in load.iter().enumerate() {
            commit(&mut fleet, &mut planner, &format!("w{at}"), request);
        }
        asked.resources.cpu_milli = cores * 1000;
        let sets = smallest_changes(&fleet, &asked);
        if fits(&fleet, &asked) {
            prop_assert!(sets.is_empty());
            return Ok(());
        }
        for set in &sets {
            let changed = set.iter().fold(asked.clone(), |request, change| change.apply(&request));
            prop_assert!(fits(&fleet, &changed), "{set:?} does not help");
            for (at, change) in set.iter().enumerate() {
                let Some(closer) = closer(&asked, change) else { continue };
                let mut nearer = set.clone();
                nearer[at] = closer;
                let changed = nearer.iter().fold(asked.clone(), |request, change| change.apply(&request));
                prop_assert!(!fits(&fleet, &changed), "{nearer:?} would do instead of {set:?}");
            }
            if set.len() > 1 {
                for left_out in 0..set.len() {
                    let fewer = set.iter().enumerate().filter(|(at, _)| *at != left_out);
                    let changed = fewer.fold(asked.clone(), |request, (_, change)| change.apply(&request));
                    prop_assert!(!fits(&fleet, &changed), "{set:?} is more than needed");
                }
            }
        }
        if sets.iter().all(|set| set.len() != 1) {
            prop_assert!(!some_single_suffices(&fleet, &asked), "a single change was overlooked");
        }
    }
}
