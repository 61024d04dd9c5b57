//! Specs written to climb out of where they belong: refused by name, or waiting without harm.

use serde_json::{Value, json};
use warp_testkit::Faults;
use warp_testkit::fault::world::{Setup, World};

use super::{QUIET, operator, virtual_time};

/// Reasons with which a workload that cannot be made stands still.
pub(crate) const STANDS_STILL: [&str; 3] = ["JobRejected", "VolumeNotReady", "InvalidSpec"];

/// What is hostile, and a spec that is.
pub(crate) fn specs() -> Vec<(&'static str, Value)> {
    let simple = |extra: Value| {
        let mut spec = json!({"modelName": "m", "gpuCount": 1, "image": "i"});
        for (key, value) in extra.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        spec
    };
    let pod = |meta: Value, pod: Value, container: Value| {
        let mut main = json!({"name": "c", "image": "i"});
        for (key, value) in container.as_object().into_iter().flatten() {
            main[key] = value.clone();
        }
        let mut spec = json!({"containers": [main]});
        for (key, value) in pod.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        json!({"modelName": "m", "gpuCount": 1, "podTemplate": {"metadata": meta, "spec": spec}})
    };
    let none = || json!({});
    let volume = |source: Value| json!({"volumes": [source]});
    let mount =
        |path: &str| json!({"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": path}]});
    vec![
        (
            "claim-of-another-namespace",
            simple(volume(
                json!({"name": "v", "persistentVolumeClaim": {"claimName": "../victim/data"}}),
            )),
        ),
        (
            "host-path-that-climbs",
            simple(volume(
                json!({"name": "v", "hostPath": {"path": "/models/../../etc"}}),
            )),
        ),
        (
            "sub-path-that-climbs",
            pod(
                none(),
                volume(json!({"name": "v", "emptyDir": {}})),
                mount("../../etc"),
            ),
        ),
        (
            "absolute-sub-path",
            pod(
                none(),
                volume(json!({"name": "v", "emptyDir": {}})),
                mount("/etc"),
            ),
        ),
        (
            "projected-path-that-climbs",
            pod(
                none(),
                volume(
                    json!({"name": "v", "configMap": {"name": "m", "items": [{"key": "k", "path": "../../etc/passwd"}]}}),
                ),
                none(),
            ),
        ),
        (
            "label-key-with-spaces",
            pod(
                json!({"labels": {"gpu.warp.dev/ workload": "x"}}),
                none(),
                none(),
            ),
        ),
        (
            "label-value-with-a-line-break",
            pod(
                json!({"labels": {"a": "x\ngpu.warp.dev/attempt: 7"}}),
                none(),
                none(),
            ),
        ),
        (
            "annotation-of-half-a-megabyte",
            pod(
                json!({"annotations": {"a": "x".repeat(512 << 10)}}),
                none(),
                none(),
            ),
        ),
        (
            "container-name-that-climbs",
            pod(none(), none(), json!({"name": "../c"})),
        ),
        (
            "variable-name-with-a-sign",
            pod(
                none(),
                none(),
                json!({"env": [{"name": "A=B", "value": "x"}]}),
            ),
        ),
        (
            "account-that-climbs",
            pod(none(), json!({"serviceAccountName": "../default"}), none()),
        ),
        (
            "node-of-their-choice",
            pod(none(), json!({"nodeName": "box-1"}), none()),
        ),
        (
            "host-port-out-of-range",
            pod(
                none(),
                none(),
                json!({"ports": [{"containerPort": 1, "hostPort": 70000}]}),
            ),
        ),
    ]
}

#[test]
fn hostile_specs_are_refused_or_stand_still_and_hold_nothing() {
    let setup = Setup {
        fleet: "pools:\n- {name: box, count: 1, gpu: H100-80GB, gpus: 2}\n".to_owned(),
        part: Some(operator()),
        ..Setup::default()
    };
    let problems = virtual_time(async {
        let world = World::start(&setup, Faults::new("".parse()?)).await?;
        let manifest = |name: &str, spec: Value| {
            json!({"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
                "metadata": {"name": name, "namespace": "default"}, "spec": spec})
        };
        let mut problems = Vec::new();
        let mut made = Vec::new();
        for (name, spec) in specs() {
            let manifest = manifest(name, spec);
            match world.create(manifest.clone()).await {
                Ok(_) => made.push(manifest),
                Err(error) => {
                    let refused = error.downcast_ref::<kube::Error>().is_some_and(|error| {
                        matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 422))
                    });
                    if !refused {
                        problems.push(format!("{name}: {error:#}"));
                    }
                }
            }
        }
        world.settled(QUIET).await?;
        for manifest in &made {
            let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
            let object = world.api_of(manifest)?.get(name).await?;
            let reason = object.data["status"]["conditions"][0]["reason"].as_str();
            if !reason.is_some_and(|reason| STANDS_STILL.contains(&reason)) {
                problems.push(format!("{name}: {}", object.data["status"]));
            }
        }
        // Both GPUs are there for somebody who asks properly.
        let honest = manifest("honest", json!({"modelName": "m", "gpuCount": 2, "image": "i"}));
        world.create(honest.clone()).await?;
        let running = |object: Option<&Value>| {
            object.is_some_and(|object| object["status"]["phase"] == "Running")
        };
        world.until(&honest, "running", running).await?;
        Ok(problems)
    })
    .unwrap();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
