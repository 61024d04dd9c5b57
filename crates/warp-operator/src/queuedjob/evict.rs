//! How queued Jobs that run make room: they are suspended, and the Job controller deletes their pods. Pure.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use warp_api::workload::Priority;
use warp_api::{label, reason};
use warp_runtime::cache::Key;
use warp_runtime::pass::Pass;
use warp_runtime::plan::{Action, Note, Plan, about};

use super::ask::{ask, wanted};
use super::objects::{requeue, staying};
use super::standing::{Standing, standing};
use crate::ledger::node_of;
use crate::placement::{self, Cause, Claim, Runner, Runs};
use crate::workload::started;

/// A placed Job whose pods are all on their nodes, or one that was suspended for others and whose pods still end.
#[derive(Debug)]
pub(crate) struct Running {
    job: Arc<Job>,
    runs: Runs,
}

impl Running {
    pub(crate) fn of(job: &Arc<Job>, pods: &[Arc<Pod>], priority: Priority) -> Option<Self> {
        let going = job.annotations().get(label::REQUEUED);
        let all = match (standing(job, pods), going) {
            (Standing::Placed, _) => {
                let staying = staying(pods);
                let complete = staying.len() >= wanted(job, staying.len());
                complete.then_some(staying)?
            }
            (Standing::Settling, Some(_)) => pods.iter().collect(),
            _ => return None,
        };
        if all.is_empty() || all.iter().any(|pod| node_of(pod).is_none()) {
            return None;
        }
        let preemptible = job.annotations().get(label::PREEMPTIBLE);
        let gpus = ask(job).map_or(0, |ask| u64::from(ask.gpus.count));
        let started = all.iter().filter_map(|pod| started(pod)).min();
        let runs = Runs {
            key: Key::of(&**job),
            works: all
                .iter()
                .filter_map(|pod| pod.uid())
                .map(Arc::from)
                .collect(),
            priority,
            preemptible: preemptible.and_then(|said| said.parse().ok()),
            gpus: gpus.saturating_mul(all.len() as u64),
            started,
            unsaved_since: started,
            evicted_for: going.cloned(),
            saves: false,
            features: warp_core::estimate::Features::default(),
            created: None,
        };
        Some(Self {
            job: Arc::clone(job),
            runs,
        })
    }
}

impl Runner for Running {
    fn runs(&self) -> &Runs {
        &self.runs
    }

    fn evict(&self, plan: &mut Plan, by: &Claim, cause: Cause) {
        let why = format!("it makes room for {}, {}", by.key, cause.of_the_other());
        plan.merge(&*self.job, requeue(&why, None));
        plan.push(Action::Note(Note {
            about: about(&*self.job),
            warning: true,
            reason: reason::PREEMPTED.to_owned(),
            action: Some("Suspend"),
            message: format!("{why}: it is suspended and queued again"),
        }));
    }

    fn pass(&self, correlation: String) -> Pass {
        let (component, manager) = (placement::NAME, placement::MANAGER);
        Pass::over(component, manager, &*self.job, correlation)
    }
}
