//! The least number of copies by the time of day.

/// From a minute of the day on, at least so many copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Minutes after midnight.
    pub minute: u32,
    pub min: u32,
}

const SECONDS_PER_DAY: i64 = 86_400;

/// The least number of copies at `now`, in seconds since a midnight: that of the last step that was reached, today or
/// yesterday; `usual` where there are none.
pub fn least(usual: u32, steps: &[Step], now: i64) -> u32 {
    let minute = u32::try_from(now.rem_euclid(SECONDS_PER_DAY) / 60).unwrap_or(0);
    let latest =
        |among: &mut dyn Iterator<Item = &Step>| among.max_by_key(|step| step.minute).copied();
    let today = latest(&mut steps.iter().filter(|step| step.minute <= minute));
    let reached = today.or_else(|| latest(&mut steps.iter()));
    reached.map_or(usual, |step| step.min)
}
