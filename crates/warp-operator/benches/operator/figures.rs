//! One function per figure.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use warp_api::{GPUWorkload, Phase};
use warp_testkit::wait_for;

use super::rig::{DEADLINE, Operator, RAW, SERVED, mib, percentile, resident, row};

/// Requests in flight while objects are made.
const PARALLEL: usize = 16;

/// From a pod's change being stored to the status that follows from it being seen by a watcher. The
/// raw client does the one thing there is to do: it patches a status on every pod event.
pub(crate) async fn latency(client: &Client, rounds: usize) -> Result<()> {
    node(client).await?;
    let workloads = Api::<GPUWorkload>::namespaced(client.clone(), SERVED);
    workloads
        .create(&PostParams::default(), &workload("latency")?)
        .await?;
    let jobs = Api::<Job>::namespaced(client.clone(), SERVED);
    let job = first_job(&jobs).await?;
    pod(client, SERVED, "latency", Some(&job)).await?;
    Box::pin(wait_for(
        &workloads,
        "latency",
        "bound",
        DEADLINE,
        |found| found.and_then(phase) == Some(Phase::Scheduled),
    ))
    .await?;
    let ours = toggled(client, SERVED, rounds).await?;

    let raw = Api::<GPUWorkload>::namespaced(client.clone(), RAW);
    raw.create(&PostParams::default(), &workload("latency")?)
        .await?;
    pod(client, RAW, "latency", None).await?;
    let follower = tokio::spawn(follow_raw(client.clone()));
    let theirs = toggled(client, RAW, rounds).await?;
    follower.abort();
    for (name, share) in [("median", 50), ("p99", 99)] {
        let (one, other) = (percentile(&ours, share), percentile(&theirs, share));
        row(
            &format!("pod event → status write, {name} of {rounds}"),
            &format!("{:.1} ms", one.as_secs_f64() * 1e3),
            &format!("{:.1} ms", other.as_secs_f64() * 1e3),
            one.as_secs_f64() / other.as_secs_f64(),
        );
    }
    Ok(())
}

/// Changes the pod back and forth and waits for the status each time.
async fn toggled(client: &Client, namespace: &str, rounds: usize) -> Result<Vec<Duration>> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let workloads = Api::<GPUWorkload>::namespaced(client.clone(), namespace);
    let newest = workloads
        .list(&ListParams::default())
        .await?
        .metadata
        .resource_version;
    let watch = workloads
        .watch(&WatchParams::default(), &newest.unwrap_or_default())
        .await?;
    let mut watch = pin!(watch);
    let mut times = Vec::new();
    for round in 0..rounds {
        let (said, want) = if round % 2 == 0 {
            ("Running", Phase::Running)
        } else {
            ("Pending", Phase::Scheduled)
        };
        let body = json!({"status": {"phase": said}});
        pods.patch_status("latency", &PatchParams::default(), &Patch::Merge(&body))
            .await?;
        let stored = Instant::now();
        seen(&mut watch, want).await?;
        times.push(stored.elapsed());
    }
    times.sort();
    Ok(times)
}

async fn seen(
    watch: &mut (impl Stream<Item = kube::Result<WatchEvent<GPUWorkload>>> + Unpin),
    want: Phase,
) -> Result<()> {
    while let Some(event) = tokio::time::timeout(DEADLINE, watch.try_next()).await?? {
        if let WatchEvent::Added(found) | WatchEvent::Modified(found) = event
            && phase(&found) == Some(want)
        {
            return Ok(());
        }
    }
    bail!("the watch ended")
}

/// The least a controller can do: watch pods, patch a status.
async fn follow_raw(client: Client) -> Result<()> {
    let pods = Api::<Pod>::namespaced(client.clone(), RAW);
    let workloads = Api::<GPUWorkload>::namespaced(client, RAW);
    let mut events = pin!(watcher(pods, watcher::Config::default()).applied_objects());
    while let Some(pod) = events.try_next().await? {
        let said = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let phase = if said == Some("Running") {
            Phase::Running
        } else {
            Phase::Scheduled
        };
        raw_status(&workloads, &pod.name_any(), phase).await?;
    }
    Ok(())
}

async fn raw_status(workloads: &Api<GPUWorkload>, name: &str, phase: Phase) -> Result<()> {
    let body = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "status": {"phase": phase, "message": "raw", "retryCount": 0, "assignedNode": "bench"}
    });
    let manager = PatchParams::apply("raw").force();
    workloads
        .patch_status(name, &manager, &Patch::Apply(&body))
        .await?;
    Ok(())
}

/// Memory of the operator with nothing to do and with many finished workloads, beside a client that
/// keeps the same objects in a plain reflector.
pub(crate) async fn memory(client: &Client, operator: &Operator, finished: usize) -> Result<()> {
    let idle = operator.resident()?;
    let own = resident("self")?;
    let (store, writer) = reflector::store::<GPUWorkload>();
    let workloads = Api::<GPUWorkload>::namespaced(client.clone(), SERVED);
    let stream = watcher(workloads.clone(), watcher::Config::default()).reflect(writer);
    let mirror = tokio::spawn(stream.for_each(|_| std::future::ready(())));
    let made = stream::iter(0..finished).map(|number| finished_workload(&workloads, number));
    made.buffer_unordered(PARALLEL)
        .try_collect::<Vec<()>>()
        .await?;
    settle(|| store.len() >= finished).await?;
    // Memory that was used and given back inside the process does not count against either side:
    // both have seen the same events.
    let (full, mirrored) = (operator.resident()?, resident("self")?);
    mirror.abort();
    row("resident, idle", &mib(idle), "–", f64::NAN);
    let (ours, theirs) = (full.saturating_sub(idle), mirrored.saturating_sub(own));
    row(
        &format!("resident, added by {finished} finished workloads"),
        &mib(ours),
        &mib(theirs),
        ours as f64 / theirs as f64,
    );
    Ok(())
}

async fn finished_workload(workloads: &Api<GPUWorkload>, number: usize) -> Result<()> {
    let name = format!("done-{number}");
    workloads
        .create(&PostParams::default(), &suspended(&name)?)
        .await?;
    let body = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "status": {
            "phase": "Succeeded", "retryCount": 0, "assignedNode": "bench", "jobName": name,
            "observedGeneration": 1, "completionTime": "2026-11-15T00:00:00Z",
            "message": "the job ended with exit code 0",
        }
    });
    let manager = PatchParams::apply("warp-workload").force();
    workloads
        .patch_status(&name, &manager, &Patch::Apply(&body))
        .await?;
    Ok(())
}

/// Writes per workload from creation to success, beside a client that creates the same Job and
/// writes one status per state it sees.
pub(crate) async fn writes(client: &Client, operator: &Operator, count: usize) -> Result<()> {
    let workloads = Api::<GPUWorkload>::namespaced(client.clone(), SERVED);
    let before = operator.written().await?;
    for number in 0..count {
        workloads
            .create(&PostParams::default(), &workload(&format!("w-{number}"))?)
            .await?;
    }
    for number in 0..count {
        let name = format!("w-{number}");
        Box::pin(wait_for(
            &workloads,
            &name,
            "succeeded",
            DEADLINE,
            |found| found.and_then(phase) == Some(Phase::Succeeded),
        ))
        .await?;
    }
    let after = operator.written().await?;
    let raw = raw_writes(client, count).await?;
    let per = |total: f64| total / count as f64;
    let kinds = [
        ("jobs", 1.0),
        ("gpuworkloads/status", per(raw)),
        ("events", 0.0),
    ];
    for (resource, theirs) in kinds {
        let sum = |counts: &[(String, f64)]| -> f64 {
            counts
                .iter()
                .filter(|(name, _)| name == resource)
                .map(|(_, count)| count)
                .sum()
        };
        let ours = per(sum(&after) - sum(&before));
        row(
            &format!("writes per workload: {resource}"),
            &format!("{ours:.2}"),
            &format!("{theirs:.2}"),
            ours / theirs,
        );
    }
    Ok(())
}

/// Runs the same Jobs without the operator, one status patch per state of the pod that is seen.
async fn raw_writes(client: &Client, count: usize) -> Result<f64> {
    let jobs = Api::<Job>::namespaced(client.clone(), RAW);
    let workloads = Api::<GPUWorkload>::namespaced(client.clone(), RAW);
    let pods = Api::<Pod>::namespaced(client.clone(), RAW);
    let events = watcher(pods, watcher::Config::default()).applied_objects();
    let mut events = pin!(events);
    for number in 0..count {
        let name = format!("w-{number}");
        workloads
            .create(&PostParams::default(), &workload(&name)?)
            .await?;
        jobs.create(&PostParams::default(), &raw_job(&name)?)
            .await?;
    }
    let (mut writes, mut ended) = (0_usize, 0_usize);
    let mut last = std::collections::BTreeMap::<String, (bool, String)>::new();
    while ended < count {
        let next = tokio::time::timeout(DEADLINE, events.try_next()).await??;
        let pod = next.context("the watch ended")?;
        let Some(job) = pod.labels().get("batch.kubernetes.io/job-name").cloned() else {
            continue;
        };
        let bound = pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_some());
        let said = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.clone())
            .unwrap_or_default();
        let state = (bound, said.clone());
        if last.get(&job) == Some(&state) {
            continue;
        }
        last.insert(job.clone(), state);
        ended += usize::from(said == "Succeeded");
        let phase = match (said.as_str(), bound) {
            ("Succeeded", _) => Phase::Succeeded,
            ("Running", _) => Phase::Running,
            (_, true) => Phase::Scheduled,
            (_, false) => Phase::Scheduling,
        };
        raw_status(&workloads, &job, phase).await?;
        writes += 1;
    }
    Ok(writes as f64)
}

async fn settle(done: impl Fn() -> bool) -> Result<()> {
    let started = Instant::now();
    while !done() {
        if started.elapsed() > DEADLINE {
            bail!("the cluster did not settle");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The operator watches the same objects; it gets as long again as the mirror needed, at most.
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok(())
}

async fn first_job(jobs: &Api<Job>) -> Result<Job> {
    let started = Instant::now();
    while started.elapsed() < DEADLINE {
        if let Some(job) = jobs
            .list(&ListParams::default())
            .await?
            .items
            .into_iter()
            .next()
        {
            return Ok(job);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("the operator created no Job")
}

async fn node(client: &Client) -> Result<()> {
    let nodes = Api::<Node>::all(client.clone());
    let object: Node = serde_json::from_value(json!({"metadata": {"name": "bench"}}))?;
    nodes.create(&PostParams::default(), &object).await?;
    let status = json!({"status": {
        "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"},
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }});
    nodes
        .patch_status("bench", &PatchParams::default(), &Patch::Merge(&status))
        .await?;
    // Without a controller manager nobody else takes the taint of a new node away.
    let untainted = json!({"spec": {"taints": null}});
    nodes
        .patch("bench", &PatchParams::default(), &Patch::Merge(&untainted))
        .await?;
    Ok(())
}

/// The pod a Job controller would make, bound.
async fn pod(client: &Client, namespace: &str, name: &str, job: Option<&Job>) -> Result<()> {
    let labels = job.map(|job| job.labels().clone()).unwrap_or_default();
    let owner = job.map(|job| {
        json!([{"apiVersion": "batch/v1", "kind": "Job", "name": job.name_any(), "uid": job.uid(), "controller": true}])
    });
    let object: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels, "ownerReferences": owner},
        "spec": {
            "nodeName": "bench", "restartPolicy": "Never", "serviceAccountName": "default",
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "image:1"}],
        }
    }))?;
    let accounts =
        Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(client.clone(), namespace);
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    accounts
        .patch(
            "default",
            &PatchParams::apply("bench"),
            &Patch::Apply(&account),
        )
        .await?;
    Api::<Pod>::namespaced(client.clone(), namespace)
        .create(&PostParams::default(), &object)
        .await?;
    Ok(())
}

fn spec() -> Value {
    json!({
        "modelName": "bench", "gpuCount": 1, "image": "image:1",
        "command": ["python", "train.py"], "args": ["--epochs", "3", "--batch", "64"],
        "env": [{"name": "A", "value": "1"}, {"name": "TESTBED_RUN_FOR", "value": "0.5s"}],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    })
}

fn workload(name: &str) -> Result<GPUWorkload> {
    Ok(serde_json::from_value(object(name, &spec()))?)
}

/// Never placed, so that it can be given any status.
fn suspended(name: &str) -> Result<GPUWorkload> {
    let mut spec = spec();
    spec["suspend"] = json!(true);
    Ok(serde_json::from_value(object(name, &spec))?)
}

fn object(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "metadata": {"name": name}, "spec": spec,
    })
}

fn raw_job(name: &str) -> Result<Job> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": {"spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "main", "image": "image:1", "env": spec()["env"],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }],
        }}}
    }))?)
}

fn phase(workload: &GPUWorkload) -> Option<Phase> {
    workload.status.as_ref().and_then(|status| status.phase)
}
