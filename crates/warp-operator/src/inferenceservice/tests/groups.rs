//! Copies that span nodes.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use warp_runtime::cache::Cache;

use super::super::claim::{Asking, Turn};
use super::super::group::{self, Role};
use super::*;
use crate::placement::{Claimant, Place};

fn sixteen(more: Value) -> InferenceService {
    let mut spec = json!({ "parallelism": { "tensor": 8, "pipeline": 2 } });
    for (name, value) in more.as_object().expect("fields") {
        spec[name] = value.clone();
    }
    service(spec)
}

fn sets(plan: &Plan) -> Vec<Value> {
    let applied = plan.actions.iter().filter_map(|action| match action {
        Action::Apply { object, .. } if object["kind"] == "StatefulSet" => Some(object.clone()),
        _ => None,
    });
    applied.collect()
}

fn words_of(set: &Value) -> String {
    let args = set["spec"]["template"]["spec"]["containers"][0]["args"].clone();
    let args = args.as_array().cloned().unwrap_or_default();
    let args: Vec<&str> = args.iter().filter_map(Value::as_str).collect();
    args.join(" ")
}

#[test]
fn a_copy_no_node_has_the_gpus_for_spans_as_few_nodes_as_will_do() {
    let made = plan(
        &sixteen(json!({})),
        &fleet(&[h100("a", 8), h100("b", 8)], &[]),
        now(),
    );
    assert_eq!(applied(&made, "Deployment"), None);
    let sets = sets(&made);
    let names: Vec<_> = sets.iter().map(|set| &set["metadata"]["name"]).collect();
    assert_eq!(names, ["chat-0", "chat-0-w"]);
    let [leader, worker] = [&sets[0], &sets[1]];
    let span =
        "--nnodes 2 --node-rank $(NODE_RANK) --master-addr $(MASTER_ADDR) --master-port 29501";
    assert!(words_of(leader).contains("--tensor-parallel-size 8 --pipeline-parallel-size 2"));
    assert!(words_of(leader).ends_with(span), "{}", words_of(leader));
    assert!(words_of(worker).ends_with(&format!("{span} --headless")));
    for (set, replicas, start) in [(leader, 1, 0), (worker, 1, 1)] {
        let spec = &set["spec"];
        assert_eq!(spec["replicas"], replicas);
        assert_eq!(spec["ordinals"]["start"], start);
        assert_eq!(spec["serviceName"], "chat-nodes");
        let container = &spec["template"]["spec"]["containers"][0];
        assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], "8");
        assert_eq!(container["env"][0]["value"], "chat-0-0.chat-nodes");
        let gate = &spec["template"]["spec"]["schedulingGates"][0]["name"];
        assert_eq!(*gate, label::SERVING_GATE);
    }
    let main = |set: &Value| set["spec"]["template"]["spec"]["containers"][0].clone();
    assert!(main(leader)["readinessProbe"].is_object());
    assert_eq!(main(worker)["readinessProbe"], Value::Null);
    let services = made.actions.iter().filter_map(|action| match action {
        Action::Apply { object, .. } if object["kind"] == "Service" => Some(object.clone()),
        _ => None,
    });
    let selectors: Vec<Value> = services
        .map(|one| one["spec"]["selector"][label::SERVING_ROLE].clone())
        .collect();
    assert_eq!(selectors, [Value::Null, json!("leader")]);
    let status = written(&made);
    assert_eq!(status.nodes_per_replica, Some(2));
    assert_eq!(status.gpus_per_replica, Some(16));
    assert_eq!(status.groups.len(), 1);
}

#[test]
fn a_copy_stays_on_one_node_where_it_can_or_must() {
    let small = [h100("a", 8), h100("b", 8)];
    let large = [h100("a", 16)];
    let cases = [
        (sixteen(json!({})), &large[..]),
        (sixteen(json!({ "multiNode": "never" })), &small[..]),
        (service(json!({ "gpuCount": 16 })), &small[..]),
        (
            service(json!({ "parallelism": { "pipeline": 4, "data": 4 } })),
            &small[..],
        ),
        (
            sixteen(json!({ "engine": { "type": "sglang" } })),
            &small[..],
        ),
        // Three stages are not spread evenly over two nodes, and one of a third is too large.
        (
            service(json!({ "parallelism": { "tensor": 16, "pipeline": 3 } })),
            &small[..],
        ),
    ];
    for (it, nodes) in cases {
        let made = plan(&it, &fleet(nodes, &[]), now());
        assert!(applied(&made, "Deployment").is_some(), "{:?}", it.spec);
        assert!(sets(&made).is_empty());
    }
}

#[test]
fn a_long_name_is_refused_where_its_sets_would_not_fit() {
    let mut it = sixteen(json!({}));
    it.metadata.name = Some("a".repeat(45));
    let made = plan(&it, &fleet(&[h100("a", 8), h100("b", 8)], &[]), now());
    let status = written(&made);
    assert_eq!(status.phase, Some(ServicePhase::Refused));
    assert!(
        status
            .message
            .is_some_and(|text| text.contains("at most 44"))
    );
}

/// What the cluster makes of what was applied.
fn stored(set: &Value) -> Arc<StatefulSet> {
    let mut set = set.clone();
    set["metadata"]["generation"] = json!(1);
    set["metadata"]["uid"] = set["metadata"]["name"].clone();
    set["metadata"]["resourceVersion"] = json!("1");
    set["status"] = json!({ "replicas": 1, "observedGeneration": 1, "updateRevision": "one" });
    Arc::new(serde_json::from_value(set).expect("a set"))
}

fn member(set: &Value, ordinal: u32, more: &Value) -> Arc<Pod> {
    let name = set["metadata"]["name"].as_str().expect("a name");
    let mut pod = set["spec"]["template"].clone();
    let pod_name = format!("{name}-{ordinal}");
    pod["metadata"]["name"] = json!(pod_name);
    pod["metadata"]["namespace"] = json!("ns");
    pod["metadata"]["uid"] = json!(pod_name);
    pod["metadata"]["creationTimestamp"] = json!("2026-11-16T11:00:00Z");
    pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = json!(ordinal.to_string());
    pod["metadata"]["labels"]["controller-revision-hash"] = json!("one");
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": name, "controller": true,
    }]);
    for (field, value) in more.as_object().into_iter().flatten() {
        if field == "node" {
            pod["spec"]["nodeName"] = value.clone();
        } else if field == "gates" {
            pod["spec"]["schedulingGates"] = value.clone();
        } else {
            pod[field] = value.clone();
        }
    }
    Arc::new(serde_json::from_value(pod).expect("a pod"))
}

fn placed(restarts: u32) -> Value {
    json!({
        "gates": [],
        "status": {
            "phase": "Running",
            "conditions": [
                { "type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-16T11:00:00Z" },
                { "type": "Ready", "status": "True", "lastTransitionTime": "2026-11-16T11:01:00Z" },
            ],
            "containerStatuses": [{
                "name": "engine", "image": "i", "imageID": "", "ready": true, "restartCount": restarts,
            }],
        },
    })
}

fn seen_with(it: &InferenceService, leader: &Value, worker: &Value) -> (Seen, Vec<Value>) {
    let fleet = fleet(&[h100("a", 8), h100("b", 8)], &[]);
    let sets = sets(&plan(it, &fleet, now()));
    let seen = Seen {
        sets: sets.iter().map(stored).collect(),
        pods: vec![member(&sets[0], 0, leader)],
        workers: vec![member(&sets[1], 1, worker)],
        ..fleet
    };
    (seen, sets)
}

fn evicted(plan: &Plan) -> Vec<String> {
    let evicted = plan.actions.iter().filter_map(|action| match action {
        Action::Sub {
            sub: "eviction",
            key,
            ..
        } => Some(key.name.to_string()),
        _ => None,
    });
    evicted.collect()
}

#[test]
fn a_group_is_ready_with_its_leader() {
    let it = sixteen(json!({}));
    let (seen, _) = seen_with(&it, &placed(0), &placed(0));
    let made = plan(&it, &seen, now());
    assert_eq!(evicted(&made), [""; 0]);
    let status = written(&made);
    assert_eq!(
        status.phase,
        Some(ServicePhase::Ready),
        "{:?}",
        status.message
    );
    assert_eq!(status.ready_replicas, 1);
    assert!(status.groups[0].ready);
}

#[test]
fn a_member_that_failed_takes_its_group_along_and_the_next_time_later() {
    let mut it = sixteen(json!({}));
    let (seen, _) = seen_with(&it, &placed(0), &placed(1));
    let made = plan(&it, &seen, now());
    assert_eq!(evicted(&made), ["chat-0-0", "chat-0-w-1"]);
    let status = written(&made);
    assert_eq!(status.groups[0].restarts, 1);
    assert_eq!(
        (status.phase, status.ready_replicas, status.groups[0].ready),
        (Some(ServicePhase::Starting), 0, false),
        "what goes is not said to answer: {:?}",
        status.message
    );
    let counted = made
        .actions
        .iter()
        .position(|action| matches!(action, Action::Status(_)));
    let first = made
        .actions
        .iter()
        .position(|action| matches!(action, Action::Sub { .. }));
    assert!(
        counted < first,
        "it is counted before anybody is asked to go"
    );
    it.status = Some(status);
    // They are about to go. Where that came to nothing they are asked again, and it is not counted twice.
    let again = plan(&it, &seen, now());
    assert_eq!(evicted(&again), [""; 0]);
    let later = |seconds| now() + jiff::SignedDuration::from_secs(seconds);
    assert_eq!(again.again.map(|at| at <= later(5)), Some(true));
    let repeated = plan(&it, &seen, later(5));
    assert_eq!(evicted(&repeated), ["chat-0-0", "chat-0-w-1"]);
    let held = repeated
        .actions
        .iter()
        .any(|action| matches!(action, Action::Status(_)));
    assert!(!held, "all of that is said already");
    // Those that took their place, and failed too, are left alone for a while.
    let young = |pod: &Arc<Pod>| {
        let mut pod = Pod::clone(pod);
        pod.metadata.creation_timestamp = Some(Time(later(1)));
        Arc::new(pod)
    };
    let next = Seen {
        pods: seen.pods.iter().map(young).collect(),
        workers: seen.workers.iter().map(young).collect(),
        ..seen
    };
    let early = plan(&it, &next, later(19));
    assert_eq!(evicted(&early), [""; 0]);
    let due = plan(&it, &next, later(20));
    assert_eq!(evicted(&due), ["chat-0-0", "chat-0-w-1"]);
}

#[test]
fn copies_that_span_nodes_are_not_of_a_spec_whose_copies_do_not() {
    let mut it = sixteen(json!({}));
    let (seen, _) = seen_with(&it, &placed(0), &placed(0));
    it.status = Some(written(&plan(&it, &seen, now())));
    it.spec = service(json!({ "gpuCount": 8 })).spec;
    let status = written(&plan(&it, &seen, now()));
    assert_eq!(
        (status.phase, status.updated_replicas, status.ready_replicas),
        (Some(ServicePhase::Updating), 0, 1),
        "{:?}",
        status.message
    );
}

#[test]
fn a_group_that_lost_a_place_waits_as_a_whole() {
    let it = sixteen(json!({}));
    let (seen, _) = seen_with(&it, &placed(0), &json!({}));
    assert_eq!(
        evicted(&plan(&it, &seen, now())),
        ["chat-0-0", "chat-0-w-1"]
    );
    // They are let go one after the other: that is no loss.
    let at: Timestamp = "2026-11-16T11:00:05Z".parse().expect("a time");
    let early = plan(&it, &seen, at);
    assert_eq!(evicted(&early), [""; 0]);
    assert!(early.again.is_some());
}

#[test]
fn groups_of_an_old_spec_go_one_at_a_time() {
    let it = sixteen(json!({}));
    let (mut seen, sets) = seen_with(&it, &placed(0), &placed(0));
    let mut newer = StatefulSet::clone(&stored(&sets[0]));
    newer.status.as_mut().expect("a status").update_revision = Some("two".to_owned());
    seen.sets[0] = Arc::new(newer);
    assert_eq!(
        evicted(&plan(&it, &seen, now())),
        ["chat-0-0", "chat-0-w-1"]
    );
}

#[test]
fn the_pods_of_a_group_are_placed_together() {
    let it = Arc::new(sixteen(json!({})));
    let (seen, _) = seen_with(&it, &json!({}), &json!({}));
    let all: Vec<Arc<Pod>> = seen.pods.iter().chain(&seen.workers).cloned().collect();
    let together = group::members(&all, &all[0], "chat");
    assert_eq!(together.len(), 2);
    assert!(group::all_wait(&together));
    assert!(!group::all_wait(&together[..1]), "one is missing");
    assert_eq!(group::member_of(&all[1], "chat"), Some((0, Role::Worker)));
    assert_eq!(group::member_of(&all[1], "other"), None);
    let known = Cache::new(&[]);
    let asking = Asking::together(&known, &it, &together, Turn::default(), now());
    let asking = asking.expect("it asks for GPUs");
    assert_eq!(asking.claim().pods.len(), 2);
    assert_eq!(asking.claim().least, 2, "all or none");
    let place = |node: &str| Place {
        node: node.to_owned(),
        resource: "nvidia.com/gpu".to_owned(),
        extra: std::collections::BTreeMap::new(),
        milli: 1000,
        evidence: None,
        strategy: "warp",
        provider: "kubernetes".to_owned(),
        why: format!("warp chose node {node}"),
    };
    let made = asking.plan(&[place("a"), place("b")], now());
    let patched: Vec<String> = made
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::Patch { key, .. } => Some(key.name.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(patched, ["chat-0-0", "chat-0-w-1"]);
}

#[test]
fn fewer_copies_take_their_sets_away_and_one_node_takes_all() {
    let two = sixteen(json!({ "replicas": 2 }));
    let nodes: Vec<_> = ["a", "b", "c", "d"].map(|name| h100(name, 8)).into();
    let base = fleet(&nodes, &[]);
    let made = sets(&plan(&two, &base, now()));
    assert_eq!(made.len(), 4);
    let seen = Seen {
        sets: made.iter().map(stored).collect(),
        ..base
    };
    let deleted = |it: &InferenceService| {
        let made = plan(it, &seen, now());
        let deleted = made.actions.iter().filter_map(|action| match action {
            Action::Delete { key, .. } => Some(key.name.to_string()),
            _ => None,
        });
        deleted.collect::<Vec<_>>()
    };
    assert_eq!(deleted(&two), [""; 0]);
    assert_eq!(deleted(&sixteen(json!({}))), ["chat-1", "chat-1-w"]);
    let whole = service(json!({ "gpuCount": 8, "replicas": 2 }));
    assert_eq!(
        deleted(&whole),
        ["chat-0", "chat-0-w", "chat-1", "chat-1-w"]
    );
}

/// A group that serves, of sixteen GPUs over two nodes.
fn serving(it: &mut InferenceService, nodes: &[Arc<Node>]) -> Seen {
    let base = fleet(nodes, &[]);
    let sets = sets(&plan(it, &base, now()));
    it.status = Some(InferenceServiceStatus {
        observed_generation: Some(3),
        replicas: 1,
        placed_replicas: 1,
        ..InferenceServiceStatus::default()
    });
    let at = |node: &str| {
        let mut more = placed(0);
        more["node"] = json!(node);
        more
    };
    Seen {
        sets: sets.iter().map(stored).collect(),
        pods: vec![member(&sets[0], 0, &at("a"))],
        workers: vec![member(&sets[1], 1, &at("b"))],
        ..base
    }
}

fn deleted(plan: &Plan) -> Vec<String> {
    let deleted = plan.actions.iter().filter_map(|action| match action {
        Action::Delete { key, .. } => Some(key.name.to_string()),
        _ => None,
    });
    deleted.collect()
}

#[test]
fn a_change_that_can_never_be_placed_takes_nothing_from_groups_that_serve() {
    let nodes = [h100("a", 8), h100("b", 8)];
    let small = json!({ "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3" });
    let with_memory = |name: &str| {
        let mut node = Node::clone(&node(name, "nvidia.com/gpu", 8, &small));
        let offers = node.status.as_mut().and_then(|it| it.allocatable.as_mut());
        let memory = serde_json::from_value(json!("512Gi")).expect("an amount");
        offers.expect("offers").insert("memory".to_owned(), memory);
        Arc::new(node)
    };
    let modest = [with_memory("a"), with_memory("b")];
    for (change, nodes) in [
        // No node has sixteen, and three stages are not spread evenly.
        (
            json!({ "parallelism": { "tensor": 16, "pipeline": 3 } }),
            &nodes,
        ),
        // Four nodes of eight; there are two.
        (
            json!({ "parallelism": { "tensor": 4, "pipeline": 4 } }),
            &nodes,
        ),
        (
            json!({ "resources": { "requests": { "memory": "600Gi" } } }),
            &modest,
        ),
    ] {
        let mut it = sixteen(json!({}));
        let mut seen = serving(&mut it, nodes);
        if change["parallelism"]["tensor"] == 4 {
            // They had eight each when they were placed.
            seen.nodes = fleet(&[h100("a", 4), h100("b", 4)], &[]).nodes;
        }
        let fields = change.as_object().expect("fields").clone();
        let mut spec = serde_json::to_value(&it.spec).expect("a spec");
        spec.as_object_mut().expect("fields").extend(fields);
        it.spec = serde_json::from_value(spec).expect("a spec");
        let made = plan(&it, &seen, now());
        assert_eq!(evicted(&made), [""; 0], "{change}");
        assert_eq!(deleted(&made), [""; 0], "{change}");
        assert!(sets(&made).is_empty(), "{change}");
        assert!(applied(&made, "Deployment").is_none(), "{change}");
        let status = written(&made);
        let ready = &status.conditions[0];
        assert_eq!(ready.reason, "NeverFits", "{change}: {}", ready.message);
        assert!(ready.message.contains("what serves stays"));
        assert_eq!((status.ready_replicas, status.groups.len()), (1, 1));
        assert!(made.again.is_some(), "such a node may come");
    }
}

#[test]
fn a_service_that_begins_to_span_nodes_keeps_its_copy_while_there_are_too_few() {
    let one = [h100("a", 8)];
    let it = service(json!({ "gpuCount": 8 }));
    let made = plan(&it, &fleet(&one, &[]), now());
    let deployment = applied(&made, "Deployment").expect("a Deployment");
    let mut it = sixteen(json!({}));
    it.status = Some(InferenceServiceStatus {
        observed_generation: Some(3),
        replicas: 1,
        placed_replicas: 1,
        ..InferenceServiceStatus::default()
    });
    let seen = |nodes: &[Arc<Node>]| Seen {
        deployment: Some(Arc::new(
            serde_json::from_value(deployment.clone()).expect("a Deployment"),
        )),
        pods: vec![super::placement::running("p", "2026-11-16T11:00:00Z", true)],
        ..fleet(nodes, &[])
    };
    let made = plan(&it, &seen(&one), now());
    assert_eq!(deleted(&made), [""; 0]);
    assert_eq!(written(&made).conditions[0].reason, "NeverFits");
    // The second node is there: the copy gives its GPUs up.
    let made = plan(&it, &seen(&[h100("a", 8), h100("b", 8)]), now());
    assert_eq!(deleted(&made), ["chat"]);
    assert_eq!(sets(&made).len(), 2);
}

#[test]
fn fewer_groups_are_kept_of_a_spec_that_is_refused() {
    let two = sixteen(json!({ "replicas": 2 }));
    let nodes: Vec<_> = ["a", "b", "c", "d"].map(|name| h100(name, 8)).into();
    let base = fleet(&nodes, &[]);
    let made = sets(&plan(&two, &base, now()));
    let seen = Seen {
        sets: made.iter().map(stored).collect(),
        ..base
    };
    let refused = sixteen(json!({
        "replicas": 1, "engine": { "args": { "no-such": "1" } },
    }));
    let made = plan(&refused, &seen, now());
    assert_eq!(deleted(&made), ["chat-1", "chat-1-w"]);
    assert_eq!(written(&made).phase, Some(ServicePhase::Refused));
}
