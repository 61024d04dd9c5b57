//! Discovery lists only what works: every verb of every resource and subresource it names is tried.

use std::collections::BTreeMap;

use kube::Client;
use serde_json::{Value, json};

use crate::api::server;
use crate::exchange::{self, Reply, Sent, send};

const NAMESPACE: &str = "walk";

fn samples() -> BTreeMap<String, Value> {
    serde_saphyr::from_str(include_str!("discovered/samples.yaml")).expect("samples")
}

async fn ask(client: &Client, method: &str, path: &str, kind: &str, body: &Value) -> Reply {
    let body = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    let sent = Sent {
        method,
        path,
        content_type: kind,
        accept: "application/json",
        body,
    };
    send(client, &sent).await
}

/// Puts an object back as it is; again when it changed meanwhile.
async fn put_back(client: &Client, from: &str, to: &str) -> Reply {
    let plain = "application/json";
    loop {
        let current = ask(client, "GET", from, plain, &Value::Null).await.json();
        let reply = ask(client, "PUT", to, plain, &current).await;
        if reply.code != 409 {
            return reply;
        }
    }
}

/// A resource of one version as discovery describes it.
struct Listed {
    /// `v1/pods`.
    name: String,
    version: String,
    kind: String,
    collection: String,
    verbs: Vec<String>,
    /// Name and verbs of what is below its objects.
    below: Vec<(String, Vec<String>)>,
}

fn verbs(item: &Value) -> Vec<String> {
    let list = item["verbs"].as_array().into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

async fn resources(client: &Client) -> Vec<Listed> {
    let mut roots = vec![("v1".to_owned(), "/api/v1".to_owned())];
    let (_, groups) = exchange::json(client, "GET", "/apis", &Value::Null).await;
    for group in groups["groups"].as_array().expect("groups") {
        for version in group["versions"].as_array().expect("versions") {
            let version = version["groupVersion"].as_str().expect("a version");
            roots.push((version.to_owned(), format!("/apis/{version}")));
        }
    }
    let mut found: Vec<Listed> = Vec::new();
    for (version, root) in roots {
        let (_, list) = exchange::json(client, "GET", &root, &Value::Null).await;
        for item in list["resources"].as_array().expect("resources") {
            let name = item["name"].as_str().expect("a name");
            if let Some((owner, below)) = name.split_once('/') {
                let owner = format!("{version}/{owner}");
                let owner = found.iter_mut().find(|listed| listed.name == owner);
                let owner = owner.expect("a resource comes before what is below it");
                owner.below.push((below.to_owned(), verbs(item)));
                continue;
            }
            let within = match item["namespaced"].as_bool() {
                Some(true) => format!("{root}/namespaces/{NAMESPACE}/{name}"),
                _ => format!("{root}/{name}"),
            };
            found.push(Listed {
                name: format!("{version}/{name}"),
                version: version.clone(),
                kind: item["kind"].as_str().expect("a kind").to_owned(),
                collection: within,
                verbs: verbs(item),
                below: Vec::new(),
            });
        }
    }
    found
}

/// Tries the verbs of one resource; what failed.
async fn try_all(client: &Client, listed: &Listed, sample: &Value) -> Vec<String> {
    let mut failed = Vec::new();
    let mut check = |what: &str, reply: &Reply| {
        if reply.code >= 300 {
            let text = String::from_utf8_lossy(&reply.body).into_owned();
            failed.push(format!("{} {what}: {} {text}", listed.name, reply.code));
        }
    };
    let mut object = sample.clone();
    let name = object["metadata"]["name"].as_str().unwrap_or("sample");
    let path = format!("{}/{name}", listed.collection);
    // A review is an answer, not an object: it has no name.
    if !listed.name.ends_with("reviews") {
        object["metadata"]["name"] = name.to_owned().into();
    }
    object["apiVersion"] = listed.version.clone().into();
    object["kind"] = listed.kind.clone().into();
    let plain = "application/json";
    let merge = "application/merge-patch+json";
    let patch = json!({"metadata": {"labels": {"tried": "yes"}}});
    let has = |verb: &str| listed.verbs.iter().any(|known| known == verb);
    let made = ask(client, "POST", &listed.collection, plain, &object).await;
    check("create", &made);
    if has("get") {
        check("get", &ask(client, "GET", &path, plain, &Value::Null).await);
    }
    for (verb, query) in [
        ("list", ""),
        ("watch", "?watch=1&timeoutSeconds=1&resourceVersion=0"),
    ] {
        if has(verb) {
            let all = format!("{}{query}", listed.collection);
            check(verb, &ask(client, "GET", &all, plain, &Value::Null).await);
        }
    }
    if has("patch") {
        check("patch", &ask(client, "PATCH", &path, merge, &patch).await);
    }
    if has("update") {
        check("update", &put_back(client, &path, &path).await);
    }
    for (below, verbs) in &listed.below {
        for verb in verbs {
            let at = format!("{path}/{below}");
            let reply = below_reply(client, &at, below, verb).await;
            let what = format!("{below} {verb}");
            match below.as_str() {
                // These need a node: without one its absence is said, and not that there is no such path.
                "log" | "exec" | "attach" | "portforward" => {
                    assert!(![404, 405].contains(&reply.code), "{at}: {reply:?}");
                }
                _ => check(&what, &reply),
            }
        }
    }
    if has("delete") {
        let path = if listed.name == "v1/pods" {
            format!("{path}-2")
        } else {
            path.clone()
        };
        if listed.name == "v1/pods" {
            object["metadata"]["name"] = "sample-2".into();
            ask(client, "POST", &listed.collection, plain, &object).await;
        }
        let gone = ask(client, "DELETE", &path, plain, &Value::Null).await;
        check("delete", &gone);
    }
    if has("deletecollection") {
        let some = format!("{}?labelSelector=tried%3Dyes", listed.collection);
        let gone = ask(client, "DELETE", &some, plain, &Value::Null).await;
        check("deletecollection", &gone);
    }
    failed
}

async fn below_reply(client: &Client, at: &str, below: &str, verb: &str) -> Reply {
    let plain = "application/json";
    match (below, verb) {
        (_, "get") => ask(client, "GET", at, plain, &Value::Null).await,
        ("scale", "patch") => {
            let body = json!({"spec": {"replicas": 1}});
            ask(client, "PATCH", at, "application/merge-patch+json", &body).await
        }
        (_, "patch") => {
            let body = json!({"metadata": {}});
            ask(client, "PATCH", at, "application/merge-patch+json", &body).await
        }
        ("finalize", "update") => put_back(client, at.trim_end_matches("/finalize"), at).await,
        (_, "update") => put_back(client, at, at).await,
        ("binding", _) => {
            let body =
                json!({"metadata": {"name": "sample"}, "target": {"kind": "Node", "name": "n"}});
            ask(client, "POST", at, plain, &body).await
        }
        ("eviction", _) => {
            let body = json!({"metadata": {"name": "sample"}});
            ask(client, "POST", at, plain, &body).await
        }
        ("token", _) => ask(client, "POST", at, plain, &json!({"spec": {}})).await,
        (_, _) => ask(client, "POST", at, plain, &Value::Null).await,
    }
}

#[tokio::test(start_paused = true)]
async fn everything_discovery_lists_works() {
    let server = server().await;
    let client = server.client("default");
    let body = json!({"metadata": {"name": NAMESPACE}});
    exchange::json(&client, "POST", "/api/v1/namespaces", &body).await;
    let definition: Value =
        serde_saphyr::from_str(include_str!("requests/kubectl/gadget-definition.yaml"))
            .expect("a definition");
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    exchange::json(&client, "POST", definitions, &definition).await;
    let served = "/apis/example.com/v2";
    while exchange::json(&client, "GET", served, &Value::Null).await.0 != 200 {
        tokio::task::yield_now().await;
    }
    let samples = samples();
    let mut failed = Vec::new();
    for listed in resources(&client).await {
        match samples.get(&listed.name) {
            Some(sample) => failed.extend(try_all(&client, &listed, sample).await),
            None => failed.push(format!("there is no sample of {}", listed.name)),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[tokio::test]
async fn what_a_cluster_serves_below_pods_and_this_server_does_not_is_refused_by_name() {
    let server = server().await;
    let client = server.client("default");
    let patch = json!({"spec": {}});
    for (name, words) in [
        ("ephemeralcontainers", "--copy-to"),
        ("resize", "make it again"),
    ] {
        let path = format!("/api/v1/namespaces/default/pods/p/{name}");
        let (code, answer) = exchange::json(&client, "PATCH", &path, &patch).await;
        assert_eq!(code, 405, "{answer}");
        let message = answer["message"].as_str().expect("a message");
        assert!(message.contains(words), "{message}");
    }
    let (_, listed) = exchange::json(&client, "GET", "/api/v1", &Value::Null).await;
    assert!(!listed.to_string().contains("pods/resize"));
}
