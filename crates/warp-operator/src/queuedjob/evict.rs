//! How queued Jobs that run make room: they are suspended, and the Job controller deletes their pods. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use warp_api::workload::Priority;
use warp_api::{label, reason};
use warp_runtime::cache::Key;
use warp_runtime::pass::Pass;
use warp_runtime::plan::{Action, Note, Plan};

use super::ask::{ask, wanted};
use super::objects::{group_of, requeue, staying};
use super::queued::Queued;
use super::standing::{Standing, standing};
use crate::ledger::{finished, node_of};
use crate::placement::{Cause, Claim, Runner, Runs};
use crate::workload::started;

/// A placed Job whose pods are all on their nodes, or one that was suspended for others and whose pods still end.
#[derive(Debug)]
pub(crate) struct Running {
    job: Arc<Queued>,
    runs: Runs,
}

impl Running {
    pub(crate) fn of(job: &Arc<Queued>, pods: &[Arc<Pod>], priority: Priority) -> Option<Self> {
        let going = job.annotations().get(label::REQUEUED);
        let all = match (standing(job, pods), going) {
            (Standing::Placed, _) => {
                let staying = staying(pods);
                let complete = |template: usize| {
                    let own = staying.iter();
                    let own = own.filter(|pod| group_of(job, pod) == Some(template));
                    own.count() >= wanted(job, template, pods)
                };
                let asked = ask(job).ok()?.groups;
                let complete = asked.iter().all(|group| complete(group.template));
                complete.then_some(staying)?
            }
            (Standing::Settling, Some(_)) => pods.iter().filter(|pod| !finished(pod)).collect(),
            _ => return None,
        };
        if all.is_empty() || all.iter().any(|pod| node_of(pod).is_none()) {
            return None;
        }
        let preemptible = job.annotations().get(label::PREEMPTIBLE);
        let asked = ask(job).map_or_else(|_| Vec::new(), |ask| ask.groups);
        let gpus = |pod: &&Arc<Pod>| {
            let own = group_of(job, pod);
            let own = asked.iter().find(|group| Some(group.template) == own);
            own.map_or(0, |group| u64::from(group.gpus.count))
        };
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
            gpus: all.iter().map(gpus).sum(),
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
        self.job.merge(plan, requeue(&self.job, &why, None));
        plan.push(Action::Note(Note {
            about: self.job.about(),
            warning: true,
            reason: reason::PREEMPTED.to_owned(),
            action: Some("Suspend"),
            message: format!("{why}: it is suspended and queued again"),
        }));
    }

    fn pass(&self, correlation: String) -> Pass {
        self.job.pass(correlation)
    }
}
