//! The audit trail: one structured record per action on a log target of its own, so that it can be
//! routed and kept apart from the rest. `warp operator` leaves it out unless `WARP_LOG` asks for it;
//! what everybody reads is one line when a workload has ended.
//!
//! Kubernetes does not tell a controller which user changed an object; `cause` is the field manager
//! that last wrote its spec (`kubectl-client-side-apply`, `argocd` …), the best the API offers.
//! Bodies are never logged: they may hold secrets from a pod's environment.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use warp_api::{GPUWorkloadStatus, Phase, condition};
use warp_runtime::pass::{Observer, Pass};

use crate::metrics::Metrics;
use crate::workload;

/// Log target of the audit trail.
pub const TARGET: &str = "warp::audit";

/// Counts what a written status means, and says that a workload has come to a phase: where people look, at the default
/// level.
fn transition(
    metrics: &Metrics,
    object: &str,
    before: &GPUWorkloadStatus,
    after: &GPUWorkloadStatus,
) {
    let ready = condition::find(&after.conditions, condition::READY);
    if after.phase == Some(Phase::Failed) && before.phase != Some(Phase::Failed) {
        metrics.failed(ready.map_or("Unknown", |ready| ready.reason.as_str()));
    }
    if after.retry_count.unwrap_or(0) > before.retry_count.unwrap_or(0) {
        metrics.retried();
    }
    let Some(phase) = after.phase.filter(|phase| before.phase != Some(*phase)) else {
        return;
    };
    let name = format_args!("{phase:?}");
    let node = after.places().unwrap_or_default();
    match phase {
        Phase::Succeeded | Phase::Failed => {
            let reason = ready.map_or("", |ready| ready.reason.as_str());
            tracing::info!(workload = object, phase = %name, node, reason, "workload ended");
        }
        _ => tracing::debug!(workload = object, phase = %name, node, "workload moved on"),
    }
}

/// Counters and the audit trail of everything the runtime runs.
#[derive(Debug)]
pub(crate) struct Trail(pub(crate) Arc<Metrics>);

impl Observer for Trail {
    fn sends(&self, verb: &'static str, resource: &str) {
        self.0.wrote(verb, resource);
    }

    fn wrote(&self, pass: &Pass, verb: &'static str, what: &str, why: &str) {
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

    fn status_written(&self, pass: &Pass, before: &Value, after: &Value) {
        if pass.component != workload::NAME {
            return;
        }
        let read = |status: &Value| GPUWorkloadStatus::deserialize(status).unwrap_or_default();
        let name = pass.object.split_once('/').map_or("", |(_, name)| name);
        transition(&self.0, name, &read(before), &read(after));
    }

    fn watch_broke(&self, resource: &str, error: &kube::Error) {
        self.0.watch_broke(resource);
        tracing::warn!(resource, %error, "watch broke, starting it again");
    }

    fn reconciled(&self, controller: &'static str, took: Duration, ok: bool) {
        self.0.reconciled(controller, took, ok);
    }
}
