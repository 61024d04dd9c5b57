//! What a plan says about a workload: its conditions and the Event of a transition. Pure.

use warp_api::condition::{self, State};
use warp_api::{Phase, reason};

use super::course::Note;

/// What the three conditions say.
pub(super) struct Say {
    pub(super) phase: Phase,
    pub(super) ready: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

pub(super) fn conditions(say: &Say, placement: Option<&str>) -> [State; 3] {
    let flag = |on| if on { "True" } else { "False" };
    let placed = match placement {
        Some(why) => (true, reason::PLACED, why.to_owned()),
        None => (false, say.reason, say.message.clone()),
    };
    let (succeeded, how) = match say.phase {
        Phase::Succeeded => ("True", reason::SUCCEEDED),
        Phase::Failed => ("False", say.reason),
        _ => ("Unknown", reason::NOT_FINISHED),
    };
    let end = if say.phase.is_final() {
        say.message.clone()
    } else {
        String::new()
    };
    let state = |kind, status, reason, message| State {
        kind,
        status,
        reason,
        message,
    };
    [
        state(
            condition::READY,
            flag(say.ready),
            say.reason,
            say.message.clone(),
        ),
        state(condition::PLACED, flag(placed.0), placed.1, placed.2),
        state(condition::SUCCEEDED, succeeded, how, end),
    ]
}

/// The Event of a transition, if people want to hear of it.
pub(super) fn told(say: &Say) -> Option<Note> {
    let warning = match say.reason {
        // The failure behind a retry has been told by the pass that found it.
        reason::QUEUED
        | reason::STARTING
        | reason::RUNNING
        | reason::CLEANING_UP
        | reason::DISRUPTED
        | reason::RETRY_BACKOFF => return None,
        reason::PLACED => return Some(note(false, reason::EVENT_SCHEDULED, "Place", &say.message)),
        reason::SUSPENDED | reason::SPEC_CHANGED | reason::WAITING_FOR_CAPACITY => false,
        _ => true,
    };
    Some(note(warning, say.reason, "Wait", &say.message))
}

pub(super) fn note(warning: bool, reason: &'static str, action: &'static str, text: &str) -> Note {
    Note {
        warning,
        reason,
        action,
        text: text.to_owned(),
    }
}
