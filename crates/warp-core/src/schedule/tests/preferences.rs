//! What is preferred comes before the strategy, and never before what fits.

use std::sync::Arc;

use super::build::*;
use crate::fleet::{
    Effect, Expression, Fleet, GpuRequest, Load, Node, NodeTerm, Operator, PodTerm, Preferences,
    Reach, Request, Selector, Spread, Taint, Taken, Toleration, Weighted,
};
use crate::schedule::fit::reasons;
use crate::schedule::score::scores;
use crate::schedule::{Policy, Reason, place};

fn chosen(fleet: &Fleet, request: &Request) -> Vec<String> {
    let by = |policy| place(fleet, request, policy, 1).map(|placed| placed.node.to_string());
    Policy::ALL
        .into_iter()
        .map(|policy| by(policy).unwrap())
        .collect()
}

fn asking(preferences: Preferences) -> Request {
    Request {
        preferences,
        ..request(1000, Some(GpuRequest::whole(1)))
    }
}

fn zone(zone: &str) -> NodeTerm {
    NodeTerm {
        match_expressions: vec![Expression::new("zone", Operator::In, &[zone])],
        match_fields: Vec::new(),
    }
}

fn weighted<T>(weight: i32, term: T) -> Weighted<T> {
    Weighted { weight, term }
}

fn near(app: &str, key: &str) -> PodTerm {
    PodTerm {
        selector: Some(Selector::labels(&[("app", app)])),
        topology_key: Arc::from(key),
        ..PodTerm::default()
    }
}

#[test]
fn every_strategy_follows_a_preferred_node_affinity_while_it_fits() {
    let mut fleet = fleet(&[in_zone("n1", "a"), in_zone("n2", "b"), in_zone("n3", "c")]);
    let wish = asking(Preferences {
        node_affinity: vec![weighted(10, zone("b")), weighted(1, zone("c"))],
        ..Preferences::default()
    });
    assert!(chosen(&fleet, &wish).iter().all(|node| node == "n2"));
    let full = request(32_000, None);
    fleet.bind(bound("full", "n2", full)).unwrap();
    assert!(chosen(&fleet, &wish).iter().all(|node| node == "n3"));
    let full = request(32_000, None);
    fleet.bind(bound("full too", "n3", full)).unwrap();
    assert!(chosen(&fleet, &wish).iter().all(|node| node == "n1"));
}

#[test]
fn a_soft_taint_is_avoided_while_another_node_fits_and_ignored_by_who_tolerates_it() {
    let taint = Taint::new("spot", "", Effect::PreferNoSchedule);
    let soft = Node {
        taints: vec![taint.clone()],
        ..node("n1")
    };
    let mut both = fleet(&[soft.clone(), node("n2")]);
    let plain = request(1000, Some(GpuRequest::whole(1)));
    assert!(chosen(&both, &plain).iter().all(|node| node == "n2"));
    assert!(
        chosen(&fleet(&[soft]), &plain)
            .iter()
            .all(|node| node == "n1")
    );
    let mut tolerant = plain;
    tolerant.constraints.tolerations = vec![Toleration::exact(&taint)];
    let mut busy = bound("busy", "n2", request(1000, Some(GpuRequest::whole(2))));
    busy.gpus = Some(Taken {
        pool: 0,
        cards: vec![0, 1],
    });
    both.bind(busy).unwrap();
    let least = place(&both, &tolerant, Policy::LeastLoaded, 1).unwrap();
    assert_eq!(&*least.node, "n1");
}

#[test]
fn wishes_about_pods_count_in_both_directions() {
    let mut fleet = fleet(&[in_zone("n1", "a"), in_zone("n2", "b")]);
    let data = labelled(&[("app", "data")], crate::fleet::Constraints::default());
    fleet.bind(bound("data", "n1", data)).unwrap();
    let close = asking(Preferences {
        pod_affinity: vec![weighted(5, near("data", "zone"))],
        ..Preferences::default()
    });
    assert!(chosen(&fleet, &close).iter().all(|node| node == "n1"));
    let apart = asking(Preferences {
        pod_anti_affinity: vec![weighted(5, near("data", "zone"))],
        ..Preferences::default()
    });
    assert!(chosen(&fleet, &apart).iter().all(|node| node == "n2"));
    // The bound pod would rather not have this one beside it.
    let shy = Request {
        preferences: Preferences {
            pod_anti_affinity: vec![weighted(5, near("loud", "zone"))],
            ..Preferences::default()
        },
        ..request(1000, None)
    };
    fleet.bind(bound("shy", "n2", shy)).unwrap();
    let loud = Request {
        labels: labels(&[("app", "loud")]),
        ..request(1000, Some(GpuRequest::whole(1)))
    };
    assert!(chosen(&fleet, &loud).iter().all(|node| node == "n1"));
}

#[test]
fn a_namespace_selector_true_of_no_labels_selects_all_for_who_asks_and_not_for_who_is_there() {
    let mut fleet = fleet(&[in_zone("n1", "a"), in_zone("n2", "b")]);
    fleet.set_namespace("default", labels(&[("team", "blue")]));
    let not_blue = PodTerm {
        selector: Some(Selector::default()),
        namespace_selector: Some(Selector {
            match_expressions: vec![Expression::new("team", Operator::NotIn, &["blue"])],
            ..Selector::default()
        }),
        topology_key: Arc::from("zone"),
        ..PodTerm::default()
    };
    let wish = || Preferences {
        pod_anti_affinity: vec![weighted(5, not_blue.clone())],
        ..Preferences::default()
    };
    fleet.bind(bound("there", "n1", request(1, None))).unwrap();
    let places = chosen(&fleet, &asking(wish()));
    assert!(places.iter().all(|node| node == "n2"));
    fleet.release("there").unwrap();
    let stated = Request {
        preferences: wish(),
        ..request(1, None)
    };
    fleet.bind(bound("there", "n1", stated)).unwrap();
    let plain = request(1000, Some(GpuRequest::whole(1)));
    assert!(!crate::schedule::score::has_preferences(&fleet, &plain));
}

#[test]
fn a_soft_spread_takes_the_emptiest_domain_and_none_is_refused() {
    let mut fleet = fleet(&[in_zone("n1", "a"), in_zone("n2", "b"), node("n3")]);
    let web = || labelled(&[("app", "web")], crate::fleet::Constraints::default());
    fleet.bind(bound("w1", "n1", web())).unwrap();
    let mut wish = asking(Preferences {
        spread: vec![Spread {
            topology_key: Arc::from("zone"),
            selector: Some(Selector::labels(&[("app", "web")])),
            ..Spread::default()
        }],
        ..Preferences::default()
    });
    wish.labels = labels(&[("app", "web")]);
    assert!(chosen(&fleet, &wish).iter().all(|node| node == "n2"));
    fleet.remove_node("n2").unwrap();
    // A node outside the constraint is the last choice.
    assert!(chosen(&fleet, &wish).iter().all(|node| node == "n1"));
    fleet.remove_node("n1").unwrap();
    assert!(chosen(&fleet, &wish).iter().all(|node| node == "n3"));
}

#[test]
fn without_a_preference_the_load_of_silent_pods_still_counts() {
    let mut fleet = fleet(&[node("n1"), node("n2")]);
    let silent = Request {
        load: Some(Load {
            cpu_milli: 100,
            memory_bytes: 200 << 20,
        }),
        ..request(0, None)
    };
    for number in 0..10 {
        let id = format!("silent-{number}");
        fleet.bind(bound(&id, "n1", silent.clone())).unwrap();
    }
    let nodes: Vec<_> = fleet.nodes().map(|(id, _)| id).collect();
    let [first, second] = scores(&fleet, &silent, &nodes)[..] else {
        panic!("two nodes, two scores");
    };
    assert!(first < second, "{first} {second}");
}

#[test]
fn a_volume_out_of_reach_keeps_a_request_off_by_name() {
    let fleet = fleet(&[in_zone("n1", "a"), in_zone("n2", "b")]);
    let mut wish = request(1000, Some(GpuRequest::whole(1)));
    wish.constraints.volumes = vec![Reach {
        claim: Arc::from("data"),
        nodes: vec![zone("b")],
    }];
    assert!(chosen(&fleet, &wish).iter().all(|node| node == "n2"));
    let first = fleet.find("n1").unwrap();
    let claim = Arc::from("data");
    assert_eq!(
        reasons(&fleet, &wish, first),
        [Reason::Volume { claim }],
        "the reason names the claim"
    );
}
