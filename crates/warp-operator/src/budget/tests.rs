//! What budgets allow, whom they stop, and that they are never passed whatever is wanted.

mod faults;

use jiff::SignedDuration;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn time(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn limits(budget: serde_json::Value) -> Limits {
    Limits::of(&serde_json::from_value(budget).expect("a budget")).expect("limits")
}

fn hours(hours: i64) -> SignedDuration {
    SignedDuration::from_hours(hours)
}

fn runs(name: &str, price: i64, from: &str, ends: Option<&str>) -> Machine {
    Machine {
        name: name.to_owned(),
        tenant: "t".to_owned(),
        price: Decimal::from(price),
        course: Course::Runs {
            from: time(from),
            ends: ends.map(time),
            idle: false,
            going: false,
        },
    }
}

fn wants(price: i64, lasts: impl Into<Option<SignedDuration>>) -> Purchase {
    Purchase {
        price: Decimal::from(price),
        lasts: lasts.into(),
    }
}

const NOON: &str = "2026-11-17T12:00:00Z";

fn refused(limits: &Limits, machines: &[Machine], wanted: Purchase) -> Refusal {
    allows("t", limits, machines, &[wanted], time(NOON)).expect_err("refused")
}

#[test]
fn the_worst_case_of_a_purchase_is_what_counts() {
    let day = limits(json!({"perDay": 20}));
    let now = time(NOON);
    assert_eq!(allows("t", &day, &[], &[wants(2, hours(10))], now), Ok(()));
    // Twelve hours are left of today, but tomorrow has twenty-four.
    let said = refused(&day, &[], wants(1, None));
    assert!(
        said.message
            .contains("may cost 24.00 (1.00 an hour for 24 h)"),
        "{}",
        said.message
    );
    assert!(
        said.message.contains("set maxLifetime or maxTotalPrice"),
        "{}",
        said.message
    );
    assert_eq!(said.until, None, "waiting does not help");
    let stops = limits(json!({"perDay": 20, "atLimit": "stop"}));
    assert_eq!(
        allows("t", &stops, &[], &[wants(1, None)], now),
        Ok(()),
        "it is ended tomorrow"
    );
}

#[test]
fn what_is_spent_and_reserved_leaves_the_rest() {
    let day = limits(json!({"perDay": "50"}));
    let there = [runs(
        "m",
        2,
        "2026-11-17T08:00:00Z",
        Some("2026-11-17T18:00:00Z"),
    )];
    let now = time(NOON);
    assert_eq!(
        allows("t", &day, &there, &[wants(3, hours(10))], now),
        Ok(())
    );
    let said = refused(&day, &there, wants(4, hours(8)));
    for part in [
        "may spend 50.00 a day",
        "8.00 is spent",
        "12.00 is reserved",
        "may cost 32.00 (4.00 an hour for 8 h)",
    ] {
        assert!(said.message.contains(part), "{}", said.message);
    }
    // From then on the rest of the day costs no more than is left.
    assert_eq!(said.until, Some(time("2026-11-17T16:30:00Z")));
    let mut gone = there;
    gone[0].course = Course::Over {
        from: time("2026-11-17T08:00:00Z"),
        until: now,
    };
    assert_eq!(
        allows("t", &day, &gone, &[wants(4, hours(8))], now),
        Ok(()),
        "its end released the rest"
    );
}

#[test]
fn no_time_is_promised_at_which_the_budget_frees_nothing() {
    let day = limits(json!({"perDay": "50"}));
    // It takes the whole of every day to come.
    let endless = [runs("m", 2, "2026-11-17T08:00:00Z", None)];
    let said = refused(&day, &endless, wants(4, hours(8)));
    assert_eq!(said.until, None, "{}", said.message);
    assert!(
        said.message
            .contains("when a machine is given back, and not by time alone"),
        "{}",
        said.message
    );
    // Today is spent; tomorrow is not.
    let spent = [Machine {
        course: Course::Over {
            from: time("2026-11-17T01:00:00Z"),
            until: time("2026-11-17T11:00:00Z"),
        },
        ..runs("m", 5, "2026-11-17T01:00:00Z", None)
    }];
    let said = refused(&day, &spent, wants(4, hours(8)));
    assert_eq!(said.until, Some(time("2026-11-18T00:00:00Z")));
    assert!(
        said.message.contains("or at 2026-11-18T00:00:00Z"),
        "{}",
        said.message
    );
    // The month has not enough left for tomorrow either: its last hours cost little.
    let both = limits(json!({"perDay": "50", "perMonth": "60"}));
    let said = refused(&both, &spent, wants(4, hours(8)));
    assert_eq!(said.until, Some(time("2026-11-30T21:30:00Z")));
}

#[test]
fn a_later_day_that_pays_for_its_rest_is_named() {
    let limits = limits(json!({"perDay": 100, "atLimit": "hold"}));
    // Three an hour until noon of the day after tomorrow: tomorrow has 28 left, which pay for its last fourteen hours.
    let busy = [runs(
        "a",
        3,
        "2026-11-16T12:00:00Z",
        Some("2026-11-19T12:00:00Z"),
    )];
    let said = refused(&limits, &busy, wants(2, None));
    assert_eq!(
        said.until,
        Some(time("2026-11-18T10:00:00Z")),
        "{}",
        said.message
    );
}

#[test]
fn an_hourly_limit_is_for_what_is_rented_at_one_time() {
    let hour = limits(json!({"perHour": 5}));
    let there = [runs("m", 3, "2026-11-17T08:00:00Z", None)];
    let now = time(NOON);
    assert_eq!(allows("t", &hour, &there, &[wants(2, None)], now), Ok(()));
    let said = refused(&hour, &there, wants(3, None));
    assert!(said.message.contains("3.00 is rented"), "{}", said.message);
}

#[test]
fn a_month_is_kept_to_like_a_day() {
    let month = limits(json!({"perMonth": 1000}));
    let said = refused(&month, &[], wants(2, None));
    assert!(said.message.contains("a month"), "{}", said.message);
    let now = time(NOON);
    assert_eq!(allows("t", &month, &[], &[wants(1, None)], now), Ok(()));
}

#[test]
fn idle_machines_go_first_and_then_those_bought_last() {
    let stops_at = limits(json!({"perHour": 3, "atLimit": "stop"}));
    let mut there = [
        runs("old", 2, "2026-11-17T08:00:00Z", None),
        runs("idle", 2, "2026-11-17T07:00:00Z", None),
        runs("new", 1, "2026-11-17T09:00:00Z", None),
    ];
    if let Course::Runs { idle, .. } = &mut there[1].course {
        *idle = true;
    }
    assert_eq!(stops(&stops_at, &there, time(NOON)).0, ["idle"]);
    let less = limits(json!({"perHour": 2, "atLimit": "stop"}));
    assert_eq!(stops(&less, &there, time(NOON)).0, ["idle", "new"]);
    let holds = limits(json!({"perHour": 2}));
    assert!(stops(&holds, &there, time(NOON)).0.is_empty());
}

#[test]
fn a_limit_that_cannot_be_read_is_named() {
    let budget = serde_json::from_value(json!({"perDay": "much"})).expect("a budget");
    let said = Limits::of(&budget).expect_err("no price");
    assert!(said.contains("spec.budget.perDay: 'much'"), "{said}");
}

/// One thing that somebody wants: when, for how much, for how long, and how soon it ends by itself.
#[derive(Clone, Debug)]
struct Wish {
    after_minutes: i64,
    cents: i64,
    hours: Option<i64>,
    leaves_after_hours: i64,
}

fn wish() -> impl Strategy<Value = Wish> {
    (
        0_i64..900,
        1_i64..2000,
        prop::option::of(1_i64..200),
        1_i64..2000,
    )
        .prop_map(|(after_minutes, cents, hours, leaves_after_hours)| Wish {
            after_minutes,
            cents,
            hours,
            leaves_after_hours,
        })
}

/// Plays purchases in virtual time: what is allowed is bought at its dearest and runs as long as it may. Returns the
/// machines and when the last of them was over.
fn play(limits: &Limits, wishes: &[Wish]) -> (Vec<Machine>, Timestamp) {
    let mut now = time("2026-01-30T09:00:00Z");
    let mut machines: Vec<Machine> = Vec::new();
    for (number, wish) in wishes.iter().enumerate() {
        let next = later(now, SignedDuration::from_mins(wish.after_minutes));
        now = pass(limits, &mut machines, wishes, now, next);
        let price = Decimal::new(wish.cents, 2);
        let lasts = wish.hours.map(hours);
        if allows("t", limits, &machines, &[Purchase { price, lasts }], now).is_ok() {
            machines.push(Machine {
                name: number.to_string(),
                tenant: "t".to_owned(),
                price,
                course: Course::Runs {
                    from: now,
                    ends: lasts.map(|lasts| later(now, lasts)),
                    idle: false,
                    going: false,
                },
            });
        }
    }
    let last = later(now, SignedDuration::from_hours(24 * 70));
    let end = pass(limits, &mut machines, wishes, now, last);
    (machines, end)
}

/// Lets time pass: machines end at their own time, when they are not needed, or when the budget says so.
fn pass(
    limits: &Limits,
    machines: &mut [Machine],
    wishes: &[Wish],
    mut now: Timestamp,
    until: Timestamp,
) -> Timestamp {
    loop {
        let (stopped, again) = stops(limits, machines, now);
        let mut next = again.map_or(until, |again| again.min(until));
        for machine in machines.iter_mut() {
            let Course::Runs { from, ends, .. } = machine.course else {
                continue;
            };
            let wish = &wishes[machine.name.parse::<usize>().expect("a number")];
            let leaves = later(from, SignedDuration::from_hours(wish.leaves_after_hours));
            let ends = ends.map_or(leaves, |ends| ends.min(leaves));
            if ends <= now || stopped.contains(&machine.name) {
                machine.course = Course::Over {
                    from,
                    until: ends.min(now),
                };
            } else {
                next = next.min(ends);
            }
        }
        if now >= until {
            return now;
        }
        now = next
            .max(later(now, SignedDuration::from_secs(1)))
            .min(until);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_budget_is_never_passed(
        wishes in prop::collection::vec(wish(), 1..40),
        per_hour in prop::option::of(1_i64..60),
        per_day in prop::option::of(1_i64..600),
        per_month in prop::option::of(1_i64..6000),
        stop in any::<bool>(),
    ) {
        let mut budget = json!({"atLimit": if stop { "stop" } else { "hold" }});
        for (field, most) in [("perHour", per_hour), ("perDay", per_day), ("perMonth", per_month)] {
            if let Some(most) = most {
                budget[field] = json!(most);
            }
        }
        let limits = limits(budget);
        let (machines, end) = play(&limits, &wishes);
        let begin = time("2026-01-30T00:00:00Z");
        for (most, mut period) in [
            (limits.per_day, Period::day(begin)),
            (limits.per_month, Period::month(begin)),
        ] {
            let Some(most) = most else { continue };
            while period.start() < end {
                let spent: Decimal = machines.iter().map(|one| one.spent(period, end)).sum();
                prop_assert!(spent <= most, "{spent} of {most} from {}", period.start());
                period = period.next();
            }
        }
        if let Some(most) = limits.per_hour {
            for at in machines.iter().map(started) {
                let there = machines.iter().filter(|one| is_there(one, at));
                let hourly: Decimal = there.map(|one| one.price).sum();
                prop_assert!(hourly <= most, "{hourly} of {most} an hour at {at}");
            }
        }
    }
}

fn started(machine: &Machine) -> Timestamp {
    match machine.course {
        Course::Intended { since, .. } => since,
        Course::Runs { from, .. } | Course::Over { from, .. } => from,
    }
}

fn is_there(machine: &Machine, at: Timestamp) -> bool {
    match machine.course {
        Course::Over { from, until } => from <= at && at < until,
        _ => started(machine) <= at,
    }
}
