//! Simulated nodes under a real kube-apiserver, kube-controller-manager and kube-scheduler: the judges
//! of whether a node behaves like one.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use warp_local::controllers::Clock;
use warp_local::node::fleet::Fleet;
use warp_local::node::host::Options;
use warp_local::node::{Host, Simulated};
use warp_testkit::{Cluster, PATIENCE, until, wait_for, wait_gone};

/// Pools of nodes for scenarios that must not meet: each has its own label.
const FLEET: &str = "
pools:
- name: plain
  count: 2
  gpu: A100-80GB
  gpus: 8
  labels: {scenario: plain}
- name: faulty
  gpu: L4
  gpus: 4
  labels: {scenario: faulty}
- name: lonely
  labels: {scenario: lonely}
";

fn start(
    client: kube::Client,
    fleet: Fleet,
    stop: &CancellationToken,
) -> tokio::task::JoinHandle<()> {
    let host = Host {
        client,
        clock: Clock::system(),
        options: Options {
            lease_every: Duration::from_secs(1),
            ..Options::for_fleet(fleet.nodes.len())
        },
        runtime: Arc::new(Simulated::new(fleet.defaults)),
        shapes: fleet.nodes,
        reports: None,
    };
    let stop = stop.clone();
    tokio::spawn(async move { host.run(stop).await.unwrap() })
}

fn pod_spec(scenario: &str, command: &[&str], gpus: u32) -> Value {
    json!({
        "nodeSelector": {"scenario": scenario}, "restartPolicy": "Never", "terminationGracePeriodSeconds": 2,
        "containers": [{"name": "c", "image": "example/train:1", "command": command,
            "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]})
}

fn pod(name: &str, spec: &Value, annotations: &Value) -> Pod {
    serde_json::from_value(
        json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec}),
    )
    .unwrap()
}

fn phase_is(phase: &'static str) -> impl Fn(Option<&Pod>) -> bool {
    move |pod| pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()) == Some(phase)
}

fn node_condition(node: Option<&Node>, kind: &str) -> Option<String> {
    let conditions = node?.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == kind)
        .map(|condition| condition.status.clone())
}

async fn annotate(client: &kube::Client, node: &str, key: &str, value: Option<&str>) {
    let api: Api<Node> = Api::all(client.clone());
    let key = format!("sim.gpu.warp.dev/{key}");
    let patch = json!({"metadata": {"annotations": {key: value}}});
    api.patch(node, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_real_control_plane_takes_simulated_nodes_for_nodes() {
    let cluster = Cluster::real().quick_node_loss().start().await.unwrap();
    let client = cluster.client().await.unwrap();
    let stop = CancellationToken::new();
    let fleet = Fleet::parse(FLEET, "fleet").unwrap();
    let mut host = start(client.clone(), fleet.clone(), &stop);
    let nodes: Api<Node> = Api::all(client.clone());
    for shape in &fleet.nodes {
        wait_for(
            &nodes,
            &shape.name,
            "ready and without taints",
            PATIENCE,
            |node| {
                node_condition(node, "Ready").as_deref() == Some("True")
                    && node.is_some_and(|node| {
                        node.spec.as_ref().is_none_or(|spec| spec.taints.is_none())
                    })
            },
        )
        .await
        .unwrap();
    }
    let namespace = async |purpose: &str| cluster.namespace(purpose).await.unwrap();
    tokio::join!(
        a_job_completes(&client, namespace("job").await),
        a_deleted_pod_goes_after_its_grace(&client, namespace("delete").await),
        failures_are_told_as_a_kubelet_tells_them(&client, namespace("fail").await),
        a_lost_gpu_ends_its_pod_and_shrinks_the_node(&client, namespace("gpu").await),
        a_lost_node_is_noticed_and_comes_back(&client, namespace("lost").await),
        an_annotation_nobody_knows_is_told_on_its_node(&client),
    );
    // A pod under way when the process ends is picked up by the next one.
    let namespace = cluster.namespace("restart").await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let spec = pod_spec("plain", &["sh", "-c", "sleep 3; exit 4"], 1);
    pods.create(&PostParams::default(), &pod("p", &spec, &json!({})))
        .await
        .unwrap();
    wait_for(&pods, "p", "running", PATIENCE, phase_is("Running"))
        .await
        .unwrap();
    stop.cancel();
    (&mut host).await.unwrap();
    let stop = CancellationToken::new();
    let host = start(client.clone(), fleet, &stop);
    let ended = wait_for(&pods, "p", "failed", PATIENCE, phase_is("Failed"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(exit_code(&ended), Some(4));
    stop.cancel();
    host.await.unwrap();
}

fn exit_code(pod: &Pod) -> Option<i32> {
    let status = &pod.status.as_ref()?.container_statuses.as_ref()?[0];
    Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
}

async fn a_job_completes(client: &kube::Client, namespace: String) {
    let jobs: Api<Job> = Api::namespaced(client.clone(), &namespace);
    let job = json!({
        "metadata": {"name": "j"},
        "spec": {"completions": 4, "parallelism": 2, "template": {"spec": pod_spec("plain", &["sleep", "1"], 4)}}});
    jobs.create(
        &PostParams::default(),
        &serde_json::from_value(job).unwrap(),
    )
    .await
    .unwrap();
    wait_for(&jobs, "j", "complete", PATIENCE, |job| {
        job.and_then(|job| job.status.as_ref()?.succeeded) == Some(4)
    })
    .await
    .unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        let status = pod.status.unwrap();
        assert_eq!(status.phase.as_deref(), Some("Succeeded"));
        assert!(status.host_ip.is_some() && status.start_time.is_some());
    }
}

async fn a_deleted_pod_goes_after_its_grace(client: &kube::Client, namespace: String) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let spec = pod_spec("plain", &["python", "train.py"], 1);
    let stubborn = json!({"sim.gpu.warp.dev/stop-time": "never"});
    pods.create(&PostParams::default(), &pod("p", &spec, &stubborn))
        .await
        .unwrap();
    wait_for(&pods, "p", "running", PATIENCE, phase_is("Running"))
        .await
        .unwrap();
    pods.delete("p", &DeleteParams::default()).await.unwrap();
    wait_gone(&pods, "p", PATIENCE).await.unwrap();
}

async fn failures_are_told_as_a_kubelet_tells_them(client: &kube::Client, namespace: String) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let spec = pod_spec("plain", &["python"], 0);
    let oom = json!({"sim.gpu.warp.dev/oom-after": "1s"});
    pods.create(&PostParams::default(), &pod("oom", &spec, &oom))
        .await
        .unwrap();
    let no_image = json!({"sim.gpu.warp.dev/pull-error": "manifest unknown"});
    pods.create(&PostParams::default(), &pod("image", &spec, &no_image))
        .await
        .unwrap();
    let ended = wait_for(&pods, "oom", "failed", PATIENCE, phase_is("Failed"))
        .await
        .unwrap()
        .unwrap();
    let status = ended.status.unwrap().container_statuses.unwrap().remove(0);
    let terminated = status.state.unwrap().terminated.unwrap();
    assert_eq!(
        (terminated.exit_code, terminated.reason.as_deref()),
        (137, Some("OOMKilled"))
    );
    wait_for(&pods, "image", "backing off", PATIENCE, |pod| {
        let waiting = pod.and_then(|pod| {
            pod.status.as_ref()?.container_statuses.as_ref()?[0]
                .state
                .as_ref()?
                .waiting
                .clone()
        });
        waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("ImagePullBackOff"))
    })
    .await
    .unwrap();
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    until("the failed pull to be told", PATIENCE, async || {
        let failed = ListParams::default().fields("involvedObject.name=image,reason=Failed");
        let told = events.list(&failed).await?;
        let found = told.iter().any(|event| {
            event
                .message
                .as_deref()
                .unwrap_or_default()
                .contains("manifest unknown")
        });
        Ok(found.then_some(()))
    })
    .await
    .unwrap();
}

async fn an_annotation_nobody_knows_is_told_on_its_node(client: &kube::Client) {
    annotate(client, "plain-1", "node-lots", Some("true")).await;
    // Events about what belongs to no namespace are in this one.
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let of_node = ListParams::default()
        .fields("involvedObject.kind=Node,involvedObject.name=plain-1,reason=UnknownAnnotation");
    let told = until("the annotation to be told", PATIENCE, async || {
        let found = events.list(&of_node).await?;
        Ok(found.items.into_iter().next())
    })
    .await
    .unwrap();
    assert_eq!(told.type_.as_deref(), Some("Warning"));
    assert_eq!(
        told.message.as_deref(),
        Some(
            "annotation sim.gpu.warp.dev/node-lots means nothing on a simulated node and is ignored; did you mean \"node-lost\"?"
        )
    );
    annotate(client, "plain-1", "node-lots", None).await;
}

async fn a_lost_gpu_ends_its_pod_and_shrinks_the_node(client: &kube::Client, namespace: String) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let nodes: Api<Node> = Api::all(client.clone());
    let spec = pod_spec("faulty", &["python"], 2);
    pods.create(&PostParams::default(), &pod("p", &spec, &json!({})))
        .await
        .unwrap();
    wait_for(&pods, "p", "running", PATIENCE, phase_is("Running"))
        .await
        .unwrap();
    annotate(client, "faulty-0", "lost-gpus", Some("0,3")).await;
    wait_for(&pods, "p", "failed", PATIENCE, phase_is("Failed"))
        .await
        .unwrap();
    let allocatable = |node: Option<&Node>| {
        let status = node?.status.as_ref()?;
        Some((
            status.allocatable.as_ref()?["nvidia.com/gpu"].0.clone(),
            status.capacity.as_ref()?["nvidia.com/gpu"].0.clone(),
        ))
    };
    wait_for(&nodes, "faulty-0", "two GPUs smaller", PATIENCE, |node| {
        allocatable(node) == Some(("2".to_owned(), "4".to_owned()))
    })
    .await
    .unwrap();
    annotate(client, "faulty-0", "lost-gpus", None).await;
    wait_for(&nodes, "faulty-0", "whole again", PATIENCE, |node| {
        allocatable(node) == Some(("4".to_owned(), "4".to_owned()))
    })
    .await
    .unwrap();
}

async fn a_lost_node_is_noticed_and_comes_back(client: &kube::Client, namespace: String) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let nodes: Api<Node> = Api::all(client.clone());
    let spec = pod_spec("lonely", &["python"], 0);
    pods.create(&PostParams::default(), &pod("p", &spec, &json!({})))
        .await
        .unwrap();
    wait_for(&pods, "p", "running", PATIENCE, phase_is("Running"))
        .await
        .unwrap();
    annotate(client, "lonely-0", "node-lost", Some("true")).await;
    wait_for(&nodes, "lonely-0", "unknown", PATIENCE, |node| {
        node_condition(node, "Ready").as_deref() == Some("Unknown")
    })
    .await
    .unwrap();
    annotate(client, "lonely-0", "node-lost", None).await;
    wait_for(&nodes, "lonely-0", "ready again", PATIENCE, |node| {
        node_condition(node, "Ready").as_deref() == Some("True")
    })
    .await
    .unwrap();
}
