//! The status of a Deployment: counts, availability, progress.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::replicas;
use warp_runtime::plan::{Plan, about};

pub(super) const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const FAILURE: &str = "ReplicaFailure";
pub(super) const COMPLETE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";

pub(super) fn condition<'a>(
    status: &'a DeploymentStatus,
    type_: &str,
) -> Option<&'a DeploymentCondition> {
    status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == type_)
}

/// Sets a condition. The same status and reason is left as it is; the same status keeps its transition time.
pub(super) fn set(
    status: &mut DeploymentStatus,
    type_: &str,
    value: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let known = condition(status, type_).cloned();
    if known
        .as_ref()
        .is_some_and(|known| known.status == value && known.reason.as_deref() == Some(reason))
    {
        return;
    }
    replace(
        status,
        type_,
        value,
        reason,
        message,
        known.filter(|known| known.status == value),
        now,
    );
}

fn replace(
    status: &mut DeploymentStatus,
    type_: &str,
    value: &str,
    reason: &str,
    message: &str,
    same: Option<DeploymentCondition>,
    now: Timestamp,
) {
    let transition = same
        .and_then(|same| same.last_transition_time)
        .unwrap_or(Time(now));
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|condition| condition.type_ != type_);
    conditions.push(DeploymentCondition {
        type_: type_.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(transition),
    });
}

fn deadline(deployment: &Deployment) -> Option<SignedDuration> {
    let seconds = deployment.spec.as_ref()?.progress_deadline_seconds?;
    (seconds != i32::MAX).then(|| SignedDuration::from_secs(i64::from(seconds)))
}

/// Says in the conditions that a rollout was paused or goes on; true when that is news.
pub(super) fn tell_pause(
    deployment: &Deployment,
    status: &mut DeploymentStatus,
    now: Timestamp,
) -> bool {
    if deadline(deployment).is_none() {
        return false;
    }
    let reason = condition(status, PROGRESSING).and_then(|condition| condition.reason.clone());
    if reason.as_deref() == Some(TIMED_OUT) {
        return false;
    }
    let paused = deployment.spec.as_ref().and_then(|spec| spec.paused) == Some(true);
    let was = reason.as_deref() == Some(PAUSED);
    if paused && !was {
        set(
            status,
            PROGRESSING,
            "Unknown",
            PAUSED,
            "Deployment is paused",
            now,
        );
    } else if !paused && was {
        set(
            status,
            PROGRESSING,
            "Unknown",
            "DeploymentResumed",
            "Deployment is resumed",
            now,
        );
    }
    paused != was
}

/// Counts over the sets, and whether enough is available.
pub(super) fn count(
    deployment: &Deployment,
    status: &DeploymentStatus,
    sets: &[Arc<ReplicaSet>],
    new: Option<&ReplicaSet>,
    now: Timestamp,
) -> DeploymentStatus {
    let sum = |of: fn(&ReplicaSet) -> i32| -> i32 { sets.iter().map(|set| of(set)).sum() };
    let some = |number: i32| (number != 0).then_some(number);
    let size = |set: &ReplicaSet| set.status.as_ref().map_or(0, |status| status.replicas);
    let available = sum(replicas::available);
    let terminating = sum(|set| {
        set.status
            .as_ref()
            .and_then(|status| status.terminating_replicas)
            .unwrap_or(0)
    });
    let mut counted = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: some(sum(size)),
        updated_replicas: some(new.map_or(0, size)),
        ready_replicas: some(sum(|set| {
            set.status
                .as_ref()
                .and_then(|status| status.ready_replicas)
                .unwrap_or(0)
        })),
        available_replicas: some(available),
        unavailable_replicas: some((sum(replicas::of) - available).max(0)),
        terminating_replicas: Some(terminating),
        collision_count: status.collision_count,
        conditions: status.conditions.clone(),
    };
    let least = replicas::wanted(deployment) - replicas::bounds(deployment).1;
    if available >= least {
        let message = "Deployment has minimum availability.";
        set(
            &mut counted,
            AVAILABLE,
            "True",
            "MinimumReplicasAvailable",
            message,
            now,
        );
    } else {
        let message = "Deployment does not have minimum availability.";
        set(
            &mut counted,
            AVAILABLE,
            "False",
            "MinimumReplicasUnavailable",
            message,
            now,
        );
    }
    counted
}

pub(super) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = replicas::wanted(deployment);
    let is = |number: Option<i32>| number.unwrap_or(0) == wanted;
    is(status.updated_replicas)
        && is(status.replicas)
        && is(status.available_replicas)
        && status.observed_generation >= deployment.metadata.generation
}

/// Whether the rollout moves, is done, or has stood still too long.
pub(super) fn progress(
    deployment: &Deployment,
    mut status: DeploymentStatus,
    sets: &[Arc<ReplicaSet>],
    new: Option<&ReplicaSet>,
    now: Timestamp,
    plan: &mut Plan,
) -> DeploymentStatus {
    let known = condition(&status, PROGRESSING).cloned();
    let was_done = status.replicas == status.updated_replicas
        && known
            .as_ref()
            .is_some_and(|known| known.reason.as_deref() == Some(COMPLETE));
    let subject = new
        .and_then(|set| set.metadata.name.as_deref())
        .map_or_else(
            || {
                format!(
                    "Deployment \"{}\"",
                    deployment.metadata.name.as_deref().unwrap_or_default()
                )
            },
            |name| format!("ReplicaSet \"{name}\""),
        );
    if let Some(limit) = deadline(deployment).filter(|_| !was_done) {
        if is_complete(deployment, &status) {
            set(
                &mut status,
                PROGRESSING,
                "True",
                COMPLETE,
                &format!("{subject} has successfully progressed."),
                now,
            );
        } else if has_progressed(deployment, &status) {
            let message = format!("{subject} is progressing.");
            let same = known.filter(|known| known.status == "True");
            replace(
                &mut status,
                PROGRESSING,
                "True",
                "ReplicaSetUpdated",
                &message,
                same,
                now,
            );
        } else if let Some(known) = known {
            judge_standstill(deployment, &mut status, &known, limit, &subject, now, plan);
        }
    }
    copy_failures(&mut status, sets, new);
    status
}

fn has_progressed(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let old = deployment.status.clone().unwrap_or_default();
    let n = |number: Option<i32>| number.unwrap_or(0);
    let outdated = |status: &DeploymentStatus| n(status.replicas) - n(status.updated_replicas);
    n(status.updated_replicas) > n(old.updated_replicas)
        || outdated(status) < outdated(&old)
        || n(status.ready_replicas) > n(old.ready_replicas)
        || n(status.available_replicas) > n(old.available_replicas)
}

fn judge_standstill(
    deployment: &Deployment,
    status: &mut DeploymentStatus,
    known: &DeploymentCondition,
    limit: SignedDuration,
    subject: &str,
    now: Timestamp,
    plan: &mut Plan,
) {
    let reason = known.reason.as_deref();
    if reason == Some(TIMED_OUT) || reason == Some(PAUSED) {
        return;
    }
    let since = known.last_update_time.as_ref().map_or(now, |time| time.0);
    if since + limit < now {
        let message = format!("{subject} has timed out progressing.");
        set(status, PROGRESSING, "False", TIMED_OUT, &message, now);
        plan.note(about(deployment), true, TIMED_OUT, message);
    } else {
        plan.look_again(since + limit + SignedDuration::from_secs(1));
    }
}

/// A set that cannot create pods makes the Deployment say so, the new one first.
fn copy_failures(
    status: &mut DeploymentStatus,
    sets: &[Arc<ReplicaSet>],
    new: Option<&ReplicaSet>,
) {
    let failure = |set: &ReplicaSet| {
        let conditions = set.status.as_ref()?.conditions.as_ref()?;
        conditions
            .iter()
            .find(|condition| condition.type_ == FAILURE)
            .cloned()
    };
    let found = new
        .and_then(failure)
        .or_else(|| sets.iter().find_map(|set| failure(set)));
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != FAILURE);
    }
    if let Some(found) = found {
        status
            .conditions
            .get_or_insert_default()
            .push(DeploymentCondition {
                type_: found.type_,
                status: found.status,
                reason: found.reason,
                message: found.message,
                last_update_time: found.last_transition_time.clone(),
                last_transition_time: found.last_transition_time,
            });
    }
}
