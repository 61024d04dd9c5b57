//! The same requests to a real kube-apiserver and to ours, in the same run: answers must be equal
//! after masking identity, time and revision.
//!
//! Cases are data (`requests/*.yaml`); what may differ is listed in `requests/known.yaml`, each with its
//! reason.

use std::collections::BTreeMap;
use std::path::Path;

use kube::Client;
use serde_json::{Map, Value, json};
use warp_apiserver::{ApiServer, Options};
use warp_testkit::Cluster;

use crate::exchange::{Mask, Reply, Sent, send_as};

/// One case: steps sent in order to each server, in a namespace of its own.
struct Case {
    name: String,
    steps: Vec<Value>,
}

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/requests");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the cases")
        .map(|entry| entry.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
        .filter(|path| path.file_stem().is_some_and(|name| name != "known"))
        .collect();
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a readable file");
        let list: Vec<Value> = serde_saphyr::from_str(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let stem = file
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        for case in list {
            cases.push(Case {
                name: format!(
                    "{stem}: {}",
                    case["name"].as_str().expect("a case has a name")
                ),
                steps: case["steps"].as_array().expect("a case has steps").clone(),
            });
        }
    }
    let recorded = crate::recorded::requests().into_iter();
    cases.extend(recorded.map(|(name, steps)| Case { name, steps }));
    cases
}

pub(crate) fn known() -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/requests/known.yaml");
    let text = std::fs::read_to_string(path).expect("the known differences");
    serde_saphyr::from_str(&text).expect("known differences are a map")
}

/// Replaces the names a case's objects get on this run, and what earlier answers said.
fn fill(text: &str, namespace: &str, kept: &BTreeMap<String, String>) -> String {
    let mut text = text.replace("{ns}", namespace);
    for (name, value) in kept {
        text = text.replace(&format!("{{{name}}}"), value);
    }
    text
}

/// Remembers values of an answer under names: `keep: {name: /json/pointer}`.
fn keep(step: &Value, reply: &Reply, kept: &mut BTreeMap<String, String>) {
    for (name, pointer) in step["keep"].as_object().into_iter().flatten() {
        let answer = reply.json();
        let value = answer.pointer(pointer.as_str().expect("a pointer"));
        let text = value.and_then(Value::as_str).unwrap_or_default();
        kept.insert(name.clone(), text.to_owned());
    }
}

/// The headers of a step that is taken as somebody else: `as: name`, `groups: [name]`.
fn acting_as(step: &Value, namespace: &str) -> Mask {
    let user = step["as"].as_str().into_iter();
    let groups = step["groups"].as_array().into_iter().flatten();
    let user = user.map(|name| ("Impersonate-User", name));
    let groups = groups.map(|name| ("Impersonate-Group", name.as_str().expect("a name")));
    user.chain(groups)
        .map(|(header, name)| (header.to_owned(), name.replace("{ns}", namespace)))
        .collect()
}

async fn run(client: &Client, case: &Case, namespace: &str) -> Vec<(String, Reply)> {
    let mut replies = Vec::new();
    let mut kept = BTreeMap::new();
    for step in &case.steps {
        let plain = step["request"].as_str().expect("a step has a request");
        let line = fill(plain, namespace, &kept);
        let (method, path) = line.split_once(' ').expect("METHOD PATH");
        let body = match (&step["body"], &step["text"]) {
            (Value::Null, Value::Null) => String::new(),
            (Value::Null, text) => text.as_str().expect("text is a string").to_owned(),
            (body, _) => body.to_string(),
        };
        let default_type = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let path = path.replace(' ', "%20");
        let sent = Sent {
            method,
            path: &path,
            content_type: step["type"].as_str().unwrap_or(default_type),
            accept: step["accept"].as_str().unwrap_or("application/json"),
            body: fill(&body, namespace, &kept).into_bytes(),
        };
        let mask = acting_as(step, namespace);
        let until = step["until"]
            .as_str()
            .map(|until| fill(until, namespace, &kept));
        let mut reply = send_as(client, &sent, &mask).await;
        if let Some(until) = until {
            // Something a server does in its own time (a definition becomes established).
            for _ in 0..12_000 {
                if reply.code < 400 && String::from_utf8_lossy(&reply.body).contains(&until) {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(25)).await;
                reply = send_as(client, &sent, &mask).await;
            }
        }
        keep(step, &reply, &mut kept);
        if step["ignore"] != true {
            replies.push((plain.to_owned(), reply));
        }
    }
    replies
}

fn is_time(text: &str) -> bool {
    text.len() >= 20 && text.ends_with('Z') && text.as_bytes().get(10) == Some(&b'T')
}

/// Makes two servers' answers comparable.
fn mask(value: Value, namespace: &str) -> Value {
    match value {
        Value::Object(map) => {
            let mut out: Map<String, Value> = Map::new();
            let mut members: Vec<_> = map.into_iter().collect();
            members.sort_by(|a, b| a.0.cmp(&b.0));
            for (name, value) in members {
                let masked = match name.as_str() {
                    "uid" | "resourceVersion" | "continue" | "storageVersionHash" | "token" => {
                        json!("<masked>")
                    }
                    // The list's own order says nothing.
                    "managedFields" => {
                        let mut list = match mask(value, namespace) {
                            Value::Array(list) => list,
                            other => vec![other],
                        };
                        list.sort_by_cached_key(Value::to_string);
                        Value::Array(list)
                    }
                    _ => mask(value, namespace),
                };
                out.insert(name.replace(namespace, "{ns}"), masked);
            }
            Value::Object(out)
        }
        Value::Array(list) => {
            Value::Array(list.into_iter().map(|item| mask(item, namespace)).collect())
        }
        Value::String(text) if is_time(&text) => json!("<time>"),
        Value::String(text) => mask_text(&text.replace(namespace, "{ns}")).into(),
        other => other,
    }
}

/// Uids, revisions and generated suffixes inside texts.
fn mask_text(text: &str) -> String {
    let uid = regex::Regex::new("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
        .expect("a pattern");
    let generated =
        regex::Regex::new("(gen-|Bad_)[bcdfghjklmnpqrstvwxz2456789]{5}").expect("a pattern");
    let revision = regex::Regex::new("(resource version: |ResourceVersion in object meta: )[0-9]+")
        .expect("a pattern");
    // Both let everybody see /healthz; which of them a real server comes upon first differs between two runs.
    let either = regex::Regex::new("system:(discovery|public-info-viewer)").expect("a pattern");
    let text = if text.starts_with("RBAC: allowed by") {
        either.replace_all(text, "<either>")
    } else {
        text.into()
    };
    let text = uid.replace_all(&text, "<uid>");
    let text = generated.replace_all(&text, "$1<name>");
    revision.replace_all(&text, "$1<revision>").into_owned()
}

/// Orders the complaints of a refusal: a real server walks maps in random order, so the order it
/// complains in differs between two runs of the same request.
fn order_causes(body: &mut Value) {
    let Some(Value::Array(causes)) = body.pointer_mut("/details/causes") else {
        return;
    };
    let text = |cause: &Value| {
        let part = |name: &str| cause[name].as_str().unwrap_or_default().to_owned();
        format!("{}: {}", part("field"), part("message"))
    };
    let joined = |causes: &[Value]| causes.iter().map(text).collect::<Vec<_>>().join(", ");
    let before = joined(causes);
    causes.sort_by_cached_key(text);
    let after = joined(causes);
    if let Some(message) = body["message"].as_str() {
        body["message"] = message.replace(&before, &after).into();
    }
}

/// Everything that must be equal.
fn comparable(reply: &Reply, namespace: &str) -> Value {
    let mut warnings = reply.warnings();
    warnings.sort();
    let mut body = mask(reply.json(), namespace);
    order_causes(&mut body);
    json!({
        "code": reply.code,
        "warnings": mask(json!(warnings), namespace),
        "body": body,
    })
}

/// The paths at which two values differ.
pub(crate) fn differences(path: &str, real: &Value, ours: &Value, out: &mut Vec<String>) {
    match (real, ours) {
        (Value::Object(a), Value::Object(b)) => {
            let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                let (left, right) = (
                    a.get(name).unwrap_or(&Value::Null),
                    b.get(name).unwrap_or(&Value::Null),
                );
                differences(&format!("{path}.{name}"), left, right, out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (position, (left, right)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}[{position}]"), left, right, out);
            }
        }
        _ if real == ours => {}
        _ => out.push(format!("{path}: real {real} ours {ours}")),
    }
}

async fn namespace(client: &Client, name: &str) {
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let (code, answer) = crate::exchange::json(client, "POST", "/api/v1/namespaces", &body).await;
    assert_eq!(code, 201, "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_equal_those_of_a_real_api_server() {
    let real = Cluster::real()
        .api_server_only()
        .start()
        .await
        .expect("a real API server");
    let real_client = real.client().await.expect("its client");
    let ours = ApiServer::start(Options::ephemeral().expect("an identity"))
        .await
        .expect("ours");
    let our_client = ours.client("default");
    let known = known();
    let mut requests = 0;
    let mut different: Vec<String> = Vec::new();
    let mut unused: Vec<&String> = known.keys().collect();
    let only = std::env::var("WARP_CASE").unwrap_or_default();
    for (position, case) in cases().iter().enumerate() {
        if !case.name.contains(&only) {
            continue;
        }
        let name = format!("case-{position}");
        namespace(&real_client, &name).await;
        namespace(&our_client, &name).await;
        let (theirs, own) = tokio::join!(
            run(&real_client, case, &name),
            run(&our_client, case, &name)
        );
        let mut found = Vec::new();
        for ((line, real), (_, ours)) in theirs.iter().zip(&own) {
            requests += 1;
            let mut here = Vec::new();
            differences(
                "",
                &comparable(real, &name),
                &comparable(ours, &name),
                &mut here,
            );
            found.extend(
                here.into_iter()
                    .map(|difference| format!("{line}\n      {difference}")),
            );
        }
        match known.get(&case.name) {
            Some(_) if !found.is_empty() => unused.retain(|known| **known != case.name),
            _ if found.is_empty() => {}
            _ => different.push(format!("{}\n    {}", case.name, found.join("\n    "))),
        }
    }
    assert!(
        different.is_empty(),
        "{} cases differ:\n{}",
        different.len(),
        different.join("\n")
    );
    if only.is_empty() || only == "published" {
        crate::published::documents_are_equal(&real_client, &our_client).await;
    }
    if only.is_empty() {
        assert!(
            unused.is_empty(),
            "these known differences are gone, remove them: {unused:?}"
        );
        assert!(requests >= 200, "only {requests} requests were compared");
        crate::page::lists_what_is_not_served(&real_client, &our_client).await;
    }
}
