//! Who is kept room, and who has to keep off.

use warp_core::schedule::keep::Ending;

use super::*;

/// Passes over one ledger, with what the last one kept.
struct Passes {
    ledger: Ledger,
    policy: QueuePolicy,
    endings: Endings,
    held: Vec<Held>,
}

impl Passes {
    fn over(nodes: &[Arc<k8s_openapi::api::core::v1::Node>], policy: QueuePolicy) -> Self {
        Self {
            ledger: ledger::build(nodes, &[], &[]),
            policy,
            endings: Endings::new(),
            held: Vec::new(),
        }
    }

    /// Decides for a line; what is placed runs from then on and says what it says of its end.
    fn pass(&mut self, wanted: &[Arc<GPUWorkload>]) -> Vec<Decision> {
        let claimants: Vec<_> = wanted.iter().map(claimant).collect();
        let endings = self.endings.clone();
        let before = std::mem::take(&mut self.held);
        let line = Line::new(self.policy, now(), || endings.clone(), before);
        let settings = Settings::default();
        let (quotas, tenancy) = (Quotas::default(), Tenancy::default());
        let mut desk = Desk::new(&claimants, quotas, tenancy, line, &settings);
        let mut decisions = Vec::new();
        for claimant in &claimants {
            let decision = desk.decide(&mut self.ledger, &**claimant);
            let claim = claimant.claim();
            if matches!(decision, Decision::Place(_)) {
                let longest = claim.max_runtime_seconds;
                let end = longest.map_or(Ending::Unknown, |s| Ending::By(now().as_second() + s));
                self.endings.insert(claim.uid.clone(), end);
            }
            decisions.push(decision);
        }
        self.held.clone_from(desk.line().held());
        decisions
    }

    fn ends(&mut self, workload: &Arc<GPUWorkload>) {
        let uid = kube::ResourceExt::uid(&**workload).unwrap();
        self.ledger.fleet.release(&uid).expect("it runs");
    }
}

const WAITS: &str = "waits";

/// The node of each, or that it waits.
fn places(decisions: &[Decision]) -> Vec<String> {
    let places = decisions.iter().map(chosen);
    places
        .map(|place| place.unwrap_or_else(|| WAITS.to_owned()))
        .collect()
}

fn gpus(name: &str, count: u32) -> Arc<GPUWorkload> {
    workload(name, json!({"gpuCount": count}))
}

#[test]
fn of_the_places_a_gang_may_be_in_the_one_that_lacks_least_is_kept() {
    let zoned =
        |name: &str, zone: &str| node(name, 4, json!({"topology.kubernetes.io/zone": zone}));
    // The one that lacks less comes later by its name.
    let mut passes = Passes::over(
        &[zoned("a", "north"), zoned("b", "south")],
        QueuePolicy::Easy,
    );
    let on = |name: &str, gpus: u32, zone: &str| {
        let here = json!({"topology.kubernetes.io/zone": zone});
        let spec = json!({"nodeSelector": here, "containers": [{"name": "main", "image": "i"}]});
        workload(
            name,
            json!({"gpuCount": gpus, "image": null, "podTemplate": {"spec": spec}}),
        )
    };
    let running = places(&passes.pass(&[on("v", 4, "north"), on("w", 1, "south")]));
    assert_eq!(running, ["a", "b"]);
    let near = json!({"gpuCount": 2, "replicas": 2, "topology": {"level": "zone"}});
    let decisions = passes.pass(&[workload("g", near), gpus("small", 1)]);
    let (_, message) = verdict(&decisions[0]);
    assert!(message.contains("node b is kept for it"), "{message}");
    assert_eq!(places(&decisions), [WAITS, WAITS], "small work keeps off");
}

#[test]
fn small_work_that_keeps_coming_does_not_hold_wide_work_up() {
    let nodes = [node("a", 4, json!({})), node("b", 4, json!({}))];
    let mut passes = Passes::over(&nodes, QueuePolicy::Easy);
    let running: Vec<_> = (0..8).map(|n| gpus(&format!("r{n}"), 1)).collect();
    let first = places(&passes.pass(&running));
    let wide = gpus("wide", 4);
    let decisions = passes.pass(std::slice::from_ref(&wide));
    let (reason, message) = verdict(&decisions[0]);
    assert_eq!(reason, reason::WAITING_FOR_CAPACITY);
    assert!(
        message.contains("it is next: node a is kept for it"),
        "{message}"
    );
    // One after another ends, and each time a small one is there to take its GPU.
    let mut started = Vec::new();
    for (n, ended) in running.iter().enumerate() {
        passes.ends(ended);
        let small = gpus(&format!("small{n}"), 1);
        let decisions = places(&passes.pass(&[Arc::clone(&wide), small]));
        let other = first[n] == "b";
        assert_eq!(decisions[1] != WAITS, other, "after {n}: {decisions:?}");
        started.push(decisions[0].clone());
        if decisions[0] != WAITS {
            break;
        }
    }
    let on_a = first.iter().rposition(|place| place == "a").unwrap();
    assert_eq!(started.len(), on_a + 1, "{started:?}");
    assert_eq!(started.last().map(String::as_str), Some("a"));
}

#[test]
fn who_skips_ahead_starves_wide_work_when_asked_to() {
    let nodes = [node("a", 4, json!({}))];
    let mut passes = Passes::over(&nodes, QueuePolicy::SkipAhead);
    passes.pass(&[gpus("running", 2)]);
    let decisions = passes.pass(&[gpus("wide", 4), gpus("small", 1)]);
    assert_eq!(places(&decisions), [WAITS, "a"]);
}

#[test]
fn what_certainly_ends_in_time_may_use_the_room_that_is_kept() {
    let nodes = [node("a", 4, json!({}))];
    let mut passes = Passes::over(&nodes, QueuePolicy::Easy);
    let hour = json!({"gpuCount": 2, "maxRuntime": "1h"});
    passes.pass(&[workload("running", hour)]);
    let short = workload("short", json!({"gpuCount": 1, "maxRuntime": "30m"}));
    let long = workload("long", json!({"gpuCount": 1, "maxRuntime": "2h"}));
    let endless = gpus("endless", 1);
    let decisions = passes.pass(&[gpus("wide", 4), long, endless, short]);
    assert_eq!(places(&decisions), [WAITS, WAITS, WAITS, "a"]);
    let (reason, message) = verdict(&decisions[1]);
    assert_eq!(reason, reason::WAITING_FOR_CAPACITY);
    let said = "0 of 1 nodes fit: 1 kept for work that is before it in line";
    assert_eq!(message, said);
}

#[test]
fn first_in_first_out_lets_nobody_pass_who_could_use_the_same_nodes() {
    let amd = json!({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.memory": "40960"});
    let nodes = [
        node("a", 4, json!({})),
        node("b", 4, json!({})),
        node("c", 4, amd),
    ];
    let mut passes = Passes::over(&nodes, QueuePolicy::Fifo);
    let h100 = json!({"gpuCount": 3, "gpu": {"models": ["H100"]}});
    passes.pass(&[workload("one", h100.clone()), workload("two", h100.clone())]);
    let wide = workload("wide", json!({"gpuCount": 4, "gpu": {"models": ["H100"]}}));
    let small = workload("small", json!({"gpuCount": 1, "gpu": {"models": ["H100"]}}));
    let other = workload("other", json!({"gpuCount": 1, "gpu": {"models": ["A100"]}}));
    let decisions = passes.pass(&[wide, small, other]);
    assert_eq!(places(&decisions), [WAITS, WAITS, "c"]);
}

#[test]
fn each_kind_of_gpu_has_a_first_in_line() {
    let a100 = json!({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.memory": "40960"});
    let nodes = [node("h", 4, json!({})), node("a", 4, a100)];
    let mut passes = Passes::over(&nodes, QueuePolicy::Easy);
    let asks = |name: &str, model: &str, count: u32| {
        workload(name, json!({"gpuCount": count, "gpu": {"models": [model]}}))
    };
    passes.pass(&[asks("r1", "H100", 2), asks("r2", "A100", 2)]);
    let decisions = passes.pass(&[
        asks("wide-h", "H100", 4),
        asks("wide-a", "A100", 4),
        asks("next-h", "H100", 4),
        asks("small-h", "H100", 1),
        asks("small-a", "A100", 1),
    ]);
    assert_eq!(places(&decisions), [WAITS, WAITS, WAITS, WAITS, WAITS]);
    for (at, kept) in [(0, true), (1, true), (2, false)] {
        let (_, message) = verdict(&decisions[at]);
        assert_eq!(message.contains("it is next"), kept, "{message}");
    }
}

#[test]
fn nothing_is_kept_where_only_work_that_never_ends_is_in_the_way() {
    let nodes = [node("a", 4, json!({}))];
    let mut passes = Passes::over(&nodes, QueuePolicy::Easy);
    passes.pass(&[gpus("serving", 2)]);
    passes.endings.clear();
    let decisions = passes.pass(&[gpus("wide", 4), gpus("small", 1)]);
    assert_eq!(places(&decisions), [WAITS, "a"]);
}

#[test]
fn nodes_are_chosen_once() {
    let nodes = [node("a", 8, json!({})), node("b", 8, json!({}))];
    let mut passes = Passes::over(&nodes, QueuePolicy::Easy);
    let [x, y, z] = [("x", 5), ("y", 4), ("z", 4)].map(|(name, count)| gpus(name, count));
    let first = places(&passes.pass(&[x, Arc::clone(&y), z]));
    assert_eq!(first[1], first[2], "the two that fit beside each other");
    let (kept, other) = (first[0].clone(), first[1].clone());
    let wide = gpus("wide", 8);
    let (_, message) = verdict(&passes.pass(std::slice::from_ref(&wide))[0]);
    let is_kept = format!("node {kept} is kept for it");
    assert!(message.contains(&is_kept), "{message}");
    // The other node lacks less now. Who changes with every end keeps no node empty.
    passes.ends(&y);
    let decisions = passes.pass(&[wide, gpus("small", 1)]);
    assert!(verdict(&decisions[0]).1.contains(&is_kept), "{decisions:?}");
    assert_eq!(chosen(&decisions[1]), Some(other));
}
