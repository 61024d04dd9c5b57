//! Objects made to do harm: each is refused with a Status or stored as harmless text, within bounds
//! of memory and stack, and the server goes on as before.

mod bounds;

use kube::Client;
use serde_json::{Value, json};

use crate::exchange::{Reply, Sent, send};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

async fn say(client: &Client, method: &str, path: &str, content_type: &str, body: &str) -> Reply {
    let sent = Sent {
        method,
        path,
        content_type,
        accept: "application/json",
        body: body.as_bytes().to_vec(),
    };
    send(client, &sent).await
}

async fn create(client: &Client, path: &str, object: &Value) -> Reply {
    say(
        client,
        "POST",
        path,
        "application/json",
        &object.to_string(),
    )
    .await
}

fn refused(what: &str, reply: &Reply) {
    let answer = reply.json();
    assert!(
        (400..500).contains(&reply.code),
        "{what}: {} {answer:.600}",
        reply.code
    );
    assert_eq!(answer["kind"], "Status", "{what}: {answer:.600}");
}

async fn serves(client: &Client) {
    let (code, answer) =
        crate::exchange::json(client, "GET", "/api/v1/namespaces/default", &Value::Null).await;
    assert_eq!(code, 200, "{answer}");
}

fn map(metadata: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
}

#[tokio::test]
async fn names_are_names_and_never_paths() {
    let server = crate::api::server().await;
    let client = server.client("default");
    let long = "a".repeat(254);
    let names = [
        "..",
        ".",
        "../a",
        "a/b",
        "/a",
        "a/../../b",
        "a\\b",
        "a%2fb",
        "A",
        "a_b",
        "a b",
        "a\n",
        "\0",
        "a\0b",
        "-a",
        "a-",
        "é",
        "",
        " ",
        "$(id)",
        "`id`",
        "a;b",
        "a|b",
        "${x}",
        "{{x}}",
        long.as_str(),
    ];
    for name in names {
        refused(
            name,
            &create(&client, MAPS, &map(&json!({"name": name}))).await,
        );
        // What the server adds makes a name of this one.
        let prefix = create(&client, MAPS, &map(&json!({"generateName": name}))).await;
        if name == "a-" {
            assert_eq!(prefix.code, 201, "{name}: {}", prefix.json());
        } else {
            refused(name, &prefix);
        }
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        refused(
            name,
            &create(&client, "/api/v1/namespaces", &namespace).await,
        );
        let key = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "k-"}, "data": {name: "v"}});
        let key = create(&client, MAPS, &key).await;
        // A key is a file's name, not an object's: these are harmless.
        if matches!(name, "A" | "a_b" | "-a" | "a-") {
            assert_eq!(key.code, 201, "{name}: {}", key.json());
        } else {
            refused(name, &key);
        }
    }
    // What the path says and what the object says must be the same place.
    let elsewhere = map(&json!({"name": "a", "namespace": "kube-system"}));
    refused("elsewhere", &create(&client, MAPS, &elsewhere).await);
    // Elsewhere there is something to be found; who asks for a map by a crooked path does not find it.
    let hidden = json!({"kind": "Secret", "metadata": {"name": "hidden"}, "stringData": {"k": "canary-elsewhere"}});
    let told = json!({"kind": "ConfigMap", "metadata": {"name": "hidden"}, "data": {"k": "canary-elsewhere"}});
    for namespace in ["default", "kube-system"] {
        let secrets = format!("/api/v1/namespaces/{namespace}/secrets");
        assert_eq!(create(&client, &secrets, &hidden).await.code, 201);
    }
    let maps = "/api/v1/namespaces/kube-system/configmaps";
    assert_eq!(create(&client, maps, &told).await.code, 201);
    let straight = say(&client, "GET", maps, "", "").await;
    let found = |reply: &Reply| {
        let text = String::from_utf8_lossy(&reply.body);
        // As a ConfigMap and as a Secret hold it.
        text.contains("canary-elsewhere") || text.contains("Y2FuYXJ5LWVsc2V3aGVyZQ==")
    };
    assert!(found(&straight), "{}", straight.json());
    for path in [
        "/api/v1/namespaces/default/../kube-system/configmaps",
        "/api/v1/namespaces/default/configmaps/../../kube-system/configmaps",
        "/api/v1/namespaces/default%2f..%2fkube-system/configmaps",
        "/api/v1/namespaces/default/configmaps/..%2f..%2fsecrets",
        "/api/v1/namespaces/default/configmaps/..%2fsecrets%2fhidden",
        "/api/v1/namespaces/default/configmaps/%2e%2e",
        "/api/v1/namespaces/default/configmaps/%2e%2e/secrets",
    ] {
        let reply = say(&client, "GET", path, "", "").await;
        let empty = reply.json()["items"].as_array().is_some_and(Vec::is_empty);
        assert!(
            !found(&reply) && (reply.code >= 400 || empty),
            "{path}: {} {}",
            reply.code,
            reply.json()
        );
    }
    // Mounts that climb out of their volume.
    for (volume, mount) in [
        (
            json!({"hostPath": {"path": "/a/../../etc"}}),
            json!({"mountPath": "/m"}),
        ),
        (
            json!({"emptyDir": {}}),
            json!({"mountPath": "/m", "subPath": "../../etc"}),
        ),
        (
            json!({"emptyDir": {}}),
            json!({"mountPath": "/m", "subPath": "/etc"}),
        ),
        (
            json!({"configMap": {"name": "c", "items": [{"key": "k", "path": "../../etc/passwd"}]}}),
            json!({"mountPath": "/m"}),
        ),
        (
            json!({"secret": {"secretName": "s", "items": [{"key": "k", "path": "/etc/passwd"}]}}),
            json!({"mountPath": "/m"}),
        ),
        (
            json!({"downwardAPI": {"items": [{"path": "../x", "fieldRef": {"fieldPath": "metadata.name"}}]}}),
            json!({"mountPath": "/m"}),
        ),
        (
            json!({"projected": {"sources": [{"configMap": {"name": "c", "items": [{"key": "k", "path": "a/../../x"}]}}]}}),
            json!({"mountPath": "/m"}),
        ),
    ] {
        let mut volume = volume;
        volume["name"] = json!("v");
        let mut mount = mount;
        mount["name"] = json!("v");
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"volumes": [volume], "containers": [{"name": "c", "image": "i", "volumeMounts": [mount]}]}});
        refused(
            &pod.to_string(),
            &create(&client, "/api/v1/namespaces/default/pods", &pod).await,
        );
    }
    serves(&client).await;
}

#[tokio::test]
async fn a_refusal_does_not_repeat_the_secret_it_refuses() {
    const CANARY: &str = "canary-in-a-secret";
    let server = crate::api::server().await;
    let client = server.client("default");
    let secrets = "/api/v1/namespaces/default/secrets";
    let bodies = [
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"k": CANARY}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": [CANARY]}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": CANARY}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "S"}, "stringData": {"k": CANARY}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"not/a/key": CANARY}}),
    ];
    for body in &bodies {
        let reply = create(&client, secrets, body).await;
        refused(&body.to_string(), &reply);
        let answer = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(!answer.contains(CANARY), "{answer}");
    }
    let good = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "immutable": true, "stringData": {"k": CANARY}});
    assert_eq!(create(&client, secrets, &good).await.code, 201);
    let change = json!({"stringData": {"k": format!("{CANARY}-2")}}).to_string();
    let reply = say(
        &client,
        "PATCH",
        &format!("{secrets}/s"),
        "application/merge-patch+json",
        &change,
    )
    .await;
    refused("immutable", &reply);
    assert!(
        !String::from_utf8_lossy(&reply.body).contains(CANARY),
        "{}",
        reply.json()
    );
    // Neither tables nor metrics show it.
    let table = Sent {
        method: "GET",
        path: secrets,
        content_type: "",
        accept: "application/json;as=Table;v=v1;g=meta.k8s.io",
        body: Vec::new(),
    };
    let table = String::from_utf8_lossy(&send(&client, &table).await.body).into_owned();
    assert!(
        table.contains("\"s\"") && !table.contains(CANARY),
        "{table}"
    );
    let metrics = say(&client, "GET", "/metrics", "", "").await;
    assert!(!metrics.body.is_empty() && !String::from_utf8_lossy(&metrics.body).contains(CANARY));
}

/// What a namespace forbids is forbidden to everybody who makes pods in it. The words are those of a
/// real server.
#[tokio::test]
async fn a_namespace_may_forbid_pods_that_reach_for_the_machine() {
    let server = crate::api::server().await;
    let client = server.client("default");
    for level in ["baseline", "restricted"] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": level, "labels": {"pod-security.kubernetes.io/enforce": level}}});
        assert_eq!(
            create(&client, "/api/v1/namespaces", &namespace).await.code,
            201
        );
    }
    let pod = |spec: Value| {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        for (name, value) in spec.as_object().expect("fields") {
            pod["spec"][name] = value.clone();
        }
        pod
    };
    let safe = json!({"allowPrivilegeEscalation": false, "runAsNonRoot": true, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"}});
    let cases = [
        (
            "baseline",
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
            "hostPath volumes (volume \"v\")",
        ),
        (
            "baseline",
            json!({"hostNetwork": true, "hostPID": true}),
            "host namespaces (hostNetwork=true, hostPID=true)",
        ),
        (
            "baseline",
            json!({"containers": [{"name": "c", "image": "i", "securityContext": {"privileged": true}}]}),
            "privileged (container \"c\" must not set securityContext.privileged=true)",
        ),
        (
            "baseline",
            json!({"initContainers": [{"name": "a", "image": "i", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}),
            "non-default capabilities (container \"a\" must not include \"SYS_ADMIN\" in securityContext.capabilities.add)",
        ),
        (
            "baseline",
            json!({"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 1, "hostPort": 80}]}]}),
            "hostPort (container \"c\" uses hostPort 80)",
        ),
        (
            "restricted",
            json!({}),
            "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false), \
             unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"]), \
             runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true), \
             seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
        ),
        (
            "restricted",
            json!({"containers": [{"name": "c", "image": "i", "securityContext": safe}], "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
            "restricted volume types (volume \"v\" uses restricted volume type \"hostPath\")",
        ),
    ];
    for (level, spec, complaint) in cases {
        let reply = create(
            &client,
            &format!("/api/v1/namespaces/{level}/pods"),
            &pod(spec),
        )
        .await;
        assert_eq!(reply.code, 403, "{}", reply.json());
        let told = reply.json()["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(
            told.ends_with(&format!(
                "violates PodSecurity \"{level}:latest\": {complaint}"
            )),
            "{told}"
        );
    }
    let harmless = [
        ("baseline", json!({})),
        (
            "restricted",
            json!({"containers": [{"name": "c", "image": "i", "securityContext": safe}]}),
        ),
        (
            "default",
            json!({"hostNetwork": true, "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
        ),
    ];
    for (namespace, spec) in harmless {
        let reply = create(
            &client,
            &format!("/api/v1/namespaces/{namespace}/pods"),
            &pod(spec),
        )
        .await;
        assert_eq!(reply.code, 201, "{}", reply.json());
    }
}
