use serde_json::json;
use warp_core::gpu::Catalogue;

use super::super::objects::{job_name, shell};
use super::workload;
use crate::placement::Place;

fn place(evidence: Option<&(String, String)>) -> Place {
    Place {
        node: "gpu-1".to_owned(),
        resource: "nvidia.com/gpu".to_owned(),
        extra: std::collections::BTreeMap::new(),
        milli: 1000,
        evidence: evidence.cloned(),
        strategy: "leastLoaded",
        provider: "kubernetes".to_owned(),
        why: "leastLoaded chose node gpu-1".to_owned(),
    }
}

#[test]
fn a_simple_workload_becomes_a_pinned_job() {
    let workload = workload(
        json!({
            "command": ["python"], "args": ["train.py"], "maxRuntime": "2h",
            "env": [{"name": "EPOCHS", "value": "3"}],
            "resources": {"requests": {"cpu": "4"}, "limits": {"memory": "16Gi"}},
            "volumes": [
                {"name": "data", "readOnly": true, "persistentVolumeClaim": {"claimName": "set"}},
                {"name": "shm", "mountPath": "/dev/shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
                {"name": "host", "hostPath": {"path": "/models"}}
            ]
        }),
        json!(null),
    );
    let product = (
        "nvidia.com/gpu.product".to_owned(),
        "NVIDIA-H100-80GB-HBM3".to_owned(),
    );
    let job =
        shell(&workload, &Catalogue::default())
            .unwrap()
            .job(&workload, 0, &place(Some(&product)));
    insta::assert_yaml_snapshot!(job);
}

#[test]
fn the_node_goes_into_every_alternative_of_a_templates_affinity() {
    let workload = workload(
        json!({
            "image": null,
            "podTemplate": {
                "metadata": {"labels": {"team": "a"}},
                "spec": {
                    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
                    ]}}},
                    "containers": [
                        {"name": "proxy", "image": "p"},
                        {"name": "gpu-workload", "image": "w", "resources": {"limits": {"nvidia.com/gpu": 2}}}
                    ]
                }
            }
        }),
        json!(null),
    );
    let job = shell(&workload, &Catalogue::default())
        .unwrap()
        .job(&workload, 1, &place(None));
    insta::assert_yaml_snapshot!(job);
}

#[test]
fn gpus_in_a_template_must_agree_with_the_count() {
    let template = |containers: serde_json::Value| {
        let spec = json!({"image": null, "podTemplate": {"spec": {"containers": containers}}});
        shell(&workload(spec, json!(null)), &Catalogue::default())
            .map(|_| ())
            .map_err(|bad| bad.0)
    };
    let asking = |name: &str, resource: &str, count: i32| json!({"name": name, "resources": {"limits": {resource: count}, "requests": {resource: count}}});
    assert_eq!(template(json!([asking("a", "nvidia.com/gpu", 2)])), Ok(()));
    assert!(template(json!([asking("a", "nvidia.com/gpu", 1)])).is_err());
    assert!(template(json!([asking("a", "amd.com/gpu", 2)])).is_err());
    let twice = json!([
        asking("a", "nvidia.com/gpu", 2),
        asking("b", "nvidia.com/gpu", 2)
    ]);
    assert!(template(twice).unwrap_err().contains("container b"));
    assert!(template(json!([])).is_err());
}

#[test]
fn the_container_that_asks_gets_the_gpus_and_the_owners_app_label_stays() {
    let containers = json!([
        {"name": "proxy", "image": "p"},
        {"name": "trainer", "image": "t", "resources": {"limits": {"nvidia.com/gpu": 2}}},
    ]);
    let template =
        json!({"metadata": {"labels": {"app": "mine"}}, "spec": {"containers": containers}});
    let workload = workload(json!({"image": null, "podTemplate": template}), json!(null));
    let job = shell(&workload, &Catalogue::default())
        .unwrap()
        .job(&workload, 0, &place(None));
    let made = serde_json::to_value(job.spec.unwrap().template).unwrap();
    assert_eq!(made["metadata"]["labels"]["app"], "mine");
    let containers = &made["spec"]["containers"];
    assert_eq!(containers[0]["resources"], json!(null));
    assert_eq!(containers[1]["resources"]["limits"]["nvidia.com/gpu"], "2");
    let init = json!({"image": null, "podTemplate": {"spec": {
        "initContainers": [{"name": "warm", "resources": {"limits": {"nvidia.com/gpu": 2}}}],
        "containers": [{"name": "c"}],
    }}});
    let bad = shell(&super::workload(init, json!(null)), &Catalogue::default()).unwrap_err();
    assert!(bad.0.contains("init container warm"), "{}", bad.0);
}

#[test]
fn job_names_are_deterministic_and_never_too_long() {
    let mut workload = workload(json!({}), json!(null));
    assert_eq!(job_name(&workload, 2), "train-01234567-2");
    workload.metadata.name = Some(format!("{}.{}", "a".repeat(51), "b".repeat(11)));
    let name = job_name(&workload, 10);
    assert_eq!(name, format!("{}-01234567-10", "a".repeat(51)));
    assert_eq!(name.len(), 63);
}

#[test]
fn a_container_of_an_image_is_confined_as_far_as_any_image_bears() {
    let context = |spec: serde_json::Value| {
        let shell = shell(&workload(spec, json!(null)), &Catalogue::default()).unwrap();
        let pod = shell.template.spec.unwrap();
        let container = serde_json::to_value(&pod.containers[0].security_context).unwrap();
        (
            container,
            serde_json::to_value(&pod.security_context).unwrap(),
        )
    };
    let restricted = json!({
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"}
    });
    assert_eq!(context(json!({})), (restricted, json!(null)));
    // What is given stays; root or not is the image's and its user's to say.
    let given = json!({
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}, "runAsUser": 7},
        "podSecurityContext": {"runAsNonRoot": true}
    });
    let (container, pod) = context(given);
    assert_eq!(container["capabilities"], json!({"add": ["IPC_LOCK"]}));
    assert_eq!(container["runAsUser"], 7);
    assert_eq!(container["allowPrivilegeEscalation"], false);
    assert_eq!(pod, json!({"runAsNonRoot": true}));
    // The API server refuses these beside each other.
    let (container, _) = context(json!({"securityContext": {"privileged": true}}));
    assert_eq!(container, json!({"privileged": true}));
    let admin = json!({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}});
    assert!(context(admin).0.get("allowPrivilegeEscalation").is_none());
    // Where root is forbidden, an image's pod says that it is not, unless its owner has spoken.
    let unrooted = |spec: serde_json::Value| {
        let workload = workload(spec, json!(null));
        let mut shell = shell(&workload, &Catalogue::default()).unwrap();
        shell.without_root(&workload.spec);
        serde_json::to_value(&shell.template.spec.unwrap().security_context).unwrap()
    };
    let not_root = json!({"runAsNonRoot": true});
    assert_eq!(unrooted(json!({})), not_root);
    let user = json!({"podSecurityContext": {"runAsUser": 7}});
    assert_eq!(
        unrooted(user),
        json!({"runAsNonRoot": true, "runAsUser": 7})
    );
    let root = json!({"runAsNonRoot": false});
    assert_eq!(unrooted(json!({"podSecurityContext": root})), root);
    assert_eq!(unrooted(json!({"securityContext": root})), json!(null));
    // A template is its owner's.
    let own = json!({"image": null, "podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
    assert_eq!(context(own.clone()), (json!(null), json!(null)));
    assert_eq!(unrooted(own), json!(null));
}

#[test]
fn what_nobody_could_read_is_told_before_anything_is_placed_or_rented() {
    for (spec, told) in [
        (
            json!({"resources": {"requests": {"memory": "16gigs"}}}),
            "asks for '16gigs' of memory",
        ),
        (
            json!({"resources": {"limits": {"cpu": "many"}}}),
            "asks for 'many' of cpu",
        ),
        (json!({"rent": {"maxPrice": -3}}), "spec.rent.maxPrice: -3"),
        (
            json!({"rent": {"maxPrice": "2.50", "maxTotalPrice": "dear"}}),
            "spec.rent.maxTotalPrice: 'dear'",
        ),
    ] {
        let bad = shell(&workload(spec.clone(), json!(null)), &Catalogue::default());
        let bad = bad.expect_err("it is refused").0;
        assert!(bad.contains(told), "{spec}: {bad}");
    }
    let fine = json!({
        "resources": {"requests": {"cpu": 4, "memory": "1.5Gi"}, "limits": {"cpu": "500m"}},
        "rent": {"maxPrice": 2.5},
    });
    assert!(shell(&workload(fine, json!(null)), &Catalogue::default()).is_ok());
}
