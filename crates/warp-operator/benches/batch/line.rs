//! A full fleet: what cannot start is told so, what may take a place takes it, and a long line costs nothing.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;
use warp_api::{GPUWorkload, condition};
use warp_testkit::wait_for;

use super::rig::{Operator, SERVED, mib, number, percentile, row};
use super::{GPUS, LIMIT, PARALLEL, workload};

/// How many ends of pods are timed.
const ENDS: usize = 20;
/// Nothing is written for so long: everybody in line has been told.
const SETTLED: Duration = Duration::from_secs(15);

/// From the submission of a gang nobody has room for to the status that says so, with its reason.
pub(crate) async fn refused(client: &Client) -> Result<()> {
    let workloads = Api::<GPUWorkload>::namespaced(client.clone(), SERVED);
    let gang = workload("gang", GPUS, &json!({"replicas": 10}))?;
    let began = Instant::now();
    workloads.create(&PostParams::default(), &gang).await?;
    let told = |found: Option<&GPUWorkload>| {
        let status = found.and_then(|found| found.status.as_ref());
        let placed =
            status.and_then(|status| condition::find(&status.conditions, condition::PLACED));
        placed.is_some_and(|placed| placed.status == "False" && !placed.message.is_empty())
    };
    Box::pin(wait_for(&workloads, "gang", "told", LIMIT, told)).await?;
    let took = began.elapsed();
    let figure = format!("a gang of {} GPUs told why it waits, fleet full", 10 * GPUS);
    row(&figure, &milliseconds(took), "–", f64::NAN);
    workloads
        .delete("gang", &kube::api::DeleteParams::default())
        .await?;
    Ok(())
}

/// From the submission of work of higher priority to the eviction of a pod for it.
pub(crate) async fn reclaimed(client: &Client) -> Result<()> {
    let pods = Api::<Pod>::namespaced(client.clone(), SERVED);
    let newest = pods.list_metadata(&ListParams::default().limit(1)).await?;
    let newest = newest.metadata.resource_version.unwrap_or_default();
    let watch = pods
        .watch(&kube::api::WatchParams::default(), &newest)
        .await?;
    let mut watch = pin!(watch);
    let workloads = Api::<GPUWorkload>::namespaced(client.clone(), SERVED);
    let urgent = workload("urgent", 1, &json!({"priority": "high"}))?;
    let began = Instant::now();
    workloads.create(&PostParams::default(), &urgent).await?;
    loop {
        let left = LIMIT.saturating_sub(began.elapsed());
        let event = tokio::time::timeout(left, watch.try_next()).await;
        let event = event
            .context("nobody was evicted")??
            .context("the watch ended")?;
        let evicted = match event {
            kube::api::WatchEvent::Modified(pod) => pod.metadata.deletion_timestamp.is_some(),
            kube::api::WatchEvent::Deleted(_) => true,
            _ => false,
        };
        if evicted {
            break;
        }
    }
    let took = began.elapsed();
    row(
        "one GPU reclaimed for higher priority: eviction seen",
        &milliseconds(took),
        "–",
        f64::NAN,
    );
    Ok(())
}

/// What a line in which nothing changes costs, and how soon a GPU that becomes free is given on.
pub(crate) async fn quiet(client: &Client, operator: &Operator, pending: usize) -> Result<()> {
    let workloads = Api::<GPUWorkload>::namespaced(client.clone(), SERVED);
    let make = async |place: usize| -> Result<()> {
        let made = workload(&format!("wait-{place:05}"), 1, &json!({}))?;
        workloads.create(&PostParams::default(), &made).await?;
        Ok(())
    };
    let made = stream::iter(0..pending).map(make);
    made.buffer_unordered(PARALLEL)
        .try_collect::<Vec<()>>()
        .await?;
    settled(operator).await?;
    let seconds = number("WARP_BENCH_QUIET", 60)?;
    let (before, wrote) = (operator.processor()?, total(operator).await?);
    tokio::time::sleep(Duration::from_secs(seconds as u64)).await;
    let used = operator.processor()?.saturating_sub(before);
    let writes = total(operator).await? - wrote;
    let share = used.as_secs_f64() / seconds as f64 * 100.0;
    let line = format!("{pending} wait, nothing changes");
    row(
        &format!("{line}: of a core"),
        &format!("{share:.2} %"),
        "–",
        f64::NAN,
    );
    let minute = writes * 60.0 / seconds as f64;
    row(
        &format!("{line}: writes a minute"),
        &format!("{minute:.0}"),
        "–",
        f64::NAN,
    );
    row(
        &format!("{line}: resident"),
        &mib(operator.resident()?),
        "–",
        f64::NAN,
    );
    let times = ends(client).await?;
    for (name, share) in [("median", 50), ("slowest", 100)] {
        let took = percentile(&times, share);
        let figure = format!("{pending} wait, one pod ends: the next one's Job, {name} of {ENDS}");
        row(&figure, &milliseconds(took), "–", f64::NAN);
    }
    Ok(())
}

/// From a pod's end to the Job of whoever takes its place.
async fn ends(client: &Client) -> Result<Vec<Duration>> {
    let pods = Api::<Pod>::namespaced(client.clone(), SERVED);
    let running = pods.list(&ListParams::default()).await?.items;
    let running = running.into_iter().filter(|pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
    });
    let names: Vec<String> = running.map(|pod| pod.name_any()).take(ENDS).collect();
    let jobs = Api::<Job>::namespaced(client.clone(), SERVED);
    let mut events = pin!(watcher(jobs.clone(), watcher::Config::default()).applied_objects());
    let mut known = BTreeSet::new();
    let there = jobs
        .list_metadata(&ListParams::default())
        .await?
        .items
        .len();
    while known.len() < there {
        let job = events.try_next().await?.context("the watch ended")?;
        known.insert(job.name_any());
    }
    let mut times = Vec::new();
    for name in names {
        let ended = json!({"status": {"phase": "Succeeded"}});
        let patch = Patch::Merge(&ended);
        pods.patch_status(&name, &PatchParams::default(), &patch)
            .await?;
        let began = Instant::now();
        loop {
            let left = LIMIT.saturating_sub(began.elapsed());
            let job = tokio::time::timeout(left, events.try_next()).await;
            let job = job
                .context("nobody took the place")??
                .context("the watch ended")?;
            if known.insert(job.name_any()) {
                break;
            }
        }
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

async fn total(operator: &Operator) -> Result<f64> {
    let counts = operator.written().await?;
    Ok(counts.into_iter().map(|(_, count)| count).sum())
}

async fn settled(operator: &Operator) -> Result<()> {
    let (began, mut since) = (Instant::now(), Instant::now());
    let mut last = total(operator).await?;
    while since.elapsed() < SETTLED {
        anyhow::ensure!(began.elapsed() < LIMIT, "the operator never stops writing");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = total(operator).await?;
        if (now - last).abs() > f64::EPSILON {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1e3)
}
