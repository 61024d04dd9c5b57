//! Copies in the one line: born behind a gate, placed one by one, and told what they wait for.

use jiff::SignedDuration;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt;
use warp_api::reason;
use warp_api::workload::Priority;
use warp_runtime::cache::Cache;

use super::super::claim::{Asking, Turn};
use super::super::copies::{kept, placed, rank, surplus, waiting, waits};
use super::super::evict::Running;
use super::super::observe::Waiting;
use super::*;
use crate::placement::{Cause, Claimant, Place, Runner, Verdict};
use crate::workload::Class;

/// A copy, changed by `more`: at first it waits behind its gate.
pub(super) fn copy(name: &str, more: Value) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": format!("uid-{name}"), "resourceVersion": "5",
            "creationTimestamp": "2026-11-16T11:59:00Z",
            "labels": { label::INFERENCE_SERVICE: "chat" },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "chat-77", "uid": "rs", "controller": true,
            }],
        },
        "spec": {
            "containers": [{ "name": "engine", "resources": {
                "requests": { "nvidia.com/gpu": "2", "cpu": "4" }, "limits": { "nvidia.com/gpu": "2" },
            } }],
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "m", "operator": "In", "values": ["H100"] }] }],
            } } },
            "schedulingGates": [{ "name": label::SERVING_GATE }, { "name": "others" }],
        },
    });
    for (part, fields) in more.as_object().expect("parts") {
        for (name, value) in fields.as_object().expect("fields") {
            pod[part][name] = value.clone();
        }
    }
    Arc::new(serde_json::from_value(pod).expect("a pod"))
}

pub(super) fn running(name: &str, created: &str, ready: bool) -> Arc<Pod> {
    let conditions = json!([{
        "type": "Ready", "status": if ready { "True" } else { "False" },
        "lastTransitionTime": "2026-11-16T11:59:41Z",
    }]);
    copy(
        name,
        json!({
            "metadata": { "creationTimestamp": created },
            "spec": { "nodeName": "a", "schedulingGates": null },
            "status": { "conditions": conditions },
        }),
    )
}

pub(super) fn verdict() -> Waiting {
    Waiting {
        verdict: Some(Verdict {
            reason: reason::WAITING_FOR_CAPACITY,
            message: "0 of 1 nodes fit".to_owned(),
        }),
        ..Waiting::default()
    }
}

pub(super) fn strategy(made: &Plan) -> (Value, Value) {
    let deployment = applied(made, "Deployment").expect("a Deployment");
    let update = &deployment["spec"]["strategy"]["rollingUpdate"];
    (update["maxSurge"].clone(), update["maxUnavailable"].clone())
}

#[test]
fn copies_with_gpus_are_born_behind_a_gate_and_others_are_not() {
    let seen = fleet(&[h100("a", 8)], &[]);
    let gates = |spec: Value| {
        let made = plan(&service(spec), &seen, now());
        applied(&made, "Deployment").expect("one")["spec"]["template"]["spec"]["schedulingGates"]
            .clone()
    };
    assert_eq!(gates(json!({})), json!([{ "name": label::SERVING_GATE }]));
    assert_eq!(gates(json!({ "gpuCount": 0 })), Value::Null);
}

#[test]
fn a_place_pins_one_pod_and_lets_it_through_its_own_gate_only() {
    let it = Arc::new(service(json!({})));
    let pod = copy("chat-77-a", json!({}));
    let turn = Turn::default();
    let asking = Asking::new(&Cache::new(&[]), &it, &pod, turn, now()).expect("it asks for GPUs");
    let claim = asking.claim();
    assert_eq!(claim.key.to_string(), "ns/chat", "its service is told");
    assert_ne!(claim.uid, "uid-chat-77-a", "which is the pod in the ledger");
    assert_eq!(claim.pods[0].gpus.count, 2);
    assert_eq!(claim.pods[0].resource.as_deref(), Some("nvidia.com/gpu"));
    assert!(asking.is_counted(), "quotas count a pod that is there");
    let place = Place {
        node: "n1".to_owned(),
        resource: "nvidia.com/gpu".to_owned(),
        extra: std::collections::BTreeMap::new(),
        milli: 1000,
        evidence: None,
        strategy: "warp",
        provider: "kubernetes".to_owned(),
        why: "warp chose node n1".to_owned(),
    };
    let plan = asking.plan(&[place], now());
    let [Action::Patch { patch, key, .. }] = plan.actions.as_slice() else {
        panic!("{:?}", plan.actions)
    };
    assert_eq!(key.to_string(), "ns/chat-77-a");
    assert_eq!(
        patch["spec"]["schedulingGates"],
        json!([{ "name": "others" }])
    );
    let affinity = &patch["spec"]["affinity"]["nodeAffinity"];
    let term = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0];
    assert_eq!(term["matchFields"][0]["values"], json!(["n1"]));
    assert_eq!(term["matchExpressions"][0]["values"], json!(["H100"]));
    assert_eq!(
        patch["metadata"]["annotations"][label::PLACEMENT],
        "warp chose node n1"
    );
    assert_eq!(patch["metadata"]["uid"], "uid-chat-77-a");
}

#[test]
fn a_copy_that_waits_is_numbered_and_says_for_what() {
    let it = service(json!({ "replicas": 3, "gpuCount": 2 }));
    let pods = vec![
        running("chat-77-a", "2026-11-16T11:58:00Z", true),
        copy("chat-77-b", json!({})),
        copy("chat-77-c", json!({})),
    ];
    let numbers = json!({ "replicas": 3, "readyReplicas": 1, "updatedReplicas": 3 });
    let seen = Seen {
        deployment: Some(deployment(&it, numbers)),
        pods,
        waiting: vec![verdict(), verdict()],
        ..fleet(&[h100("a", 2)], &[])
    };
    let made = plan(&it, &seen, now());
    let status = written(&made);
    assert_eq!(
        status.message.as_deref(),
        Some(
            "1 of 3 copies answer; copy 2 of 3 waits for 2 nvidia GPUs: 0 of 1 nodes fit (and 1 more)"
        )
    );
    assert_eq!(status.conditions[0].reason, "WaitingForCapacity");
    assert_eq!(status.phase, Some(ServicePhase::Degraded));
    assert!(
        made.wake.is_empty(),
        "who was answered is not asked about again"
    );
    let unheard = Seen {
        waiting: vec![Waiting::default()],
        ..seen.clone()
    };
    assert_eq!(plan(&it, &unheard, now()).wake.len(), 1);
    let until = now() + SignedDuration::from_secs(4);
    let held = Seen {
        waiting: vec![Waiting {
            held_until: Some(until),
            ..verdict()
        }],
        ..seen
    };
    let made = plan(&it, &held, now());
    assert!(made.wake.is_empty());
    assert_eq!(made.again, Some(until));
}

#[test]
fn a_copy_more_that_finds_no_place_turns_the_replacement_into_one_in_place() {
    let it = service(json!({ "replicas": 2 }));
    // Six GPUs look free, and are kept for somebody else.
    let seen = Seen {
        pods: vec![
            running("chat-77-a", "2026-11-16T11:58:00Z", true),
            running("chat-77-b", "2026-11-16T11:58:00Z", true),
            copy("chat-88-a", json!({})),
        ],
        waiting: vec![Waiting::default()],
        ..fleet(&[h100("a", 8)], &[])
    };
    assert_eq!(strategy(&plan(&it, &seen, now())), (json!(1), json!(0)));
    let refused = Seen {
        waiting: vec![verdict()],
        ..seen
    };
    // It may be about a place that has just come free: that is believed when it stays so.
    let made = plan(&it, &refused, now());
    assert_eq!(strategy(&made), (json!(1), json!(0)));
    let settled = now() + SignedDuration::from_secs(10);
    assert_eq!(made.again, Some(settled));
    let mut it = it;
    it.status = Some(written(&made));
    let made = plan(&it, &refused, settled);
    assert_eq!(strategy(&made), (json!(0), json!(1)));
    let message = written(&made).message.expect("a message");
    assert!(
        message.contains("a copy more, of the new spec, waits"),
        "{message}"
    );
}

#[test]
fn a_copy_that_its_node_does_not_get_goes_and_the_node_is_left_out() {
    let it = service(json!({}));
    let pinned = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["a"] }] }],
    } } });
    let refused = |message: &str| {
        let status = json!({ "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        }] });
        let spec = json!({ "affinity": pinned, "schedulingGates": null });
        let seen = Seen {
            pods: vec![copy("chat-77-a", json!({ "spec": spec, "status": status }))],
            refusal_timeout: SignedDuration::from_mins(5),
            ..fleet(&[h100("a", 8)], &[])
        };
        plan(&it, &seen, now())
    };
    for (message, seconds) in [
        ("node(s) had a taint", 300),
        ("Insufficient nvidia.com/gpu", 10),
    ] {
        let made = refused(message);
        let evicted = made.actions.iter().position(
            |action| matches!(action, Action::Sub { sub, key, .. } if *sub == "eviction" && &*key.name == "chat-77-a"),
        );
        let told = made
            .actions
            .iter()
            .position(|action| matches!(action, Action::Status(_)));
        assert!(
            told < evicted,
            "written down before it is done: {:?}",
            made.actions
        );
        let nodes = written(&made).refused_nodes;
        assert_eq!(nodes[0].name, "a");
        assert_eq!(nodes[0].until.0, now() + SignedDuration::from_secs(seconds));
    }
}

#[test]
fn services_come_before_workloads_unless_they_or_their_class_say_otherwise() {
    let of = |spec: Value, class: Option<Class>| rank(&service(spec), class);
    assert_eq!(
        of(json!({}), None).expect("a rank").priority,
        Priority::High
    );
    let low = of(json!({ "priority": "low" }), None).expect("a rank");
    assert_eq!(low.priority, Priority::Low);
    let named = json!({ "priorityClassName": "patient", "priority": "low" });
    let class = PriorityClass {
        value: 0,
        preemption_policy: Some("Never".to_owned()),
        ..PriorityClass::default()
    };
    let decided = of(named.clone(), Some(Class::from(&class))).expect("a rank");
    assert_eq!(
        (decided.priority, decided.patient),
        (Priority::Normal, true)
    );
    let missing = plan(&service(named), &fleet(&[h100("a", 8)], &[]), now());
    let message = written(&missing).message.expect("a message");
    assert!(
        message.contains("PriorityClass patient does not exist"),
        "{message}"
    );
    assert!(applied(&missing, "Deployment").is_none());
}

#[test]
fn only_copies_beyond_the_floor_make_room_and_the_least_useful_first() {
    let pods = [
        running("old", "2026-11-16T11:00:00Z", true),
        running("young", "2026-11-16T11:30:00Z", true),
        running("starting", "2026-11-16T11:10:00Z", false),
        copy("gated", json!({})),
    ];
    let going = |spec: Value| -> Vec<String> {
        let it = service(spec);
        let found = surplus(&it, &pods, now());
        found.into_iter().map(|pod| pod.name_any()).collect()
    };
    assert!(going(json!({ "replicas": 3 })).is_empty());
    let scaling =
        |min: u32| json!({ "replicas": 3, "scaling": { "min": min, "max": 4, "target": 1 } });
    assert_eq!(going(scaling(1)), ["starting", "young"]);
    assert_eq!(going(scaling(2)), ["starting"]);
    assert!(going(scaling(4)).is_empty());
    let all = json!({ "replicas": 3, "preemptible": true });
    assert_eq!(going(all), ["starting", "young", "old"]);
    let mut none = scaling(1);
    none["preemptible"] = json!(false);
    assert!(going(none).is_empty());
}

#[test]
fn a_copy_that_was_evicted_is_not_asked_twice_and_nobody_else_goes_for_it() {
    let it = Arc::new(service(json!({ "priority": "low" })));
    let pod = copy(
        "chat-77-a",
        json!({
            "metadata": { "deletionTimestamp": "2026-11-16T11:59:50Z" },
            "spec": { "nodeName": "a", "schedulingGates": null },
            "status": { "conditions": [{ "type": "DisruptionTarget", "status": "True" }] },
        }),
    );
    let pods = [Arc::clone(&pod)];
    let found = surplus(&it, &pods, now());
    assert_eq!(found.len(), 1);
    let runner = Running::of(&it, &pod, Priority::Low).expect("it has GPUs");
    assert!(runner.runs().evicted_for.is_some());
    assert_eq!(runner.runs().gpus, 2);
    let fresh = running("chat-77-b", "2026-11-16T11:30:00Z", true);
    let runner = Running::of(&it, &fresh, Priority::Low).expect("it has GPUs");
    let mut plan = Plan::default();
    let claim = Asking::new(
        &Cache::new(&[]),
        &it,
        &copy("x", json!({})),
        Turn::default(),
        now(),
    );
    runner.evict(&mut plan, claim.expect("a claim").claim(), Cause::Priority);
    assert!(matches!(
        &plan.actions[0],
        Action::Sub {
            sub: "eviction",
            ..
        }
    ));
    assert_eq!(plan.premises.len(), 1, "it is not gone already");
}

#[test]
fn what_waits_and_what_has_a_place_is_told_apart() {
    let pods = [
        copy("gated", json!({})),
        copy(
            "going",
            json!({ "metadata": { "deletionTimestamp": "2026-11-16T11:59:50Z" } }),
        ),
        running("bound", "2026-11-16T11:30:00Z", true),
    ];
    assert!(waits(&pods[0]) && !waits(&pods[1]) && !waits(&pods[2]));
    assert_eq!((placed(&pods, false), placed(&pods, true)), (1, 0));
    assert_eq!(waiting(&pods).len(), 1);
}

/// As the Warp before gates rendered it: what it stored, word for word of what it knew.
#[test]
fn fifty_services_of_a_warp_before_gates_keep_every_pod_after_an_upgrade() {
    let seen = fleet(&[h100("a", 8)], &[]);
    for number in 0..50_u32 {
        let spec = json!({
            "replicas": 1 + number % 5, "gpuCount": 1 + number % 2, "port": 8000 + number,
            "engine": { "args": { "max-model-len": (1024 * (number + 1)).to_string() } },
        });
        let it = service(spec.clone());
        let mut object = applied(&plan(&it, &seen, now()), "Deployment").expect("a Deployment");
        let template = object["spec"]["template"]["spec"]
            .as_object_mut()
            .expect("a pod");
        template.remove("schedulingGates");
        let mut from = json!({
            "model": { "source": "hf://org/tiny" },
            "engine": { "type": "vllm", "args": spec["engine"]["args"], "healthPath": "/health" },
            "gpuCount": spec["gpuCount"], "replicas": 0, "port": spec["port"], "startLimit": "1h", "drain": "45s",
        });
        from["engine"]["type"] = json!("vllm");
        let rendered = json!({
            "renderer": 2, "from": from, "weights": null, "template": object["spec"]["template"],
        });
        object["metadata"]["annotations"][label::RENDERED] = json!(rendered.to_string());
        let before = object["spec"]["template"].clone();
        let kept = Seen {
            deployment: Some(Arc::new(
                serde_json::from_value(object).expect("a Deployment"),
            )),
            ..seen.clone()
        };
        // A newer Warp, then somebody who changes the order in the line and the number of copies.
        let mut edited = spec.clone();
        edited["replicas"] = json!(9);
        edited["priority"] = json!("normal");
        edited["preemptible"] = json!(true);
        for spec in [spec, edited] {
            let made = plan(&service(spec), &kept, now());
            let after = applied(&made, "Deployment").expect("a Deployment");
            assert_eq!(after["spec"]["template"], before, "service {number}");
        }
        // Only a change of what its pods are makes new ones, and those are gated.
        let made = plan(&service(json!({ "port": 7000 })), &kept, now());
        let after = applied(&made, "Deployment").expect("a Deployment");
        assert!(after["spec"]["template"]["spec"]["schedulingGates"].is_array());
    }
}

#[test]
fn a_copy_that_replaces_one_goes_before_all_work_and_a_copy_more_does_not() {
    let had = |spec: Value, placed: i32| {
        let mut it = service(spec);
        it.status = Some(InferenceServiceStatus {
            observed_generation: Some(4),
            replicas: it.spec.replicas,
            placed_replicas: placed,
            ..InferenceServiceStatus::default()
        });
        kept(&it, now())
    };
    assert_eq!(had(json!({ "replicas": 3 }), 3), 3);
    assert_eq!(
        had(json!({ "replicas": 3 }), 2),
        2,
        "the third never had a place"
    );
    assert_eq!(had(json!({ "replicas": 2 }), 3), 2);
    let scaling = json!({ "replicas": 3, "scaling": { "min": 1, "max": 4, "target": 1 } });
    assert_eq!(
        had(scaling, 3),
        1,
        "others may be taken, so they wait their turn"
    );
    assert_eq!(had(json!({ "replicas": 3, "preemptible": true }), 3), 0);
    let (it, pod) = (
        Arc::new(service(json!({ "priority": "low" }))),
        copy("chat-77-a", json!({})),
    );
    let of = |first: bool| {
        let turn = Turn {
            rank: rank(&it, None).expect("a rank"),
            first,
        };
        let asking = Asking::new(&Cache::new(&[]), &it, &pod, turn, now()).expect("a claim");
        let claim = asking.claim();
        assert_eq!(
            claim.asked_priority,
            Priority::Low,
            "its tenant judges that"
        );
        assert!(claim.serves, "no longest run is for it");
        (claim.priority, claim.created.is_some())
    };
    assert_eq!(of(false), (Priority::Low, true));
    assert_eq!(of(true), (Priority::High, false));
}

#[test]
fn the_copies_that_had_a_place_are_remembered_while_they_are_replaced() {
    let mut it = service(json!({ "replicas": 2 }));
    let both = vec![
        running("chat-77-a", "2026-11-16T11:58:00Z", true),
        running("chat-77-b", "2026-11-16T11:58:00Z", true),
    ];
    let told = |it: &InferenceService, pods: &[Arc<Pod>]| {
        let seen = Seen {
            pods: pods.to_vec(),
            ..fleet(&[h100("a", 8)], &[])
        };
        plan(it, &seen, now())
    };
    let status = written(&told(&it, &both));
    assert_eq!(status.placed_replicas, 2);
    it.status = Some(status);
    let made = told(&it, &both[..1]);
    let mut writes = made.actions.iter();
    assert!(
        !writes.any(|action| matches!(action, Action::Status(_))),
        "it stays so"
    );
    it.spec.replicas = 1;
    let status = written(&told(&it, &both[..1]));
    assert_eq!(status.placed_replicas, 1);
}

/// A copy as the template of a service makes it.
fn born_of(it: &InferenceService, nodes: &[Arc<Node>]) -> Arc<Pod> {
    let made = plan(it, &fleet(nodes, &[]), now());
    let template = applied(&made, "Deployment").expect("one")["spec"]["template"].clone();
    let annotations = template["metadata"]["annotations"].clone();
    let spec = template["spec"].clone();
    copy(
        "chat-77-a",
        json!({ "metadata": { "annotations": annotations }, "spec": spec }),
    )
}

#[test]
fn a_node_whose_label_comes_later_will_do() {
    let it = Arc::new(service(json!({ "gpu": { "models": ["H100"] } })));
    let pod = born_of(&it, &[h100("a", 8)]);
    let asking = Asking::new(&Cache::new(&[]), &it, &pod, Turn::default(), now()).expect("asks");
    let ask = &asking.claim().pods[0].gpus;
    let device = |product: &str| {
        let labels = json!({ "nvidia.com/gpu.product": product });
        let nodes = [node("b", "nvidia.com/gpu", 8, &labels)];
        fleet(&nodes, &[]).nodes.remove(0).device
    };
    assert!(ask.met_by(&device("NVIDIA-H100-80GB-HBM3")));
    assert!(
        ask.met_by(&device("NVIDIA-H100-NVL")),
        "the same model, otherwise labelled"
    );
    assert!(!ask.met_by(&device("NVIDIA-A100-SXM4-80GB")));
    let bare = [node("b", "nvidia.com/gpu", 8, &json!({}))];
    assert!(
        !ask.met_by(&fleet(&bare, &[]).nodes[0].device),
        "not labelled yet"
    );
}

#[test]
fn a_gpu_the_engine_does_not_run_on_is_no_place_for_a_copy_whenever_it_comes() {
    let good = json!({ "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM" });
    let nodes = [node("a", "amd.com/gpu", 8, &good)];
    let old = json!({ "amd.com/gpu.product-name": "AMD_Instinct_MI100" });
    let later = fleet(&[node("b", "amd.com/gpu", 8, &old)], &[])
        .nodes
        .remove(0)
        .device;
    for (engine, will_do) in [("vllm", false), ("simulated", true)] {
        let it = Arc::new(service(
            json!({ "gpu": { "vendor": "amd" }, "engine": { "type": engine } }),
        ));
        let pod = born_of(&it, &nodes);
        let asking =
            Asking::new(&Cache::new(&[]), &it, &pod, Turn::default(), now()).expect("asks");
        assert_eq!(
            asking.claim().pods[0].gpus.met_by(&later),
            will_do,
            "{engine}"
        );
    }
}
