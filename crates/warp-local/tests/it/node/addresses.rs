//! Pods of a process node have an address of their own: told to their containers, found through Services,
//! kept over a restart of the node.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use warp_apiserver::{ApiServer, Options};
use warp_local::controllers;
use warp_local::node::process::{Cgroups, Process, machine};
use warp_local::node::{Host, host};
use warp_testkit::{PATIENCE, until, wait_for};

use super::Leftovers;

pub(super) async fn server() -> kube::Client {
    let server = ApiServer::start(Options::ephemeral().unwrap())
        .await
        .unwrap();
    let client = server.client("default");
    tokio::spawn(controllers::run(
        client.clone(),
        server.clock().clone(),
        controllers::Options::default(),
        CancellationToken::new(),
    ));
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    wait_for(&accounts, "default", "made", PATIENCE, |account| {
        account.is_some()
    })
    .await
    .unwrap();
    client
}

/// A process node, until it is cancelled.
pub(super) fn node(
    client: &kube::Client,
    root: &Path,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let program = env!("CARGO_BIN_EXE_pod-supervisor").into();
    let made = Process::new(client.clone(), root, program, "127.0.0.1", Cgroups::find());
    let (process, reports) = made.unwrap();
    let host = Host {
        client: client.clone(),
        clock: controllers::Clock::system(),
        options: host::Options::for_fleet(1),
        shapes: vec![machine::shape("here", "here", "127.0.0.1", &[])],
        runtime: Arc::new(process),
        reports: Some(reports),
    };
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { host.run(stop).await.unwrap() }
    });
    (stop, running)
}

/// Starts a pod and waits until it is ready; its address.
async fn start(client: &kube::Client, name: &str, more: &Value) -> Ipv4Addr {
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let mut spec = json!({"nodeName": "here", "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "local://",
            "command": ["sh", "-c", "echo $POD_IP $HOST_IP; sleep 600"],
            "env": [{"name": "POD_IP", "valueFrom": field("status.podIP")}, {"name": "HOST_IP", "valueFrom": field("status.hostIP")}]}]});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let pod = json!({"metadata": {"name": name, "labels": {"app": "pods"}}, "spec": spec});
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    wait_for(&pods, name, "running", PATIENCE, |pod| {
        pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()) == Some("Running")
    })
    .await
    .unwrap();
    address(client, name).await
}

async fn address(client: &kube::Client, name: &str) -> Ipv4Addr {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let status = pods.get(name).await.unwrap().status.unwrap();
    let listed = status.pod_ips.unwrap_or_default();
    assert_eq!(listed.len(), 1, "{name}");
    assert_eq!(Some(&listed[0].ip), status.pod_ip.as_ref(), "{name}");
    listed[0].ip.parse().unwrap()
}

/// What the container of a pod has printed.
async fn printed(client: &kube::Client, root: &Path, name: &str) -> String {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let uid = pods.get(name).await.unwrap().metadata.uid.unwrap();
    let folder = root.join("pods").join(uid).join("logs");
    until("a line", PATIENCE, async || {
        let files = std::fs::read_dir(&folder).into_iter().flatten();
        let text: String = files
            .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok())
            .collect();
        Ok(text.contains('\n').then_some(text))
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_pod_of_a_process_node_has_an_address_of_its_own_and_keeps_it() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("data");
    let _leftovers = Leftovers(root.clone());
    let client = server().await;
    let (stop, running) = node(&client, &root);
    let one = start(&client, "one", &json!({})).await;
    let two = start(&client, "two", &json!({})).await;
    let shared = start(&client, "shared", &json!({"hostNetwork": true})).await;
    assert_ne!(one, two);
    assert_eq!(shared, Ipv4Addr::LOCALHOST);
    for address in [one, two] {
        assert!(
            address.is_loopback() && address != Ipv4Addr::LOCALHOST,
            "{address}"
        );
    }
    for (name, own) in [("one", one), ("two", two), ("shared", shared)] {
        let told = printed(&client, &root, name).await;
        assert!(told.contains(&format!("{own} 127.0.0.1")), "{name}: {told}");
    }
    // Both may listen on the same port.
    let first = TcpListener::bind((one, 0)).unwrap();
    let port = first.local_addr().unwrap().port();
    let _second = TcpListener::bind((two, port)).unwrap();

    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let service = serde_json::from_value(json!({"metadata": {"name": "pods"},
        "spec": {"clusterIP": "None", "selector": {"app": "pods"}, "ports": [{"port": 80}]}}));
    services
        .create(&PostParams::default(), &service.unwrap())
        .await
        .unwrap();
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    until("all addresses behind the Service", PATIENCE, async || {
        let found = slices.list(&ListParams::default()).await?;
        let addresses: Vec<String> = found
            .iter()
            .flat_map(|slice| &slice.endpoints)
            .flat_map(|endpoint| endpoint.addresses.clone())
            .collect();
        let all = [one, two, shared].map(|address| address.to_string());
        Ok(all
            .iter()
            .all(|address| addresses.contains(address))
            .then_some(()))
    })
    .await
    .unwrap();

    stop.cancel();
    running.await.unwrap();
    let (_stop, _running) = node(&client, &root);
    // Once it has taken on a new pod it has taken on the old ones.
    let three = start(&client, "three", &json!({})).await;
    assert!(![one, two].contains(&three));
    assert_eq!(address(&client, "one").await, one);
    assert_eq!(address(&client, "two").await, two);
}
