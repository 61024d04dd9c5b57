use proptest::prelude::*;

use super::{Forecaster, History, StartEstimate};
use crate::estimate::{Durations, Features};
use crate::queue::easy::Easy;
use crate::queue::job::{Job, Need, Run, Shape};
use crate::queue::pool::{Placement, Pool};
use crate::queue::state::State;

/// One GPU, held for `age` by work with a limit, and one job in line for it.
fn behind(
    age: f64,
    limit: Option<f64>,
    runs: &[f64],
    forecaster: &Forecaster,
) -> Option<StartEstimate> {
    let mut durations = Durations::default();
    let group = durations.group(&Features::default());
    for run in runs {
        durations.observe(group, *run);
    }
    let pool = Pool::uniform(1, 1);
    let accepts = pool.classes_named(&[]);
    let mut state = State::new(pool);
    state.now = 1_000_000.0;
    let since = state.now - age;
    let mut holds = Job::new(0, since, 0, 1, group);
    holds.limit = limit;
    let run = Run {
        since,
        warm: since,
        placement: Placement::one(0, 1),
        expected_end: state.now,
        expected_until: f64::NEG_INFINITY,
        rank: f64::NAN,
    };
    state.adopt(holds, run);
    let need = state.intern(Need {
        shape: Shape::Gpus(1),
        accepts,
    });
    let waits = Job::new(1, state.now, need, 1, group);
    state.submit(waits, &Easy, &mut durations);
    let history = History::default();
    let told = forecaster.estimate(&state, &Easy, &durations, &history, &|_| true);
    let start = told.get(&1)?;
    Some(StartEstimate {
        low: start.low - state.now,
        middle: start.middle - state.now,
        high: start.high - state.now,
    })
}

proptest! {
    #[test]
    fn a_limit_ends_the_band_whatever_was_learnt(
        age in 0.0..50_000.0_f64,
        left in 1.0..50_000.0_f64,
        runs in prop::collection::vec(1.0..500_000.0_f64, 0..20),
        least_seen in 0..40_u64,
    ) {
        let forecaster = Forecaster { least_seen, ..Forecaster::default() };
        let start = behind(age, Some(age + left), &runs, &forecaster).unwrap();
        prop_assert!(0.0 <= start.low && start.low <= start.middle);
        prop_assert!(start.middle <= start.high);
        prop_assert!((start.high - left).abs() < 1e-3, "{start:?} with {left} left");
    }
}

#[test]
fn work_that_always_takes_longer_than_it_may_is_expected_to_reach_its_limit() {
    let start = behind(60.0, Some(600.0), &[50_000.0; 50], &Forecaster::default()).unwrap();
    assert!((start.low - 540.0).abs() < 1e-3, "{start:?}");
}

#[test]
fn what_nobody_has_seen_yet_is_not_made_up() {
    let wary = Forecaster {
        least_seen: 5,
        ..Forecaster::default()
    };
    let without = behind(60.0, None, &[1800.0; 4], &wary).unwrap();
    assert!(without.low >= wary.horizon, "{without:?}");
    let with = behind(60.0, None, &[1800.0; 5], &wary).unwrap();
    assert!(with.middle < wary.horizon, "{with:?}");
    // Any time until its limit.
    let half = behind(0.0, Some(1000.0), &[], &wary).unwrap();
    assert!((200.0..800.0).contains(&half.middle), "{half:?}");
}
