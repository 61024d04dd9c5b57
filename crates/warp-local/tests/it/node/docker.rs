//! The Docker runtime against an engine that answers as one, under the embedded API server.

pub(super) mod fake;

use std::sync::Arc;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;
use warp_apiserver::hooks::{ExecOptions, Exit, LogOptions};
use warp_apiserver::{ApiServer, Options};
use warp_local::controllers;
use warp_local::node::access::Access;
use warp_local::node::docker::{self, Docker, Search};
use warp_local::node::process::machine::{self, Gpus};
use warp_local::node::{Host, host};
use warp_testkit::{PATIENCE, until, wait_for, wait_gone};

use fake::Engine;

fn pod(name: &str, image: &str, command: &[&str], more: &Value) -> Pod {
    let mut container = json!({"name": "c", "image": image, "command": command});
    for (key, value) in more.as_object().into_iter().flatten() {
        container[key] = value.clone();
    }
    let spec = json!({"nodeName": "here", "restartPolicy": "Never", "terminationGracePeriodSeconds": 7,
        "volumes": [{"name": "config", "configMap": {"name": "settings"}}], "containers": [container]});
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
}

fn phase(phase: &'static str) -> impl Fn(Option<&Pod>) -> bool {
    move |pod| pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()) == Some(phase)
}

fn state(pod: Option<&Pod>) -> Value {
    let status = pod
        .and_then(|pod| serde_json::to_value(pod.status.as_ref()?).ok())
        .unwrap_or_default();
    status["containerStatuses"][0]["state"].clone()
}

struct Bench {
    engine: Engine,
    client: kube::Client,
    pods: Api<Pod>,
    folder: tempfile::TempDir,
}

impl Bench {
    async fn start() -> Self {
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
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        let map = json!({"metadata": {"name": "settings"}, "data": {"level": "7"}});
        maps.create(
            &PostParams::default(),
            &serde_json::from_value(map).unwrap(),
        )
        .await
        .unwrap();
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
            Api::namespaced(client.clone(), "default");
        wait_for(&accounts, "default", "made", PATIENCE, |account| {
            account.is_some()
        })
        .await
        .unwrap();
        Self {
            engine: Engine::new(),
            pods: Api::namespaced(client.clone(), "default"),
            client,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// A node on the engine; the runtime, and the switch that ends it.
    async fn node(&self) -> (Arc<Docker>, CancellationToken, tokio::task::JoinHandle<()>) {
        let search = Search {
            given: Some(self.folder.path().join("docker.sock")),
            ..Search::default()
        };
        let api = docker::find(&search).await.unwrap();
        let (runtime, reports) = Docker::new(self.client.clone(), api, self.folder.path());
        let runtime = Arc::new(runtime);
        let gpus = [Gpus {
            vendor: warp_core::gpu::Vendor::Nvidia,
            resource: "nvidia.com/gpu",
            product: "NVIDIA L4".to_owned(),
            model: None,
            count: 4,
        }];
        let host = Host {
            client: self.client.clone(),
            clock: controllers::Clock::system(),
            options: host::Options::for_fleet(1),
            shapes: vec![machine::shape("here", "docker", "127.0.0.1", &gpus)],
            runtime: runtime.clone(),
            reports: Some(reports),
        };
        let stop = CancellationToken::new();
        let running = stop.clone();
        let task = tokio::spawn(async move { host.run(running).await.unwrap() });
        (runtime, stop, task)
    }

    async fn create(&self, pod: &Pod) {
        self.pods.create(&PostParams::default(), pod).await.unwrap();
    }
}

#[tokio::test]
async fn pods_live_and_die_as_the_engine_says() {
    let bench = Bench::start().await;
    let socket = bench.folder.path().join("docker.sock");
    let listening = bench.engine.listen(&socket);
    let (runtime, stop, task) = bench.node().await;
    let pods = &bench.pods;
    // Exit codes, out of memory and what could not start.
    bench
        .create(&pod("three", "a:1", &["exit", "3"], &json!({})))
        .await;
    bench
        .create(&pod("hungry", "a:1", &["oom"], &json!({})))
        .await;
    bench
        .create(&pod("absent", "a:1", &["absent"], &json!({})))
        .await;
    for (name, code, reason) in [
        ("three", 3, "Error"),
        ("hungry", 137, "OOMKilled"),
        ("absent", 128, "StartError"),
    ] {
        let ended = wait_for(pods, name, "failed", PATIENCE, phase("Failed"))
            .await
            .unwrap();
        let ended = state(ended.as_ref());
        assert_eq!(
            (
                &ended["terminated"]["exitCode"],
                &ended["terminated"]["reason"]
            ),
            (&json!(code), &json!(reason))
        );
    }
    // Everything the pod asks for reaches the engine.
    let more = json!({
        "env": [{"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level"}}}],
        "volumeMounts": [{"name": "config", "mountPath": "/config", "readOnly": true}],
        "resources": {"limits": {"nvidia.com/gpu": "2", "memory": "64Mi", "cpu": "500m"}}});
    bench.create(&pod("full", "b:2", &["run"], &more)).await;
    let running = wait_for(pods, "full", "running", PATIENCE, phase("Running"))
        .await
        .unwrap()
        .unwrap();
    let container = bench
        .engine
        .inside
        .lock()
        .containers
        .values()
        .find(|container| container.name.contains("full"))
        .cloned()
        .unwrap();
    let host = &container.body["HostConfig"];
    assert_eq!(host["DeviceRequests"][0]["DeviceIDs"], json!(["0", "1"]));
    assert_eq!(
        (&host["Memory"], &host["NanoCpus"]),
        (&json!(64 << 20), &json!(500_000_000))
    );
    assert!(host["Binds"][0].as_str().unwrap().ends_with(":/config:ro"));
    assert!(
        container.body["Env"]
            .as_array()
            .unwrap()
            .contains(&json!("LEVEL=7"))
    );
    logs_and_exec(&runtime, &running).await;
    // A restarted node finds its container again; what no pod asks for goes.
    bench
        .engine
        .inside
        .lock()
        .containers
        .insert("orphan".to_owned(), {
            let mut orphan = container.clone();
            orphan.name = "orphan".to_owned();
            orphan.body["Labels"]["gpu.warp.dev/pod-uid"] = json!("somebody");
            orphan
        });
    stop.cancel();
    task.await.unwrap();
    drop(runtime);
    let (_runtime, stop, task) = bench.node().await;
    until("the orphan to be removed", PATIENCE, async || {
        Ok((!bench.engine.inside.lock().containers.contains_key("orphan")).then_some(()))
    })
    .await
    .unwrap();
    pods.delete("full", &DeleteParams::default()).await.unwrap();
    wait_gone(pods, "full", PATIENCE).await.unwrap();
    until("its container to be removed", PATIENCE, async || {
        let left = bench
            .engine
            .inside
            .lock()
            .containers
            .values()
            .any(|container| container.name.contains("full"));
        Ok((!left).then_some(()))
    })
    .await
    .unwrap();
    stop.cancel();
    task.await.unwrap();
    drop(listening);
}

async fn logs_and_exec(runtime: &Docker, pod: &Pod) {
    let stream = runtime.logs(pod, "c", &LogOptions::default()).unwrap();
    let pieces: Vec<bytes::Bytes> = stream.try_collect().await.unwrap();
    assert_eq!(pieces.concat(), b"out\nerr\n");
    let options = ExecOptions {
        command: ["sh", "-c", "echo said; echo whispered >&2; exit 5"]
            .map(str::to_owned)
            .to_vec(),
        stdout: true,
        stderr: true,
        ..ExecOptions::default()
    };
    let mut session = runtime.exec(pod, "c", &options).unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    session
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .await
        .unwrap();
    session
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .await
        .unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("said\n", "whispered\n"));
    assert_eq!(session.exit.await.unwrap(), Exit::Code(5));
}

#[tokio::test]
async fn a_socket_that_dies_in_a_pull_is_told_and_tried_again() {
    let bench = Bench::start().await;
    let socket = bench.folder.path().join("docker.sock");
    let _listening = bench.engine.listen(&socket);
    bench.engine.inside.lock().broken_pulls = 1;
    let (_runtime, stop, task) = bench.node().await;
    bench.create(&pod("cut", "a:1", &["run"], &json!({}))).await;
    bench
        .create(&pod("nowhere", "nowhere:1", &["run"], &json!({})))
        .await;
    let waits = |word: &'static str| {
        move |pod: Option<&Pod>| {
            let waiting = state(pod)["waiting"].clone();
            let reason = waiting["reason"].as_str().unwrap_or_default().to_owned();
            (reason == "ErrImagePull" || reason == "ImagePullBackOff")
                && waiting["message"]
                    .as_str()
                    .unwrap_or_default()
                    .contains(word)
        }
    };
    wait_for(
        &bench.pods,
        "cut",
        "told that the pull broke off",
        PATIENCE,
        waits("in the middle of the pull"),
    )
    .await
    .unwrap();
    wait_for(
        &bench.pods,
        "nowhere",
        "told that there is no such image",
        PATIENCE,
        waits("manifest unknown"),
    )
    .await
    .unwrap();
    wait_for(
        &bench.pods,
        "cut",
        "running after another try",
        PATIENCE,
        phase("Running"),
    )
    .await
    .unwrap();
    stop.cancel();
    task.await.unwrap();
}

/// A private image needs the login of a pull secret; without one the registry's own words are told.
#[tokio::test]
async fn a_private_image_is_pulled_with_the_secret_of_the_pod() {
    let bench = Bench::start().await;
    let _listening = bench
        .engine
        .listen(&bench.folder.path().join("docker.sock"));
    let (_runtime, stop, task) = bench.node().await;
    let secrets: Api<Secret> = Api::namespaced(bench.client.clone(), "default");
    let login = json!({"auths": {"registry.example": {"username": "me", "password": "secret"}}});
    let secret = json!({"metadata": {"name": "login"}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": login.to_string()}});
    secrets
        .create(
            &PostParams::default(),
            &serde_json::from_value(secret).unwrap(),
        )
        .await
        .unwrap();
    let image = "registry.example/private:1";
    let mut with = pod("with", image, &["run"], &json!({}));
    with.spec.as_mut().unwrap().image_pull_secrets =
        Some(serde_json::from_value(json!([{"name": "absent"}, {"name": "login"}])).unwrap());
    let without = pod(
        "without",
        "registry.example/private:2",
        &["run"],
        &json!({}),
    );
    bench.create(&with).await;
    bench.create(&without).await;
    wait_for(&bench.pods, "with", "running", PATIENCE, phase("Running"))
        .await
        .unwrap();
    wait_for(&bench.pods, "without", "refused", PATIENCE, |pod| {
        let waiting = state(pod)["waiting"].clone();
        waiting["message"]
            .as_str()
            .unwrap_or_default()
            .contains("pull access denied")
    })
    .await
    .unwrap();
    let events: Api<Event> = Api::namespaced(bench.client.clone(), "default");
    until("the pull to be told", PATIENCE, async || {
        let told = events.list(&ListParams::default()).await?;
        let pulling = told
            .iter()
            .any(|event| event.reason.as_deref() == Some("Pulling"));
        Ok(pulling.then_some(()))
    })
    .await
    .unwrap();
    stop.cancel();
    task.await.unwrap();
}

/// An engine that is away when a pod goes is asked again: nothing of the pod runs on unseen.
#[tokio::test]
async fn a_pod_that_goes_while_the_engine_is_away_is_removed_when_it_is_back() {
    let bench = Bench::start().await;
    let socket = bench.folder.path().join("docker.sock");
    let listening = bench.engine.listen(&socket);
    let (_runtime, stop, task) = bench.node().await;
    bench.create(&pod("p", "a:1", &["run"], &json!({}))).await;
    wait_for(&bench.pods, "p", "running", PATIENCE, phase("Running"))
        .await
        .unwrap();
    drop(listening);
    std::fs::remove_file(&socket).unwrap();
    bench
        .pods
        .delete("p", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    wait_gone(&bench.pods, "p", PATIENCE).await.unwrap();
    assert_eq!(bench.engine.inside.lock().containers.len(), 1);
    let _listening = bench.engine.listen(&socket);
    until("the container to be removed", PATIENCE, async || {
        Ok(bench
            .engine
            .inside
            .lock()
            .containers
            .is_empty()
            .then_some(()))
    })
    .await
    .unwrap();
    stop.cancel();
    task.await.unwrap();
}

/// A pod that was bound while the node was away must not be given what a running pod holds, whichever the
/// API lists first.
#[tokio::test]
async fn a_restarted_node_gives_no_device_to_two_pods() {
    let bench = Bench::start().await;
    let _listening = bench
        .engine
        .listen(&bench.folder.path().join("docker.sock"));
    let (_runtime, stop, task) = bench.node().await;
    let gpus = |count: u32| json!({"resources": {"limits": {"nvidia.com/gpu": count.to_string()}}});
    bench.create(&pod("z", "a:1", &["run"], &gpus(3))).await;
    wait_for(&bench.pods, "z", "running", PATIENCE, phase("Running"))
        .await
        .unwrap();
    stop.cancel();
    task.await.unwrap();
    bench.create(&pod("a", "a:1", &["run"], &gpus(1))).await;
    let (_runtime, stop, task) = bench.node().await;
    wait_for(&bench.pods, "a", "running", PATIENCE, phase("Running"))
        .await
        .unwrap();
    let held = |name: &str| {
        let inside = bench.engine.inside.lock();
        let found = inside
            .containers
            .values()
            .find(|container| container.name.contains(&format!("_{name}_")))
            .unwrap();
        found.body["HostConfig"]["DeviceRequests"][0]["DeviceIDs"].clone()
    };
    assert_eq!(held("z"), json!(["0", "1", "2"]));
    assert_eq!(held("a"), json!(["3"]));
    stop.cancel();
    task.await.unwrap();
}

#[test]
fn sockets_are_tried_in_the_order_people_expect() {
    let search = Search {
        given: None,
        docker_host: Some("unix:///a.sock".to_owned()),
        home: Some("/home/u".into()),
        runtime_directory: Some("/run/user/1".into()),
    };
    let places: Vec<String> = search
        .places()
        .iter()
        .map(|place| place.display().to_string())
        .collect();
    assert_eq!(
        places,
        [
            "/a.sock",
            "/home/u/.docker/run/docker.sock",
            "/run/user/1/podman/podman.sock",
            "/var/run/docker.sock"
        ]
    );
    let given = Search {
        given: Some("/x".into()),
        ..search
    };
    assert_eq!(given.places(), [std::path::PathBuf::from("/x")]);
    let remote = Search {
        docker_host: Some("tcp://1.2.3.4:2375".to_owned()),
        ..Search::default()
    };
    assert_eq!(
        remote.places(),
        [std::path::PathBuf::from("/var/run/docker.sock")]
    );
}
