//! Workloads that go well.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DynamicObject, WatchEvent, WatchParams};
use serde::Deserialize;
use serde_json::{Value, json};
use warp_api::kinds::KINDS;
use warp_testkit::{Behaviour, repository, until};

use super::operator::Operator;
use super::world::{DEADLINE, World, condition, phase, retries, spec, text, with};

/// Phases in the order an attempt goes through them.
const ORDER: [&str; 5] = ["Pending", "Scheduling", "Scheduled", "Running", "Succeeded"];

pub(super) async fn a_workload_runs_to_success(world: &World) -> Result<()> {
    let scene = world.scene("success").await?;
    let behaviour = Behaviour::hang().start_after(Duration::from_millis(500));
    let created = scene.submit("train", spec(2, &behaviour)).await?;
    let version = created.resource_version().context("no resourceVersion")?;
    let changes = scene.workloads();
    let mut changes = changes
        .watch(&WatchParams::default(), &version)
        .await?
        .boxed();
    let (mut seen, mut told): (Vec<String>, usize) = (Vec::new(), 0);
    let done = Behaviour::succeed();
    let last = tokio::time::timeout(DEADLINE, async {
        while let Some(event) = changes.next().await {
            let (WatchEvent::Modified(object) | WatchEvent::Added(object)) = event? else {
                continue;
            };
            // Status is written only when it says something new.
            if seen.last().map(String::as_str) != Some(phase(&object)) {
                seen.push(phase(&object).to_owned());
            }
            match phase(&object) {
                // Not before the operator has said it: a busy machine may take its time.
                "Running" if seen.len() != told => scene.release("train", &done).await?,
                "Succeeded" => return Ok(object),
                _ => {}
            }
            told = seen.len();
        }
        anyhow::bail!("the watch ended before the workload did")
    })
    .await
    .with_context(|| format!("phases so far: {seen:?}"))??;
    let places: Option<Vec<usize>> = seen
        .iter()
        .map(|phase| ORDER.iter().position(|known| known == phase))
        .collect();
    let places = places.with_context(|| format!("unknown phase in {seen:?}"))?;
    ensure!(places.is_sorted(), "phases go forwards only: {seen:?}");
    ensure!(seen.contains(&"Running".to_owned()), "never ran: {seen:?}");
    check_finished(&last)?;

    let jobs = scene.jobs_of("train").await?;
    let pods = scene.pods_of("train").await?;
    ensure!(jobs.len() == 1 && pods.len() == 1, "one Job, one pod");
    ensure!(text(&last, "/status/jobName") == jobs[0].name_any());
    let pod = &pods[0];
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    ensure!(node == Some(text(&last, "/status/assignedNode")));
    check_container(pod)?;
    check_pinned(pod, text(&last, "/status/assignedNode"))
}

fn check_finished(object: &DynamicObject) -> Result<()> {
    ensure!(retries(object) == 0, "no retry was needed");
    ensure!(object.data.pointer("/status/conditions/0/type") == Some(&json!("Ready")));
    ensure!(condition(object, "Succeeded", "status") == "True");
    ensure!(
        object
            .data
            .pointer("/status/observedGeneration")
            .and_then(Value::as_i64)
            == object.metadata.generation,
        "the status speaks about another generation"
    );
    Ok(())
}

/// The container asks for its GPUs and knows its model.
fn check_container(pod: &Pod) -> Result<()> {
    let container = serde_json::to_value(&pod.spec.as_ref().context("no spec")?.containers[0])?;
    ensure!(container["resources"]["limits"]["nvidia.com/gpu"] == "2");
    let env = container["env"].as_array().context("no env")?;
    let value = |name: &str| {
        env.iter()
            .find(|variable| variable["name"] == name)
            .map(|variable| variable["value"].clone())
    };
    ensure!(value("MODEL_NAME") == Some(json!("scenario")));
    ensure!(value("GPU_COUNT") == Some(json!("2")));
    Ok(())
}

/// Every term of the required node affinity names the node: terms are ORed.
pub(super) fn check_pinned(pod: &Pod, node: &str) -> Result<()> {
    let spec = serde_json::to_value(&pod.spec)?;
    let terms = spec
        .pointer("/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms")
        .and_then(Value::as_array)
        .context("no required node affinity")?;
    ensure!(!terms.is_empty());
    for term in terms {
        let fields = term["matchFields"].as_array().context("no matchFields")?;
        let pin = json!({"key": "metadata.name", "operator": "In", "values": [node]});
        ensure!(fields.contains(&pin), "not pinned to {node}: {term}");
    }
    Ok(())
}

pub(super) async fn every_example_runs(world: &World) -> Result<()> {
    let scene = world.scene("examples").await?;
    let folder = repository().join("deploy/examples");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path)?;
        if !text.contains("kind: GPUWorkload") {
            continue;
        }
        let path = path.display().to_string();
        let made = world
            .cluster
            .kubectl()
            .run(&["-n", &scene.namespace, "apply", "-f", &path, "-o", "name"])
            .await?;
        names.extend(
            made.lines()
                .filter_map(|line| line.strip_prefix("gpuworkload.gpu.warp.dev/"))
                .map(str::to_owned),
        );
    }
    ensure!(names.len() >= 4, "only {names:?} were applied");
    for name in &names {
        scene
            .until(name, "finished", |object| {
                matches!(phase(object), "Succeeded" | "Failed")
            })
            .await?;
        let object = scene.get(name).await?;
        ensure!(phase(&object) == "Succeeded", "{name}: {object:?}");
    }
    Ok(())
}

pub(super) async fn volumes_are_mounted_as_asked(world: &World) -> Result<()> {
    let scene = world.scene("volumes").await?;
    claim(world, &scene.namespace, "data").await?;
    let volumes = json!({"volumes": [
        {"name": "data", "readOnly": true, "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "scratch", "mountPath": "/scratch", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "host", "hostPath": {"path": "/var/lib/models"}},
    ]});
    scene
        .submit("mounts", with(spec(1, &Behaviour::succeed()), volumes))
        .await?;
    scene.until_phase("mounts", "Succeeded").await?;
    let pods = scene.pods_of("mounts").await?;
    let pod = serde_json::to_value(&pods[0].spec)?;
    let find = |list: &Value, name: &str| {
        let mut entries = list.as_array().into_iter().flatten();
        entries.find(|entry| entry["name"] == name).cloned()
    };
    let volume = |name: &str| find(&pod["volumes"], name).context(name.to_owned());
    let mount =
        |name: &str| find(&pod["containers"][0]["volumeMounts"], name).context(name.to_owned());
    ensure!(volume("data")?["persistentVolumeClaim"]["claimName"] == "data");
    ensure!(mount("data")?["mountPath"] == "/mnt/data");
    ensure!(mount("data")?["readOnly"] == true);
    ensure!(volume("scratch")?["emptyDir"]["sizeLimit"] == "1Gi");
    ensure!(mount("scratch")?["mountPath"] == "/scratch");
    ensure!(volume("host")?["hostPath"]["path"] == "/var/lib/models");
    ensure!(mount("host")?["readOnly"] != true);
    Ok(())
}

/// A claim and the volume it binds to.
pub(super) async fn claim(world: &World, namespace: &str, name: &str) -> Result<()> {
    claim_on(world, namespace, name, None).await
}

/// As [`claim`]; with a node, the volume can be used there only.
pub(super) async fn claim_on(
    world: &World,
    namespace: &str,
    name: &str,
    node: Option<&str>,
) -> Result<()> {
    let affinity = node.map(|node| {
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]},
        ]}]}})
    });
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": format!("{namespace}-{name}")},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "hostPath": {"path": "/data"}, "storageClassName": "",
            "claimRef": {"namespace": namespace, "name": name},
            "nodeAffinity": affinity,
        },
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeName": format!("{namespace}-{name}"),
        },
    });
    let kubectl = world.cluster.kubectl();
    kubectl
        .run_with(&["apply", "-f", "-"], &format!("{volume}\n---\n{claim}"))
        .await?;
    Ok(())
}

pub(super) async fn kubectl_shows_what_matters(world: &World) -> Result<()> {
    let scene = world.scene("table").await?;
    scene.submit("shown", spec(1, &Behaviour::hang())).await?;
    let object = scene.until_phase("shown", "Running").await?;
    let table = world
        .cluster
        .kubectl()
        .run(&["-n", &scene.namespace, "get", "gpuw"])
        .await?;
    let mut lines = table.lines().map(|line| line.split_whitespace());
    let header: Vec<&str> = lines.next().context("no header")?.collect();
    ensure!(
        header == ["NAME", "MODEL", "GPUS", "PHASE", "NODE", "AGE"],
        "{table}"
    );
    let row: Vec<&str> = lines.next().context("no row")?.collect();
    let node = text(&object, "/status/assignedNode");
    ensure!(
        row[..5] == ["shown", "scenario", "1", "Running", node],
        "{table}"
    );
    Ok(())
}

/// After the other scenarios: the four metrics of the first design are there and have counted.
pub(super) async fn metrics(operator: &Operator) -> Result<()> {
    let page = operator.metrics().await?;
    let counted = |name: &str| {
        page.lines().any(|line| {
            line.starts_with(name) && line.rsplit(' ').next().is_some_and(|count| count != "0")
        })
    };
    for name in [
        "warp_gpuworkload_scheduled_total{strategy=\"warp\"",
        "warp_gpuworkload_failed_total{reason=",
        "warp_gpuworkload_retries_total",
        "warp_gpuworkload_reconcile_duration_seconds_count{result=\"success\"",
    ] {
        ensure!(counted(name), "{name} has not counted:\n{page}");
    }
    Ok(())
}

/// After the other scenarios: the audit trail has one record for every write the API server saw,
/// each with its reason, and holds no secret.
pub(super) async fn audit_trail(world: &World, operator: &Operator) -> Result<()> {
    let difference = std::sync::Mutex::new(String::new());
    let told = until("every write has its record", DEADLINE, || async {
        let records = records(&operator.log())?;
        let mut told: BTreeMap<String, usize> = BTreeMap::new();
        for record in &records {
            // Whether an Event is new or joins a series is not the operator's choice.
            let event = record.what.starts_with("event ");
            let verb = if event { "event" } else { &record.verb };
            *told.entry(verb.to_owned()).or_default() += 1;
        }
        let mut done: BTreeMap<String, usize> = BTreeMap::new();
        for request in world.requests().await? {
            let action = &request.action;
            if request.is_write() && request.code < 400 && action.resource != "leases" {
                let event = action.resource == "events";
                let verb = if event { "event" } else { &action.verb };
                *done.entry(verb.to_owned()).or_default() += 1;
            }
        }
        let same = told == done;
        *difference.lock().unwrap() = format!("records {told:?}, writes {done:?}");
        Ok(same.then_some(records))
    })
    .await
    .with_context(|| difference.lock().unwrap().clone())?;
    ensure!(told.len() > 100, "only {} records", told.len());
    for record in &told {
        let kind = record.object.split('/').next().unwrap_or_default();
        // Work of others is acted on for itself.
        let queued = ["Job", "JobSet", "PyTorchJob", "MPIJob", "RayJob"];
        let known = queued.contains(&kind) || KINDS.iter().any(|entry| entry.kind == kind);
        ensure!(
            known
                && !record.why.is_empty()
                && !record.what.is_empty()
                && !record.correlation.is_empty(),
            "{record:?}"
        );
    }
    ensure!(
        told.iter().any(|record| record.cause.contains("kubectl")),
        "what kubectl applied is not recorded as its doing"
    );
    ensure!(
        !operator.log().contains("eyJhbGciOi"),
        "a token is in the operator's log"
    );
    Ok(())
}

/// One line of the audit trail.
#[derive(Debug, Deserialize)]
struct Record {
    object: String,
    cause: String,
    verb: String,
    what: String,
    why: String,
    correlation: String,
}

fn records(log: &str) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    let complete = log.rfind('\n').map_or("", |end| &log[..end]);
    for line in complete.lines().filter(|line| line.starts_with('{')) {
        let line: Value = serde_json::from_str(line)?;
        if line["target"] == "warp::audit" {
            records.push(serde_json::from_value(line)?);
        }
    }
    Ok(records)
}
