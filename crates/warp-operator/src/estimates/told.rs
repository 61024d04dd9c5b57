//! What of a forecast is worth a write, and in which words. Pure.

use jiff::{SignedDuration, Timestamp};
use warp_api::GPUWorkloadStatus;
use warp_api::workload::EstimatedStart;
use warp_runtime::cache::Key;

/// A start that has moved by less is not told anew.
const LEAST: SignedDuration = SignedDuration::from_mins(1);
/// Who stands further back is not told who ends first: that changes with every end, a write for everybody.
const FRONT: i64 = 10;

/// What is known about the start of one that waits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Forecast {
    /// Which spec this is about.
    pub(super) generation: i64,
    pub(super) start: Option<EstimatedStart>,
    /// What it asks for; nothing at all is told to one that stands too far back.
    pub(super) ask: Option<String>,
    /// Who is expected to end first, of those in its way.
    pub(super) first: Option<Key>,
}

impl Forecast {
    /// Nothing is told.
    pub(super) fn nothing(generation: i64) -> Self {
        Self {
            generation,
            start: None,
            ask: None,
            first: None,
        }
    }

    /// The start to tell to one that has been told another.
    pub(crate) fn start_after(
        &self,
        told: Option<&EstimatedStart>,
        now: Timestamp,
    ) -> Option<EstimatedStart> {
        let holds = told
            .zip(self.start.as_ref())
            .is_some_and(|(told, start)| !moved(told, start, now));
        if holds { told } else { self.start.as_ref() }.cloned()
    }

    /// A start so many seconds from `now`: at the earliest, as likely as not, at the latest.
    #[cfg(test)]
    pub(crate) fn at(now: Timestamp, [earliest, at, latest]: [i64; 3]) -> Self {
        use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
        let time = |seconds| Time(now + SignedDuration::from_secs(seconds));
        Self {
            start: Some(EstimatedStart {
                at: time(at),
                earliest: time(earliest),
                latest: time(latest),
            }),
            ask: Some("1 nvidia GPU".to_owned()),
            ..Self::nothing(3)
        }
    }
}

/// Says in `status` what a workload of `namespace` that waits for room is to hear, having heard `before`. Nobody has
/// asked yet: what was said before holds.
pub(crate) fn tell(
    forecast: Option<&Forecast>,
    before: &GPUWorkloadStatus,
    status: &mut GPUWorkloadStatus,
    namespace: &str,
    now: Timestamp,
) {
    let Some(forecast) = forecast else {
        status.estimated_start.clone_from(&before.estimated_start);
        status.waiting_for.clone_from(&before.waiting_for);
        return;
    };
    status.estimated_start = forecast.start_after(before.estimated_start.as_ref(), now);
    status.waiting_for = words(forecast, status.queue_position, namespace);
}

/// Whether a start is far from the one that was told: by a tenth of the wait that is left (the end of its band: by
/// half), by more than a minute, and by enough to be seen in the width of its band. What slides along while nothing
/// happens is no news.
fn moved(told: &EstimatedStart, start: &EstimatedStart, now: Timestamp) -> bool {
    let width = told.latest.0.duration_since(told.earliest.0) / 4;
    let far = |old: Timestamp, new: Timestamp, share: i32| {
        let left = old.max(new).duration_since(now).max(SignedDuration::ZERO);
        let way = old.duration_since(new).abs();
        way >= LEAST && way > left / share && way > width
    };
    far(told.at.0, start.at.0, 10) || far(told.latest.0, start.latest.0, 2)
}

/// `2 nvidia GPUs on one node; 3 are ahead, training-7 is expected to end first`.
fn words(forecast: &Forecast, position: Option<i64>, namespace: &str) -> Option<String> {
    let mut text = forecast.ask.clone()?;
    match position {
        None => {}
        Some(..=1) => text.push_str("; nobody is ahead"),
        Some(2) => text.push_str("; 1 is ahead"),
        Some(place) => text = format!("{text}; {} are ahead", place - 1),
    }
    if forecast.start.is_none() {
        text.push_str(
            "; nobody can tell when: what it waits for has no maxRuntime, and too little like it has ended so far",
        );
        return Some(text);
    }
    // Names of other namespaces are not everybody's to read.
    match &forecast.first {
        Some(first) if position.is_some_and(|place| place <= FRONT) => {
            let who = if *first.namespace == *namespace {
                &*first.name
            } else {
                "work of another namespace"
            };
            text = format!("{text}, {who} is expected to end first");
        }
        _ => {}
    }
    Some(text)
}
