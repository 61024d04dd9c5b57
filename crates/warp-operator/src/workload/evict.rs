//! How running workloads make room: which may be asked, and what asking one takes. The scheduler marks the Job; the
//! workload's own pass evicts its pods. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use serde_json::json;
use warp_api::workload::TopologyLevels;
use warp_api::{GPUWorkload, label};
use warp_core::gpu::Catalogue;
use warp_runtime::cache::Key;
use warp_runtime::pass::Pass;
use warp_runtime::plan::{Action, Kind, Plan};

use super::assess::over;
use super::claim::claim;
use super::objects::shell;
use super::pod::{ended, made_by, started};
use super::{Given, attempt, checkpoint, features, owns, rank};
use crate::clock;
use crate::ledger::node_of;
use crate::placement::{self, Cause, Claim, Runner, Runs};

/// What the annotation says of a Job that has to give back what its tenant borrows.
const SHARE: &str = "share";
/// The same of one that goes for work of its own priority.
const RANK: &str = "rank";
/// The same of one that is moved for a gang.
const MOVE: &str = "move";

/// A workload whose pods are all on their nodes.
#[derive(Debug)]
pub(crate) struct Running {
    workload: Arc<GPUWorkload>,
    job: Arc<Job>,
    runs: Runs,
    given: Given,
    catalogue: Arc<Catalogue>,
}

impl Running {
    /// None when it has no Job, or not all of its pods are on their nodes.
    pub(crate) fn of(
        workload: &Arc<GPUWorkload>,
        jobs: &[Arc<Job>],
        pods: &[Arc<Pod>],
        (given, catalogue): (Given, &Arc<Catalogue>),
        now: Timestamp,
    ) -> Option<Self> {
        let number = attempt(workload).to_string();
        let job = jobs.iter().find(|job| {
            job.labels().get(label::ATTEMPT) == Some(&number)
                && owns(workload, job)
                && job.meta().deletion_timestamp.is_none()
                && !over(job)
        })?;
        let pods = pods.iter().filter(|pod| made_by(job, pod) && !ended(pod));
        let pods: Vec<&Arc<Pod>> = pods.collect();
        let wanted = job.spec.as_ref().and_then(|spec| spec.parallelism);
        if pods.len() != usize::try_from(wanted.unwrap_or(1)).ok()?
            || pods.iter().any(|pod| node_of(pod).is_none())
        {
            return None;
        }
        let works = pods.iter().filter_map(|pod| pod.uid()).map(Arc::from);
        let gpus = u64::try_from(workload.spec.gpu_count).unwrap_or(0);
        let started = pods.iter().filter_map(|pod| started(pod)).min();
        let members = pods.iter().map(|pod| &***pod);
        let checkpoint = workload.spec.checkpoint.as_ref();
        let unsaved_since = checkpoint::unsaved_since(checkpoint, members, started, now);
        let runs = Runs {
            key: Key::of(&**workload),
            works: works.collect(),
            priority: rank(workload, given).unwrap_or_default().priority,
            preemptible: workload.spec.preemptible,
            gpus: gpus.saturating_mul(pods.len() as u64),
            started,
            unsaved_since,
            evicted_for: evicted_for(job).map(str::to_owned),
            saves: checkpoint.is_some(),
            features: features(workload),
            created: workload.creation_timestamp().map(|time| time.0),
        };
        Some(Self {
            workload: Arc::clone(workload),
            job: Arc::clone(job),
            runs,
            given,
            catalogue: Arc::clone(catalogue),
        })
    }

    /// When it saves what it does the next time, where that follows from its period.
    pub(super) fn saves_at(&self, now: Timestamp) -> Option<Timestamp> {
        let checkpoint = self.workload.spec.checkpoint.as_ref()?;
        let (period, started) = (checkpoint.period_seconds()?, self.runs.started?);
        let times = now.duration_since(started).as_secs() / period.max(1);
        Some(clock::after(started, (times + 1).saturating_mul(period)))
    }
}

impl Runner for Running {
    fn runs(&self) -> &Runs {
        &self.runs
    }

    fn evict(&self, plan: &mut Plan, by: &Claim, cause: Cause) {
        let mut annotations = json!({label::EVICTED_FOR: by.key.to_string()});
        match cause {
            Cause::Priority => {}
            Cause::Rank => annotations[label::EVICTED_BECAUSE] = json!(RANK),
            Cause::Share => annotations[label::EVICTED_BECAUSE] = json!(SHARE),
            Cause::Move => annotations[label::EVICTED_BECAUSE] = json!(MOVE),
        }
        let patch = json!({"metadata": {"annotations": annotations}});
        plan.merge(&*self.job, patch);
    }

    fn pass(&self, correlation: String) -> Pass {
        let (component, manager) = (placement::NAME, placement::MANAGER);
        Pass::over(component, manager, &*self.workload, correlation)
    }

    fn asks_again(&self, now: Timestamp) -> Option<Claim> {
        if self.workload.spec.is_gang() {
            return None;
        }
        let shell = shell(&self.workload, &self.catalogue).ok()?;
        let rank = rank(&self.workload, self.given).ok()?;
        let levels = TopologyLevels::default();
        Some(claim(&self.workload, &shell, rank, &levels, now))
    }
}

/// Why a Job was asked to end: where it does not say, for work of higher priority.
fn cause(job: &Job) -> Cause {
    match job.annotations().get(label::EVICTED_BECAUSE) {
        Some(because) if because == SHARE => Cause::Share,
        Some(because) if because == RANK => Cause::Rank,
        Some(because) if because == MOVE => Cause::Move,
        _ => Cause::Priority,
    }
}

/// The work that takes a Job's place, with what makes it go first, in words.
pub(super) fn taken_by(job: &Job) -> Option<String> {
    let by = evicted_for(job)?;
    Some(format!("{by}, {},", cause(job).of_the_other()))
}

/// The work that takes a Job's place.
pub(super) fn evicted_for(job: &Job) -> Option<&str> {
    job.annotations()
        .get(label::EVICTED_FOR)
        .map(String::as_str)
}

/// Asks the cluster to take a pod off its node: with its grace period, and as a disruption.
pub(crate) fn evict_pod(plan: &mut Plan, pod: &Pod) {
    let key = Key::of(pod);
    plan.push(Action::Sub {
        kind: Kind::of::<Pod>(),
        sub: "eviction",
        put: false,
        object: json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": key.name, "namespace": key.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid()}},
        }),
        key,
    });
}
