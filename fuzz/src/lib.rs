//! What every target does with its input: one request to a server in this process. The server must
//! not panic, and a refusal is always a whole `Status`.

use std::cell::OnceCell;

use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use warp_apiserver::{ApiServer, Options};

struct Ground {
    runtime: Runtime,
    server: ApiServer,
}

thread_local! {
    static GROUND: OnceCell<Ground> = const { OnceCell::new() };
}

fn ground() -> Ground {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let server = runtime.block_on(async {
        let options = Options::ephemeral().expect("an identity");
        ApiServer::start(options).await.expect("a server")
    });
    let made = json!({
        "metadata": {"name": "patched", "labels": {"a": "b"}, "finalizers": ["example.com/x"]},
        "data": {"k": "v"},
    });
    let path = "/api/v1/namespaces/default/configmaps";
    let (code, _) = runtime.block_on(send(&server, "POST", path, "application/json", made.to_string().into_bytes()));
    assert_eq!(code, 201);
    Ground { runtime, server }
}

async fn send(server: &ApiServer, method: &str, path: &str, kind: &str, body: Vec<u8>) -> (u16, Value) {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", kind)
        .body(Body::from(body));
    // What HTTP itself refuses never reaches the server.
    let Ok(request) = request else {
        return (200, Value::Null);
    };
    let client = server.client("default");
    let response = client.send(request).await.expect("an answer");
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// Sends one request and judges the answer.
pub fn ask(method: &str, path: &str, kind: &str, body: Vec<u8>) {
    if path.contains("watch") || path.contains("follow") {
        return;
    }
    GROUND.with(|cell| {
        let ground = cell.get_or_init(ground);
        let sent = send(&ground.server, method, path, kind, body);
        let (code, answer) = ground.runtime.block_on(sent);
        if code >= 400 {
            assert_eq!(answer["kind"], "Status", "{method} {path}: {code} {answer}");
            assert_eq!(answer["code"], code, "{method} {path}: {answer}");
        }
    });
}

/// Two texts out of one input, divided by a zero byte.
pub fn split(data: &[u8]) -> (String, String) {
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let mut text = || String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    (text(), text())
}

/// Offers a definition with this schema.
pub fn define(schema: &Value) {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All";
    ask("POST", path, "application/json", definition.to_string().into_bytes());
}

/// A schema with one rule.
pub fn ruled(rule: &str, message: &str) -> Value {
    json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "properties": {
            "n": {"type": "integer"}, "s": {"type": "string", "maxLength": 20},
            "l": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 9}},
        },
        "x-kubernetes-validations": [{"rule": rule, "messageExpression": message}],
    }}})
}
