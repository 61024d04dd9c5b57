//! How copies make room for work of higher priority: one is evicted, and the copy that takes its place waits for another.
//! Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use warp_api::workload::Priority;
use warp_api::{InferenceService, reason};
use warp_runtime::cache::Key;
use warp_runtime::pass::Pass;
use warp_runtime::plan::{Plan, about};

use super::claim::gpus;
use super::copies::was_evicted;
use crate::placement::{self, Cause, Claim, Runner, Runs};
use crate::workload::{evict_pod, started};

/// What must still be so of a pod that is evicted.
const STAYS: [&str; 1] = ["/metadata/deletionTimestamp"];

/// A copy beyond the floor of its service, or one that goes already.
#[derive(Debug)]
pub(super) struct Running {
    service: Arc<InferenceService>,
    pod: Arc<Pod>,
    runs: Runs,
}

impl Running {
    /// None when it has no GPUs.
    pub(super) fn of(
        service: &Arc<InferenceService>,
        pod: &Arc<Pod>,
        priority: Priority,
    ) -> Option<Self> {
        let (ask, _) = gpus(pod, service.spec.engine.kind)?;
        let going = was_evicted(pod);
        let runs = Runs {
            key: Key::of(&**service),
            works: pod.uid().map(Arc::from).into_iter().collect(),
            priority,
            preemptible: service.spec.preemptible,
            gpus: u64::from(ask.count),
            started: started(pod),
            // Requests are asked again: nothing is lost but the start.
            unsaved_since: None,
            evicted_for: going.then(String::new),
            // It has no end to wait for, and goes for no equal.
            saves: false,
            features: warp_core::estimate::Features::default(),
            created: pod.creation_timestamp().map(|time| time.0),
        };
        Some(Self {
            service: Arc::clone(service),
            pod: Arc::clone(pod),
            runs,
        })
    }
}

impl Runner for Running {
    fn runs(&self) -> &Runs {
        &self.runs
    }

    fn evict(&self, plan: &mut Plan, by: &Claim, cause: Cause) {
        plan.only_if_shows(&*self.pod, &STAYS);
        evict_pod(plan, &self.pod);
        let message = format!(
            "copy {} makes room for {}, {}; another waits for a place in its stead",
            self.pod.name_any(),
            by.key,
            cause.of_the_other()
        );
        plan.note(about(&*self.service), true, reason::PREEMPTED, message);
    }

    fn pass(&self, correlation: String) -> Pass {
        let (component, manager) = (placement::NAME, placement::MANAGER);
        Pass::over(component, manager, &*self.service, correlation)
    }
}
