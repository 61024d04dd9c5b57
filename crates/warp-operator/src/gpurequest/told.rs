//! What a request says of the machine of an open attempt. Pure.

use warp_api::gpurequest::{RequestAttempt, RequestPhase};
use warp_api::{GPURequestStatus, reason};
use warp_cloud::{Machine, State};

use super::ending::{gives_up_at, is_ready};
use super::joining;
use super::observe::Open;
use super::say::Said;

pub(super) fn say(
    status: &GPURequestStatus,
    attempt: &RequestAttempt,
    machine: Option<&Machine>,
    open: &Open,
) -> Said {
    let name = &attempt.machine;
    let trouble = open
        .sight
        .failed
        .as_ref()
        .map(|(error, _)| error.message.clone());
    let gpu = status.gpu.clone().unwrap_or_default();
    let price = status.price_per_hour.clone().unwrap_or_default();
    if let Some(outcome) = &attempt.outcome {
        let text = format!("{name} is gone ({outcome})");
        return Said::new(
            RequestPhase::Terminating,
            "False",
            reason::TERMINATING,
            text,
        );
    }
    if let Some(ending) = &attempt.ending {
        let (reason, text) = if let Some(trouble) = trouble {
            let text = format!(
                "{name} may still cost money: it cannot be ended ({ending}): {trouble}; look after CloudProvider {}",
                attempt.provider
            );
            (reason::TERMINATION_STUCK, text)
        } else {
            let text = format!("giving {name} back ({ending})");
            (reason::TERMINATING, text)
        };
        return Said::new(RequestPhase::Terminating, "False", reason, text);
    }
    if attempt.instance_id.is_none() {
        let said = trouble
            .map(|trouble| format!(": {trouble}"))
            .unwrap_or_default();
        let text = format!(
            "renting {gpu} from {} in {} for {} an hour{said}",
            attempt.provider, attempt.region, attempt.price
        );
        return Said::new(
            RequestPhase::Provisioning,
            "False",
            reason::PROVISIONING,
            text,
        );
    }
    let joined = open.node.as_deref().is_some_and(is_ready);
    match machine.map(|machine| machine.state) {
        _ if attempt.noticed_at.is_some() => {
            let text = format!(
                "{} takes {name} back; work on it is moved away",
                attempt.provider
            );
            Said::new(status.phase, "False", reason::SPOT_NOTICE, text)
        }
        _ if joined => {
            let text = format!("{gpu} on node {name} for {price} an hour");
            Said::new(RequestPhase::Ready, "True", reason::NODE_READY, text)
        }
        // Nothing is known of it since this process began: it is as it was.
        None if status.phase != RequestPhase::Provisioning => {
            let text = status.message.clone().unwrap_or_default();
            let known = match status.phase {
                RequestPhase::Ready => reason::NODE_NOT_READY,
                RequestPhase::Joining => reason::JOINING,
                _ => reason::BOOTING,
            };
            Said::new(status.phase, "False", known, text)
        }
        None | Some(State::Pending) => {
            let text = format!("{name} starts, for {price} an hour");
            Said::new(RequestPhase::Booting, "False", reason::BOOTING, text)
        }
        Some(_) if status.phase == RequestPhase::Ready => {
            let until = gives_up_at(attempt).map_or_else(String::new, |at| {
                format!(" and is given back at {at:.0} unless its node comes back")
            });
            let text = format!(
                "node {name} was ready and is not; the machine costs {price} an hour{until}"
            );
            Said::new(RequestPhase::Ready, "False", reason::NODE_NOT_READY, text)
        }
        Some(_) => {
            let tested = open.node.as_deref().is_some_and(joining::is_starting);
            let what = if tested {
                "has joined and its GPUs are being tested"
            } else {
                "runs and its node is not ready yet"
            };
            let text = format!("{name} {what}, for {price} an hour");
            Said::new(RequestPhase::Joining, "False", reason::JOINING, text)
        }
    }
}
