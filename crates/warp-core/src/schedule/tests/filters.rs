//! Each filter against kube-scheduler's rule, one table or story per rule.

use std::sync::Arc;

use super::build::*;
use crate::fleet::{
    Card, Cards, Constraints, Effect, Expression, Fleet, GpuPool, GpuRequest, HostPort, Node,
    NodeId, NodePolicy, NodeTerm, Operator, PodTerm, Request, Selector, Spread, Taint, Toleration,
    TolerationOperator, WorkState,
};
use crate::resources::Resources;
use crate::schedule::Reason;
use crate::schedule::fit::reasons;

fn at(fleet: &Fleet, name: &str) -> NodeId {
    fleet.find(name).unwrap()
}

fn on(node: Node, request: &Request) -> Vec<Reason> {
    let name = node.name.to_string();
    let fleet = fleet(&[node]);
    reasons(&fleet, request, at(&fleet, &name))
}

fn fitting(fleet: &Fleet, request: &Request) -> Vec<String> {
    let fits = fleet
        .nodes()
        .filter(|&(id, _)| reasons(fleet, request, id).is_empty());
    fits.map(|(_, node)| node.name.to_string()).collect()
}

fn tolerating(tolerations: &[Toleration]) -> Request {
    let constraints = Constraints {
        tolerations: tolerations.to_vec(),
        ..Constraints::default()
    };
    labelled(&[], constraints)
}

#[test]
fn taints_keep_out_what_does_not_tolerate_them() {
    let taint = |effect| Taint::new("gpu", "yes", effect);
    let equal = |value: &str, effect| Toleration {
        key: Arc::from("gpu"),
        value: Arc::from(value),
        effect,
        ..Toleration::default()
    };
    let any = Toleration {
        operator: TolerationOperator::Exists,
        ..Toleration::default()
    };
    let cases = [
        (Effect::NoSchedule, vec![], false),
        (Effect::PreferNoSchedule, vec![], true),
        (Effect::NoExecute, vec![], false),
        (Effect::NoSchedule, vec![equal("yes", None)], true),
        (Effect::NoSchedule, vec![equal("no", None)], false),
        (
            Effect::NoSchedule,
            vec![equal("yes", Some(Effect::NoExecute))],
            false,
        ),
        (Effect::NoExecute, vec![any.clone()], true),
    ];
    for (effect, tolerations, fits) in cases {
        let tainted = Node {
            taints: vec![taint(effect)],
            ..node("n")
        };
        let reasons = on(tainted, &tolerating(&tolerations));
        assert_eq!(reasons.is_empty(), fits, "{effect:?} {tolerations:?}");
    }
    let cordoned = Node {
        unschedulable: true,
        ..node("n")
    };
    assert_eq!(
        on(cordoned.clone(), &tolerating(&[])),
        [Reason::Unschedulable]
    );
    assert_eq!(on(cordoned, &tolerating(&[any])), []);
}

#[test]
fn selector_affinity_and_name_must_all_hold() {
    let term = |value: &str| NodeTerm {
        match_expressions: vec![Expression::new("zone", Operator::In, &[value])],
        ..NodeTerm::default()
    };
    let constraints = |selector: &[(&str, &str)], terms: Option<Vec<NodeTerm>>| Constraints {
        node_selector: labels(selector),
        node_affinity: terms,
        ..Constraints::default()
    };
    let fleet = fleet(&[in_zone("n1", "a"), in_zone("n2", "b"), node("n3")]);
    let cases = [
        (constraints(&[("zone", "a")], None), vec!["n1"]),
        (
            constraints(&[], Some(vec![term("a"), term("b")])),
            vec!["n1", "n2"],
        ),
        (
            constraints(&[("host", "n2")], Some(vec![term("a")])),
            vec![],
        ),
        (constraints(&[], Some(vec![NodeTerm::default()])), vec![]),
        (
            Constraints {
                node_name: Some(Arc::from("n3")),
                ..Constraints::default()
            },
            vec!["n3"],
        ),
    ];
    for (constraints, expected) in cases {
        assert_eq!(
            fitting(&fleet, &labelled(&[], constraints.clone())),
            expected,
            "{constraints:?}"
        );
    }
}

#[test]
fn sums_are_compared_with_what_is_free() {
    let mut full = fleet(&[Node {
        pods: 2,
        ..node("n")
    }]);
    full.bind(bound("w", "n", request(31_000, None))).unwrap();
    let ask = |cpu| reasons(&full, &request(cpu, None), at(&full, "n"));
    assert_eq!(ask(1000), []);
    let short = Reason::Insufficient {
        resource: Arc::from("cpu"),
        needed: 1001,
        free: 1000,
        total: 32_000,
    };
    assert_eq!(ask(1001), [short]);
    full.bind(bound("w2", "n", request(0, None))).unwrap();
    assert_eq!(
        reasons(&full, &request(0, None), at(&full, "n")),
        [Reason::TooManyPods { limit: 2 }]
    );
    let disk = Request {
        resources: Resources::default().with("ephemeral-storage", 1),
        ..request(0, None)
    };
    assert!(matches!(
        on(node("n"), &disk)[..],
        [Reason::Insufficient { total: 0, .. }]
    ));
}

#[test]
fn asking_for_nothing_fits_an_overcommitted_node() {
    let mut fleet = fleet(&[node("n")]);
    fleet.bind(bound("w", "n", request(40_000, None))).unwrap();
    assert_eq!(reasons(&fleet, &request(0, None), at(&fleet, "n")), []);
}

#[test]
fn gpus_must_be_of_an_accepted_kind_and_idle() {
    let of = |gpu| request(1000, Some(gpu));
    assert_eq!(on(node("n"), &of(GpuRequest::whole(4))), []);
    assert_eq!(
        on(node("n"), &of(GpuRequest::whole(5))),
        [Reason::FewGpus {
            needed: 5,
            idle: 4,
            total: 4,
            sick: 0
        }]
    );
    let a100 = of(GpuRequest::whole(1).models(&["A100"]));
    assert_eq!(
        on(node("n"), &a100),
        [Reason::GpuModel {
            found: Arc::from("T4")
        }]
    );
    let large = of(GpuRequest {
        min_memory_bytes: 40 << 30,
        ..GpuRequest::whole(1)
    });
    assert_eq!(
        on(node("n"), &large),
        [Reason::GpuMemory {
            needed: 40 << 30,
            found: 16 << 30
        }]
    );
    assert_eq!(
        on(
            Node {
                gpus: vec![],
                ..node("n")
            },
            &of(GpuRequest::whole(1))
        ),
        [Reason::NoGpu]
    );
    let mut sick = node("n");
    sick.gpus[0].cards = Cards::Each(vec![Card { healthy: false }]);
    assert_eq!(
        on(sick, &of(GpuRequest::whole(1))),
        [Reason::FewGpus {
            needed: 1,
            idle: 0,
            total: 1,
            sick: 1
        }]
    );
}

#[test]
fn counted_cards_are_whole_and_counted_by_name() {
    let counted = Node {
        allocatable: Resources::new(32_000, 128 << 30).with("nvidia.com/gpu", 2),
        gpus: vec![GpuPool::nvidia("T4", 16 << 30, Cards::Counted)],
        ..node("n")
    };
    let mut fleet = fleet(&[counted]);
    let fraction = request(1000, Some(GpuRequest::fraction(500)));
    assert_eq!(
        reasons(&fleet, &fraction, at(&fleet, "n")),
        [Reason::WholeCardsOnly]
    );
    let foreign = Request {
        resources: Resources::default().with("nvidia.com/gpu", 1),
        ..request(0, None)
    };
    fleet.bind(bound("pod", "n", foreign)).unwrap();
    let two = request(1000, Some(GpuRequest::whole(2)));
    assert_eq!(
        reasons(&fleet, &two, at(&fleet, "n")),
        [Reason::FewGpus {
            needed: 2,
            idle: 1,
            total: 2,
            sick: 0
        }]
    );
}

#[test]
fn host_ports_collide_by_address_protocol_and_number() {
    let port = |ip: &str, protocol: &str, port| HostPort {
        ip: Arc::from(ip),
        protocol: Arc::from(protocol),
        port,
    };
    let asking = |ports: &[HostPort]| {
        labelled(
            &[],
            Constraints {
                host_ports: ports.to_vec(),
                ..Constraints::default()
            },
        )
    };
    let mut fleet = fleet(&[node("n")]);
    fleet
        .bind(bound("w", "n", asking(&[port("10.0.0.1", "TCP", 80)])))
        .unwrap();
    for (ip, protocol, number, fits) in [
        ("", "", 80, false),
        ("0.0.0.0", "TCP", 80, false),
        ("10.0.0.1", "TCP", 80, false),
        ("10.0.0.2", "TCP", 80, true),
        ("", "UDP", 80, true),
        ("", "TCP", 81, true),
    ] {
        let request = asking(&[port(ip, protocol, number)]);
        assert_eq!(
            reasons(&fleet, &request, at(&fleet, "n")).is_empty(),
            fits,
            "{ip} {protocol} {number}"
        );
    }
}

fn near(app: &str, key: &str) -> PodTerm {
    PodTerm {
        selector: Some(Selector::labels(&[("app", app)])),
        topology_key: Arc::from(key),
        ..PodTerm::default()
    }
}

fn zones() -> Fleet {
    fleet(&[
        in_zone("a1", "a"),
        in_zone("a2", "a"),
        in_zone("b1", "b"),
        node("lost"),
    ])
}

#[test]
fn affinity_follows_pods_and_the_first_of_a_group_may_start() {
    let mut fleet = zones();
    let wants = |app: &str| Constraints {
        pod_affinity: vec![near(app, "zone")],
        ..Constraints::default()
    };
    let member = labelled(&[("app", "db")], wants("db"));
    assert_eq!(
        fitting(&fleet, &member),
        ["a1", "a2", "b1"],
        "the first pod of its own group"
    );
    let stranger = labelled(&[("app", "web")], wants("db"));
    assert!(fitting(&fleet, &stranger).is_empty(), "nobody to be near");
    fleet
        .bind(bound(
            "w",
            "b1",
            labelled(&[("app", "db")], Constraints::default()),
        ))
        .unwrap();
    assert_eq!(fitting(&fleet, &member), ["b1"]);
    assert_eq!(fitting(&fleet, &stranger), ["b1"]);
    assert!(matches!(
        reasons(&fleet, &member, at(&fleet, "lost"))[..],
        [Reason::NoTopologyLabel { .. }]
    ));
    let elsewhere = Request {
        namespace: Arc::from("other"),
        ..stranger
    };
    assert!(
        fitting(&fleet, &elsewhere).is_empty(),
        "terms mean the pod's own namespace"
    );
}

#[test]
fn anti_affinity_holds_in_both_directions() {
    let mut fleet = zones();
    let avoids = |app: &str| Constraints {
        pod_anti_affinity: vec![near(app, "zone")],
        ..Constraints::default()
    };
    fleet
        .bind(bound(
            "loud",
            "a1",
            labelled(&[("app", "loud")], Constraints::default()),
        ))
        .unwrap();
    let quiet = labelled(&[("app", "quiet")], avoids("loud"));
    assert_eq!(fitting(&fleet, &quiet), ["b1", "lost"]);
    fleet.bind(bound("quiet", "b1", quiet)).unwrap();
    let loud = labelled(&[("app", "loud")], Constraints::default());
    assert_eq!(fitting(&fleet, &loud), ["a1", "a2", "lost"]);
    assert!(matches!(
        &reasons(&fleet, &loud, at(&fleet, "b1"))[..],
        [Reason::Repelled { holder, .. }] if **holder == *"quiet"
    ));
    fleet.release("quiet");
    assert_eq!(fitting(&fleet, &loud).len(), 4);
}

#[test]
fn terms_reach_other_namespaces_by_name_and_by_label() {
    let mut fleet = zones();
    fleet.set_namespace("blue", labels(&[("team", "blue")]));
    let in_blue = Request {
        namespace: Arc::from("blue"),
        ..labelled(&[("app", "db")], Constraints::default())
    };
    fleet.bind(bound("w", "a1", in_blue)).unwrap();
    let term = |namespaces: &[&str], selector: Option<Selector>| PodTerm {
        namespaces: namespaces.iter().map(|&n| Arc::from(n)).collect(),
        namespace_selector: selector,
        ..near("db", "zone")
    };
    for (term, fits) in [
        (term(&[], None), false),
        (term(&["blue"], None), true),
        (term(&["red"], None), false),
        (term(&[], Some(Selector::default())), true),
        (term(&[], Some(Selector::labels(&[("team", "blue")]))), true),
        (term(&[], Some(Selector::labels(&[("team", "red")]))), false),
    ] {
        let constraints = Constraints {
            pod_affinity: vec![term.clone()],
            ..Constraints::default()
        };
        let expected: &[&str] = if fits { &["a1", "a2"] } else { &[] };
        assert_eq!(
            fitting(&fleet, &labelled(&[], constraints)),
            expected,
            "{term:?}"
        );
    }
}

#[test]
fn label_keys_narrow_a_term_to_the_pods_own_values() {
    let mut fleet = zones();
    fleet
        .bind(bound(
            "v1",
            "a1",
            labelled(&[("app", "db"), ("hash", "1")], Constraints::default()),
        ))
        .unwrap();
    let asking = |hash: &str, term: PodTerm| {
        let constraints = Constraints {
            pod_anti_affinity: vec![term],
            ..Constraints::default()
        };
        labelled(&[("app", "db"), ("hash", hash)], constraints)
    };
    let keys = || vec![Arc::from("hash")];
    let same = PodTerm {
        match_label_keys: keys(),
        ..near("db", "zone")
    };
    let other = PodTerm {
        mismatch_label_keys: keys(),
        ..near("db", "zone")
    };
    assert_eq!(fitting(&fleet, &asking("1", same.clone())), ["b1", "lost"]);
    assert_eq!(fitting(&fleet, &asking("2", same)).len(), 4);
    assert_eq!(fitting(&fleet, &asking("1", other.clone())).len(), 4);
    assert_eq!(fitting(&fleet, &asking("2", other)), ["b1", "lost"]);
}

fn spread() -> Spread {
    Spread {
        topology_key: Arc::from("zone"),
        selector: Some(Selector::labels(&[("app", "web")])),
        ..Spread::default()
    }
}

fn spreading(spread: Spread) -> Request {
    labelled(
        &[("app", "web")],
        Constraints {
            spread: vec![spread],
            ..Constraints::default()
        },
    )
}

#[test]
fn spread_bounds_the_skew_between_domains() {
    let mut fleet = zones();
    let web = labelled(&[("app", "web")], Constraints::default());
    fleet.bind(bound("w1", "a1", web.clone())).unwrap();
    assert_eq!(fitting(&fleet, &spreading(spread())), ["b1"]);
    assert_eq!(
        fitting(
            &fleet,
            &spreading(Spread {
                max_skew: 2,
                ..spread()
            })
        ),
        ["a1", "a2", "b1"]
    );
    let mut going = bound("w2", "b1", web.clone());
    going.state = WorkState::Terminating;
    fleet.bind(going).unwrap();
    assert_eq!(
        fitting(&fleet, &spreading(spread())),
        ["b1"],
        "a pod that is going counts no more"
    );
    let unmatched = labelled(
        &[],
        Constraints {
            spread: vec![spread()],
            ..Constraints::default()
        },
    );
    assert_eq!(
        fitting(&fleet, &unmatched),
        ["a1", "a2", "b1"],
        "it adds nothing to any domain"
    );
    let elsewhere = Request {
        namespace: Arc::from("other"),
        ..spreading(spread())
    };
    assert_eq!(fitting(&fleet, &elsewhere), ["a1", "a2", "b1"]);
}

#[test]
fn an_empty_spread_selector_counts_no_bound_pod() {
    let mut fleet = zones();
    let web = labelled(&[("app", "web")], Constraints::default());
    fleet.bind(bound("w1", "a1", web)).unwrap();
    let everything = Spread {
        selector: Some(Selector::default()),
        ..spread()
    };
    assert_eq!(
        fitting(&fleet, &spreading(everything.clone())),
        ["a1", "a2", "b1"]
    );
    let keyed = Spread {
        match_label_keys: vec![Arc::from("app")],
        ..everything
    };
    assert_eq!(fitting(&fleet, &spreading(keyed)), ["b1"]);
}

#[test]
fn too_few_domains_count_as_an_empty_one() {
    let mut fleet = zones();
    let web = labelled(&[("app", "web")], Constraints::default());
    for (id, node) in [("w1", "a1"), ("w2", "b1")] {
        fleet.bind(bound(id, node, web.clone())).unwrap();
    }
    assert_eq!(fitting(&fleet, &spreading(spread())), ["a1", "a2", "b1"]);
    assert!(
        fitting(
            &fleet,
            &spreading(Spread {
                min_domains: 3,
                ..spread()
            })
        )
        .is_empty()
    );
}

#[test]
fn node_policies_decide_which_domains_count() {
    let mut nodes = [in_zone("a1", "a"), in_zone("b1", "b")];
    nodes[1]
        .taints
        .push(Taint::new("gpu", "", Effect::NoSchedule));
    let mut fleet = fleet(&nodes);
    fleet
        .bind(bound(
            "w",
            "a1",
            labelled(&[("app", "web")], Constraints::default()),
        ))
        .unwrap();
    assert!(
        fitting(&fleet, &spreading(spread())).is_empty(),
        "the tainted zone counts as empty"
    );
    let honour = Spread {
        node_taints_policy: NodePolicy::Honor,
        ..spread()
    };
    assert_eq!(fitting(&fleet, &spreading(honour)), ["a1"]);
    let mut in_a = spreading(spread());
    in_a.constraints.node_selector = labels(&[("zone", "a")]);
    assert_eq!(
        fitting(&fleet, &in_a),
        ["a1"],
        "the other zone is not the pod's to use"
    );
    in_a.constraints.spread[0].node_affinity_policy = NodePolicy::Ignore;
    assert!(fitting(&fleet, &in_a).is_empty());
}

#[test]
fn an_impossible_request_fits_nowhere_and_says_so() {
    let reasons = on(node("n"), &request(1000, Some(GpuRequest::whole(0))));
    assert!(matches!(reasons[..], [Reason::Contradiction(_)]));
}
