//! From waiting to the last line printed: a line for every change, then the logs, then how it ended.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::future::try_join_all;
use kube::ResourceExt;
use warp_api::{GPUWorkload, Phase};

use crate::cluster::{self, Connection, Target};
use crate::commands::logs;
use crate::output;
use crate::workload::{self, Parts};

/// How often what has not changed is looked at again.
const PAUSE: Duration = Duration::from_millis(250);

pub(super) async fn to_the_end(
    connection: &Connection,
    target: &Target,
    made: &GPUWorkload,
) -> anyhow::Result<ExitCode> {
    let (name, uid) = (made.name_any(), made.uid());
    let mut said = String::new();
    let mut read: Vec<String> = Vec::new();
    loop {
        let now = workload::api(connection).get_opt(&name).await;
        let now = now
            .map_err(cluster::told)
            .with_context(|| format!("failed to look at workload {name}"))?;
        let Some(now) = now.filter(|now| now.uid() == uid) else {
            bail!("workload {name} was removed");
        };
        let phase = workload::phase(&now);
        let (_, message) = workload::said(&now).unwrap_or_default();
        let told = format!("{phase:?}: {message}");
        if told != said && !message.is_empty() {
            output::note(&format!("{name}  {told}"));
            said = told;
        }
        if phase == Phase::Running || phase.is_final() {
            // The members of a gang print side by side.
            let new = new_pods(connection, &now, &read).await?;
            let follow = |pod| logs::follow(target, &connection.namespace, pod);
            try_join_all(new.iter().map(|pod| follow(pod.as_str()))).await?;
            read.extend(new);
        }
        match phase {
            Phase::Succeeded => return Ok(ExitCode::SUCCESS),
            Phase::Failed => {
                let flags = target.flags();
                output::note(&format!(
                    "`warp why {name}{flags}` says what happened, `warp retry {name}{flags}` tries again"
                ));
                return Ok(ExitCode::FAILURE);
            }
            _ => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Pods whose output was not read yet, the oldest first.
async fn new_pods(
    connection: &Connection,
    now: &GPUWorkload,
    read: &[String],
) -> anyhow::Result<Vec<String>> {
    let parts = Parts::read(connection, now).await?;
    let names = parts.pods.iter().map(|pod| pod.name_any());
    Ok(names.filter(|name| !read.contains(name)).collect())
}
