//! `warp cancel` and `warp retry`: end a workload for good, and run an ended one again.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use kube::api::{DeleteParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Resource, ResourceExt};
use warp_api::{GPUWorkload, Phase, reason};

use super::others;
use crate::cluster::{self, Connection, Target};
use crate::{output, workload};

/// How often a workload that goes is looked at.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The workloads, or queued work of others as job/NAME, jobset/NAME, pytorchjob/NAME and so on
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    target: Target,
    /// Do not wait until everything of it is gone
    #[arg(long)]
    no_wait: bool,
}

/// Ends workloads for good.
pub(crate) fn cancel(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(async move {
        let connection = args.target.connect().await?;
        let mut code = ExitCode::SUCCESS;
        for name in &args.names {
            match end(&connection, name, !args.no_wait).await {
                Ok(told) => output::line(&told),
                Err(error) => {
                    output::error(&error);
                    code = ExitCode::FAILURE;
                }
            }
        }
        Ok(code)
    })
}

#[derive(clap::Args, Debug)]
pub(crate) struct Retry {
    /// The workload
    name: String,
    #[command(flatten)]
    target: Target,
}

/// Runs an ended workload again.
pub(crate) fn retry(args: Retry) -> anyhow::Result<ExitCode> {
    cluster::block_on(async move {
        let connection = args.target.connect().await?;
        let told = again(&connection, &args.target, &args.name).await?;
        output::line(&told);
        Ok(ExitCode::SUCCESS)
    })
}

/// Removes a workload with its Jobs and pods.
async fn end(connection: &Connection, name: &str, wait: bool) -> anyhow::Result<String> {
    if let Some(job) = others::find(connection, name).await? {
        return others::cancel(connection, &job, wait).await;
    }
    let found = workload::find(connection, name).await?;
    let name = found.name_any();
    let what = match workload::phase(&found) {
        Phase::Running | Phase::Scheduled | Phase::Scheduling => {
            let status = found.status.clone().unwrap_or_default();
            let node = status.places().unwrap_or_default();
            let since = status.start_time.map(|time| workload::since(time.0));
            let since = since.map_or_else(String::new, |since| format!(" after {since}"));
            format!(
                "cancelled{since}: its {} GPUs on {node} are given back",
                found.spec.total_gpus()
            )
        }
        Phase::Pending => "cancelled: it leaves the queue".to_owned(),
        phase => format!("had ended ({phase:?}) and is removed"),
    };
    remove(connection, &found, wait).await?;
    Ok(format!("workload {name} {what}"))
}

/// Deletes exactly this workload, its Jobs and pods first.
async fn remove(connection: &Connection, found: &GPUWorkload, wait: bool) -> anyhow::Result<()> {
    let (api, name) = (workload::api(connection), found.name_any());
    let parameters = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Foreground),
        preconditions: Some(Preconditions {
            uid: found.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let deleted = api.delete(&name, &parameters).await;
    deleted
        .map_err(cluster::told)
        .with_context(|| format!("failed to remove workload {name}"))?;
    if !wait {
        return Ok(());
    }
    loop {
        let now = api
            .get_opt(&name)
            .await
            .map_err(cluster::told)
            .with_context(|| format!("failed to watch workload {name} go"))?;
        if now.is_none_or(|now| now.uid() != found.uid()) {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            _ = tokio::signal::ctrl_c() => bail!("workload {name} is still being removed; it goes on without this command"),
        }
    }
}

/// The same workload once more: the ended one is removed, then made again as it was asked for.
async fn again(connection: &Connection, target: &Target, name: &str) -> anyhow::Result<String> {
    let found = workload::find(connection, name).await?;
    let name = found.name_any();
    let flag = target.flags();
    match workload::phase(&found) {
        Phase::Failed | Phase::Succeeded => {}
        Phase::Pending => {
            let (why, told) = workload::said(&found).unwrap_or((reason::QUEUED, "it waits"));
            let next = match why {
                reason::SUSPENDED => format!("`warp resume {name}{flag}` lets it go on"),
                reason::RETRY_BACKOFF => "it is tried again by itself".to_owned(),
                _ => format!("`warp why {name}{flag}` says what it waits for"),
            };
            bail!("workload {name} has not ended: {told}; {next}");
        }
        phase => bail!(
            "workload {name} has not ended, it is {phase:?}; `warp suspend {name}{flag}` and then resume start its attempt anew"
        ),
    }
    let fresh = unused(&found);
    let whole = serde_json::to_string(&fresh)?;
    remove(connection, &found, true).await?;
    let made = workload::api(connection)
        .create(&PostParams::default(), &fresh)
        .await
        .map_err(cluster::told);
    made.with_context(|| {
        format!("workload {name} was removed but could not be made again; make it with `warp apply -f` of: {whole}")
    })?;
    Ok(format!(
        "workload {name} is tried again from the start; `warp logs -f {name}{flag}` follows it"
    ))
}

/// A workload as it was asked for, without what became of it.
fn unused(found: &GPUWorkload) -> GPUWorkload {
    let meta = found.meta();
    let mut fresh = GPUWorkload::new(&found.name_any(), found.spec.clone());
    fresh.metadata.namespace.clone_from(&meta.namespace);
    fresh.metadata.labels.clone_from(&meta.labels);
    fresh.metadata.annotations.clone_from(&meta.annotations);
    fresh
        .metadata
        .owner_references
        .clone_from(&meta.owner_references);
    fresh.metadata.finalizers.clone_from(&meta.finalizers);
    fresh.spec.suspend = false;
    fresh
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_workload_tried_again_keeps_what_was_asked_and_nothing_of_what_became_of_it() {
        let found: GPUWorkload = serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
            "metadata": {"name": "train", "namespace": "a", "uid": "u", "resourceVersion": "7", "generation": 3,
                "labels": {"team": "x"}, "annotations": {"gpu.warp.dev/provider": "b"}},
            "spec": {"modelName": "m", "gpuCount": 2, "image": "i", "suspend": true},
            "status": {"phase": "Failed", "retryCount": 3},
        }))
        .unwrap();
        let fresh = unused(&found);
        assert_eq!(fresh.labels().get("team").map(String::as_str), Some("x"));
        assert_eq!(fresh.annotations(), found.annotations());
        assert_eq!((fresh.spec.gpu_count, fresh.spec.suspend), (2, false));
        assert!(fresh.uid().is_none() && fresh.resource_version().is_none());
        assert!(fresh.status.is_none());
    }
}
