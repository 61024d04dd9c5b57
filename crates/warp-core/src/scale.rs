//! How many copies of a service there should be, from what its engines report.
//!
//! Owns the decision. It measures nothing and has no clock. Going up is quick, going down is slow, and no answer is
//! never taken for no load.

mod pools;
mod schedule;
#[cfg(test)]
mod tests;

pub use pools::{Pool, spread};
pub use schedule::{Step, least, next_step};

/// What the number follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Requests running and waiting, per copy.
    InFlight,
    /// Requests waiting, per copy.
    Queue,
    /// Percent of the attention cache in use.
    Cache,
    /// Milliseconds until the first token of nine of ten answers.
    FirstToken,
    /// Milliseconds between two tokens of nine of ten answers.
    BetweenTokens,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub min: u32,
    pub max: u32,
    pub metric: Metric,
    /// What one copy should carry.
    pub target: u32,
    /// Seconds copies must have been too many before some go.
    pub window_seconds: i64,
}

/// What engines reported, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Copies that answered.
    pub copies: u32,
    pub running: u64,
    pub waiting: u64,
    /// Sum of the shares of the cache in use, in percent.
    pub cache_percent: u64,
    /// Nine of ten answers began within this, since the look before; none: no answer began.
    pub first_token_ms: Option<u64>,
    /// Nine of ten tokens came within this after the one before.
    pub between_tokens_ms: Option<u64>,
}

/// How many copies there are and have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    pub wanted: u32,
    /// Since when they were too many, in seconds of any one clock.
    pub too_many_since: Option<i64>,
}

/// What should be so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub copies: Copies,
    /// One sentence with the numbers.
    pub why: String,
}

/// Load within a tenth of the target is as wanted: noise must not start copies.
const TOLERANCE_PERCENT: u64 = 110;

/// The number of copies at `now`.
pub fn decide(rules: &Rules, copies: Copies, load: Option<Load>, now: i64) -> Decision {
    let (min, max) = (rules.min.max(1), rules.max.max(rules.min).max(1));
    let current = copies.wanted.clamp(min, max);
    let Some(load) = load.filter(|load| load.copies > 0) else {
        return hold(
            current,
            format!("{current} copies: none of them answers yet"),
        );
    };
    let (wanted, amount) = wanted(rules, current, load);
    let limited = wanted.clamp(min, max);
    let bound = match limited {
        limited if limited < wanted => format!(", at most {max} are allowed"),
        limited if limited > wanted => format!(", at least {min} are kept"),
        _ => String::new(),
    };
    if limited > current {
        // Doubling at most: what is wanted is known better once the first of them answer.
        let next = limited.min(current.saturating_mul(2).max(current.saturating_add(4)));
        return hold(
            next,
            format!("{next} instead of {current} copies: {amount}{bound}"),
        );
    }
    if limited == current || is_busy(rules, current, load) {
        return hold(current, format!("{current} copies: {amount}{bound}"));
    }
    let since = copies.too_many_since.unwrap_or(now).min(now);
    let left = rules.window_seconds - (now - since);
    if left > 0 {
        return Decision {
            copies: Copies {
                wanted: current,
                too_many_since: Some(since),
            },
            why: format!(
                "{current} copies: {amount}, which {limited} could carry; kept for {left} s more"
            ),
        };
    }
    // A quarter at a time, and the window begins again: what was given up is slow to come back.
    let next = limited.max(current - current.div_ceil(4));
    hold(
        next,
        format!(
            "{next} instead of {current} copies: {amount} for {} s",
            rules.window_seconds
        ),
    )
}

fn hold(wanted: u32, why: String) -> Decision {
    Decision {
        copies: Copies {
            wanted,
            too_many_since: None,
        },
        why,
    }
}

/// How many would carry the load, and the load in words.
fn wanted(rules: &Rules, current: u32, load: Load) -> (u32, String) {
    let target = u64::from(rules.target.max(1));
    let (total, words) = match rules.metric {
        Metric::InFlight => (
            load.running + load.waiting,
            format!("{} requests under way", load.running + load.waiting),
        ),
        Metric::Queue => (load.waiting, format!("{} requests wait", load.waiting)),
        Metric::FirstToken => slowness(
            load,
            load.first_token_ms,
            current,
            "the first token",
            target,
        ),
        Metric::BetweenTokens => slowness(
            load,
            load.between_tokens_ms,
            current,
            "the next token",
            target,
        ),
        Metric::Cache => {
            // Copies that did not answer are taken to be as full as those that did.
            let mean = load.cache_percent / u64::from(load.copies.max(1));
            (
                mean * u64::from(current),
                format!("{mean} % of the cache is in use"),
            )
        }
    };
    let carried = u64::from(current) * target;
    let wanted = if total > carried && total * 100 <= carried * TOLERANCE_PERCENT {
        u64::from(current)
    } else {
        total.div_ceil(target)
    };
    (u32::try_from(wanted).unwrap_or(u32::MAX), words)
}

/// The load of copies that should answer within `target` milliseconds, as if time grew with what each carries.
fn slowness(
    load: Load,
    measured: Option<u64>,
    current: u32,
    what: &str,
    target: u64,
) -> (u64, String) {
    let copies = u64::from(current);
    match measured {
        Some(ms) => (
            ms.saturating_mul(copies),
            format!("{what} takes up to {ms} ms, {target} are wanted"),
        ),
        None if load.running + load.waiting == 0 => (0, "no requests under way".to_owned()),
        // Nothing was measured while somebody waits: that says nothing about how slow it is.
        None => (
            target.saturating_mul(copies),
            format!("{what} was not measured yet"),
        ),
    }
}

/// Whether giving up a copy would certainly hurt: an empty queue says nothing about how busy copies are.
fn is_busy(rules: &Rules, current: u32, load: Load) -> bool {
    let under_way = load.running + load.waiting;
    rules.metric != Metric::InFlight && under_way >= u64::from(current)
}
