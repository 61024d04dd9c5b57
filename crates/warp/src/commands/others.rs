//! What verbs do to queued work of others (`job/NAME`, `pytorchjob/NAME` and so on): take it out of the line or off its
//! nodes, let it go on, end it. The queue's own rules say what each means; nothing is decided here.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use kube::ResourceExt;
use kube::api::{
    Api, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, PropagationPolicy,
};
use serde_json::{Value, json};
use warp_api::label;
use warp_operator::foresight::{Hold, Queued, hold_of, kind_named};

use crate::cluster::{Connection, queued, told};

/// How often work that goes is looked at.
const PAUSE: Duration = Duration::from_millis(100);

/// The object that `KIND/NAME` stands for; none where the name is a workload's.
pub(crate) async fn find(
    connection: &Connection,
    name: &str,
) -> anyhow::Result<Option<Arc<Queued>>> {
    let named = name.split_once('/');
    let Some((kind, bare)) = named.and_then(|(kind, name)| Some((kind_named(kind)?, name))) else {
        return Ok(None);
    };
    let (client, namespace) = (&connection.client, &connection.namespace);
    let singular = kind.singular;
    let found = queued::get(client, kind, namespace, bare)
        .await
        .map_err(told)
        .with_context(|| format!("failed to look for the {singular} {bare}"))?;
    let found =
        found.with_context(|| format!("no {singular} \"{bare}\" in namespace {namespace}"))?;
    if hold_of(&found) == Hold::Foreign {
        bail!(
            "the {singular} {bare} is not queued: give it the label {}=true before it starts",
            label::QUEUE
        );
    }
    Ok(Some(found))
}

/// Takes it out of the line, or off its nodes.
pub(crate) async fn suspend(connection: &Connection, job: &Queued) -> anyhow::Result<String> {
    let name = job.title();
    match hold_of(job) {
        Hold::Over => bail!("{name} has ended; there is nothing to stop"),
        Hold::Stopped | Hold::OutOfLine => Ok(format!("{name} was suspended already")),
        Hold::Waits => {
            // It is held already: what it leaves is the line.
            change(connection, job, labelled("false")).await?;
            Ok(format!("{name} suspended: it leaves the queue"))
        }
        Hold::Runs | Hold::Foreign => {
            change(connection, job, job.hold(true)).await?;
            Ok(format!("{name} suspended: its GPUs are given back"))
        }
    }
}

/// Has it wait for a place again.
pub(crate) async fn resume(connection: &Connection, job: &Queued) -> anyhow::Result<String> {
    let name = job.title();
    let patch = match hold_of(job) {
        Hold::Over => bail!("{name} has ended; delete it and create it again to run it once more"),
        Hold::Waits => return Ok(format!("{name} was not suspended: it waits in the queue")),
        Hold::Runs | Hold::Foreign => return Ok(format!("{name} was not suspended")),
        Hold::OutOfLine => labelled("true"),
        Hold::Stopped => json!({"metadata": {"annotations": {label::REQUEUED: "by-hand"}}}),
    };
    change(connection, job, patch).await?;
    Ok(format!("{name} resumed: it waits in the queue again"))
}

/// Ends it for good, with its pods.
pub(crate) async fn cancel(
    connection: &Connection,
    job: &Queued,
    wait: bool,
) -> anyhow::Result<String> {
    let (name, own) = (job.title(), job.name_any());
    let what = match hold_of(job) {
        Hold::Runs => "cancelled: its GPUs are given back",
        Hold::Over => "had ended and is removed",
        _ => "cancelled: it leaves the queue",
    };
    let api = queued::api(&connection.client, job.kind, &connection.namespace);
    let parameters = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Foreground),
        preconditions: Some(Preconditions {
            uid: job.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let deleted = api.delete(&own, &parameters).await.map_err(told);
    deleted.with_context(|| format!("failed to remove {name}"))?;
    if wait {
        gone(&api, job).await?;
    }
    Ok(format!("{name} {what}"))
}

/// Waits until it is not there any more.
async fn gone(api: &Api<DynamicObject>, job: &Queued) -> anyhow::Result<()> {
    let name = job.title();
    loop {
        let now = api.get_opt(&job.name_any()).await.map_err(told);
        let now = now.with_context(|| format!("failed to watch {name} go"))?;
        if now.is_none_or(|now| now.uid() != job.uid()) {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            _ = tokio::signal::ctrl_c() => bail!("{name} is still being removed; it goes on without this command"),
        }
    }
}

fn labelled(queue: &str) -> Value {
    json!({"metadata": {"labels": {label::QUEUE: queue}}})
}

/// Changes it only if it is still the one that was looked at.
async fn change(connection: &Connection, job: &Queued, mut patch: Value) -> anyhow::Result<()> {
    patch["metadata"]["uid"] = json!(job.uid());
    patch["metadata"]["resourceVersion"] = json!(job.resource_version());
    let parameters = PatchParams {
        field_manager: Some("warp".to_owned()),
        ..PatchParams::default()
    };
    queued::api(&connection.client, job.kind, &connection.namespace)
        .patch(&job.name_any(), &parameters, &Patch::Merge(&patch))
        .await
        .map_err(told)
        .with_context(|| format!("failed to change {}", job.title()))?;
    Ok(())
}
