//! Which process may ask the cloud for the machine of an attempt. Clouds without an idempotency key sell two machines to
//! two processes that both believe to lead, however carefully each of them looks first. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use warp_api::gpurequest::RequestAttempt;
use warp_runtime::plan::Plan;

use super::choose::later;
use super::observe::{Open, Seen};

/// Another process that has said so after this one began may be at work: it gets so many times as long as the effect of
/// a lost call takes to show.
const PATIENCE: i32 = 2;

/// Takes an attempt over that another process was to buy, or waits for that process; what to say meanwhile. None when
/// this process is the one, or something was bought already.
///
/// The other stops at the same moment: it asks the API server right before it calls, and finds the request changed.
pub(super) fn claim(
    plan: &mut Plan,
    attempt: &mut RequestAttempt,
    seen: &Seen,
    open: &Open,
    now: Timestamp,
) -> Option<String> {
    let caller = attempt.caller.as_deref();
    if attempt.instance_id.is_some() || caller == Some(seen.process.as_str()) {
        return None;
    }
    let since = attempt.called_since.as_ref();
    let since = since.map_or(attempt.intended_at.0, |since| since.0);
    let settle = SignedDuration::try_from(open.settle).unwrap_or_default();
    let free = match open.sight.process_began {
        // It began before this one: it is over, or it has lost its lease.
        Some(began) if since < began => now,
        _ => later(since, settle * PATIENCE),
    };
    if now < free {
        plan.look_again(free);
        let who = caller.unwrap_or("another process");
        return Some(format!("{who} rents {}", attempt.machine));
    }
    attempt.caller = Some(seen.process.clone());
    attempt.called_since = Some(Time(now));
    Some(format!("looking whether {} was rented", attempt.machine))
}

/// Until when another process may have asked the cloud: this one took over then.
pub(super) fn taken_over(attempt: &RequestAttempt) -> Option<Timestamp> {
    let since = attempt.called_since.as_ref()?.0;
    let sought = attempt.sought_since()?.0;
    (since > sought).then_some(since)
}
