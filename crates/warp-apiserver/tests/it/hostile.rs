//! Objects made to do harm: each is refused with a Status or stored as harmless text, within bounds
//! of memory and stack, and the server goes on as before.

use std::fmt::Write as _;

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

fn map(metadata: Value) -> Value {
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
            &create(&client, MAPS, &map(json!({"name": name}))).await,
        );
        refused(
            name,
            &create(
                &client,
                MAPS,
                &map(json!({"generateName": format!("{name}/../")})),
            )
            .await,
        );
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        refused(
            name,
            &create(&client, "/api/v1/namespaces", &namespace).await,
        );
        let key = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "k"}, "data": {format!("{name}/x"): "v"}});
        refused(name, &create(&client, MAPS, &key).await);
    }
    // What the path says and what the object says must be the same place.
    let elsewhere = map(json!({"name": "a", "namespace": "kube-system"}));
    refused("elsewhere", &create(&client, MAPS, &elsewhere).await);
    for path in [
        "/api/v1/namespaces/default/../kube-system/configmaps",
        "/api/v1/namespaces/default%2f..%2fkube-system/configmaps",
        "/api/v1/namespaces/default/configmaps/..%2f..%2fsecrets",
        "/api/v1/namespaces/default/configmaps/%2e%2e",
        "//api//v1//secrets",
    ] {
        let reply = say(&client, "GET", path, "", "").await;
        assert!(
            reply.code >= 400 || reply.json()["items"].as_array().is_some_and(Vec::is_empty),
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
async fn labels_annotations_and_sizes_are_bounded() {
    let server = crate::api::server().await;
    let client = server.client("default");
    for labels in [
        json!({"a\nb": "c"}),
        json!({"a": "b\nc"}),
        json!({"a": "b,c=d"}),
        json!({"a=b": "c"}),
        json!({"": "x"}),
        json!({"a": "x".repeat(64)}),
        json!({"k".repeat(64): "x"}),
        json!({"../a": "b"}),
        json!({"a/b/c": "d"}),
        json!({"a": "$(id)"}),
        json!({"a": {"b": "c"}}),
        json!({"a": 1}),
    ] {
        refused(
            &labels.to_string(),
            &create(&client, MAPS, &map(json!({"name": "l", "labels": labels}))).await,
        );
        let selector = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
        refused(
            &labels.to_string(),
            &create(
                &client,
                "/apis/apps/v1/namespaces/default/deployments",
                &selector,
            )
            .await,
        );
    }
    let big = |bytes: usize| "x".repeat(bytes);
    refused(
        "annotations",
        &create(
            &client,
            MAPS,
            &map(json!({"name": "a", "annotations": {"a": big(300 << 10)}})),
        )
        .await,
    );
    let mut object = map(json!({"name": "o"}));
    object["data"] = json!({"a": big(2 << 20)});
    refused("object", &create(&client, MAPS, &object).await);
    object["data"] = json!({"a": big(4 << 20)});
    refused("body", &create(&client, MAPS, &object).await);
    let many: Vec<Value> = (0..200_000)
        .map(|number| json!(format!("example.com/{number}")))
        .collect();
    let reply = create(
        &client,
        MAPS,
        &map(json!({"name": "f", "finalizers": many})),
    )
    .await;
    assert_ne!(reply.code, 201, "finalizers without end were stored");
    serves(&client).await;
}

fn laughs(leaf: &str) -> String {
    let mut text =
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: laughs}}\na0: &a0 [{leaf}]\n");
    for level in 1..12 {
        let item = format!("*a{},", level - 1).repeat(10);
        let _ = writeln!(text, "a{level}: &a{level} [{item}]");
    }
    text
}

#[tokio::test]
async fn texts_that_unfold_or_nest_without_end_are_refused() {
    let server = crate::api::server().await;
    let client = server.client("default");
    let deep = 50_000;
    let nested = [
        ("application/json", "[".repeat(deep)),
        (
            "application/json",
            format!("{}1{}", "{\"a\":".repeat(deep), "}".repeat(deep)),
        ),
        (
            "application/json",
            format!(
                "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"data\":{}{}}}",
                "[".repeat(deep),
                "]".repeat(deep)
            ),
        ),
        ("application/yaml", "[".repeat(deep)),
        ("application/yaml", "- ".repeat(deep)),
        (
            "application/yaml",
            format!("a: {}{}", "{a: ".repeat(deep), "}".repeat(deep)),
        ),
        ("application/yaml", laughs("lol")),
        ("application/yaml", "a: &a [*a]\n".to_owned()),
        ("application/yaml", "a: &a\n  <<: *a\n".to_owned()),
        (
            "application/yaml",
            format!("a: {}", "!!binary ".repeat(deep)),
        ),
    ];
    for (content_type, text) in &nested {
        let reply = say(&client, "POST", MAPS, content_type, text).await;
        refused(&text[..40.min(text.len())], &reply);
    }
    for text in [laughs("lol"), "- ".repeat(deep), "[".repeat(deep)] {
        let path = format!("{MAPS}/laughs?fieldManager=f");
        let reply = say(
            &client,
            "PATCH",
            &path,
            "application/apply-patch+yaml",
            &text,
        )
        .await;
        refused("apply", &reply);
    }
    let deep = "[".repeat(deep);
    for patch in [
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/json-patch+json",
    ] {
        let reply = say(
            &client,
            "PATCH",
            &format!("{MAPS}/kube-root-ca.crt"),
            patch,
            &deep,
        )
        .await;
        refused(patch, &reply);
    }
    serves(&client).await;
}

#[tokio::test]
async fn a_patch_cannot_copy_or_nest_an_object_out_of_bounds() {
    let server = crate::api::server().await;
    let client = server.client("default");
    let mut object = map(json!({"name": "p"}));
    object["data"] = json!({"a": "x".repeat(1000)});
    assert_eq!(create(&client, MAPS, &object).await.code, 201);
    let path = format!("{MAPS}/p");
    let patch = async |operations: Vec<Value>| {
        let body = Value::Array(operations).to_string();
        say(
            &client,
            "PATCH",
            &path,
            "application/json-patch+json",
            &body,
        )
        .await
    };
    // Each step doubles what is there: forty steps are a petabyte.
    let mut doubling = Vec::new();
    for level in 0..40 {
        doubling.push(json!({"op": "copy", "from": "/data", "path": format!("/data/c{level}")}));
    }
    refused("copies", &patch(doubling).await);
    // Each step nests one deeper: the thousandth would be below the end of the stack.
    let mut deeper = vec![json!({"op": "add", "path": "/data/n", "value": {}})];
    for level in 0..9_000 {
        deeper.push(json!({"op": "add", "path": format!("/x{level}"), "value": {}}));
        let from = if level == 0 {
            "/data/n".to_owned()
        } else {
            format!("/x{}", level - 1)
        };
        deeper.push(json!({"op": "move", "from": from, "path": format!("/x{level}/n")}));
    }
    deeper.truncate(10_000);
    refused("moves", &patch(deeper).await);
    let far = format!("/data{}", "/a".repeat(100_000));
    refused(
        "path",
        &patch(vec![json!({"op": "add", "path": far, "value": 1})]).await,
    );
    refused(
        "many",
        &patch(vec![
            json!({"op": "test", "path": "/kind", "value": "ConfigMap"});
            20_000
        ])
        .await,
    );
    // An honest copy still works.
    let honest = patch(vec![
        json!({"op": "copy", "from": "/data/a", "path": "/data/b"}),
    ])
    .await;
    assert_eq!(honest.code, 200, "{}", honest.json());
    serves(&client).await;
}

fn definition(number: usize, spec: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("bombs{number}.example.com")},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": format!("bombs{number}"), "kind": format!("Bomb{number}")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                {"type": "object", "properties": {"spec": spec}}}}]},
    })
}

fn rule(text: &str, schema: &Value) -> Value {
    let mut schema = schema.clone();
    schema["x-kubernetes-validations"] = json!([{"rule": text}]);
    schema
}

#[tokio::test]
async fn expressions_that_would_take_for_ever_are_refused_with_their_definition() {
    let server = crate::api::server().await;
    let client = server.client("default");
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let text = json!({"type": "string"});
    let pattern = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let mut strings = "self".to_owned();
    for _ in 0..20 {
        strings = format!("({strings} + {strings})");
        if strings.len() > 60_000 {
            break;
        }
    }
    let bombs = [
        pattern("(a{1000}){1000}"),
        pattern("((a{100}){100}){100}"),
        pattern("(?=a)b"),
        pattern("(a)\\1"),
        pattern("["),
        rule("self.all(a, self.all(b, self.all(c, a + b == c)))", &texts),
        rule(
            "self.map(a, self.map(b, self.map(c, self))).size() > 0",
            &texts,
        ),
        rule("self.all(a, a.matches('(a+)+$'))", &texts),
        rule(
            &format!("{}true{}", "(".repeat(10_000), ")".repeat(10_000)),
            &text,
        ),
        rule(&format!("{}true", "!".repeat(50_000)), &text),
        rule(&format!("1{} > 0", "+1".repeat(25_000)), &text),
        rule(
            &format!("{}1{}.size() > 0", "[".repeat(20_000), "]".repeat(20_000)),
            &text,
        ),
        rule(&format!("self{} == ''", ".trim()".repeat(9_000)), &text),
        rule(&format!("{}true", "true ? true : ".repeat(4_000)), &text),
        rule(&format!("{strings} != ''"), &text),
        rule(&"a".repeat(100_000), &text),
        rule("size(self) > ", &text),
    ];
    for (number, spec) in bombs.iter().enumerate() {
        let reply = create(&client, DEFINITIONS, &definition(number, spec)).await;
        refused(&format!("{number}: {spec:.120}"), &reply);
    }
    // Schemas that nest without end.
    let mut schema = json!({"type": "object"});
    for _ in 0..60 {
        schema = json!({"type": "object", "properties": {"a": schema}});
    }
    let reply = create(&client, DEFINITIONS, &definition(900, &schema)).await;
    assert!(reply.code < 500, "{}", reply.code);
    // A pattern that is hard for backtracking engines is stored, and matching with it is quick.
    let hard = definition(901, &pattern("^(a+)+$"));
    assert_eq!(create(&client, DEFINITIONS, &hard).await.code, 201);
    let path = "/apis/example.com/v1/namespaces/default/bombs901";
    let object = json!({"apiVersion": "example.com/v1", "kind": "Bomb901", "metadata": {"name": "b"},
        "spec": format!("{}b", "a".repeat(100_000))});
    let served = warp_testkit::until(
        "the kind is served",
        std::time::Duration::from_mins(1),
        || async {
            let reply = create(&client, path, &object).await;
            Ok((reply.code != 404).then_some(reply))
        },
    );
    refused("match", &served.await.expect("an answer"));
    serves(&client).await;
}

#[tokio::test]
async fn numbers_without_bounds_are_refused_or_stay_numbers() {
    let server = crate::api::server().await;
    let client = server.client("default");
    let pod = |amount: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": amount}}}]}})
    };
    let pods = "/api/v1/namespaces/default/pods";
    for amount in [
        "NaN", "-1", "1Zi", "0x10", "1e", "--1", "1 000", "١", "1.5", "",
    ] {
        refused(amount, &create(&client, pods, &pod(amount)).await);
    }
    // Kubernetes caps what is too large; no such number grows or changes its sign.
    for amount in ["1e999999999", "1e-999999999", &"9".repeat(100_000)] {
        let reply = create(&client, pods, &pod(amount)).await;
        assert!(
            matches!(reply.code, 201 | 422),
            "{amount:.20}: {}",
            reply.code
        );
        let kept = reply.json();
        let kept = kept["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
            .as_str()
            .unwrap_or("0")
            .to_owned();
        assert!(kept.len() < 20 && !kept.starts_with('-'), "{kept}");
    }
    for (field, value) in [
        ("completions", json!(-1)),
        ("parallelism", json!(9_999_999_999_i64)),
        ("backoffLimit", json!(1e300)),
        ("activeDeadlineSeconds", json!(i64::MIN)),
        ("ttlSecondsAfterFinished", json!("1")),
        ("completions", json!(1.5)),
    ] {
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {field: value,
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
        refused(
            field,
            &create(&client, "/apis/batch/v1/namespaces/default/jobs", &job).await,
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
