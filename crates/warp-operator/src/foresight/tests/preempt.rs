//! Whose place work of higher priority takes once that has run for long enough.

use super::*;

/// Work of low priority that has run since a second, with its Job and its pod.
fn running(cluster: &mut Cluster, name: &str, node: &str, gpus: u32, second: i64) {
    let found = workload(name, 0, &json!({"gpuCount": gpus, "priority": "low"}));
    let mut found = (*found).clone();
    found.status = serde_json::from_value(json!({"phase": "Running"})).unwrap();
    let uid = found.uid();
    let started = Timestamp::from_second(1_790_000_000 + second).unwrap();
    let job = json!({
        "metadata": {"name": format!("{name}-0"), "namespace": "default", "uid": format!("{name}-job"),
            "labels": {"gpu.warp.dev/workload": name, "gpu.warp.dev/workload-uid": uid, "gpu.warp.dev/attempt": "0"},
            "ownerReferences": [{"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "name": name,
                "uid": uid, "controller": true}]},
        "spec": {"parallelism": 1, "template": {"spec": {"containers": []}}}});
    let mut pod = serde_json::to_value(&*pod(name, node, gpus)).unwrap();
    pod["metadata"]["labels"]["gpu.warp.dev/workload-uid"] = json!(uid);
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "Job",
        "name": format!("{name}-0"), "uid": format!("{name}-job"), "controller": true}]);
    pod["status"]["startTime"] = json!(started.to_string());
    cluster.workloads.push(Arc::new(found));
    cluster
        .jobs
        .push(Arc::new(serde_json::from_value(job).unwrap()));
    cluster
        .pods
        .push(Arc::new(serde_json::from_value(pod).unwrap()));
}

/// Nobody goes before it has run for ten minutes; it is 1000 s.
fn settings() -> Settings {
    Settings {
        min_run_time: std::time::Duration::from_mins(10),
        ..Settings::default()
    }
}

fn foretold(cluster: &Cluster, spec: &Value) -> Option<Preempting> {
    let urgent = workload("urgent", 999, spec);
    let found = look(cluster, &urgent, &settings(), now()).unwrap();
    assert!(
        matches!(found.outlook, Outlook::Waits { .. }),
        "{:?}",
        found.outlook
    );
    found.preempts
}

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).unwrap()
}

#[test]
fn the_place_of_work_that_has_not_run_for_long_enough_is_foretold_with_its_time() {
    let mut cluster = Cluster {
        nodes: vec![node("a", 4), node("b", 4)],
        ..Cluster::default()
    };
    running(&mut cluster, "young", "a", 4, 990);
    running(&mut cluster, "older", "b", 4, 800);
    let high = json!({"gpuCount": 4, "priority": "high"});
    let told = foretold(&cluster, &high).expect("it takes a place later");
    assert_eq!(
        (told.at, told.whose.as_slice()),
        (second(1400), &["default/older".to_owned()][..])
    );
    // Both have to go for a gang: the younger decides.
    let gang = json!({"gpuCount": 4, "priority": "high", "replicas": 2});
    let told = foretold(&cluster, &gang).expect("it takes both places later");
    assert_eq!((told.at, told.whose.len()), (second(1590), 2));
}

#[test]
fn nothing_is_foretold_where_nobody_ever_goes_or_somebody_goes_now() {
    let mut cluster = Cluster {
        nodes: vec![node("a", 4)],
        ..Cluster::default()
    };
    running(&mut cluster, "young", "a", 4, 990);
    assert_eq!(
        foretold(&cluster, &json!({"gpuCount": 4, "priority": "low"})),
        None
    );
    let high = json!({"gpuCount": 4, "priority": "high"});
    let mut due = Cluster {
        nodes: vec![node("a", 4)],
        ..Cluster::default()
    };
    running(&mut due, "old", "a", 4, 100);
    assert_eq!(foretold(&due, &high), None);
}
