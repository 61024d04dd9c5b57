//! One in line: what was found out about it and what it was last told. Pure.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::Whose;
use crate::placement::memo::Own;
use crate::placement::shape::ShapeId;
use crate::placement::verdict::{is_fresh, moved};
use crate::placement::{Claimant, Verdict};

/// One in line.
#[derive(Debug)]
pub(in crate::placement) struct Waiting {
    pub(super) who: Whose,
    pub(in crate::placement) claimant: Arc<dyn Claimant>,
    pub(in crate::placement) shape: ShapeId,
    /// Claims of its shape stand for each other.
    pub(in crate::placement) is_like_others: bool,
    pub(in crate::placement) namespace: usize,
    /// What was found out about this one and holds for no other.
    pub(in crate::placement) own: Option<Own>,
    /// Room or shares were kept for it in the last pass.
    pub(in crate::placement) is_kept_for: bool,
    /// Whether pods that are there keep it off their nodes, as of a state of those.
    pub(in crate::placement) repelled: Option<(u64, bool)>,
    pub(super) told: Option<Told>,
}

/// What one in line was last told, about the generation it stands in line with.
#[derive(Debug)]
pub(super) struct Told {
    verdict: Arc<Verdict>,
    /// Its reason is that there is no room.
    lacks_room: bool,
    position: usize,
    since: Timestamp,
    /// When it was last found that this is still all there is to say.
    confirmed: Timestamp,
}

/// What was found to be still so is not explained again for this long.
const CONFIRMED: SignedDuration = SignedDuration::from_secs(5);

/// Whether there is something to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::placement) enum News {
    None,
    /// It has moved since it was told, and that was a moment ago.
    Later,
    Now,
}

impl Waiting {
    /// Whether a verdict is news to it.
    pub(in crate::placement) fn news(
        &mut self,
        (verdict, brief): (&Arc<Verdict>, bool),
        position: usize,
        now: Timestamp,
    ) -> News {
        let Some(told) = self.told.as_mut() else {
            return News::Now;
        };
        let same = Arc::ptr_eq(&told.verdict, verdict) || *told.verdict == **verdict;
        if same {
            // The next comparison need not read them.
            told.verdict.clone_from(verdict);
        }
        if same && !moved(Some(told.position), Some(position)) {
            if !brief {
                told.confirmed = now;
            }
            News::None
        } else if told.verdict.reason == verdict.reason && (brief || is_fresh(told.since, now)) {
            // Where only the reason was looked at, there may be more to say.
            News::Later
        } else {
            News::Now
        }
    }

    /// Whether it has been told so recently why it waits that it hears of another reason only.
    pub(in crate::placement) fn has_just_heard(&self, now: Timestamp) -> bool {
        self.told.as_ref().is_some_and(|told| {
            told.lacks_room
                && (is_fresh(told.since, now) || now.duration_since(told.confirmed) < CONFIRMED)
        })
    }

    /// Notes what it has been told.
    pub(in crate::placement) fn tell(
        &mut self,
        verdict: Arc<Verdict>,
        position: usize,
        now: Timestamp,
    ) {
        self.told = Some(Told {
            lacks_room: verdict.reason == warp_api::reason::WAITING_FOR_CAPACITY,
            verdict,
            position,
            since: now,
            confirmed: now,
        });
    }

    /// Somebody else has told it something.
    pub(in crate::placement) fn forget_told(&mut self) {
        self.told = None;
    }
}
