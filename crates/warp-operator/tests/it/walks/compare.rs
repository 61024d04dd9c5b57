//! How a workload ended, in a form that two worlds can be compared in.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, ResourceExt};
use serde_json::Value;
use warp_testkit::fault::world::World;

/// What a namespace has: its workload, Jobs and pods.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    objects: Vec<(&'static str, Value)>,
}

/// Objects by kind, comparable.
type Comparable = BTreeMap<&'static str, Vec<Value>>;

impl Outcome {
    /// Where it is different from another one that has failed so many times less often. Whoever has
    /// failed is compared by the attempt that counts.
    pub(crate) fn differs(&self, other: &Self, failures: i64) -> Option<String> {
        let (have, want) = (self.attempt(), other.attempt() + failures);
        if have != want {
            return Some(format!("attempt {have} instead of {want}"));
        }
        let form = |outcome: &Self| {
            if failures == 0 {
                comparable(&outcome.objects)
            } else {
                comparable(&outcome.current())
            }
        };
        let (have, want) = (form(self), form(other));
        for (kind, want) in &want {
            let have = have.get(kind).map_or(&[][..], Vec::as_slice);
            if have.len() != want.len() {
                return Some(format!("{} {kind}s instead of {}", have.len(), want.len()));
            }
            for (have, want) in have.iter().zip(want) {
                if let Some(difference) = first_difference(kind, have, want) {
                    return Some(difference);
                }
            }
        }
        (have.len() != want.len()).then(|| "other kinds of objects".to_owned())
    }

    fn attempt(&self) -> i64 {
        let workload = self.objects.iter().find(|(kind, _)| *kind == "workload");
        let status = workload.map(|(_, object)| &object["status"]);
        let count = |field: &str| status.and_then(|status| status[field].as_i64());
        count("retryCount").unwrap_or_default() + count("disruptions").unwrap_or_default()
    }

    /// The objects of the attempt that counts, as if it were the first.
    fn current(&self) -> Vec<(&'static str, Value)> {
        let attempt = Value::String(self.attempt().to_string());
        let places = ["/metadata/labels", "/spec/template/metadata/labels"]
            .map(|labels| format!("{labels}/gpu.warp.dev~1attempt"));
        let mut objects = self.objects.clone();
        objects.retain(|(kind, object)| {
            *kind == "workload" || object.pointer(&places[0]) == Some(&attempt)
        });
        for (kind, object) in &mut objects {
            if *kind == "workload" {
                object["status"]["retryCount"] = Value::from(0);
                if let Some(status) = object["status"].as_object_mut() {
                    status.remove("disruptions");
                }
            }
            for place in &places {
                if let Some(label) = object.pointer_mut(place) {
                    *label = Value::from("0");
                }
            }
        }
        objects
    }

    /// What the Job of the attempt that counts asks for, comparable.
    pub(crate) fn job(&self) -> Value {
        let mut found = comparable(&self.current());
        let job = found.get_mut("job").and_then(Vec::pop);
        job.map_or(Value::Null, |mut job| job["spec"].take())
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

/// The uid of a pod and those of its owners.
pub(crate) type PodUids = (Option<String>, Vec<String>);

/// The pods of a namespace.
pub(crate) async fn pods(world: &World, namespace: &str) -> Result<Vec<PodUids>> {
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

/// The Jobs of a namespace by uid, and what they ask for.
pub(crate) async fn jobs(world: &World, namespace: &str) -> Result<Vec<(String, Value)>> {
    let jobs: Api<Job> = Api::namespaced(world.client.clone(), namespace);
    let jobs = jobs.list(&ListParams::default()).await?;
    let form = |job: &Job| {
        Ok((
            job.uid().unwrap_or_default(),
            serde_json::to_value(&job.spec)?,
        ))
    };
    jobs.iter().map(form).collect()
}

fn workloads(world: &World) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("gpu.warp.dev", "v1alpha1", "GPUWorkload");
    let kind = ApiResource::from_gvk_with_plural(&kind, "gpuworkloads");
    Api::all_with(world.client.clone(), &kind)
}

/// Workloads whose place the cluster's scheduler refused, with its words: the ledger offered what
/// that counts differently.
pub(crate) async fn refused(world: &World) -> Result<Vec<String>> {
    let all = workloads(world).list(&ListParams::default()).await?;
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

/// One namespace's outcome.
pub(crate) async fn of(world: &World, namespace: &str) -> Result<Outcome> {
    let only = ListParams::default().fields(&format!("metadata.namespace={namespace}"));
    let mut all = gather(world, &only).await?;
    Ok(all.remove(namespace).unwrap_or_default())
}

/// Every namespace's outcome.
pub(crate) async fn outcomes(world: &World) -> Result<BTreeMap<String, Outcome>> {
    gather(world, &ListParams::default()).await
}

async fn gather(world: &World, which: &ListParams) -> Result<BTreeMap<String, Outcome>> {
    let jobs: Api<Job> = Api::all(world.client.clone());
    let pods: Api<Pod> = Api::all(world.client.clone());
    let mut found: BTreeMap<String, Outcome> = BTreeMap::new();
    let mut add = |kind, namespace: Option<String>, object: Value| {
        let outcome = found.entry(namespace.unwrap_or_default()).or_default();
        outcome.objects.push((kind, object));
    };
    for object in workloads(world).list(which).await? {
        let namespace = object.namespace();
        add("workload", namespace, serde_json::to_value(&object)?);
    }
    for job in jobs.list(which).await? {
        add("job", job.namespace(), serde_json::to_value(&job)?);
    }
    for pod in pods.list(which).await? {
        add("pod", pod.namespace(), serde_json::to_value(&pod)?);
    }
    Ok(found)
}

fn comparable(objects: &[(&'static str, Value)]) -> Comparable {
    let mut known: Vec<(String, String)> = Vec::new();
    for (kind, object) in objects {
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
        } else {
            known.push((name.to_owned(), format!("<{kind}>")));
        }
    }
    known.retain(|(text, _)| !text.is_empty());
    known.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
    let mut found = Comparable::new();
    for (kind, object) in objects {
        let mut object = object.clone();
        strip(kind, &mut object);
        mask("", &mut object, &known);
        found.entry(kind).or_default().push(object);
    }
    for list in found.values_mut() {
        list.sort_by_cached_key(ToString::to_string);
    }
    found
}

/// Whoever was stopped before is told so.
const STOPPED_BEFORE: [&str; 2] = ["ATTEMPT", "RESUME"];

/// Takes away what follows from when and where, not from the spec.
fn strip(kind: &str, object: &mut Value) {
    for pod in ["/spec/containers", "/spec/template/spec/containers"] {
        let containers = object.pointer_mut(pod).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            if let Some(env) = container["env"].as_array_mut() {
                env.retain(|one| !STOPPED_BEFORE.iter().any(|name| one["name"] == *name));
            }
        }
    }
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
            "timeline",
            "recentAttempts",
            "lastCheckpoint",
        ] {
            status.remove(name);
        }
    }
    // What a waiting workload says counts nodes, which others fill; when it waits again it is told
    // when to look.
    let waits = kind == "workload" && object["status"]["phase"] == "Pending";
    let conditions = object["status"]["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten() {
        if let Some(condition) = condition.as_object_mut() {
            condition.remove("observedGeneration");
            if waits {
                condition.remove("message");
            }
        }
    }
    // A map by type, in the order of its last changes.
    if let Some(conditions) = object["status"]["conditions"].as_array_mut() {
        conditions.sort_by(|one, other| one["type"].as_str().cmp(&other["type"].as_str()));
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
            let numbers = matches!(name, "message" | "gpu.warp.dev/placement");
            if numbers || POOLS.iter().any(|pool| text.contains(pool)) {
                *text = nodes(text, numbers);
            }
            // Over how many nodes a gang is spread follows from who was there when it was placed.
            while numbers && text.contains(TWO_NODES) {
                *text = text.replace(TWO_NODES, ONE_NODE);
            }
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

/// Pools of the worlds, as names of nodes begin.
const POOLS: [&str; 2] = ["box-", "early-"];

/// Nodes that members of a gang have, with how many.
const TWO_NODES: &str = "<node> (<n>), <node> (<n>)";
const ONE_NODE: &str = "<node> (<n>)";

/// The names of nodes without their number and kind; all numbers go where only words count.
fn nodes(text: &str, numbers: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let pool = POOLS.into_iter().find(|pool| rest.starts_with(pool));
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
