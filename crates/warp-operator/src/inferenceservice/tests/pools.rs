//! Services on pools of different GPUs.

use super::*;
use crate::inferenceservice::observe::Waiting;
use crate::placement::Verdict;

fn mixed(more: Value) -> InferenceService {
    let mut spec = json!({
        "replicas": 3,
        "engine": { "args": { "max-model-len": "32k" }, "env": [{ "name": "A", "value": "all" }] },
        "accelerators": [
            {
                "name": "amd", "gpu": { "models": ["MI300X"] },
                "engine": { "args": { "max-num-seqs": "64" }, "env": [{ "name": "A", "value": "own" }] },
            },
            { "name": "nvidia", "gpu": { "models": ["H100"] }, "gpuCount": 2 },
        ],
    });
    for (name, value) in more.as_object().expect("fields") {
        spec[name] = value.clone();
    }
    service(spec)
}

fn mi300x(name: &str, count: u32) -> Arc<Node> {
    let labels = json!({ "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM" });
    node(name, "amd.com/gpu", count, &labels)
}

fn gpu_named(model: &str) -> warp_api::workload::GpuRequirement {
    serde_json::from_value(json!({ "models": [model] })).expect("a GPU")
}

/// The copies each Deployment is to have, by name.
fn copies(plan: &Plan) -> Vec<(String, i64)> {
    let applied = plan.actions.iter().filter_map(|action| match action {
        Action::Apply { object, .. } if object["kind"] == "Deployment" => Some((
            object["metadata"]["name"].as_str()?.to_owned(),
            object["spec"]["replicas"].as_i64()?,
        )),
        _ => None,
    });
    applied.collect()
}

fn both(amd: i64, nvidia: i64) -> Vec<(String, i64)> {
    vec![
        ("chat-amd".to_owned(), amd),
        ("chat-nvidia".to_owned(), nvidia),
    ]
}

/// The Deployments of a plan, as the cluster shows them, each with so many copies that answer.
fn made(plan: &Plan, ready: &[(&str, i32)]) -> Vec<Arc<Deployment>> {
    let applied = plan.actions.iter().filter_map(|action| match action {
        Action::Apply { object, .. } if object["kind"] == "Deployment" => Some(object.clone()),
        _ => None,
    });
    let shown = applied.map(|mut object| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let ready = ready.iter().find(|(of, _)| *of == name).map_or(0, |(_, ready)| *ready);
        object["metadata"]["generation"] = json!(1);
        object["status"] = json!({
            "observedGeneration": 1, "replicas": ready, "readyReplicas": ready, "updatedReplicas": ready,
        });
        Arc::new(serde_json::from_value(object).expect("a Deployment"))
    });
    shown.collect()
}

/// A copy in a pool: placed on a node, or waiting.
fn of_pool(name: &str, pool: &str, node: Option<&str>) -> Arc<Pod> {
    let gates = match node {
        Some(_) => Value::Null,
        None => json!([{ "name": label::SERVING_GATE }]),
    };
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "ns", "uid": name,
                "creationTimestamp": "2026-11-16T11:59:00Z",
                "labels": { label::INFERENCE_SERVICE: "chat", label::ACCELERATOR: pool },
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("chat-{pool}-77"),
                    "uid": "rs", "controller": true,
                }],
            },
            "spec": { "nodeName": node, "schedulingGates": gates, "containers": [{ "name": "engine" }] },
        }))
        .expect("a pod"),
    )
}

#[test]
fn each_pool_has_its_own_deployment_and_one_service_is_in_front_of_all() {
    let plan = plan(
        &mixed(json!({})),
        &fleet(&[mi300x("a", 8), h100("b", 8)], &[]),
        now(),
    );
    assert_eq!(copies(&plan), both(3, 0));
    let service = applied(&plan, "Service").expect("a Service");
    assert_eq!(
        service["spec"]["selector"],
        json!({ label::INFERENCE_SERVICE: "chat" })
    );
    let deployments: Vec<Value> = plan
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::Apply { object, .. } if object["kind"] == "Deployment" => Some(object.clone()),
            _ => None,
        })
        .collect();
    let [amd, nvidia] = deployments.as_slice() else {
        panic!("{deployments:?}")
    };
    let container = |one: &Value| one["spec"]["template"]["spec"]["containers"][0].clone();
    assert_eq!(container(amd)["image"], "vllm/vllm-openai-rocm:v0.32.0");
    assert_eq!(
        container(amd)["resources"]["limits"],
        json!({ "amd.com/gpu": "1" })
    );
    assert_eq!(container(nvidia)["image"], "vllm/vllm-openai:v0.32.0");
    assert_eq!(
        container(nvidia)["resources"]["limits"],
        json!({ "nvidia.com/gpu": "2" })
    );
    let words = |one: &Value| container(one)["args"].to_string();
    assert!(words(amd).contains("--max-num-seqs") && words(amd).contains("--max-model-len"));
    assert!(!words(nvidia).contains("--max-num-seqs") && words(nvidia).contains("--max-model-len"));
    assert!(words(nvidia).contains("--tensor-parallel-size"));
    let said = |one: &Value| {
        let env = container(one)["env"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        env.iter()
            .find(|one| one["name"] == "A")
            .map(|one| one["value"].clone())
    };
    assert_eq!(
        (said(amd), said(nvidia)),
        (Some(json!("own")), Some(json!("all")))
    );
    for (one, pool) in [(amd, "amd"), (nvidia, "nvidia")] {
        let labels = &one["spec"]["selector"]["matchLabels"];
        assert_eq!(labels[label::ACCELERATOR], pool);
        assert_eq!(
            one["spec"]["template"]["metadata"]["labels"][label::ACCELERATOR],
            pool
        );
    }
    let status = written(&plan);
    let said: Vec<_> = status
        .accelerators
        .iter()
        .map(|pool| {
            (
                pool.name.as_str(),
                pool.gpus.as_deref().unwrap_or_default(),
                pool.replicas,
            )
        })
        .collect();
    assert_eq!(
        said,
        [
            ("amd", "1 amd MI300X GPU", 3),
            ("nvidia", "2 nvidia H100-80GB or H100-94GB GPUs", 0)
        ]
    );
}

#[test]
fn copies_fall_over_to_the_next_pool_and_stay_there() {
    let nodes = [mi300x("a", 2), h100("b", 8)];
    let it = mixed(json!({}));
    let first = plan(&it, &fleet(&nodes, &[]), now());
    assert_eq!(
        copies(&first),
        both(2, 1),
        "the third finds no room in the first pool"
    );
    // All run; then a third AMD GPU comes: nobody moves.
    let pods = vec![
        of_pool("chat-amd-77-a", "amd", Some("a")),
        of_pool("chat-amd-77-b", "amd", Some("a")),
        of_pool("chat-nvidia-77-c", "nvidia", Some("b")),
    ];
    let seen = Seen {
        pools: made(&first, &[("chat-amd", 2), ("chat-nvidia", 1)]),
        pods: pods.clone(),
        ..fleet(&[mi300x("a", 4), h100("b", 8)], &[])
    };
    let second = plan(&it, &seen, now());
    assert_eq!(copies(&second), both(2, 1));
    let status = written(&second);
    assert_eq!(
        status.phase,
        Some(ServicePhase::Ready),
        "{:?}",
        status.message
    );
    assert_eq!(
        status.message.as_deref(),
        Some("3 of 3 copies answer (2 on amd, 1 on nvidia)")
    );
    // One fewer: the last pool gives up first. One more: the first has room again.
    assert_eq!(
        copies(&plan(&mixed(json!({ "replicas": 2 })), &seen, now())),
        both(2, 0)
    );
    assert_eq!(
        copies(&plan(&mixed(json!({ "replicas": 4 })), &seen, now())),
        both(3, 1)
    );
    // A copy more for a moment, while others are replaced, is no reason to give one up elsewhere.
    let mut more = pods;
    more.push(of_pool("chat-amd-88-d", "amd", Some("a")));
    let seen = Seen { pods: more, ..seen };
    assert_eq!(copies(&plan(&it, &seen, now())), both(2, 1));
}

#[test]
fn a_pool_whose_free_gpus_no_copy_gets_is_passed_over_for_a_while() {
    let nodes = [mi300x("a", 8), h100("b", 8)];
    let mut it = mixed(json!({ "replicas": 1 }));
    let first = plan(&it, &fleet(&nodes, &[]), now());
    let refused = Waiting {
        accelerator: Some("amd".to_owned()),
        since: Some(now()),
        verdict: Some(Verdict {
            reason: warp_api::reason::WAITING_FOR_CAPACITY,
            message: "the node is kept for another".to_owned(),
        }),
        ..Waiting::default()
    };
    let seen = Seen {
        pools: made(&first, &[]),
        pods: vec![of_pool("chat-amd-77-a", "amd", None)],
        waiting: vec![refused],
        ..fleet(&nodes, &[])
    };
    let second = plan(&it, &seen, now());
    assert_eq!(copies(&second), both(1, 0), "it was told a moment ago");
    let message = written(&second).message.expect("a message");
    assert!(
        message.contains("waits for 1 amd MI300X GPU: the node is kept"),
        "{message}"
    );
    let settled = now() + jiff::SignedDuration::from_secs(10);
    assert_eq!(second.again, Some(settled));
    let third = plan(&it, &seen, settled);
    assert_eq!(copies(&third), both(0, 1));
    let status = written(&third);
    assert!(status.accelerators[0].no_room_until.is_some());
    // The copy in the second pool waits too: it does not go back and forth.
    it.status = Some(status);
    let refused = Waiting {
        accelerator: Some("nvidia".to_owned()),
        since: Some(settled),
        ..seen.waiting[0].clone()
    };
    let seen = Seen {
        pools: made(&third, &[]),
        pods: vec![of_pool("chat-nvidia-77-b", "nvidia", None)],
        waiting: vec![refused],
        ..seen
    };
    assert_eq!(copies(&plan(&it, &seen, settled)), both(0, 1));
    let both_passed = plan(&it, &seen, settled + jiff::SignedDuration::from_secs(10));
    assert_eq!(copies(&both_passed), both(1, 0), "it waits in the first");
}

#[test]
fn a_copy_that_is_still_to_come_stays_in_its_pool() {
    let nodes = [mi300x("a", 1), h100("b", 2)];
    let it = mixed(json!({ "replicas": 2 }));
    let first = plan(&it, &fleet(&nodes, &[]), now());
    assert_eq!(copies(&first), both(1, 1));
    // Its GPUs are held already, and its pod is not seen yet.
    let held = [holder("b", "nvidia.com/gpu", 2)];
    let seen = Seen {
        pools: made(&first, &[("chat-amd", 1)]),
        pods: vec![of_pool("chat-amd-77-a", "amd", Some("a"))],
        ..fleet(&nodes, &held)
    };
    assert_eq!(copies(&plan(&it, &seen, now())), both(1, 1));
}

#[test]
fn a_pool_no_node_has_the_gpus_of_is_left_out_and_says_why() {
    let it = mixed(json!({}));
    let made = plan(&it, &fleet(&[h100("b", 8)], &[]), now());
    assert_eq!(copies(&made), [("chat-nvidia".to_owned(), 3)]);
    let status = written(&made);
    let why = status.accelerators[0].message.clone().expect("why");
    assert!(why.contains("no node has 1 amd MI300X GPU"), "{why}");
    let none = plan(&it, &fleet(&[], &[]), now());
    assert!(copies(&none).is_empty());
    let status = written(&none);
    assert_eq!(status.conditions[0].reason, "NoSuchGpu");
    let message = status.message.expect("a message");
    assert!(
        message.contains("MI300X") && message.contains("H100"),
        "{message}"
    );
}

#[test]
fn a_changed_pool_restarts_no_other() {
    let nodes = [mi300x("a", 8), h100("b", 8)];
    let it = mixed(json!({}));
    let first = plan(&it, &fleet(&nodes, &[]), now());
    let seen = Seen {
        pools: made(&first, &[("chat-amd", 3)]),
        ..fleet(&nodes, &[])
    };
    let mut changed = it.clone();
    changed.spec.accelerators[1].gpu_count = Some(4);
    let templates = |plan: &Plan| -> Vec<Value> {
        let applied = plan.actions.iter().filter_map(|action| match action {
            Action::Apply { object, .. } if object["kind"] == "Deployment" => {
                Some(object["spec"]["template"].clone())
            }
            _ => None,
        });
        applied.collect()
    };
    let (before, after) = (templates(&first), templates(&plan(&changed, &seen, now())));
    assert_eq!(before[0], after[0]);
    assert_ne!(before[1], after[1]);
}

#[test]
fn a_pool_whose_change_can_never_be_placed_keeps_what_it_serves_and_says_why() {
    let nodes = [mi300x("a", 1), h100("b", 2)];
    let it = mixed(json!({ "replicas": 2 }));
    let first = plan(&it, &fleet(&nodes, &[]), now());
    assert_eq!(copies(&first), both(1, 1));
    let held = [
        holder("a", "amd.com/gpu", 1),
        holder("b", "nvidia.com/gpu", 2),
    ];
    let seen = Seen {
        pools: made(&first, &[("chat-amd", 1), ("chat-nvidia", 1)]),
        pods: vec![
            of_pool("chat-amd-77-a", "amd", Some("a")),
            of_pool("chat-nvidia-77-b", "nvidia", Some("b")),
        ],
        ..fleet(&nodes, &held)
    };
    let mut unknown = it.clone();
    unknown.spec.accelerators[1].gpu = Some(gpu_named("H2000"));
    let mut too_many = it.clone();
    too_many.spec.accelerators[1].gpu_count = Some(16);
    for (changed, why) in [
        (unknown, "no node has 2 nvidia H2000 GPUs"),
        (too_many, "no node, empty, has a place for 16 nvidia"),
    ] {
        let made = plan(&changed, &seen, now());
        assert_eq!(copies(&made), both(1, 1), "{why}");
        let template = |plan: &Plan| {
            let mut applied = plan.actions.iter().filter_map(|action| match action {
                Action::Apply { object, .. } if object["metadata"]["name"] == "chat-nvidia" => {
                    Some(object["spec"]["template"].clone())
                }
                _ => None,
            });
            applied.next()
        };
        assert_eq!(template(&made), template(&first), "{why}");
        let status = written(&made);
        let said = status.accelerators[1].message.clone().unwrap_or_default();
        assert!(
            said.contains(why) && said.contains("stay as they are"),
            "{said}"
        );
        let said = status.message.unwrap_or_default();
        assert!(
            said.contains("1 of 2 copies are of the new spec, 2 copies answer"),
            "{said}"
        );
        assert!(said.contains(why), "{said}");
        // The other pool changed too, and no pool can have what it asks for: nothing goes either.
        let mut both_changed = changed.clone();
        both_changed.spec.accelerators[0].gpu = Some(gpu_named("MI3000X"));
        let made = plan(&both_changed, &seen, now());
        assert!(
            copies(&made).is_empty(),
            "{why}: what is there is left alone"
        );
        let gone = made
            .actions
            .iter()
            .any(|action| matches!(action, Action::Delete { .. }));
        assert!(!gone, "{why}");
        let said = written(&made).message.unwrap_or_default();
        assert!(said.contains(why) && said.contains("MI3000X"), "{said}");
    }
    // One that serves nothing is left out as before.
    let seen = Seen {
        pods: seen.pods[..1].to_vec(),
        ..seen
    };
    let mut unknown = it;
    unknown.spec.accelerators[1].gpu = Some(gpu_named("H2000"));
    assert_eq!(
        written(&plan(&unknown, &seen, now())).accelerators[1].replicas,
        0
    );
}

#[test]
fn a_copy_more_that_has_no_place_takes_none_from_its_pool() {
    let nodes = [mi300x("a", 1), h100("b", 2)];
    let it = mixed(json!({ "replicas": 2 }));
    let first = plan(&it, &fleet(&nodes, &[]), now());
    let held = [
        holder("a", "amd.com/gpu", 1),
        holder("b", "nvidia.com/gpu", 2),
    ];
    let never = Waiting {
        accelerator: Some("nvidia".to_owned()),
        since: Some(now()),
        verdict: Some(Verdict {
            reason: warp_api::reason::NEVER_FITS,
            message: "no node has so much memory".to_owned(),
        }),
        ..Waiting::default()
    };
    let seen = Seen {
        pools: made(&first, &[("chat-amd", 1), ("chat-nvidia", 1)]),
        pods: vec![
            of_pool("chat-amd-77-a", "amd", Some("a")),
            of_pool("chat-nvidia-77-b", "nvidia", Some("b")),
            of_pool("chat-nvidia-88-c", "nvidia", None),
        ],
        waiting: vec![never],
        ..fleet(&nodes, &held)
    };
    assert_eq!(copies(&plan(&it, &seen, now())), both(1, 1));
}

#[test]
fn copies_of_a_pool_that_is_none_any_more_serve_until_others_do() {
    let nodes = [mi300x("a", 8), h100("b", 8)];
    let plain = service(json!({ "replicas": 2, "gpu": { "models": ["H100"] } }));
    let numbers = json!({ "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2 });
    let old = {
        let made = plan(&plain, &fleet(&nodes, &[]), now());
        let mut object = applied(&made, "Deployment").expect("a Deployment");
        object["status"] = numbers;
        Arc::new(serde_json::from_value(object).expect("a Deployment"))
    };
    let it = mixed(json!({ "replicas": 2 }));
    let seen = Seen {
        deployment: Some(old),
        ..fleet(&nodes, &[])
    };
    let first = plan(&it, &seen, now());
    let mut expected = both(2, 0);
    expected.push(("chat".to_owned(), 2));
    assert_eq!(copies(&first), expected, "there is room beside them");
    let status = written(&first);
    assert_eq!(
        status.phase,
        Some(ServicePhase::Updating),
        "{:?}",
        status.message
    );
    let answering = |ready: i32| Seen {
        pools: made(&first, &[("chat-amd", ready)])
            .into_iter()
            .filter(|one| one.metadata.name.as_deref() != Some("chat"))
            .collect(),
        pods: (0..ready)
            .map(|copy| of_pool(&format!("chat-amd-77-{copy}"), "amd", Some("a")))
            .collect(),
        ..seen.clone()
    };
    expected[2].1 = 1;
    assert_eq!(copies(&plan(&it, &answering(1), now())), expected);
    let last = plan(&it, &answering(2), now());
    assert_eq!(copies(&last), both(2, 0));
    let deleted = last
        .actions
        .iter()
        .any(|action| matches!(action, Action::Delete { key, .. } if &*key.name == "chat"));
    assert!(deleted, "{:?}", last.actions);
}

#[test]
fn only_pods_of_the_pools_own_deployment_are_copies() {
    let good = of_pool("chat-amd-77-a", "amd", Some("a"));
    assert!(super::super::copies::is_copy(&good, "chat"));
    let mut wrong = (*good).clone();
    let labels = wrong.metadata.labels.as_mut().expect("labels");
    labels.insert(label::ACCELERATOR.to_owned(), "nvidia".to_owned());
    assert!(!super::super::copies::is_copy(&wrong, "chat"));
}
