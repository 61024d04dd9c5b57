//! What a pass wants for one workload, in the workload's own types, and how that is put to the runtime. Pure.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use serde_json::Value;
use warp_api::{GPUWorkload, GPUWorkloadStatus, condition};
use warp_runtime::plan::{self, Action, Kind, Plan, about};
use warp_runtime::sweep;

use super::{MANAGER, timeline};
use crate::placement;

/// What should happen to a workload's Jobs, what its status says, and who hears of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Course {
    /// Writes besides the status, what must be so for any of them, why, and when to look again.
    pub(crate) steps: Plan,
    /// The status the workload should have; `None` leaves it as it is.
    pub(crate) status: Option<GPUWorkloadStatus>,
    pub(crate) events: Vec<Note>,
    /// The workload waits for a placement that may be decided now.
    pub(crate) place: bool,
}

/// Something people should see in `kubectl describe`: a transition, never a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) warning: bool,
    pub(crate) reason: &'static str,
    pub(crate) action: &'static str,
    pub(crate) text: String,
}

impl Course {
    /// Nothing but a look at a later time.
    pub(super) fn later(at: Timestamp) -> Self {
        let mut course = Self::default();
        course.steps.look_again(at);
        course
    }

    pub(super) fn deletes_a_job(&self) -> bool {
        let jobs = Kind::of::<Job>();
        let mut actions = self.steps.actions.iter();
        actions.any(|action| matches!(action, Action::Delete { kind, .. } if *kind == jobs))
    }

    /// The same for the executor: the status after the other writes and only when it is different, people after the
    /// status that tells them the same.
    pub(super) fn into_plan(self, workload: &GPUWorkload, now: Timestamp) -> Plan {
        let Self {
            steps: mut plan,
            status,
            events,
            place,
        } = self;
        let before = workload.status.as_ref().map(own).unwrap_or_default();
        if let Some(mut status) = status.filter(|status| own(status) != before) {
            let known = workload.status.clone().unwrap_or_default();
            timeline::remember(&known, &mut status, now);
            plan.own_status(workload, MANAGER, before, own(&status));
            for note in events {
                plan.push(Action::Note(plan::Note {
                    about: about(workload),
                    warning: note.warning,
                    reason: note.reason.to_owned(),
                    action: Some(note.action),
                    message: note.text,
                }));
            }
        }
        if place {
            plan.wake.push(sweep::wake(placement::NAME));
        }
        plan
    }
}

/// The part of a status that is ours. Conditions of other writers stay theirs: written with ours, they could never be
/// removed again.
fn own(status: &GPUWorkloadStatus) -> Value {
    let mut body = serde_json::to_value(status).unwrap_or_default();
    if let Some(conditions) = body["conditions"].as_array_mut() {
        conditions.retain(|found| {
            [condition::READY, condition::PLACED, condition::SUCCEEDED]
                .iter()
                .any(|ours| found["type"] == *ours)
        });
    }
    body
}
