//! What the specs are, for the walks and for the end-to-end suite.

use serde_json::{Value, json};

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
