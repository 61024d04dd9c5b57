//! Budgets of several tenants over a month in which things go wrong: answers of a cloud come late or never, purchases are
//! refused, machines start later, cost less than was agreed and end later than they were told to, and the operator is away.
//!
//! What a machine costs after it was due to end, or told to, is the cloud's doing and told apart; all else is within every
//! budget, at every moment.

use super::*;

/// What somebody wants, and how it goes.
#[derive(Clone, Debug)]
struct Wish {
    tenant: usize,
    after_minutes: i64,
    /// The most it may cost an hour.
    cents: i64,
    /// Hundredths of that which the cloud bills.
    billed: i64,
    hours: Option<i64>,
    refused: bool,
    starts_after: i64,
    /// Minutes until the operator knows what became of the call.
    told_after: i64,
    leaves_after_hours: i64,
    ends_late: i64,
}

fn wish() -> impl Strategy<Value = Wish> {
    let money = (0_usize..3, 0_i64..1500, 1_i64..1500, 30_i64..=100);
    let times = (prop::option::of(1_i64..200), 0_i64..30, 0_i64..900);
    let ends = (1_i64..900, 0_i64..60, prop::bool::weighted(0.25));
    (money, times, ends).prop_map(|(money, times, ends)| Wish {
        tenant: money.0,
        after_minutes: money.1,
        cents: money.2,
        billed: money.3,
        hours: times.0,
        starts_after: times.1,
        // Nothing is known before it is there.
        told_after: times.1 + times.2,
        leaves_after_hours: ends.0,
        ends_late: ends.1,
        refused: ends.2,
    })
}

/// A machine as it is, whatever is known of it.
#[derive(Clone, Debug)]
struct Real {
    name: String,
    tenant: usize,
    limit: Decimal,
    billed: Decimal,
    lasts: Option<SignedDuration>,
    refused: bool,
    intended: Timestamp,
    from: Timestamp,
    told: Timestamp,
    leaves: Timestamp,
    late: SignedDuration,
    /// When it was told to end.
    ending: Option<Timestamp>,
}

impl Real {
    fn gone(&self) -> Option<Timestamp> {
        let ending = self.ending?;
        Some(later(ending.max(self.from), self.late))
    }

    /// When it ends by its own limits or because nobody needs it any more.
    fn due(&self) -> Timestamp {
        let ends = self.lasts.map(|lasts| later(self.from, lasts));
        ends.map_or(self.leaves, |ends| ends.min(self.leaves))
    }

    /// What the operator takes it for.
    fn known(&self, now: Timestamp) -> Option<Machine> {
        let (price, course) = if now < self.told {
            let course = Course::Intended {
                since: self.intended,
                lasts: self.lasts,
                going: self.ending.is_some(),
            };
            (self.limit, course)
        } else if self.refused {
            return None;
        } else if let Some(until) = self.gone().filter(|gone| *gone <= now) {
            let from = self.from;
            (self.billed, Course::Over { from, until })
        } else {
            let course = Course::Runs {
                from: self.from,
                ends: self.lasts.map(|lasts| later(self.from, lasts)),
                idle: false,
                going: self.ending.is_some(),
            };
            (self.billed, course)
        };
        Some(Machine {
            name: self.name.clone(),
            tenant: self.tenant.to_string(),
            price,
            course,
        })
    }

    /// Dollars of a period, but for what the cloud took after it should have ended.
    fn cost(&self, period: Period, end: Timestamp) -> Decimal {
        if self.refused {
            return Decimal::ZERO;
        }
        let until = [self.gone(), self.ending, Some(self.due()), Some(end)];
        let until = until.into_iter().flatten().min().unwrap_or(end);
        cost(self.billed, period.seconds(self.from, until))
    }
}

/// The first tenant is the parent of the others.
struct World<'a> {
    limits: &'a [Option<Limits>],
    wishes: &'a [Wish],
    /// When the operator is away, and for how long, in minutes from the beginning.
    away: &'a [(i64, i64)],
    reals: Vec<Real>,
    bought: usize,
    held: usize,
}

fn begin() -> Timestamp {
    time("2026-01-30T09:00:00Z")
}

impl World<'_> {
    fn pays(payer: usize, tenant: usize) -> bool {
        payer == 0 || payer == tenant
    }

    fn machines(&self, payer: usize, now: Timestamp) -> Vec<Machine> {
        let own = self
            .reals
            .iter()
            .filter(|real| Self::pays(payer, real.tenant));
        own.filter_map(|real| real.known(now)).collect()
    }

    /// When the operator is there again, if it is away.
    fn back(&self, now: Timestamp) -> Option<Timestamp> {
        let times = self.away.iter().map(|(from, lasts)| {
            let from = later(begin(), SignedDuration::from_mins(*from));
            (from, later(from, SignedDuration::from_mins(*lasts)))
        });
        times
            .filter(|(from, until)| *from <= now && now < *until)
            .map(|(_, until)| until)
            .max()
    }

    /// One pass of the operator: ends what is due or over a limit. When it looks again.
    fn pass(&mut self, now: Timestamp) -> Option<Timestamp> {
        let mut stopped = Vec::new();
        let mut next: Option<Timestamp> = None;
        let mut look = |at: Timestamp| next = Some(next.map_or(at, |known| known.min(at)));
        for (payer, limits) in self.limits.iter().enumerate() {
            let Some(limits) = limits else { continue };
            let (gone, again) = stops(limits, &self.machines(payer, now), now);
            stopped.extend(gone);
            again.into_iter().for_each(&mut look);
        }
        for real in self.reals.iter_mut().filter(|real| real.ending.is_none()) {
            let known = now >= real.told && !real.refused;
            if stopped.contains(&real.name) || (known && real.due() <= now) {
                real.ending = Some(now);
            } else if known {
                look(real.due());
            }
            if now < real.told {
                look(real.told);
            }
        }
        next
    }

    fn wants(&mut self, number: usize, now: Timestamp) {
        let wish = &self.wishes[number];
        let limit = Decimal::new(wish.cents, 2);
        let lasts = wish.hours.map(hours);
        let wanted = [Purchase {
            price: limit,
            lasts,
        }];
        let payers = self.limits.iter().enumerate();
        let mut payers = payers.filter(|(payer, _)| Self::pays(*payer, wish.tenant));
        let allowed = payers.all(|(payer, limits)| {
            let machines = self.machines(payer, now);
            limits
                .as_ref()
                .is_none_or(|limits| allows("t", limits, &machines, &wanted, now).is_ok())
        });
        if !allowed {
            self.held += 1;
            return;
        }
        self.bought += 1;
        let from = later(now, SignedDuration::from_mins(wish.starts_after));
        self.reals.push(Real {
            name: number.to_string(),
            tenant: wish.tenant,
            limit,
            billed: limit * Decimal::new(wish.billed, 2),
            lasts,
            refused: wish.refused,
            intended: now,
            from,
            told: later(now, SignedDuration::from_mins(wish.told_after)),
            leaves: later(from, SignedDuration::from_hours(wish.leaves_after_hours)),
            late: SignedDuration::from_mins(wish.ends_late),
            ending: None,
        });
    }

    fn play(&mut self) -> Timestamp {
        let mut now = begin();
        let mut asked = now;
        let mut wished = 0;
        let last = later(now, SignedDuration::from_hours(24 * 31));
        while now < last {
            if let Some(back) = self.back(now) {
                now = back;
                continue;
            }
            let mut next = self.pass(now).unwrap_or(last).min(last);
            while let Some(wish) = self.wishes.get(wished) {
                let at = later(asked, SignedDuration::from_mins(wish.after_minutes));
                if at > now {
                    next = next.min(at);
                    break;
                }
                self.wants(wished, now);
                asked = at;
                wished += 1;
                next = next.min(later(now, SignedDuration::from_secs(1)));
            }
            now = next.max(later(now, SignedDuration::from_secs(1)));
        }
        // Whatever is left goes, and it is all known.
        for real in &mut self.reals {
            real.ending = real.ending.or(Some(now));
        }
        later(now, SignedDuration::from_hours(24))
    }
}

fn budget() -> impl Strategy<Value = Option<serde_json::Value>> {
    let limits = (
        prop::option::of(1_i64..60),
        prop::option::of(1_i64..600),
        prop::option::of(1_i64..6000),
    );
    prop::option::of(limits.prop_map(|(hour, day, month)| {
        let mut budget = json!({});
        for (field, most) in [("perHour", hour), ("perDay", day), ("perMonth", month)] {
            if let Some(most) = most {
                budget[field] = json!(most);
            }
        }
        budget
    }))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn no_budget_is_passed_in_a_month_of_faults_and_what_was_held_goes_on(
        wishes in prop::collection::vec(wish(), 1..60),
        budgets in prop::collection::vec(budget(), 3),
        away in prop::collection::vec((0_i64..40_000, 1_i64..2_000), 0..6),
        stop in any::<bool>(),
    ) {
        let word = if stop { "stop" } else { "hold" };
        let all: Vec<Option<Limits>> = budgets
            .into_iter()
            .map(|budget| budget.map(|mut budget| {
                budget["atLimit"] = json!(word);
                limits(budget)
            }))
            .collect();
        // Whom a budget stops must be stopped by somebody: away is for those that are only held.
        let away = if stop { Vec::new() } else { away };
        let mut world = World { limits: &all, wishes: &wishes, away: &away, reals: Vec::new(), bought: 0, held: 0 };
        let end = world.play();
        prop_assert_eq!(world.bought + world.held <= wishes.len(), true);
        for (payer, limits) in all.iter().enumerate() {
            let Some(limits) = limits else { continue };
            let own: Vec<&Real> = world.reals.iter().filter(|real| World::pays(payer, real.tenant)).collect();
            for (most, mut period) in [
                (limits.per_day, Period::day(begin())),
                (limits.per_month, Period::month(begin())),
            ] {
                let Some(most) = most else { continue };
                while period.start() < end {
                    let spent: Decimal = own.iter().map(|real| real.cost(period, end)).sum();
                    prop_assert!(spent <= most, "tenant {payer}: {spent} of {most} from {}", period.start());
                    period = period.next();
                }
            }
            if let Some(most) = limits.per_hour {
                for at in own.iter().map(|real| real.from) {
                    let there = own.iter().filter(|real| {
                        let until = real.ending.map_or(real.due(), |ending| ending.min(real.due()));
                        !real.refused && real.from <= at && at < until
                    });
                    let hourly: Decimal = there.map(|real| real.billed).sum();
                    prop_assert!(hourly <= most, "tenant {payer}: {hourly} of {most} an hour at {at}");
                }
            }
            // When all of it is over, a new month allows what fits into it alone.
            let later = later(end, SignedDuration::from_hours(24 * 62));
            let machines = world.machines(payer, later);
            let wanted = [Purchase { price: Decimal::new(1, 2), lasts: Some(hours(1)) }];
            prop_assert!(allows("t", limits, &machines, &wanted, later).is_ok());
        }
    }
}

#[test]
fn what_may_have_been_bought_long_ago_is_counted_from_then_on() {
    let now = time(NOON);
    let lost = Machine {
        name: "lost".to_owned(),
        tenant: "t".to_owned(),
        price: Decimal::from(1),
        course: Course::Intended {
            since: time("2026-11-17T00:00:00Z"),
            lasts: None,
            going: false,
        },
    };
    // It may have cost twelve dollars by now and twelve more until midnight.
    let day = limits(json!({"perDay": 30, "atLimit": "stop"}));
    let refused = allows(
        "t",
        &day,
        std::slice::from_ref(&lost),
        &[wants(7, hours(1))],
        now,
    );
    assert!(refused.is_err(), "24 may be spent of 30");
    assert_eq!(
        allows(
            "t",
            &day,
            std::slice::from_ref(&lost),
            &[wants(6, hours(1))],
            now
        ),
        Ok(())
    );
    let little = limits(json!({"perDay": 12, "atLimit": "stop"}));
    assert_eq!(stops(&little, &[lost], now).0, ["lost"]);
}
