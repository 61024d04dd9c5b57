//! Faults on a schedule: what a fleet file says happens to its nodes, carried out as the annotations a
//! person would set by hand.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};

use super::simulated::PREFIX;

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

/// Plays the faults; returns when the last has happened.
pub async fn play(client: kube::Client, faults: Vec<Fault>) {
    let nodes: Api<Node> = Api::all(client);
    for node in faults.iter().flat_map(|fault| &fault.nodes) {
        if let Err(error) =
            await_condition(nodes.clone(), node, |node: Option<&Node>| node.is_some()).await
        {
            tracing::warn!(%node, %error, "not known whether the node joined");
        }
    }
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
