//! How copies of a service are replaced by those of a new spec: by a copy more where there is room for one, in place
//! where there is none.
//!
//! Owns that choice and nothing else. It does not know GPUs: how many copies more could be placed comes in.

#[cfg(test)]
mod tests;

/// What is known while copies are replaced, or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Copies wanted.
    pub replicas: u32,
    /// Copies that could be placed now beside those that are.
    pub spare: u32,
    /// Copies that have a place and keep it, old and new together.
    pub placed: u32,
    /// Copies that are going and still have their place.
    pub ending: u32,
    /// Copies that were told there is no place for them: what looks free is kept for others, or is more than they may
    /// have.
    pub refused: u32,
    /// Copies that have had a place at once, of those wanted: the others are missing anyway.
    pub had: u32,
    /// Copies of the new spec can never be placed: nothing that serves is given up for them.
    pub hopeless: bool,
}

/// How far the number of copies may be off while they are replaced, as a Deployment takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// Copies there may be beyond those wanted.
    pub max_surge: u32,
    /// Copies that may be missing.
    pub max_unavailable: u32,
}

impl Strategy {
    /// Copies that answer at any time, once all have.
    pub fn floor(self, replicas: u32) -> u32 {
        replicas.saturating_sub(self.max_unavailable)
    }
}

/// Copies replaced at once: a quarter, at least one.
fn pace(replicas: u32) -> u32 {
    replicas.div_ceil(4).max(1)
}

/// The strategy for `room`. A copy that was placed beyond those wanted has its place already, and one that is going
/// leaves one: neither is missing room, or the strategy would turn around with every copy that starts or ends.
pub fn strategy(room: Room) -> Strategy {
    if room.hopeless {
        return Strategy {
            max_surge: 1,
            max_unavailable: 0,
        };
    }
    let beyond = room.placed.saturating_sub(room.replicas);
    let spare = if room.refused > 0 { 0 } else { room.spare };
    let places = spare.saturating_add(beyond).saturating_add(room.ending);
    let surge = places.min(pace(room.replicas));
    if surge > 0 {
        return Strategy {
            max_surge: surge,
            max_unavailable: 0,
        };
    }
    // Those that never had a place would hold up those that could be replaced: for a Deployment all are alike.
    let never = room.replicas.saturating_sub(room.had.max(room.placed));
    Strategy {
        max_surge: 0,
        max_unavailable: never + 1,
    }
}

/// Copies that another set of copies takes the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retiring {
    /// Copies wanted altogether.
    pub wanted: u32,
    /// Copies of those that stay which answer.
    pub new_ready: u32,
    /// A copy of those that stay could be placed now, or has a place and does not answer yet.
    pub room: bool,
    /// Copies that go as they are wanted now, and those of them that answer.
    pub old: u32,
    pub old_ready: u32,
}

/// How many of the copies that go are kept for now: those that are needed until others answer, and one fewer where those
/// wait for its place. Never more than before.
pub fn retire(retiring: Retiring) -> u32 {
    // What does not answer is of no use, and may hold what others wait for.
    let useful = retiring.old.min(retiring.old_ready);
    let needed = retiring.wanted.saturating_sub(retiring.new_ready);
    let kept = useful.min(needed);
    let all_answer = retiring.new_ready.saturating_add(kept) >= retiring.wanted;
    if !retiring.room && all_answer {
        return kept.saturating_sub(1);
    }
    kept
}
