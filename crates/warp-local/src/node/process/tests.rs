//! The parts of the process runtime that need no process.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::json;

use super::spec::{entry, relocate};

#[test]
fn words_that_name_a_mount_follow_it() {
    let mounts = vec![
        ("/data".to_owned(), PathBuf::from("/p/data")),
        ("/data/deep".to_owned(), PathBuf::from("/q")),
    ];
    let cases = [
        ("/data", "/p/data"),
        ("/data/x", "/p/data/x"),
        ("/database", "/database"),
        ("/data/deep/x", "/q/x"),
        ("--out=/data/x", "--out=/p/data/x"),
        ("key=/data/x", "key=/data/x"),
        ("echo /data/x", "echo /data/x"),
    ];
    for (word, expected) in cases {
        assert_eq!(relocate(word, &mounts), expected, "{word}");
    }
}

#[test]
fn an_image_stands_for_a_command_only_when_somebody_said_so() {
    let pod = |annotations: serde_json::Value| -> Pod {
        serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap()
    };
    let container = |image: &str| Container {
        name: "c".to_owned(),
        image: Some(image.to_owned()),
        ..Container::default()
    };
    let none = pod(json!({}));
    assert_eq!(entry(&none, &container("local://")), Ok(vec![]));
    assert_eq!(
        entry(&none, &container("local:///bin/true")),
        Ok(vec!["/bin/true".to_owned()])
    );
    assert!(
        entry(&none, &container("vllm/vllm-openai"))
            .unwrap_err()
            .contains("local://")
    );
    let told = pod(json!({"process.gpu.warp.dev/command.c": "[\"vllm\", \"serve\"]"}));
    assert_eq!(
        entry(&told, &container("vllm/vllm-openai")),
        Ok(vec!["vllm".to_owned(), "serve".to_owned()])
    );
    let wrong = pod(json!({"process.gpu.warp.dev/command": "vllm serve"}));
    assert!(
        entry(&wrong, &container("x"))
            .unwrap_err()
            .contains("JSON list")
    );
}
