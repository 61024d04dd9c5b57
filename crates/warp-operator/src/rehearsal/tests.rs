//! Passes over a changing cluster: what is kept between them changes no decision.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// A cluster whose objects are told to every scheduler alike.
#[derive(Default)]
struct Scene {
    schedulers: Vec<Rehearsal>,
    version: u64,
    /// GPUs and node of those that run, by name.
    running: BTreeMap<String, (u8, String)>,
    waiting: BTreeMap<String, (u8, u8)>,
    over: BTreeSet<String>,
    /// Minutes each may run for, by name.
    limits: BTreeMap<String, u32>,
}

/// The namespace of a workload.
fn team(name: &str) -> String {
    format!("team-{}", name.len() % 2)
}

const PRIORITIES: [&str; 3] = ["low", "normal", "high"];

impl Scene {
    fn of(schedulers: usize) -> Self {
        let fresh = |_| Rehearsal::new(Settings::default());
        Self {
            schedulers: (0..schedulers).map(fresh).collect(),
            ..Self::default()
        }
    }

    fn version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn node(&mut self, number: u8, there: bool) {
        let name = format!("n{number}");
        let version = self.version();
        let object = json!({
            "metadata": {"name": name, "resourceVersion": version, "labels": {
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559",
            }},
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "4"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        for scheduler in &self.schedulers {
            let node: Node = serde_json::from_value(object.clone()).unwrap();
            if there {
                scheduler.nodes().put(node);
            } else {
                scheduler.nodes().remove(&node);
            }
        }
    }

    fn workload(&mut self, name: &str, (gpus, priority): (u8, u8), status: &serde_json::Value) {
        let version = self.version();
        let mut object = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
            "metadata": {
                "name": name, "namespace": team(name), "uid": format!("{name}-uid"), "generation": 1,
                "resourceVersion": version, "creationTimestamp": "2026-11-17T11:00:00Z",
            },
            "spec": {
                "modelName": "m", "gpuCount": gpus, "image": "i", "priority": PRIORITIES[usize::from(priority)],
                "preemptible": priority == 0,
            },
            "status": status,
        });
        if let Some(minutes) = self.limits.get(name) {
            object["spec"]["maxRuntime"] = json!(format!("{minutes}m"));
        }
        for scheduler in &self.schedulers {
            let object = serde_json::from_value(object.clone()).unwrap();
            scheduler.workloads().put(object);
        }
    }

    /// Shows the Job and the pod of one that runs, in this phase, or that they are gone.
    fn children(&mut self, name: &str, gpus: u8, node: &str, phase: &str) {
        let owner = format!("{name}-uid");
        let namespace = team(name);
        let labels = json!({
            "gpu.warp.dev/workload": name, "gpu.warp.dev/workload-uid": owner, "gpu.warp.dev/attempt": "0",
        });
        let resources = json!({"limits": {"nvidia.com/gpu": gpus.to_string()}});
        let (first, second) = (self.version(), self.version());
        let over = if phase == "Succeeded" {
            "True"
        } else {
            "False"
        };
        let job = json!({
            "metadata": {"name": format!("{name}-0"), "namespace": namespace, "uid": format!("{owner}-job"),
                "resourceVersion": first, "labels": labels, "ownerReferences": [{
                    "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "name": name, "uid": owner,
                    "controller": true}]},
            "spec": {"parallelism": 1, "template": {"metadata": {"labels": labels}, "spec": {"containers": []}}},
            "status": {"conditions": [{"type": "Complete", "status": over}]},
        });
        let pod = json!({
            "metadata": {"name": format!("{name}-0-x"), "namespace": namespace, "uid": format!("{owner}-pod"),
                "resourceVersion": second, "labels": labels, "ownerReferences": [{
                    "apiVersion": "batch/v1", "kind": "Job", "name": format!("{name}-0"),
                    "uid": format!("{owner}-job"), "controller": true}]},
            "spec": {"nodeName": node, "containers": [{"name": "main", "resources": resources}]},
            "status": {"phase": phase, "startTime": "2026-11-17T11:30:00Z"},
        });
        for scheduler in &self.schedulers {
            let job = serde_json::from_value(job.clone()).unwrap();
            scheduler.jobs().put(job);
            let pod = serde_json::from_value(pod.clone()).unwrap();
            scheduler.pods().put(pod);
        }
    }

    fn comes(&mut self, number: u8, gpus: u8, priority: u8) {
        let name = format!("w{number}");
        if !self.running.contains_key(&name) && !self.over.contains(&name) {
            self.workload(&name, (gpus, priority), &json!({"phase": "Pending"}));
            self.waiting.insert(name, (gpus, priority));
        }
    }

    fn starts(&mut self, name: &str, node: &str) {
        let Some((gpus, priority)) = self.waiting.remove(name) else {
            return;
        };
        let status = json!({"phase": "Running", "jobName": format!("{name}-0")});
        self.workload(name, (gpus, priority), &status);
        self.children(name, gpus, node, "Running");
        self.running
            .insert(name.to_owned(), (gpus, node.to_owned()));
    }

    /// One that runs is told how long it may.
    fn is_limited(&mut self, at: u8, minutes: u32) {
        if let Some(name) = self.runs(at) {
            let (gpus, _) = self.running[&name];
            self.limits.insert(name.clone(), minutes);
            let status = json!({"phase": "Running", "jobName": format!("{name}-0")});
            self.workload(&name, (gpus, 1), &status);
        }
    }

    fn runs(&self, at: u8) -> Option<String> {
        let names: Vec<&String> = self.running.keys().collect();
        let name = names.get(usize::from(at) % names.len().max(1))?;
        Some((*name).clone())
    }

    fn ends(&mut self, at: u8) {
        let Some(name) = &self.runs(at) else {
            return;
        };
        if let Some((gpus, node)) = self.running.remove(name) {
            self.over.insert(name.clone());
            self.children(name, gpus, &node, "Succeeded");
            self.workload(name, (gpus, 1), &json!({"phase": "Succeeded"}));
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Comes(u8, u8, u8, Option<u32>),
    Ends(u8),
    IsLimited(u8, u32),
    Node(u8, bool),
    Nothing,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..30_u8, 1..5_u8, 0..3_u8, proptest::option::of(1..90_u32))
            .prop_map(|(number, gpus, priority, limit)| Event::Comes(number, gpus, priority, limit)),
        2 => (any::<u8>(), 1..180_u32).prop_map(|(at, minutes)| Event::IsLimited(at, minutes)),
        3 => any::<u8>().prop_map(Event::Ends),
        1 => (0..3_u8, any::<bool>()).prop_map(|(number, there)| Event::Node(number, there)),
        1 => Just(Event::Nothing),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// One scheduler remembers, the other begins anew before every pass; every pass compares what is kept with what the
    /// caches say.
    #[test]
    fn what_is_remembered_between_passes_changes_no_decision(
        events in proptest::collection::vec(event(), 1..24),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _inside = runtime.enter();
        let mut scene = Scene::of(2);
        let mut now: Timestamp = "2026-11-17T12:00:00Z".parse().unwrap();
        (0..3).for_each(|number| scene.node(number, true));
        for event in events {
            match event {
                Event::Comes(number, gpus, priority, limit) => {
                    let name = format!("w{number}");
                    if let Some(limit) = limit.filter(|_| !scene.waiting.contains_key(&name)) {
                        scene.limits.entry(name).or_insert(limit);
                    }
                    scene.comes(number, gpus, priority);
                }
                Event::IsLimited(at, minutes) => scene.is_limited(at, minutes),
                Event::Ends(at) => scene.ends(at),
                Event::Node(number, there) => scene.node(number, there),
                Event::Nothing => {}
            }
            now += SignedDuration::from_secs(31);
            scene.schedulers[1].forget();
            let looked: Vec<_> = scene.schedulers.iter().map(|one| one.look(now)).collect();
            prop_assert_eq!(&looked[0].placed, &looked[1].placed);
            for name in scene.waiting.keys() {
                let told = |at: usize| scene.schedulers[at].verdict(&format!("{name}-uid"), 1);
                prop_assert_eq!(told(0), told(1), "{}", name);
            }
            for (_, name, nodes) in &looked[0].placed {
                scene.starts(name, &nodes[0]);
            }
        }
    }
}

#[test]
fn a_pass_in_which_nothing_has_changed_decides_and_tells_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    let mut scene = Scene::of(1);
    scene.node(0, true);
    for number in 0..9 {
        scene.comes(number, 4, 1);
    }
    let mut now: Timestamp = "2026-11-17T12:00:00Z".parse().unwrap();
    let first = scene.schedulers[0].look(now);
    assert_eq!(first.placed.len(), 1);
    let (_, name, nodes) = first.placed[0].clone();
    scene.starts(&name, &nodes[0]);
    let second = scene.schedulers[0].look(now);
    assert_eq!(second.placed.len(), 0);
    // What has moved since it was told is told a little later.
    now += SignedDuration::from_mins(1);
    scene.schedulers[0].look(now);
    for _ in 0..3 {
        now += SignedDuration::from_mins(1);
        let idle = scene.schedulers[0].look(now);
        assert_eq!((idle.placed.len(), idle.told, idle.walked), (0, 0, false));
    }
    scene.ends(0);
    let next = scene.schedulers[0].look(now);
    assert_eq!(next.placed.len(), 1);
    assert!(next.walked);
}

#[test]
fn who_would_be_done_in_time_is_let_in_when_running_work_is_limited_and_nothing_else_happens() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    let mut scene = Scene::of(1);
    scene.node(0, true);
    let mut now: Timestamp = "2026-11-17T12:00:00Z".parse().unwrap();
    let placed = |scene: &mut Scene, now: Timestamp| -> Vec<String> {
        let looked = scene.schedulers[0].look(now).placed;
        let names = looked.into_iter().map(|(_, name, nodes)| {
            scene.starts(&name, &nodes[0]);
            name
        });
        names.collect()
    };
    scene.comes(0, 3, 1);
    assert_eq!(placed(&mut scene, now), ["w0"]);
    // One wants the whole node, and nobody knows when it comes free; a small one would be done in ten minutes.
    scene.comes(1, 4, 1);
    scene.limits.insert("w2".to_owned(), 10);
    scene.comes(2, 1, 1);
    for _ in 0..3 {
        now += SignedDuration::from_mins(1);
        assert_eq!(placed(&mut scene, now), Vec::<String>::new());
    }
    // It has run for half an hour and may run for two.
    scene.is_limited(0, 120);
    now += SignedDuration::from_mins(1);
    assert_eq!(placed(&mut scene, now), ["w2"]);
}
