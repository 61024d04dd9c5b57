//! A circuit breaker: whatever fails several times in a row is left alone for a while, then tried once, and left alone for
//! longer when that fails too.
//!
//! Times are seconds since any fixed moment. What counts as a failure is the caller's.

/// Failures in a row that open it.
pub const OPENS_AFTER: u32 = 3;
/// For how long it opens first, in seconds; twice as long every time again.
pub const FIRST_SECONDS: i64 = 300;
/// For how long at most.
pub const MOST_SECONDS: i64 = 3600;

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// All is well, or not bad enough.
    Closed,
    /// Nothing is tried.
    Open,
    /// One may be tried, and what comes of it decides.
    HalfOpen,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    /// Failures since the last success.
    pub failures: u32,
    /// Until when nothing is tried, since it opened last.
    pub until: Option<i64>,
}

impl Breaker {
    /// After a failure at `at`.
    #[must_use]
    pub fn failed(self, at: i64) -> Self {
        let failures = self.failures.saturating_add(1);
        let again = failures.checked_sub(OPENS_AFTER);
        // One that began before it opened says nothing new: the longer time stands.
        let until = again.map(|again| {
            let longer = FIRST_SECONDS.saturating_mul(1_i64 << again.min(32));
            at.saturating_add(longer.min(MOST_SECONDS))
        });
        Self {
            failures,
            until: until.max(self.until),
        }
    }

    /// After a success.
    #[must_use]
    pub fn succeeded(self) -> Self {
        Self::default()
    }

    pub fn state(self, now: i64) -> State {
        match self.until {
            None => State::Closed,
            Some(until) if now < until => State::Open,
            Some(_) => State::HalfOpen,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_each_time_for_longer() {
        let mut it = Breaker::default().failed(10).failed(20);
        assert_eq!(it.state(21), State::Closed);
        it = it.failed(30);
        assert_eq!(
            (it.state(30), it.state(329), it.state(330)),
            (State::Open, State::Open, State::HalfOpen)
        );
        let again = it.failed(400);
        assert_eq!(again.until, Some(400 + 600));
        let long = (0..20).fold(again, |it, _| it.failed(1000));
        assert_eq!(long.until, Some(1000 + MOST_SECONDS));
        assert_eq!(long.succeeded().state(1001), State::Closed);
    }

    #[test]
    fn a_success_between_failures_keeps_it_closed() {
        let it = Breaker::default()
            .failed(1)
            .failed(2)
            .succeeded()
            .failed(3)
            .failed(4);
        assert_eq!(it.state(5), State::Closed);
    }

    proptest! {
        #[test]
        fn a_failure_never_shortens_the_wait(times in proptest::collection::vec(0_i64..100_000, 1..30)) {
            let mut it = Breaker::default();
            for at in times {
                let next = it.failed(at);
                prop_assert!(next.until >= it.until);
                prop_assert!(next.until.is_none_or(|until| until <= at.max(it.until.unwrap_or(0)) + MOST_SECONDS));
                it = next;
            }
        }
    }
}
