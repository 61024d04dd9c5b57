//! Providers are compared where anybody wants that, left alone after failures in a row, and limited.

use warp_api::providers::{ProviderRules, rules};

use super::*;

fn said(data: Value) -> Arc<ProviderRules> {
    let map = serde_json::from_value(json!({"data": data})).unwrap();
    let (rules, bad) = rules(Some(&map));
    assert!(bad.is_empty(), "{bad:?}");
    Arc::new(rules)
}

/// A node of a provider, with a price per GPU-hour.
fn of(provider: &str, name: &str, price: &str) -> Arc<k8s_openapi::api::core::v1::Node> {
    node(
        name,
        8,
        json!({"gpu.warp.dev/provider": provider, "gpu.warp.dev/gpu-hour-price": price}),
    )
}

/// A workload whose attempts at a provider ended so, one every ten seconds, the last ten seconds ago.
fn told(provider: &str, endings: &[Option<&str>]) -> Arc<GPUWorkload> {
    let count = i64::try_from(endings.len()).unwrap();
    let attempts = (0..).zip(endings).map(|(number, ending)| {
        let at = now() - jiff::SignedDuration::from_secs(10 * (count - number));
        let placed = at - jiff::SignedDuration::from_secs(4);
        match ending {
            Some(reason) => json!({"number": number, "provider": provider, "placedAt": placed, "endedAt": at, "reason": reason}),
            None => json!({"number": number, "provider": provider, "placedAt": placed, "startedAt": at}),
        }
    });
    let attempts: Vec<Value> = attempts.collect();
    workload(
        &format!("told-{provider}"),
        json!({"status": {"recentAttempts": attempts}}),
    )
}

struct Table {
    ledger: Ledger,
    providers: Providers,
}

impl Table {
    fn new(
        nodes: &[Arc<k8s_openapi::api::core::v1::Node>],
        rules: Arc<ProviderRules>,
        told: &[Arc<GPUWorkload>],
        at: Timestamp,
    ) -> Self {
        let history = History::of(told.iter().map(|one| &**one));
        Self {
            ledger: ledger::build(nodes, &[], &[]),
            providers: Providers::new(rules, &history, at),
        }
    }

    fn decide(&mut self, wanted: &[Arc<GPUWorkload>]) -> Vec<Decision> {
        let claimants: Vec<_> = wanted.iter().map(claimant).collect();
        self.decide_for(&claimants)
    }

    fn decide_for(&mut self, claimants: &[Arc<dyn Claimant>]) -> Vec<Decision> {
        let settings = Settings::default();
        let (quotas, tenancy) = (Quotas::default(), Tenancy::default());
        let mut desk = Desk::new(claimants, quotas, tenancy, skipping(), &settings)
            .comparing(self.providers.clone());
        let all = claimants.iter();
        all.map(|one| desk.decide(&mut self.ledger, &**one))
            .collect()
    }
}

fn why(decision: &Decision) -> &str {
    match decision {
        Decision::Place(places) => &places[0].why,
        other => panic!("not placed: {other:?}"),
    }
}

fn two_nodes() -> [Arc<k8s_openapi::api::core::v1::Node>; 2] {
    [of("onprem", "a", "3"), of("cloud", "b", "1")]
}

#[test]
fn the_best_by_the_weights_is_taken_and_the_runners_up_are_named() {
    let one = [workload("w", json!({}))];
    for (weights, node) in [("{cost: 1}", "b"), ("{start: 1}", "a")] {
        let rules = said(json!({
            "weights": weights, "onprem": "{startSeconds: 5}", "cloud": "{startSeconds: 90}",
        }));
        let mut table = Table::new(&two_nodes(), rules, &[], now());
        let decided = table.decide(&one);
        assert_eq!(chosen(&decided[0]).as_deref(), Some(node), "{weights}");
        let said = why(&decided[0]);
        assert!(
            said.contains("of 2 providers: ") && said.contains("onprem with "),
            "{said}"
        );
        assert!(said.contains("cloud with "), "{said}");
    }
}

#[test]
fn what_was_measured_counts_before_what_is_said() {
    let rules = said(
        json!({"weights": "{start: 1}", "onprem": "{startSeconds: 60}", "cloud": "{startSeconds: 1}"}),
    );
    let told = [told("onprem", &[None, None]), told("cloud", &[])];
    let mut slow = Table::new(&two_nodes(), Arc::clone(&rules), &told, now());
    // Four seconds measured on premises; one said of the cloud.
    assert_eq!(
        chosen(&slow.decide(&[workload("w", json!({}))])[0]).as_deref(),
        Some("b")
    );
    let rules = said(
        json!({"weights": "{start: 1}", "onprem": "{startSeconds: 60}", "cloud": "{startSeconds: 5}"}),
    );
    let mut fast = Table::new(&two_nodes(), rules, &told, now());
    assert_eq!(
        chosen(&fast.decide(&[workload("w", json!({}))])[0]).as_deref(),
        Some("a")
    );
}

#[test]
fn nobody_compares_providers_unless_asked_to() {
    let mut table = Table::new(&two_nodes(), Arc::default(), &[], now());
    let decided = table.decide(&[workload("w", json!({}))]);
    assert!(!why(&decided[0]).contains("of 2 providers"));
    // One workload may ask for it alone.
    let any = json!({"annotations": {"gpu.warp.dev/provider": "*"}});
    let decided = table.decide(&[workload("w2", any)]);
    assert!(why(&decided[0]).contains("of 2 providers"));
}

#[test]
fn those_that_are_named_come_before_the_rest() {
    let nodes = [
        of("onprem", "a", "3"),
        of("cloud", "b", "1"),
        of("dear", "c", "9"),
    ];
    let rules = said(json!({"weights": "{cost: 1}"}));
    let mut table = Table::new(&nodes, rules, &[], now());
    let named = |name: &str| {
        let list = json!({"gpu.warp.dev/provider": "dear, *"});
        workload(name, json!({"gpuCount": 8, "annotations": list}))
    };
    let decided = table.decide(&["w1", "w2", "w3", "w4"].map(named));
    let places: Vec<_> = decided.iter().map(chosen).collect();
    assert_eq!(
        places,
        [
            Some("c".to_owned()),
            Some("b".to_owned()),
            Some("a".to_owned()),
            None
        ]
    );
    let (name, message) = verdict(&decided[3]);
    assert_eq!(name, reason::WAITING_FOR_CAPACITY);
    for provider in ["provider dear", "provider cloud", "provider onprem"] {
        assert!(message.contains(provider), "{message}");
    }
}

#[test]
fn a_provider_whose_attempts_fail_in_a_row_is_left_alone_then_tried_once() {
    let lost = Some("NodeLost");
    let told = [told("cloud", &[lost, lost, lost])];
    let cloud = |name: &str| {
        let list = json!({"gpu.warp.dev/provider": "cloud"});
        workload(name, json!({"annotations": list}))
    };
    let mut open = Table::new(&two_nodes(), Arc::default(), &told, now());
    let decided = open.decide(&[cloud("w"), workload("anywhere", json!({}))]);
    let (name, message) = verdict(&decided[0]);
    assert_eq!(name, reason::WAITING_FOR_CAPACITY);
    assert!(
        message.contains("of provider cloud, which is left alone until 2026-11-15T12:04:50Z")
            && message.contains("3 failures of its nodes in a row, the last NodeLost"),
        "{message}"
    );
    assert_eq!(chosen(&decided[1]).as_deref(), Some("a"));
    // One attempt when the time is over, and none beside it.
    let later = now() + jiff::SignedDuration::from_mins(5);
    let mut half = Table::new(&two_nodes(), Arc::default(), &told, later);
    let decided = half.decide(&[cloud("w"), cloud("second")]);
    assert_eq!(chosen(&decided[0]).as_deref(), Some("b"));
    let (_, message) = verdict(&decided[1]);
    assert!(message.contains("one attempt there decides"), "{message}");
}

#[test]
fn one_start_after_failures_ends_them() {
    let lost = Some("NodeLost");
    let told = [told("cloud", &[lost, lost, lost, None])];
    let list = json!({"gpu.warp.dev/provider": "cloud"});
    let mut closed = Table::new(&two_nodes(), Arc::default(), &told, now());
    let decided = closed.decide(&[workload("w", json!({"annotations": list}))]);
    assert_eq!(chosen(&decided[0]).as_deref(), Some("b"));
}

#[test]
fn a_limit_that_its_nodes_cannot_reach_is_in_nobodys_way() {
    let cloud = |name: &str, gpus: u32| {
        let list = json!({"gpu.warp.dev/provider": "cloud"});
        workload(name, json!({"gpuCount": gpus, "annotations": list}))
    };
    for (most, limited) in [(7, true), (8, false), (9, false)] {
        let rules = said(json!({"cloud": format!("{{maxGpus: {most}}}")}));
        let mut table = Table::new(&two_nodes(), rules, &[], now());
        table.decide(&[cloud("a", 6)]);
        // What lacks otherwise is room, which others may be asked to make.
        let waits = claimant(&cloud("b", 4));
        let closed = table.providers.closed(&table.ledger, waits.claim());
        assert_eq!(closed.contains_key("cloud"), limited, "{most}: {closed:?}");
    }
}

#[test]
fn no_more_gpus_of_a_provider_are_given_than_its_limit() {
    let rules = said(json!({"cloud": "{maxGpus: 5}"}));
    let mut table = Table::new(&two_nodes(), rules, &[], now());
    let cloud = |name: &str, gpus: u32| {
        let list = json!({"gpu.warp.dev/provider": "cloud"});
        workload(name, json!({"gpuCount": gpus, "annotations": list}))
    };
    let decided = table.decide(&[cloud("a", 4), cloud("b", 2), cloud("c", 1), cloud("d", 1)]);
    let places: Vec<_> = decided.iter().map(chosen).collect();
    assert_eq!(
        places,
        [Some("b".to_owned()), None, Some("b".to_owned()), None]
    );
    let (name, message) = verdict(&decided[1]);
    assert_eq!(name, reason::WAITING_FOR_CAPACITY);
    assert!(
        message.contains("limited to 5 GPUs at once, of which 4 are held"),
        "{message}"
    );
}

#[test]
fn a_gang_has_one_provider_where_that_has_room_and_several_where_none_has() {
    let nodes = [
        of("onprem", "a", "1"),
        of("cloud", "b", "2"),
        of("cloud", "c", "2"),
    ];
    let rules = said(json!({"weights": "{cost: 1}"}));
    let mut table = Table::new(&nodes, rules, &[], now());
    let two = Gang::of(2, &workload("two", json!({"gpuCount": 8})));
    let [Decision::Place(places)] = &table.decide_for(&[two])[..] else {
        panic!("not placed")
    };
    let nodes_of: Vec<_> = places.iter().map(|place| place.node.as_str()).collect();
    assert_eq!(nodes_of, ["b", "c"]);
    assert_eq!(places[0].provider, "cloud");
    let rules = said(json!({"weights": "{cost: 1}"}));
    let mut table = Table::new(&nodes, rules, &[], now());
    let three = Gang::of(3, &workload("three", json!({"gpuCount": 8})));
    let [Decision::Place(places)] = &table.decide_for(&[three])[..] else {
        panic!("not placed")
    };
    assert_eq!(places.len(), 3);
    // What comes of it speaks for and against none of them.
    assert_eq!(places[0].provider, "cloud,onprem");
}
