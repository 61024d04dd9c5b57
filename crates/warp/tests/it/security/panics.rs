//! Defects: a request of the embedded API and a pass of the operator that panic while they hold
//! secrets, and everything that is ever printed with its `Debug`. They happen in a process of its own,
//! whose whole output is searched.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use http::{Method, Request};
use k8s_openapi::api::core::v1::{Node, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use warp_apiserver::admission::{Admission, AdmissionRequest, ReadState, Refusal, Warnings};
use warp_apiserver::{AdmissionPlugin, ApiServer, Options};
use warp_operator::{Clock, Settings};
use warp_testkit::canary::found;
use warp_testkit::{PATIENCE, until};

/// Set for the process in which things go wrong: the folder of its state.
const CHILD: &str = "WARP_TEST_PANICS";
const NAME: &str = "security::panics::a_defect_says_nothing_of_the_secrets_it_was_about";

const SECRET: &str = "canary-of-a-secret";
const VARIABLE: &str = "canary-of-a-variable";

#[test]
fn a_defect_says_nothing_of_the_secrets_it_was_about() {
    if let Some(folder) = std::env::var_os(CHILD) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(go_wrong(Path::new(&folder))).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, folder.path())
        .env("RUST_BACKTRACE", "full")
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{text}");
    for sign in [
        "a request's defect",
        "a pass's defect",
        "panicked, will try again",
        "Identity {",
        "Kubeconfig {",
    ] {
        assert!(text.contains(sign), "no {sign}: {text}");
    }
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let token = read("token");
    // A key's first lines are those of every key; what is in the middle is its own.
    let keys = [read("ca.key"), read("service-account.key")];
    let own = |key: &str| key.lines().nth(2).unwrap_or_default().to_owned();
    let keys: Vec<String> = keys.iter().map(|key| own(key)).collect();
    assert!(keys.iter().all(|key| key.len() > 20), "keys are short");
    let mut canaries = vec![SECRET, VARIABLE, token.trim()];
    canaries.extend(keys.iter().map(String::as_str));
    assert_eq!(found(&said, canaries), None, "{text}");
}

/// An admission step that cannot bear one object.
struct Brittle;

impl Admission for Brittle {
    fn admit(
        &self,
        request: &mut AdmissionRequest<'_>,
        _state: &dyn ReadState,
    ) -> Result<Warnings, Refusal> {
        assert!(
            request.object["metadata"]["name"] != "brittle" || request.resource.plural != "secrets",
            "a request's defect"
        );
        Ok(Warnings::new())
    }
}

async fn go_wrong(folder: &Path) -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter("info,warp_operator=debug,warp_apiserver=debug")
        .with_writer(std::io::stderr)
        .init();
    let mut options = Options::in_directory(folder, &[])?;
    options.admission.push(AdmissionPlugin(Arc::new(Brittle)));
    eprintln!("{options:?} {options:#?}");
    let server = ApiServer::start(options).await?;
    eprintln!("{server:?}");
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let serving = server.clone();
    let served = tokio::spawn(async move { serving.serve(listener).await });
    in_a_request(&server.kubeconfig(address)).await?;
    in_a_pass(&server).await?;
    server.shutdown().await;
    served.abort();
    Ok(())
}

fn secret(name: &str) -> Result<Secret> {
    let secret = json!({"metadata": {"name": name}, "stringData": {"k": SECRET}});
    Ok(serde_json::from_value(secret)?)
}

/// A request panics; the next one is served.
async fn in_a_request(kubeconfig: &str) -> Result<()> {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
    eprintln!("{kubeconfig:?}");
    let options = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.default_retry = false;
    eprintln!("{config:?}");
    let client = Client::try_from(config)?;
    let secrets: Api<Secret> = Api::default_namespaced(client);
    let refused = secrets
        .create(&PostParams::default(), &secret("brittle")?)
        .await;
    let error = refused
        .err()
        .context("a request that panicked was answered")?;
    eprintln!("{error} {error:?}");
    ensure!(secrets.get_opt("brittle").await?.is_none());
    let made = secrets
        .create(&PostParams::default(), &secret("fine")?)
        .await?;
    ensure!(made.name_any() == "fine");
    Ok(())
}

/// A pass panics as it writes a status; other workloads go on, and this one when it is looked at again.
async fn in_a_pass(server: &ApiServer) -> Result<()> {
    let client = server.client("default");
    prepare(&client).await?;
    let broken = Arc::new(AtomicBool::new(false));
    let (brittle, flag) = (server.service(), Arc::clone(&broken));
    let brittle = tower::service_fn(move |request: Request<Body>| {
        let (server, broken) = (brittle.clone(), Arc::clone(&flag));
        async move {
            let status = request.method() == Method::PATCH
                && request
                    .uri()
                    .path()
                    .ends_with("/gpuworkloads/brittle/status");
            assert!(
                !status || broken.swap(true, Ordering::Relaxed),
                "a pass's defect"
            );
            server.oneshot(request).await
        }
    });
    let config = warp_operator::Config {
        namespace: None,
        identity: "brittle".to_owned(),
        home: None,
        leader: None,
        health_addr: None,
        metrics_addr: None,
        settings: Settings::default(),
    };
    eprintln!("{config:?}");
    let stop = CancellationToken::new();
    let operator = warp_operator::run(
        Client::new(brittle, "default"),
        config,
        Clock::system(),
        stop.clone(),
    );
    let operator = tokio::spawn(operator);
    submit(&client, "brittle").await?;
    until("a pass panicked", PATIENCE, || async {
        Ok(broken.load(Ordering::Relaxed).then_some(()))
    })
    .await?;
    submit(&client, "beside").await?;
    until_told(&client, "beside").await?;
    let touched = json!({"spec": {"priority": "high"}});
    workloads(&client)
        .patch("brittle", &PatchParams::default(), &Patch::Merge(touched))
        .await?;
    until_told(&client, "brittle").await?;
    stop.cancel();
    operator.await??;
    Ok(())
}

/// Our kinds and a node.
async fn prepare(client: &Client) -> Result<()> {
    let kinds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for kind in warp_api::crd::all() {
        let kind = serde_json::from_value(kind)?;
        kinds.create(&PostParams::default(), &kind).await?;
    }
    until("the kind is served", PATIENCE, || async {
        let listed = workloads(client).list(&ListParams::default()).await;
        Ok(listed.ok())
    })
    .await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let room = json!({"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"});
    let labels = json!({
        "kubernetes.io/hostname": "machine",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.count": "8",
    });
    let node = json!({"metadata": {"name": "machine", "labels": labels}});
    let node: Node = serde_json::from_value(node)?;
    nodes.create(&PostParams::default(), &node).await?;
    let status = json!({"status": {"capacity": room, "allocatable": room,
        "conditions": [{"type": "Ready", "status": "True"}]}});
    nodes
        .patch_status("machine", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

fn workloads(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("gpu.warp.dev", "v1alpha1", "GPUWorkload");
    let resource = ApiResource::from_gvk_with_plural(&kind, "gpuworkloads");
    Api::default_namespaced_with(client.clone(), &resource)
}

async fn submit(client: &Client, name: &str) -> Result<()> {
    let workload: Value = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "metadata": {"name": name},
        "spec": {"modelName": "m", "gpuCount": 1, "image": "registry.example/a:1",
            "env": [{"name": "PASSWORD", "value": VARIABLE}]},
    });
    let workload = serde_json::from_value(workload)?;
    workloads(client)
        .create(&PostParams::default(), &workload)
        .await?;
    Ok(())
}

/// Waits for a status of the workload.
async fn until_told(client: &Client, name: &str) -> Result<()> {
    until(&format!("{name} has a status"), PATIENCE, || async {
        let workload = workloads(client).get(name).await?;
        Ok(workload.data["status"]["phase"].as_str().map(|_| ()))
    })
    .await
}
