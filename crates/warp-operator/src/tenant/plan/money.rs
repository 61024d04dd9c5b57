//! What a tenant has spent on rented machines, what is reserved, and where that stands under its budget. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use warp_api::tenant::BudgetStatus;
use warp_api::{Tenant, condition, reason};
use warp_cloud::Decimal;
use warp_runtime::plan::Plan;

use crate::budget::{Limits, Machine, Period, Purse, money};

/// What runs costs more every second: its figures are renewed this often, in seconds.
const RENEW: i64 = 300;
/// How often it is looked whether the ledger is known.
const LOOK: SignedDuration = SignedDuration::from_secs(1);

/// Spent and reserved in one period.
struct Figures {
    spent: Decimal,
    reserved: Decimal,
}

impl Figures {
    fn of(machines: &[Machine], period: Period, as_of: Timestamp) -> Self {
        Self {
            spent: machines.iter().map(|one| one.spent(period, as_of)).sum(),
            reserved: machines.iter().map(|one| one.to_come(period, as_of)).sum(),
        }
    }
}

/// The figures and the condition of a tenant with a budget. Without one there are none.
pub(super) fn of(
    plan: &mut Plan,
    tenant: &Tenant,
    before: Option<&BudgetStatus>,
    purse: &Purse,
    now: Timestamp,
) -> Option<(Option<BudgetStatus>, condition::State)> {
    let budget = tenant.spec.budget.as_ref()?;
    let limits = match Limits::of(budget) {
        Ok(limits) => limits,
        Err(problem) => {
            let text = format!("{problem}: nothing is bought before that");
            return Some((None, state("False", reason::INVALID_BUDGET, text)));
        }
    };
    let machines = match purse {
        Purse::Of(accounts) => accounts.machines(&tenant.name_any()),
        Purse::Nobodys | Purse::NotYet => Vec::new(),
        Purse::Unknown(why) => {
            plan.look_again(warp_runtime::driver::later(now, LOOK));
            let text = format!("nothing is bought before it is known what was spent: {why}");
            let state = state("Unknown", reason::NOT_ASKED, text);
            return Some((before.cloned(), state));
        }
    };
    let second = now.as_second();
    let floor = Timestamp::from_second(second - second.rem_euclid(RENEW)).unwrap_or(now);
    let open: Vec<&Machine> = machines.iter().filter(|one| one.is_open()).collect();
    let (day, month) = (Period::day(now), Period::month(now));
    let today = Figures::of(&machines, day, floor);
    let this_month = Figures::of(&machines, month, floor);
    let hourly: Decimal = open.iter().map(|machine| machine.price).sum();
    if !open.is_empty() {
        plan.look_again(warp_runtime::driver::later(
            floor,
            SignedDuration::from_secs(RENEW),
        ));
    }
    if !today.spent.is_zero() {
        plan.look_again(day.end());
    } else if !this_month.spent.is_zero() {
        plan.look_again(month.end());
    }
    let state = judged(&limits, hourly, &today, &this_month);
    let status = BudgetStatus {
        machines: i64::try_from(open.len()).unwrap_or(i64::MAX),
        price_per_hour: money(hourly),
        spent_today: money(today.spent),
        reserved_today: money(today.reserved),
        spent_this_month: money(this_month.spent),
        reserved_this_month: money(this_month.reserved),
        as_of: (!open.is_empty()).then_some(Time(floor)),
    };
    Some((Some(status), state))
}

fn state(status: &'static str, reason: &'static str, message: String) -> condition::State {
    condition::State {
        kind: condition::WITHIN_BUDGET,
        status,
        reason,
        message,
    }
}

fn judged(
    limits: &Limits,
    hourly: Decimal,
    today: &Figures,
    this_month: &Figures,
) -> condition::State {
    let (mut said, mut reached, mut near) = (Vec::new(), false, false);
    let much = |part: Decimal, most: Decimal| {
        part * Decimal::from(100) >= most * Decimal::from(limits.warn_at)
    };
    if let Some(most) = limits.per_hour {
        reached |= hourly >= most;
        near |= much(hourly, most);
        said.push(format!(
            "machines for {} of {} an hour",
            money(hourly),
            money(most)
        ));
    }
    let periods = [
        ("today", today, limits.per_day),
        ("this month", this_month, limits.per_month),
    ];
    for (word, figures, most) in periods {
        let Some(most) = most else { continue };
        reached |= figures.spent + figures.reserved >= most;
        near |= much(figures.spent, most);
        said.push(format!(
            "{word} {} spent and {} reserved of {}",
            money(figures.spent),
            money(figures.reserved),
            money(most)
        ));
    }
    let figures = said.join("; ");
    if reached {
        let text = format!("{figures}: nothing more is bought");
        return state("False", reason::BUDGET_REACHED, text);
    }
    let reason = if near {
        reason::BUDGET_WARNING
    } else {
        reason::BUDGET_KEPT
    };
    state("True", reason, figures)
}
