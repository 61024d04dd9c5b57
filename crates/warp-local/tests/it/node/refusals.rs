//! What a kubelet does not start, no runtime starts: the same pods on a simulated, a process and a Docker
//! node wait with the same reason and message, and start once what they miss is there.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ConfigMap, Event, PersistentVolume, PersistentVolumeClaim, Pod, Secret,
};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use warp_apiserver::{ApiServer, Options};
use warp_local::controllers;
use warp_local::node::docker::{self, Docker, Search};
use warp_local::node::process::{Cgroups, Process, machine};
use warp_local::node::runtime::{Report, Runtime};
use warp_local::node::{Host, Simulated, host};
use warp_testkit::{PATIENCE, until, wait_for};

use super::Leftovers;
use super::docker::fake::Engine;

const RUNTIMES: [&str; 3] = ["simulated", "process", "docker"];

/// How a pod that is not started shows.
enum Shown {
    /// The container waits; its message holds the text.
    Waits(&'static str, &'static str),
    /// It waits to be created, and an event of the reason FailedMount holds the text.
    Unmounted(&'static str),
    /// The pod has failed with the reason.
    Failed(&'static str),
    /// It is started at once; an event of this reason, if any, holds the text.
    Runs(Option<(&'static str, &'static str)>),
}

use Shown::{Failed, Runs, Unmounted, Waits};

struct Case {
    name: &'static str,
    /// Merged into the pod's spec.
    spec: Value,
    /// Merged into its container.
    container: Value,
    shown: Shown,
    /// Whether it starts once everything missing is there.
    heals: bool,
}

fn case(name: &'static str, spec: Value, container: Value, shown: Shown) -> Case {
    let heals = matches!(shown, Waits(..) | Unmounted(..));
    Case {
        name,
        spec,
        container,
        shown,
        heals,
    }
}

fn never(case: Case) -> Case {
    Case {
        heals: false,
        ..case
    }
}

fn volume(source: &Value) -> Value {
    let mut volume = json!({"name": "v"});
    for (key, value) in source.as_object().into_iter().flatten() {
        volume[key] = value.clone();
    }
    json!({"volumes": [volume]})
}

fn variable(source: &Value) -> Value {
    json!({"env": [{"name": "X", "valueFrom": source}]})
}

fn cases() -> Vec<Case> {
    const CONFIG: &str = "CreateContainerConfigError";
    let (none, late, key) = (json!({}), "late", [json!({"key": "late", "path": "x"})]);
    vec![
        case(
            "map",
            volume(&json!({"configMap": {"name": late}})),
            none.clone(),
            Unmounted("MountVolume.SetUp failed for volume \"v\" : configmap \"late\" not found"),
        ),
        case(
            "map-key",
            volume(&json!({"configMap": {"name": "there", "items": key}})),
            none.clone(),
            Unmounted(
                "MountVolume.SetUp failed for volume \"v\" : references non-existent config key: late",
            ),
        ),
        case(
            "map-maybe",
            volume(&json!({"configMap": {"name": "never", "optional": true}})),
            none.clone(),
            Runs(None),
        ),
        case(
            "key-maybe",
            volume(
                &json!({"configMap": {"name": "there", "optional": true, "items": [{"key": "never", "path": "x"}]}}),
            ),
            none.clone(),
            Runs(None),
        ),
        case(
            "secret",
            volume(&json!({"secret": {"secretName": late}})),
            none.clone(),
            Unmounted("MountVolume.SetUp failed for volume \"v\" : secret \"late\" not found"),
        ),
        case(
            "secret-key",
            volume(&json!({"secret": {"secretName": "there", "items": key}})),
            none.clone(),
            Unmounted(
                "MountVolume.SetUp failed for volume \"v\" : references non-existent secret key: late",
            ),
        ),
        case(
            "projected",
            volume(
                &json!({"projected": {"sources": [{"secret": {"name": "there"}}, {"configMap": {"name": late}}]}}),
            ),
            none.clone(),
            Unmounted("configmap \"late\" not found"),
        ),
        case(
            "claim",
            volume(&json!({"persistentVolumeClaim": {"claimName": late}})),
            none.clone(),
            Unmounted(
                "failed to process volumes=[v]: error processing PVC default/late: failed to fetch PVC from API server: persistentvolumeclaims \"late\" not found",
            ),
        ),
        never(case(
            "unbound",
            volume(&json!({"persistentVolumeClaim": {"claimName": "unbound"}})),
            none.clone(),
            Unmounted("error processing PVC default/unbound: PVC is not bound"),
        )),
        case(
            "env-map",
            none.clone(),
            variable(&json!({"configMapKeyRef": {"name": late, "key": "late"}})),
            Waits(CONFIG, "configmap \"late\" not found"),
        ),
        case(
            "env-map-key",
            none.clone(),
            variable(&json!({"configMapKeyRef": {"name": "there", "key": "late"}})),
            Waits(CONFIG, "couldn't find key late in ConfigMap default/there"),
        ),
        case(
            "env-secret",
            none.clone(),
            variable(&json!({"secretKeyRef": {"name": late, "key": "late"}})),
            Waits(CONFIG, "secret \"late\" not found"),
        ),
        case(
            "env-secret-key",
            none.clone(),
            variable(&json!({"secretKeyRef": {"name": "there", "key": "late"}})),
            Waits(CONFIG, "couldn't find key late in Secret default/there"),
        ),
        case(
            "env-maybe",
            none.clone(),
            variable(&json!({"secretKeyRef": {"name": "never", "key": "k", "optional": true}})),
            Runs(None),
        ),
        case(
            "env-from-map",
            none.clone(),
            json!({"envFrom": [{"configMapRef": {"name": late}}]}),
            Waits(CONFIG, "configmap \"late\" not found"),
        ),
        case(
            "env-from-secret",
            none.clone(),
            json!({"envFrom": [{"secretRef": {"name": late}}]}),
            Waits(CONFIG, "secret \"late\" not found"),
        ),
        case(
            "from-maybe",
            none.clone(),
            json!({"envFrom": [{"secretRef": {"name": "never", "optional": true}}]}),
            Runs(None),
        ),
        never(case(
            "image",
            none.clone(),
            json!({"image": "Not/An Image"}),
            Waits(
                "InvalidImageName",
                "couldn't parse image name \"Not/An Image\": invalid reference format",
            ),
        )),
        never(case(
            "root",
            json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 0}}),
            none.clone(),
            Waits(
                CONFIG,
                "container's runAsUser breaks non-root policy (pod: \"root-",
            ),
        )),
        never(case(
            "way-out",
            volume(&json!({"emptyDir": {}})),
            json!({"env": [{"name": "X", "value": "../x"}], "volumeMounts": [{"name": "v", "mountPath": "/v", "subPathExpr": "$(X)"}]}),
            Waits(
                CONFIG,
                "unable to provision SubPath `../x`: must not contain '..'",
            ),
        )),
        never(case(
            "no-value",
            volume(&json!({"emptyDir": {}})),
            json!({"volumeMounts": [{"name": "v", "mountPath": "/v", "subPathExpr": "$(NOBODY)"}]}),
            Waits(CONFIG, "missing value for \"NOBODY\""),
        )),
        case(
            "kernel",
            json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
            none.clone(),
            Failed("SysctlForbidden"),
        ),
        case(
            "pull-secret",
            json!({"imagePullSecrets": [{"name": "never"}]}),
            none.clone(),
            Runs(Some((
                "FailedToRetrieveImagePullSecret",
                "Unable to retrieve some image pull secrets (never)",
            ))),
        ),
        case("host", json!({"hostNetwork": true}), none, Runs(None)),
    ]
}

fn pod(case: &Case, runtime: &str) -> Pod {
    let image = if runtime == "process" {
        "local://"
    } else {
        "example/app:1"
    };
    let mut container = json!({"name": "c", "image": image, "command": ["sleep", "600"]});
    merge(&mut container, &case.container);
    let mut spec =
        json!({"nodeName": runtime, "terminationGracePeriodSeconds": 0, "containers": [container]});
    merge(&mut spec, &case.spec);
    let name = format!("{}-{runtime}", case.name);
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
}

fn merge(into: &mut Value, more: &Value) {
    for (key, value) in more.as_object().into_iter().flatten() {
        into[key] = value.clone();
    }
}

async fn make<K>(client: &kube::Client, object: Value)
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), "default");
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

fn node(
    client: &kube::Client,
    runtime: Arc<dyn Runtime>,
    reports: Option<tokio::sync::mpsc::UnboundedReceiver<Report>>,
) {
    let name = runtime.name();
    let host = Host {
        client: client.clone(),
        clock: controllers::Clock::system(),
        options: host::Options::for_fleet(1),
        shapes: vec![machine::shape(name, name, "127.0.0.1", &[])],
        runtime,
        reports,
    };
    tokio::spawn(host.run(CancellationToken::new()));
}

async fn shows(client: &kube::Client, case: &Case, runtime: &str) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let name = format!("{}-{runtime}", case.name);
    let told = async |reason: &str, text: &str| {
        let fields = format!("involvedObject.name={name},reason={reason}");
        until(&format!("{name} to be told {text}"), PATIENCE, async || {
            let found = events.list(&ListParams::default().fields(&fields)).await?;
            let mut texts = found.items.into_iter().filter_map(|event| event.message);
            Ok(texts.any(|message| message.contains(text)).then_some(()))
        })
        .await
        .unwrap();
    };
    let waits = |reason: &'static str, text: &'static str| {
        move |pod: Option<&Pod>| {
            let status = pod
                .and_then(|pod| serde_json::to_value(pod.status.as_ref()?).ok())
                .unwrap_or_default();
            let waiting = &status["containerStatuses"][0]["state"]["waiting"];
            status["phase"] == "Pending"
                && waiting["reason"] == reason
                && waiting["message"]
                    .as_str()
                    .unwrap_or_default()
                    .contains(text)
        }
    };
    match case.shown {
        Waits(reason, text) => {
            wait_for(&pods, &name, text, PATIENCE, waits(reason, text))
                .await
                .unwrap();
        }
        Unmounted(text) => {
            told("FailedMount", text).await;
            wait_for(
                &pods,
                &name,
                "uncreated",
                PATIENCE,
                waits("ContainerCreating", ""),
            )
            .await
            .unwrap();
        }
        Failed(reason) => {
            wait_for(&pods, &name, reason, PATIENCE, |pod| {
                let status = pod.and_then(|pod| pod.status.as_ref());
                status.is_some_and(|status| {
                    status.phase.as_deref() == Some("Failed")
                        && status.reason.as_deref() == Some(reason)
                })
            })
            .await
            .unwrap();
        }
        Runs(event) => {
            runs(&pods, &name).await;
            if let Some((reason, text)) = event {
                told(reason, text).await;
            }
        }
    }
}

/// Waits until the pod is ready; no condition that holds keeps the reason it failed for.
async fn runs(pods: &Api<Pod>, name: &str) {
    let ready = wait_for(pods, name, "ready", PATIENCE, |pod| {
        let status = pod
            .and_then(|pod| serde_json::to_value(pod.status.as_ref()?).ok())
            .unwrap_or_default();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        conditions
            .iter()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    })
    .await
    .unwrap()
    .unwrap();
    let status = ready.status.unwrap();
    for condition in status.conditions.iter().flatten() {
        assert_eq!(condition.status, "True", "{name}: {condition:?}");
        assert_eq!(condition.reason, None, "{name}: {condition:?}");
        assert_eq!(condition.message, None, "{name}: {condition:?}");
    }
    if name.starts_with("host-") {
        assert_eq!(status.pod_ip, status.host_ip, "{name}");
        assert!(status.pod_ip.is_some(), "{name}");
    }
}

/// What the pods were missing.
async fn supply(client: &kube::Client, folder: &std::path::Path) {
    let late = json!({"metadata": {"name": "late"}, "data": {"late": "eA=="}});
    make::<ConfigMap>(client, late.clone()).await;
    make::<Secret>(client, late).await;
    let change = kube::api::Patch::Merge(json!({"data": {"late": "eA=="}}));
    let how = kube::api::PatchParams::default();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    maps.patch("there", &how, &change).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    secrets.patch("there", &how, &change).await.unwrap();
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let size = json!({"storage": "1Gi"});
    let volume = json!({"metadata": {"name": "late"}, "spec": {"capacity": size, "accessModes": ["ReadWriteMany"],
        "storageClassName": "by-hand", "hostPath": {"path": folder.join("claimed")}}});
    let volume = serde_json::from_value(volume).unwrap();
    volumes
        .create(&PostParams::default(), &volume)
        .await
        .unwrap();
    make::<PersistentVolumeClaim>(client, claim("late", "by-hand")).await;
}

fn claim(name: &str, class: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": class,
        "resources": {"requests": {"storage": "1Gi"}}}})
}

#[tokio::test]
async fn every_runtime_starts_only_what_a_kubelet_would() {
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
    let there = json!({"metadata": {"name": "there"}, "data": {"k": "eA=="}});
    make::<ConfigMap>(&client, there.clone()).await;
    make::<Secret>(&client, there).await;
    make::<PersistentVolumeClaim>(&client, claim("unbound", "nobody")).await;
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(client.clone(), "default");
    wait_for(&accounts, "default", "made", PATIENCE, |account| {
        account.is_some()
    })
    .await
    .unwrap();

    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::new();
    let socket = folder.path().join("docker.sock");
    let _listening = engine.listen(&socket);
    let search = Search {
        given: Some(socket),
        ..Search::default()
    };
    let api = docker::find(&search).await.unwrap();
    let (on_docker, reports) = Docker::new(client.clone(), api, &folder.path().join("docker"));
    node(&client, Arc::new(on_docker), Some(reports));
    let program = env!("CARGO_BIN_EXE_pod-supervisor").into();
    let root = folder.path().join("process");
    let _leftovers = Leftovers(root.clone());
    let (process, reports) =
        Process::new(client.clone(), &root, program, "127.0.0.1", Cgroups::find()).unwrap();
    node(&client, Arc::new(process), Some(reports));
    node(&client, Arc::new(Simulated::default()), None);

    let cases = cases();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    for case in &cases {
        for runtime in RUNTIMES {
            let pod = pod(case, runtime);
            pods.create(&PostParams::default(), &pod).await.unwrap();
        }
    }
    for case in &cases {
        for runtime in RUNTIMES {
            shows(&client, case, runtime).await;
        }
    }
    // What only some of them can tell: the image's own user, and images nobody may pull.
    let must = never(case(
        "image-user",
        json!({"securityContext": {"runAsNonRoot": true}}),
        json!({}),
        Waits(
            "CreateContainerConfigError",
            "container has runAsNonRoot and image will run as root (pod: \"image-user-docker_default(",
        ),
    ));
    let absent = never(case(
        "never-pulled",
        json!({}),
        json!({"imagePullPolicy": "Never", "image": "example/absent:1"}),
        Waits(
            "ErrImageNeverPull",
            "Container image \"example/absent:1\" is not present with pull policy of Never",
        ),
    ));
    for (case, runtime) in [
        (&must, "docker"),
        (&absent, "docker"),
        (&absent, "simulated"),
    ] {
        pods.create(&PostParams::default(), &pod(case, runtime))
            .await
            .unwrap();
        shows(&client, case, runtime).await;
    }
    supply(&client, folder.path()).await;
    for case in cases.iter().filter(|case| case.heals) {
        for runtime in RUNTIMES {
            runs(&pods, &format!("{}-{runtime}", case.name)).await;
        }
    }
}
