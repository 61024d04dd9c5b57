//! Everything a plan needs, read from the caches. No decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Resource, ResourceExt};
use warp_api::GPUWorkload;

use super::{node_of, owns};
use crate::cache::Key;
use crate::context::Context;
use crate::scheduler::Verdict;

/// What is known about one workload.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Its Jobs, any attempt.
    pub(crate) jobs: Vec<Arc<Job>>,
    /// Pods of those Jobs, ended ones included while they exist.
    pub(crate) pods: Vec<Arc<Pod>>,
    /// Nodes those pods are bound to; one that is missing here does not exist.
    pub(crate) nodes: BTreeMap<String, Arc<Node>>,
    /// Latest refusal to create pods, by Job uid.
    pub(crate) refusals: BTreeMap<String, String>,
    /// What the scheduler last said about it.
    pub(crate) verdict: Option<Verdict>,
    /// The scheduler does not try it again before then.
    pub(crate) held_until: Option<Timestamp>,
}

pub(crate) fn see(cx: &Context, workload: &GPUWorkload) -> Seen {
    let uid = workload.uid().unwrap_or_default();
    let mut jobs = cx.jobs.owned_by(&uid);
    jobs.retain(|job| owns(workload, job));
    let pods = cx.pods.owned_by(&uid);
    let named = pods.iter().filter_map(|pod| node_of(pod));
    let nodes = named
        .filter_map(|name| Some((name.to_owned(), cx.nodes.get(&Key::new("", name))?)))
        .collect();
    let refusals = jobs.iter().filter_map(|job| {
        let uid = job.meta().uid.clone()?;
        let mut events = cx.refusals.owned_by(&uid);
        events.sort_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0));
        Some((uid, events.last()?.message.clone()?))
    });
    Seen {
        refusals: refusals.collect(),
        verdict: cx.verdicts.get(workload),
        held_until: cx.verdicts.held_until(&uid),
        jobs,
        pods,
        nodes,
    }
}
