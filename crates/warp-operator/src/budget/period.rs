//! Days and months of UTC.

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

const DAY: i64 = 86_400;

/// From its start up to its end, which is the start of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    start: Timestamp,
    end: Timestamp,
    month: bool,
}

impl Period {
    /// The day of a time.
    pub(crate) fn day(at: Timestamp) -> Self {
        let second = at.as_second();
        let start = second - second.rem_euclid(DAY);
        let time = |second| Timestamp::from_second(second).unwrap_or(at);
        Self {
            start: time(start),
            end: time(start + DAY),
            month: false,
        }
    }

    /// The calendar month of a time.
    pub(crate) fn month(at: Timestamp) -> Self {
        let first = at.to_zoned(TimeZone::UTC).date().first_of_month();
        let next = first.checked_add(1.month()).unwrap_or(first);
        let time = |date: jiff::civil::Date| {
            let zoned = date.to_zoned(TimeZone::UTC);
            zoned.map_or(at, |zoned| zoned.timestamp())
        };
        Self {
            start: time(first),
            end: time(next),
            month: true,
        }
    }

    pub(crate) fn start(self) -> Timestamp {
        self.start
    }

    pub(crate) fn end(self) -> Timestamp {
        self.end
    }

    /// The one after it.
    pub(crate) fn next(self) -> Self {
        if self.month {
            Self::month(self.end)
        } else {
            Self::day(self.end)
        }
    }

    /// Seconds of it between two times.
    pub(crate) fn seconds(self, from: Timestamp, until: Timestamp) -> i64 {
        let (from, until) = (from.max(self.start), until.min(self.end));
        until.duration_since(from).as_secs().max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn days_and_months_follow_each_other_without_a_gap() {
        let day = Period::day(time("2026-02-28T23:59:59Z"));
        assert_eq!(day.start(), time("2026-02-28T00:00:00Z"));
        assert_eq!(day.next().start(), time("2026-03-01T00:00:00Z"));
        let month = Period::month(time("2026-12-31T23:59:59Z"));
        assert_eq!(month.start(), time("2026-12-01T00:00:00Z"));
        assert_eq!(month.next().start(), month.end());
        assert_eq!(month.next().end(), time("2027-02-01T00:00:00Z"));
    }

    #[test]
    fn what_is_outside_does_not_count() {
        let day = Period::day(time("2026-11-17T08:00:00Z"));
        let count = |from, until| day.seconds(time(from), time(until));
        assert_eq!(count("2026-11-16T23:00:00Z", "2026-11-17T01:00:00Z"), 3600);
        assert_eq!(count("2026-11-17T23:00:00Z", "2026-11-18T05:00:00Z"), 3600);
        assert_eq!(count("2026-11-18T23:00:00Z", "2026-11-19T05:00:00Z"), 0);
    }
}
