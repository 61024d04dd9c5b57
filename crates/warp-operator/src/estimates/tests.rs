// `json!` at the call reads best by value.
#![allow(clippy::needless_pass_by_value)]

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::{Value, json};
use warp_api::workload::{EstimatedStart, Priority};
use warp_api::{GPUWorkload, GPUWorkloadStatus};
use warp_core::estimate::{Durations, Features};
use warp_runtime::cache::{Cache, Key};

use super::forecast::{Question, forecast};
use super::runs::{Ended, Runs};
use super::told::{Forecast, tell};
use crate::config::QueuePolicy;
use crate::ledger;
use crate::placement::{Claimant, Holder};
use crate::workload::{Asking, Seen};

fn now() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

fn after(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

fn node(name: &str, product: &str, gpus: u32) -> Arc<Node> {
    let node = json!({
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": "81559"}},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string()},
            "conditions": [{"type": "Ready", "status": "True"}]
        }
    });
    Arc::new(serde_json::from_value(node).unwrap())
}

const H100: &str = "NVIDIA-H100-80GB-HBM3";
const L4: &str = "NVIDIA-L4";

fn pod(name: &str, node: &str, gpus: u32) -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": name, "namespace": "team", "uid": format!("pod-{name}")},
        "spec": {"nodeName": node, "containers": [
            {"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}},
        ]},
        "status": {"phase": "Running"}
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn waits(name: &str, spec: Value) -> Arc<dyn Claimant> {
    let mut object = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "metadata": {
            "name": name, "namespace": "team", "uid": format!("{name}-uid-0000"), "generation": 1,
            "creationTimestamp": "2026-11-15T11:00:00Z"
        },
        "spec": {"modelName": "m", "gpuCount": 1, "image": "a"},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    let workload: GPUWorkload = serde_json::from_value(object).unwrap();
    let asking = Asking::new(&Cache::new(&[]), Arc::new(workload), Seen::default(), now());
    Arc::new(asking.expect("its spec is right"))
}

/// A fleet with work of one GPU or more on it.
#[derive(Default)]
struct Scene {
    nodes: Vec<Arc<Node>>,
    pods: Vec<Arc<Pod>>,
    holders: Vec<Holder>,
    durations: Durations,
}

impl Scene {
    fn node(mut self, name: &str, product: &str, gpus: u32) -> Self {
        self.nodes.push(node(name, product, gpus));
        self
    }

    /// Work of the operator, for so many seconds so far.
    fn runs(mut self, name: &str, (on, gpus): (&str, u32), age: i64, longest: Option<i64>) -> Self {
        self.pods.push(pod(name, on, gpus));
        self.holders.push(Holder {
            key: Key::new("team", name),
            works: vec![format!("pod-{name}")],
            priority: Priority::Normal,
            features: features(gpus),
            since: after(-age),
            longest_seconds: longest,
        });
        self
    }

    /// Work that is nobody's to know the end of.
    fn foreign(mut self, name: &str, on: &str, gpus: u32) -> Self {
        self.pods.push(pod(name, on, gpus));
        self
    }

    fn learnt(mut self, gpus: u32, seconds: &[u32]) -> Self {
        let group = self.durations.group(&features(gpus));
        for run in seconds {
            self.durations.observe(group, f64::from(*run));
        }
        self
    }

    fn ask_under(&self, policy: QueuePolicy, line: &[Arc<dyn Claimant>]) -> Vec<Forecast> {
        let ledger = ledger::build(&self.nodes, &self.pods, &[]);
        forecast(&Question {
            ledger: &ledger,
            line,
            holders: &self.holders,
            durations: &self.durations,
            policy,
            now: now(),
        })
    }

    fn ask(&self, line: &[Arc<dyn Claimant>]) -> Vec<Forecast> {
        self.ask_under(QueuePolicy::Easy, line)
    }
}

fn features(gpus: u32) -> Features {
    Features {
        tenant: Some("team".to_owned()),
        model: Some("m".to_owned()),
        image: Some("a".to_owned()),
        gpus,
    }
}

/// Seconds from now: earliest, at, latest.
fn band(forecast: &Forecast) -> Option<(i64, i64, i64)> {
    let start = forecast.start.as_ref()?;
    let away = |time: &Time| time.0.duration_since(now()).as_secs();
    Some((away(&start.earliest), away(&start.at), away(&start.latest)))
}

#[test]
fn who_waits_behind_a_limit_starts_when_it_is_reached_at_the_latest() {
    let scene = Scene::default()
        .node("a", H100, 1)
        .runs("holds", ("a", 1), 600, Some(3600));
    let told = scene.ask(&[
        waits("first", json!({"maxRuntime": "1h"})),
        waits("second", json!({})),
    ]);
    let (earliest, at, latest) = band(&told[0]).expect("the limit tells when");
    assert_eq!(latest, 3000, "when holds has run for an hour");
    assert!(earliest < at && at < latest, "{earliest} {at} {latest}");
    assert_eq!(told[0].first, Some(Key::new("team", "holds")));
    let (_, later, last) = band(&told[1]).expect("so does the limit of the one before it");
    assert_eq!(last, 6600);
    assert!(at < later);
}

#[test]
fn without_limits_and_without_history_nobody_can_tell() {
    let scene = Scene::default()
        .node("a", H100, 1)
        .runs("holds", ("a", 1), 600, None);
    assert_eq!(band(&scene.ask(&[waits("first", json!({}))])[0]), None);
    let scene = scene.learnt(1, &[1800; 20]);
    let told = scene.ask(&[waits("first", json!({}))]);
    let (earliest, at, latest) = band(&told[0]).expect("work like it runs for half an hour");
    assert!((60..3600).contains(&at), "{at}");
    assert!(earliest <= at && at <= latest);
}

#[test]
fn work_that_can_never_fit_is_told_no_start() {
    let scene = Scene::default()
        .node("a", H100, 4)
        .node("b", H100, 4)
        .runs("one", ("a", 4), 60, Some(600))
        .runs("two", ("b", 3), 60, Some(600))
        .foreign("serving", "b", 1);
    let line = [
        waits("too-wide", json!({"gpuCount": 8})),
        waits("elsewhere", json!({"gpu": {"models": ["L4"]}})),
        waits("gang-too-wide", json!({"gpuCount": 4, "replicas": 3})),
        // One of its nodes is held by work that does not end.
        waits("beside-serving", json!({"gpuCount": 4, "replicas": 2})),
        waits("fits", json!({"gpuCount": 4})),
    ];
    let told: Vec<_> = scene.ask(&line).iter().map(band).collect();
    assert_eq!(told[..4], [None; 4]);
    assert_eq!(told[4].map(|(_, _, latest)| latest), Some(540));
}

#[test]
fn each_kind_of_gpu_has_a_line_of_its_own() {
    let scene = Scene::default()
        .node("a", H100, 1)
        .node("b", L4, 1)
        .runs("long", ("a", 1), 0, Some(36_000))
        .runs("short", ("b", 1), 0, Some(60));
    let line = [
        waits("wants-h100", json!({"gpu": {"models": ["H100"]}})),
        waits("wants-l4", json!({"gpu": {"models": ["L4"]}})),
    ];
    for policy in [QueuePolicy::Easy, QueuePolicy::Fifo, QueuePolicy::SkipAhead] {
        let told = scene.ask_under(policy, &line);
        let latest: Vec<_> = told
            .iter()
            .map(|told| band(told).map(|(.., last)| last))
            .collect();
        assert_eq!(latest, [Some(36_000), Some(60)], "{policy:?}");
        assert_eq!(told[1].first, Some(Key::new("team", "short")));
    }
}

#[test]
fn a_gang_waits_for_all_of_its_nodes() {
    let scene = Scene::default()
        .node("a", H100, 4)
        .node("b", H100, 4)
        .runs("one", ("a", 4), 0, Some(100))
        .runs("two", ("b", 4), 0, Some(900));
    let told = scene.ask(&[waits("gang", json!({"gpuCount": 4, "replicas": 2}))]);
    assert_eq!(band(&told[0]).map(|(_, _, latest)| latest), Some(900));
    assert_eq!(told[0].first, Some(Key::new("team", "one")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn bands_are_in_order_and_never_in_the_past(
        running in prop::collection::vec((0..3_usize, 1..=4_u32, 0..5000_i64, prop::option::of(60..9000_i64)), 0..6),
        waiting in prop::collection::vec((1..=5_u32, prop::option::of(1..300_u32)), 1..6),
        learnt in prop::collection::vec(10..20_000_u32, 0..12),
    ) {
        let mut scene = Scene::default().learnt(1, &learnt);
        let mut free = [4_u32; 3];
        for name in ["0", "1", "2"] {
            scene = scene.node(name, H100, 4);
        }
        for (index, (on, gpus, age, longest)) in running.into_iter().enumerate() {
            if free[on] >= gpus {
                free[on] -= gpus;
                let place = on.to_string();
                scene = scene.runs(&format!("r{index}"), (&place, gpus), age, longest);
            }
        }
        let line: Vec<_> = waiting.iter().enumerate().map(|(index, (gpus, minutes))| {
            let mut spec = json!({"gpuCount": gpus});
            if let Some(minutes) = minutes {
                spec["maxRuntime"] = json!(format!("{minutes}m"));
            }
            waits(&format!("w{index}"), spec)
        }).collect();
        let told = scene.ask(&line);
        prop_assert_eq!(told.len(), line.len());
        for (told, (gpus, _)) in told.iter().zip(&waiting) {
            match band(told) {
                Some((earliest, at, latest)) => {
                    prop_assert!(0 <= earliest && earliest <= at && at <= latest);
                    prop_assert!(*gpus <= 4, "no node has {gpus} GPUs");
                }
                None => prop_assert!(told.ask.is_some()),
            }
        }
        // The same question, the same answer.
        prop_assert_eq!(told, scene.ask(&line));
    }

    #[test]
    fn the_first_in_line_starts_no_later_than_the_limit_of_what_it_waits_for(
        age in 0..5000_i64,
        left in 1..9000_i64,
        learnt in prop::collection::vec(10..200_000_u32, 0..12),
    ) {
        let scene = Scene::default().node("a", H100, 1).learnt(1, &learnt);
        let scene = scene.runs("holds", ("a", 1), age, Some(age + left));
        let told = scene.ask(&[waits("first", json!({}))]);
        let (.., latest) = band(&told[0]).expect("the limit tells when");
        prop_assert_eq!(latest, left);
    }
}

fn start(earliest: i64, at: i64, latest: i64) -> EstimatedStart {
    EstimatedStart {
        at: Time(after(at)),
        earliest: Time(after(earliest)),
        latest: Time(after(latest)),
    }
}

fn said(start: Option<EstimatedStart>) -> Forecast {
    Forecast {
        generation: 1,
        start,
        ask: Some("2 nvidia GPUs on one node".to_owned()),
        first: Some(Key::new("team", "training-7")),
    }
}

/// What a status says after it is told a forecast.
fn heard(forecast: &Forecast, before: &GPUWorkloadStatus, at: Timestamp) -> GPUWorkloadStatus {
    let mut status = GPUWorkloadStatus {
        queue_position: before.queue_position,
        ..GPUWorkloadStatus::default()
    };
    tell(Some(forecast), before, &mut status, "team", at);
    status
}

fn in_place(position: i64) -> GPUWorkloadStatus {
    GPUWorkloadStatus {
        queue_position: Some(position),
        ..GPUWorkloadStatus::default()
    }
}

#[test]
fn what_has_not_moved_is_not_told_again() {
    let first = heard(&said(Some(start(0, 3600, 7200))), &in_place(4), now());
    assert_eq!(first.estimated_start, Some(start(0, 3600, 7200)));
    for near in [
        start(0, 3600, 7200),
        // Less than a tenth of the wait.
        start(0, 3900, 7300),
        // More, but little beside the width of its band.
        start(0, 5000, 7200),
    ] {
        assert_eq!(heard(&said(Some(near)), &first, now()), first);
    }
    let far = said(Some(start(600, 9000, 20_000)));
    assert_eq!(heard(&far, &first, now()).estimated_start, far.start);
    // A minute away, half a minute is much and not worth a write.
    let soon = heard(&said(Some(start(50, 60, 70))), &in_place(1), now());
    let sooner = said(Some(start(20, 30, 40)));
    assert_eq!(heard(&sooner, &soon, now()), soon);
}

#[test]
fn a_start_that_slides_along_while_nothing_happens_is_told_ever_more_rarely() {
    // Work without an end in sight: as much again as it has run so far.
    let mut status = in_place(1);
    let mut writes = 0;
    for minute in 10..=24 * 60 {
        let at = after(60 * minute);
        let slides = start(60 * minute, 60 * minute * 2, 60 * minute * 6);
        let next = heard(&said(Some(slides)), &status, at);
        writes += usize::from(next != status);
        status = next;
    }
    assert!((2..16).contains(&writes), "{writes} in a day");
}

#[test]
fn an_end_that_came_early_or_late_is_told() {
    let told = heard(&said(Some(start(0, 3600, 7200))), &in_place(1), now());
    let early = said(Some(start(0, 30, 60)));
    assert_eq!(heard(&early, &told, now()).estimated_start, early.start);
    let late = said(Some(start(7300, 8000, 12_000)));
    let then = after(7300);
    assert_eq!(heard(&late, &told, then).estimated_start, late.start);
    let nobody_knows = said(None);
    assert_eq!(heard(&nobody_knows, &told, now()).estimated_start, None);
}

#[test]
fn the_wait_is_put_in_words() {
    let words = |forecast: &Forecast, status: &GPUWorkloadStatus| {
        heard(forecast, status, now())
            .waiting_for
            .unwrap_or_default()
    };
    let known = said(Some(start(0, 60, 120)));
    assert_eq!(
        words(&known, &in_place(4)),
        "2 nvidia GPUs on one node; 3 are ahead, training-7 is expected to end first"
    );
    assert_eq!(
        words(&known, &in_place(2)),
        "2 nvidia GPUs on one node; 1 is ahead, training-7 is expected to end first"
    );
    // Far back, the next end would be a write for everybody.
    assert_eq!(
        words(&known, &in_place(40)),
        "2 nvidia GPUs on one node; 39 are ahead"
    );
    let stranger = Forecast {
        first: Some(Key::new("others", "secret-project")),
        ..known
    };
    assert_eq!(
        words(&stranger, &in_place(1)),
        "2 nvidia GPUs on one node; nobody is ahead, work of another namespace is expected to end first"
    );
    assert!(words(&said(None), &in_place(1)).contains("nobody can tell when"));
}

#[test]
fn who_stands_too_far_back_is_told_nothing_and_who_was_told_keeps_it_until_somebody_asks() {
    let told = heard(&said(Some(start(0, 60, 120))), &in_place(1), now());
    let back = heard(&Forecast::nothing(1), &told, now());
    assert_eq!((back.estimated_start, back.waiting_for), (None, None));
    let mut after_restart = in_place(1);
    tell(None, &told, &mut after_restart, "team", now());
    assert_eq!(after_restart, told);
}

fn finished(name: &str, seconds: i64, ended: Timestamp) -> GPUWorkload {
    let begun = ended - SignedDuration::from_secs(seconds);
    serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "spec": {"modelName": "m", "gpuCount": 1, "image": "a"},
        "status": {"phase": "Succeeded", "lastScheduleTime": begun, "completionTime": ended},
    }))
    .unwrap()
}

fn running(name: &str) -> GPUWorkload {
    let mut workload = finished(name, 60, now());
    workload.status = serde_json::from_value(json!({"phase": "Running"})).unwrap();
    workload
}

#[test]
fn work_teaches_once_when_it_ends() {
    let (before, end) = (running("a"), finished("a", 60, now()));
    let run = Ended::of(Some(&before), Some(&end)).expect("it has ended");
    assert_eq!(Ended::of(Some(&end), Some(&end)), None);
    assert_eq!(Ended::of(Some(&end), None), None);
    assert_eq!(Ended::of(None, Some(&before)), None);
    let mut runs = Runs::default();
    assert!(runs.learn(&run));
    // Another process lists what has ended: what was kept is not learnt twice, what came after is.
    let mut again = Runs::read(&runs.text());
    let listed = |name, at| Ended::of(None, Some(&finished(name, 60, at))).unwrap();
    assert!(!again.learn(&listed("a", now())));
    assert!(again.learn(&listed("b", after(5))));
    assert_eq!(again.durations().seen(), 2);
}

#[test]
fn what_is_kept_is_bounded_and_survives_as_text() {
    let mut runs = Runs::default();
    for kind in 0..300 {
        for run in 0..40 {
            let mut end = finished("w", 60 + run, now());
            end.spec.model_name = format!("model-{kind}");
            end.spec.image = Some("x".repeat(1000));
            runs.learn(&Ended::of(Some(&running("w")), Some(&end)).unwrap());
        }
    }
    let text = runs.text();
    assert!(text.len() < 256 * 1024, "{} bytes", text.len());
    let read = Runs::read(&text);
    assert_eq!(read.durations().seen(), 200 * 32);
    assert_eq!(read.text(), text);
    assert!(text.contains("model-299") && !text.contains("model-99\""));
}

#[test]
fn text_that_is_not_ours_is_as_good_as_none() {
    for text in ["", "{", "[]", "{\"kinds\": 7}"] {
        assert_eq!(Runs::read(text), Runs::default(), "{text}");
    }
}
