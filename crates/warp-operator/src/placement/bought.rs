//! Nodes that came while work was shown to the cluster's autoscaler: they are kept for it for a while, or the work that
//! a node was bought for would wait on while others have it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{Resource, ResourceExt};

use super::{Claim, Claimant};
use crate::ledger::Ledger;

/// For how long a node is kept, counted from when it came: drivers and device plugins take their time.
const KEPT: SignedDuration = SignedDuration::from_mins(10);

/// New nodes, each with the uids of those it may have been bought for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bought(BTreeMap<Arc<str>, BTreeSet<String>>);

impl Bought {
    /// `waiting` is everybody in line.
    pub(crate) fn new<'a>(
        nodes: impl IntoIterator<Item = &'a Arc<Node>>,
        ledger: &Ledger,
        waiting: &[Arc<dyn Claimant>],
        now: Timestamp,
    ) -> Self {
        let shown: Vec<(Timestamp, &Claim)> = waiting
            .iter()
            .map(|claimant| claimant.claim())
            .filter_map(|claim| Some((claim.shown_since?, claim)))
            .collect();
        if shown.is_empty() {
            return Self::default();
        }
        let mut bought = BTreeMap::new();
        for node in nodes {
            let Some(came) = node.meta().creation_timestamp.as_ref().map(|time| time.0) else {
                continue;
            };
            if now.duration_since(came) >= KEPT {
                continue;
            }
            let name = node.name_any();
            let devices = ledger.gpus.get(&name).map_or(&[][..], |gpus| &gpus.devices);
            let whose = shown.iter().filter(|(since, claim)| {
                let pod = claim.pods.first();
                // A node tells whole seconds of when it came.
                since.as_second() <= came.as_second()
                    && pod.is_some_and(|pod| devices.iter().any(|one| pod.gpus.met_by(one)))
            });
            let whose: BTreeSet<String> = whose.map(|(_, claim)| claim.uid.clone()).collect();
            if !whose.is_empty() {
                bought.insert(Arc::from(name), whose);
            }
        }
        Self(bought)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The nodes a claim has to keep off.
    pub(super) fn off_limits(&self, claim: &Claim) -> impl Iterator<Item = Arc<str>> {
        let others = self
            .0
            .iter()
            .filter(|(_, whose)| !whose.contains(&claim.uid));
        others.map(|(node, _)| Arc::clone(node))
    }
}
