// `json!` at the call reads best by value.
#![allow(clippy::needless_pass_by_value)]

use std::collections::BTreeMap;

use serde_json::{Value, json};
use warp_api::workload::Priority;
use warp_api::{GPUWorkload, reason};
use warp_runtime::cache::Cache;

mod bought;
mod containers;
mod defragment;
mod evict;
mod gangs;
mod line;
mod order;
mod parts;
mod providers;
mod reclaim;
mod rented;
mod tenancy;

use super::carry_out::forbidden;
use super::*;
use crate::config::{QueuePolicy, Settings};
use crate::ledger::Ledger;
use crate::workload::{Asking, Seen, promise};

fn node(name: &str, gpus: u32, labels: Value) -> Arc<k8s_openapi::api::core::v1::Node> {
    let mut all = json!({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"});
    for (key, value) in labels.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": all},
            "spec": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string()},
                "conditions": [{"type": "Ready", "status": "True"}]
            }
        }))
        .unwrap(),
    )
}

fn workload(name: &str, spec: Value) -> Arc<GPUWorkload> {
    let mut object = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "metadata": {"name": name, "namespace": "default", "uid": format!("{name}-uid-0000"), "generation": 1},
        "spec": {"modelName": "m", "gpuCount": 1, "image": "a"},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        match key.as_str() {
            "annotations" | "labels" | "creationTimestamp" => {
                object["metadata"][key] = value.clone();
            }
            "status" => object["status"] = value.clone(),
            _ => object["spec"][key] = value.clone(),
        }
    }
    Arc::new(serde_json::from_value(object).unwrap())
}

/// A workload as one that asks for a place.
fn asking(workload: &Arc<GPUWorkload>) -> Asking {
    let jobs = Cache::new(&[]);
    let asking = Asking::new(&jobs, Arc::clone(workload), Seen::default(), now());
    asking.expect("its spec is right")
}

fn claimant(workload: &Arc<GPUWorkload>) -> Arc<dyn Claimant> {
    Arc::new(asking(workload))
}

fn now() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

/// A line in which nobody is kept room.
fn skipping<'a>() -> Line<'a> {
    Line::new(QueuePolicy::SkipAhead, now(), Endings::new, Vec::new())
}

fn decide(ledger: &mut Ledger, wanted: &[Arc<GPUWorkload>]) -> Vec<Decision> {
    decide_under(ledger, wanted, Quotas::default(), &Settings::default())
}

fn decide_under(
    ledger: &mut Ledger,
    wanted: &[Arc<GPUWorkload>],
    quotas: Quotas,
    settings: &Settings,
) -> Vec<Decision> {
    let claimants: Vec<_> = wanted.iter().map(claimant).collect();
    let mut desk = Desk::new(&claimants, quotas, Tenancy::default(), skipping(), settings);
    let decide = |claimant: &Arc<dyn Claimant>| desk.decide(ledger, &**claimant);
    claimants.iter().map(decide).collect()
}

fn chosen(decision: &Decision) -> Option<String> {
    match decision {
        Decision::Place(places) => Some(places[0].node.clone()),
        _ => None,
    }
}

fn verdict(decision: &Decision) -> (&'static str, String) {
    match decision {
        Decision::Wait(verdict) => (verdict.reason, verdict.message.clone()),
        other => panic!("placed or skipped: {other:?}"),
    }
}

#[test]
fn decisions_of_one_pass_see_each_other_and_never_overcommit() {
    let nodes = [node("a", 8, json!({})), node("b", 8, json!({}))];
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let wanted: Vec<_> = (0..9)
        .map(|n| workload(&format!("w{n}"), json!({"gpuCount": 2})))
        .collect();
    let decisions = decide(&mut ledger, &wanted);
    let count = |name: &str| {
        decisions
            .iter()
            .filter(|d| chosen(d).as_deref() == Some(name))
            .count()
    };
    assert_eq!((count("a"), count("b")), (4, 4));
    assert_eq!(verdict(&decisions[8]).0, reason::WAITING_FOR_CAPACITY);
}

/// Several pods that are placed together, each like the one of a workload.
#[derive(Debug)]
struct Gang(Asking, Claim);

impl Gang {
    fn of(size: usize, workload: &Arc<GPUWorkload>) -> Arc<dyn Claimant> {
        let one = asking(workload);
        let mut claim = one.claim().clone();
        claim.pods = vec![claim.pods[0].clone(); size];
        Arc::new(Self(one, claim))
    }
}

impl Claimant for Gang {
    fn claim(&self) -> &Claim {
        &self.1
    }
    fn pod(&self, _: usize, resource: &str) -> k8s_openapi::api::core::v1::PodSpec {
        self.0.pod(0, resource)
    }
    fn plan(&self, places: &[Place], now: Timestamp) -> warp_runtime::plan::Plan {
        self.0.plan(places, now)
    }
    fn still_waits(&self, plan: &mut warp_runtime::plan::Plan) {
        self.0.still_waits(plan);
    }
    fn pass(&self, correlation: String) -> warp_runtime::pass::Pass {
        self.0.pass(correlation)
    }
    fn is_made(&self) -> bool {
        self.0.is_made()
    }
    fn taken(&self) -> Verdict {
        self.0.taken()
    }
    fn rejected(&self, message: &str) -> Verdict {
        self.0.rejected(message)
    }
}

#[test]
fn a_claim_for_several_pods_is_met_whole_or_not_at_all() {
    let nodes = [node("a", 8, json!({})), node("b", 4, json!({}))];
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let four = workload("w", json!({"gpuCount": 4}));
    let wanted = [Gang::of(4, &four), Gang::of(3, &four), claimant(&four)];
    let settings = Settings::default();
    let (quotas, tenancy) = (Quotas::default(), Tenancy::default());
    let mut desk = Desk::new(&wanted, quotas, tenancy, skipping(), &settings);
    let too_many = desk.decide(&mut ledger, &*wanted[0]);
    assert_eq!(verdict(&too_many).0, reason::NEVER_FITS);
    assert_eq!(ledger.fleet.works().count(), 0, "nothing is left of it");
    let Decision::Place(places) = desk.decide(&mut ledger, &*wanted[1]) else {
        panic!("three fit");
    };
    let mut nodes: Vec<&str> = places.iter().map(|place| place.node.as_str()).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["a", "a", "b"]);
    let next = desk.decide(&mut ledger, &*wanted[2]);
    assert_eq!(verdict(&next).0, reason::WAITING_FOR_CAPACITY);
}

#[test]
fn every_strategy_of_the_api_places_and_warp_keeps_whole_nodes_whole() {
    let nodes: Vec<_> = ["a", "b", "c"].map(|name| node(name, 8, json!({}))).into();
    for policy in warp_core::schedule::Policy::ALL {
        let mut ledger = ledger::build(&nodes, &[], &[]);
        let one = workload("one", json!({"schedulingStrategy": policy.name()}));
        assert!(
            chosen(&decide(&mut ledger, &[one])[0]).is_some(),
            "{policy}"
        );
    }
    // A node-sized workload runs, so the next one is expected: small ones share a node.
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let wanted: Vec<_> = [8, 1, 1, 1, 8]
        .into_iter()
        .enumerate()
        .map(|(n, gpus)| {
            let spec = json!({"gpuCount": gpus, "schedulingStrategy": "warp"});
            workload(&format!("w{n}"), spec)
        })
        .collect();
    let decisions = decide(&mut ledger, &wanted);
    assert!(decisions.iter().all(|decision| chosen(decision).is_some()));
}

#[test]
fn a_created_job_holds_its_gpus_in_the_next_pass() {
    let nodes = [node("a", 8, json!({}))];
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let one = workload("one", json!({"gpuCount": 6}));
    let Decision::Place(places) = decide(&mut ledger, std::slice::from_ref(&one)).remove(0) else {
        panic!("it fits");
    };
    let mut job = asking(&one).job(&places).expect("a place");
    job.metadata.uid = Some("job-uid".to_owned());
    let promised = promise(&job).expect("its pod is still to come");
    let mut next = ledger::build(&nodes, &[], &[promised]);
    let decisions = decide(&mut next, &[workload("two", json!({"gpuCount": 4}))]);
    assert_eq!(verdict(&decisions[0]).0, reason::WAITING_FOR_CAPACITY);
}

#[test]
fn what_cannot_ever_fit_says_so_with_the_next_step() {
    let cases = [
        (
            json!({"gpuCount": 12}),
            reason::NEVER_FITS,
            "ask for at most 8",
        ),
        (
            json!({"gpu": {"models": ["MI300X"]}}),
            reason::NO_SUCH_GPU,
            "16 nvidia H100-80GB",
        ),
        (
            json!({"gpu": {"minMemory": "100Gi"}}),
            reason::NO_SUCH_GPU,
            "100Gi",
        ),
        (
            json!({"annotations": {"gpu.warp.dev/provider": "docker"}}),
            reason::NO_SUCH_PROVIDER,
            "the cluster has: kubernetes",
        ),
        (
            json!({"image": null, "podTemplate": {"spec": {"nodeSelector": {"zone": "x"}, "containers": [{"name": "c"}]}}}),
            reason::NEVER_FITS,
            "2 not labelled zone=x",
        ),
    ];
    for (spec, want, words) in cases {
        let nodes = [node("a", 8, json!({})), node("b", 8, json!({}))];
        let mut ledger = ledger::build(&nodes, &[], &[]);
        let decisions = decide(&mut ledger, &[workload("w", spec)]);
        let (found, message) = verdict(&decisions[0]);
        assert_eq!(found, want, "{message}");
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn providers_are_tried_in_order_and_the_choice_is_explained() {
    let nodes = [
        node("a", 8, json!({})),
        node("d", 1, json!({"gpu.warp.dev/provider": "docker"})),
    ];
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let any = json!({"annotations": {"gpu.warp.dev/provider": "docker, kubernetes"}});
    let decisions = decide(
        &mut ledger,
        &[workload("one", any.clone()), workload("two", any)],
    );
    assert_eq!(chosen(&decisions[0]).as_deref(), Some("d"));
    assert_eq!(chosen(&decisions[1]).as_deref(), Some("a"));
    let Decision::Place(places) = &decisions[1] else {
        panic!("it fits")
    };
    let why = &places[0].why;
    assert!(why.contains("provider docker was passed over"), "{why}");
    let only = workload(
        "three",
        json!({"labels": {"gpu.warp.dev/provider": "docker"}}),
    );
    let (found, message) = verdict(&decide(&mut ledger, &[only])[0]);
    assert_eq!(found, reason::WAITING_FOR_CAPACITY, "{message}");
}

#[test]
fn refused_nodes_are_left_out_until_their_time() {
    let nodes = [node("a", 8, json!({})), node("b", 4, json!({}))];
    let refused = |until: &str| {
        workload(
            "w",
            json!({
                "schedulingStrategy": "leastLoaded",
                "status": {"refusedNodes": [{"name": "a", "jobUid": "j", "until": until}]},
            }),
        )
    };
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let decisions = decide(&mut ledger, &[refused("2026-11-15T12:00:01Z")]);
    assert_eq!(chosen(&decisions[0]).as_deref(), Some("b"));
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let decisions = decide(&mut ledger, &[refused("2026-11-15T11:59:59Z")]);
    assert_eq!(chosen(&decisions[0]).as_deref(), Some("a"));
}

#[test]
fn a_refused_node_that_would_fit_is_waited_for_and_said_so() {
    let spec = json!({
        "status": {"refusedNodes": [{"name": "a", "jobUid": "j", "until": "2026-11-15T12:00:01Z"}]},
    });
    let mut ledger = ledger::build(&[node("a", 8, json!({}))], &[], &[]);
    let decisions = decide(&mut ledger, &[workload("w", spec)]);
    let (found, message) = verdict(&decisions[0]);
    assert_eq!(found, reason::WAITING_FOR_CAPACITY);
    assert!(
        message.contains("1 refused by the cluster's scheduler"),
        "{message}"
    );
}

#[test]
fn who_waits_is_told_the_smallest_change_that_would_place_it_now() {
    let nodes = [node("a", 8, json!({}))];
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let wanted = [
        workload("first", json!({"gpuCount": 5})),
        workload("second", json!({"gpuCount": 4})),
    ];
    let (found, message) = verdict(&decide(&mut ledger, &wanted)[1]);
    assert_eq!(found, reason::WAITING_FOR_CAPACITY);
    assert!(
        message.ends_with("to be placed now: ask for 3 GPUs"),
        "{message}"
    );
}

#[test]
fn the_cheapest_fitting_node_is_chosen_by_price() {
    let price = |text: &str| json!({"gpu.warp.dev/gpu-hour-price": text});
    let nodes = [
        node("dear", 8, price("3.50")),
        node("cheap", 8, price("1.99")),
    ];
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let spec = json!({"schedulingStrategy": "costOptimized"});
    let decisions = decide(&mut ledger, &[workload("w", spec)]);
    assert_eq!(chosen(&decisions[0]).as_deref(), Some("cheap"));
}

#[test]
fn a_price_weight_makes_the_cheaper_of_two_equal_nodes_win() {
    let price = |text: &str| json!({"gpu.warp.dev/gpu-hour-price": text});
    for (left, right, cheaper) in [("3.50", "1.99", "b"), ("1.99", "3.50", "a")] {
        let nodes = [node("a", 8, price(left)), node("b", 8, price(right))];
        let mut ledger = ledger::build(&nodes, &[], &[]);
        let settings = Settings {
            price_weight: warp_core::schedule::PriceWeight::new(1.0).unwrap(),
            ..Settings::default()
        };
        let wanted = [workload("w", json!({}))];
        let decisions = decide_under(&mut ledger, &wanted, Quotas::default(), &settings);
        assert_eq!(chosen(&decisions[0]).as_deref(), Some(cheaper));
    }
}

#[test]
fn a_verdict_is_renewed_when_its_reason_changes_and_otherwise_seldom() {
    let verdicts = Verdicts::default();
    let one = asking(&workload("w", json!({}))).claim().clone();
    let say = |reason, text: &str| Verdict {
        reason,
        message: text.to_owned(),
    };
    let later = |seconds| crate::clock::after(now(), seconds);
    assert!(verdicts.set(
        &one,
        say(reason::WAITING_FOR_CAPACITY, "1 node"),
        None,
        now()
    ));
    assert!(!verdicts.set(
        &one,
        say(reason::WAITING_FOR_CAPACITY, "2 nodes"),
        None,
        later(5)
    ));
    assert!(verdicts.set(&one, say(reason::NEVER_FITS, "none"), None, later(6)));
    assert!(verdicts.set(&one, say(reason::NEVER_FITS, "still none"), None, later(60)));
    assert!(!verdicts.set(
        &one,
        say(reason::NEVER_FITS, "still none"),
        None,
        later(600)
    ));
    // A place in line is told anew when it has moved by a tenth, and no more often than the rest.
    let at = |position: usize, seconds: i64| {
        let say = say(reason::NEVER_FITS, "still none");
        verdicts.set(&one, say, Some(position), later(seconds))
    };
    assert!(at(100, 700));
    assert!(!at(91, 800) && at(90, 801));
    assert!(!at(9, 802), "it was told a second ago");
    assert!(at(9, 900) && !at(9, 1000) && at(8, 1001));
}

#[test]
fn a_job_that_cannot_be_made_is_tried_ever_more_seldom_until_the_spec_changes() {
    let verdicts = Verdicts::default();
    let one = asking(&workload("w", json!({}))).claim().clone();
    let later = |seconds| crate::clock::after(now(), seconds);
    verdicts.hold_back(&one, now());
    verdicts.hold_back(&one, now());
    assert_eq!(verdicts.held_until(&one.uid, 1), Some(later(2)));
    assert_eq!(verdicts.held_until(&one.uid, 2), None);
}

#[test]
fn the_queue_serves_priority_first_and_then_age() {
    let made = |name: &str, priority: &str, at: &str| {
        let mut one = (*workload(name, json!({"priority": priority}))).clone();
        one.metadata.creation_timestamp = serde_json::from_value(json!(at)).unwrap();
        claimant(&Arc::new(one))
    };
    let mut queue = [
        made("old-low", "low", "2026-11-15T10:00:00Z"),
        made("new", "normal", "2026-11-15T11:30:00Z"),
        made("old", "normal", "2026-11-15T11:00:00Z"),
        made("newest-high", "high", "2026-11-15T11:59:00Z"),
        made("b-twin", "normal", "2026-11-15T11:00:00Z"),
    ];
    let mut order = |arrivals: &Arrivals| -> Vec<String> {
        in_order(&mut queue, &Order::new(QueuePolicy::Easy), arrivals, now());
        let name = |one: &Arc<dyn Claimant>| one.claim().key.name.to_string();
        queue.iter().map(name).collect()
    };
    // After a restart nobody knows who came first within a second; the name decides.
    let names = order(&Arrivals::default());
    assert_eq!(names, ["newest-high", "b-twin", "old", "new", "old-low"]);
    let arrivals = Arrivals::default();
    for name in ["old-low", "old", "new", "b-twin", "old", "newest-high"] {
        arrivals.note(&format!("{name}-uid-0000"), None, Timestamp::UNIX_EPOCH);
    }
    let names = order(&arrivals);
    assert_eq!(names, ["newest-high", "old", "b-twin", "new", "old-low"]);
}

#[test]
fn what_may_pass_by_itself_never_reads_as_never() {
    let cordoned = json!({"spec": {"unschedulable": true, "taints": [
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}});
    let tainted =
        json!({"spec": {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}});
    let silent = json!({
        "spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    });
    let pressed = json!({"spec": {"taints": [
        {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}]}});
    let changed = |change: &Value| {
        let mut value = serde_json::to_value(&*node("a", 8, json!({}))).unwrap();
        for part in ["spec", "status"] {
            for (key, field) in change[part].as_object().into_iter().flatten() {
                value[part][key] = field.clone();
            }
        }
        Arc::new(serde_json::from_value(value).unwrap())
    };
    let cases = [
        (&cordoned, reason::NODES_CORDONED, "kubectl uncordon a"),
        (
            &tainted,
            reason::NODES_TAINTED,
            "tolerate team=a:NoSchedule in spec.podTemplate",
        ),
        (&silent, reason::NODES_NOT_READY, "repair or replace a"),
        (&pressed, reason::NODES_NOT_READY, "repair or replace a"),
    ];
    for (change, want, words) in cases {
        let mut ledger = ledger::build(&[changed(change)], &[], &[]);
        let decisions = decide(&mut ledger, &[workload("w", json!({}))]);
        let (found, message) = verdict(&decisions[0]);
        assert_eq!(found, want, "{message}");
        assert!(message.contains(words), "{message}");
        assert!(
            !message.contains("tolerate node.kubernetes.io"),
            "{message}"
        );
        // Even empty and in service this one could not hold it.
        let mut ledger = ledger::build(&[changed(change)], &[], &[]);
        let decisions = decide(&mut ledger, &[workload("w", json!({"gpuCount": 9}))]);
        assert_eq!(verdict(&decisions[0]).0, reason::NEVER_FITS);
    }
    // Full nodes beside a cordoned one: advice to tolerate what a cordon puts there helps nobody.
    let nodes = [
        node("full", 0, json!({})),
        node("b", 2, json!({})),
        changed(&cordoned),
    ];
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let both = [
        workload("one", json!({"gpuCount": 2})),
        workload("two", json!({"gpuCount": 2})),
    ];
    let decisions = decide(&mut ledger, &both);
    let (found, message) = verdict(&decisions[1]);
    assert_eq!(found, reason::WAITING_FOR_CAPACITY);
    assert!(!message.contains("tolerate"), "{message}");
}

#[test]
fn a_sibling_it_avoids_is_waited_for() {
    let nodes = [node("a", 8, json!({"kubernetes.io/hostname": "a"}))];
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let apart = json!({"image": null, "podTemplate": {
        "metadata": {"labels": {"set": "x"}},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"set": "x"}}}]}}
        }
    }});
    let both = [workload("one", apart.clone()), workload("two", apart)];
    let decisions = decide(&mut ledger, &both);
    assert!(chosen(&decisions[0]).is_some());
    assert_eq!(verdict(&decisions[1]).0, reason::WAITING_FOR_CAPACITY);
}

fn quota(
    hard: Value,
    used: Value,
    scopes: Value,
) -> Arc<k8s_openapi::api::core::v1::ResourceQuota> {
    let quota = json!({
        "metadata": {"name": "gpus", "namespace": "default"},
        "spec": {"hard": hard, "scopes": scopes},
        "status": {"hard": hard, "used": used},
    });
    Arc::new(serde_json::from_value(quota).unwrap())
}

#[test]
fn a_quota_is_looked_at_before_a_node_and_counts_what_is_promised() {
    let decided = |quota, wanted: &[Arc<GPUWorkload>]| {
        let mut ledger = ledger::build(&[node("a", 8, json!({}))], &[], &[]);
        let quotas = Quotas::new(vec![quota], &[]);
        decide_under(&mut ledger, wanted, quotas, &Settings::default())
    };
    let gpus = "requests.nvidia.com/gpu";
    let three: Vec<_> = (0..3)
        .map(|n| workload(&format!("w{n}"), json!({"gpuCount": 2})))
        .collect();
    let decisions = decided(
        quota(json!({gpus: "6"}), json!({gpus: "2"}), json!(null)),
        &three,
    );
    assert!(chosen(&decisions[0]).is_some() && chosen(&decisions[1]).is_some());
    let (found, message) = verdict(&decisions[2]);
    assert_eq!(found, reason::QUOTA_EXCEEDED);
    for part in [
        "quota gpus of namespace default",
        "6 of 6 used, 2 needed",
        "when other work",
    ] {
        assert!(message.contains(part), "{message}");
    }
    // More than the quota allows at all.
    let big = [workload("w", json!({"gpuCount": 8}))];
    let (found, message) =
        verdict(&decided(quota(json!({gpus: "6"}), json!({}), json!(null)), &big)[0]);
    assert_eq!(found, reason::QUOTA_EXCEEDED);
    assert!(message.contains("ask for less"), "{message}");
    // Other resources, and quotas that do not count such pods.
    let cpu = [workload(
        "w",
        json!({"resources": {"limits": {"cpu": "4", "memory": "1Gi"}}}),
    )];
    for (name, hard) in [
        ("limits.cpu", "3500m"),
        ("requests.memory", "512Mi"),
        ("pods", "0"),
    ] {
        let decisions = decided(quota(json!({name: hard}), json!({}), json!(null)), &cpu);
        assert_eq!(verdict(&decisions[0]).0, reason::QUOTA_EXCEEDED, "{name}");
        let other = decided(
            quota(json!({name: hard}), json!({}), json!(["BestEffort"])),
            &cpu,
        );
        assert!(chosen(&other[0]).is_some(), "{name}");
    }
    let elsewhere = decided(
        quota(json!({"pods": "0"}), json!({}), json!(["PriorityClass"])),
        &cpu,
    );
    assert!(chosen(&elsewhere[0]).is_some(), "only the API server knows");
}

#[test]
fn a_quota_of_jobs_counts_one_for_a_gang_and_one_for_each_that_is_placed() {
    let jobs = "count/jobs.batch";
    let decided = |used: &str, wanted: &[Arc<GPUWorkload>]| {
        let mut ledger = ledger::build(&[node("a", 8, json!({}))], &[], &[]);
        let quotas = vec![quota(json!({jobs: "3"}), json!({jobs: used}), json!(null))];
        let quotas = Quotas::new(quotas, &[]);
        decide_under(&mut ledger, wanted, quotas, &Settings::default())
    };
    let gang = [workload("gang", json!({"gpuCount": 1, "replicas": 4}))];
    let decisions = decided("2", &gang);
    assert!(
        matches!(&decisions[0], Decision::Place(places) if places.len() == 4),
        "{decisions:?}"
    );
    assert_eq!(verdict(&decided("3", &gang)[0]).0, reason::QUOTA_EXCEEDED);
    let two: Vec<_> = (0..2)
        .map(|n| workload(&format!("w{n}"), json!({"gpuCount": 1})))
        .collect();
    let decisions = decided("2", &two);
    assert!(chosen(&decisions[0]).is_some());
    let (found, message) = verdict(&decisions[1]);
    assert_eq!(found, reason::QUOTA_EXCEEDED);
    assert!(message.contains("3 of 3 used, 1 needed"), "{message}");
}

#[test]
fn a_missing_right_of_the_operator_is_not_the_workloads_fault() {
    let status = |message: &str| kube::core::Status::failure(message, "Forbidden").with_code(403);
    let rights = status(
        "jobs.batch is forbidden: User \"system:serviceaccount:warp-system:warp-operator\" cannot create resource \"jobs\" in API group \"batch\" in the namespace \"team\"",
    );
    let verdict = forbidden(&rights).expect("a missing right");
    assert_eq!(verdict.reason, reason::OPERATOR_FORBIDDEN);
    assert!(verdict.message.contains("warp install --print"));
    for policy in [
        "jobs.batch \"w\" is forbidden: exceeded quota: jobs",
        "admission webhook \"x\" denied the request: user cannot",
    ] {
        assert_eq!(forbidden(&status(policy)), None);
    }
}

#[test]
fn a_product_label_can_be_asked_for_whether_the_catalogue_knows_it_or_not() {
    let product = |text: &str| json!({"nvidia.com/gpu.product": text});
    let nodes = [
        node("sxm", 8, json!({})),
        node("pcie", 8, product("NVIDIA-H100-PCIe")),
        node("new", 8, product("NVIDIA-X9000")),
        node("shared", 8, product("NVIDIA-X9000-SHARED")),
    ];
    for (name, want) in [
        ("NVIDIA-H100-PCIe", Some("pcie")),
        ("NVIDIA-H100-80GB-HBM3", Some("sxm")),
        ("NVIDIA-X9000", Some("new")),
        ("x9000", Some("new")),
        ("X9001", None),
    ] {
        let mut ledger = ledger::build(&nodes, &[], &[]);
        let decisions = decide(
            &mut ledger,
            &[workload("w", json!({"gpu": {"models": [name]}}))],
        );
        assert_eq!(chosen(&decisions[0]).as_deref(), want, "{name}");
        if want.is_none() {
            let (found, message) = verdict(&decisions[0]);
            assert_eq!(found, reason::NO_SUCH_GPU);
            assert!(
                message.contains("X9001") && message.contains("NVIDIA-X9000"),
                "{message}"
            );
        }
    }
}

#[test]
fn the_cheapest_of_nodes_without_a_price_says_so() {
    let why = |nodes: &[Arc<k8s_openapi::api::core::v1::Node>]| {
        let mut ledger = ledger::build(nodes, &[], &[]);
        let spec = json!({"schedulingStrategy": "costOptimized"});
        match decide(&mut ledger, &[workload("w", spec)]).remove(0) {
            Decision::Place(places) => places[0].why.clone(),
            other => panic!("{other:?}"),
        }
    };
    let text = why(&[node("a", 8, json!({}))]);
    assert!(
        text.contains("no node has a price (label gpu.warp.dev/gpu-hour-price)"),
        "{text}"
    );
    let priced = why(&[node("a", 8, json!({"gpu.warp.dev/gpu-hour-price": "2.5"}))]);
    assert!(!priced.contains("no node has a price"), "{priced}");
}

#[test]
fn a_workload_whose_volume_is_elsewhere_waits_for_storage_and_is_told_which() {
    let read = |spec: Value| {
        let meta = json!({"name": "data", "namespace": "default"});
        json!({"metadata": meta, "spec": spec})
    };
    let elsewhere = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "host", "operator": "In", "values": ["b"]}]},
    ]}});
    let storage = ledger::Storage {
        claims: vec![Arc::new(
            serde_json::from_value(read(json!({"volumeName": "data"}))).unwrap(),
        )],
        volumes: vec![Arc::new(
            serde_json::from_value(read(json!({"nodeAffinity": elsewhere}))).unwrap(),
        )],
        classes: Vec::new(),
    };
    let mut ledger =
        ledger::build(&[node("a", 8, json!({}))], &[], &[]).with_surroundings(&[], storage);
    let mounting = json!({"image": null, "podTemplate": {"spec": {
        "containers": [{"name": "main", "image": "a"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }}});
    let decisions = decide(&mut ledger, &[workload("w", mounting)]);
    let (found, message) = verdict(&decisions[0]);
    assert_eq!(found, reason::VOLUME_OUT_OF_REACH, "{message}");
    assert!(
        message.contains("1 out of reach of the volume of claim data"),
        "{message}"
    );
}
