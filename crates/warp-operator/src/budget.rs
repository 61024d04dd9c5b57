//! Money of tenants: what machines have cost and may still cost in a day or a month, whether one more may be bought, and
//! which are given back at a limit. Pure: requests, ledgers and times come in.
//!
//! What a machine may cost at worst is counted from the moment it is intended. What was reserved is released by facts
//! alone: the cloud's own price and start, the machine's end.

mod accounts;
mod period;
#[cfg(test)]
mod tests;

use jiff::{SignedDuration, Timestamp};
use warp_api::price::Price;
use warp_api::tenant::{AtLimit, TenantBudget};
use warp_cloud::Decimal;

pub(crate) use accounts::{Accounts, Owner, Purse};
pub(crate) use period::Period;

/// The money of a budget that stops machines lasts this much longer than they do.
const MARGIN: SignedDuration = SignedDuration::from_mins(2);

/// One machine as money sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) tenant: String,
    /// Dollars an hour: as billed, else the most that was agreed to.
    pub(crate) price: Decimal,
    pub(crate) course: Course,
}

/// Where a machine is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Course {
    /// It is to be bought, or may have been.
    Intended {
        since: Timestamp,
        lasts: Option<SignedDuration>,
        /// It is not wanted any more.
        going: bool,
    },
    Runs {
        from: Timestamp,
        /// When it is given back at the latest.
        ends: Option<Timestamp>,
        idle: bool,
        /// It is being given back.
        going: bool,
    },
    Over {
        from: Timestamp,
        until: Timestamp,
    },
}

/// Dollars for so many seconds.
fn cost(price: Decimal, seconds: i64) -> Decimal {
    price * Decimal::from(seconds.max(0)) / Decimal::from(3600)
}

impl Machine {
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.course, Course::Over { .. })
    }

    /// Dollars it has cost in a period until now.
    pub(crate) fn spent(&self, period: Period, now: Timestamp) -> Decimal {
        let seconds = match self.course {
            Course::Intended { .. } => 0,
            Course::Runs { from, .. } => period.seconds(from, now),
            Course::Over { from, until } => period.seconds(from, until),
        };
        cost(self.price, seconds)
    }

    /// Dollars it may still cost in a period.
    pub(crate) fn to_come(&self, period: Period, now: Timestamp) -> Decimal {
        let seconds = match self.course {
            Course::Over { .. } => 0,
            // It may have been bought the moment it was intended, and the answer was lost.
            Course::Intended { since, lasts, .. } => at_most(period, lasts, since.min(now)),
            Course::Runs { from, ends, .. } => {
                period.seconds(now.max(from), ends.unwrap_or(period.end()))
            }
        };
        cost(self.price, seconds)
    }
}

/// Seconds that something which may begin any time from now on lasts in a period at most.
fn at_most(period: Period, lasts: Option<SignedDuration>, now: Timestamp) -> i64 {
    let whole = period.seconds(now, period.end());
    lasts.map_or(whole, |lasts| whole.min(lasts.as_secs()))
}

/// A budget whose limits can be read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Limits {
    pub(crate) per_hour: Option<Decimal>,
    pub(crate) per_day: Option<Decimal>,
    pub(crate) per_month: Option<Decimal>,
    /// Hundredths of a limit.
    pub(crate) warn_at: i32,
    pub(crate) at_limit: AtLimit,
}

impl Limits {
    /// Reads a budget; what is wrong with it names the field.
    pub(crate) fn of(budget: &TenantBudget) -> Result<Self, String> {
        let read = |field: &str, price: Option<&Price>| {
            let read = price.map(Price::decimal).transpose();
            read.map_err(|problem| format!("spec.budget.{field}: {problem}; correct it"))
        };
        Ok(Self {
            per_hour: read("perHour", budget.per_hour.as_ref())?,
            per_day: read("perDay", budget.per_day.as_ref())?,
            per_month: read("perMonth", budget.per_month.as_ref())?,
            warn_at: budget.warn_at(),
            at_limit: budget.at_limit,
        })
    }

    /// The limits of periods, each with its word and the period now.
    fn periods(&self, now: Timestamp) -> impl Iterator<Item = (&'static str, Decimal, Period)> {
        let day = self.per_day.map(|most| ("day", most, Period::day(now)));
        let month = self
            .per_month
            .map(|most| ("month", most, Period::month(now)));
        day.into_iter().chain(month)
    }

    /// The limits of the periods that a purchase now has to fit into. What runs on without an end must fit later too. Two more
    /// are enough: nothing is longer in the ones after them, and months differ.
    fn horizon(&self, now: Timestamp) -> impl Iterator<Item = (&'static str, Decimal, Period)> {
        let periods = match self.at_limit {
            AtLimit::Hold => 3,
            AtLimit::Stop => 1,
        };
        self.periods(now).flat_map(move |(word, most, first)| {
            let each = std::iter::successors(Some(first), |period| Some(period.next()));
            each.take(periods).map(move |period| (word, most, period))
        })
    }
}

/// A machine that may be bought.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Purchase {
    /// The most it may cost an hour.
    pub(crate) price: Decimal,
    /// How long it is kept at most.
    pub(crate) lasts: Option<SignedDuration>,
}

/// Why something may not be bought.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) message: String,
    /// When it may be otherwise by time alone.
    pub(crate) until: Option<Timestamp>,
}

/// Whether a tenant's budget allows purchases, all of them, beside the machines it pays for.
pub(crate) fn allows(
    tenant: &str,
    limits: &Limits,
    machines: &[Machine],
    wanted: &[Purchase],
    now: Timestamp,
) -> Result<(), Refusal> {
    let price: Decimal = wanted.iter().map(|one| one.price).sum();
    let what = match wanted.len() {
        1 => "this machine".to_owned(),
        many => format!("these {many} machines"),
    };
    let open = machines.iter().filter(|machine| machine.is_open());
    let hourly: Decimal = open.map(|machine| machine.price).sum();
    if let Some(most) = limits.per_hour.filter(|most| hourly + price > *most) {
        let message = format!(
            "tenant {tenant} may rent for {} an hour: {} is rented, and {what} may cost {}; give a machine back, or raise spec.budget.perHour",
            money(most),
            money(hourly),
            money(price)
        );
        return Err(Refusal {
            message,
            until: None,
        });
    }
    let Some(over) = exceeded(limits, machines, wanted, now) else {
        return Ok(());
    };
    let Exceeded { word, period, .. } = over;
    let when = if period.start() <= now {
        format!("this {word}")
    } else {
        format!("the {word} from {:.0} on", period.start())
    };
    let lasts = wanted.iter().map(|one| at_most(period, one.lasts, now));
    let seconds = lasts.max().unwrap_or(0);
    let until = goes_on(limits, machines, wanted, now);
    let next = match until {
        Some(at) => format!("it goes on when a machine is given back, or at {at:.0}"),
        None if over.spent + over.reserved == Decimal::ZERO => {
            "set maxLifetime or maxTotalPrice to less, or raise the budget".to_owned()
        }
        None => "it goes on when a machine is given back, and not by time alone: set maxLifetime or maxTotalPrice to less, or raise the budget".to_owned(),
    };
    let message = format!(
        "tenant {tenant} may spend {} a {word}: {when} {} is spent, {} is reserved for what is rented, and {what} may cost {} ({} an hour for {}); {next}",
        money(over.most),
        money(over.spent),
        money(over.reserved),
        money(over.asked),
        money(price),
        hours(seconds),
    );
    Err(Refusal { message, until })
}

/// A limit that purchases would pass, and by what.
struct Exceeded {
    word: &'static str,
    most: Decimal,
    period: Period,
    spent: Decimal,
    reserved: Decimal,
    asked: Decimal,
}

/// The first day or month whose limit would be passed.
fn exceeded(
    limits: &Limits,
    machines: &[Machine],
    wanted: &[Purchase],
    now: Timestamp,
) -> Option<Exceeded> {
    let mut all = limits.horizon(now).map(|(word, most, period)| Exceeded {
        word,
        most,
        period,
        spent: machines.iter().map(|one| one.spent(period, now)).sum(),
        reserved: machines.iter().map(|one| one.to_come(period, now)).sum(),
        asked: (wanted.iter())
            .map(|one| cost(one.price, at_most(period, one.lasts, now)))
            .sum(),
    });
    all.find(|one| one.spent + one.reserved + one.asked > one.most)
}

/// When purchases that pass a limit now would pass none, by time alone: when what is left of a day or month pays for the
/// rest of it, or in the next one. Nothing is promised that what is known now does not show.
fn goes_on(
    limits: &Limits,
    machines: &[Machine],
    wanted: &[Purchase],
    now: Timestamp,
) -> Option<Timestamp> {
    // What is intended is bought soon or not at all.
    let begun = |machine: &Machine| match machine.course {
        Course::Intended { lasts, going, .. } => Machine {
            course: Course::Runs {
                from: now,
                ends: lasts.map(|lasts| later(now, lasts)),
                idle: false,
                going,
            },
            ..machine.clone()
        },
        _ => machine.clone(),
    };
    let machines: Vec<Machine> = machines.iter().map(begun).collect();
    let price: Decimal = wanted.iter().map(|one| one.price).sum();
    let mut times = Vec::new();
    for (_, most, period) in limits.horizon(now) {
        let taken = machines
            .iter()
            .map(|one| one.spent(period, now) + one.to_come(period, now));
        let left = (most - taken.sum::<Decimal>()).max(Decimal::ZERO);
        if price > Decimal::ZERO {
            let seconds = (left * Decimal::from(3600) / price).floor();
            let seconds = i64::try_from(seconds).unwrap_or(i64::MAX / 4);
            times.push(later(period.end(), SignedDuration::from_secs(-seconds)));
        }
        times.push(period.end());
    }
    times.retain(|at| *at > now);
    times.sort();
    times
        .into_iter()
        .find(|at| exceeded(limits, &machines, wanted, *at).is_none())
}

/// The machines a budget has given back now, and when it has to be looked at again. The order is idle ones first, then
/// those bought last.
pub(crate) fn stops(
    limits: &Limits,
    machines: &[Machine],
    now: Timestamp,
) -> (Vec<String>, Option<Timestamp>) {
    if limits.at_limit != AtLimit::Stop {
        return (Vec::new(), None);
    }
    let mut running: Vec<(&Machine, bool, Timestamp)> = machines
        .iter()
        .filter_map(|machine| match machine.course {
            Course::Runs {
                from, idle, going, ..
            } if !going => Some((machine, idle, from)),
            Course::Intended { since, going, .. } if !going => Some((machine, false, since)),
            _ => None,
        })
        .collect();
    // The last of these goes first.
    running.sort_by_key(|(machine, idle, from)| (*idle, *from, machine.name.clone()));
    let mut gone = Vec::new();
    while let Some((machine, _, _)) = running.last() {
        let hourly: Decimal = running.iter().map(|(machine, ..)| machine.price).sum();
        let over = limits.per_hour.is_some_and(|most| hourly > most)
            || limits
                .periods(now)
                .any(|(_, most, period)| left(machines, most, period, now) < soon(hourly));
        if !over {
            break;
        }
        gone.push(machine.name.clone());
        running.pop();
    }
    let hourly: Decimal = running.iter().map(|(machine, ..)| machine.price).sum();
    let mut again = None;
    for (_, most, period) in limits.periods(now) {
        if hourly.is_zero() {
            break;
        }
        let seconds = (left(machines, most, period, now) - soon(hourly)) * Decimal::from(3600);
        let seconds = i64::try_from((seconds / hourly).floor()).unwrap_or(i64::MAX / 4);
        let at = later(now, SignedDuration::from_secs(seconds.max(0) + 1));
        let at = at.min(period.end());
        again = Some(again.map_or(at, |known: Timestamp| known.min(at)));
    }
    (gone, again)
}

/// Dollars of a period that are certainly not spent: what may have been bought may have cost something by now.
fn left(machines: &[Machine], most: Decimal, period: Period, now: Timestamp) -> Decimal {
    let spent = machines.iter().map(|one| match one.course {
        Course::Intended { since, .. } => cost(one.price, period.seconds(since, now)),
        _ => one.spent(period, now),
    });
    most - spent.sum::<Decimal>()
}

/// Dollars that what runs costs while it is being ended.
fn soon(hourly: Decimal) -> Decimal {
    cost(hourly, MARGIN.as_secs())
}

fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    warp_runtime::driver::later(at, by)
}

/// Dollars with two decimals.
pub(crate) fn money(amount: Decimal) -> String {
    format!("{:.2}", amount.round_dp(2))
}

fn hours(seconds: i64) -> String {
    match seconds {
        short if short < 3600 => format!("{} min", (short + 59) / 60),
        long => {
            let hours = Decimal::from(long) / Decimal::from(3600);
            format!("{} h", hours.round_dp(1).normalize())
        }
    }
}
