mod preempt;
mod rent;

use serde_json::{Value, json};
use warp_core::schedule::Policy;
use warp_core::simulate::fleet::Scenario;

use super::*;

fn node(name: &str, gpus: u32) -> Arc<Node> {
    let object = json!({
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            "nvidia.com/gpu.memory": "81559", "gpu.warp.dev/gpu-hour-price": "2.50"}},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string()},
            "conditions": [{"type": "Ready", "status": "True"}]}});
    Arc::new(serde_json::from_value(object).unwrap())
}

/// A pod of a workload, running.
fn pod(workload: &str, node: &str, gpus: u32) -> Arc<Pod> {
    let object = json!({
        "metadata": {"name": format!("{workload}-0-abcde"), "namespace": "default", "uid": format!("pod-{workload}"),
            "labels": {"gpu.warp.dev/workload": workload}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "a",
            "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]},
        "status": {"phase": "Running"}});
    Arc::new(serde_json::from_value(object).unwrap())
}

fn workload(name: &str, second: i64, spec: &Value) -> Arc<GPUWorkload> {
    let created = Timestamp::from_second(1_790_000_000 + second).unwrap();
    let mut object = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "metadata": {"name": name, "namespace": "default", "uid": format!("{name}-uid-0000"), "generation": 1,
            "creationTimestamp": created.to_string()},
        "spec": {"modelName": "m", "gpuCount": 1, "image": "a"},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    Arc::new(serde_json::from_value(object).unwrap())
}

fn now() -> Timestamp {
    Timestamp::from_second(1_790_001_000).unwrap()
}

fn seen(cluster: &Cluster, workload: &GPUWorkload) -> Look {
    look(cluster, workload, &Settings::default(), now()).unwrap()
}

fn place(outlook: &Outlook) -> Option<&str> {
    match outlook {
        Outlook::Starts(start) => start.nodes.first().map(String::as_str),
        _ => None,
    }
}

#[test]
fn what_is_not_in_the_cluster_yet_is_told_its_place_and_price() {
    let cluster = Cluster {
        nodes: vec![node("a", 8), node("b", 4)],
        ..Cluster::default()
    };
    let found = seen(&cluster, &workload("new", 0, &json!({"gpuCount": 8})));
    let Outlook::Starts(start) = &found.outlook else {
        panic!("it fits: {:?}", found.outlook);
    };
    assert_eq!(
        (start.places().as_str(), start.price_micros),
        ("a", Some(2_500_000))
    );
    assert_eq!(found.evidence.len(), 1);
    assert_eq!(found.evidence[0].nodes, ["b"]);
    let chosen: Vec<_> = found.groups.iter().filter(|group| group.chosen).collect();
    assert_eq!(
        (chosen.len(), chosen[0].fitting, chosen[0].gpus),
        (1, 1, 12)
    );
    assert!(found.changes.is_empty() && found.in_the_way.is_empty());
}

#[test]
fn higher_priority_and_then_age_decide_who_is_served_first() {
    let line = [
        workload("young", 9, &json!({"gpuCount": 4})),
        workload("old", 1, &json!({"gpuCount": 4})),
        workload("urgent", 10, &json!({"gpuCount": 4, "priority": "high"})),
        workload("held", 0, &json!({"suspend": true})),
    ];
    let cluster = Cluster {
        nodes: vec![node("a", 8)],
        workloads: line.to_vec(),
        ..Cluster::default()
    };
    let told = super::line(&cluster, &Settings::default(), now());
    let names: Vec<_> = told.iter().map(|one| one.workload.name_any()).collect();
    assert_eq!(names, ["urgent", "old", "young"]);
    let places: Vec<_> = told.iter().map(|one| place(&one.outlook)).collect();
    assert_eq!(places, [Some("a"), Some("a"), None]);
    let last = seen(&cluster, &line[0]);
    assert_eq!(last.ahead.len(), 2);
    assert_eq!(place(&last.outlook), None);
}

#[test]
fn a_change_that_is_named_makes_it_start() {
    let cluster = Cluster {
        nodes: vec![node("a", 8), node("b", 4)],
        pods: vec![pod("other", "a", 5)],
        ..Cluster::default()
    };
    let ask = workload("wide", 0, &json!({"gpuCount": 8}));
    let found = seen(&cluster, &ask);
    assert_eq!(found.changes, [[Change::FewerGpus(4)]]);
    let smaller = workload("wide", 0, &json!({"gpuCount": 4}));
    assert_eq!(place(&seen(&cluster, &smaller).outlook), Some("b"));
}

#[test]
fn nobody_is_named_as_in_the_way_whose_room_those_ahead_would_have() {
    let mut cluster = Cluster {
        nodes: vec![node("a", 8)],
        pods: vec![pod("large", "a", 8)],
        ..Cluster::default()
    };
    let last = workload("last", 5, &json!({"gpuCount": 8}));
    assert_eq!(seen(&cluster, &last).in_the_way.len(), 1);
    cluster.workloads = vec![workload("next", 1, &json!({"gpuCount": 8}))];
    let found = seen(&cluster, &last);
    assert_eq!(found.ahead.len(), 1);
    assert!(found.in_the_way.is_empty(), "{:?}", found.in_the_way);
}

#[test]
fn a_workload_that_is_named_as_in_the_way_makes_room_when_it_goes() {
    let mut cluster = Cluster {
        nodes: vec![node("a", 8)],
        pods: vec![pod("small", "a", 1), pod("large", "a", 4)],
        ..Cluster::default()
    };
    let ask = workload("wide", 0, &json!({"gpuCount": 7}));
    let found = seen(&cluster, &ask);
    let names: Vec<_> = found
        .in_the_way
        .iter()
        .map(|holder| holder.name.as_str())
        .collect();
    assert_eq!(names, ["large"], "one GPU more is not enough");
    assert_eq!(found.in_the_way[0].gpus, 4);
    cluster
        .pods
        .retain(|pod| pod.name_any().starts_with("small"));
    assert_eq!(place(&seen(&cluster, &ask).outlook), Some("a"));
}

#[test]
fn a_snapshot_read_back_places_what_runs_where_it_is_and_the_queue_as_live() {
    let cluster = Cluster {
        nodes: vec![node("a", 8), node("b", 8)],
        pods: vec![pod("one", "a", 6), pod("two", "b", 3)],
        workloads: vec![
            workload("fits", 1, &json!({"gpuCount": 5})),
            workload("waits", 2, &json!({"gpuCount": 8})),
        ],
        ..Cluster::default()
    };
    let text = serde_json::to_string(&cluster.scenario(&Settings::default(), now())).unwrap();
    let read: Scenario = serde_json::from_str(&text).unwrap();
    let outcome = read.run(Policy::Warp, 42).unwrap();
    let placed: Vec<_> = outcome
        .placed
        .iter()
        .map(|placed| (&*placed.request, &*placed.node))
        .collect();
    assert_eq!(
        placed,
        [
            ("default/one-0-abcde", "a"),
            ("default/two-0-abcde", "b"),
            ("default/fits", "b"),
        ]
    );
    assert_eq!(&*outcome.refused[0].request, "default/waits");
}

#[test]
fn a_spec_that_cannot_be_carried_out_is_said_to_be_so() {
    let bad = workload("bad", 0, &json!({"gpu": {"models": ["H100", "MI300X"]}}));
    let told = look(&Cluster::default(), &bad, &Settings::default(), now()).unwrap_err();
    assert!(told.contains("several vendors"), "{told}");
}

#[test]
fn a_tenants_word_orders_work_that_says_none_for_those_who_may_read_it_and_those_who_may_not() {
    let tenant = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "t"},
        "spec": {"namespaces": {"names": ["default"]}, "defaults": {"priority": "high"}}});
    let namespace = json!({"metadata": {"name": "default"}});
    let silent = workload("silent", 5, &json!({}));
    let mut cluster = Cluster {
        workloads: vec![
            workload("said", 0, &json!({"priority": "normal"})),
            Arc::clone(&silent),
        ],
        tenants: vec![Arc::new(serde_json::from_value(tenant).unwrap())],
        namespaces: vec![Arc::new(serde_json::from_value(namespace).unwrap())],
        ..Cluster::default()
    };
    let first = |cluster: &Cluster| waiting(cluster, now())[0].name_any();
    assert_eq!(first(&cluster), "silent");
    let mut told = (*silent).clone();
    told.status = Some(warp_api::GPUWorkloadStatus {
        priority: Some(Priority::High),
        ..Default::default()
    });
    cluster = Cluster {
        workloads: vec![Arc::clone(&cluster.workloads[0]), Arc::new(told)],
        ..Cluster::default()
    };
    assert_eq!(first(&cluster), "silent", "its status says it");
}

#[test]
fn what_the_api_server_refuses_has_no_place_and_holds_nobody_up() {
    let refused = workload("refused", 0, &json!({"gpuCount": 8}));
    let mut rejected = (*refused).clone();
    rejected.status = serde_json::from_value(json!({"phase": "Pending", "conditions": [{
        "type": "Ready", "status": "False", "reason": "JobRejected", "message": "no",
        "lastTransitionTime": "2026-11-15T12:00:00Z"}]}))
    .unwrap();
    let mut cluster = Cluster {
        nodes: vec![node("a", 8)],
        workloads: vec![refused],
        ..Cluster::default()
    };
    let next = workload("next", 5, &json!({"gpuCount": 8}));
    assert_eq!(
        place(&seen(&cluster, &next).outlook),
        None,
        "it comes after"
    );
    cluster.workloads = vec![Arc::new(rejected)];
    assert_eq!(place(&seen(&cluster, &next).outlook), Some("a"));
}

#[test]
fn a_gang_that_waits_is_told_how_many_of_it_would_start_and_where_it_need_not_be_close() {
    let cluster = Cluster {
        nodes: vec![node("a", 8), node("b", 8), node("c", 8)],
        ..Cluster::default()
    };
    let wide = seen(
        &cluster,
        &workload("wide", 0, &json!({"gpuCount": 8, "replicas": 5})),
    );
    assert_eq!(
        wide.gang,
        GangChanges {
            members: Some(3),
            apart: false
        }
    );
    let zone =
        json!({"gpuCount": 8, "replicas": 3, "topology": {"level": "host", "mode": "required"}});
    let close = seen(&cluster, &workload("close", 0, &zone));
    assert!(close.gang.apart, "{:?}", close.outlook);
    let alone = seen(&cluster, &workload("alone", 0, &json!({"gpuCount": 16})));
    assert_eq!(alone.gang, GangChanges::default());
}

#[test]
fn whose_spec_is_wrong_has_no_place_in_line() {
    let wrong = json!({"priorityClassName": "nobody-made-it"});
    let other = json!({"metadata": {"name": "other"}, "value": 1});
    let cluster = Cluster {
        workloads: vec![
            workload("wrong", 0, &wrong),
            workload("right", 5, &json!({})),
        ],
        priorities: vec![Arc::new(serde_json::from_value(other).unwrap())],
        ..Cluster::default()
    };
    let line = everybody(&cluster, &Settings::default(), now());
    let names: Vec<String> = line
        .iter()
        .map(|one| match one {
            Waiter::Workload(one) => one.name_any(),
            Waiter::Job(one) => one.job.name_any(),
        })
        .collect();
    assert_eq!(names, ["right"]);
}

#[test]
fn no_change_is_named_that_would_need_it_to_be_a_container_of_a_cloud() {
    let mut rented = (*node("c", 8)).clone();
    rented.spec.get_or_insert_default().taints = Some(vec![
        serde_json::from_value(json!({"key": "gpu.warp.dev/container", "effect": "NoSchedule"}))
            .unwrap(),
    ]);
    let cluster = Cluster {
        nodes: vec![node("a", 4), Arc::new(rented)],
        ..Cluster::default()
    };
    let template = json!({"spec": {
        "containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "data", "emptyDir": {}}]}});
    let spec = json!({"image": null, "gpuCount": 8, "podTemplate": template});
    let found = seen(&cluster, &workload("wide", 0, &spec));
    assert_eq!(found.changes, [[Change::FewerGpus(4)]]);
}
