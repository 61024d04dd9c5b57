//! How a scenario ended, with everything left out that differs between any two runs: names the server made up, uids,
//! versions and times.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use futures::stream::{BoxStream, StreamExt};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};

use super::play::Stage;
use super::script::Scenario;

const COMPARED: [&str; 12] = [
    "Job",
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "ControllerRevision",
    "ConfigMap",
    "Secret",
    "Service",
    "EndpointSlice",
    "PodDisruptionBudget",
    "ResourceQuota",
    "PersistentVolumeClaim",
];

/// How long an end must stand still to be one, and how long it is waited for.
const STILL: Duration = Duration::from_millis(1200);
const LONGEST: Duration = Duration::from_secs(36);

/// The end, once it has stood still for a moment.
pub(super) async fn settled(stage: &Stage, scenario: &Scenario) -> Result<Value> {
    let mut changes = changes(stage, scenario)?;
    let give_up = Instant::now() + LONGEST;
    let mut last = end(stage, scenario).await?;
    let mut rest = Instant::now() + STILL;
    while timeout_at(rest.min(give_up), changes.next()).await.is_ok() {
        let next = end(stage, scenario).await?;
        if next != last {
            last = next;
            rest = Instant::now() + STILL;
        }
    }
    Ok(last)
}

/// Says so whenever something that is compared may have changed.
pub(super) fn changes(stage: &Stage, scenario: &Scenario) -> Result<BoxStream<'static, ()>> {
    let also = scenario.also.iter().map(String::as_str);
    stage.changes(COMPARED.into_iter().chain(["Pod", "Event"]).chain(also))
}

pub(super) async fn end(stage: &Stage, scenario: &Scenario) -> Result<Value> {
    let mut end = Map::new();
    let also = scenario.also.iter().map(String::as_str);
    for kind in COMPARED.into_iter().chain(also) {
        let mut found: Vec<Value> = stage
            .list(kind)
            .await?
            .iter()
            .map(|object| object_end(object, &stage.namespace))
            .collect();
        found.sort_by_key(ToString::to_string);
        if !found.is_empty() {
            end.insert(kind.to_owned(), Value::Array(found));
        }
    }
    if !scenario.ignore_pods {
        let mut pods: Vec<Value> = stage
            .list("Pod")
            .await?
            .iter()
            .map(|pod| pod_end(pod, &stage.namespace))
            .collect();
        pods.sort_by_key(ToString::to_string);
        end.insert("Pod".to_owned(), Value::Array(pods));
    }
    if !scenario.ignore_events {
        end.insert("Event".to_owned(), json!(events(stage).await?));
    }
    Ok(Value::Object(end))
}

/// Uids inside texts: 36 characters, hexadecimal but for hyphens at fixed places.
fn without_uids(text: &str) -> String {
    const LENGTH: usize = 36;
    let is_uid = |part: &[u8]| {
        part.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
    };
    let mut found = text.to_owned();
    let mut at = 0;
    while at + LENGTH <= found.len() {
        if found.as_bytes().get(at..at + LENGTH).is_some_and(is_uid) {
            found.replace_range(at..at + LENGTH, "UID");
        }
        at += 1;
    }
    found
}

/// Replaces what a server or a hash made up: the last parts of names written in the alphabet of generated names.
fn plain(text: &str, namespace: &str) -> String {
    let text = without_uids(&text.replace(namespace, "NAMESPACE"));
    let is_made_up = |part: &str| {
        part.len() >= 5
            && part
                .chars()
                .all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c))
    };
    let word = |word: &str| -> String {
        let parts: Vec<&str> = word.split('-').collect();
        let parts: Vec<&str> = parts
            .iter()
            .enumerate()
            .map(|(at, part)| {
                if at > 0 && is_made_up(part) {
                    "*"
                } else {
                    part
                }
            })
            .collect();
        parts.join("-")
    };
    text.split(' ')
        .map(|part| {
            let core = part.trim_matches(|c: char| "\"'.,:;()[]".contains(c));
            let slash: Vec<String> = core.split('/').map(word).collect();
            part.replace(core, &slash.join("/"))
        })
        .collect::<Vec<_>>()
        .join(" ")
}

fn clean(value: &Value, namespace: &str) -> Value {
    const LEFT_OUT: [&str; 23] = [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
        "selfLink",
        "lastTransitionTime",
        "lastUpdateTime",
        "lastProbeTime",
        "startTime",
        "completionTime",
        "deletionTimestamp",
        "batch.kubernetes.io/controller-uid",
        "controller-uid",
        "pod-template-hash",
        "controller.kubernetes.io/hash",
        "clusterIP",
        "clusterIPs",
        "generation",
        // Where a pod runs and which address it got is the scheduler's and the node's affair.
        "addresses",
        "nodeName",
        "zone",
        "hints",
        "endpoints.kubernetes.io/last-change-trigger-time",
    ];
    match value {
        Value::Object(map) => Value::Object(
            map.iter()
                .filter(|(name, _)| !LEFT_OUT.contains(&name.as_str()))
                .map(|(name, value)| {
                    let mut value = clean(value, namespace);
                    if matches!(name.as_str(), "conditions" | "endpoints" | "ports")
                        && let Value::Array(list) = &mut value
                    {
                        list.sort_by_key(ToString::to_string);
                    }
                    (name.clone(), value)
                })
                .collect(),
        ),
        Value::Array(list) => {
            Value::Array(list.iter().map(|value| clean(value, namespace)).collect())
        }
        Value::String(text) => Value::String(plain(text, namespace)),
        other => other.clone(),
    }
}

fn object_end(object: &Value, namespace: &str) -> Value {
    let mut cleaned = clean(object, namespace);
    let ends = !object["metadata"]["deletionTimestamp"].is_null();
    cleaned["metadata"]["ends"] = json!(ends);
    if let Some(map) = cleaned.as_object_mut() {
        // The spec is the scenario's own but for its size.
        let spec = map.remove("spec").unwrap_or_default();
        map.insert(
            "size".to_owned(),
            json!([
                spec["replicas"],
                spec["parallelism"],
                spec["suspend"],
                spec["paused"]
            ]),
        );
        map.remove("data");
    }
    cleaned
}

fn pod_end(pod: &Value, namespace: &str) -> Value {
    let conditions = pod["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let told: Vec<Value> = conditions
        .iter()
        .filter(|condition| {
            condition["type"] == "DisruptionTarget"
                || condition["type"] == "PodScheduled"
                || condition["type"] == "Ready"
        })
        .map(|condition| {
            json!([
                condition["type"],
                condition["status"],
                condition["reason"],
                condition["message"]
            ])
        })
        .collect();
    let mut meta = pod["metadata"].clone();
    if let Some(annotations) = meta["annotations"].as_object_mut() {
        annotations.retain(|name, _| name.starts_with("batch.kubernetes.io"));
    }
    clean(
        &json!({
            "labels": meta["labels"], "annotations": meta["annotations"], "owners": meta["ownerReferences"],
            "finalizers": meta["finalizers"], "generateName": meta["generateName"],
            "ends": !meta["deletionTimestamp"].is_null(),
            "phase": pod["status"]["phase"], "conditions": told, "hostname": pod["spec"]["hostname"],
            "bound": pod["spec"]["nodeName"].is_string(),
            "nominated": pod["status"]["nominatedNodeName"].is_string(),
            "priority": pod["spec"]["priority"],
        }),
        namespace,
    )
}

/// What was said about what, as a set: how often is a matter of timing.
async fn events(stage: &Stage) -> Result<BTreeSet<String>> {
    let list = stage.list("Event").await?;
    let told = list.iter().filter_map(|event| {
        let component = event["source"]["component"]
            .as_str()
            .or(event["reportingComponent"].as_str())
            .unwrap_or_default();
        let text = event["message"].as_str().unwrap_or_default();
        // A pod that is deleted in the moment it is bound: either scheduler may lose that race, and says so.
        let raced = text.contains("running Bind plugin") && text.ends_with("not found");
        let judged = component.ends_with("-controller") || component == "default-scheduler";
        (judged && !raced).then(|| {
            let text = text.trim_start_matches("(combined from similar events): ");
            let text = plain(text, &stage.namespace);
            let bound = if event["reason"] == "Scheduled" {
                "assigned".to_owned()
            } else {
                text
            };
            format!(
                "{component}: {} {} {}: {bound}",
                event["involvedObject"]["kind"], event["type"], event["reason"]
            )
        })
    });
    Ok(told.collect())
}

/// The lines that are in one end and not in the other.
pub(super) fn difference(wanted: &Value, found: &Value) -> String {
    let lines = |value: &Value| -> Vec<String> {
        serde_json::to_string_pretty(value)
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    };
    let (wanted, found) = (lines(wanted), lines(found));
    let start = wanted
        .iter()
        .zip(&found)
        .take_while(|(one, other)| one == other)
        .count();
    let tail = wanted
        .iter()
        .rev()
        .zip(found.iter().rev())
        .take_while(|(one, other)| one == other)
        .count();
    let part = |lines: &[String]| {
        let end = lines.len().saturating_sub(tail).max(start.min(lines.len()));
        lines[start.min(lines.len()).saturating_sub(4)..(end + 3).min(lines.len())].join("\n")
    };
    format!(
        "kubernetes ended with\n{}\nwarp ended with\n{}",
        part(&wanted),
        part(&found)
    )
}
