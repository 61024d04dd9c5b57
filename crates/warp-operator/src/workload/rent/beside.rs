//! Renting among others of one namespace: what a machine that was rented for another workload leaves, and how many come
//! first. Ten that want one GPU each buy one machine where only machines with many are sold. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use warp_api::gpurequest::RequestAttempt;
use warp_api::workload::GpuAsk;
use warp_api::{GPURequest, GPUWorkload, Phase, RequestPhase, condition};
use warp_core::gpu;

use super::{REPORTED, tenant_of};
use crate::clock;

/// Seconds that a machine which is ready gets to take a workload it has room for: what it lacks besides GPUs shows then.
const TAKES: i64 = 60;

/// What the others of its namespace mean to a workload that would rent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beside {
    /// The request whose machine has room for it, if one has.
    pub(crate) room: Option<String>,
    /// How many that came before it want the same and have nothing yet.
    pub(crate) before: i64,
}

pub(crate) fn look(
    workload: &GPUWorkload,
    requests: &[Arc<GPURequest>],
    workloads: &[Arc<GPUWorkload>],
    now: Timestamp,
) -> Beside {
    let Ok(ask) = GpuAsk::of(&workload.spec) else {
        return Beside::default();
    };
    let needed = i64::from(workload.spec.total_gpus());
    let rooms = requests.iter().filter(|request| {
        if let Some(attempt) = coming(request, now) {
            let machine = (attempt.gpus, Some(attempt.machine.as_str()));
            return holds(&ask, &attempt.gpu)
                && free(request, machine, workload, workloads) >= needed;
        }
        // Sized for several, and no machine is chosen yet.
        let gpus = u32::try_from(request.spec.gpu_count).unwrap_or(0);
        let owner = owner(request, workloads);
        let alike = owner.is_some_and(|owner| owner.spec.gpu == workload.spec.gpu);
        alike && is_unchosen(request) && free(request, (gpus, None), workload, workloads) >= needed
    });
    let same = |other: &&Arc<GPUWorkload>| {
        other.spec.gpu == workload.spec.gpu
            && order(other) < order(workload)
            && has_nothing(other, now)
    };
    let before = workloads.iter().filter(same).count();
    Beside {
        room: rooms.map(|request| request.name_any()).min(),
        before: i64::try_from(before).unwrap_or(i64::MAX),
    }
}

/// Who comes first.
pub(super) fn order(workload: &GPUWorkload) -> (Option<Timestamp>, String) {
    let made = workload.creation_timestamp().map(|made| made.0);
    (made, workload.name_any())
}

pub(super) fn is_over(workload: &GPUWorkload) -> bool {
    let phase = workload.status.as_ref().and_then(|status| status.phase);
    phase.is_some_and(Phase::is_final) || workload.meta().deletion_timestamp.is_some()
}

/// Whether a workload has waited long enough to rent and has neither a request nor room elsewhere.
pub(super) fn has_nothing(workload: &GPUWorkload, now: Timestamp) -> bool {
    let status = workload.status.as_ref();
    let state = status.and_then(|status| status.rent.as_ref());
    let (Some(rent), Some(state)) = (&workload.spec.rent, state) else {
        return false;
    };
    let due = |since: &Time| clock::after(since.0, rent.after_seconds()) <= now;
    !is_over(workload)
        && state.waiting_since.as_ref().is_some_and(due)
        && state.request.is_none()
        && state.beside.is_none()
}

/// The machine of a request that is there or on its way, if it may still take somebody.
fn coming(request: &GPURequest, now: Timestamp) -> Option<&RequestAttempt> {
    let status = request.status.as_ref()?;
    let ready = condition::find(&status.conditions, condition::READY)
        .filter(|_| status.phase == RequestPhase::Ready)
        .map(|ready| clock::after(ready.last_transition_time.0, TAKES));
    if request.meta().deletion_timestamp.is_some() || ready.is_some_and(|until| until < now) {
        return None;
    }
    let mut open = status.attempts.iter();
    open.find(|attempt| {
        let stays = attempt.ending.is_none() && attempt.noticed_at.is_none();
        // A container is one pod's.
        attempt.outcome.is_none() && stays && !attempt.is_container()
    })
}

/// The workload a request was made for.
fn owner<'a>(
    request: &GPURequest,
    workloads: &'a [Arc<GPUWorkload>],
) -> Option<&'a Arc<GPUWorkload>> {
    let (_, uid) = tenant_of(request)?;
    workloads
        .iter()
        .find(|one| one.uid().as_ref() == Some(&uid))
}

/// Whether a request is to rent a machine and has not chosen one.
fn is_unchosen(request: &GPURequest) -> bool {
    let status = request.status.as_ref();
    let phase = status.map_or(RequestPhase::Pending, |status| status.phase);
    phase == RequestPhase::Pending && request.meta().deletion_timestamp.is_none()
}

/// Whether the GPUs of a machine will do.
pub(super) fn holds(ask: &GpuAsk, gpu: &str) -> bool {
    let found = gpu::named(gpu);
    let Some(model) = found.first().filter(|_| !ask.states_form()) else {
        return false;
    };
    let named = ask.names.iter().any(|name| name.models.contains(model));
    model.vendor == ask.vendor
        && (ask.names.is_empty() || named)
        && ask.min_memory_mib * 100 <= u64::from(model.memory_gib) * 1024 * REPORTED
}

/// GPUs of a machine that are left for a workload: by the one it was rented for, by those on it, and by those that came
/// before and count on it too.
fn free(
    request: &GPURequest,
    (gpus, machine): (u32, Option<&str>),
    workload: &GPUWorkload,
    workloads: &[Arc<GPUWorkload>],
) -> i64 {
    let Some((_, first)) = tenant_of(request) else {
        return 0;
    };
    let name = request.name_any();
    let mut left = i64::from(gpus);
    let mut known = false;
    for other in workloads {
        let uid = other.uid().unwrap_or_default();
        if Some(&uid) == workload.meta().uid.as_ref() {
            // Its own machine is no other's.
            if uid == first {
                return 0;
            }
            continue;
        }
        known |= uid == first;
        if is_over(other) {
            continue;
        }
        let status = other.status.as_ref();
        let there = status
            .zip(machine)
            .is_some_and(|(status, machine)| status.is_on(machine));
        let rent = status.and_then(|status| status.rent.as_ref());
        let counts = rent.is_some_and(|rent| rent.beside.as_ref() == Some(&name));
        if uid == first || there || (counts && order(other) < order(workload)) {
            left -= i64::from(other.spec.total_gpus());
        }
    }
    // Without the one it was rented for it is being given back.
    if known { left } else { 0 }
}
