//! What is created for a service: its pod template, Deployment and Service. Plain data from plain data.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use warp_api::inferenceservice::{EngineKind, InferenceServiceSpec};
use warp_api::workload::run_seconds;
use warp_api::{InferenceService, label};
use warp_core::gpu::Vendor;
use warp_core::rollout::Strategy;

use super::arguments;
use super::group::Role;
use super::pools::deployment_name;
use super::vendor::{self, Suitable};
use super::weights::Weights;

/// Written with every rendering; raised when what is rendered changes. A stored rendering is used whatever its
/// version: only a changed spec makes pods of a new one.
pub(super) const RENDERER: u32 = 4;
/// The container that serves.
pub(super) const CONTAINER: &str = "engine";
/// This program, on nodes that `warp` itself runs.
const WARP_IMAGE: &str = "local://warp";
/// An image that stands for the machine itself; what follows is a program of it.
const LOCAL_IMAGE: &str = "local://";
/// The name of the program, then its arguments: vLLM wants the model first.
const SERVE_ON_MACHINE: &str = r#"exec "$0" serve "$@" --host "$VLLM_HOST_IP""#;
/// Callers learn that a pod goes before it stops listening.
const PRE_STOP_SECONDS: i64 = 5;
/// After the drain, before it is killed.
const FAREWELL_SECONDS: i64 = 10;
const PROBE_SECONDS: i64 = 5;
const MODELS: &str = "/models";
const SHARED_MEMORY: &str = "16Gi";
/// Where the leader of a copy that spans nodes meets its workers.
const MASTER_PORT: u16 = 29501;

/// What the pods of a spec are made from, besides the spec.
#[derive(Clone, Debug)]
pub(super) struct Base<'a> {
    /// The pool of the service's `accelerators`, where it has some.
    pub(super) pool: Option<&'a str>,
    pub(super) vendor: Option<Vendor>,
    pub(super) suitable: Option<&'a Suitable>,
    /// The model of the cache the spec names.
    pub(super) weights: Option<&'a Weights>,
    /// Nodes a copy spans.
    pub(super) nodes: u32,
}

pub(super) fn labels(service: &InferenceService) -> BTreeMap<String, String> {
    let pairs = [
        ("app.kubernetes.io/name", service.name_any()),
        ("app.kubernetes.io/component", "inference".to_owned()),
        (label::CONTROLLER, label::CONTROLLER_NAME.to_owned()),
        (label::INFERENCE_SERVICE, service.name_any()),
    ];
    pairs
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

pub(super) fn owned(service: &InferenceService) -> Value {
    json!({
        "name": service.name_any(),
        "namespace": service.namespace(),
        "labels": labels(service),
        "ownerReferences": [service.controller_owner_ref(&())],
    })
}

/// The Service in front of the pods: of copies that span nodes, in front of their leaders.
pub(super) fn service(service: &InferenceService, nodes: u32) -> Value {
    let mut selector = json!({ label::INFERENCE_SERVICE: service.name_any() });
    if nodes > 1 {
        selector[label::SERVING_ROLE] = json!(Role::Leader.as_str());
    }
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned(service),
        "spec": {
            "selector": selector,
            "ports": [{
                "name": "http",
                "port": service.spec.port,
                "targetPort": service.spec.port,
                "protocol": "TCP",
                "appProtocol": "http",
            }],
        },
    })
}

/// The Deployment around a template: of a pool, if the service has several.
pub(super) fn deployment(
    service: &InferenceService,
    pool: Option<&str>,
    rendered: &Value,
    replicas: u32,
    strategy: Strategy,
) -> Value {
    let mut meta = owned(service);
    meta["name"] = json!(deployment_name(&service.name_any(), pool));
    meta["annotations"] = json!({ label::RENDERED: rendered.to_string() });
    let mut selector = json!({ label::INFERENCE_SERVICE: service.name_any() });
    if let Some(pool) = pool {
        meta["labels"][label::ACCELERATOR] = json!(pool);
        selector[label::ACCELERATOR] = json!(pool);
    }
    let start = run_seconds(&service.spec.start_limit).unwrap_or(3600);
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": start.saturating_add(600),
            "selector": { "matchLabels": selector },
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": strategy.max_surge,
                    "maxUnavailable": strategy.max_unavailable,
                },
            },
            "template": rendered["template"],
        },
    })
}

/// The part of a spec that pods are made from, as text: what is the same text is the same pods. How many there are and
/// where they stand in the line is not in them.
fn ground(spec: &InferenceServiceSpec) -> Value {
    let pods = InferenceServiceSpec {
        accelerators: Vec::new(),
        replicas: 0,
        scaling: None,
        priority: None,
        preemptible: None,
        ..spec.clone()
    };
    serde_json::to_value(pods).unwrap_or_default()
}

/// Whether a rendering was made from the spec as it is, whatever the weights.
pub(super) fn is_of(rendered: &Value, spec: &InferenceServiceSpec) -> bool {
    rendered["from"] == ground(spec)
}

/// Whether a rendering was made from the spec as it is and from the same weights.
pub(super) fn is_made_from(rendered: &Value, service: &InferenceService, base: &Base<'_>) -> bool {
    rendered["from"] == ground(&service.spec) && rendered["weights"] == json!(base.weights)
}

/// The pod template of a spec, with what it was made from; or why there is none.
pub(super) fn render(service: &InferenceService, base: &Base<'_>) -> Result<Value, String> {
    let spec = &service.spec;
    let mut rendered = json!({
        "renderer": RENDERER,
        "from": ground(spec),
        "weights": base.weights,
        "template": template(service, base, Role::Leader)?,
    });
    if base.nodes > 1 {
        rendered["nodes"] = json!(base.nodes);
        rendered["workers"] = template(service, base, Role::Worker)?;
    }
    Ok(rendered)
}

/// A rendering as it is stored.
pub(super) fn stored(text: &str) -> Option<Value> {
    let rendered: Value = serde_json::from_str(text).ok()?;
    rendered["template"].is_object().then_some(rendered)
}

/// The rendering a Deployment was made from.
pub(super) fn rendering_of(deployment: &Deployment) -> Option<Value> {
    stored(deployment.annotations().get(label::RENDERED)?)
}

/// Nodes the copies of a rendering span.
pub(super) fn nodes_of(rendered: &Value) -> u32 {
    let nodes = rendered["nodes"].as_u64();
    nodes.map_or(1, |nodes| u32::try_from(nodes).unwrap_or(1))
}

/// The name its GPUs have in a rendering.
pub(super) fn resource_of(rendered: &Value) -> Option<String> {
    let limits = &rendered["template"]["spec"]["containers"][0]["resources"]["limits"];
    let mut names = limits.as_object()?.keys();
    names
        .find(|name| Vendor::of_resource(name).is_some())
        .cloned()
}

fn template(service: &InferenceService, base: &Base<'_>, role: Role) -> Result<Value, String> {
    let spec = &service.spec;
    let mut container = json!({
        "name": CONTAINER,
        "image": image(spec, base)?,
        "args": args(spec, base, role)?,
        "env": environment(spec, base, role),
        "resources": resources(spec, base),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    // A worker listens to its leader only: whether it is well shows in the leader.
    if role == Role::Leader {
        container["ports"] =
            json!([{ "name": "http", "containerPort": spec.port, "protocol": "TCP" }]);
        container["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": PRE_STOP_SECONDS } } });
        probes(spec, &mut container);
    }
    if !spec.engine.command.is_empty() {
        container["command"] = json!(spec.engine.command);
    } else if spec.engine.kind == EngineKind::Sglang {
        // Its image begins no server by itself.
        container["command"] = json!(["python3", "-m", "sglang.launch_server"]);
    }
    let drain = run_seconds(&spec.drain).unwrap_or(45);
    let mut pod = json!({
        "containers": [],
        "terminationGracePeriodSeconds": PRE_STOP_SECONDS + drain + FAREWELL_SECONDS,
        "enableServiceLinks": false,
    });
    volumes(spec, base, &mut pod, &mut container);
    security(base, &mut pod);
    placement(base, &mut pod);
    // Only there are the files: the line chooses among the nodes that have them.
    if let Some(held) = base.weights.and_then(|weights| weights.label.as_ref()) {
        pod["nodeSelector"] = json!({ held: label::HELD });
    }
    if let Some(class) = &spec.priority_class_name {
        pod["priorityClassName"] = json!(class);
    }
    pod["containers"] = json!([container]);
    let mut labels = labels(service);
    labels.remove(label::CONTROLLER);
    if let Some(pool) = base.pool {
        labels.insert(label::ACCELERATOR.to_owned(), pool.to_owned());
    }
    if base.nodes > 1 {
        labels.insert(label::SERVING_ROLE.to_owned(), role.as_str().to_owned());
        labels.insert(label::SERVING_NODES.to_owned(), base.nodes.to_string());
    }
    Ok(json!({
        "metadata": {
            "labels": labels,
            "annotations": annotations(spec),
        },
        "spec": pod,
    }))
}

fn annotations(spec: &InferenceServiceSpec) -> Value {
    let mut annotations = json!({ label::MODEL: spec.model.word() });
    if let Some(gpu) = &spec.gpu {
        annotations[label::GPU] = json!(serde_json::to_string(gpu).unwrap_or_default());
    }
    if spec.engine.kind == EngineKind::Vllm {
        // What vLLM's images begin with, for nodes that run programs of their machine instead: the one the image names,
        // or the one found there. Copies share the machine's network, so each listens at its own address only.
        let named = spec.engine.image.as_deref().unwrap_or_default();
        let named = named.strip_prefix(LOCAL_IMAGE).unwrap_or_default();
        let program = if named.is_empty() { "vllm" } else { named };
        let command = json!(["sh", "-c", SERVE_ON_MACHINE, program]);
        annotations[format!("{}.{CONTAINER}", label::PROCESS_COMMAND)] = json!(command.to_string());
    }
    annotations
}

fn image(spec: &InferenceServiceSpec, base: &Base<'_>) -> Result<String, String> {
    if let Some(image) = &spec.engine.image {
        return Ok(image.clone());
    }
    match spec.engine.kind {
        EngineKind::Simulated => Ok(WARP_IMAGE.to_owned()),
        EngineKind::Custom => Err("engine.image is missing: a custom engine needs one".to_owned()),
        EngineKind::Sglang => {
            let version = spec.engine.version.as_deref();
            let version = version.unwrap_or(vendor::SGLANG_VERSION);
            vendor::sglang_image(base.vendor, version).ok_or_else(|| {
                "SGLang has one image for all GPUs of NVIDIA only: name one for these in engine.image"
                    .to_owned()
            })
        }
        EngineKind::Vllm => {
            let version = spec
                .engine
                .version
                .as_deref()
                .unwrap_or(vendor::VLLM_VERSION);
            vendor::image(base.vendor, version).ok_or_else(|| {
                "vLLM has no image of its own for Gaudi: name one of the vllm-gaudi project in engine.image"
                    .to_owned()
            })
        }
    }
}

fn args(spec: &InferenceServiceSpec, base: &Base<'_>, role: Role) -> Result<Vec<String>, String> {
    let engine = &spec.engine;
    let mut words = match engine.kind {
        EngineKind::Custom => Vec::new(),
        EngineKind::Simulated => simulated_args(spec),
        EngineKind::Vllm => vllm_args(spec, base),
        EngineKind::Sglang => sglang_args(spec, base),
    };
    if base.nodes > 1 {
        words.extend(flag("nnodes", base.nodes));
        words.extend(flag("node-rank", "$(NODE_RANK)"));
        words.extend(flag("master-addr", "$(MASTER_ADDR)"));
        words.extend(flag("master-port", MASTER_PORT));
        if role == Role::Worker {
            words.push("--headless".to_owned());
        }
    }
    words.extend(arguments::words(
        engine.kind,
        &engine.args,
        &engine.advanced,
    )?);
    words.extend(engine.advanced.iter().cloned());
    Ok(words)
}

fn flag(name: &str, value: impl std::fmt::Display) -> [String; 2] {
    [format!("--{name}"), value.to_string()]
}

fn simulated_args(spec: &InferenceServiceSpec) -> Vec<String> {
    let mut words = vec!["engine".to_owned()];
    let model = match &spec.model.cache {
        Some(_) => spec.model.served_name(),
        None => spec.model.plain_source(),
    };
    words.extend(flag("model", model));
    words.extend(flag("served-model-name", spec.model.served_name()));
    words.extend(flag("host", "$(POD_IP)"));
    words.extend(flag("port", spec.port));
    words.extend(flag(
        "shutdown-timeout",
        run_seconds(&spec.drain).unwrap_or(45),
    ));
    for adapter in &spec.model.adapters {
        words.extend(flag(
            "lora-modules",
            format!("{}={}", adapter.name, adapter.source),
        ));
    }
    words
}

/// What an engine is told to load.
fn model(spec: &InferenceServiceSpec, base: &Base<'_>) -> String {
    match (base.weights, spec.model.claim()) {
        (Some(weights), _) => weights.path.clone(),
        (None, Some((_, ""))) => MODELS.to_owned(),
        (None, Some((_, folder))) => format!("{MODELS}/{folder}"),
        (None, None) => spec.model.plain_source().to_owned(),
    }
}

/// How the model is split, as both engines call it.
fn split(spec: &InferenceServiceSpec) -> Vec<String> {
    let split = spec.split();
    let sizes = [
        ("tensor-parallel-size", split.tensor),
        ("pipeline-parallel-size", split.pipeline),
        ("data-parallel-size", split.data),
    ];
    let several = sizes.into_iter().filter(|(_, count)| *count > 1);
    several
        .flat_map(|(name, count)| flag(name, count))
        .collect()
}

/// Adapters, each as `name=source`.
fn adapters(spec: &InferenceServiceSpec) -> impl Iterator<Item = String> {
    spec.model.adapters.iter().map(|adapter| {
        let source = adapter.source.strip_prefix("hf://");
        let source = source.unwrap_or(&adapter.source);
        format!("{}={source}", adapter.name)
    })
}

/// SGLang ends after the requests under way when it is asked to; nothing says how long that may take.
fn sglang_args(spec: &InferenceServiceSpec, base: &Base<'_>) -> Vec<String> {
    let mut words = Vec::from(flag("model-path", model(spec, base)));
    words.extend(flag("served-model-name", spec.model.served_name()));
    words.extend(flag("host", "$(POD_IP)"));
    words.extend(flag("port", spec.port));
    words.push("--enable-metrics".to_owned());
    if let Some(revision) = &spec.model.revision {
        words.extend(flag("revision", revision));
    }
    words.extend(split(spec));
    if !spec.model.adapters.is_empty() {
        words.push("--enable-lora".to_owned());
        words.push("--lora-paths".to_owned());
        words.extend(adapters(spec));
    }
    words
}

fn vllm_args(spec: &InferenceServiceSpec, base: &Base<'_>) -> Vec<String> {
    let mut words = vec![model(spec, base)];
    words.extend(flag("served-model-name", spec.model.served_name()));
    words.extend(flag("port", spec.port));
    if let Some(revision) = &spec.model.revision {
        words.extend(flag("revision", revision));
    }
    words.extend(split(spec));
    words.extend(flag(
        "shutdown-timeout",
        run_seconds(&spec.drain).unwrap_or(45),
    ));
    if !spec.model.adapters.is_empty() {
        words.push("--enable-lora".to_owned());
        words.push("--lora-modules".to_owned());
        words.extend(adapters(spec));
    }
    words
}

/// What the spec gives wins; the rest is what the vendor's GPUs and the engine need.
fn environment(spec: &InferenceServiceSpec, base: &Base<'_>, role: Role) -> Vec<Value> {
    let address = json!({ "fieldRef": { "apiVersion": "v1", "fieldPath": "status.podIP" } });
    let mut env: Vec<Value> = Vec::new();
    if base.nodes > 1 {
        let path = "metadata.labels['apps.kubernetes.io/pod-index']";
        env.push(match role {
            Role::Leader => json!({ "name": "NODE_RANK", "value": "0" }),
            Role::Worker => json!({
                "name": "NODE_RANK",
                "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": path } },
            }),
        });
    }
    match spec.engine.kind {
        EngineKind::Vllm => {
            env.push(json!({ "name": "VLLM_HOST_IP", "valueFrom": address }));
            if spec.model.claim().is_some() || base.weights.is_some() {
                env.push(json!({ "name": "HF_HUB_OFFLINE", "value": "1" }));
            }
            let vendors = vendor::environment(base.vendor).iter();
            env.extend(vendors.map(|(name, value)| json!({ "name": name, "value": value })));
        }
        EngineKind::Simulated | EngineKind::Custom | EngineKind::Sglang => {
            env.push(json!({ "name": "POD_IP", "valueFrom": address }));
            if spec.engine.kind == EngineKind::Sglang && spec.model.claim().is_some() {
                env.push(json!({ "name": "HF_HUB_OFFLINE", "value": "1" }));
            }
            if let Some(weights) = base.weights {
                env.push(json!({ "name": "MODEL_PATH", "value": weights.path }));
                env.push(json!({ "name": "HF_HUB_OFFLINE", "value": "1" }));
            }
        }
    }
    let given = |name: &Value| spec.engine.env.iter().any(|one| *name == one.name);
    env.retain(|one| !given(&one["name"]));
    let own = spec.engine.env.iter();
    env.extend(own.map(|one| serde_json::to_value(one).unwrap_or_default()));
    env
}

fn resources(spec: &InferenceServiceSpec, base: &Base<'_>) -> Value {
    let given = spec.resources.clone().unwrap_or_default();
    let mut requests = json!(given.requests);
    let mut limits = json!(given.limits);
    if let Some(suitable) = base.suitable {
        let nodes = i32::try_from(base.nodes.max(1)).unwrap_or(1);
        let count = (spec.gpus_per_replica() / nodes).to_string();
        requests[&suitable.resource] = json!(count);
        limits[&suitable.resource] = json!(count);
    }
    json!({ "requests": requests, "limits": limits })
}

/// Generous until it answers, strict after: loading may take an hour, a dead engine must not.
fn probes(spec: &InferenceServiceSpec, container: &mut Value) {
    let get = json!({ "path": spec.engine.health_path, "port": spec.port, "scheme": "HTTP" });
    let probe = |period: i64, failures: i64, timeout: i64| {
        json!({
            "httpGet": get,
            "periodSeconds": period,
            "failureThreshold": failures,
            "timeoutSeconds": timeout,
        })
    };
    let start = run_seconds(&spec.start_limit).unwrap_or(3600);
    // A simulated engine answers at once: a slow look would be most of its start.
    let period = match spec.engine.kind {
        EngineKind::Simulated => 1,
        EngineKind::Vllm | EngineKind::Sglang | EngineKind::Custom => PROBE_SECONDS,
    };
    container["startupProbe"] = probe(period, (start / period).max(1), 5);
    container["readinessProbe"] = probe(PROBE_SECONDS, 3, 5);
    container["livenessProbe"] = probe(2 * PROBE_SECONDS, 6, 10);
}

fn volumes(spec: &InferenceServiceSpec, base: &Base<'_>, pod: &mut Value, container: &mut Value) {
    let mut volumes = Vec::new();
    let mut mounts = Vec::new();
    // Tensors go between the processes of one engine through shared memory.
    if base.vendor.is_some() && spec.engine.kind != EngineKind::Simulated {
        let shm = json!({ "medium": "Memory", "sizeLimit": SHARED_MEMORY });
        volumes.push(json!({ "name": "shm", "emptyDir": shm }));
        mounts.push(json!({ "name": "shm", "mountPath": "/dev/shm" }));
    }
    let given = spec.model.claim().map(|(claim, _)| claim);
    let given = given.filter(|_| spec.engine.kind != EngineKind::Simulated);
    // A cache's files are mounted for every engine: that is how the cache knows its users.
    if let Some(folder) = base.weights.and_then(|weights| weights.folder.as_ref()) {
        let folder = json!({ "path": folder, "type": "Directory" });
        volumes.push(json!({ "name": "models", "hostPath": folder }));
        mounts.push(json!({ "name": "models", "mountPath": MODELS, "readOnly": true }));
    } else if let Some(claim) = base.weights.map(|weights| weights.claim.as_str()).or(given) {
        let claim = json!({ "claimName": claim, "readOnly": true });
        volumes.push(json!({ "name": "models", "persistentVolumeClaim": claim }));
        mounts.push(json!({ "name": "models", "mountPath": MODELS, "readOnly": true }));
    }
    if !volumes.is_empty() {
        pod["volumes"] = json!(volumes);
        container["volumeMounts"] = json!(mounts);
    }
}

fn security(base: &Base<'_>, pod: &mut Value) {
    let mut security = json!({});
    if vendor::needs_unconfined(base.vendor) {
        security["seccompProfile"] = json!({ "type": "Unconfined" });
    }
    let groups = vendor::groups(base.vendor);
    if !groups.is_empty() {
        security["supplementalGroups"] = json!(groups);
    }
    if security != json!({}) {
        pod["securityContext"] = security;
    }
}

fn placement(base: &Base<'_>, pod: &mut Value) {
    let Some(vendor) = base.vendor else {
        return;
    };
    let taints = vendor.taints().iter();
    let tolerations: Vec<Value> = taints
        .map(|key| json!({ "key": key, "operator": "Exists", "effect": "NoSchedule" }))
        .collect();
    pod["tolerations"] = json!(tolerations);
    // It waits until the one ledger of GPUs has a node for it. Which GPUs will do is in its annotations.
    pod["schedulingGates"] = json!([{ "name": label::SERVING_GATE }]);
}
