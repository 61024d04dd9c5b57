//! Objects made to take memory, stack or time without end: refused, or kept within bounds.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{DEFINITIONS, MAPS, create, map, refused, say, serves};

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
            &create(&client, MAPS, &map(&json!({"name": "l", "labels": labels}))).await,
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
            &map(&json!({"name": "a", "annotations": {"a": big(300 << 10)}})),
        )
        .await,
    );
    let mut object = map(&json!({"name": "o"}));
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
        &map(&json!({"name": "f", "finalizers": many})),
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
    let mut object = map(&json!({"name": "p"}));
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
