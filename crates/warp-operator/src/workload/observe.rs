//! Everything a plan needs, read from the caches. No decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{Resource, ResourceExt};
use warp_api::GPUWorkload;
use warp_api::workload::TopologyLevels;
use warp_core::gpu::Catalogue;
use warp_runtime::cache::Key;

use super::assess::{over, suspended};
use super::objects::job_name;
use super::rent::{self, Rented};
use super::shown::{self, Shown};
use super::{Class, Given, attempt, class_name, owner_key, owns};
use crate::context::Context;
use crate::estimates::Forecast;
use crate::ledger::node_of;
use crate::placement::Verdict;
use crate::shapes::BY_OWNER;

/// What is known about one workload.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Its Jobs, any attempt.
    pub(crate) jobs: Vec<Arc<Job>>,
    /// Jobs that carry its labels and have lost it as their owner.
    pub(crate) strays: Vec<Arc<Job>>,
    /// Pods of those Jobs, ended ones included while they exist.
    pub(crate) pods: Vec<Arc<Pod>>,
    /// Nodes those pods are bound to; one that is missing here is gone, or not yet heard of.
    pub(crate) nodes: BTreeMap<String, Arc<Node>>,
    /// Latest refusal to create pods, by Job uid.
    pub(crate) refusals: BTreeMap<String, String>,
    /// What decides its rank besides itself.
    pub(crate) given: Given,
    /// What the scheduler last said about it.
    pub(crate) verdict: Option<Verdict>,
    /// The scheduler does not try it again before then.
    pub(crate) held_until: Option<Timestamp>,
    /// Its place in line, from 1, as the scheduler last told it.
    pub(crate) position: Option<usize>,
    /// When it came.
    pub(crate) arrived: Option<Timestamp>,
    /// When it is expected to start, once somebody has asked. Read for the workload's own pass only.
    pub(crate) forecast: Option<Forecast>,
    /// What is rented for it. Read for the workload's own pass only.
    pub(crate) rented: Rented,
    /// What stands in for it. Read for the workload's own pass only.
    pub(crate) shown: Shown,
    /// The GPU models that are known.
    pub(crate) catalogue: Arc<Catalogue>,
    /// The levels of the cluster.
    pub(crate) levels: Arc<TopologyLevels>,
}

/// What a workload's own pass looks at.
pub(super) fn see_all(cx: &Context, workload: &GPUWorkload) -> Seen {
    let uid = workload.meta().uid.as_deref().unwrap_or_default();
    let generation = workload.meta().generation.unwrap_or_default();
    Seen {
        forecast: cx.forecasts.get(uid, generation),
        rented: rent::see(cx, workload),
        shown: shown::see(cx, workload),
        ..see(cx, workload)
    }
}

/// What placement looks at too, of every workload whenever it changes.
pub(crate) fn see(cx: &Context, workload: &GPUWorkload) -> Seen {
    let uid = workload.uid().unwrap_or_default();
    let generation = workload.meta().generation.unwrap_or_default();
    let labelled = cx.jobs.by(BY_OWNER, &uid).into_iter();
    let here = labelled.filter(|job| job.meta().namespace == workload.meta().namespace);
    let (jobs, strays): (Vec<_>, Vec<_>) = here.partition(|job| owns(workload, job));
    // Anybody may write any label on what is theirs: only the workload's own namespace counts.
    let mut pods = cx.pods.by(BY_OWNER, &uid);
    pods.retain(|pod| pod.meta().namespace == workload.meta().namespace);
    let named = pods.iter().filter_map(|pod| node_of(pod));
    let nodes = named
        .filter_map(|name| Some((name.to_owned(), cx.nodes.get(&Key::new("", name))?)))
        .collect();
    let refusals = jobs.iter().filter_map(|job| {
        let uid = job.meta().uid.clone()?;
        let mut events = refusals(cx, job);
        events.sort_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0));
        Some((uid, events.last()?.message.clone()?))
    });
    Seen {
        refusals: refusals.collect(),
        given: given_to(cx, workload),
        verdict: cx.verdicts.get(&uid, generation),
        held_until: cx.verdicts.held_until(&uid, generation),
        position: cx.verdicts.position(&uid, generation),
        arrived: cx.arrivals.of(&uid),
        forecast: None,
        rented: Rented::default(),
        shown: Shown::default(),
        catalogue: cx.gpus.catalogue(),
        levels: Arc::clone(&cx.settings.topology_levels),
        jobs,
        strays,
        pods,
        nodes,
    }
}

/// The PriorityClass a workload names, as far as that is there, and what its tenant says.
pub(crate) fn given_to(cx: &Context, workload: &GPUWorkload) -> Given {
    let class = class_name(workload).and_then(|name| {
        let class = cx.priorities.get(&Key::new("", name))?;
        Some(Class::from(&*class))
    });
    let namespace = workload.meta().namespace.as_deref().unwrap_or_default();
    Given {
        class,
        defaults: cx.defaults.of(namespace),
    }
}

/// Events that say a Job's pods are refused, of the Job's own namespace: an Event elsewhere can
/// name any uid.
fn refusals(cx: &Context, job: &Job) -> Vec<Arc<Event>> {
    let uid = job.meta().uid.as_deref().unwrap_or_default();
    let mut events = cx.refusals.by(BY_OWNER, uid);
    events.retain(|event| event.meta().namespace == job.meta().namespace);
    events
}

/// Whether a Job without pods keeps its GPUs reserved: it is the current attempt of an open
/// workload, nobody suspended it, and the cluster does not refuse its pods. Anybody may create a Job that looks like
/// ours, and a namespace over its quota may create any number of workloads: neither may take GPUs
/// away from others. A refused pod that comes after all is placed again if its GPUs are gone.
pub(crate) fn reserves(cx: &Context, job: &Job) -> bool {
    let Some(workload) = owner_key(job).and_then(|key| cx.workloads.get(&key)) else {
        return false;
    };
    job.name_any() == job_name(&workload, attempt(&workload))
        && owns(&workload, job)
        && !over(job)
        && job.meta().deletion_timestamp.is_none()
        && !suspended(job)
        && refusals(cx, job).is_empty()
}
