//! One wide gang on an empty fleet, beside a client that makes its Job, pins every pod and lets it go.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use warp_api::GPUWorkload;

use super::rig::{RAW, SERVED};
use super::{GPUS, PARALLEL, bound, shape, workload};

pub(crate) struct Placed {
    pub(crate) took: Duration,
    job: Value,
}

pub(crate) async fn ours(client: &Client, members: usize) -> Result<Placed> {
    let workloads = Api::<GPUWorkload>::namespaced(client.clone(), SERVED);
    let gang = workload("gang", GPUS, &json!({"replicas": members}))?;
    let began = Instant::now();
    workloads.create(&PostParams::default(), &gang).await?;
    bound(client, SERVED, members).await?;
    let took = began.elapsed();
    let jobs = Api::<Job>::namespaced(client.clone(), SERVED);
    let job = jobs
        .list(&ListParams::default())
        .await?
        .items
        .into_iter()
        .next();
    let job = job.context("the operator made no Job")?;
    Ok(Placed {
        took,
        job: serde_json::to_value(job.spec)?,
    })
}

pub(crate) async fn raw(client: &Client, placed: &Placed, members: usize) -> Result<Duration> {
    let mut spec = placed.job.clone();
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("selector");
    }
    if let Some(labels) = spec.pointer_mut("/template/metadata/labels") {
        *labels = json!({});
    }
    let began = Instant::now();
    let made: Job = serde_json::from_value(json!({"metadata": {"name": "gang"}, "spec": spec}))?;
    let jobs = Api::<Job>::namespaced(client.clone(), RAW);
    jobs.create(&PostParams::default(), &made).await?;
    let pods = Api::<Pod>::namespaced(client.clone(), RAW);
    let born = watcher(pods.clone(), watcher::Config::default()).applied_objects();
    let born = born.map_err(anyhow::Error::from).try_filter(|pod| {
        let gates = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.scheduling_gates.as_ref());
        std::future::ready(gates.is_some_and(|gates| !gates.is_empty()))
    });
    // All are there before the first is let go, as for a gang.
    let names: Vec<String> = born
        .map_ok(|pod| pod.name_any())
        .scan(std::collections::BTreeSet::new(), |seen, name| {
            let new = name
                .map(|name| seen.insert(name.clone()).then_some(name))
                .transpose();
            std::future::ready(Some(new))
        })
        .filter_map(std::future::ready)
        .take(members)
        .try_collect()
        .await?;
    let release = |(number, name): (usize, String)| {
        let pods = pods.clone();
        async move {
            let node = shape().name_of(number);
            let body = json!({
                "metadata": {"annotations": {"raw.warp.dev/rank": number.to_string(), "raw.warp.dev/world": "all"}},
                "spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "schedulingGates": null},
            });
            let patch = Patch::Merge(&body);
            pods.patch(&name, &PatchParams::default(), &patch).await?;
            anyhow::Ok(())
        }
    };
    let released = futures::stream::iter(names.into_iter().enumerate()).map(release);
    let released = released.buffer_unordered(PARALLEL).try_collect::<Vec<()>>();
    tokio::try_join!(released, bound(client, RAW, members))?;
    Ok(began.elapsed())
}
