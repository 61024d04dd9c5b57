//! What to do next about one thing outside, from what the status records and what was last seen. Pure: a kind's plan
//! asks this and writes what it says.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::Sight;

/// What the status of the object says about the thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Nothing was ever intended.
    Nothing,
    /// It was to be made, since then; nothing is known of the outcome.
    Intended(Timestamp),
    /// It was seen; it had been intended since then.
    Made(Timestamp),
}

/// The next step towards what is wanted.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Write the intent into the status, and nothing else in this pass.
    RecordIntent,
    /// Ask what is there.
    LookUp,
    Make,
    Remove,
    /// Write into the status that it is there, so.
    RecordResult(Value),
    /// It was there and is no more, without our doing.
    Lost,
    /// It is there as it should be.
    Settled,
    /// It is not there and nothing that was sent can still make it appear: the finalizer may drop.
    ConfirmedGone,
    /// Nothing to do until an answer arrives, or this time has come.
    Wait(Option<Timestamp>),
}

/// The next step towards having it.
pub fn present(recorded: Recorded, sight: &Sight, now: Timestamp) -> Step {
    let since = match recorded {
        Recorded::Nothing => return Step::RecordIntent,
        Recorded::Intended(since) | Recorded::Made(since) => since,
    };
    if let Some(wait) = waits(sight, now) {
        return wait;
    }
    let Some(asked) = sight.asked.filter(|asked| *asked >= since) else {
        return Step::LookUp;
    };
    match (&sight.there, recorded) {
        (Some(there), Recorded::Intended(_)) => Step::RecordResult(there.clone()),
        (Some(_), _) | (None, Recorded::Made(_)) if too_old(sight, asked, now) => Step::LookUp,
        (Some(_), _) => Step::Settled,
        (None, Recorded::Made(_)) => Step::Lost,
        // Made now, or on a look from before that time, it could be there twice.
        (None, _) => match effects_appear_until(since, sight) {
            Some(until) if now < until => Step::Wait(Some(until)),
            Some(until) if asked < until => Step::LookUp,
            _ if too_old(sight, asked, now) => Step::LookUp,
            _ => Step::Make,
        },
    }
}

/// The next step towards not having it.
pub fn absent(recorded: Recorded, sight: &Sight, now: Timestamp) -> Step {
    let since = match recorded {
        Recorded::Nothing => return Step::ConfirmedGone,
        Recorded::Intended(since) | Recorded::Made(since) => since,
    };
    if let Some(wait) = waits(sight, now) {
        return wait;
    }
    let Some(asked) = sight.asked.filter(|asked| *asked >= since) else {
        return Step::LookUp;
    };
    if too_old(sight, asked, now) {
        return Step::LookUp;
    }
    if sight.there.is_some() {
        return Step::Remove;
    }
    // One that was seen and is no more does not come back; one that was only sent may still appear.
    match (recorded, effects_appear_until(since, sight)) {
        (Recorded::Intended(_), Some(until)) if now < until => Step::Wait(Some(until)),
        (Recorded::Intended(_), Some(until)) if asked < until => Step::LookUp,
        _ => Step::ConfirmedGone,
    }
}

fn waits(sight: &Sight, now: Timestamp) -> Option<Step> {
    if sight.busy {
        return Some(Step::Wait(None));
    }
    let (_, until) = sight.failed.as_ref()?;
    (now < *until).then_some(Step::Wait(Some(*until)))
}

/// Until when the effect of a call that was sent may still appear; none when none can have been sent.
fn effects_appear_until(since: Timestamp, sight: &Sight) -> Option<Timestamp> {
    // An earlier process may have sent one until this process began.
    let earlier = sight.process_began.filter(|began| since < *began);
    let last_sent = earlier.max(sight.last_make)?;
    let settle = SignedDuration::try_from(sight.settle).unwrap_or_default();
    Some(crate::driver::later(last_sent, settle))
}

fn too_old(sight: &Sight, asked: Timestamp, now: Timestamp) -> bool {
    let age = SignedDuration::try_from(sight.max_age).unwrap_or_default();
    crate::driver::later(asked, age) < now
}
