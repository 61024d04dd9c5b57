//! The nodes of earlier runs: a data directory may be started with another fleet than last time, and
//! nodes that nobody plays any more would look alive until their leases run out.

use std::collections::BTreeSet;

use anyhow::Context;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use warp_local::node::fleet::Shape;
use warp_local::node::process;

use super::engine::Nodes;
use super::instance::Instance;
use crate::commands::node::{Chosen, machine_name};
use crate::output;

/// On every node `warp up` makes; nodes that joined by `warp node` are not ours to remove.
const STARTED_BY: &str = "gpu.warp.dev/started-by";
const UP: &str = "warp-up";

pub(super) fn mark(shape: &mut Shape) {
    shape
        .annotations
        .insert(STARTED_BY.to_owned(), UP.to_owned());
}

/// Removes the nodes of earlier runs that are not part of this one. This machine stays a node while
/// pods of an earlier run still run as its processes.
pub(super) async fn remove_others(
    client: &kube::Client,
    nodes: &Nodes,
    instance: &Instance,
) -> anyhow::Result<()> {
    let wanted: BTreeSet<String> = match nodes {
        Nodes::Simulated(fleet) => fleet.nodes.iter().map(|node| node.name.clone()).collect(),
        Nodes::Machine(_) => BTreeSet::from([machine_name()]),
        Nodes::None => BTreeSet::new(),
    };
    let running = if matches!(nodes, Nodes::Machine(Chosen::Process)) {
        0
    } else {
        still_running(instance)
    };
    if running > 0 {
        output::note(&format!(
            "{running} pods of an earlier run still run as processes of this machine; `warp up --runtime process` takes them back, `warp down --purge` ends them"
        ));
    }
    let api: Api<Node> = Api::all(client.clone());
    let all = api
        .list(&ListParams::default())
        .await
        .context("failed to list the nodes of earlier runs")?;
    for node in all {
        let name = node.metadata.name.clone().unwrap_or_default();
        let started_by = node
            .metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(STARTED_BY));
        let kept = wanted.contains(&name) || (running > 0 && name == machine_name());
        if started_by.is_none_or(|by| by != UP) || kept {
            continue;
        }
        match api.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            other => drop(other.with_context(|| format!("failed to remove the old node {name}"))?),
        }
    }
    Ok(())
}

/// Pods of this data directory that run as processes.
pub(super) fn still_running(instance: &Instance) -> usize {
    process::left_behind(&instance.folder)
        .iter()
        .filter(|uid| process::is_running(&instance.folder, uid))
        .count()
}
