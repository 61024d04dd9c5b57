//! The state machine, driven by the simulated runtime: phases, states and conditions as a kubelet's.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::facts::{Facts, Sandbox};
use super::super::simulated::Simulated;
use super::super::timeline::Timeline;

const START: i64 = 1_800_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(START + seconds).unwrap()
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "reads best at the many calls"
)]
fn pod(spec: Value, annotations: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "annotations": annotations},
        "spec": spec,
    }))
    .unwrap()
}

fn main_status(status: &PodStatus) -> &ContainerStatus {
    &status.container_statuses.as_ref().unwrap()[0]
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> (&'a str, &'a str) {
    let found = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == kind)
        .unwrap();
    (&found.status, found.reason.as_deref().unwrap_or_default())
}

fn phases(timeline: &Timeline<'_, Simulated>) -> Vec<String> {
    let mut phases: Vec<String> = timeline
        .history
        .iter()
        .map(|(_, status)| status.phase.clone().unwrap())
        .collect();
    phases.dedup();
    phases
}

fn waiting(status: &PodStatus) -> &str {
    main_status(status)
        .state
        .as_ref()
        .and_then(|state| state.waiting.as_ref())
        .and_then(|waiting| waiting.reason.as_deref())
        .unwrap_or_default()
}

#[test]
fn a_job_pod_goes_pending_running_succeeded() {
    let runtime = Simulated::default();
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i", "command": ["sleep", "30"]}]});
    let mut timeline = Timeline::new(
        &runtime,
        pod(spec, json!({"sim.gpu.warp.dev/pull-time": "5s"})),
        at(0),
    );
    assert_eq!(waiting(timeline.status()), "ContainerCreating");
    let running = timeline.run_until(at(10)).clone();
    assert_eq!(running.phase.as_deref(), Some("Running"));
    assert_eq!(condition(&running, "Ready"), ("True", ""));
    assert_eq!(
        condition(&running, "PodReadyToStartContainers"),
        ("True", "")
    );
    assert!(main_status(&running).ready);
    let done = timeline.run_until(at(3600));
    assert_eq!(done.phase.as_deref(), Some("Succeeded"));
    assert_eq!(condition(done, "Ready"), ("False", "PodCompleted"));
    assert_eq!(condition(done, "Initialized"), ("True", "PodCompleted"));
    assert_eq!(condition(done, "PodReadyToStartContainers").0, "False");
    let ended = main_status(done)
        .state
        .as_ref()
        .unwrap()
        .terminated
        .as_ref()
        .unwrap();
    assert_eq!(
        (ended.exit_code, ended.reason.as_deref()),
        (0, Some("Completed"))
    );
    assert_eq!(ended.finished_at, Some(Time(at(35))));
    assert_eq!(phases(&timeline), ["Pending", "Running", "Succeeded"]);
}

#[test]
fn a_failing_container_backs_off_as_long_as_a_kubelet_would() {
    let runtime = Simulated::default();
    let spec = json!({"restartPolicy": "Always", "containers": [{"name": "c", "image": "i", "command": ["false"]}]});
    let mut timeline = Timeline::new(&runtime, pod(spec, json!({})), at(0));
    // The first restart is immediate, the next ones wait 10, 20, 40, 80, 160, 300, 300 seconds.
    let mut clock = 0;
    for (index, delay) in [10, 20, 40, 80, 160, 300, 300].into_iter().enumerate() {
        let status = timeline.run_until(at(clock + delay - 1));
        assert_eq!(waiting(status), "CrashLoopBackOff");
        assert_eq!(
            usize::try_from(main_status(status).restart_count).unwrap(),
            index + 1
        );
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(condition(status, "Ready"), ("False", "ContainersNotReady"));
        clock += delay;
    }
}

#[test]
fn a_failing_pull_shows_the_error_then_the_back_off_and_recovers() {
    let runtime = Simulated::default();
    let spec = json!({"containers": [{"name": "c", "image": "registry/x:1"}]});
    let annotations = json!({"sim.gpu.warp.dev/pull-error": "manifest unknown", "sim.gpu.warp.dev/pull-failures": "2"});
    let mut timeline = Timeline::new(&runtime, pod(spec, annotations), at(0));
    assert_eq!(waiting(timeline.status()), "ErrImagePull");
    assert_eq!(waiting(timeline.run_until(at(5))), "ImagePullBackOff");
    assert_eq!(waiting(timeline.run_until(at(10))), "ErrImagePull");
    assert_eq!(timeline.run_until(at(60)).phase.as_deref(), Some("Running"));
}

#[test]
fn an_image_that_is_pulled_again_is_not_said_to_be_on_its_way() {
    let runtime = Simulated::default();
    let spec = json!({"containers": [{"name": "c", "image": "registry/x:1"}]});
    let annotations = json!({"sim.gpu.warp.dev/pull-error": "manifest unknown", "sim.gpu.warp.dev/pull-time": "5s",
        "sim.gpu.warp.dev/pull-failures": "2"});
    let mut timeline = Timeline::new(&runtime, pod(spec, annotations), at(0));
    assert_eq!(waiting(timeline.run_until(at(4))), "ContainerCreating");
    let mut said = Vec::new();
    for second in 5..120 {
        let status = timeline.run_until(at(second));
        if status.phase.as_deref() == Some("Running") {
            break;
        }
        said.push(waiting(status).to_owned());
    }
    said.dedup();
    let failing = ["ErrImagePull", "ImagePullBackOff"];
    assert_eq!(said, [failing, failing].concat());
}

#[test]
fn init_containers_run_in_order_and_sidecars_outlive_the_main_container() {
    let runtime = Simulated::default();
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [
            {"name": "first", "image": "i", "command": ["sleep", "5"]},
            {"name": "side", "image": "i", "restartPolicy": "Always", "startupProbe": {"exec": {"command": ["x"]}, "periodSeconds": 1}},
            {"name": "second", "image": "i", "command": ["sleep", "5"]}],
        "containers": [{"name": "c", "image": "i", "command": ["sleep", "10"]}]});
    let annotations =
        json!({"sim.gpu.warp.dev/ready-after.side": "2s", "sim.gpu.warp.dev/stop-time.side": "3s"});
    let mut timeline = Timeline::new(&runtime, pod(spec, annotations), at(0));
    assert_eq!(waiting(timeline.status()), "PodInitializing");
    assert_eq!(
        condition(timeline.status(), "Initialized"),
        ("False", "ContainersNotInitialized")
    );
    let init = |status: &PodStatus, index: usize| {
        status.init_container_statuses.as_ref().unwrap()[index].clone()
    };
    let starting = timeline.run_until(at(6)).clone();
    assert!(init(&starting, 1).state.unwrap().running.is_some());
    assert!(init(&starting, 2).state.unwrap().waiting.is_some());
    let second = timeline.run_until(at(8)).clone();
    assert!(init(&second, 2).state.unwrap().running.is_some());
    assert_eq!(second.phase.as_deref(), Some("Pending"));
    let running = timeline.run_until(at(15)).clone();
    assert_eq!(running.phase.as_deref(), Some("Running"));
    assert_eq!(condition(&running, "Ready").0, "True");
    // The main container is done at 22, the sidecar takes three more seconds.
    assert_eq!(timeline.run_until(at(23)).phase.as_deref(), Some("Running"));
    assert_eq!(
        timeline.run_until(at(30)).phase.as_deref(),
        Some("Succeeded")
    );
}

#[test]
fn a_failed_init_container_fails_a_pod_that_is_never_restarted() {
    let runtime = Simulated::default();
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [{"name": "first", "image": "i", "command": ["sh", "-c", "sleep 1; exit 3"]}],
        "containers": [{"name": "c", "image": "i"}]});
    let mut timeline = Timeline::new(&runtime, pod(spec, json!({})), at(0));
    let status = timeline.run_until(at(5));
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(waiting(status), "PodInitializing");
    assert_eq!(
        condition(status, "Initialized"),
        ("False", "ContainersNotInitialized")
    );
}

#[test]
fn a_deadline_ends_the_pod_with_its_reason() {
    let runtime = Simulated::default();
    let spec = json!({"restartPolicy": "Never", "activeDeadlineSeconds": 60, "containers": [{"name": "c", "image": "i"}]});
    let mut timeline = Timeline::new(&runtime, pod(spec.clone(), json!({})), at(0));
    let status = timeline.run_until(at(300));
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("DeadlineExceeded"))
    );
    // Done in time stays done.
    let annotations = json!({"sim.gpu.warp.dev/run-time": "30s"});
    let mut timeline = Timeline::new(&runtime, pod(spec, annotations), at(0));
    let status = timeline.run_until(at(300));
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Succeeded"), None)
    );
}

#[test]
fn deletion_waits_for_the_grace_and_a_shorter_one_wins() {
    let runtime = Simulated::default();
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    let annotations = json!({"sim.gpu.warp.dev/stop-time": "never"});
    let mut timeline = Timeline::new(&runtime, pod(spec, annotations), at(0));
    timeline.run_until(at(10));
    let delete = |pod: &mut Pod, grace: i64| {
        pod.metadata.deletion_timestamp = Some(Time(at(10 + grace)));
        pod.metadata.deletion_grace_period_seconds = Some(grace);
    };
    timeline.edit(|pod| delete(pod, 30));
    assert!(!timeline.is_finished());
    timeline.run_until(at(20));
    timeline.edit(|pod| delete(pod, 1));
    let status = timeline.run_until(at(21)).clone();
    assert!(timeline.is_finished());
    let ended = main_status(&status)
        .state
        .as_ref()
        .unwrap()
        .terminated
        .clone()
        .unwrap();
    assert_eq!(
        (ended.exit_code, ended.finished_at),
        (137, Some(Time(at(21))))
    );
    assert_eq!(status.phase.as_deref(), Some("Failed"));
}

#[test]
fn liveness_restarts_and_readiness_only_reports() {
    let runtime = Simulated::default();
    let probe = json!({"exec": {"command": ["x"]}, "periodSeconds": 5, "failureThreshold": 2});
    let spec = json!({"containers": [{"name": "c", "image": "i", "livenessProbe": probe, "readinessProbe": probe}]});
    let annotations =
        json!({"sim.gpu.warp.dev/live-for": "20s", "sim.gpu.warp.dev/ready-after": "8s"});
    let mut timeline = Timeline::new(&runtime, pod(spec, annotations), at(0));
    assert!(!main_status(timeline.run_until(at(9))).ready);
    assert!(main_status(timeline.run_until(at(10))).ready);
    let status = timeline.run_until(at(26));
    assert_eq!(main_status(status).restart_count, 1);
    let last = main_status(status)
        .last_state
        .as_ref()
        .unwrap()
        .terminated
        .as_ref()
        .unwrap();
    assert_eq!(last.exit_code, 143);
}

#[test]
fn an_annotation_nobody_knows_refuses_the_pod() {
    let runtime = Simulated::default();
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    let timeline = Timeline::new(
        &runtime,
        pod(spec, json!({"sim.gpu.warp.dev/runtime": "3s"})),
        at(0),
    );
    let status = timeline.status();
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("InvalidSimulation"))
    );
    assert!(status.message.as_deref().unwrap().contains("run-time"));
}

#[test]
fn a_node_restarted_in_the_middle_ends_the_pod_at_the_same_time() {
    let runtime = Simulated::default();
    let spec = json!({"restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "i", "command": ["sh", "-c", "sleep 30; exit 1"]}]});
    let annotations = json!({"sim.gpu.warp.dev/fail-first": "2"});
    let object = pod(spec, annotations);
    let mut whole = Timeline::new(&runtime, object.clone(), at(0));
    let end = whole.run_until(at(1000)).clone();
    for cut in [1, 29, 31, 45, 70, 90, 200] {
        let mut first = Timeline::new(&runtime, object.clone(), at(0));
        let status = first.run_until(at(cut)).clone();
        let mut again = object.clone();
        again.status = Some(status);
        let mut second = Timeline::new(&runtime, again, at(cut));
        let resumed = second.run_until(at(1000));
        assert_eq!(resumed.phase, end.phase, "cut at {cut}");
        assert_eq!(
            main_status(resumed).restart_count,
            main_status(&end).restart_count,
            "cut at {cut}"
        );
    }
}

fn seconds() -> impl Strategy<Value = i64> {
    0..120i64
}

proptest! {
    /// Whatever the pod does: phases only move forward, a terminal phase never changes, conditions
    /// agree with the phase, restart counts never fall, and a deleted pod is gone after its grace.
    #[test]
    fn any_life_is_a_legal_one(
        pull in seconds(), run in seconds(), code in 0..3i32, first in 0..3u32, stop in seconds(),
        policy in prop::sample::select(vec!["Always", "OnFailure", "Never"]),
        deadline in prop::option::of(1..300i64), delete_at in 0..400i64, grace in 0..60i64,
        init in any::<bool>(), sidecar in any::<bool>(),
    ) {
        let runtime = Simulated::default();
        let mut inits = Vec::new();
        if sidecar { inits.push(json!({"name": "side", "image": "i", "restartPolicy": "Always"})); }
        if init { inits.push(json!({"name": "init", "image": "i", "command": ["sleep", "7"]})); }
        let spec = json!({"restartPolicy": policy, "activeDeadlineSeconds": deadline, "initContainers": inits,
            "containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "i", "command": ["sleep", "20"]}]});
        let annotations = json!({
            "sim.gpu.warp.dev/pull-time": format!("{pull}s"), "sim.gpu.warp.dev/run-time.c": format!("{run}s"),
            "sim.gpu.warp.dev/exit-code.c": code.to_string(), "sim.gpu.warp.dev/fail-first": first.to_string(),
            "sim.gpu.warp.dev/stop-time": format!("{stop}s")});
        let mut timeline = Timeline::new(&runtime, pod(spec, annotations), at(0));
        timeline.run_until(at(delete_at));
        timeline.edit(|pod| {
            pod.metadata.deletion_timestamp = Some(Time(at(delete_at + grace)));
            pod.metadata.deletion_grace_period_seconds = Some(grace);
        });
        // The sidecar is stopped after the others, with the same grace again.
        timeline.run_until(at(delete_at) + SignedDuration::from_secs(60 + 2 * grace));
        prop_assert!(timeline.is_finished());
        let rank = |phase: &str| match phase { "Pending" => 0, "Running" => 1, _ => 2 };
        for pair in timeline.history.windows(2) {
            let (before, after) = (&pair[0].1, &pair[1].1);
            let (from, to) = (before.phase.as_deref().unwrap(), after.phase.as_deref().unwrap());
            prop_assert!(rank(from) <= rank(to), "{from} -> {to}");
            prop_assert!(rank(from) < 2, "changed after {from}");
            let restarts = |status: &PodStatus| main_status(status).restart_count;
            prop_assert!(restarts(before) <= restarts(after));
        }
        for (_, status) in &timeline.history {
            let ready = condition(status, "Ready").0 == "True";
            prop_assert!(!ready || status.phase.as_deref() == Some("Running"));
            prop_assert!(!ready || condition(status, "Initialized").0 == "True");
        }
        prop_assert!(rank(timeline.status().phase.as_deref().unwrap()) == 2);
    }

    /// What is read back from a status is what was known, as far as a status tells.
    #[test]
    fn facts_survive_a_round_trip_through_the_status(run in 1..60i64, cut in 0..120i64) {
        let runtime = Simulated::default();
        let spec = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
        let mut object = pod(spec, json!({"sim.gpu.warp.dev/run-time": format!("{run}s")}));
        let mut timeline = Timeline::new(&runtime, object.clone(), at(0));
        let status = timeline.run_until(at(cut)).clone();
        object.status = Some(status.clone());
        let facts = Facts::from_object(&object, at(cut));
        prop_assert_eq!(facts.sandbox == Sandbox::Gone, cut >= run);
        let again = super::step(&object, &facts, at(cut));
        prop_assert_eq!(again.status, status);
        prop_assert!(again.actions.is_empty());
    }
}

#[test]
fn an_evicted_pod_fails_with_the_nodes_reason_and_is_not_restarted() {
    let runtime = Simulated::default();
    let spec = json!({"restartPolicy": "Always", "containers": [{"name": "c", "image": "i"}]});
    let annotations =
        json!({"sim.gpu.warp.dev/evict-after": "5s", "sim.gpu.warp.dev/run-time": "forever"});
    let mut timeline = Timeline::new(&runtime, pod(spec, annotations), at(0));
    let running = timeline.run_until(at(4)).clone();
    assert_eq!(running.phase.as_deref(), Some("Running"));
    let ended = timeline.run_until(at(60)).clone();
    assert_eq!(ended.phase.as_deref(), Some("Failed"));
    assert_eq!(ended.reason.as_deref(), Some("Evicted"));
    assert!(
        ended
            .message
            .is_some_and(|message| message.contains("low on resource"))
    );
    assert_eq!(phases(&timeline), ["Pending", "Running", "Failed"]);
}

#[test]
fn a_container_that_cannot_be_built_or_named_waits_with_its_reason() {
    let runtime = Simulated::default();
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
    let missing = json!({"sim.gpu.warp.dev/config-error": "secret \"x\" not found"});
    let mut timeline = Timeline::new(&runtime, pod(spec.clone(), missing), at(0));
    assert_eq!(
        waiting(timeline.run_until(at(1))),
        "CreateContainerConfigError"
    );
    let unreadable = json!({
        "sim.gpu.warp.dev/pull-error": "couldn't parse image name",
        "sim.gpu.warp.dev/pull-reason": "InvalidImageName",
    });
    let mut timeline = Timeline::new(&runtime, pod(spec, unreadable), at(0));
    // Never a back-off: no later try can read it either.
    assert_eq!(waiting(timeline.run_until(at(5))), "InvalidImageName");
}
