//! What must hold whatever clients send and however the server is run: bounded memory, no panic,
//! private files, nothing given twice.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use futures::future::join_all;
use kube::Client;
use serde_json::{Value, json};
use warp_apiserver::clock::Clock;
use warp_apiserver::{ApiServer, Options};

use crate::api::server;
use crate::exchange::{Sent, json, send};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn post(client: &Client, path: &str, object: Value) -> (u16, Value) {
    json(client, "POST", path, &object).await
}

async fn made(client: &Client, path: &str, object: Value) -> Value {
    let (code, answer) = post(client, path, object).await;
    assert_eq!(code, 201, "{answer}");
    answer
}

#[tokio::test]
async fn copies_of_a_json_patch_are_bounded() {
    let server = server().await;
    let client = server.client("default");
    let object = json!({"metadata": {"name": "a", "annotations": {"seed": "x".repeat(100)}}});
    made(&client, MAPS, object).await;
    let copies: Vec<Value> = (0..40)
        .map(|n| json!({"op": "copy", "from": "/metadata/annotations", "path": format!("/metadata/annotations/a{n}")}))
        .collect();
    let sent = Sent {
        method: "PATCH",
        path: &format!("{MAPS}/a"),
        content_type: "application/json-patch+json",
        accept: "application/json",
        body: Value::Array(copies).to_string().into_bytes(),
    };
    let reply = send(&client, &sent).await;
    assert_eq!(reply.code, 422, "{}", reply.json());
}

#[tokio::test]
async fn the_longest_timeout_a_number_can_say_is_a_watch() {
    let server = server().await;
    let client = server.client("default");
    let path =
        format!("{MAPS}?watch=true&timeoutSeconds=9223372036854775807&resourceVersion=99999");
    let (code, answer) = json(&client, "GET", &path, &Value::Null).await;
    assert_ne!(code, 500, "{answer}");
    let request = http::Request::get(path.replace("&resourceVersion=99999", ""))
        .body(kube::client::Body::empty())
        .expect("a request");
    let watch = client.send(request).await.expect("an answer");
    assert_eq!(watch.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn events_go_an_hour_after_their_last_write() {
    let mut options = Options::ephemeral().expect("options");
    options.clock = Clock::tokio("2026-01-01T00:00:00Z".parse().expect("a time"));
    let server = ApiServer::start(options).await.expect("a server");
    let client = server.client("default");
    let path = "/api/v1/namespaces/default/events";
    let event = |name: &str| {
        json!({
            "metadata": {"name": name, "namespace": "default"},
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
            "reason": "R", "message": "m", "type": "Normal",
        })
    };
    for name in ["told-once", "told-again"] {
        made(&client, path, event(name)).await;
    }
    tokio::time::advance(Duration::from_mins(40)).await;
    let again = json!({"count": 2});
    let (code, answer) = json(&client, "PATCH", &format!("{path}/told-again"), &again).await;
    assert_eq!(code, 200, "{answer}");
    // Stepwise: the sweep runs in between.
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_mins(3)).await;
    }
    let (_, list) = json(&client, "GET", path, &Value::Null).await;
    let names: Vec<&Value> = list["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|e| &e["metadata"]["name"])
        .collect();
    assert_eq!(names, ["told-again"]);
}

#[tokio::test]
async fn no_two_services_get_the_same_port_or_address() {
    let server = server().await;
    let client = server.client("default");
    let path = "/api/v1/namespaces/default/services";
    let service = |name: String| json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
    let all = join_all((0..16).map(|n| made(&client, path, service(format!("s{n}"))))).await;
    let mut ports: Vec<i64> = all
        .iter()
        .filter_map(|s| s["spec"]["ports"][0]["nodePort"].as_i64())
        .collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 16);
    let mut taken = service("named".to_owned());
    taken["spec"]["ports"][0]["nodePort"] = ports[3].into();
    let (code, refused) = post(&client, path, taken).await;
    assert_eq!(code, 422);
    assert_eq!(
        refused["details"]["causes"][0]["message"],
        format!(
            "Invalid value: {}: provided port is already allocated",
            ports[3]
        )
    );
    let mut taken = service("addressed".to_owned());
    taken["spec"]["clusterIP"] = all[0]["spec"]["clusterIP"].clone();
    let (code, refused) = post(&client, path, taken).await;
    assert_eq!(code, 422, "{refused}");
    let mut same = all[0].clone();
    same["metadata"]["labels"] = json!({"a": "b"});
    let (code, kept) = json(&client, "PUT", &format!("{path}/s0"), &same).await;
    assert_eq!(code, 200, "its own port is no clash: {kept}");
}

#[test]
fn secrets_are_kept_from_other_users() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let options = Options::in_directory(&data, &[]).expect("options");
        let server = ApiServer::start(options).await.expect("a server");
        server.shutdown().await;
    });
    let mode = |path: &std::path::Path| {
        std::fs::metadata(path).expect("there").permissions().mode() & 0o777
    };
    assert_eq!(mode(&data), 0o700);
    for file in std::fs::read_dir(&data).expect("a folder") {
        let path = file.expect("a file").path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    std::fs::write(data.join("token"), "").expect("emptied");
    let refused = Options::in_directory(&data, &[]).expect_err("an empty token lets everybody in");
    assert!(refused.to_string().contains("token"), "{refused}");
}

fn definition(plural: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": plural, "kind": plural.to_uppercase()},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    })
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Waits until the path answers with `code`.
async fn until(client: &Client, path: &str, code: u16) {
    let answered = async {
        while json(client, "GET", path, &Value::Null).await.0 != code {
            tokio::task::yield_now().await;
        }
    };
    let limit = Duration::from_mins(5);
    tokio::time::timeout(limit, answered)
        .await
        .unwrap_or_else(|_| panic!("{path} never answered {code}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_that_change_at_once_do_not_lose_each_other() {
    let server = server().await;
    let client = server.client("default");
    let path = |plural: &str| format!("/apis/example.com/v1/namespaces/default/{plural}");
    let old: Vec<String> = (0..8).map(|n| format!("olds{n}")).collect();
    for plural in &old {
        made(&client, DEFINITIONS, definition(plural)).await;
        until(&client, &path(plural), 200).await;
    }
    let new: Vec<String> = (0..8).map(|n| format!("news{n}")).collect();
    let going = join_all(old.iter().map(|plural| {
        let client = client.clone();
        async move {
            let path = format!("{DEFINITIONS}/{plural}.example.com");
            json(&client, "DELETE", &path, &Value::Null).await
        }
    }));
    let coming = join_all(
        new.iter()
            .map(|plural| made(&client, DEFINITIONS, definition(plural))),
    );
    let (going, _) = tokio::join!(going, coming);
    assert!(going.iter().all(|(code, _)| *code == 200), "{going:?}");
    for plural in &new {
        until(&client, &path(plural), 200).await;
    }
    for plural in &old {
        until(&client, &path(plural), 404).await;
    }
}

#[tokio::test]
async fn nothing_is_created_while_its_definition_is_going() {
    let server = server().await;
    let client = server.client("default");
    made(&client, DEFINITIONS, definition("things")).await;
    let path = "/apis/example.com/v1/namespaces/default/things";
    until(&client, path, 200).await;
    let object = |name: &str| json!({"apiVersion": "example.com/v1", "kind": "THINGS", "metadata": {"name": name, "finalizers": ["example.com/hold"]}});
    made(&client, path, object("held")).await;
    let own = format!("{DEFINITIONS}/things.example.com");
    json(&client, "DELETE", &own, &Value::Null).await;
    // The server begins to clean up in its own time; from then on creates are refused.
    let refused = async {
        for number in 0.. {
            let (code, answer) = post(&client, path, object(&format!("late-{number}"))).await;
            if code != 201 {
                return (code, answer);
            }
            tokio::task::yield_now().await;
        }
        unreachable!("the loop has no end")
    };
    let (code, answer) = tokio::time::timeout(Duration::from_mins(5), refused)
        .await
        .expect("refused");
    assert_eq!(code, 405, "{answer}");
    assert_eq!(
        answer["message"],
        "create not allowed while custom resource definition is terminating"
    );
}

#[tokio::test]
async fn a_pod_that_is_not_ready_leaves_a_healthy_budget_alone() {
    let server = server().await;
    let client = server.client("default");
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}});
    made(&client, pods, pod).await;
    let running = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}});
    let (code, answer) = json(&client, "PATCH", &format!("{pods}/p/status"), &running).await;
    assert_eq!(code, 200, "{answer}");
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}});
    made(&client, budgets, budget).await;
    let status = |healthy: i64| json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": healthy, "desiredHealthy": 1, "expectedPods": 2}});
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    for (healthy, expected) in [(0, 429), (1, 201)] {
        json(
            &client,
            "PATCH",
            &format!("{budgets}/b/status"),
            &status(healthy),
        )
        .await;
        let (code, answer) = post(&client, &format!("{pods}/p/eviction"), eviction.clone()).await;
        assert_eq!(code, expected, "{answer}");
    }
}

#[tokio::test]
async fn an_import_refuses_what_could_not_have_been_created() {
    let server = server().await;
    for (metadata, why) in [
        ("{name: a/b, namespace: default, uid: u}", "metadata.name"),
        ("{name: a, uid: u}", "it has no namespace"),
    ] {
        let text = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {metadata}\n");
        let refused = server.import(&text).await.expect_err("refused");
        assert!(refused.to_string().contains(why), "{refused}");
    }
}

#[tokio::test]
async fn invented_paths_and_methods_do_not_grow_the_metrics() {
    let server = server().await;
    let client = server.client("default");
    let lines = || async {
        let (_, text) = json(&client, "GET", "/metrics", &Value::Null).await;
        text.as_str().expect("text").lines().count()
    };
    let invent = |n: usize| {
        let client = client.clone();
        async move {
            let path = format!("/apis/group{n}.example/v1/things{n}");
            json(&client, &format!("M{n}"), &path, &Value::Null).await;
        }
    };
    invent(0).await;
    lines().await;
    let before = lines().await;
    for number in 1..20 {
        invent(number).await;
    }
    assert_eq!(lines().await, before);
}
