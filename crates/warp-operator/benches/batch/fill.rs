//! An empty fleet filled with single-GPU jobs while the operator runs, beside a client that makes the same writes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use warp_api::GPUWorkload;

use super::rig::{Operator, RAW, SERVED, mib, row};
use super::{GPUS, PARALLEL, bound, shape, workload};

/// How the operator filled the fleet, for whoever does the same by hand.
pub(crate) struct Filled {
    pub(crate) took: Duration,
    /// A Job it made, and the node that Job is pinned to.
    job: Value,
    node: String,
    /// Writes of a workload, by resource.
    writes: BTreeMap<String, usize>,
}

pub(crate) async fn ours(client: &Client, operator: &Operator, count: usize) -> Result<Filled> {
    let before = totals(operator).await?;
    let began = Instant::now();
    let workloads = Api::<GPUWorkload>::namespaced(client.clone(), SERVED);
    let make = async |number: usize| -> Result<()> {
        let made = workload(&format!("fill-{number:05}"), 1, &json!({}))?;
        workloads.create(&PostParams::default(), &made).await?;
        Ok(())
    };
    let made = stream::iter(0..count).map(make);
    let made = made.buffer_unordered(PARALLEL).try_collect::<Vec<()>>();
    tokio::try_join!(made, bound(client, SERVED, count))?;
    let took = began.elapsed();
    let after = totals(operator).await?;
    row(
        "resident with the fleet full",
        &mib(operator.resident()?),
        "–",
        f64::NAN,
    );
    let each = |(resource, total): (&String, &f64)| {
        let made = total - before.get(resource).copied().unwrap_or_default();
        let each = (made / count as f64).round().max(0.0) as usize;
        (each > 0).then(|| (resource.clone(), each))
    };
    let writes: BTreeMap<String, usize> = after.iter().filter_map(each).collect();
    let jobs = Api::<Job>::namespaced(client.clone(), SERVED);
    let first = jobs.list(&ListParams::default().limit(1)).await?.items;
    let first = first
        .into_iter()
        .next()
        .context("the operator made no Job")?;
    let owner = first
        .owner_references()
        .first()
        .context("its Job has an owner")?;
    let status = workloads.get(&owner.name).await?.status.unwrap_or_default();
    let node = status.assigned_node.context("its workload has a node")?;
    Ok(Filled {
        took,
        job: serde_json::to_value(first.spec)?,
        node,
        writes,
    })
}

async fn totals(operator: &Operator) -> Result<BTreeMap<String, f64>> {
    let mut totals = BTreeMap::new();
    for (resource, count) in operator.written().await? {
        *totals.entry(resource).or_default() += count;
    }
    Ok(totals)
}

/// The same objects and the same number of writes, the places known beforehand.
pub(crate) async fn raw(
    client: &Client,
    filled: &Filled,
    count: usize,
    nodes: usize,
) -> Result<Duration> {
    let began = Instant::now();
    let one = |number: usize| async move {
        by_hand(client, filled, number, &shape().name_of(number % nodes)).await
    };
    let made = stream::iter(0..count).map(one);
    let made = made.buffer_unordered(PARALLEL).try_collect::<Vec<()>>();
    tokio::try_join!(made, bound(client, RAW, count))?;
    anyhow::ensure!(count <= nodes * GPUS as usize, "there is room for all");
    Ok(began.elapsed())
}

async fn by_hand(client: &Client, filled: &Filled, number: usize, node: &str) -> Result<()> {
    let name = format!("fill-{number:05}");
    let workloads = Api::<GPUWorkload>::namespaced(client.clone(), RAW);
    let made = workload(&name, 1, &json!({}))?;
    let made = workloads.create(&PostParams::default(), &made).await?;
    for (resource, each) in &filled.writes {
        for turn in 0..*each {
            match resource.as_str() {
                "jobs" => job(client, filled, &name, node).await?,
                "gpuworkloads/status" => status(&workloads, &name, node, turn).await?,
                "events" => event(client, &made, turn).await?,
                other => {
                    anyhow::bail!("the operator writes {other}, which the raw client does not know")
                }
            }
        }
    }
    Ok(())
}

async fn job(client: &Client, filled: &Filled, name: &str, node: &str) -> Result<()> {
    // Wherever the operator wrote its node, this one's stands.
    let quoted = |node: &str| Value::from(node).to_string();
    let spec = filled.job.to_string();
    let mut spec: Value =
        serde_json::from_str(&spec.replace(&quoted(&filled.node), &quoted(node)))?;
    // Kubernetes chooses these for every Job anew.
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("selector");
    }
    if let Some(labels) = spec.pointer_mut("/template/metadata/labels") {
        *labels = json!({});
    }
    let made: Job = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
    let jobs = Api::<Job>::namespaced(client.clone(), RAW);
    jobs.create(&PostParams::default(), &made).await?;
    Ok(())
}

async fn status(workloads: &Api<GPUWorkload>, name: &str, node: &str, turn: usize) -> Result<()> {
    let body = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
        "status": {"message": format!("turn {turn}"), "retryCount": 0, "assignedNode": node, "jobName": name},
    });
    let manager = PatchParams::apply("raw").force();
    let patch = Patch::Apply(&body);
    workloads.patch_status(name, &manager, &patch).await?;
    Ok(())
}

async fn event(client: &Client, about: &GPUWorkload, turn: usize) -> Result<()> {
    let name = about.name_any();
    let event: Event = serde_json::from_value(json!({
        "metadata": {"name": format!("{name}.{turn}")},
        "involvedObject": {
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "namespace": RAW, "name": name, "uid": about.uid(),
        },
        "reason": "Raw", "message": "a message of about the usual length for a workload", "type": "Normal",
        "reportingComponent": "raw", "reportingInstance": "raw", "action": "Raw", "eventTime": "2026-11-17T00:00:00.000000Z",
    }))?;
    let events = Api::<Event>::namespaced(client.clone(), RAW);
    events.create(&PostParams::default(), &event).await?;
    Ok(())
}
