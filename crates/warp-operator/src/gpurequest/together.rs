//! Requests whose machines are of use only together: nothing is bought before all of them are intended, which reserves
//! their money, and what was bought goes back when one does not come in time. Pure.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use warp_api::gpurequest::{RequestAttempt, RequestPhase, Together};
use warp_api::workload::run_seconds;
use warp_api::{GPURequest, GPURequestStatus, reason};

use super::choose::later;
use super::money::is_held;
use super::plan::is_final;

/// How long all of them may take where nothing is said.
const WITHIN: SignedDuration = SignedDuration::from_mins(30);

/// Those a request belongs together with.
#[derive(Clone, Debug)]
pub(super) struct Company<'a> {
    own: &'a Together,
    /// The others that are made.
    others: Vec<&'a GPURequest>,
}

/// Whether a request has no machine, or will have none any more.
fn is_over(request: &GPURequest) -> bool {
    let status = request.status.as_ref();
    let last = status.and_then(|status| status.attempts.last());
    let ending = last.and_then(|last| last.ending.as_deref().or(last.outcome.as_deref()));
    request.meta().deletion_timestamp.is_some()
        || status.is_some_and(|status| status.phase.is_final())
        || ending.is_some_and(is_final)
}

/// The attempt of a request that reserves its money or has its machine.
fn kept(request: &GPURequest) -> Option<&RequestAttempt> {
    let mut attempts = request.status.iter().flat_map(|status| &status.attempts);
    attempts.find(|attempt| attempt.outcome.is_none() && attempt.ending.is_none())
}

fn is_ready(request: &GPURequest) -> bool {
    let phase = request.status.as_ref().map(|status| status.phase);
    phase == Some(RequestPhase::Ready) && kept(request).is_some()
}

impl<'a> Company<'a> {
    /// None for a request that is alone.
    pub(super) fn of(request: &'a GPURequest, requests: &'a [Arc<GPURequest>]) -> Option<Self> {
        let own = request.spec.together.as_ref()?;
        let belongs = |other: &&GPURequest| {
            let theirs = other.spec.together.as_ref();
            other.namespace() == request.namespace()
                && other.name_any() != request.name_any()
                && theirs.is_some_and(|theirs| theirs.name == own.name)
        };
        let others = requests.iter().map(|other| &**other).filter(belongs);
        Some(Self {
            own,
            others: others.collect(),
        })
    }

    fn machines(&self) -> usize {
        usize::try_from(self.own.machines).unwrap_or(0)
    }

    fn live(&self) -> impl Iterator<Item = &'a GPURequest> {
        self.others.iter().copied().filter(|other| !is_over(other))
    }

    /// How many requests are still to be made.
    fn missing(&self) -> usize {
        self.machines().saturating_sub(self.others.len() + 1)
    }

    /// Whether one of them comes to nothing, or goes.
    fn is_broken(&self) -> bool {
        self.others.iter().any(|other| is_over(other))
    }

    /// Whether one that is still wanted is not ready: nobody can use the others meanwhile.
    pub(super) fn waits(&self, own: &GPURequestStatus) -> bool {
        own.phase != RequestPhase::Ready
            || self.missing() > 0
            || self.live().any(|other| !is_ready(other))
    }

    /// What is wrong with how they say that they belong together.
    pub(super) fn problem(&self) -> Option<String> {
        let machines = self.machines();
        let others = |other: &&GPURequest| {
            let theirs = other.spec.together.as_ref();
            theirs.is_some_and(|theirs| theirs.machines != self.own.machines)
        };
        if let Some(other) = self.live().find(others) {
            return Some(format!(
                "spec.together.machines is {machines} here and another number in GPURequest {}: make them the same",
                other.name_any()
            ));
        }
        let made = self.live().count() + 1;
        (made > machines).then(|| {
            let name = &self.own.name;
            format!(
                "{made} requests belong to '{name}' and spec.together.machines is {machines}: correct it, or give them another name"
            )
        })
    }

    /// Why nothing is intended yet.
    pub(super) fn unmade(&self) -> Option<String> {
        let missing = self.missing();
        (missing > 0).then(|| {
            let machines = self.machines();
            format!(
                "{} of {machines} requests that belong together are made; nothing is bought before all are",
                machines - missing
            )
        })
    }

    /// Those whose money is not reserved yet.
    pub(super) fn unreserved(&self) -> impl Iterator<Item = &'a GPURequest> {
        self.live().filter(|other| kept(other).is_none())
    }

    /// Whether a request belongs to it.
    pub(super) fn has(&self, request: &GPURequest) -> bool {
        let same = |other: &&GPURequest| other.name_any() == request.name_any();
        request.namespace() == self.others.first().and_then(|other| other.namespace())
            && self.others.iter().any(same)
    }

    /// Why a machine that is intended is not bought yet: the money of all is not reserved.
    pub(super) fn hold(&self) -> Option<String> {
        let reserved = self.live().filter(|other| kept(other).is_some()).count() + 1;
        (reserved < self.machines()).then(|| {
            let waits = self.unreserved().next().map(|other| {
                let status = other.status.as_ref();
                let said = status.and_then(|status| status.message.clone());
                format!(
                    "; GPURequest {}: {}",
                    other.name_any(),
                    said.unwrap_or_else(|| "it is being looked at".to_owned())
                )
            });
            format!(
                "nothing is bought before all {} machines can be: {reserved} are reserved{}",
                self.machines(),
                waits.unwrap_or_default()
            )
        })
    }

    /// Writes down until when all must be ready, while they are not. Waiting for a budget is no such time.
    pub(super) fn keep_time(
        &self,
        own: &GPURequest,
        status: &mut GPURequestStatus,
        now: Timestamp,
    ) {
        let begun = kept(own).is_some() || self.live().any(|other| kept(other).is_some());
        let held = is_held(own) || self.live().any(is_held);
        if !self.waits(status) || (held && !begun) {
            status.together_until = None;
        } else if status.together_until.is_none() {
            let said = self.own.within.as_deref().and_then(run_seconds);
            let within = said.map_or(WITHIN, SignedDuration::from_secs);
            status.together_until = Some(Time(later(now, within)));
        }
    }

    /// Whether what was bought is not wanted any more: they did not all come in time, or one of them never will.
    pub(super) fn is_given_up(&self, status: &GPURequestStatus, now: Timestamp) -> bool {
        let until = status.together_until.as_ref();
        until.is_some_and(|until| until.0 <= now || self.is_broken())
    }

    /// Whether one without a machine can come to nothing only.
    pub(super) fn is_hopeless(&self, status: &GPURequestStatus, now: Timestamp) -> bool {
        let last = status.attempts.last();
        let ended = last.and_then(|last| last.outcome.as_deref()) == Some(reason::NOT_ALL_RENTED);
        ended || self.is_broken() || self.is_given_up(status, now)
    }

    /// How it ended, and what kept the others.
    pub(super) fn failure(&self) -> String {
        let late = |other: &&&GPURequest| {
            let phase = other.status.as_ref().map(|status| status.phase);
            !is_ready(other) && phase != Some(RequestPhase::Terminating)
        };
        let words = self.others.iter().find(late).map(|other| {
            let status = other.status.as_ref();
            let said = status.and_then(|status| status.message.clone());
            format!(
                " (GPURequest {}: {})",
                other.name_any(),
                said.unwrap_or_else(|| "nothing is known of it".to_owned())
            )
        });
        format!(
            "not all of the {} machines that belong together were to be had in time{}; what was bought is given back",
            self.machines(),
            words.unwrap_or_default()
        )
    }
}

/// What of a request concerns those it belongs together with.
pub(super) fn facts(request: Option<&GPURequest>) -> Option<(bool, bool, bool, bool)> {
    let request = request.filter(|request| request.spec.together.is_some())?;
    Some((
        is_over(request),
        is_ready(request),
        kept(request).is_some(),
        is_held(request),
    ))
}

/// The others that a change of a request concerns.
pub(super) fn concerned(
    request: &GPURequest,
    requests: &[Arc<GPURequest>],
) -> Vec<Arc<GPURequest>> {
    let Some(company) = Company::of(request, requests) else {
        return Vec::new();
    };
    let of = |other: &&Arc<GPURequest>| company.has(other);
    requests.iter().filter(of).cloned().collect()
}
