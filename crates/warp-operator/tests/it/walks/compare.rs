//! How a workload ended, in a form that two worlds can be compared in.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, ResourceExt};
use serde_json::Value;
use warp_testkit::fault::world::World;

/// The workload, its Jobs and its pods, comparable.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    objects: BTreeMap<String, Vec<Value>>,
}

impl Outcome {
    /// Where another outcome is different, if it is.
    pub(crate) fn differs(&self, other: &Self) -> Option<String> {
        for (kind, want) in &other.objects {
            let have = self.objects.get(kind).cloned().unwrap_or_default();
            if have.len() != want.len() {
                return Some(format!("{} {kind}s instead of {}", have.len(), want.len()));
            }
            for (have, want) in have.iter().zip(want) {
                if let Some(difference) = first_difference(kind, have, want) {
                    return Some(difference);
                }
            }
        }
        (self.objects.len() != other.objects.len()).then(|| "other kinds of objects".to_owned())
    }
}

fn first_difference(at: &str, have: &Value, want: &Value) -> Option<String> {
    match (have, want) {
        (Value::Object(one), Value::Object(other)) => {
            let names = one.keys().chain(other.keys());
            names
                .filter(|name| one.get(*name) != other.get(*name))
                .find_map(|name| {
                    let none = Value::Null;
                    first_difference(
                        &format!("{at}.{name}"),
                        one.get(name).unwrap_or(&none),
                        other.get(name).unwrap_or(&none),
                    )
                })
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let pairs = one.iter().zip(other).enumerate();
            pairs
                .filter(|(_, (one, other))| one != other)
                .find_map(|(place, (one, other))| {
                    first_difference(&format!("{at}[{place}]"), one, other)
                })
        }
        _ if have == want => None,
        _ => Some(format!("{at} is {have}, not {want}")),
    }
}

/// Uids of the pods of a namespace with the uids of their Jobs.
pub(crate) async fn pods(
    world: &World,
    namespace: &str,
) -> Result<Vec<(Option<String>, Vec<String>)>> {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), namespace);
    let mut found: Vec<_> = pods
        .list(&ListParams::default())
        .await?
        .iter()
        .map(|pod| {
            let owners = pod.owner_references().iter().map(|owner| owner.uid.clone());
            (pod.uid(), owners.collect())
        })
        .collect();
    found.sort();
    Ok(found)
}

/// Workloads whose place the cluster's scheduler refused, with its words: the ledger offered what
/// that counts differently.
pub(crate) async fn refused(world: &World) -> Result<Vec<String>> {
    let kind = GroupVersionKind::gvk("gpu.warp.dev", "v1alpha1", "GPUWorkload");
    let workloads: Api<DynamicObject> = Api::all_with(
        world.client.clone(),
        &ApiResource::from_gvk_with_plural(&kind, "gpuworkloads"),
    );
    let all = workloads.list(&ListParams::default()).await?;
    let refused = all.iter().filter_map(|workload| {
        let nodes = workload.data.pointer("/status/refusedNodes")?;
        Some(format!(
            "{}: {} was refused: {nodes}",
            workload.namespace().unwrap_or_default(),
            workload.data["spec"]
        ))
    });
    Ok(refused.collect())
}

/// Every namespace's outcome.
pub(crate) async fn outcomes(world: &World) -> Result<BTreeMap<String, Outcome>> {
    let kind = GroupVersionKind::gvk("gpu.warp.dev", "v1alpha1", "GPUWorkload");
    let workloads: Api<DynamicObject> = Api::all_with(
        world.client.clone(),
        &ApiResource::from_gvk_with_plural(&kind, "gpuworkloads"),
    );
    let jobs: Api<Job> = Api::all(world.client.clone());
    let pods: Api<Pod> = Api::all(world.client.clone());
    let all = ListParams::default();
    let mut raw: BTreeMap<String, Vec<(&str, Value)>> = BTreeMap::new();
    for object in workloads.list(&all).await? {
        let namespace = object.namespace().unwrap_or_default();
        raw.entry(namespace)
            .or_default()
            .push(("workload", serde_json::to_value(&object)?));
    }
    for job in jobs.list(&all).await? {
        let namespace = job.namespace().unwrap_or_default();
        raw.entry(namespace)
            .or_default()
            .push(("job", serde_json::to_value(&job)?));
    }
    for pod in pods.list(&all).await? {
        let namespace = pod.namespace().unwrap_or_default();
        raw.entry(namespace)
            .or_default()
            .push(("pod", serde_json::to_value(&pod)?));
    }
    Ok(raw
        .into_iter()
        .map(|(namespace, objects)| (namespace, outcome(objects)))
        .collect())
}

fn outcome(objects: Vec<(&str, Value)>) -> Outcome {
    let mut known: Vec<(String, String)> = Vec::new();
    for (kind, object) in &objects {
        let text = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (uid, name) = (text("/metadata/uid"), text("/metadata/name"));
        known.push((uid.to_owned(), format!("<uid of {kind}>")));
        if *kind == "workload" {
            known.push((uid.chars().take(8).collect(), "<uid>".to_owned()));
        }
        if *kind == "pod" {
            known.push((name.to_owned(), "<pod>".to_owned()));
        }
    }
    known.retain(|(text, _)| !text.is_empty());
    known.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
    let mut found = Outcome::default();
    for (kind, mut object) in objects {
        strip(kind, &mut object);
        mask("", &mut object, &known);
        found
            .objects
            .entry(kind.to_owned())
            .or_default()
            .push(object);
    }
    for list in found.objects.values_mut() {
        list.sort_by_cached_key(ToString::to_string);
    }
    found
}

/// Takes away what follows from when and where, not from the spec.
fn strip(kind: &str, object: &mut Value) {
    if let Some(meta) = object["metadata"].as_object_mut() {
        for name in [
            "resourceVersion",
            "managedFields",
            "generation",
            "creationTimestamp",
        ] {
            meta.remove(name);
        }
    }
    if let Some(status) = object["status"].as_object_mut() {
        for name in [
            "observedGeneration",
            "podIP",
            "podIPs",
            "hostIP",
            "hostIPs",
            "refusedNodes",
        ] {
            status.remove(name);
        }
    }
    // What a waiting workload says counts nodes, which others fill; when it waits again it is told
    // when to look.
    let waits = kind == "workload" && object["status"]["phase"] == "Pending";
    for condition in object["status"]["conditions"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        if let Some(condition) = condition.as_object_mut() {
            condition.remove("observedGeneration");
            if waits {
                condition.remove("message");
            }
        }
    }
    if waits && let Some(status) = object["status"].as_object_mut() {
        status.remove("message");
    }
}

fn mask(name: &str, value: &mut Value, known: &[(String, String)]) {
    match value {
        Value::String(text) => {
            for (found, meaning) in known {
                if text.contains(found.as_str()) {
                    *text = text.replace(found.as_str(), meaning);
                }
            }
            if is_time(text) {
                "<time>".clone_into(text);
            }
            if name == "containerID" || name == "imageID" {
                "<id>".clone_into(text);
            }
            let numbers = name == "message";
            *text = nodes(text, numbers);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| mask(name, item, known)),
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                mask(name, field, known);
            }
        }
        _ => {}
    }
}

fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 20 && bytes.ends_with(b"Z") && bytes[4] == b'-' && bytes[10] == b'T'
}

/// The names of nodes without their number and kind; all numbers go where only words count.
fn nodes(text: &str, numbers: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let pool = ["box-", "early-"]
            .into_iter()
            .find(|pool| rest.starts_with(pool));
        let length = pool.map_or(0, str::len);
        let digits = rest[length..]
            .bytes()
            .take_while(u8::is_ascii_digit)
            .count();
        if digits > 0 && (pool.is_some() || numbers) {
            out.push_str(if pool.is_some() { "<node>" } else { "<n>" });
            rest = &rest[length + digits..];
        } else {
            out.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    out
}
