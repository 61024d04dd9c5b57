//! `warp suspend` and `warp resume`: give a workload's GPUs back, and let it be placed again.

use std::process::ExitCode;

use anyhow::{Context, bail};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use warp_api::GPUWorkload;

use crate::cluster::{self, Connection, Target};
use crate::{output, workload};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The workloads
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
        match one(&connection, &args.target, name, suspend).await {
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
    let found = workload::find(connection, name).await?;
    let name = found.name_any();
    let phase = workload::phase(&found);
    if phase.is_final() {
        let next = if suspend {
            "there is nothing to stop".to_owned()
        } else {
            format!("`warp retry {name}{}` runs it again", target.flags())
        };
        bail!("workload {name} has ended ({phase:?}); {next}");
    }
    if found.spec.suspend == suspend {
        return Ok(if suspend {
            format!("workload {name} was suspended already")
        } else {
            format!("workload {name} was not suspended")
        });
    }
    // Only if it is still the one that was looked at.
    let patch = json!({
        "metadata": {"uid": found.uid(), "resourceVersion": found.resource_version()},
        "spec": {"suspend": suspend},
    });
    let parameters = PatchParams {
        field_manager: Some("warp".to_owned()),
        ..PatchParams::default()
    };
    let changed: GPUWorkload = workload::api(connection)
        .patch(&name, &parameters, &Patch::Merge(&patch))
        .await
        .map_err(cluster::told)
        .with_context(|| {
            let verb = if suspend { "suspend" } else { "resume" };
            format!("failed to {verb} workload {name}")
        })?;
    let gpus = changed.spec.total_gpus();
    Ok(if suspend {
        let place = changed.status.and_then(|status| status.places());
        let held = place.map_or_else(
            || "it leaves the queue".to_owned(),
            |node| format!("its {gpus} GPUs on {node} are given back"),
        );
        format!("workload {name} suspended: {held}")
    } else {
        format!("workload {name} resumed: it waits for {gpus} GPUs again")
    })
}
