//! What a request says of itself: phase, condition, message, and the Event when that changes. Pure.

use jiff::Timestamp;
use kube::Resource;
use serde_json::Value;
use warp_api::gpurequest::RequestPhase;
use warp_api::{GPURequest, GPURequestStatus, condition};
use warp_runtime::plan::{Plan, about};
use warp_runtime::reconcile::Reconcile;

use super::GpuRequests;

/// How a request stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Said {
    pub(super) phase: RequestPhase,
    ready: &'static str,
    reason: &'static str,
    message: String,
}

impl Said {
    pub(super) fn new(
        phase: RequestPhase,
        ready: &'static str,
        reason: &'static str,
        message: String,
    ) -> Self {
        Self {
            phase,
            ready,
            reason,
            message,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready == "True"
    }

    pub(super) fn reason(&self) -> &'static str {
        self.reason
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// The same with more to say.
    pub(super) fn and(mut self, more: &str) -> Self {
        self.message = format!("{}; {more}", self.message);
        self
    }
}

/// The part of a status that is ours: conditions of other writers stay theirs.
fn own(status: &GPURequestStatus) -> Value {
    let mut status = status.clone();
    status
        .conditions
        .retain(|found| found.type_ == condition::READY);
    serde_json::to_value(status).unwrap_or_default()
}

/// Writes the status if it differs, and an Event if it says something new.
pub(super) fn write(
    plan: &mut Plan,
    request: &GPURequest,
    mut after: GPURequestStatus,
    said: Said,
    now: Timestamp,
) {
    let generation = request.meta().generation.unwrap_or_default();
    let before = request.status.as_ref();
    let old = before.map(|status| status.conditions.as_slice());
    let state = condition::State {
        kind: condition::READY,
        status: said.ready,
        reason: said.reason,
        message: said.message.clone(),
    };
    after.observed_generation = Some(generation);
    after.phase = said.phase;
    after.conditions = condition::next(old.unwrap_or_default(), &[state], generation, now);
    after.message = Some(said.message.clone());
    plan.why.clone_from(&said.message);
    let was = before.and_then(|status| condition::find(&status.conditions, condition::READY));
    let changed = was.is_none_or(|was| was.reason != said.reason);
    plan.own_status(
        request,
        GpuRequests::MANAGER,
        before.map(own).unwrap_or_default(),
        own(&after),
    );
    if changed {
        let bad = matches!(said.phase, RequestPhase::Pending | RequestPhase::Failed);
        plan.note(about(request), bad, said.reason, said.message);
    }
}
