//! The documents of custom resources beside those of a real server: the same definitions, in version 2 and 3, and the same
//! operations. Texts are each server's own.

use std::path::{Path, PathBuf};

use kube::Client;
use serde_json::{Map, Value, json};

use crate::exchange::json;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definitions() -> Vec<Value> {
    let mut all: Vec<Value> =
        serde_saphyr::from_str(include_str!("published/definitions.yaml")).expect("definitions");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = vec![here.join("tests/it/requests/kubectl/gadget-definition.yaml")];
    paths.extend(own_definitions());
    for path in paths {
        let text = std::fs::read_to_string(path).expect("a definition");
        all.push(serde_saphyr::from_str(&text).expect("a definition"));
    }
    all
}

/// The shipped definitions of all own kinds, in the order of their names.
pub(crate) fn own_definitions() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    let entries = std::fs::read_dir(folder).expect("the shipped definitions");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let suffix = ".gpu.warp.dev.yaml";
    let mut own: Vec<PathBuf> = paths
        .filter(|path| path.to_string_lossy().ends_with(suffix))
        .collect();
    own.sort();
    assert!(!own.is_empty(), "no definition ends in {suffix}");
    own
}

/// Asks until the answer pleases.
async fn until(client: &Client, path: &str, pleased: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..1200 {
        let (code, answer) = json(client, "GET", path, &Value::Null).await;
        if code == 200 && pleased(&answer) {
            return answer;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("{path} never said what was waited for");
}

fn without_texts(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(name, value)| *name != "description" || !value.is_string())
            .map(|(name, value)| (name.clone(), without_texts(value)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(list) => list.iter().map(without_texts).collect(),
        // 10 and 10.0 are the same number.
        Value::Number(number) => json!(number.as_f64()),
        other => other.clone(),
    }
}

fn keys(value: &Value) -> Vec<&String> {
    let mut names: Vec<_> = value.as_object().into_iter().flatten().collect();
    names.sort_by(|a, b| a.0.cmp(b.0));
    names.into_iter().map(|(name, _)| name).collect()
}

/// What clients can know of the operations of a path.
fn operations(path: &Value) -> Value {
    let parameters = |value: &Value| -> Vec<String> {
        let list = value["parameters"].as_array().into_iter().flatten();
        let names = list.filter_map(|parameter| parameter["name"].as_str());
        names.map(str::to_owned).collect()
    };
    let shared = parameters(path);
    let methods = ["get", "put", "post", "patch", "delete"];
    let operations = methods.iter().filter(|method| path.get(method).is_some());
    operations
        .map(|method| {
            let operation = &path[method];
            let mut names = parameters(operation);
            names.extend(shared.iter().cloned());
            // Nothing here is ever unreadable, so nothing has to be deleted unread.
            names.retain(|name| name != "ignoreStoreReadErrorWithClusterBreakingPotential");
            names.sort();
            let answer = &operation["responses"]["200"]["content"];
            let known = json!({
                "action": operation["x-kubernetes-action"],
                "kind": operation["x-kubernetes-group-version-kind"],
                "parameters": names,
                "takes": keys(&operation["requestBody"]["content"]),
                "answers": keys(answer),
                "answer": answer["application/json"]["schema"],
            });
            ((*method).to_owned(), known)
        })
        .collect::<Map<_, _>>()
        .into()
}

/// Group, version, and names of the kind and of its list, of every served version.
fn served(definition: &Value) -> Vec<[String; 4]> {
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = text(&spec["names"]["kind"]);
    let list = spec["names"]["listKind"].as_str();
    let list = list.map_or_else(|| format!("{kind}List"), str::to_owned);
    let versions = spec["versions"].as_array().into_iter().flatten();
    versions
        .filter(|version| version["served"] == true)
        .map(|version| {
            [
                text(&spec["group"]),
                text(&version["name"]),
                kind.clone(),
                list.clone(),
            ]
        })
        .collect()
}

fn definition_name(group: &str, version: &str, kind: &str) -> String {
    let mut parts: Vec<&str> = group.split('.').rev().collect();
    parts.extend([version, kind]);
    parts.join(".")
}

/// Everything both servers publish of a definition, by name.
async fn published(client: &Client, definition: &Value) -> Map<String, Value> {
    let mut all = Map::new();
    for [group, version, kind, list] in served(definition) {
        let names = [&kind, &list].map(|kind| definition_name(&group, &version, kind));
        let path = format!("/openapi/v3/apis/{group}/{version}");
        let three = until(client, &path, |document| {
            let schemas = &document["components"]["schemas"];
            names.iter().all(|name| schemas.get(name).is_some())
        })
        .await;
        let two = until(client, "/openapi/v2", |document| {
            let schemas = &document["definitions"];
            names.iter().all(|name| schemas.get(name).is_some())
        })
        .await;
        for name in names {
            let schema = without_texts(&three["components"]["schemas"][&name]);
            all.insert(format!("{name} 3"), schema);
            let schema = without_texts(&two["definitions"][&name]);
            all.insert(format!("{name} 2"), schema);
        }
        let plural = definition["spec"]["names"]["plural"]
            .as_str()
            .expect("a plural");
        for (path, operations_of) in three["paths"].as_object().expect("paths") {
            if path.split('/').any(|part| part == plural) {
                all.insert(path.clone(), operations(operations_of));
            }
        }
    }
    all
}

/// Makes the definitions on both servers and compares what is published of them, then what is left when versions change.
pub(crate) async fn documents_are_equal(real: &Client, ours: &Client) {
    let mut different = Vec::new();
    for definition in definitions() {
        let name = definition["metadata"]["name"].as_str().expect("a name");
        for client in [real, ours] {
            let (code, answer) = json(client, "POST", DEFINITIONS, &definition).await;
            assert_eq!(code, 201, "{answer}");
        }
        let (theirs, own) = (
            published(real, &definition).await,
            published(ours, &definition).await,
        );
        assert!(theirs.len() >= 4, "{name} is not compared");
        let mut found = Vec::new();
        crate::differential::differences(name, &theirs.into(), &own.into(), &mut found);
        different.extend(found);
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    let patch = json!({"spec": {"versions": [
        {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
        {"name": "v3", "served": true, "storage": false, "schema": {"openAPIV3Schema": {"type": "object"}}},
        {"name": "v1beta1", "served": false, "storage": false, "schema": {"openAPIV3Schema": {"type": "object"}}},
    ]}});
    for client in [real, ours] {
        let path = format!("{DEFINITIONS}/opens.published.example.com");
        let (code, answer) = json(client, "PATCH", &path, &patch).await;
        assert_eq!(code, 200, "{answer}");
        until(client, "/openapi/v2", |document| {
            let known = |version: &str| {
                let name = definition_name("published.example.com", version, "Open");
                document["definitions"].get(name).is_some()
            };
            known("v1") && known("v3") && !known("v1beta1")
        })
        .await;
    }
    // A real server's index follows in its own time, ours at once.
    let (_, index) = json(ours, "GET", "/openapi/v3", &Value::Null).await;
    for (version, served) in [("v1", true), ("v3", true), ("v1beta1", false)] {
        let path = format!("apis/published.example.com/{version}");
        assert_eq!(index["paths"].get(path).is_some(), served, "{version}");
    }
}
