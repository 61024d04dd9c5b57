//! `warp suspend` and `warp resume`: give a workload's GPUs back, and let it be placed again.

use std::process::ExitCode;

use anyhow::{Context, bail};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use warp_api::{GPUWorkload, GPUWorkloadStatus};

use super::others;
use crate::cluster::{self, Connection, Target};
use crate::{output, workload};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The workloads, or queued work of others as job/NAME, jobset/NAME, pytorchjob/NAME and so on
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    target: Target,
}

/// Stops workloads without ending them.
pub(crate) fn suspend(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(each(args, true))
}

/// Lets suspended workloads be placed again.
pub(crate) fn resume(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(each(args, false))
}

async fn each(args: Args, suspend: bool) -> anyhow::Result<ExitCode> {
    let connection = args.target.connect().await?;
    let mut code = ExitCode::SUCCESS;
    for name in &args.names {
        let work = async || one(&connection, &args.target, name, suspend).await;
        match cluster::past_conflicts(work).await {
            Ok(told) => output::line(&told),
            Err(error) => {
                output::error(&error);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

async fn one(
    connection: &Connection,
    target: &Target,
    name: &str,
    suspend: bool,
) -> anyhow::Result<String> {
    if let Some(job) = others::find(connection, name).await? {
        return if suspend {
            others::suspend(connection, &job).await
        } else {
            others::resume(connection, &job).await
        };
    }
    let found = workload::find(connection, name).await?;
    if let Some(told) = settled(&found, target, suspend)? {
        return Ok(told);
    }
    let changed = write(connection, &found, suspend).await;
    let changed = changed.map_err(cluster::told).with_context(|| {
        let verb = if suspend { "suspend" } else { "resume" };
        format!("failed to {verb} workload {}", found.name_any())
    })?;
    Ok(done(&changed, suspend))
}

/// What there is to say of one that needs no write.
fn settled(found: &GPUWorkload, target: &Target, suspend: bool) -> anyhow::Result<Option<String>> {
    let name = found.name_any();
    let phase = workload::phase(found);
    if phase.is_final() {
        let next = if suspend {
            "there is nothing to stop".to_owned()
        } else {
            format!("`warp retry {name}{}` runs it again", target.flags())
        };
        bail!("workload {name} has ended ({phase:?}); {next}");
    }
    let told = if suspend {
        format!("workload {name} was suspended already")
    } else {
        format!("workload {name} was not suspended")
    };
    Ok((found.spec.suspend == suspend).then_some(told))
}

/// Only if it is still the one that was looked at.
async fn write(
    connection: &Connection,
    found: &GPUWorkload,
    suspend: bool,
) -> kube::Result<GPUWorkload> {
    let patch = json!({
        "metadata": {"uid": found.uid(), "resourceVersion": found.resource_version()},
        "spec": {"suspend": suspend},
    });
    let parameters = PatchParams {
        field_manager: Some("warp".to_owned()),
        ..PatchParams::default()
    };
    let workloads = workload::api(connection);
    let patch = Patch::Merge(&patch);
    workloads
        .patch(&found.name_any(), &parameters, &patch)
        .await
}

fn done(changed: &GPUWorkload, suspend: bool) -> String {
    let (name, gpus) = (changed.name_any(), changed.spec.total_gpus());
    if !suspend {
        return format!("workload {name} resumed: it waits for {gpus} GPUs again");
    }
    let place = changed.status.as_ref();
    let place = place.and_then(GPUWorkloadStatus::places);
    let held = place.map_or_else(
        || "it leaves the queue".to_owned(),
        |node| format!("its {gpus} GPUs on {node} are given back"),
    );
    format!("workload {name} suspended: {held}")
}
