//! Faults on a schedule: what a fleet file says happens to its nodes, carried out as the annotations a
//! person would set by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::simulated::PREFIX;
use crate::informer::Source;
use crate::informer::feed::{self, Change};

/// One fault: after some time these annotations are set on these nodes, and taken away again later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Since the nodes joined.
    pub after: Duration,
    pub nodes: Vec<String>,
    /// Names of annotations without their prefix.
    pub set: BTreeMap<String, String>,
    /// `None`: for good.
    pub lasts: Option<Duration>,
}

/// Waits until every node that faults are meant for has joined.
async fn joined(client: kube::Client, faults: &[Fault]) {
    let named = faults.iter().flat_map(|fault| &fault.nodes);
    let mut missing: BTreeSet<&str> = named.map(String::as_str).collect();
    let mut changes = feed::of::<Node>(client, Source::all::<Node>());
    while !missing.is_empty()
        && let Some(change) = changes.next().await
    {
        let there = match change {
            Change::Listed(nodes, _) => nodes,
            Change::Set(node) => vec![node],
            Change::Removed(_) | Change::Reached(_) => continue,
        };
        for node in there {
            missing.remove(node.meta().name.as_deref().unwrap_or_default());
        }
    }
}

/// Plays the faults; returns when the last has happened.
pub async fn play(client: kube::Client, faults: Vec<Fault>) {
    let nodes: Api<Node> = Api::all(client);
    joined(nodes.clone().into_client(), &faults).await;
    let begun = tokio::time::Instant::now();
    let mut steps: Vec<(Duration, &Fault, bool)> = Vec::new();
    for fault in &faults {
        steps.push((fault.after, fault, true));
        steps.extend(fault.lasts.map(|lasts| (fault.after + lasts, fault, false)));
    }
    // At one moment what ends goes first: a fault may begin as another on the same node ends.
    steps.sort_by_key(|(at, _, begins)| (*at, *begins));
    for (at, fault, begins) in steps {
        tokio::time::sleep_until(begun + at).await;
        let annotations: serde_json::Map<String, Value> = fault
            .set
            .iter()
            .map(|(name, value)| {
                let value = if begins { json!(value) } else { Value::Null };
                (format!("{PREFIX}{name}"), value)
            })
            .collect();
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        for node in &fault.nodes {
            let done = nodes.patch(node, &PatchParams::default(), &patch).await;
            match done {
                Ok(_) => {
                    tracing::info!(%node, faults = ?fault.set, begins, "fault on schedule");
                }
                Err(error) => tracing::warn!(%node, %error, "fault not set"),
            }
        }
    }
}
