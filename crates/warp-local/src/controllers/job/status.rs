//! Conditions of a Job.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub(super) const COMPLETE: &str = "Complete";
pub(super) const FAILED: &str = "Failed";
pub(super) const SUSPENDED: &str = "Suspended";
pub(super) const FAILURE_TARGET: &str = "FailureTarget";
pub(super) const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";

/// How a Job ends, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) success: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

impl End {
    pub(super) fn failure(reason: &str, message: &str) -> Self {
        Self {
            success: false,
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    pub(super) fn success(reason: &str, message: &str) -> Self {
        Self {
            success: true,
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    /// The condition set when the end is decided, while pods may still be ending.
    pub(super) fn interim(&self) -> &'static str {
        if self.success {
            SUCCESS_CRITERIA_MET
        } else {
            FAILURE_TARGET
        }
    }

    pub(super) fn terminal(&self) -> &'static str {
        if self.success { COMPLETE } else { FAILED }
    }
}

pub(super) fn holds<'a>(
    conditions: Option<&'a Vec<JobCondition>>,
    type_: &str,
) -> Option<&'a JobCondition> {
    conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == type_ && condition.status == "True")
}

/// The condition a finished Job ended with.
pub(super) fn finished(job: &Job) -> Option<&JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref();
    holds(conditions, COMPLETE).or_else(|| holds(conditions, FAILED))
}

/// The end an earlier pass decided on.
pub(super) fn decided(status: &JobStatus) -> Option<End> {
    let end = |condition: &JobCondition, success| End {
        success,
        reason: condition.reason.clone().unwrap_or_default(),
        message: condition.message.clone().unwrap_or_default(),
    };
    let conditions = status.conditions.as_ref();
    holds(conditions, SUCCESS_CRITERIA_MET)
        .map(|condition| end(condition, true))
        .or_else(|| holds(conditions, FAILURE_TARGET).map(|condition| end(condition, false)))
}

/// Sets a condition; false when it already stood like that. A false condition that was never set is not added.
pub(super) fn set(
    status: &mut JobStatus,
    type_: &str,
    value: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    let text = if value { "True" } else { "False" };
    let fresh = || JobCondition {
        type_: type_.to_owned(),
        status: text.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    };
    let conditions = status.conditions.get_or_insert_default();
    match conditions
        .iter_mut()
        .find(|condition| condition.type_ == type_)
    {
        Some(known) => {
            let same = known.status == text
                && known.reason.as_deref() == Some(reason)
                && known.message.as_deref() == Some(message);
            if !same {
                *known = fresh();
            }
            !same
        }
        None if value => {
            conditions.push(fresh());
            true
        }
        None => false,
    }
}
