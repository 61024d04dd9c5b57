//! Saved work: what a pod is told so that it saves and resumes, and when it last did, as far as that is known. Pure.
//!
//! A pod that is asked to end saves by its own hand: that it ended before its time was over is what shows it. What it says
//! in its annotation is known better than the time of a file, and that better than what `period` promises.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{EnvVar, Pod, PodOS, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use warp_api::workload::{Checkpoint, CheckpointEvidence, LastCheckpoint};
use warp_api::{GPUWorkload, label};

use super::pod::{containers, ended};
use crate::clock;

/// How a container ends that was killed: its time was over.
const KILLED: i32 = 137;

/// Tells the container at `main` how it is asked to end, which attempt it is, and whether there may be something to go on
/// from. What its owner has set in its environment stays.
pub(super) fn equip(
    template: &mut PodTemplateSpec,
    main: usize,
    workload: &GPUWorkload,
    attempt: i32,
) {
    let Some(checkpoint) = &workload.spec.checkpoint else {
        return;
    };
    for (name, said) in [
        (label::CHECKPOINT_ANNOTATION, &checkpoint.annotation),
        (label::CHECKPOINT_PATH, &checkpoint.path),
    ] {
        let Some(said) = said else { continue };
        let meta = template.metadata.get_or_insert_default();
        let annotations = meta.annotations.get_or_insert_default();
        annotations.insert(name.to_owned(), said.clone());
    }
    let Some(pod) = template.spec.as_mut() else {
        return;
    };
    if let Some(seconds) = checkpoint.grace_seconds() {
        pod.termination_grace_period_seconds = Some(seconds);
    }
    // The API server takes a signal only where it knows whose signals these are.
    if checkpoint.own_signal().is_some() {
        pod.os.get_or_insert_with(|| PodOS {
            name: "linux".to_owned(),
        });
    }
    let Some(container) = pod.containers.get_mut(main) else {
        return;
    };
    if let Some(signal) = checkpoint.own_signal() {
        let lifecycle = container.lifecycle.get_or_insert_default();
        lifecycle.stop_signal = Some(signal.as_str().to_owned());
    }
    let mut variables = vec![("ATTEMPT", attempt.to_string())];
    if resumes(workload, attempt) {
        variables.push(("RESUME", "1".to_owned()));
    }
    let env = container.env.get_or_insert_default();
    for (name, value) in variables {
        if env.iter().all(|have| have.name != name) {
            env.push(EnvVar {
                name: name.to_owned(),
                value: Some(value),
                value_from: None,
            });
        }
    }
}

/// Whether it has run before: another attempt, or the same after it was suspended.
fn resumes(workload: &GPUWorkload, attempt: i32) -> bool {
    let status = workload.status.as_ref();
    attempt > 0 || status.is_some_and(|status| status.last_checkpoint.is_some())
}

/// Whether the API server left out the signal a Job's container was to be asked to end by.
pub(super) fn signal_is_dropped(checkpoint: &Checkpoint, job: &Job) -> bool {
    let spec = job.spec.as_ref();
    let pod = spec.and_then(|spec| spec.template.spec.as_ref());
    let Some(pod) = pod.filter(|_| checkpoint.own_signal().is_some()) else {
        return false;
    };
    let kept = pod.containers.iter().any(|container| {
        let lifecycle = container.lifecycle.as_ref();
        lifecycle.is_some_and(|lifecycle| lifecycle.stop_signal.is_some())
    });
    !kept
}

/// When the pods of an attempt last saved their work: as they said, else as their nodes saw it by a file's time.
pub(super) fn told<'a>(
    checkpoint: &Checkpoint,
    pods: impl Iterator<Item = &'a Pod>,
    now: Timestamp,
) -> Option<LastCheckpoint> {
    let pods: Vec<&Pod> = pods.collect();
    let last = |name: &str| {
        let said = pods.iter().filter_map(|pod| pod.annotations().get(name));
        said.filter_map(|time| time.parse::<Timestamp>().ok()).max()
    };
    let said = checkpoint.annotation.as_deref().and_then(last);
    let seen = || {
        let path = checkpoint.path.as_ref();
        path.and_then(|_| last(label::CHECKPOINT_FILE_TIME))
    };
    let (last, by) = match said {
        Some(said) => (said, CheckpointEvidence::Annotation),
        None => (seen()?, CheckpointEvidence::File),
    };
    Some(LastCheckpoint {
        // A clock that is ahead has not saved the future.
        time: Time(last.min(now)),
        by,
    })
}

/// When work that began at `started` and got as far as `until` has last saved what it did, by itself.
pub(super) fn by_itself<'a>(
    checkpoint: &Checkpoint,
    pods: impl Iterator<Item = &'a Pod>,
    started: Option<Timestamp>,
    until: Timestamp,
) -> Option<LastCheckpoint> {
    told(checkpoint, pods, until).or_else(|| {
        let (period, started) = (checkpoint.period_seconds()?, started?);
        let times = until.duration_since(started).as_secs() / period;
        (times > 0).then(|| LastCheckpoint {
            time: Time(clock::after(started, times.saturating_mul(period))),
            by: CheckpointEvidence::Period,
        })
    })
}

/// That work which was asked to end by `deadline` has saved what it did: it was there for the signal, and was not killed.
/// Pods that are gone cannot say how they ended; that they are gone in time says it too.
pub(super) fn when_asked<'a>(
    checkpoint: &Checkpoint,
    pods: impl Iterator<Item = &'a Pod>,
    deadline: Option<Timestamp>,
    now: Timestamp,
) -> Option<LastCheckpoint> {
    checkpoint.signal?;
    let mut ends = Vec::new();
    for pod in pods.filter(|pod| ended(pod)) {
        for container in containers(pod) {
            let state = container.state.as_ref();
            let end = state.and_then(|state| state.terminated.as_ref());
            ends.extend(end.map(|end| (end.exit_code, end.finished_at.as_ref().map(|at| at.0))));
        }
    }
    if ends.iter().any(|(code, _)| *code == KILLED) {
        return None;
    }
    let at = ends.iter().map(|(_, at)| at.unwrap_or(now)).max();
    let gone_in_time = deadline.filter(|deadline| now < *deadline).map(|_| now);
    Some(LastCheckpoint {
        time: Time(at.or(gone_in_time)?.min(now)),
        by: CheckpointEvidence::Signal,
    })
}

/// Since when nothing of what an attempt does would be there for the next one; none where it saves when it is asked to end.
pub(super) fn unsaved_since<'a>(
    checkpoint: Option<&Checkpoint>,
    pods: impl Iterator<Item = &'a Pod>,
    started: Option<Timestamp>,
    now: Timestamp,
) -> Option<Timestamp> {
    let started = started?;
    let Some(checkpoint) = checkpoint else {
        return Some(started);
    };
    if checkpoint.signal.is_some() {
        return None;
    }
    let saved = by_itself(checkpoint, pods, Some(started), now);
    Some(saved.map_or(started, |saved| saved.time.0.max(started)))
}
