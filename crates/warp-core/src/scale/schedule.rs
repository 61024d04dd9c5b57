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

/// When the next step is reached after `now`, both in seconds since a midnight; none without steps.
pub fn next_step(steps: &[Step], now: i64) -> Option<i64> {
    let midnight = now - now.rem_euclid(SECONDS_PER_DAY);
    let times = steps.iter().map(|step| {
        let at = midnight + i64::from(step.minute) * 60;
        if at > now { at } else { at + SECONDS_PER_DAY }
    });
    times.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_is_today_or_tomorrow() {
        let steps = [7 * 60 + 30, 20 * 60].map(|minute| Step { minute, min: 1 });
        let day = 10 * SECONDS_PER_DAY;
        assert_eq!(next_step(&steps, day), Some(day + 27_000));
        assert_eq!(next_step(&steps, day + 27_000), Some(day + 72_000));
        let tomorrow = day + SECONDS_PER_DAY;
        assert_eq!(next_step(&steps, day + 80_000), Some(tomorrow + 27_000));
        assert_eq!(next_step(&[], day), None);
    }
}
