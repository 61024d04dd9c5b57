//! Claims for several pods: whole or not at all, close together, under one resource name.

use std::collections::BTreeMap;

use proptest::prelude::*;
use warp_core::check;

use super::*;

fn zoned(name: &str, gpus: u32, zone: &str) -> Arc<k8s_openapi::api::core::v1::Node> {
    node(name, gpus, json!({"topology.kubernetes.io/zone": zone}))
}

fn gang(name: &str, replicas: u32, gpus: u32, more: Value) -> Arc<GPUWorkload> {
    let mut spec = json!({"gpuCount": gpus, "replicas": replicas});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    workload(name, spec)
}

fn nodes_of(decision: &Decision) -> Vec<&str> {
    match decision {
        Decision::Place(places) => places.iter().map(|place| place.node.as_str()).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn members_of_one_node_have_ranks_that_follow_each_other() {
    let nodes = [node("a", 4, json!({})), node("b", 4, json!({}))];
    let mut ledger = ledger::build(&nodes, &[], &[]);
    // Spread by choice: every other member would go to the other node.
    let spec = json!({"schedulingStrategy": "leastLoaded"});
    let placed = decide(&mut ledger, &[gang("g", 4, 2, spec)]).remove(0);
    let nodes = nodes_of(&placed);
    assert_eq!(nodes.len(), 4);
    assert_eq!((nodes[0], nodes[2]), (nodes[1], nodes[3]));
    assert_ne!(nodes[0], nodes[2]);
    let Decision::Place(places) = &placed else {
        panic!("it fits");
    };
    assert!(places[0].why.contains("for 4 members"), "{}", places[0].why);
}

#[test]
fn a_gang_that_waits_says_how_many_fit_and_what_keeps_the_next_off() {
    let nodes = [node("a", 8, json!({})), node("b", 8, json!({}))];
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let wanted = [
        workload("w", json!({"gpuCount": 4})),
        gang("g", 2, 8, json!({})),
        gang("never", 4, 8, json!({})),
    ];
    let decisions = decide(&mut ledger, &wanted);
    let (reason, said) = verdict(&decisions[1]);
    assert_eq!(reason, reason::WAITING_FOR_CAPACITY);
    assert!(
        said.starts_with("needs 2 × 8 nvidia GPUs: 1 of 2 members fit; for the next one 0 of 2"),
        "{said}"
    );
    let (reason, said) = verdict(&decisions[2]);
    assert_eq!(reason, reason::NEVER_FITS);
    assert!(said.contains("if nothing else ran"), "{said}");
    assert_eq!(ledger.fleet.works().count(), 1, "nothing is left of them");
}

#[test]
fn an_elastic_gang_gets_the_places_there_are_and_waits_for_the_fewest() {
    let nodes = ["a", "b", "c", "d", "e"].map(|name| node(name, 4, json!({})));
    for (taken, places) in [(0, 4), (1, 4), (2, 3), (3, 2)] {
        let mut ledger = ledger::build(&nodes, &[], &[]);
        let mut wanted = vec![workload("w", json!({"gpuCount": 4})); taken];
        for (at, one) in wanted.iter_mut().enumerate() {
            *one = workload(&format!("w-{at}"), json!({"gpuCount": 4}));
        }
        wanted.push(gang("g", 4, 4, json!({"minReplicas": 2})));
        let decisions = decide(&mut ledger, &wanted);
        assert_eq!(
            nodes_of(&decisions[taken]).len(),
            places,
            "{taken} are taken"
        );
        assert_eq!(ledger.fleet.works().count(), taken + places);
    }
    let mut ledger = ledger::build(&nodes[..2], &[], &[]);
    let wanted = [
        workload("w", json!({"gpuCount": 4})),
        gang("g", 4, 4, json!({"minReplicas": 2})),
    ];
    let decisions = decide(&mut ledger, &wanted);
    let (reason, said) = verdict(&decisions[1]);
    assert_eq!(reason, reason::WAITING_FOR_CAPACITY);
    assert!(
        said.starts_with("needs 2 × 4 nvidia GPUs: 1 of 2 members fit"),
        "{said}"
    );
    assert_eq!(ledger.fleet.works().count(), 1, "nothing is left of it");
}

#[test]
fn nodes_that_are_held_back_never_make_a_gang_read_as_never() {
    let cordon = json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"});
    let team = json!({"key": "team", "value": "a", "effect": "NoSchedule"});
    let gone = json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"});
    let held = |taint: &Value| {
        let mut value = serde_json::to_value(&*node("b", 8, json!({}))).unwrap();
        value["spec"]["taints"] = json!([taint]);
        Arc::new(serde_json::from_value(value).unwrap())
    };
    let cases = [
        (&cordon, reason::NODES_CORDONED, "kubectl uncordon b"),
        (&team, reason::NODES_TAINTED, "tolerate team=a:NoSchedule"),
        (&gone, reason::NODES_NOT_READY, "repair or replace b"),
    ];
    for (taint, want, words) in cases {
        let nodes = [node("a", 8, json!({})), held(taint)];
        let mut ledger = ledger::build(&nodes, &[], &[]);
        let wanted = [
            workload("w", json!({"gpuCount": 4})),
            gang("two", 2, 8, json!({})),
            gang("three", 3, 8, json!({})),
        ];
        let decisions = decide(&mut ledger, &wanted);
        let (found, said) = verdict(&decisions[1]);
        assert_eq!(found, want, "{said}");
        assert!(said.contains(words), "{said}");
        // With every node in service there would still be one too few.
        assert_eq!(verdict(&decisions[2]).0, reason::NEVER_FITS);
    }
}

#[test]
fn a_required_level_holds_all_members_and_a_preferred_one_if_it_can() {
    let nodes = [
        zoned("a", 4, "east"),
        zoned("b", 4, "west"),
        zoned("c", 4, "west"),
        node("d", 4, json!({})),
    ];
    let near = |mode: &str| json!({"topology": {"level": "zone", "mode": mode}});
    let alone = |wanted: Arc<GPUWorkload>| {
        let mut ledger = ledger::build(&nodes, &[], &[]);
        decide(&mut ledger, &[wanted]).remove(0)
    };
    let two = alone(gang("g", 2, 4, near("required")));
    let mut there = nodes_of(&two);
    there.sort_unstable();
    assert_eq!(there, ["b", "c"]);
    let (reason, said) = verdict(&alone(gang("g", 3, 4, near("required"))));
    assert_eq!(reason, reason::NEVER_FITS);
    assert!(said.contains("in one zone: 2 of 3 members fit"), "{said}");
    let three = alone(gang("g", 3, 4, near("preferred")));
    assert_eq!(nodes_of(&three).len(), 3);
}

#[test]
fn a_gang_that_must_be_together_waits_where_it_would_fit_and_not_where_it_never_does() {
    // Idle, and too small for any member: it comes as far as the others, which are full.
    let small = zoned("s", 1, "west");
    let nodes = [zoned("a", 4, "north"), zoned("b", 4, "south"), small];
    let near = json!({"topology": {"level": "zone"}});
    let wanted = [
        workload("v", json!({"gpuCount": 4})),
        workload("w", json!({"gpuCount": 3})),
        gang("g", 2, 2, near.clone()),
        gang("never", 3, 2, near),
    ];
    let decisions = decide(&mut ledger::build(&nodes, &[], &[]), &wanted);
    let (reason, said) = verdict(&decisions[2]);
    assert_eq!(reason, reason::WAITING_FOR_CAPACITY, "{said}");
    assert!(said.contains("in one zone: 0 of 2 members fit"), "{said}");
    assert!(!said.contains("affinity"), "it asked for none: {said}");
    assert_eq!(verdict(&decisions[3]).0, reason::NEVER_FITS);
}

/// Decisions on a cluster that has levels of its own.
fn with_levels(
    levels: &str,
    nodes: &[Arc<k8s_openapi::api::core::v1::Node>],
    wanted: &Arc<GPUWorkload>,
) -> Decision {
    let settings = Settings {
        topology_levels: Arc::new(levels.parse().unwrap()),
        ..Settings::default()
    };
    let reading = Reading {
        levels: Arc::clone(&settings.topology_levels),
        ..Reading::default()
    };
    let mut ledger = ledger::build_among(&reading, nodes, &[], &[]);
    let seen = Seen {
        levels: Arc::clone(&settings.topology_levels),
        ..Seen::default()
    };
    let jobs = Cache::new(&[]);
    let claimant = Asking::new(&jobs, Arc::clone(wanted), seen, now()).expect("a sound spec");
    let claimants: [Arc<dyn Claimant>; 1] = [Arc::new(claimant)];
    let (quotas, tenancy) = (Quotas::default(), Tenancy::default());
    let mut desk = Desk::new(&claimants, quotas, tenancy, skipping(), &settings);
    desk.decide(&mut ledger, &*claimants[0])
}

#[test]
fn a_cluster_has_levels_of_its_own_and_their_domains_are_inside_each_other() {
    let place = |name: &str, pod: &str, rack: &str| {
        node(
            name,
            4,
            json!({"example.com/pod": pod, "example.com/rack": rack}),
        )
    };
    // Two racks are called r1, in two pods.
    let nodes = [
        place("a", "p1", "r1"),
        place("b", "p2", "r1"),
        place("c", "p2", "r2"),
        place("d", "p3", "r3"),
    ];
    let levels = "pod=example.com/pod,rack=example.com/rack";
    let near = |mode: &str| json!({"topology": {"level": "rack", "mode": mode}});
    let required = with_levels(levels, &nodes, &gang("g", 2, 4, near("required")));
    let (reason, said) = verdict(&required);
    assert_eq!(reason, reason::NEVER_FITS, "{said}");
    assert!(said.contains("in one rack: 1 of 2 members fit"), "{said}");
    let preferred = with_levels(levels, &nodes, &gang("g", 2, 4, near("preferred")));
    let mut there = nodes_of(&preferred);
    there.sort_unstable();
    assert_eq!(there, ["b", "c"], "no rack holds both, and one pod does");
}

#[test]
fn a_level_no_node_tells_of_is_said_with_those_of_the_cluster() {
    let nodes = [zoned("a", 4, "east"), zoned("b", 4, "east")];
    let levels = "zone=topology.kubernetes.io/zone,rack=example.com/rack";
    for (level, label) in [("rack", "example.com/rack"), ("block", "block")] {
        let asked = gang("g", 2, 4, json!({"topology": {"level": level}}));
        let decision = with_levels(levels, &nodes, &asked);
        let (reason, said) = verdict(&decision);
        assert_eq!(reason, reason::NO_SUCH_LEVEL, "{said}");
        let known = "zone (topology.kubernetes.io/zone), rack (example.com/rack), host";
        assert!(
            said.contains(&format!("no node has the label {label};")),
            "{said}"
        );
        assert!(said.contains(known), "{said}");
    }
}

#[test]
fn members_use_one_resource_name() {
    let intel = |name: &str, resource: &str| {
        let mut found = (*node(name, 0, json!({}))).clone();
        let labels = json!({"gpu.intel.com/product": "Max_1550"});
        found.metadata.labels = serde_json::from_value(labels).unwrap();
        found.spec = None;
        let status = found.status.as_mut().unwrap();
        let room = json!({"cpu": "64", "memory": "512Gi", "pods": "110", resource: "4"});
        status.allocatable = serde_json::from_value(room).unwrap();
        Arc::new(found)
    };
    let nodes = [
        intel("old", "gpu.intel.com/i915"),
        intel("new-1", "gpu.intel.com/xe"),
        intel("new-2", "gpu.intel.com/xe"),
    ];
    let asks = |members: u32| gang("g", members, 4, json!({"gpu": {"vendor": "intel"}}));
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let placed = decide(&mut ledger, &[asks(2)]).remove(0);
    let mut there = nodes_of(&placed);
    there.sort_unstable();
    assert_eq!(there, ["new-1", "new-2"]);
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let (_, said) = verdict(&decide(&mut ledger, &[asks(3)]).remove(0));
    assert!(said.contains("2 of 3 members fit"), "{said}");
}

/// The promises of a made Job keep what the decision gave, pod by pod.
#[test]
fn a_gang_that_is_made_keeps_its_room_until_its_pods_hold_it() {
    let nodes = [node("a", 4, json!({})), node("b", 4, json!({}))];
    let one = gang("g", 2, 4, json!({}));
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let Decision::Place(places) = decide(&mut ledger, std::slice::from_ref(&one)).remove(0) else {
        panic!("it fits");
    };
    let mut job = asking(&one).job(&places).expect("a Job");
    job.metadata.uid = Some("job-uid".to_owned());
    let promised = crate::workload::promises(&job, &[]);
    assert_eq!(promised.len(), 2);
    let mut next = ledger::build(&nodes, &[], &promised);
    let decisions = decide(&mut next, &[workload("two", json!({}))]);
    assert_eq!(verdict(&decisions[0]).0, reason::WAITING_FOR_CAPACITY);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever is asked for: all members or none, no GPU twice, one zone where that is required, and none refused
    /// that fits.
    #[test]
    fn gangs_are_placed_whole_and_nothing_is_given_twice(
        sizes in proptest::collection::vec((1_u32..=8, 0_u32..3), 1..8),
        asked in proptest::collection::vec((1_u32..=5, 1_u32..=4, any::<bool>()), 1..10),
    ) {
        let nodes: Vec<_> = sizes.iter().enumerate().map(|(at, (gpus, zone))| {
            zoned(&format!("n{at}"), *gpus, &format!("z{zone}"))
        }).collect();
        let mut ledger = ledger::build(&nodes, &[], &[]);
        for (at, (members, gpus, near)) in asked.into_iter().enumerate() {
            let near = near && members > 1;
            let more = if near { json!({"topology": {"level": "zone"}}) } else { json!({}) };
            let mut slots: BTreeMap<String, u32> = BTreeMap::new();
            for (number, (_, zone)) in sizes.iter().enumerate() {
                let id = ledger.fleet.find(&format!("n{number}")).unwrap();
                let free = ledger.fleet.free(id).unwrap().resources.extended("nvidia.com/gpu");
                let domain = if near { format!("z{zone}") } else { String::new() };
                *slots.entry(domain).or_default() += u32::try_from(free).unwrap_or(0) / gpus;
            }
            let before = ledger.fleet.works().count();
            let wanted = gang(&format!("g{at}"), members, gpus, more);
            let decision = decide(&mut ledger, &[wanted]).remove(0);
            let placed = nodes_of(&decision);
            let fits = slots.into_values().any(|slots| slots >= members);
            prop_assert_eq!(placed.len(), if fits { members as usize } else { 0 });
            prop_assert_eq!(ledger.fleet.works().count(), before + placed.len());
            prop_assert_eq!(check::not_over_committed(&ledger.fleet), []);
            prop_assert_eq!(check::gpus_conserved(&ledger.fleet), []);
            if near && fits {
                let zones: std::collections::BTreeSet<u32> = placed.iter()
                    .map(|name| sizes[name[1..].parse::<usize>().unwrap()].1).collect();
                prop_assert_eq!(zones.len(), 1);
            }
        }
    }
}
