//! What the API server refuses of a GPURequest and of a CloudProvider, rule by rule, with examples it accepts.

// `json!` at the call reads best by value.
#![allow(clippy::needless_pass_by_value)]

use kube_cel::{ValidationErrors, Validator, compile_schema};
use serde_json::{Value, json};
use warp_api::{cloudprovider, crd, gpurequest};

fn request(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    })
}

fn provider(name: &str, kind: &str) -> Value {
    json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "CloudProvider",
        "metadata": {"name": name}, "spec": {"type": kind},
    })
}

fn refusals(crd: &Value, object: &Value, old: Option<&Value>) -> Vec<String> {
    let schema = compile_schema(crd::schema(crd));
    let errors = Validator::new().validate_compiled(&schema, object, old);
    let errors = errors
        .err()
        .into_iter()
        .flat_map(ValidationErrors::into_vec);
    errors.map(|error| error.message).collect()
}

#[test]
fn every_rule_of_a_request_refuses_its_example_and_no_other() {
    let crd = crd::gpu_request();
    for accepted in [
        json!({"gpuType": "RTX4090", "region": "us-west", "spotInstance": true, "maxSpotPrice": 0.25, "maxPrice": 0.5}),
        json!({"gpuType": "A100", "gpuCount": 4, "region": "us-east", "maxPrice": 10.0}),
        json!({"gpuType": "H100", "regionPreference": ["us-west-1", "us-east-1"], "maxPrice": "3.0", "spotInstance": true}),
        json!({"gpuModels": ["H100", "H200"], "providers": ["a", "b"], "spotInstance": true, "spotWait": "10m"}),
        json!({"minMemory": "40Gi"}),
        json!({"gpuType": "L4", "bootstrap": {"type": "k3s"}, "image": "ami-1", "userData": "#cloud-config"}),
    ] {
        let said = refusals(&crd, &request("r", accepted.clone()), None);
        assert_eq!(said, Vec::<String>::new(), "{accepted}");
    }
    let refused = [
        (
            request(&"x".repeat(64), json!({"gpuType": "L4"})),
            "at most 63 characters",
        ),
        (request("r", json!({"maxPrice": 1})), "which GPU is wanted"),
        (
            request("r", json!({"gpuType": "L4", "gpuModels": ["L4"]})),
            "gpuType and gpuModels",
        ),
        (
            request(
                "r",
                json!({"gpuType": "L4", "provider": "a", "providers": ["b"]}),
            ),
            "provider and providers",
        ),
        (
            request(
                "r",
                json!({"gpuType": "L4", "region": "a", "regionPreference": ["b"]}),
            ),
            "region and regionPreference",
        ),
        (
            request("r", json!({"gpuType": "L4", "gpuVendor": "nvidia"})),
            "gpuVendor belongs",
        ),
        (
            request("r", json!({"gpuType": "L4", "spotWait": "10m"})),
            "spotWait belongs",
        ),
    ];
    for (object, message) in &refused {
        let said = refusals(&crd, object, None);
        assert!(
            said.len() == 1 && said[0].contains(message),
            "{object}: {said:?}"
        );
    }
    for rule in gpurequest::RULES {
        let shown = refused
            .iter()
            .any(|(_, message)| rule.message.contains(message));
        assert!(shown, "no example of: {}", rule.message);
    }
}

#[test]
fn every_rule_of_a_provider_refuses_its_example_and_no_other() {
    let crd = crd::cloud_provider();
    let good = provider("fake", "fake");
    assert_eq!(refusals(&crd, &good, Some(&good)), Vec::<String>::new());
    let mut real = provider("lambda", "lambda");
    real["spec"]["credentials"] = json!({"secretName": "lambda"});
    real["spec"]["settings"] = json!({"sshKey": "warp", "diskGiB": 100});
    real["spec"]["requestsMaySet"] = json!(["image", "userData"]);
    let server = "https://203.0.113.7:6443";
    for bootstrap in [
        json!({"type": "none"}),
        json!({"type": "kubeadm", "server": server, "version": "v1.35.4", "powerOffAfter": "1h"}),
        json!({"type": "k3s", "server": "https://[2001:db8::1]:6443", "version": "v1.35.4+k3s1", "script": "true"}),
    ] {
        real["spec"]["bootstrap"] = bootstrap;
        assert_eq!(refusals(&crd, &real, None), Vec::<String>::new());
    }
    let mut sold = provider("fake", "fake");
    sold["spec"]["bootstrap"] = json!({"type": "container"});
    assert_eq!(refusals(&crd, &sold, None), Vec::<String>::new());
    let mut whole = real.clone();
    whole["spec"]["bootstrap"] = json!({"type": "container"});
    let mut nowhere = real.clone();
    nowhere["spec"]["bootstrap"] = json!({"type": "kubeadm"});
    let mut container = provider("fake", "fake");
    container["spec"]["bootstrap"] = json!({"type": "k3s", "server": server});
    let refused = [
        (nowhere, None, "bootstrap.server must be given"),
        (container, None, "bootstrap joins virtual machines"),
        (whole, None, "is for clouds that sell containers"),
        (
            provider(&"x".repeat(64), "fake"),
            None,
            "at most 63 characters",
        ),
        (
            provider("lambda", "lambda"),
            None,
            "needs spec.credentials.secretName",
        ),
        (good, Some(provider("fake", "other")), "type may not change"),
    ];
    for (object, old, message) in &refused {
        let said = refusals(&crd, object, old.as_ref());
        assert!(
            said.len() == 1 && said[0].contains(message),
            "{object}: {said:?}"
        );
    }
    for rule in cloudprovider::RULES {
        let shown = refused
            .iter()
            .any(|(_, _, message)| rule.message.contains(message));
        assert!(shown, "no example of: {}", rule.message);
    }
}
