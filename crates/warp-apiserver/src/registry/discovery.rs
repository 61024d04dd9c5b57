//! Discovery documents, plain and aggregated, from the served resources.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::resource::api_version;
use super::{Entry, Served};

/// `/api`.
pub(crate) fn core_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

fn group_document(name: &str, versions: &[String]) -> Value {
    let version =
        |version: &String| json!({"groupVersion": api_version(name, version), "version": version});
    json!({
        "name": name,
        "versions": versions.iter().map(version).collect::<Vec<_>>(),
        "preferredVersion": versions.first().map(version),
    })
}

/// `/apis`.
pub(crate) fn groups(served: &Served) -> Value {
    let groups: Vec<Value> = served
        .groups()
        .iter()
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, versions)| group_document(name, versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub(crate) fn group(served: &Served, name: &str) -> Option<Value> {
    let groups = served.groups();
    let (_, versions) = groups.iter().find(|(known, _)| known == name)?;
    let mut document = group_document(name, versions);
    document["kind"] = "APIGroup".into();
    document["apiVersion"] = "v1".into();
    Some(document)
}

/// `/api/v1` and `/apis/GROUP/VERSION`.
pub(crate) fn resources(served: &Served, group: &str, version: &str) -> Option<Value> {
    let mut list = Vec::new();
    let mut known = group.is_empty() && version == "v1";
    for entry in sorted(served, group, version) {
        known = true;
        let resource = &entry.resource;
        let mut item = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": resource.verbs,
        });
        if !resource.short_names.is_empty() {
            item["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            item["categories"] = json!(resource.categories);
        }
        if resource.allows("list") {
            item["storageVersionHash"] = storage_hash(entry).into();
        }
        list.push(item);
        for sub in &resource.subresources {
            let mut item = Map::new();
            item.insert(
                "name".into(),
                format!("{}/{}", resource.plural, sub.name()).into(),
            );
            item.insert("singularName".into(), "".into());
            item.insert("namespaced".into(), resource.namespaced.into());
            let kind = sub.kind();
            if let Some((group, version, _)) = kind
                && (!group.is_empty() || !resource.group.is_empty())
            {
                item.insert("group".into(), group.into());
                item.insert("version".into(), version.into());
            }
            item.insert(
                "kind".into(),
                kind.map_or(resource.kind.as_str(), |(_, _, k)| k).into(),
            );
            item.insert("verbs".into(), json!(sub.verbs()));
            list.push(Value::Object(item));
        }
    }
    known.then(|| {
        json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": api_version(group, version),
            "resources": list,
        })
    })
}

/// Clients only compare it: any value that is stable per stored kind will do.
fn storage_hash(entry: &Entry) -> String {
    let resource = &entry.resource;
    let text = format!("{}/{}/{}", resource.group, resource.version, resource.kind);
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    STANDARD.encode(&digest.as_ref()[..8])
}

fn sorted<'a>(served: &'a Served, group: &'a str, version: &'a str) -> Vec<&'a Arc<Entry>> {
    let mut entries: Vec<_> = served.of(group, version).collect();
    entries.sort_by(|a, b| a.resource.plural.cmp(&b.resource.plural));
    entries
}

/// The aggregated form of `/api` (`core`) or `/apis`, made once for what is served now.
pub(crate) fn aggregated(served: &Served, core: bool, form: &'static str) -> Bytes {
    let mut documents = served.documents.lock();
    let document = documents
        .entry((core, form))
        .or_insert_with(|| Bytes::from(aggregated_document(served, core, form).to_string()));
    document.clone()
}

fn aggregated_document(served: &Served, core: bool, form: &str) -> Value {
    let items: Vec<Value> = served
        .groups()
        .iter()
        .filter(|(name, _)| name.is_empty() == core)
        .map(|(name, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    json!({
                        "version": version,
                        "resources": aggregated_resources(served, name, version),
                        "freshness": "Current",
                    })
                })
                .collect();
            let mut meta = json!({"creationTimestamp": null});
            if !name.is_empty() {
                meta["name"] = name.clone().into();
            }
            json!({"metadata": meta, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{form}"),
        "metadata": {},
        "items": items,
    })
}

fn aggregated_resources(served: &Served, group: &str, version: &str) -> Vec<Value> {
    let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    sorted(served, group, version)
        .into_iter()
        .map(|entry| {
            let resource = &entry.resource;
            let mut item = json!({
                "resource": resource.plural,
                "responseKind": kind(group, version, &resource.kind),
                "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
                "singularResource": resource.singular,
                "verbs": resource.verbs,
            });
            if !resource.short_names.is_empty() {
                item["shortNames"] = json!(resource.short_names);
            }
            if !resource.categories.is_empty() {
                item["categories"] = json!(resource.categories);
            }
            let subs: Vec<Value> = resource
                .subresources
                .iter()
                .map(|sub| {
                    let response = match sub.kind() {
                        Some((g, v, k)) => kind(g, v, k),
                        None => kind(group, version, &resource.kind),
                    };
                    json!({
                        "subresource": sub.name(),
                        "responseKind": response,
                        "verbs": sub.verbs(),
                    })
                })
                .collect();
            if !subs.is_empty() {
                item["subresources"] = subs.into();
            }
            item
        })
        .collect()
}
