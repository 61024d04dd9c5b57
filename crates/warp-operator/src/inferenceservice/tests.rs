//! What a service has and says, for what is seen of it.
#![allow(
    clippy::needless_pass_by_value,
    reason = "`json!` at the call reads best by value"
)]

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use warp_api::inferenceservice::ServicePhase;
use warp_api::{InferenceService, InferenceServiceStatus, label};
use warp_core::gpu::Catalogue;
use warp_core::scale::Load;
use warp_runtime::plan::{Action, Plan};

use super::observe::{Seen, nodes};
use super::plan::plan;
use super::scrape::{self, Heard};

mod autoscaler;
mod cache;
mod commands;
mod engines;
mod figures;
mod groups;
mod kept;
mod placement;
mod pools;

fn now() -> Timestamp {
    "2026-11-16T12:00:00Z".parse().expect("a time")
}

fn service(spec: Value) -> InferenceService {
    let mut whole = json!({ "model": { "source": "hf://org/tiny" } });
    for (name, value) in spec.as_object().expect("fields") {
        whole[name] = value.clone();
    }
    serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "InferenceService",
        "metadata": {
            "name": "chat", "namespace": "ns", "uid": "uid-chat", "generation": 4, "resourceVersion": "7",
        },
        "spec": whole,
    }))
    .expect("a service")
}

fn node(name: &str, resource: &str, count: u32, labels: &Value) -> Arc<Node> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": { "name": name, "labels": labels },
            "status": {
                "allocatable": { resource: count.to_string() },
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        }))
        .expect("a node"),
    )
}

fn holder(node: &str, resource: &str, count: u32) -> Arc<Pod> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": { "name": "other", "namespace": "x" },
            "spec": {
                "nodeName": node,
                "containers": [{
                    "name": "c",
                    "resources": { "limits": { resource: count.to_string() }, "requests": { resource: count.to_string() } },
                }],
            },
        }))
        .expect("a pod"),
    )
}

fn h100(name: &str, count: u32) -> Arc<Node> {
    let labels = json!({ "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3" });
    node(name, "nvidia.com/gpu", count, &labels)
}

fn fleet(all: &[Arc<Node>], pods: &[Arc<Pod>]) -> Seen {
    Seen {
        nodes: nodes(&Catalogue::default(), all, pods),
        ..Seen::default()
    }
}

fn applied(plan: &Plan, kind: &str) -> Option<Value> {
    plan.actions.iter().find_map(|action| match action {
        Action::Apply { object, .. } if object["kind"] == kind => Some(object.clone()),
        _ => None,
    })
}

fn written(plan: &Plan) -> InferenceServiceStatus {
    let status = plan.actions.iter().find_map(|action| match action {
        Action::Status(status) => Some(status.after.clone()),
        _ => None,
    });
    serde_json::from_value(status.expect("a status is written")).expect("a service's status")
}

fn container(plan: &Plan) -> Value {
    let deployment = applied(plan, "Deployment").expect("a Deployment");
    deployment["spec"]["template"]["spec"]["containers"][0].clone()
}

fn words(plan: &Plan) -> String {
    let args = container(plan)["args"].clone();
    let args = args.as_array().expect("arguments").iter();
    args.map(|word| word.as_str().expect("a word"))
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn vllm_gets_its_vendors_image_resource_and_arguments() {
    let it = service(json!({
        "gpuCount": 2,
        "model": { "source": "hf://org/tiny", "revision": "abc" },
        "engine": { "args": { "max_model_len": "32k" }, "advanced": ["--new-thing", "1"] },
    }));
    let made = plan(&it, &fleet(&[h100("a", 8)], &[]), now());
    assert_eq!(
        words(&made),
        "org/tiny --served-model-name org/tiny --port 8000 --revision abc --tensor-parallel-size 2 \
         --shutdown-timeout 45 --max-model-len 32k --new-thing 1"
    );
    let container = container(&made);
    assert_eq!(container["image"], "vllm/vllm-openai:v0.32.0");
    assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], "2");
    assert_eq!(container["startupProbe"]["failureThreshold"], 720);
    let pod = &applied(&made, "Deployment").expect("one")["spec"]["template"]["spec"];
    assert_eq!(pod["terminationGracePeriodSeconds"], 60);
    assert_eq!(pod["volumes"][0]["emptyDir"]["medium"], "Memory");
    assert_eq!(pod["affinity"], Value::Null, "any NVIDIA GPU will do");
    let service = applied(&made, "Service").expect("a Service");
    assert_eq!(service["spec"]["ports"][0]["port"], 8000);
    assert_eq!(service["metadata"]["ownerReferences"][0]["uid"], "uid-chat");
}

#[test]
fn on_nodes_without_images_vllm_is_a_program_of_the_machine_at_the_pods_address() {
    let command = |image: Value| {
        let it = service(json!({ "gpuCount": 0, "engine": { "image": image } }));
        let made = plan(&it, &Seen::default(), now());
        let template = applied(&made, "Deployment").expect("one")["spec"]["template"].clone();
        let told = &template["metadata"]["annotations"]["process.gpu.warp.dev/command.engine"];
        let words = serde_json::from_str::<Vec<String>>(told.as_str().expect("a command"));
        words.expect("a list of words")
    };
    let script = r#"exec "$0" serve "$@" --host "$VLLM_HOST_IP""#;
    assert_eq!(command(Value::Null), ["sh", "-c", script, "vllm"]);
    let own = command(json!("local:///opt/vllm/bin/vllm"));
    assert_eq!(own, ["sh", "-c", script, "/opt/vllm/bin/vllm"]);
}

#[test]
fn amd_gets_rocm_and_only_the_products_asked_for() {
    let amd = |name: &str, product: &str| {
        let labels = json!({ "amd.com/gpu.product-name": product });
        node(name, "amd.com/gpu", 8, &labels)
    };
    let nodes = [
        amd("a", "AMD_Instinct_MI300X_OAM"),
        amd("b", "AMD_Instinct_MI210"),
    ];
    let it = service(json!({ "gpu": { "models": ["MI300X"] } }));
    let made = plan(&it, &fleet(&nodes, &[]), now());
    assert_eq!(container(&made)["image"], "vllm/vllm-openai-rocm:v0.32.0");
    let pod = &applied(&made, "Deployment").expect("one")["spec"]["template"]["spec"];
    assert_eq!(
        pod["securityContext"]["seccompProfile"]["type"],
        "Unconfined"
    );
    assert_eq!(pod["affinity"], Value::Null, "labels of nodes may change");
    let said = &applied(&made, "Deployment").expect("one")["spec"]["template"]["metadata"];
    assert_eq!(
        said["annotations"][label::GPU],
        r#"{"models":["MI300X"]}"#,
        "which the scheduler reads"
    );
    assert_eq!(container(&made)["resources"]["limits"]["amd.com/gpu"], "1");
}

#[test]
fn gpus_among_the_resources_are_refused_with_the_field_that_is_meant() {
    let seen = fleet(&[h100("a", 8)], &[]);
    for (place, name) in [
        ("limits", "nvidia.com/gpu"),
        ("requests", "amd.com/gpu"),
        ("limits", "gpu.intel.com/i915"),
        ("limits", "nvidia.com/mig-1g.10gb"),
    ] {
        let it = service(json!({ "resources": { place: { "cpu": "4", name: "2" } } }));
        let made = plan(&it, &seen, now());
        assert!(applied(&made, "Deployment").is_none());
        let status = written(&made);
        assert_eq!(status.conditions[0].reason, "InvalidSpec");
        let message = status.message.expect("a message");
        assert!(
            message.contains(name) && message.contains("spec.gpuCount"),
            "{message}"
        );
    }
    let others = json!({ "limits": { "cpu": "4", "rdma/hca": "1" } });
    let made = plan(&service(json!({ "resources": others })), &seen, now());
    assert_eq!(container(&made)["resources"]["limits"]["rdma/hca"], "1");
}

#[test]
fn a_gpu_vllm_does_not_run_on_is_refused_with_the_reason() {
    let labels = json!({ "amd.com/gpu.product-name": "AMD_Instinct_MI100" });
    let nodes = [node("a", "amd.com/gpu", 8, &labels)];
    for gpu in [json!({ "models": ["MI100"] }), json!({ "vendor": "amd" })] {
        let made = plan(&service(json!({ "gpu": gpu })), &fleet(&nodes, &[]), now());
        assert!(applied(&made, "Deployment").is_none());
        let status = written(&made);
        assert_eq!(status.phase, Some(ServicePhase::Refused));
        let message = status.message.expect("a message");
        assert!(message.contains("does not support MI100"), "{message}");
        assert_eq!(status.conditions[0].reason, "UnsupportedGpu");
    }
}

#[test]
fn a_bad_argument_is_refused_and_leaves_what_runs_alone() {
    let it = service(json!({ "engine": { "args": { "max-modl-len": "1" } } }));
    let seen = Seen {
        deployment: Some(deployment(
            &it,
            json!({ "readyReplicas": 2, "replicas": 2 }),
        )),
        ..fleet(&[h100("a", 8)], &[])
    };
    let made = plan(&it, &seen, now());
    assert!(applied(&made, "Deployment").is_none());
    let status = written(&made);
    let message = status.message.expect("a message");
    assert!(message.contains("did you mean max-model-len?"), "{message}");
    assert!(message.contains("2 copies of an earlier spec still answer"));
}

#[test]
fn copies_are_counted_as_of_a_refused_spec_only_where_they_are() {
    let numbers = json!({ "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2 });
    let it = service(json!({ "replicas": 2 }));
    let seen = Seen {
        deployment: Some(deployment(&it, numbers)),
        ..fleet(&[h100("a", 8)], &[])
    };
    let bad = service(json!({ "replicas": 2, "engine": { "args": { "max-modl-len": "1" } } }));
    let status = written(&plan(&bad, &seen, now()));
    assert_eq!((status.ready_replicas, status.updated_replicas), (2, 0));
    // Something else than its spec is in the way.
    let taken = json!({ "metadata": { "name": "chat", "namespace": "ns" } });
    let seen = Seen {
        service: Some(Arc::new(serde_json::from_value(taken).expect("a Service"))),
        ..seen
    };
    let status = written(&plan(&it, &seen, now()));
    assert_eq!((status.ready_replicas, status.updated_replicas), (2, 2));
    let message = status.message.expect("a message");
    assert!(message.ends_with("; 2 copies still answer"), "{message}");
}

/// The Deployment a plan made, as the cluster shows it.
fn deployment(it: &InferenceService, status: Value) -> Arc<Deployment> {
    let plain = InferenceService {
        spec: warp_api::InferenceServiceSpec {
            engine: warp_api::inferenceservice::EngineSpec::default(),
            ..it.spec.clone()
        },
        ..it.clone()
    };
    let made = plan(&plain, &fleet(&[h100("a", 8)], &[]), now());
    let mut object = applied(&made, "Deployment").expect("a Deployment");
    object["metadata"]["generation"] = json!(3);
    object["status"] = status;
    object["status"]["observedGeneration"] = json!(3);
    Arc::new(serde_json::from_value(object).expect("a Deployment"))
}

#[test]
fn a_newer_renderer_restarts_nothing_and_a_changed_spec_is_rendered_anew() {
    let it = service(json!({}));
    let mut old = (*deployment(&it, json!({}))).clone();
    let annotations = old.metadata.annotations.as_mut().expect("annotations");
    // As an older Warp would have rendered it.
    let text = annotations[label::RENDERED].replace("v0.32.0", "v0.20.0");
    annotations.insert(label::RENDERED.to_owned(), text);
    let seen = |replicas: u32| {
        let it = service(json!({ "replicas": replicas }));
        let seen = Seen {
            deployment: Some(Arc::new(old.clone())),
            ..fleet(&[h100("a", 8)], &[])
        };
        plan(&it, &seen, now())
    };
    for replicas in [1, 5] {
        let made = seen(replicas);
        assert_eq!(container(&made)["image"], "vllm/vllm-openai:v0.20.0");
        let deployment = applied(&made, "Deployment").expect("one");
        assert_eq!(deployment["spec"]["replicas"], replicas);
    }
    let changed = service(json!({ "port": 9000 }));
    let seen = Seen {
        deployment: Some(Arc::new(old)),
        ..fleet(&[h100("a", 8)], &[])
    };
    let made = plan(&changed, &seen, now());
    assert_eq!(container(&made)["image"], "vllm/vllm-openai:v0.32.0");
}

#[test]
fn a_changed_spec_is_not_said_to_be_served_before_the_deployment_has_it() {
    let numbers = json!({ "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1 });
    let seen = Seen {
        deployment: Some(deployment(&service(json!({})), numbers)),
        ..fleet(&[h100("a", 8)], &[])
    };
    let status = |spec: Value| written(&plan(&service(spec), &seen, now()));
    let same = status(json!({}));
    assert_eq!(
        (same.updated_replicas, same.phase),
        (1, Some(ServicePhase::Ready))
    );
    let changed = status(json!({ "port": 9000 }));
    assert_eq!(changed.updated_replicas, 0);
    assert_eq!(changed.phase, Some(ServicePhase::Updating));
    assert_eq!(
        changed.ready_replicas, 1,
        "the copies of the old one still answer"
    );
}

#[test]
fn replacement_is_in_place_only_when_no_gpu_is_free() {
    let strategy = |held: u32| {
        let it = service(json!({ "replicas": 2 }));
        let pods = [holder("a", "nvidia.com/gpu", held)];
        let made = plan(&it, &fleet(&[h100("a", 8)], &pods), now());
        let update = &applied(&made, "Deployment").expect("one")["spec"]["strategy"];
        (
            update["rollingUpdate"]["maxSurge"].clone(),
            update["rollingUpdate"]["maxUnavailable"].clone(),
        )
    };
    assert_eq!(strategy(7), (json!(1), json!(0)));
    assert_eq!(strategy(8), (json!(0), json!(1)));
}

fn pod(status: Value) -> Arc<Pod> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {
                "name": "chat-1", "namespace": "ns", "creationTimestamp": "2026-11-16T11:59:00Z",
                "labels": { label::INFERENCE_SERVICE: "chat" },
            },
            "spec": { "nodeName": "a", "containers": [{ "name": "engine" }] },
            "status": status,
        }))
        .expect("a pod"),
    )
}

fn says(pods: Vec<Arc<Pod>>, numbers: Value) -> InferenceServiceStatus {
    let it = service(json!({}));
    let seen = Seen {
        deployment: Some(deployment(&it, numbers)),
        pods,
        ..fleet(&[h100("a", 8)], &[holder("a", "nvidia.com/gpu", 8)])
    };
    written(&plan(&it, &seen, now()))
}

#[test]
fn the_status_says_what_keeps_a_copy_from_answering() {
    let unplaced = pod(json!({ "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available",
    }] }));
    let loading = pod(json!({ "containerStatuses": [{
        "name": "engine", "ready": false, "restartCount": 0, "image": "", "imageID": "",
        "state": { "running": { "startedAt": "2026-11-16T11:59:30Z" } },
    }] }));
    let crashing = pod(json!({ "containerStatuses": [{
        "name": "engine", "ready": false, "restartCount": 3, "image": "", "imageID": "",
        "state": { "waiting": { "reason": "CrashLoopBackOff" } },
        "lastState": { "terminated": { "exitCode": 1, "reason": "Error", "message": "start\nout of memory\n" } },
    }] }));
    let image = pod(json!({ "containerStatuses": [{
        "name": "engine", "ready": false, "restartCount": 0, "image": "", "imageID": "",
        "state": { "waiting": { "reason": "ImagePullBackOff", "message": "not found" } },
    }] }));
    for (pod, phase, reason, part) in [
        (
            unplaced,
            ServicePhase::Pending,
            "WaitingForCapacity",
            "waits for 1 nvidia GPU: 1 nodes have such GPUs, at most 0 are free on one",
        ),
        (
            loading,
            ServicePhase::Starting,
            "Starting",
            "has been loading since 2026-11-16T11:59:30Z and must answer within 1h",
        ),
        (
            crashing,
            ServicePhase::Failing,
            "CopiesFail",
            "ended with exit code 1 (Error) before it answered, 4 starts so far: out of memory",
        ),
        (
            image,
            ServicePhase::Failing,
            "ImagePullFailed",
            "ImagePullBackOff: not found",
        ),
    ] {
        let status = says(vec![pod], json!({ "replicas": 1, "updatedReplicas": 1 }));
        let message = status.message.expect("a message");
        assert!(message.contains(part), "{message}");
        assert_eq!(status.phase, Some(phase), "{message}");
        assert_eq!(status.conditions[0].reason, reason);
        assert_eq!(status.conditions[0].status, "False");
    }
}

#[test]
fn a_service_that_answers_says_where_and_how_long_its_start_took() {
    let ready = pod(json!({
        "podIP": "127.200.0.1",
        "conditions": [
            { "type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-16T11:59:01Z" },
            { "type": "Ready", "status": "True", "lastTransitionTime": "2026-11-16T11:59:41Z" },
        ],
        "containerStatuses": [{
            "name": "engine", "ready": true, "restartCount": 0, "image": "", "imageID": "",
            "state": { "running": { "startedAt": "2026-11-16T11:59:11Z" } },
        }],
    }));
    let numbers = json!({ "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1 });
    let status = says(vec![ready], numbers);
    assert_eq!(status.phase, Some(ServicePhase::Ready));
    assert_eq!(status.addresses, ["http://127.200.0.1:8000/v1"]);
    assert_eq!(status.url.as_deref(), Some("http://chat.ns.svc:8000/v1"));
    let steps: Vec<(&str, i64)> = status
        .timeline
        .iter()
        .map(|step| (step.step.as_str(), step.seconds))
        .collect();
    assert_eq!(
        steps,
        [
            ("created", 0),
            ("scheduled", 1),
            ("started", 10),
            ("ready", 30)
        ]
    );
}

#[test]
fn a_service_of_another_owner_is_left_alone() {
    let it = service(json!({}));
    let mut foreign = (*deployment(&it, json!({}))).clone();
    foreign.metadata.owner_references = None;
    let seen = Seen {
        deployment: Some(Arc::new(foreign)),
        ..fleet(&[h100("a", 8)], &[])
    };
    let made = plan(&it, &seen, now());
    assert!(applied(&made, "Deployment").is_none());
    assert_eq!(written(&made).conditions[0].reason, "NameTaken");
}

#[test]
fn copies_follow_what_engines_report() {
    let scaling = json!({ "min": 1, "max": 4, "target": 10, "metric": "inFlight" });
    let it = service(json!({ "scaling": scaling }));
    let seen = Seen {
        deployment: Some(deployment(&it, json!({}))),
        heard: Some(Heard {
            load: Load {
                copies: 1,
                running: 20,
                waiting: 15,
                cache_percent: 50,
                ..Load::default()
            },
            ..Heard::default()
        }),
        ..fleet(&[h100("a", 8)], &[])
    };
    let made = plan(&it, &seen, now());
    let deployment = applied(&made, "Deployment").expect("one");
    assert_eq!(deployment["spec"]["replicas"], 4);
    let status = written(&made);
    assert_eq!(status.load.expect("a load").running, 20);
    assert!(made.again.is_some(), "it is looked at again");
}

#[test]
fn pages_of_engines_are_read_under_old_and_new_names() {
    let vllm = "# HELP x\nvllm:num_requests_running{engine=\"0\"} 3.0\nvllm:num_requests_running{engine=\"1\"} 1\n\
                vllm:num_requests_waiting{model_name=\"a{b}\"} 2\nvllm:gpu_cache_usage_perc{a=\"b\"} 0.5\n";
    let expected = Load {
        copies: 1,
        running: 4,
        waiting: 2,
        cache_percent: 50,
        ..Load::default()
    };
    let read = |page: &str| scrape::page::read(page).map(|page| page.load);
    assert_eq!(read(vllm), Some(expected));
    let sglang = "sglang:num_running_reqs 4\nsglang:num_queue_reqs 2\nsglang:token_usage 0.5\n";
    assert_eq!(read(sglang), Some(expected));
    assert_eq!(read("process_cpu_seconds_total 3\n"), None);
    assert_eq!(read("vllm:num_requests_running{a=\"b\"} NaN\n"), None);
}

#[test]
fn a_repeated_pass_changes_no_status() {
    let mut it = service(json!({}));
    let seen = fleet(&[h100("a", 8)], &[]);
    it.status = Some(written(&plan(&it, &seen, now())));
    let later = now() + jiff::SignedDuration::from_hours(1);
    let made = plan(&it, &seen, later);
    let writes = made
        .actions
        .iter()
        .any(|action| matches!(action, Action::Status(_) | Action::Note(_)));
    assert!(!writes, "{:?}", made.actions);
}
