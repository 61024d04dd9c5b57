//! What the fetch is told about where a model comes from.

use super::*;

#[test]
fn a_bucket_and_a_list_of_files_become_arguments_and_secrets_stay_references() {
    let bucket = cache(json!({"source": {"s3": {
        "bucket": "models", "prefix": "/llama/8b/", "endpoint": "https://minio", "credentialsSecret": "keys",
    }}}));
    let container = |cache: &ModelCache| {
        let job = job(cache, &seen().fetcher, "warp:test");
        let pod = job.spec.and_then(|spec| spec.template.spec).expect("a pod");
        serde_json::to_value(&pod.containers[0]).expect("a container")
    };
    let made = container(&bucket);
    let words = made["args"].as_array().expect("arguments");
    assert_eq!(words.last(), Some(&json!("s3://models/llama/8b")));
    let secret = |key: &str| json!({"name": key, "valueFrom": {"secretKeyRef": {"name": "keys", "key": key}}});
    let env = made["env"].as_array().expect("an environment");
    for expected in [
        secret("AWS_ACCESS_KEY_ID"),
        secret("AWS_SECRET_ACCESS_KEY"),
        json!({"name": "AWS_REGION", "value": "us-east-1"}),
        json!({"name": "AWS_ENDPOINT_URL", "value": "https://minio"}),
    ] {
        assert!(env.contains(&expected), "{expected} is not in {env:?}");
    }
    let listed = |path: &str| {
        cache(json!({"source": {"http": {
            "url": "https://h/m/", "tokenSecret": "host", "files": [{"path": path, "sha256": "0".repeat(64)}],
        }}}))
    };
    let made = container(&listed("a$b.json"));
    let words = made["args"].as_array().expect("arguments");
    let file = format!("--file=a$$b.json#sha256={}", "0".repeat(64));
    assert!(words.contains(&json!(file)), "{words:?}");
    assert_eq!(words.last(), Some(&json!("https://h/m/")));
    let token = json!({"name": "WARP_HTTP_TOKEN", "valueFrom": {"secretKeyRef": {"name": "host", "key": "token"}}});
    let env = made["env"].as_array().expect("an environment");
    assert!(env.contains(&token), "{env:?}");
    assert_ne!(
        content_key(&listed("a").spec),
        content_key(&listed("b").spec)
    );
}

#[test]
fn an_artifact_is_named_as_it_is_and_its_secret_is_mounted() {
    let artifact = |more: Value| {
        let mut oci = json!({"reference": "ghcr.io/org/tiny:v1"});
        for (name, value) in more.as_object().into_iter().flatten() {
            oci[name] = value.clone();
        }
        cache(json!({"source": {"oci": oci}}))
    };
    let pod = |cache: &ModelCache| {
        let job = job(cache, &seen().fetcher, "warp:test");
        let pod = job.spec.and_then(|spec| spec.template.spec).expect("a pod");
        serde_json::to_value(pod).expect("a pod")
    };
    let open = artifact(json!({}));
    let made = pod(&open);
    let words = made["containers"][0]["args"].as_array().expect("arguments");
    assert_eq!(words.last(), Some(&json!("oci://ghcr.io/org/tiny:v1")));
    assert!(!made.to_string().contains("credentials"), "{made}");
    let closed = artifact(json!({"credentialsSecret": "pull", "plainHttp": true}));
    let made = pod(&closed);
    let words = made["containers"][0]["args"].as_array().expect("arguments");
    for word in ["--plain-http", "--credentials=/credentials"] {
        assert!(words.contains(&json!(word)), "{word}: {words:?}");
    }
    let volumes = made["volumes"].as_array().expect("volumes");
    let volume = json!({"name": "credentials", "secret": {"secretName": "pull"}});
    assert!(volumes.contains(&volume), "{volumes:?}");
    let mounts = made["containers"][0]["volumeMounts"].as_array();
    let mount = json!({"name": "credentials", "mountPath": "/credentials", "readOnly": true});
    assert!(mounts.expect("mounts").contains(&mount), "{mounts:?}");
    assert_ne!(content_key(&open.spec), content_key(&closed.spec));
}

#[test]
fn googles_and_azures_stores_are_named_and_their_secrets_are_mounted() {
    for (source, word, variable) in [
        (
            json!({"gcs": {"bucket": "models", "prefix": "/llama/", "endpoint": "http://fake", "credentialsSecret": "keys"}}),
            "gs://models/llama",
            "STORAGE_EMULATOR_HOST",
        ),
        (
            json!({"azure": {
                "account": "acc", "container": "models", "prefix": "llama", "endpoint": "http://fake", "credentialsSecret": "keys",
            }}),
            "az://acc/models/llama",
            "AZURE_STORAGE_ENDPOINT",
        ),
    ] {
        let cache = cache(json!({"source": source}));
        let job = job(&cache, &seen().fetcher, "warp:test");
        let pod = job.spec.and_then(|spec| spec.template.spec).expect("a pod");
        let made = serde_json::to_value(pod).expect("a pod");
        let words = made["containers"][0]["args"].as_array().expect("arguments");
        assert_eq!(words.last(), Some(&json!(word)));
        assert!(
            words.contains(&json!("--credentials=/credentials")),
            "{words:?}"
        );
        let env = made["containers"][0]["env"].as_array().expect("variables");
        let other = json!({"name": variable, "value": "http://fake"});
        assert!(env.contains(&other), "{env:?}");
        let volume = json!({"name": "credentials", "secret": {"secretName": "keys"}});
        assert!(
            made["volumes"]
                .as_array()
                .expect("volumes")
                .contains(&volume)
        );
    }
}
