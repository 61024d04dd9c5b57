//! Nodes in virtual time: hours pass in the time it takes to compute them.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use warp_apiserver::{ApiServer, Options};
use warp_local::controllers::{self, Clock};
use warp_local::node::fleet::Fleet;
use warp_local::node::{Host, Simulated, faults, host};
use warp_testkit::wait_for;

const HOURS: Duration = Duration::from_secs(12 * 3600);

/// A server in virtual time, its controllers, and the nodes of a fleet.
async fn engine(start: Timestamp, fleet: Fleet) -> (ApiServer, CancellationToken) {
    let mut options = Options::ephemeral().unwrap();
    options.clock = Clock::tokio(start);
    let server = ApiServer::start(options).await.unwrap();
    let client = server.client("default");
    let stop = CancellationToken::new();
    tokio::spawn(controllers::run(
        client.clone(),
        server.clock().clone(),
        controllers::Options::default(),
        stop.clone(),
    ));
    tokio::spawn(faults::play(client.clone(), fleet.faults));
    let host = Host {
        client: client.clone(),
        clock: server.clock().clone(),
        options: host::Options::for_fleet(1),
        runtime: Arc::new(Simulated::new(fleet.defaults)),
        shapes: fleet.nodes,
        reports: None,
    };
    tokio::spawn(host.run(stop.clone()));
    let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
    wait_for(&accounts, "default", "made", HOURS, |account| {
        account.is_some()
    })
    .await
    .unwrap();
    (server, stop)
}

fn is_ready(node: Option<&Node>) -> Option<bool> {
    let conditions = node?.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")?;
    Some(ready.status == "True")
}

fn gpus(node: Option<&Node>) -> Option<String> {
    let allocatable = node?.status.as_ref()?.allocatable.as_ref()?;
    Some(allocatable.get("nvidia.com/gpu")?.0.clone())
}

/// The example of the guide, played.
#[tokio::test(start_paused = true)]
async fn faults_of_a_fleet_file_happen_when_it_says() {
    let text = include_str!("../../../../../docs/guides/faults.yaml");
    let fleet = Fleet::parse(text, "faults.yaml").unwrap();
    let start: Timestamp = "2026-11-15T00:00:00Z".parse().unwrap();
    let (server, stop) = engine(start, fleet).await;
    let nodes: Api<Node> = Api::all(server.client("default"));
    let since = || server.clock().now().duration_since(start).as_secs();
    wait_for(&nodes, "h100-0", "two GPUs short", HOURS, |node| {
        gpus(node).as_deref() == Some("6")
    })
    .await
    .unwrap();
    assert!((60..180).contains(&since()), "{}", since());
    wait_for(&nodes, "h100-0", "whole again", HOURS, |node| {
        gpus(node).as_deref() == Some("8")
    })
    .await
    .unwrap();
    assert!((360..480).contains(&since()), "{}", since());
    wait_for(&nodes, "l4-1", "lost", HOURS, |node| {
        is_ready(node) == Some(false)
    })
    .await
    .unwrap();
    // Noticed by its lease, a while after it fell silent.
    assert!((600..780).contains(&since()), "{}", since());
    wait_for(&nodes, "l4-1", "back", HOURS, |node| {
        is_ready(node) == Some(true)
    })
    .await
    .unwrap();
    assert!((900..1020).contains(&since()), "{}", since());
    stop.cancel();
}

/// A kubelet checks once more what a pod bound by hand asks for, and what ended gives its room back.
#[tokio::test(start_paused = true)]
async fn a_pod_there_is_no_room_for_is_refused_by_the_node() {
    let text =
        "pools:\n- {name: n, cpu: 2, memory: 4Gi, pods: 2, resources: {example.com/disk: 1}}\n";
    let start: Timestamp = "2026-11-15T00:00:00Z".parse().unwrap();
    let (server, stop) = engine(start, Fleet::parse(text, "f").unwrap()).await;
    let pods: Api<Pod> = Api::namespaced(server.client("default"), "default");
    let make = async |name: &str, requests: Value| {
        let pod = json!({"metadata": {"name": name, "annotations": {"sim.gpu.warp.dev/run-time": "1h"}},
            "spec": {"nodeName": "n-0", "restartPolicy": "Never", "containers": [
                {"name": "c", "image": "i", "resources": {"requests": requests.clone(), "limits": requests}}]}});
        pods.create(
            &PostParams::default(),
            &serde_json::from_value(pod).unwrap(),
        )
        .await
        .unwrap();
        wait_for(&pods, name, "seen by its node", HOURS, |pod| {
            phase(pod).is_some_and(|phase| phase != "Pending")
        })
        .await
        .unwrap()
        .unwrap()
        .status
        .unwrap()
    };
    // Somebody else may hand out resources of this node by writing them into its status.
    let foreign = json!({"cpu": "1500m", "memory": "1Gi", "example.com/licence": "1"});
    let first = make("first", foreign).await;
    assert_eq!(first.phase.as_deref(), Some("Running"));
    for (name, requests, reason, message) in [
        (
            "cpu",
            json!({"cpu": "1"}),
            "OutOfcpu",
            "requested: 1000, used: 1500, capacity: 2000",
        ),
        (
            "memory",
            json!({"memory": "4Gi"}),
            "OutOfmemory",
            "enough resource: memory",
        ),
        (
            "disk",
            json!({"example.com/disk": "2"}),
            "OutOfexample.com/disk",
            "requested: 2, used: 0, capacity: 1",
        ),
    ] {
        let status = make(name, requests).await;
        assert_eq!(
            (status.phase.as_deref(), status.reason.as_deref()),
            (Some("Failed"), Some(reason))
        );
        assert!(status.message.unwrap().contains(message));
    }
    let second = make("second", json!({"cpu": "100m"})).await;
    assert_eq!(second.phase.as_deref(), Some("Running"));
    let third = make("third", json!({})).await;
    assert_eq!(third.reason.as_deref(), Some("OutOfpods"));
    wait_for(&pods, "first", "succeeded", HOURS, |pod| {
        phase(pod) == Some("Succeeded")
    })
    .await
    .unwrap();
    let fourth = make("fourth", json!({"cpu": "1500m"})).await;
    assert_eq!(fourth.phase.as_deref(), Some("Running"));
    stop.cancel();
}

/// Labels may change between a pod's placement and its arrival.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_affinity_names_other_nodes_is_refused_by_the_node() {
    let text = "pools:\n- {name: n, cpu: 2, memory: 4Gi, labels: {disk: ssd}}\n";
    let start: Timestamp = "2026-11-15T00:00:00Z".parse().unwrap();
    let (server, stop) = engine(start, Fleet::parse(text, "f").unwrap()).await;
    let client = server.client("default");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let arrive = async |name: &str, disk: &str| {
        let required = json!({"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "disk", "operator": "In", "values": [disk]}]}]});
        let affinity =
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
        let pod = json!({"metadata": {"name": name}, "spec": {
            "nodeName": "n-0", "restartPolicy": "Never", "affinity": affinity,
            "containers": [{"name": "c", "image": "i"}]}});
        let pod = serde_json::from_value(pod).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
        let seen = wait_for(&pods, name, "seen by its node", HOURS, |pod| {
            phase(pod).is_some_and(|phase| phase != "Pending")
        });
        seen.await.unwrap().unwrap().status.unwrap().reason
    };
    assert_eq!(arrive("fitting", "ssd").await, None);
    assert_eq!(
        arrive("stray", "hdd").await.as_deref(),
        Some("NodeAffinity")
    );
    let nodes: Api<Node> = Api::all(client);
    let labels = Patch::Merge(json!({"metadata": {"labels": {"disk": "hdd"}}}));
    nodes
        .patch("n-0", &PatchParams::default(), &labels)
        .await
        .unwrap();
    // The node hears of its labels and of its pods on two watches: the first may come before it knows.
    let mut number = 0;
    while arrive(&format!("late-{number}"), "ssd").await.is_none() {
        number += 1;
        assert!(number < 100, "the node never heard of its new label");
    }
    assert_eq!(arrive("welcome", "hdd").await, None);
    stop.cancel();
}

/// Lengths beyond any calendar mean "never", to a node that starts again with such a pod as well.
#[tokio::test(start_paused = true)]
async fn a_pod_that_outlasts_the_calendar_harms_nobody() {
    let start: Timestamp = "2026-11-15T00:00:00Z".parse().unwrap();
    let fleet = || Fleet::parse("pools:\n- name: n\n", "f").unwrap();
    let (server, stop) = engine(start, fleet()).await;
    let client = server.client("default");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let make = async |name: &str, annotations: Value, command: Value| {
        let pod = json!({"metadata": {"name": name, "annotations": annotations}, "spec": {
            "nodeName": "n-0", "restartPolicy": "Never", "terminationGracePeriodSeconds": 9_000_000_000_000_000_i64,
            "containers": [{"name": "c", "image": "i", "command": command}]}});
        pods.create(
            &PostParams::default(),
            &serde_json::from_value(pod).unwrap(),
        )
        .await
        .unwrap();
    };
    make("sleeper", json!({}), json!(["sleep", "999999999999"])).await;
    make(
        "puller",
        json!({"sim.gpu.warp.dev/pull-time": "999999999999"}),
        json!(["true"]),
    )
    .await;
    make(
        "stubborn",
        json!({"sim.gpu.warp.dev/stop-time": "never"}),
        json!(["sleep", "1h"]),
    )
    .await;
    for name in ["sleeper", "stubborn"] {
        wait_for(&pods, name, "running", HOURS, |pod| {
            phase(pod) == Some("Running")
        })
        .await
        .unwrap();
    }
    pods.delete("stubborn", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    // The node starts again and takes them on.
    stop.cancel();
    let again = CancellationToken::new();
    let nodes = fleet();
    let host = Host {
        client,
        clock: server.clock().clone(),
        options: host::Options::for_fleet(1),
        runtime: Arc::new(Simulated::new(nodes.defaults)),
        shapes: nodes.nodes,
        reports: None,
    };
    let running = tokio::spawn(host.run(again.clone()));
    make("after", json!({}), json!(["true"])).await;
    wait_for(&pods, "after", "succeeded", HOURS, |pod| {
        phase(pod) == Some("Succeeded")
    })
    .await
    .unwrap();
    assert_eq!(
        phase(pods.get_opt("sleeper").await.unwrap().as_ref()),
        Some("Running")
    );
    again.cancel();
    running.await.unwrap().unwrap();
}

fn phase(pod: Option<&Pod>) -> Option<&str> {
    pod?.status.as_ref()?.phase.as_deref()
}

#[tokio::test(start_paused = true)]
async fn a_day_of_crashes_is_told_with_the_times_it_would_have_taken() {
    let start: Timestamp = "2026-11-15T00:00:00Z".parse().unwrap();
    let fleet = Fleet::uniform(1, "L4", 4).unwrap();
    let node = fleet.nodes[0].name.clone();
    let (server, stop) = engine(start, fleet).await;
    let client = server.client("default");
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let pod = json!({
        "metadata": {"name": "p", "annotations": {
            "sim.gpu.warp.dev/run-time": "1h", "sim.gpu.warp.dev/exit-code": "3", "sim.gpu.warp.dev/fail-first": "3"}},
        "spec": {"nodeName": node, "restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "i"}]}});
    pods.create(
        &PostParams::default(),
        &serde_json::from_value(pod).unwrap(),
    )
    .await
    .unwrap();
    let ended = wait_for(&pods, "p", "succeeded", HOURS, |pod| {
        pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()) == Some("Succeeded")
    })
    .await
    .unwrap()
    .unwrap();
    let status = ended.status.unwrap().container_statuses.unwrap().remove(0);
    assert_eq!(status.restart_count, 3);
    let run = status.state.unwrap().terminated.unwrap();
    let lasted = run
        .finished_at
        .unwrap()
        .0
        .duration_since(run.started_at.unwrap().0);
    assert_eq!(lasted.as_secs(), 3600);
    // Four hours of running; each hour is long enough for the back-off to be forgotten.
    let whole = server.clock().now().duration_since(start).as_secs();
    assert!((4 * 3600..5 * 3600).contains(&whole), "{whole}");
    stop.cancel();
}
