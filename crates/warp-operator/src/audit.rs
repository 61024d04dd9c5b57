//! The audit trail: one structured record per action on a log target of its own, so that it can be
//! routed and kept apart from the rest. `warp operator` leaves it out unless `WARP_LOG` asks for it;
//! what everybody reads is one line when a workload starts to run and one when it has ended.
//!
//! Kubernetes does not tell a controller which user changed an object; `cause` is the field manager
//! that last wrote its spec (`kubectl-client-side-apply`, `argocd` …), the best the API offers.
//! Bodies are never logged: they may hold secrets from a pod's environment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kube::ResourceExt;
use warp_api::{GPUWorkload, Phase, condition};
use warp_runtime::pass::Observer;

use crate::metrics::Metrics;

/// Log target of the audit trail.
pub const TARGET: &str = "warp::audit";

/// The object on whose behalf something is done, and the id that ties together what one pass did.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    pub(crate) kind: &'static str,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) generation: i64,
    pub(crate) cause: String,
    pub(crate) correlation: String,
    pub(crate) manager: &'static str,
}

impl Pass {
    pub(crate) fn new<K: ResourceExt>(
        kind: &'static str,
        object: &K,
        manager: &'static str,
        correlation: String,
    ) -> Self {
        Self {
            kind,
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            generation: object.meta().generation.unwrap_or_default(),
            cause: cause(object),
            correlation,
            manager,
        }
    }

    /// Records one action after it was done.
    pub(crate) fn record(&self, verb: &str, what: &str, why: &str) {
        tracing::info!(
            target: TARGET,
            object = %format_args!("{}/{}/{}", self.kind, self.namespace, self.name),
            generation = self.generation,
            cause = %self.cause,
            manager = self.manager,
            verb,
            what,
            why,
            correlation = %self.correlation,
        );
    }
}

/// Says that a workload has come to a phase: where people look, at the default level.
pub(crate) fn transition(workload: &GPUWorkload) {
    let Some(status) = &workload.status else {
        return;
    };
    let Some(phase) = status.phase else { return };
    let object = format_args!(
        "{}/{}",
        workload.namespace().unwrap_or_default(),
        workload.name_any()
    );
    let phase = format_args!("{phase:?}");
    let node = status.assigned_node.as_deref().unwrap_or_default();
    match status.phase {
        Some(Phase::Running) => {
            tracing::info!(workload = %object, phase = %phase, node, "workload runs");
        }
        Some(Phase::Succeeded | Phase::Failed) => {
            let ready = condition::find(&status.conditions, condition::READY);
            let reason = ready.map_or("", |ready| ready.reason.as_str());
            tracing::info!(workload = %object, phase = %phase, node, reason, "workload ended");
        }
        _ => tracing::debug!(workload = %object, phase = %phase, node, "workload moved on"),
    }
}

/// Counters and the audit trail of the kinds that stand on the runtime.
#[derive(Debug)]
pub(crate) struct Trail(pub(crate) Arc<Metrics>);

impl Observer for Trail {
    fn sends(&self, verb: &'static str, resource: &str) {
        self.0.wrote(verb, resource);
    }

    fn wrote(&self, pass: &warp_runtime::pass::Pass, verb: &'static str, what: &str, why: &str) {
        tracing::info!(
            target: TARGET,
            object = %pass.object,
            generation = pass.generation,
            cause = %pass.cause,
            manager = pass.manager,
            verb,
            what,
            why,
            correlation = %pass.correlation,
        );
    }

    fn reconciled(&self, controller: &'static str, took: Duration, ok: bool) {
        self.0.kind_reconciled(controller, took, ok);
    }
}

/// The field manager that wrote the object's spec last.
fn cause<K: ResourceExt>(object: &K) -> String {
    let writers = object
        .managed_fields()
        .iter()
        .filter(|entry| entry.subresource.is_none());
    let last = writers.max_by_key(|entry| entry.time.as_ref().map(|time| time.0));
    last.and_then(|entry| entry.manager.clone())
        .unwrap_or_else(|| "unknown".to_owned())
}

/// Correlation ids: this process's name and a number, so that two replicas never share one.
#[derive(Debug)]
pub(crate) struct Correlation {
    identity: String,
    passes: AtomicU64,
}

impl Correlation {
    pub(crate) fn new(identity: &str) -> Self {
        Self {
            identity: identity.to_owned(),
            passes: AtomicU64::new(0),
        }
    }

    pub(crate) fn next(&self) -> String {
        format!(
            "{}-{}",
            self.identity,
            self.passes.fetch_add(1, Ordering::Relaxed)
        )
    }
}
